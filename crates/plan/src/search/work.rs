//! Counts the work of a search. The time by a clock also depends on the load of the machine; these figures are the same
//! everywhere, so tests can compare them with the length of a chain.

use std::cell::Cell;
use std::rc::Rc;

/// The work of a searcher since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SearchWork {
    /// Programs that were built.
    pub programs: u64,
    /// Runs of nodes that were looked at, once for each look: where an order is written, timed with transfers, or laid out.
    pub runs: u64,
    /// Optima that were made: lists of the sets of values that a layer may keep, with the peaks of each.
    pub optima: u64,
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

    /// Counts the building of a program of this many nodes.
    pub(super) fn program(&self, nodes: usize) {
        self.add(SearchWork { programs: 1, largest: nodes as u64, ..SearchWork::default() });
    }

    /// Counts a look at this many runs.
    pub(super) fn look(&self, looked: usize) {
        self.add(SearchWork { runs: looked as u64, ..SearchWork::default() });
    }

    /// Counts an optimum.
    pub(super) fn optimum(&self) {
        self.add(SearchWork { optima: 1, ..SearchWork::default() });
    }

    fn add(&self, more: SearchWork) {
        let SearchWork { programs, runs, optima, largest } = self.0.get();
        self.0.set(SearchWork {
            programs: programs + more.programs,
            runs: runs + more.runs,
            optima: optima + more.optima,
            largest: largest.max(more.largest),
        });
    }
}
