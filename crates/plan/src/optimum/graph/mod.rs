//! Plans for graphs that are no chain of layers: U-nets, graphs without blocks, layers that are all different.
//!
//! [`abstraction`] turns the graph into an abstract one, and schedules of the abstract graph into runs. The planner of
//! abstract graphs ([`remat`](crate::remat)) is called on a fixed ladder of budgets, down to the rung below which
//! nothing can be faster. Every rung is planned by itself, with effort counted in steps, and its plan does not depend
//! on the stated budget. So the plans that a budget may choose from are among those of every larger budget, and more
//! memory is never slower.
//!
//! The certificate is the bound of the same abstract graph with the least scratch and the least time of each node.
//!
//! Absent: offload, which is decided after the order is known, as for chains; and a bound that takes a tier into
//! account.

mod abstraction;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeMap;

use plimsoll_graph::Graph;

use abstraction::Model;

use super::ladder::Ladder;
use super::{Optimum, distinct_rungs};
use crate::bytes::TransientBytes;
use crate::device::{Link, Scratch};
use crate::program::Costed;
use crate::recompute::{Order, Run};
use crate::remat::{Budgeted, Care};

/// Number of budgets that are tried where values that do not fit wait on a tier.
const COARSE_LADDER: Ladder = Ladder::new(1.25);
/// Rungs below the bytes of the smallest kept set.
const BELOW: i32 = 4;
/// Instants of each pass at which the certificate looks.
const CERTIFICATE: usize = 160;

/// A graph that is no chain, with the plans made so far.
#[derive(Debug)]
pub(crate) struct GraphOptimum {
    model: Model,
    within: Budgeted,
    /// The same graph with the least scratch and time of each node, for the bound.
    least: Budgeted,
    /// Time of everything once.
    once_seconds: f64,
    surely_beside: u64,
    most_bytes: u64,
    /// The budgets to try.
    ladder: Ladder,
    planned: RefCell<BTreeMap<TransientBytes, Option<Planned>>>,
}

/// The plan of one rung.
#[derive(Clone, Debug)]
struct Planned {
    seconds: f64,
    /// A lower bound on the time of any plan of this rung or a lower one.
    lower: f64,
    runs: Vec<Run>,
}

impl GraphOptimum {
    /// The optimum for every transient budget; none when the graph has too many forward nodes.
    pub(crate) fn new(part: &Costed, scratch: Scratch) -> Option<GraphOptimum> {
        let Costed { graph, facts } = part;
        let (dag, model) = Model::new(graph, facts, |node| {
            let workspace = if scratch == Scratch::Best { node.workspace.best } else { node.workspace.least };
            (node.seconds_with(scratch), workspace)
        });
        let (least_dag, least_model) =
            Model::new(graph, facts, |node| (node.seconds.min(node.lean_seconds), node.workspace.least));
        let once_seconds = least_dag.base_cost();
        let (care, ladder) = care(dag.forward_nodes());
        // One certificate serves many rungs.
        let closer = Care { instants: care.instants.max(CERTIFICATE), ..care };
        let (within, least) = (Budgeted::new(dag, care)?, Budgeted::new(least_dag, closer)?);
        Some(GraphOptimum {
            most_bytes: within.most_bytes().saturating_add(model.beside),
            surely_beside: least_model.surely_beside,
            once_seconds,
            ladder,
            within,
            least,
            model,
            planned: RefCell::default(),
        })
    }

    /// A transient budget in which a plan certainly exists.
    fn enough_bytes(&self) -> u64 {
        self.within.enough_bytes().saturating_add(self.model.beside)
    }

    /// The lowest budget that is tried: a little below the bytes of the smallest kept set, because a search can do with
    /// less.
    fn lowest_budget(&self) -> u64 {
        self.ladder.below(self.enough_bytes(), BELOW)
    }

    fn planned<T>(&self, bytes: TransientBytes, read: impl FnOnce(&Planned) -> T) -> Option<T> {
        let mut planned = self.planned.borrow_mut();
        planned.entry(bytes).or_insert_with(|| self.plan(bytes.0)).as_ref().map(read)
    }

    fn plan(&self, bytes: u64) -> Option<Planned> {
        let plan = self.within.plan(bytes.checked_sub(self.model.beside)?)?;
        let (seconds, lower) = (plan.total_cost, plan.lower_bound_cost);
        Some(Planned { seconds, lower, runs: self.model.runs(&plan.schedule) })
    }
}

impl Optimum for GraphOptimum {
    fn is_table(&self) -> bool {
        false
    }

    fn ladder(&self) -> Ladder {
        self.ladder
    }

    fn budgets(&self, room: TransientBytes) -> Box<dyn Iterator<Item = TransientBytes> + '_> {
        let lowest = self.lowest_budget();
        let rungs = self.ladder.within(room.0, self.most_bytes).take_while(move |&rung| rung >= lowest);
        Box::new(rungs.map(TransientBytes))
    }

    fn smallest_budgets(&self) -> Vec<TransientBytes> {
        let mut budgets: Vec<TransientBytes> = self.budgets(TransientBytes(self.most_bytes)).collect();
        budgets.reverse();
        budgets
    }

    fn budgets_with_tier(&self) -> Vec<TransientBytes> {
        distinct_rungs(self, COARSE_LADDER, self.most_bytes, self.enough_bytes())
    }

    fn keep_all_bytes(&self) -> TransientBytes {
        TransientBytes(self.most_bytes)
    }

    fn seconds(&self, bytes: TransientBytes) -> f64 {
        self.planned(bytes, |planned| planned.seconds).unwrap_or(f64::INFINITY)
    }

    /// A rung without a plan proves nothing about the rungs below it.
    fn floor_seconds(&self, bytes: TransientBytes) -> f64 {
        self.planned(bytes, |planned| planned.lower).unwrap_or(0.0)
    }

    fn order(&self, _graph: &Graph, bytes: TransientBytes) -> Option<Order> {
        self.planned(bytes, |planned| Order::Runs(planned.runs.clone()))
    }

    /// With a tier to offload to, the only known bound is the time of running every node once.
    fn lower_bound(&self, bytes: TransientBytes, link: Option<&Link>) -> f64 {
        if link.is_some() {
            return self.once_seconds;
        }
        self.least.lower_bound(bytes.0.saturating_sub(self.surely_beside))
    }
}

/// The search effort for each rung, and the ladder of rungs, for a graph with this many forward nodes. Larger graphs
/// get less effort and fewer rungs, so that all rungs together take a second or two.
fn care(forward_nodes: usize) -> (Care, Ladder) {
    match forward_nodes {
        0..=64 => (Care { labels: 600, instants: usize::MAX, sets: 12, work: 1_000_000 }, Ladder::new(1.02)),
        65..=160 => (Care { labels: 400, instants: 96, sets: 10, work: 400_000 }, Ladder::new(1.02)),
        _ => (Care { labels: 250, instants: 64, sets: 6, work: 200_000 }, Ladder::new(1.03)),
    }
}
