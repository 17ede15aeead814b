//! What a device is to the rest of the system.
//!
//! A device gives data ([`Device::facts`]) and obeys: it takes an arena, makes schedules ready, and runs
//! their actions one by one. Actions are asynchronous by design. Copies have a start and a wait; a
//! compute action may return before it is done, as long as later actions see its result; [`Device::read`]
//! waits for everything before it.

use plimsoll_graph::Graph;
use plimsoll_plan::{Facts, Schedule, Space, Tier};

use crate::ExecError;

/// Something that runs schedules.
pub trait Device: Send {
    /// A schedule made ready: operands bound to addresses, so that running it looks nothing up and
    /// allocates nothing.
    type Prepared: Send + Sync + std::fmt::Debug;

    /// What people call it.
    fn name(&self) -> String;

    /// Time and scratch of every node, for the planner.
    fn facts(&self, graph: &Graph) -> Facts;

    /// Takes the arena and room in other tiers. Called once, before anything below.
    ///
    /// # Errors
    ///
    /// When the memory or the room cannot be had.
    fn allocate(&mut self, space: Space) -> Result<(), ExecError>;

    /// Makes a schedule ready.
    ///
    /// # Errors
    ///
    /// When the device has no kernel for one of its nodes or no such tier.
    fn prepare(&self, graph: &Graph, schedule: &Schedule) -> Result<Self::Prepared, ExecError>;

    /// Writes bytes into the arena.
    ///
    /// # Errors
    ///
    /// When the range lies outside.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ExecError>;

    /// Reads bytes from the arena, after everything that was started.
    ///
    /// # Errors
    ///
    /// When the range lies outside.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError>;

    /// Writes bytes into another tier, where state lives that is not in the arena. Between schedules.
    ///
    /// # Errors
    ///
    /// When there is no such tier, or it fails.
    fn write_tier(&mut self, tier: Tier, _offset: u64, _bytes: &[u8]) -> Result<(), ExecError> {
        Err(no_tier(&self.name(), tier))
    }

    /// Reads bytes from another tier. Between schedules.
    ///
    /// # Errors
    ///
    /// When there is no such tier, or it fails.
    fn read_tier(&self, tier: Tier, _offset: u64, _bytes: &mut [u8]) -> Result<(), ExecError> {
        Err(no_tier(&self.name(), tier))
    }

    /// Runs one action.
    ///
    /// # Errors
    ///
    /// When the data is bad or the device fails.
    fn run(&mut self, prepared: &Self::Prepared, action: usize) -> Result<(), ExecError>;

    /// Runs `body` with whatever the device wants to enter once per schedule, such as a thread pool.
    fn enter<T: Send>(&mut self, body: impl FnOnce(&mut Self) -> T + Send) -> T;
}

/// The error of a device that has no such tier, or has taken no room in it.
pub(crate) fn no_tier(device: &str, tier: Tier) -> ExecError {
    ExecError::Unsupported(format!("{device} keeps nothing in the tier `{}`", tier.name()))
}
