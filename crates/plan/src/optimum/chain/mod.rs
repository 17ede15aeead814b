//! The optimal plan of a chain of equal layers, for every budget at once, with a proof of how good it is.
//!
//! In processing order: [`find`] finds the chain, [`options`] lists what one layer may keep with its
//! exact peaks, [`table`] combines layers for all budgets, [`bound`] says how much better any schedule
//! could be. The answer is a tree of regions like any strategy's, so what follows (order, lifetimes, layout,
//! judge) is the same code for all.
//!
//! Absent: graphs that are no chain (see `graph`), recomputing in layers behind the longest
//! run of equal ones, and persistent values across nested segments beyond what rotor's recurrence allows. What
//! waits on another tier is decided after the table, not in it: see `offload`.

mod bound;
mod find;
mod options;
#[cfg(test)]
mod oracle;
mod table;

use std::cell::OnceCell;
use std::collections::BTreeSet;

use plimsoll_graph::{Graph, NodeId, Phase, StateId, StateKind, Value};

use bound::{LowerBound, Passes};
use find::{Chain, Layer};
use options::{LayerOption, Options, all_values, kept_values, made_within, options, peaks};
use table::{Decision, Family, Table, Turn};

use super::ladder::Ladder;
use super::{Optimum, distinct_rungs};
use crate::bytes::TransientBytes;
use crate::device::{Facts, Link, Scratch, aligned};
use crate::recompute::{Item, Order, Regions, Strategy};

/// Budgets that are asked for, and those that are where what does not fit waits on a tier.
pub(super) const LADDER: Ladder = Ladder::new(1.005);
const COARSE_LADDER: Ladder = Ladder::new(1.1);
/// Slots of the table: sizes are exact up to here and rounded up beyond.
const MAX_SLOTS: usize = 40_000;
/// Bytes the table may take while planning.
const MAX_TABLE_BYTES: usize = 64 << 20;

/// A chain with its table filled.
#[derive(Debug)]
pub(crate) struct ChainOptimum {
    chain: Chain,
    options: Options,
    /// Filled when it is first asked: the bound of a micro-batch often settles that it is not.
    table: OnceCell<Table>,
    /// Transient budgets up to which it answers.
    cap: TransientBytes,
    turn: Turn,
    /// Of the moment at which all layers wait, and of those at which all but the last do.
    bounds: [Moment; 2],
    /// The ways of treating the nodes ahead of the layers of the table.
    ways: Vec<Way>,
    /// Time of what lies before the first layer, forward and backward.
    outside_seconds: f64,
    /// Time of everything once.
    once_seconds: f64,
    /// Time of those nodes of a layer on which its output depends.
    passage_seconds: f64,
}

/// `length` layers from `first` on, with so many slots of the table.
struct Segment {
    family: Family,
    first: usize,
    length: usize,
    slot: usize,
}

/// A moment that comes in every schedule, while layers wait for their backward pass.
#[derive(Debug)]
struct Moment {
    /// The bound of those layers for the bytes they have.
    bound: LowerBound,
    /// Bytes that are there beside what those layers hold.
    beside: u64,
}

/// A way of treating what lies ahead of the layers of the table.
#[derive(Debug)]
struct Way {
    /// Values that the lead keeps, if there is one.
    keep: Option<Vec<Value>>,
    /// Bytes that are there while the layers of the table run: graph inputs, named outputs, what is made ahead of
    /// them and read behind, and gradients that several parts contribute to.
    fixed_bytes: u64,
    /// Bytes without which what lies ahead does not run.
    least_bytes: u64,
    /// Time of what the lead recomputes.
    seconds: f64,
}

impl ChainOptimum {
    /// The optimum for transient budgets up to `cap`; none when the graph is no chain of equal layers.
    pub(crate) fn new(
        graph: &Graph,
        facts: &Facts,
        scratch: Scratch,
        cap: TransientBytes,
    ) -> Option<ChainOptimum> {
        let chain = Chain::find(graph)?;
        let layers = chain.layers.len();
        // Layers are equal, but the first reads a boundary made outside; one from the middle speaks for all.
        let options = options(graph, facts, scratch, &chain.layers[layers / 2]);
        let (forward, backward) = peaks(graph, facts, scratch, &chain.turn, &all_values(graph, &chain.turn));
        let turn_peak = forward.max(backward);
        let seconds = |nodes: &[NodeId]| -> f64 {
            nodes.iter().map(|id| facts.nodes[id.index()].seconds_with(scratch)).sum()
        };
        let turn_seconds = seconds(&chain.turn.forward) + seconds(&chain.turn.backward);
        let all: f64 = (graph.node_ids())
            .filter(|&id| graph.node(id).phase != Phase::Update && !graph.node(id).op.is_view())
            .map(|id| facts.nodes[id.index()].seconds_with(scratch))
            .sum();
        let forward_nodes: Vec<NodeId> = (graph.node_ids())
            .filter(|&id| graph.node(id).phase == Phase::Forward && !graph.node(id).op.is_view())
            .collect();
        let one = options.forward_seconds + seconds(&chain.layers[0].backward);
        let outside_seconds = all - turn_seconds - layers as f64 * one;
        let forward =
            Passes { layers: layers as f64 * options.forward_seconds, all: seconds(&forward_nodes) };
        let bounds = [
            Moment {
                bound: LowerBound::new(&options, layers, all, forward),
                beside: turn_operands(graph, facts, &chain),
            },
            Moment {
                bound: LowerBound::new(&options, layers - 1, all, forward),
                beside: last_operands(graph, facts, &chain),
            },
        ];
        let ways = ways(graph, facts, scratch, &chain);
        let passage_seconds = seconds(&passage(graph, &chain.layers[layers / 2]));
        Some(ChainOptimum {
            chain,
            options,
            table: OnceCell::new(),
            cap,
            turn: Turn { peak: turn_peak, seconds: turn_seconds },
            bounds,
            ways,
            outside_seconds,
            once_seconds: all,
            passage_seconds,
        })
    }

    fn table(&self) -> &Table {
        let fill = || {
            let layers = self.chain.layers.len();
            let most = self.keep_all_bytes().0;
            let max_slots = MAX_SLOTS.min(MAX_TABLE_BYTES / (16 * (layers + 1)));
            Table::fill(&self.options, layers, self.turn, most, max_slots, self.cap.0)
        };
        self.table.get_or_init(fill)
    }

    /// The least transient budget at which nothing is recomputed; none when it is larger than the planner's.
    fn most_bytes(&self) -> Option<u64> {
        let fastest = self.outside_seconds + self.table().seconds(u64::MAX);
        let everything_kept = self.ways.iter().filter(|way| way.seconds == 0.0);
        let least = everything_kept.map(|way| way.fixed_bytes + self.table().enough_bytes()).min();
        // Recomputing a single node would be far more than what rounding makes of a sum.
        least.filter(|_| fastest <= self.once_seconds * (1.0 + 1e-9))
    }

    /// The fastest way in `bytes` of transient memory, with its time and that of the layers of the table.
    fn best_way(&self, bytes: u64) -> Option<(&Way, f64)> {
        let fits = self.ways.iter().filter(|way| way.least_bytes.max(way.fixed_bytes) <= bytes);
        let timed = fits.map(|way| (way, way.seconds + self.table().seconds(bytes - way.fixed_bytes)));
        timed.filter(|(_, seconds)| seconds.is_finite()).min_by(|(_, a), (_, b)| a.total_cmp(b))
    }

    /// The regions of the optimal plan in `bytes` of transient memory.
    fn regions(&self, graph: &Graph, bytes: u64) -> Option<Regions> {
        let (way, _) = self.best_way(bytes)?;
        let slot = self.table().slot(bytes - way.fixed_bytes);
        let lead = way.keep.clone().map(|keep| Item::Layer { layers: 0..self.chain.first, keep });
        let segment = Segment { family: Family::Turn, first: 0, length: self.chain.layers.len(), slot };
        let items: Vec<Item> = lead.into_iter().chain(self.items(graph, segment)?).collect();
        Some(Regions::from_items(graph, &items))
    }

    /// Follows the table: the items of a segment.
    fn items(&self, graph: &Graph, mut segment: Segment) -> Option<Vec<Item>> {
        let mut items = Vec::new();
        while segment.length > 0 {
            let Segment { family, first, length, slot } = segment;
            let (decision, slot) = self.table().decision(family, length, slot)?;
            let (item, layers, slot) = match decision {
                Decision::Option(option) => {
                    // Of the last layer inside a segment nothing is kept.
                    let last = family == Family::Inner && length == 1;
                    let left = if last { slot } else { self.table().after_option(slot, option) };
                    (self.layer(graph, first, option), 1, left)
                }
                Decision::Drop(dropped) => {
                    let inside = Segment { family: Family::Inner, first, length: dropped, slot };
                    let item = Item::Segment(self.items(graph, inside)?);
                    (item, dropped, self.table().after_boundary(slot))
                }
            };
            items.push(item);
            segment = Segment { family, first: first + layers, length: length - layers, slot };
        }
        Some(items)
    }

    fn layer(&self, graph: &Graph, layer: usize, option: usize) -> Item {
        let start = self.chain.first + layer * self.chain.period;
        let keep = &self.options.list[option].keep;
        let keep = kept_values(graph, &self.chain.layers[layer], keep);
        Item::Layer { layers: start..start + self.chain.period, keep }
    }
}

impl Optimum for ChainOptimum {
    fn is_table(&self) -> bool {
        true
    }

    fn ladder(&self) -> Ladder {
        LADDER
    }

    fn budgets(&self, room: TransientBytes) -> Box<dyn Iterator<Item = TransientBytes> + '_> {
        let most = self.most_bytes().unwrap_or(u64::MAX);
        Box::new(LADDER.within(room.0, most).map(TransientBytes))
    }

    fn smallest_budgets(&self) -> Vec<TransientBytes> {
        Vec::new()
    }

    fn budgets_with_tier(&self) -> Vec<TransientBytes> {
        distinct_rungs(self, COARSE_LADDER, self.most_bytes().unwrap_or(u64::MAX), 1)
    }

    fn keep_all_bytes(&self) -> TransientBytes {
        TransientBytes(self.options.keep_all_bytes(self.chain.layers.len(), self.turn.peak))
    }

    fn seconds(&self, bytes: TransientBytes) -> f64 {
        self.best_way(bytes.0).map_or(f64::INFINITY, |(_, seconds)| self.outside_seconds + seconds)
    }

    fn floor_seconds(&self, bytes: TransientBytes) -> f64 {
        self.seconds(bytes)
    }

    fn order(&self, graph: &Graph, bytes: TransientBytes) -> Option<Order> {
        self.regions(graph, bytes.0).map(Order::Regions)
    }

    fn lower_bound(&self, bytes: TransientBytes, link: Option<&Link>) -> f64 {
        let [turn, last] = &self.bounds;
        let left = |moment: &Moment| bytes.0.saturating_sub(moment.beside);
        match link {
            Some(link) => turn.bound.seconds_with(left(turn), link),
            None => turn.bound.seconds(left(turn)).max(last.bound.seconds(left(last))),
        }
    }

    /// A micro-batch that keeps nothing begins the backward pass of each layer with the forward passes of all before it,
    /// as far as its input depends on them.
    fn strategy_seconds(&self, strategy: Strategy) -> f64 {
        let layers = self.chain.layers.len();
        let passages = ((layers - 1) * (layers - 2) / 2) as f64;
        if strategy == Strategy::Minimal { self.once_seconds + self.passage_seconds * passages } else { 0.0 }
    }
}

/// Whether a graph is best planned as a chain: equal layers are most of it, and nothing behind them reads what they passed
/// to each other. Any other part of a chain keeps all that it needs.
pub(crate) fn is_chain(graph: &Graph) -> bool {
    Chain::find(graph).is_some_and(|chain| {
        let inside = chain.layers.iter().map(|layer| layer.forward.len()).sum::<usize>();
        let outside = chain.before.forward.len() + chain.turn.forward.len();
        let passed: BTreeSet<Value> = chain.layers.iter().rev().skip(1).map(|layer| layer.output).collect();
        let skips = |id: &NodeId| {
            let mut inputs = graph.node(*id).inputs.iter();
            inputs.any(|&value| passed.contains(&graph.storage(value)))
        };
        inside >= outside && !chain.turn.forward.iter().any(skips)
    })
}

/// The forward nodes of a layer on which its output depends.
fn passage(graph: &Graph, layer: &Layer) -> Vec<NodeId> {
    let mut needed: BTreeSet<NodeId> = graph.producer(layer.output).into_iter().collect();
    let mut passage = Vec::new();
    for &id in layer.forward.iter().rev() {
        if needed.contains(&id) {
            let inputs = graph.node(id).inputs.iter();
            needed.extend(inputs.filter_map(|&value| graph.producer(graph.storage(value))));
            passage.push(id);
        }
    }
    passage
}

/// The ways of treating what lies ahead of the chain: the options of the lead, or to keep everything.
fn ways(graph: &Graph, facts: &Facts, scratch: Scratch, chain: &Chain) -> Vec<Way> {
    let (forward, backward) = peaks(graph, facts, scratch, &chain.before, &all_values(graph, &chain.before));
    let boundary = aligned(graph.ty(chain.before.output).bytes() as u64, facts.alignment);
    let (before, fixed) = (forward.max(backward) + boundary, fixed_bytes(graph, facts, chain));
    let Some(lead) = &chain.lead else {
        return vec![Way { keep: None, fixed_bytes: fixed, least_bytes: before, seconds: 0.0 }];
    };
    let options = options(graph, facts, scratch, lead);
    let fastest = options.list.iter().map(|option| option.backward_seconds).fold(f64::INFINITY, f64::min);
    let way = |option: &LayerOption| Way {
        keep: Some(kept_values(graph, lead, &option.keep)),
        fixed_bytes: fixed + option.kept_bytes,
        least_bytes: before.max(fixed + option.forward_peak.max(option.backward_peak)),
        seconds: option.backward_seconds - fastest,
    };
    options.list.iter().map(way).collect()
}

/// The most bytes that one node of the turn works on and that are neither state nor a layer's. Only nodes
/// that come after the last layer in every order count.
fn turn_operands(graph: &Graph, facts: &Facts, chain: &Chain) -> u64 {
    let mut reached: BTreeSet<Value> = BTreeSet::from([chain.turn.input]);
    let mut most = 0;
    for &id in chain.turn.forward.iter().chain(&chain.turn.backward) {
        let node = graph.node(id);
        if node.inputs.iter().any(|&value| reached.contains(&graph.storage(value))) {
            reached.extend(&node.outputs);
            let operands = operands(graph, id);
            most = most.max(bytes_beside(graph, facts, &chain.layers, id, operands));
        }
    }
    most
}

/// The most bytes that are there, beside what the other layers hold, while one node of the last layer's backward pass
/// runs: what it works on, and gradients that were made for it and are read behind it. All others wait at that time.
fn last_operands(graph: &Graph, facts: &Facts, chain: &Chain) -> u64 {
    let Some((last, others)) = chain.layers.split_last() else { return 0 };
    let backward: Vec<NodeId> = [&chain.turn.backward[..], &last.backward].concat();
    let beside = |&id: &NodeId| {
        let mut values = operands(graph, id);
        values.extend(passing(graph, &backward, id));
        bytes_beside(graph, facts, others, id, values)
    };
    last.backward.iter().map(beside).max().unwrap_or(0)
}

/// Results of `nodes` that `id` depends on, directly or not, and that a node depending on `id` reads.
fn passing(graph: &Graph, nodes: &[NodeId], id: NodeId) -> BTreeSet<Value> {
    let made_by = |value: Value| graph.producer(graph.storage(value));
    let mut before = BTreeSet::from([id]);
    for &node in nodes.iter().rev() {
        if before.contains(&node) {
            before.extend(graph.node(node).inputs.iter().filter_map(|&value| made_by(value)));
        }
    }
    before.remove(&id);
    let mut behind = BTreeSet::from([id]);
    let mut passing = BTreeSet::new();
    for &node in nodes {
        let inputs = &graph.node(node).inputs;
        if inputs.iter().filter_map(|&value| made_by(value)).any(|maker| behind.contains(&maker)) {
            behind.insert(node);
            let from_before = |&value: &Value| {
                made_by(value).is_some_and(|maker| before.contains(&maker) && nodes.contains(&maker))
            };
            passing.extend(inputs.iter().copied().filter(from_before).map(|value| graph.storage(value)));
        }
    }
    passing
}

/// Values that a node reads and writes. An output that may take over an input's bytes is not counted.
fn operands(graph: &Graph, id: NodeId) -> BTreeSet<Value> {
    let node = graph.node(id);
    let outputs = node.outputs.iter().enumerate();
    let passes = |&input: &usize| graph.value(graph.storage(node.inputs[input])).state.is_none();
    let apart = outputs.filter(|(output, _)| !node.op.may_overwrite(*output).iter().any(passes));
    node.inputs.iter().chain(apart.map(|(_, value)| value)).map(|&value| graph.storage(value)).collect()
}

/// Bytes of `values` that are neither state nor made by a forward node of `layers`, and the least scratch of `id`.
fn bytes_beside(graph: &Graph, facts: &Facts, layers: &[Layer], id: NodeId, values: BTreeSet<Value>) -> u64 {
    let of_layer = |value: Value| {
        let producer = graph.producer(value);
        producer.is_some_and(|producer| layers.iter().any(|layer| layer.forward.contains(&producer)))
    };
    let counted = values.into_iter().filter(|&value| graph.value(value).state.is_none() && !of_layer(value));
    let bytes: u64 = counted.map(|value| aligned(graph.ty(value).bytes() as u64, facts.alignment)).sum();
    bytes + aligned(facts.nodes[id.index()].workspace.least, facts.alignment)
}

/// Graph inputs, named outputs, and what is made before the first layer and read behind it.
fn fixed_bytes(graph: &Graph, facts: &Facts, chain: &Chain) -> u64 {
    let bytes = |value: Value| aligned(graph.ty(value).bytes() as u64, facts.alignment);
    let mut fixed: BTreeSet<Value> = graph.inputs().iter().copied().collect();
    fixed.extend(graph.outputs().iter().map(|(_, value)| graph.storage(*value)));
    for id in graph.node_ids().filter(|id| !chain.before.forward.contains(id)) {
        let read = graph.node(id).inputs.iter().map(|&value| graph.storage(value));
        let made_before = |value: &Value| {
            let producer = graph.producer(*value);
            producer.is_some_and(|producer| chain.before.forward.contains(&producer))
        };
        fixed.extend(read.filter(made_before));
    }
    let values: u64 = fixed.into_iter().filter(|&value| graph.value(value).state.is_none()).map(bytes).sum();
    values + shared_gradient_bytes(graph, facts, chain)
}

/// Transient gradients to which several parts of the chain contribute, such as that of a tied embedding: they are
/// there while all layers go backward.
fn shared_gradient_bytes(graph: &Graph, facts: &Facts, chain: &Chain) -> u64 {
    let parts = || [&chain.before, &chain.turn].into_iter().chain(&chain.lead).chain(&chain.layers);
    let ids = (0..graph.states().len() as u32).map(StateId);
    let transient = ids.filter(|&id| graph.state(id).kind == StateKind::Transient);
    let shared = transient.filter(|&id| !parts().any(|part| made_within(graph, id, part)));
    shared.map(|id| aligned(graph.state(id).ty.bytes() as u64, facts.alignment)).sum()
}
