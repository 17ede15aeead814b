//! How much of the stated memory is left for the arena.
//!
//! On the CPU a budget is the whole process as the kernel counts it (`VmHWM`). What the process holds
//! when it is ready to plan, plus an allowance for what it will still take outside the arena, is a
//! reserve fixed before planning; the rest is the arena's. The run checks at the end that it held.

use crate::error::TrainError;
use crate::memory;

/// Bytes allowed for what the process still takes outside the arena: stacks of threads, the plan itself,
/// buffers for data and files, and code pages that are touched for the first time.
pub const ALLOWANCE: u64 = 8 << 20;

/// With no budget stated, this much of the free memory is left to others, or 5 % where that is more.
pub const MARGIN: u64 = 256 << 20;

/// A budget and how it divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes of the whole process.
    pub total: u64,
    /// Bytes reserved for everything outside the arena.
    pub outside: u64,
    /// Whether the user stated it.
    pub stated: bool,
}

impl Budget {
    /// Divides the stated budget, or the free memory less a margin when none is stated.
    ///
    /// # Errors
    ///
    /// When the memory of the machine cannot be read.
    pub fn resolve(stated: Option<u64>) -> Result<Budget, TrainError> {
        let resident = memory::process()?.resident;
        let outside = resident + ALLOWANCE;
        let total = if let Some(total) = stated {
            total
        } else {
            let free = memory::available()?;
            (resident + free).saturating_sub(MARGIN.max(free / 20))
        };
        Ok(Budget { total, outside, stated: stated.is_some() })
    }

    /// Bytes left for the arena.
    pub fn arena(&self) -> u64 {
        self.total.saturating_sub(self.outside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arena_gets_what_the_process_does_not_need() {
        let budget = Budget { total: 100, outside: 30, stated: true };
        assert_eq!(budget.arena(), 70);
        assert_eq!(Budget { total: 10, ..budget }.arena(), 0);
    }

    #[test]
    fn without_a_stated_budget_some_memory_is_left_to_others() {
        let budget = Budget::resolve(None).unwrap();
        let free = memory::available().unwrap();
        assert!(budget.total < free + memory::process().unwrap().peak);
        assert!(!budget.stated && budget.outside >= ALLOWANCE);
    }
}
