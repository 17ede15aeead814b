//! The work of a whole plan, counted: stages that have no end of their own stop when it is used up.
//!
//! Each stage has limits on what it looks at, and there are as many stages as a graph has nodes, and budgets that are tried.
//! A graph of 600 nodes with 8,000 links could so take minutes. When the work is used up, a frontier is given up, a bound
//! grows no more, and no further kept set or budget is tried: what was found until then is the answer. Steps are counted and
//! not seconds, so that the same graph and budget always give the same plan.

use std::cell::Cell;

/// Work that is left, in operations on sets or labels.
#[derive(Debug)]
pub(crate) struct Work(Cell<u64>);

impl Work {
    /// Work of so many operations.
    pub(crate) fn of(operations: u64) -> Work {
        Work(Cell::new(operations))
    }

    /// Unlimited work.
    pub(crate) fn endless() -> Work {
        Work::of(u64::MAX)
    }

    /// Takes operations away.
    pub(crate) fn spend(&self, operations: u64) {
        self.0.set(self.0.get().saturating_sub(operations));
    }

    /// Runs a task that may use one part in `parts` of the remaining work.
    pub(crate) fn share<T>(&self, parts: u64, task: impl FnOnce() -> T) -> T {
        let left = self.left();
        let lent = left / parts;
        self.0.set(lent);
        let done = task();
        self.0.set(left - lent + self.left());
        done
    }

    /// The operations that are left.
    pub(crate) fn left(&self) -> u64 {
        self.0.get()
    }

    /// Whether nothing is left.
    pub(crate) fn is_done(&self) -> bool {
        self.left() == 0
    }
}
