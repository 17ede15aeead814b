//! A program with the tables that answer for every budget, each made when it is first asked for.
//!
//! One question needs a table once. Many questions about the same model (what would a larger budget bring,
//! the curve of time against budget) need the same tables again, and making them is most of the work.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use plimsoll_graph::Value;

use crate::device::Scratch;
use crate::offload::{Offers, Source, persistent_bytes};
use crate::optimum::Planner;
use crate::plan::{PlanError, beside_bytes};
use crate::program::{Costed, Program};

/// The program of one micro-batch, ready to be planned.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) program: Program,
    /// Transient bytes up to which the tables answer.
    cap: u64,
    /// Bytes of state, none of it away.
    state_bytes: u64,
    /// Bytes without which no plan fits.
    least_bytes: OnceCell<u64>,
    best: Tables,
    least: Tables,
}

/// What was made for one amount of scratch.
#[derive(Debug, Default)]
struct Tables {
    planner: OnceCell<Option<Planner>>,
    offers: OnceCell<Offers>,
    beside_bytes: OnceCell<u64>,
}

impl Prepared {
    /// Prepares a program; the tables answer for arenas of up to `cap` bytes.
    pub(crate) fn new(program: Program, cap: u64) -> Result<Prepared, PlanError> {
        let state_bytes = persistent_bytes(&program, 0)?;
        let cap = cap.saturating_sub(state_bytes);
        let (best, least) = (Tables::default(), Tables::default());
        Ok(Prepared { program, cap, state_bytes, least_bytes: OnceCell::new(), best, least })
    }

    /// Bytes of state, none of it away.
    pub(crate) fn state_bytes(&self) -> u64 {
        self.state_bytes
    }

    /// Bytes of state that cannot be away and of the largest operands of a node: no plan takes fewer.
    pub(crate) fn least_bytes(&self) -> Result<u64, PlanError> {
        if let Some(&bytes) = self.least_bytes.get() {
            return Ok(bytes);
        }
        let Costed { graph, facts } = &self.program.train;
        let bytes = |values: &[Value]| -> u64 {
            let values: BTreeSet<Value> = values.iter().map(|&value| graph.storage(value)).collect();
            let transient = values.into_iter().filter(|&value| graph.value(value).state.is_none());
            transient.map(|value| graph.ty(value).bytes() as u64).sum()
        };
        let nodes = graph.nodes().iter().zip(&facts.nodes).filter(|(node, _)| !node.op.is_view());
        // Outputs may take over the bytes of inputs, so the two do not add up.
        let needs = nodes.map(|(node, f)| bytes(&node.inputs).max(bytes(&node.outputs)) + f.workspace.least);
        let least = persistent_bytes(&self.program, u64::MAX)? + needs.max().unwrap_or(0);
        Ok(*self.least_bytes.get_or_init(|| least))
    }

    /// Transient bytes that schedules beside those of a micro-batch take, where no state is away.
    pub(crate) fn beside_bytes(&self, scratch: Scratch) -> u64 {
        *self.tables(scratch).beside_bytes.get_or_init(|| beside_bytes(&self.program, scratch))
    }

    /// The planner of the chain or the graph that the program is; none when it is too large to be either.
    pub(crate) fn planner(&self, scratch: Scratch) -> Option<&Planner> {
        let new = || Planner::new(&self.program.train, scratch, self.cap);
        self.tables(scratch).planner.get_or_init(new).as_ref()
    }

    /// What may wait on another tier.
    pub(crate) fn offers(&self, scratch: Scratch) -> Result<&Offers, PlanError> {
        let offers = &self.tables(scratch).offers;
        if let Some(offers) = offers.get() {
            return Ok(offers);
        }
        let sources = Source::all(&self.program, scratch, self.planner(scratch));
        let new = Offers::new(&self.program, scratch, sources)?;
        Ok(offers.get_or_init(|| new))
    }

    fn tables(&self, scratch: Scratch) -> &Tables {
        match scratch {
            Scratch::Best => &self.best,
            Scratch::Least => &self.least,
        }
    }
}
