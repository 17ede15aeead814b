//! The interface of a device to the rest of the system.
//!
//! A device gives data ([`Device::facts`]) and obeys. Its life has one order:
//!
//! ```text
//! facts      seconds and scratch of nodes, for the planner
//! reserve    addresses of the arena and room in other tiers; no memory yet
//! prepare    each schedule, bound to those addresses
//! warm_up    everything else that running them takes beside the arena
//! outside    how much that was; where it is more than planned, the planner is asked again
//! map        the memory of the arena
//! run        whole schedules, with writes and reads between them
//! ```
//!
//! Running is asynchronous by design. [`Device::run`] may return before the schedule is done, as long as later calls
//! see its results; [`Device::read`] waits for everything before it. A fault of the data, such as an id outside its
//! table, may be reported only then. A number that the caller wants from each schedule, but not at once, is
//! [observed](Device::observe): a whole step then waits once.

use std::fmt::Debug;
use std::sync::Arc;

use plimsoll_graph::{Graph, Init, Type};
use plimsoll_plan::{Facts, ReplayError, Runnable, Space, Tier};

use crate::ExecError;
use crate::instructions::Instructions;
use crate::ranks::Communicator;
use crate::timings::Timings;

/// A schedule that a device has prepared, by its number on that device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScheduleId(pub usize);

/// The memory that an arena lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryPool {
    /// The process's own, which the kernel counts.
    Process,
    /// Memory of the device alone, which its driver counts.
    Own {
        /// Bytes that the device has.
        total: u64,
        /// Bytes that are free now.
        free: u64,
        /// Bytes that this process has taken so far, the arena included.
        taken: u64,
    },
}

/// How a device is measured in about a second: small models are trained on it for a few steps, every op timed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probing {
    /// The code that runs ops, such as `avx512`: times of other code do not hold for it.
    pub kernels: String,
    /// Sizes of the models, the smallest first. A larger one is left out where its memory cannot be had.
    pub sizes: Vec<ProbeSize>,
}

/// The size of a model that a device is measured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeSize {
    /// Width of the residual stream.
    pub width: usize,
    /// Words.
    pub vocab: usize,
    /// Tokens of a sequence.
    pub seq_len: usize,
    /// Sequences of a micro-batch.
    pub rows: usize,
}

/// Initial numbers of a state: a function of seed, name and index.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    /// The distribution.
    pub init: &'a Init,
    /// Name of the state.
    pub name: &'a str,
    /// Seed of the run.
    pub seed: u64,
}

/// Something that runs schedules.
pub trait Device: Send + Debug {
    /// The device's name for people.
    fn name(&self) -> String;

    /// How many threads of this machine's processor the device computes with.
    fn threads(&self) -> usize {
        1
    }

    /// The instruction path of its kernels on this machine's processor, if it computes there. Bits may depend on it.
    fn instructions(&self) -> Option<Instructions> {
        None
    }

    /// The memory its arena lies in, as it is now.
    ///
    /// # Errors
    ///
    /// When the device fails.
    fn pool(&self) -> Result<MemoryPool, ExecError> {
        Ok(MemoryPool::Process)
    }

    /// Time and scratch of every node, for the planner.
    fn facts(&self, graph: &Graph) -> Facts;

    /// How the times behind [`facts`](Self::facts) are measured quickly. `None` if they follow from stated figures.
    fn probing(&self) -> Option<Probing> {
        None
    }

    /// Takes measured times, which its [`facts`](Self::facts) state from then on, if they depend on measured times at
    /// all.
    fn use_timings(&mut self, _timings: Timings) {}

    /// Makes the device one rank of several. Schedules that exchange values with other ranks can be prepared afterwards.
    ///
    /// # Errors
    ///
    /// When the device cannot exchange anything.
    fn join(&mut self, _ranks: Arc<dyn Communicator>) -> Result<(), ExecError> {
        Err(ExecError::Unsupported(format!("{} cannot be one of several ranks", self.name())))
    }

    /// The number of this rank among several; 0 for a device alone.
    fn rank(&self) -> usize {
        0
    }

    /// Arenas that this machine must still have room for when the device takes its own. Those of other ranks count
    /// too.
    fn arenas_ahead(&self) -> usize {
        1
    }

    /// Sets addresses of the arena and room in other tiers aside. An arena that was taken before is given back, and
    /// schedules that were prepared on it are forgotten.
    ///
    /// # Errors
    ///
    /// When the addresses or the room cannot be had.
    fn reserve(&mut self, space: Space) -> Result<(), ExecError>;

    /// Prepares a schedule: binds operands to addresses, so that running it looks nothing up and allocates nothing. What
    /// the judge left to the device, alignment and scratch, is checked with its own [`facts`](Self::facts), since those
    /// that the plan was made with may be anybody's.
    ///
    /// # Errors
    ///
    /// When the device has no kernel for one of its nodes or no such tier, or the schedule does not suit it.
    fn prepare(&mut self, schedule: &Runnable) -> Result<ScheduleId, ExecError>;

    /// Takes all memory beside the arena that running the prepared schedules will need.
    ///
    /// # Errors
    ///
    /// When it cannot be had.
    fn warm_up(&mut self) -> Result<(), ExecError> {
        Ok(())
    }

    /// Takes the memory of the arena.
    ///
    /// # Errors
    ///
    /// When the memory cannot be had.
    fn map(&mut self) -> Result<(), ExecError>;

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
    /// When the range lies outside, or something that was started has failed.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError>;

    /// The float at `offset` after all work started so far. A device that is not done yet returns `None` and delivers
    /// the float by [`observed`](Self::observed), so that the caller need not wait.
    ///
    /// # Errors
    ///
    /// When the range lies outside, or something that was started has failed.
    fn observe(&mut self, offset: u64) -> Result<Option<f32>, ExecError> {
        let mut bytes = [0; 4];
        self.read_output(offset, &mut bytes)?;
        Ok(Some(f32::from_ne_bytes(bytes)))
    }

    /// Appends the floats that [`observe`](Self::observe) did not return since the last call, in their order, after
    /// everything that was started.
    ///
    /// # Errors
    ///
    /// When something that was started has failed.
    fn observed(&mut self, _floats: &mut Vec<f32>) -> Result<(), ExecError> {
        Ok(())
    }

    /// Writes bytes of an input of the schedule that is run next. Transfers that the last schedule left open continue
    /// meanwhile where they move other bytes, and the judge has checked that those of a run do.
    ///
    /// # Errors
    ///
    /// When the range lies outside.
    fn write_input(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        self.write(offset, bytes)
    }

    /// Reads bytes of an output of the schedule that ran last, after all its runs. Transfers that it left open continue
    /// meanwhile where they bring in other bytes.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    fn read_output(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        self.read(offset, bytes)
    }

    /// Waits for all transfers that schedules left open. To be called before a schedule that must not begin while they are
    /// ([`Role::overlaps`](plimsoll_plan::Role::overlaps)); reading and writing of state does it too.
    ///
    /// # Errors
    ///
    /// When one of them failed: then state in a tier differs from what a schedule computed.
    fn settle(&self) -> Result<(), ExecError> {
        Ok(())
    }

    /// Fills a state of the arena with its initial numbers, if the device can draw them itself; else returns false, and
    /// the caller draws and writes them.
    ///
    /// # Errors
    ///
    /// When the range lies outside.
    fn draw(&mut self, _offset: u64, _ty: Type, _draw: Draw) -> Result<bool, ExecError> {
        Ok(false)
    }

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

    /// Announces the schedule that will run after the next one. If the next schedule asks for it
    /// ([`Action::StartNext`](plimsoll_plan::Action::StartNext)), the device may start some transfers of the announced
    /// schedule early. It must settle these transfers if another schedule comes instead.
    fn expect(&mut self, _next: Option<ScheduleId>) {}

    /// Runs a schedule.
    ///
    /// # Errors
    ///
    /// When the data is bad or the device fails.
    fn run(&mut self, schedule: ScheduleId) -> Result<(), ExecError>;

    /// Runs a schedule and adds the seconds of each action to its list, by the device's own clock. An action before or
    /// during which the device had to wait for the caller adds nothing: it takes less time where nothing is timed.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    fn run_timed(&mut self, schedule: ScheduleId, seconds: &mut [Vec<f64>]) -> Result<(), ExecError>;

    /// Whether the bytes after the arena are unchanged, if the device can tell.
    fn guard_is_intact(&self) -> bool {
        true
    }

    /// Remarks that its user should see before a run begins.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Remarks on events outside the run, as far as they were not taken before.
    fn take_remarks(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The error of a device that has no such tier, or has taken no room in it.
pub(crate) fn no_tier(device: &str, tier: Tier) -> ExecError {
    ExecError::Unsupported(format!("{device} keeps nothing in the tier `{}`", tier.name()))
}

/// The error of a device that a schedule does not suit.
pub fn unsuitable(schedule: &Runnable, fault: &ReplayError) -> ExecError {
    let name = schedule.role().name();
    ExecError::Mismatch(format!("schedule `{name}` was planned for another device: {fault}"))
}

/// The error of a device that has not prepared such a schedule.
pub fn no_schedule(schedule: ScheduleId) -> ExecError {
    ExecError::Mismatch(format!("no schedule {} was prepared on this device", schedule.0))
}
