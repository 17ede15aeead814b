//! Plans for arenas of a stated size, with a disk beside them or not, and runs by such plans.

#![allow(dead_code, reason = "each test file uses its own part")]

use plimsoll_devices::{DeviceKind, Setup, open};
use plimsoll_exec::{Device, Instructions};
use plimsoll_plan::{ArenaBytes, Choice, Link, Request, SearchError, Searcher, Tier, search};
use plimsoll_train::memory::{Budget, BudgetOrigin};
use plimsoll_train::{Model, Options, Planned, Run, program};

/// A disk of a stated speed, so that the same plans are made on every machine.
pub(crate) const DISK: Link = Link {
    tier: Tier::Disk,
    room: 1 << 30,
    block: 4096,
    out_rate: 1e9,
    in_rate: 1e9,
    latency: 1e-4,
    toll: 0.0,
};

/// The CPU, with a disk where there is a link to one.
pub(crate) fn device(threads: usize, link: Option<Link>) -> Box<dyn Device> {
    device_with(None, threads, link)
}

/// The device with stated instructions.
pub(crate) fn device_with(
    instructions: Option<Instructions>,
    threads: usize,
    link: Option<Link>,
) -> Box<dyn Device> {
    let offload = link.map(|link| (std::env::temp_dir(), link));
    open(DeviceKind::Cpu, &Setup { threads, instructions, offload, ..Setup::default() }).unwrap()
}

/// A plan in a budget that has its arena and not a byte more.
pub(crate) fn exactly(choice: Choice) -> Planned {
    let total = choice.plan.arena_bytes.process(0);
    Planned { choice, budget: Budget { total, outside: 0, origin: BudgetOrigin::Stated, ceiling: None } }
}

/// A run by a plan, on the device that the plan is for.
pub(crate) fn start(threads: usize, planned: Planned) -> Run {
    let link = planned.choice.program.train.facts.link;
    Run::start(device(threads, link), planned, 7).unwrap()
}

/// Asserts that a run used its arena to the planned byte, and nothing behind it.
pub(crate) fn assert_planned_peak(run: &Run) {
    assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes, "measured and planned peak");
    assert!(run.engine().device().guard_is_intact(), "bytes behind the arena");
}

/// A model, how it is trained, and its micro-batches: planned for arenas of any size.
pub(crate) struct InArena<M> {
    pub model: M,
    pub options: Options,
    pub micro_batch: usize,
}

impl<M: Model> InArena<M> {
    pub(crate) fn request(&self, budget: u64) -> Request {
        let (global_batch, micro_batch) = (self.options.global_batch, Some(self.micro_batch));
        Request { global_batch, micro_batch, strategy: None, budget: ArenaBytes(budget), slack: 0.0 }
    }

    /// The plan for an arena of `budget` bytes.
    pub(crate) fn plan(&self, link: Option<Link>, budget: u64) -> Result<Choice, SearchError> {
        let device = device(self.options.threads, link);
        search(self.request(budget), |rows| program(&self.model, &*device, &self.options, rows))
    }

    /// Bytes of the smallest arena.
    pub(crate) fn smallest(&self, link: Option<Link>) -> u64 {
        let device = device(self.options.threads, link);
        let mut searcher = Searcher::once(|rows: usize| program(&self.model, &*device, &self.options, rows));
        searcher.smallest(self.request(0)).unwrap().arena_bytes.0
    }
}
