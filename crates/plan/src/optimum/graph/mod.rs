//! Plans for graphs that are no chain of layers: nets in the shape of a U, graphs without blocks, layers that are all
//! different.
//!
//! [`abstraction`] turns the graph into an abstract one and schedules of that into runs; the planner of abstract graphs
//! ([`remat`](crate::remat)) is asked on a fixed ladder of budgets, down to where nothing below can be
//! faster. Every rung is planned by itself, with effort counted in steps, and its plan does not depend on the budget
//! that was stated. So the plans a budget may choose from are among those of every larger budget, and more memory is
//! never slower.
//!
//! The certificate is the bound of the same abstract graph with the least scratch and the least time of each node.
//!
//! Absent: what waits on another tier, which is decided after the order is known, as for chains; and a bound that counts
//! with a tier.

mod abstraction;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeMap;

use abstraction::Model;

use crate::device::{Link, Scratch};
use crate::program::Costed;
use crate::recompute::{Order, Run};
use crate::remat::{Budgeted, Care};

/// Instants of each pass at which the certificate looks.
const CERTIFICATE: usize = 160;

/// A graph that is no chain, with the plans made so far.
#[derive(Debug)]
pub(crate) struct GraphPlanner {
    model: Model,
    within: Budgeted,
    /// The same with the least of everything, for the bound.
    least: Budgeted,
    /// Time of everything once.
    once_seconds: f64,
    surely_beside: u64,
    most_bytes: u64,
    /// Ratio of neighbouring rungs of the ladder.
    rung: f64,
    planned: RefCell<BTreeMap<u64, Option<Planned>>>,
}

/// The plan of one rung.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) seconds: f64,
    /// No plan of this rung or a lower one is faster.
    pub(crate) lower: f64,
    runs: Vec<Run>,
}

impl GraphPlanner {
    /// Rungs below what the smallest kept set takes.
    pub(crate) const BELOW: i32 = 4;

    /// A planner for every transient budget; none when the graph has too many forward nodes.
    pub(crate) fn new(part: &Costed, scratch: Scratch) -> Option<GraphPlanner> {
        let Costed { graph, facts } = part;
        let (dag, model) = Model::new(graph, facts, |node| {
            let workspace = if scratch == Scratch::Best { node.workspace.best } else { node.workspace.least };
            (node.seconds_with(scratch), workspace)
        });
        let (least_dag, least_model) =
            Model::new(graph, facts, |node| (node.seconds.min(node.lean_seconds), node.workspace.least));
        let once_seconds = least_dag.base_cost();
        let (care, rung) = care(dag.forward_nodes());
        // There is one certificate to many rungs.
        let closer = Care { instants: care.instants.max(CERTIFICATE), ..care };
        let (within, least) = (Budgeted::new(dag, care)?, Budgeted::new(least_dag, closer)?);
        Some(GraphPlanner {
            most_bytes: within.most_bytes().saturating_add(model.beside),
            surely_beside: least_model.surely_beside,
            once_seconds,
            rung,
            within,
            least,
            model,
            planned: RefCell::default(),
        })
    }

    /// The least transient budget at which nothing is rebuilt.
    pub(crate) fn most_bytes(&self) -> u64 {
        self.most_bytes
    }

    /// A transient budget for which there surely is a plan.
    pub(crate) fn enough_bytes(&self) -> u64 {
        self.within.enough_bytes().saturating_add(self.model.beside)
    }

    /// Predicted time of a micro-batch in `bytes` of transient memory; infinite when no plan was found.
    pub(crate) fn seconds(&self, bytes: u64) -> f64 {
        self.planned(bytes, |planned| planned.seconds).unwrap_or(f64::INFINITY)
    }

    /// The order of that plan.
    pub(crate) fn order(&self, bytes: u64) -> Option<Order> {
        self.planned(bytes, |planned| Order::Runs(planned.runs.clone()))
    }

    /// No schedule of a micro-batch is faster in `bytes` of transient memory; with a tier to send things to, no more is
    /// known than that everything runs once.
    pub(crate) fn lower_bound(&self, bytes: u64, link: Option<&Link>) -> f64 {
        if link.is_some() {
            return self.once_seconds;
        }
        self.least.lower_bound(bytes.saturating_sub(self.surely_beside))
    }

    /// The highest rung that a budget may use.
    pub(crate) fn highest_rung(&self, budget: u64) -> u64 {
        (budget as f64 * self.rung) as u64
    }

    /// The rungs that a budget may use, rising.
    pub(crate) fn rungs(&self, budget: u64) -> impl DoubleEndedIterator<Item = u64> + use<> {
        let (most, highest, ratio) = (self.most_bytes(), self.highest_rung(budget), self.rung);
        let index = |bytes: u64| (bytes.max(1) as f64).ln() / ratio.ln();
        let bottom = index(self.enough_bytes()).ceil() as i32 - Self::BELOW;
        let top = index(most.min(highest)).floor() as i32 + 1;
        let whole = (highest >= most).then_some(most);
        let rungs = (bottom.max(0)..=top).map(move |index| ratio.powi(index) as u64);
        rungs.filter(move |&bytes| bytes <= highest && bytes < most).chain(whole)
    }

    pub(crate) fn planned<T>(&self, bytes: u64, read: impl FnOnce(&Planned) -> T) -> Option<T> {
        let mut planned = self.planned.borrow_mut();
        planned.entry(bytes).or_insert_with(|| self.plan(bytes)).as_ref().map(read)
    }

    fn plan(&self, bytes: u64) -> Option<Planned> {
        let plan = self.within.plan(bytes.checked_sub(self.model.beside)?)?;
        let (seconds, lower) = (plan.total_cost, plan.lower_bound_cost);
        Some(Planned { seconds, lower, runs: self.model.runs(&plan.schedule) })
    }
}

/// What a rung of a graph of so many forward nodes is worth, and the ratio of neighbouring rungs: less care and fewer
/// rungs for a larger graph, so that all of them take a second or two.
fn care(forward_nodes: usize) -> (Care, f64) {
    match forward_nodes {
        0..=64 => (Care { labels: 600, instants: usize::MAX, sets: 12, work: 1_000_000 }, 1.02),
        65..=160 => (Care { labels: 400, instants: 96, sets: 10, work: 400_000 }, 1.02),
        _ => (Care { labels: 250, instants: 64, sets: 6, work: 200_000 }, 1.03),
    }
}
