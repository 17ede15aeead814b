//! A program with the tables that answer for every budget, each made when it is first asked for.
//!
//! One question needs a table once. Many questions about the same model (what would a larger budget bring,
//! the curve of time against budget) need the same tables again, and making them is most of the work.

use std::cell::OnceCell;

use crate::chain::ChainPlanner;
use crate::plan::Program;
use crate::problem::Scratch;

/// The program of one micro-batch, ready to be planned.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) program: Program,
    best: OnceCell<Option<ChainPlanner>>,
    least: OnceCell<Option<ChainPlanner>>,
}

impl Prepared {
    pub(crate) fn new(program: Program) -> Prepared {
        Prepared { program, best: OnceCell::new(), least: OnceCell::new() }
    }

    /// The planner of the chain, if the program is one.
    pub(crate) fn planner(&self, scratch: Scratch) -> Option<&ChainPlanner> {
        let cell = match scratch {
            Scratch::Best => &self.best,
            Scratch::Least => &self.least,
        };
        let part = &self.program.train;
        cell.get_or_init(|| ChainPlanner::new(&part.graph, &part.facts, scratch)).as_ref()
    }
}
