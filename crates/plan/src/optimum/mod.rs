//! Plans one program for any transient budget: by table for chains, by graph search otherwise.
//!
//! The search over micro-batches calls [`Optimum`]. [`chain`] implements it with one table for all budgets, [`graph`]
//! with a search at each budget; both are asked on the rungs of a [`Ladder`].
//!
//! Absent: budgets of whole arenas, offsets and tiers. Later folders handle these and call this one.

mod chain;
mod graph;
mod ladder;

use std::borrow::Cow;
use std::fmt;

use plimsoll_graph::{Graph, NodeId, Phase};

use crate::bytes::{ArenaBytes, TransientBytes};
use crate::device::{Link, Scratch};
use crate::program::Costed;
use crate::recompute::{Order, Strategy};

pub(crate) use chain::Outline;
use chain::{Chain, ChainOptimum, is_chain};
use graph::GraphOptimum;
pub(crate) use ladder::Ladder;

/// Plans one program for any transient budget.
pub(crate) trait Optimum: fmt::Debug {
    /// Whether every budget is a look-up and more bytes are never slower, so that the first budget that fits is the
    /// fastest. Otherwise each budget takes a search, and known plans are used to rule budgets out first.
    fn is_table(&self) -> bool;

    /// The ladder of the budgets that are worth asking for.
    fn ladder(&self) -> Ladder;

    /// The budgets to try, falling, where `room` is available. The room decides only the first of them.
    fn budgets(&self, room: TransientBytes) -> Box<dyn Iterator<Item = TransientBytes> + '_>;

    /// The smallest budgets that may have a plan, from the smallest upwards. Empty where no plan is smaller than
    /// those of the named strategies that are offered.
    fn smallest_budgets(&self) -> Vec<TransientBytes>;

    /// The budgets to try where values that do not fit wait on a tier, from the largest downwards. Each has a slower
    /// plan than the one before.
    fn budgets_with_tier(&self) -> Vec<TransientBytes>;

    /// The budgets from `bytes` downwards, itself first.
    fn budgets_below(&self, bytes: TransientBytes) -> Box<dyn Iterator<Item = TransientBytes>> {
        Box::new(self.ladder().within(bytes.0, bytes.0).map(TransientBytes))
    }

    /// The highest budget to try in a room of `room` bytes.
    fn highest_budget(&self, room: TransientBytes) -> TransientBytes {
        TransientBytes(self.ladder().above(room.0))
    }

    /// Bytes in which nothing is recomputed.
    fn keep_all_bytes(&self) -> TransientBytes;

    /// Predicted time of a micro-batch; infinite where no order was found.
    fn seconds(&self, bytes: TransientBytes) -> f64;

    /// A lower bound on the time of every order that is offered at this budget or a smaller one.
    fn floor_seconds(&self, bytes: TransientBytes) -> f64;

    /// The order of runs.
    fn order(&self, graph: &Graph, bytes: TransientBytes) -> Option<Order>;

    /// A lower bound on the time of any schedule of a micro-batch in these bytes, with transfers over `link`.
    fn lower_bound(&self, bytes: TransientBytes, link: Option<&Link>) -> f64;

    /// Whether the program is so large that the search tries fewer combinations, and none that multiplies the number of
    /// runs.
    fn is_long(&self) -> bool {
        false
    }

    /// A lower bound on the time of a micro-batch under a strategy with a fixed rule; infinite where the strategy is not
    /// offered.
    fn strategy_seconds(&self, _strategy: Strategy) -> f64 {
        0.0
    }

    /// A lower bound on the transient bytes of a micro-batch under a strategy with a fixed rule.
    fn strategy_bytes(&self, _strategy: Strategy) -> u64 {
        0
    }
}

/// The optimum of a program for budgets up to `cap`; none when it is no chain and too large for a search.
pub(crate) fn optimum(part: &Costed, scratch: Scratch, cap: TransientBytes) -> Option<Box<dyn Optimum>> {
    let part = &*without_exchanges(part);
    let chain = |found: Option<Chain>| {
        let chain = ChainOptimum::of_chain(&part.graph, &part.facts, scratch, (found?, cap));
        Some(Box::new(chain) as Box<dyn Optimum>)
    };
    let graph = || {
        let graph = GraphOptimum::new(part, scratch)?;
        Some(Box::new(graph) as Box<dyn Optimum>)
    };
    let found = Chain::find(&part.graph);
    // If the graph is too large, it is planned as a chain: equal layers are at least a part of it.
    if found.as_ref().is_some_and(|found| is_chain(&part.graph, found)) {
        chain(found)
    } else {
        graph().or_else(|| chain(found))
    }
}

/// The outline of a program that is planned as a chain; none of other programs, whose optimum has to be made to bound them.
pub(crate) fn outline(part: &Costed, scratch: Scratch) -> Option<Outline> {
    let part = &*without_exchanges(part);
    let chain = Chain::find(&part.graph).filter(|found| is_chain(&part.graph, found))?;
    Some(Outline::new(&part.graph, &part.facts, scratch, &chain))
}

/// The program without the time of exchanges between ranks inside a micro-batch, which run beside compute. No choice of what
/// is recomputed changes how many sums there are; weights are gathered again where whole layers are recomputed twice.
fn without_exchanges(part: &Costed) -> Cow<'_, Costed> {
    let in_a_pass = |id: &NodeId| {
        let node = part.graph.node(*id);
        node.phase != Phase::Update && node.op.collective().is_some()
    };
    let exchanges: Vec<NodeId> = part.graph.node_ids().filter(in_a_pass).collect();
    if exchanges.is_empty() {
        return Cow::Borrowed(part);
    }
    let mut part = part.clone();
    for id in exchanges {
        let facts = &mut part.facts.nodes[id.index()];
        (facts.seconds, facts.lean_seconds) = (0.0, 0.0);
    }
    Cow::Owned(part)
}

/// The largest arena of any budget that a request with this budget tries; tables of this size answer the request.
pub(crate) fn highest_budget(budget: ArenaBytes) -> ArenaBytes {
    ArenaBytes(chain::LADDER.above(budget.0))
}

/// The rungs from `most` down to `least` that have an order, falling; among equally fast ones the highest.
fn distinct_rungs(optimum: &dyn Optimum, ladder: Ladder, most: u64, least: u64) -> Vec<TransientBytes> {
    let rungs = ladder.falling(most).take_while(|&rung| rung >= least).map(TransientBytes);
    let mut rungs: Vec<TransientBytes> = rungs.filter(|&rung| optimum.seconds(rung).is_finite()).collect();
    rungs.dedup_by_key(|&mut rung| optimum.seconds(rung).to_bits());
    rungs
}
