//! How much of the stated memory is left for the arena.
//!
//! On the CPU a budget is the whole process as the kernel counts it (`VmHWM`). A reserve is fixed before planning: the
//! bytes that the process holds when it is ready to plan, plus an allowance for those it will still take outside the
//! arena. The rest is for the arena. At the end the run checks that the budget held. Budgets of GPUs are in `card`.

use std::fmt;

use plimsoll_graph::Phase;
use plimsoll_plan::{ArenaBytes, Costed, ProcessBytes, Program};

use crate::memory::{self, MemoryError, Size};

/// Bytes allowed for later memory outside the arena: stacks of threads, the plan itself, buffers for data and files, and
/// code that only evaluations and checkpoints touch. Of code a run was seen to touch 3.3 MiB after planning.
pub const ALLOWANCE: u64 = 3 << 20;

/// The bytes of the process are counted in steps of this size, so that a few pages more or less seldom change the plan
/// from run to run. Without a tokenizer or tables of data the process is one step.
const STEP: u64 = 4 << 20;
/// Bytes by which two processes with the same settings may differ.
const JITTER: u64 = 512 << 10;
/// Added to a budget that an error names, so that a slightly larger process still fits.
const SPARE: u64 = 1 << 20;

/// Bytes of code that a run touches and planning does not.
const MORE_CODE: u64 = 3 << 19;
/// Code is counted in steps of this size, which end [`CODE_SHIFT`] and [`MORE_CODE`] before its multiples.
const CODE_STEP: u64 = 6 << 20;
const CODE_SHIFT: u64 = 1 << 18;

/// Bytes that one action takes outside the arena: in the plan, in its graph, and bound to addresses. Measured on plans
/// of 500 to 10,000 actions as 2,150, and rounded up.
const BYTES_PER_ACTION: u64 = 2500;
/// Bytes that a search takes for each node of the forward pass: the training graph, which has four times as many nodes, and
/// orders of runs that are looked at.
const SEARCH_BYTES_PER_NODE: u64 = 10_000;
/// Forward nodes of a model that is searched in any budget, so that a refusal names the least one that works: 10 MB.
const SEARCHED_ANYWAY: u64 = 1000;
/// Actions whose bytes are part of [`ALLOWANCE`].
const ACTIONS_ALLOWED: u64 = 1000;

/// Bytes that the name and shape of one tensor of a group take outside the arena: in the graphs that are there at a time, in
/// the engine and in the lists of files.
const NAME_BYTES: u64 = 1000;
/// Tensors of groups whose names are part of [`ALLOWANCE`].
const NAMES_ALLOWED: u64 = 2000;

/// If no budget is stated, this much of the free memory is left to other programs; 5 % if that is more, and at most a
/// quarter of the free memory, as in a small container.
pub const MARGIN: u64 = 256 << 20;

/// Where the figure of a budget comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetOrigin {
    /// The user stated it.
    Stated,
    /// The free memory of this machine less a margin.
    Free,
    /// The memory of a device that is described.
    Device,
}

/// A budget and how it divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes of the whole process, or of the device.
    pub total: ProcessBytes,
    /// Bytes reserved for everything outside the arena: `total` less these is the arena.
    pub outside: u64,
    /// Where `total` comes from.
    pub origin: BudgetOrigin,
    /// The largest budget that could be stated, if the memory is a device's own.
    pub ceiling: Option<ProcessBytes>,
}

/// Why a budget cannot be had, or was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BudgetError {
    /// The machine does not say how much memory it has.
    Memory(MemoryError),
    /// The budget makes no sense here, with the way out.
    Refused(String),
    /// The process took more memory than its budget.
    Crossed {
        /// The most bytes that the process held.
        peak: ProcessBytes,
        /// The budget.
        budget: ProcessBytes,
    },
}

impl From<MemoryError> for BudgetError {
    fn from(error: MemoryError) -> BudgetError {
        BudgetError::Memory(error)
    }
}

impl fmt::Display for BudgetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BudgetError::Memory(error) => error.fmt(f),
            BudgetError::Refused(why) => f.write_str(why),
            BudgetError::Crossed { peak, budget } => write!(
                f,
                "the process reached {}, above the budget of {}: more than was reserved outside the arena",
                Size { bytes: peak.0 },
                Size { bytes: budget.0 }
            ),
        }
    }
}

impl std::error::Error for BudgetError {}

impl Budget {
    /// Divides the stated budget, or the free memory less a margin when none is stated.
    ///
    /// # Errors
    ///
    /// When the memory of the machine cannot be read.
    pub fn resolve(stated: Option<u64>) -> Result<Budget, BudgetError> {
        let process = memory::process()?;
        let outside = process.anonymous().next_multiple_of(STEP) + code(process.of_files) + ALLOWANCE;
        if let Some(total) = stated {
            let total = ProcessBytes(total);
            return Ok(Budget { total, outside, origin: BudgetOrigin::Stated, ceiling: None });
        }
        let total = automatic(process.resident, memory::available()?);
        Ok(Budget { total, outside, origin: BudgetOrigin::Free, ceiling: None })
    }

    /// The least budget to name for an arena of this size in a process that has held `peak`. It is a figure
    /// that can be typed. With it [`holds`](Budget::holds) returns true in another process with the same settings,
    /// which may hold a little more.
    pub fn least_for(&self, arena: ArenaBytes, peak: ProcessBytes) -> ProcessBytes {
        let needed = arena.process(self.outside).0.max(peak.0.next_multiple_of(STEP));
        ProcessBytes((needed + SPARE).next_multiple_of(1 << 20))
    }

    /// Whether an arena of this size fits beside a process that has held `peak` and whose size was rounded up
    /// by `rounding`.
    pub fn holds(&self, arena: ArenaBytes, peak: ProcessBytes, rounding: u64) -> bool {
        let crossed = self.origin == BudgetOrigin::Stated && peak > self.total;
        !crossed && arena.process(self.outside).0.saturating_sub(rounding) <= self.total.0
    }

    /// The slack of a budget in bytes. The size of the process is rounded up when it is counted, and another process with
    /// the same settings may be a little smaller. Call it when the budget is made.
    ///
    /// # Errors
    ///
    /// When the memory of the machine cannot be read.
    pub fn rounding() -> Result<u64, BudgetError> {
        let held = memory::process()?.anonymous();
        Ok(held.next_multiple_of(STEP) - held + JITTER)
    }

    /// Whether a process that reached `peak` stayed inside the budget.
    ///
    /// # Errors
    ///
    /// When it did not.
    pub fn stayed_inside(&self, peak: ProcessBytes) -> Result<(), BudgetError> {
        if peak <= self.total { Ok(()) } else { Err(BudgetError::Crossed { peak, budget: self.total }) }
    }

    /// Whether this process, before the arena is taken, holds or has held more than a run inside a stated budget may:
    /// searching for a plan takes memory that the allocator keeps. A fresh process that is given the plan does not.
    ///
    /// # Errors
    ///
    /// When the memory of the process cannot be read.
    pub fn wants_fresh_process(&self) -> Result<bool, BudgetError> {
        if self.ceiling.is_some() {
            return Ok(false);
        }
        let held = memory::process()?;
        let small = held.peak <= self.total.0 && held.resident <= self.outside;
        Ok(!small && self.origin == BudgetOrigin::Stated)
    }

    /// The budget as text, with its origin if the user did not state it.
    pub fn described(&self) -> String {
        let total = Size { bytes: self.total.0 };
        match self.origin {
            BudgetOrigin::Stated => total.to_string(),
            BudgetOrigin::Free => format!("{total} (automatic: free memory less a margin)"),
            BudgetOrigin::Device => format!("{total} (all of the device)"),
        }
    }

    /// The same budget with an arena of `needed`, as another process with the same settings planned it. That
    /// process may have held a little less and so counted one step less; if the bytes are available all the same, they
    /// are granted.
    #[must_use]
    pub fn as_planned(self, needed: ArenaBytes, rounding: u64) -> Budget {
        let lacking = needed.0.saturating_sub(self.arena().0);
        let given = if lacking <= rounding { lacking.min(self.outside) } else { 0 };
        Budget { outside: self.outside - given, ..self }
    }

    /// Refuses a stated budget that a process that held this much has already exceeded, as reading a large tokenizer may.
    ///
    /// # Errors
    ///
    /// The error names a budget that is large enough.
    pub fn keeps(&self, held: ProcessBytes) -> Result<(), BudgetError> {
        if self.origin != BudgetOrigin::Stated || held <= self.total {
            return Ok(());
        }
        // With room for a slightly larger next process.
        let (enough, budget) = ((held.0 + STEP).div_ceil(1 << 20), self.described());
        Err(BudgetError::Refused(format!(
            "reading the model's files and the data took {}, and the budget is {budget}; state --memory {enough}MiB or more",
            Size { bytes: held.0 }
        )))
    }

    /// The same budget with room outside the arena for the plan of `program` and the names in it.
    #[must_use]
    pub fn beside(self, program: &Program) -> Budget {
        self.beside_bytes(Budget::bytes_beside(program))
    }

    /// The same budget with this much more room outside the arena.
    #[must_use]
    pub fn beside_bytes(self, bytes: u64) -> Budget {
        // Plans and names lie in the memory of the process, whatever memory a device has.
        if self.ceiling.is_some() {
            return self;
        }
        Budget { outside: self.outside + bytes, ..self }
    }

    /// Bytes of the process that a plan of `program` and the names in its graphs take.
    pub fn bytes_beside(program: &Program) -> u64 {
        let tensors: usize = program.train.graph.states().iter().map(|state| state.parts.len()).sum();
        bytes_of_actions(Budget::actions_of(program)) + bytes_of_names(tensors as u64)
    }

    /// Actions of a plan of `program`, assuming that every layer is recomputed once. Beside a tier a plan has transfers too,
    /// about as many as it has runs.
    fn actions_of(program: &Program) -> u64 {
        let nodes = |part: &Costed, phase: Phase| {
            part.graph.nodes().iter().filter(|node| node.phase == phase && !node.op.is_view()).count() as u64
        };
        let train = &program.train;
        let pass = 2 * nodes(train, Phase::Forward) + nodes(train, Phase::Backward);
        let others = [&program.evaluate, &program.generate].into_iter().flatten();
        let others: u64 = others.map(|part| nodes(part, Phase::Forward)).sum();
        let runs = 2 * pass + nodes(train, Phase::Update) + others;
        if train.facts.link.is_some() { 2 * runs } else { runs }
    }

    /// Refuses a budget that does not hold the names of so many tensors that lie in groups, such as experts. To be called
    /// before any graph is built, since each holds them.
    ///
    /// # Errors
    ///
    /// The error names a budget that holds them.
    pub fn can_name(&self, tensors: u64) -> Result<(), BudgetError> {
        let names = bytes_of_names(tensors);
        let needed = self.outside.saturating_add(names);
        if self.ceiling.is_some() || names == 0 || needed <= self.total.0 {
            return Ok(());
        }
        let (enough, budget) = ((needed + SPARE).div_ceil(1 << 20), self.described());
        Err(BudgetError::Refused(format!(
            "the names of {tensors} tensors of experts take {} beside the arena, and the budget is {budget}; state --memory \
             {enough}MiB or more to be told the least that works",
            Size { bytes: names }
        )))
    }

    /// Refuses a stated budget that holds neither the search for a plan nor the plan itself, of a model whose forward pass
    /// has `forward` nodes and so many tensors in groups. To be called before any other graph is built, since these alone may
    /// take more than the budget.
    ///
    /// # Errors
    ///
    /// The error names a budget in which a search can find the least one that works.
    pub fn can_plan(&self, forward: u64, tensors: u64, tier: bool) -> Result<(), BudgetError> {
        let elsewhere = self.ceiling.is_some() || self.origin != BudgetOrigin::Stated;
        if elsewhere || forward <= SEARCHED_ANYWAY {
            return Ok(());
        }
        let names = bytes_of_names(tensors);
        let searching = memory::process()?.resident + SEARCH_BYTES_PER_NODE * forward + names;
        // The first and further micro-batches run every forward node, and again where it is recomputed.
        let runs = 4 * forward;
        let plan = self.outside + bytes_of_actions(if tier { 2 * runs } else { runs }) + names;
        if searching.min(plan) <= self.total.0 {
            return Ok(());
        }
        let (enough, budget) = (searching.max(plan).div_ceil(1 << 20), self.described());
        Err(BudgetError::Refused(format!(
            "a plan of this model takes {} beside its arena, for {forward} nodes of the forward pass alone, and the budget is \
             {budget}; state --memory {enough}MiB or more to be told the least that works",
            Size { bytes: plan }
        )))
    }

    /// Bytes left for the arena.
    pub fn arena(&self) -> ArenaBytes {
        self.total.arena(self.outside)
    }
}

/// The budget of a process that holds `resident` bytes when `free` more are available.
fn automatic(resident: u64, free: u64) -> ProcessBytes {
    ProcessBytes(resident + free - margin(free))
}

/// The part of `free` bytes that is left to other programs where no budget is stated.
pub(super) fn margin(free: u64) -> u64 {
    MARGIN.max(free / 20).min(free / 4)
}

/// Bytes of a plan of this many actions, beyond those that are allowed for any plan.
fn bytes_of_actions(actions: u64) -> u64 {
    (BYTES_PER_ACTION * actions.saturating_sub(ACTIONS_ALLOWED)).next_multiple_of(1 << 20)
}

/// Bytes of the names of this many tensors in groups, beyond those that are allowed for any model.
fn bytes_of_names(tensors: u64) -> u64 {
    NAME_BYTES.saturating_mul(tensors.saturating_sub(NAMES_ALLOWED)).next_multiple_of(1 << 20)
}

/// Bytes to reserve for code of which `touched` bytes are resident. The kernel maps some hundred KiB more or less from
/// one start to the next, and `plan` touches a little less than `train`. If that changed the step, a budget could fit the one
/// and not the other. So one step, from 10.25 to 16.25 MiB, holds all that this program was seen to touch by then: 10.9 MiB
/// without data, up to 15 with data and a tokenizer.
fn code(touched: u64) -> u64 {
    (touched + MORE_CODE + CODE_SHIFT).next_multiple_of(CODE_STEP) - CODE_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arena_gets_what_the_process_does_not_need() {
        let total = ProcessBytes(100);
        let budget = Budget { total, outside: 30, origin: BudgetOrigin::Stated, ceiling: None };
        assert_eq!(budget.arena(), ArenaBytes(70));
        assert_eq!(Budget { total: ProcessBytes(10), ..budget }.arena(), ArenaBytes(0));
    }

    #[test]
    fn a_plan_of_a_process_that_counted_a_step_less_is_kept_where_its_bytes_are_there() {
        let total = ProcessBytes(100 << 20);
        let budget = Budget { total, outside: 20 << 20, origin: BudgetOrigin::Stated, ceiling: None };
        let arena = |mib: u64| budget.as_planned(ArenaBytes(mib << 20), 3 << 20).arena();
        assert_eq!(arena(90), budget.arena(), "what is not there is not given");
        assert_eq!(arena(83), ArenaBytes(83 << 20));
        assert_eq!(arena(1), budget.arena());
        assert!((JITTER..STEP + JITTER).contains(&Budget::rounding().unwrap()));
    }

    #[test]
    fn a_small_container_keeps_most_of_its_memory_and_a_large_machine_gives_a_margin() {
        for mib in [40, 64, 100, 200, 500, 1024, 4096, 65536] {
            let (resident, free) = (8 << 20, (mib << 20) - (8 << 20));
            let ProcessBytes(budget) = automatic(resident, free);
            assert!(budget >= (mib << 20) / 4 * 3, "{mib} MiB give {budget}");
            let left = (mib << 20) - budget;
            assert_eq!(left, (256 << 20).max(free / 20).min(free / 4), "{mib} MiB");
        }
        assert_eq!(automatic(5, 0), ProcessBytes(5));
    }

    #[test]
    fn the_least_budget_that_is_named_is_accepted_also_where_the_next_process_holds_a_little_more() {
        let mib = 1 << 20;
        let budget = |total, outside| Budget {
            total: ProcessBytes(total),
            outside,
            origin: BudgetOrigin::Stated,
            ceiling: None,
        };
        // Held memory one byte below a step, and half a MiB more the next time, which makes one more step.
        let (arena, held, more) = (ArenaBytes(30 * mib + 17), STEP - 1, STEP - 1 + JITTER);
        let outside = |held: u64| held.next_multiple_of(STEP) + code(9 * mib) + ALLOWANCE;
        for (first, next) in [(held, held), (held, more), (more, held)] {
            for peak in [0, 70 * mib].map(ProcessBytes) {
                let ProcessBytes(least) = budget(mib, outside(first)).least_for(arena, peak);
                let rounding = next.next_multiple_of(STEP) - next + JITTER;
                assert!(least.is_multiple_of(mib));
                assert!(budget(least, outside(next)).holds(arena, peak, rounding), "{first} {next} {peak}");
                assert_eq!(
                    ProcessBytes(least),
                    budget(least, outside(first)).least_for(arena, peak),
                    "the same again"
                );
            }
        }
        assert!(!budget(40 * mib, outside(held)).holds(arena, ProcessBytes(0), 0));
        let crossed = budget(60 * mib, outside(held)).holds(arena, ProcessBytes(70 * mib), 0);
        assert!(!crossed, "reading took more already");
    }

    #[test]
    fn a_budget_that_nobody_stated_says_so() {
        let total = ProcessBytes(2 << 30);
        let budget = Budget { total, outside: 0, origin: BudgetOrigin::Stated, ceiling: None };
        assert_eq!(budget.described(), "2.00 GiB");
        let automatic = Budget { origin: BudgetOrigin::Free, ..budget }.described();
        assert_eq!(automatic, "2.00 GiB (automatic: free memory less a margin)");
    }

    #[test]
    fn without_a_stated_budget_some_memory_is_left_to_others() {
        let budget = Budget::resolve(None).unwrap();
        let free = memory::available().unwrap();
        assert!(budget.total.0 < free + memory::process().unwrap().peak);
        assert!(budget.origin == BudgetOrigin::Free && budget.outside >= ALLOWANCE);
    }
}
