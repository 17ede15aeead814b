//! The start of a run: an engine that is ready, and a machine that has the memory for its arena.

use plimsoll_exec::{Device, Engine, MemoryPool};
use plimsoll_plan::Choice;

use crate::error::TrainError;
use crate::memory::{self, Budget, BudgetError, Size, address_space};
use crate::planning::Planned;

/// Bytes that a run on this device holds of the memory that a budget counts.
pub(crate) fn held(device: &dyn Device) -> Result<u64, TrainError> {
    Ok(match device.pool()? {
        MemoryPool::Process => memory::process()?.peak,
        // Taken whole at the start, and nothing is given back.
        MemoryPool::Own { taken, .. } => taken,
    })
}

/// The most bytes of the host's memory that the process held, where the budget counts memory of the device's own.
pub(crate) fn held_by_host(device: &dyn Device) -> Result<Option<u64>, TrainError> {
    Ok(match device.pool()? {
        MemoryPool::Process => None,
        MemoryPool::Own { .. } => Some(memory::process()?.peak),
    })
}

/// An engine with everything ready except its memory, and the budget with the bytes that the device now holds beside
/// the arena; an error if the arena no longer fits.
pub(super) fn prepared(
    device: Box<dyn Device>,
    planned: &Planned,
) -> Result<(Engine, Result<Budget, BudgetError>), TrainError> {
    let Planned { choice: Choice { plan, program, .. }, budget } = planned;
    if device.pool()? == MemoryPool::Process {
        is_free(plan.arena_bytes.0.saturating_mul(device.arenas_ahead() as u64))?;
    }
    let engine = Engine::prepare(device, program, plan)?;
    let budget = match engine.outside()? {
        Some(outside) => budget.with_card_outside(outside, plan.arena_bytes),
        None => Ok(*budget),
    };
    Ok((engine, budget))
}

/// Refuses an arena that this machine has no memory for. The system grants more memory than it has and later kills the
/// process; it is better to fail now.
fn is_free(arena: u64) -> Result<(), TrainError> {
    let free = memory::available()?;
    if arena <= free {
        return Ok(());
    }
    let limited = address_space::left().is_some_and(|left| left <= free);
    let why = if limited { " of the address space that ulimit -v allows" } else { "" };
    let (needed, free) = (Size { bytes: arena }.at_least(), Size { bytes: free });
    Err(TrainError::Config(format!(
        "the plan needs {needed} but only {free} of memory are free{why}; state a smaller --memory"
    )))
}
