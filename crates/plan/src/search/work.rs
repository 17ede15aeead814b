//! Counts the work of a search. A clock tells the load of a machine as well; these figures are the same everywhere, so tests
//! can hold them against the length of a chain.

use std::cell::Cell;
use std::rc::Rc;

/// The work of a searcher since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SearchWork {
    /// Programs that were built.
    pub programs: u64,
    /// Runs of nodes that were looked at, once for each look: where an order is written, timed with transfers, or laid out.
    pub runs: u64,
    /// Nodes of the largest program.
    pub largest: u64,
}

/// A count that a searcher shares with the tables of its programs.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkCount(Rc<Cell<SearchWork>>);

impl WorkCount {
    /// The work so far.
    pub(super) fn so_far(&self) -> SearchWork {
        self.0.get()
    }

    /// Counts a program of this many nodes.
    pub(super) fn program(&self, nodes: usize) {
        let SearchWork { programs, runs, largest } = self.0.get();
        self.0.set(SearchWork { programs: programs + 1, runs, largest: largest.max(nodes as u64) });
    }

    /// Counts a look at this many runs.
    pub(super) fn look(&self, looked: usize) {
        let work = self.0.get();
        self.0.set(SearchWork { runs: work.runs + looked as u64, ..work });
    }
}
