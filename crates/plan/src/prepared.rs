//! A program with the tables that answer for every budget, each made when it is first asked for.
//!
//! One question needs a table once. Many questions about the same model (what would a larger budget bring,
//! the curve of time against budget) need the same tables again, and making them is most of the work.

use std::cell::OnceCell;

use crate::offload::Source;
use crate::plan::Program;
use crate::planner::Planner;
use crate::problem::Scratch;

/// The program of one micro-batch, ready to be planned.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) program: Program,
    /// Transient bytes up to which the tables answer.
    cap: u64,
    best: Tables,
    least: Tables,
}

/// What was made for one amount of scratch.
#[derive(Debug, Default)]
struct Tables {
    planner: OnceCell<Option<Planner>>,
    sources: OnceCell<Vec<Source>>,
}

impl Prepared {
    pub(crate) fn new(program: Program, cap: u64) -> Prepared {
        Prepared { program, cap, best: Tables::default(), least: Tables::default() }
    }

    /// What answers for every budget; none for a graph that is no chain and too large to be planned as a whole.
    pub(crate) fn planner(&self, scratch: Scratch) -> Option<&Planner> {
        let new = || Planner::new(&self.program.train, scratch, self.cap);
        self.tables(scratch).planner.get_or_init(new).as_ref()
    }

    /// Ways of rebuilding from which values may be sent away.
    pub(crate) fn sources(&self, scratch: Scratch) -> &[Source] {
        let new = || Source::all(&self.program.train, scratch, self.planner(scratch));
        self.tables(scratch).sources.get_or_init(new)
    }

    fn tables(&self, scratch: Scratch) -> &Tables {
        match scratch {
            Scratch::Best => &self.best,
            Scratch::Least => &self.least,
        }
    }
}
