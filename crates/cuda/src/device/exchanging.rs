//! A GPU among several: the ranks that it has joined, and the programs that they run together.

use plimsoll_exec::ExecError;

use super::CudaDevice;
use crate::driver::World;
use crate::lower::{LoweredSchedule, StreamStep};

impl CudaDevice {
    pub(super) fn world(&self) -> Result<&World, ExecError> {
        self.world.as_ref().ok_or_else(|| for_others(1))
    }

    /// Makes room for the exchanges of a program. Refuses those of a plan for another number of ranks than are here.
    pub(super) fn admit(&mut self, program: &LoweredSchedule) -> Result<(), ExecError> {
        let ranks_of = |step: &StreamStep| match step {
            StreamStep::Exchange(exchange) => Some(exchange.collective.ranks()),
            _ => None,
        };
        let Some(planned) = program.steps.iter().find_map(ranks_of) else { return Ok(()) };
        match self.world.as_mut().filter(|world| world.ranks() == planned) {
            Some(world) => world.make_room(program.exchanges()),
            None => Err(for_others(self.world.as_ref().map_or(1, World::ranks))),
        }
    }

    /// Runs a body that waits for the GPU. Its results are not to be read after a fault of another rank.
    pub(super) fn waited(&self, body: impl FnOnce() -> Result<(), ExecError>) -> Result<(), ExecError> {
        match &self.world {
            Some(world) => world.wait_within_limit(body)?,
            None => body()?,
        }
        self.check_world()
    }

    /// The fault of another rank, after which no result of this one is to be read.
    pub(super) fn check_world(&self) -> Result<(), ExecError> {
        self.world.as_ref().map_or(Ok(()), World::check)
    }

    /// The way values are exchanged, in words.
    pub(super) fn exchanging(&self) -> Option<String> {
        self.world.as_ref().map(|world| format!("ranks exchange values by NCCL {}", world.version()))
    }
}

fn for_others(here: usize) -> ExecError {
    let are = if here == 1 { "is" } else { "are" };
    ExecError::Mismatch(format!("the plan is for another number of ranks than the {here} that {are} here"))
}
