//! Recognises a chain of equal layers in a graph: the longest run of them.
//!
//! ```text
//! before ──x0──▶ layer 1 ──x1──▶ layer 2 ── … ──xL──▶ after (norm, head: the turn)
//!                   ◀──d0──        ◀──d1──      ◀──dL──
//! ```
//!
//! A chain passes exactly one value forward between neighbours, and everything else a layer reads is its own, state, or
//! an input of the graph. Layers are equal when their nodes, forward and backward, are the same ops on the same shapes
//! wired the same way; then one of them is planned for all. Layers that alternate between two or more kinds (dense and
//! expert ones) are combined into one layer of the chain. Layers before the run (such as the first layers of a model
//! with adapters, which send no gradient back) are combined into the *lead*, which has options of its own. Other
//! layers, such as an embedding before the run or a head after it that is a block of its own, keep what they need.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use plimsoll_graph::{Graph, NodeId, Op, Phase, Type, Value, ValueSource};

use super::readers::Readers;

use crate::recompute::layers;

/// The nodes of one layer.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    /// In execution order, views left out.
    pub(crate) forward: Vec<NodeId>,
    /// In execution order, views left out.
    pub(crate) backward: Vec<NodeId>,
    /// The value that the layer before passes to it.
    pub(crate) input: Value,
    /// The value that the layer passes to the next one.
    pub(crate) output: Value,
}

/// A graph as equal layers with something before and behind them.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    /// Equal layers, in forward order.
    pub(crate) layers: Vec<Layer>,
    /// Index of the first chain layer among all layers of the graph.
    pub(crate) first: usize,
    /// Number of the graph's layers in one layer of the chain.
    pub(crate) period: usize,
    /// Other layers before the chain, combined into one.
    pub(crate) lead: Option<Layer>,
    /// The nodes that make the input of the first layer, or of the lead, and their backward pass.
    pub(crate) before: Layer,
    /// Nodes between the last layer's forward and its backward: the turn.
    pub(crate) turn: Layer,
}

impl Chain {
    /// The chain in `graph`, if there is one.
    pub(crate) fn find(graph: &Graph) -> Option<Chain> {
        let (layer_of, count) = layers(graph);
        if count < 2 {
            return None;
        }
        let order = node_order(graph, &layer_of, count)?;
        let readers = Readers::of(graph);
        let (period, layers, run) = best_run(graph, &readers, &order)?;
        let (input, output) = (layers.first()?.input, layers.last()?.output);
        let join = |parts: &[Vec<NodeId>]| parts.concat();
        let reversed = |parts: &[Vec<NodeId>]| parts.iter().rev().flatten().copied().collect::<Vec<_>>();
        let (ahead, behind) = (join(&order.forward[..run.start]), reversed(&order.backward[..run.start]));
        let lead = chain_layer(graph, &readers, &ahead, &behind).filter(|lead| lead.output == input);
        let (ahead, behind) = if lead.is_some() { Default::default() } else { (ahead, behind) };
        let input = lead.as_ref().map_or(input, |lead| lead.input);
        let before = Layer {
            forward: [order.start, ahead].concat(),
            backward: [behind, order.finish].concat(),
            input,
            output: input,
        };
        let turn = Layer {
            forward: [join(&order.forward[run.end..]), order.after].concat(),
            backward: [order.turn, reversed(&order.backward[run.end..])].concat(),
            input: output,
            output,
        };
        Some(Chain { layers, first: run.start, period, lead, before, turn })
    }
}

/// A layer, if it passes exactly one value on and takes exactly one.
fn chain_layer(graph: &Graph, readers: &Readers, forward: &[NodeId], backward: &[NodeId]) -> Option<Layer> {
    let own = Members::new(forward);
    let input = only(&external_inputs(graph, forward, &own))?;
    let output = only(&outputs_read_elsewhere(graph, readers, forward, &own, &Members::new(backward))?)?;
    Some(Layer { forward: forward.to_vec(), backward: backward.to_vec(), input, output })
}

/// Nodes in a sorted list, which is fast to search: a lead may hold most of the graph.
struct Members(Vec<NodeId>);

impl Members {
    fn new(nodes: &[NodeId]) -> Members {
        let mut sorted = nodes.to_vec();
        sorted.sort_unstable();
        Members(sorted)
    }

    fn contains(&self, node: NodeId) -> bool {
        self.0.binary_search(&node).is_ok()
    }

    /// Whether one of these nodes makes `value`.
    fn make(&self, graph: &Graph, value: Value) -> bool {
        graph.producer(value).is_some_and(|producer| self.contains(producer))
    }
}

/// Kinds of layers that may take turns.
const MOST_KINDS: usize = 4;

/// The run that covers the most layers: how many layers are grouped, the groups, and the range they cover. Among equals
/// the smallest groups win, because smaller layers leave more choice.
fn best_run(graph: &Graph, readers: &Readers, order: &Order) -> Option<(usize, Vec<Layer>, Range<usize>)> {
    let mut best: Option<(usize, Vec<Layer>, Range<usize>)> = None;
    for period in 1..=MOST_KINDS {
        for phase in 0..period {
            let (layers, range) = longest_run(graph, readers, order, period, phase);
            if layers.len() >= 2 && best.as_ref().is_none_or(|(_, _, known)| known.len() < range.len()) {
                best = Some((period, layers, range));
            }
        }
        let all_but_ends = order.forward.len().saturating_sub(2);
        if best.as_ref().is_some_and(|(_, _, range)| range.len() >= all_but_ends) {
            break;
        }
    }
    best
}

/// The longest run of linked equal groups of `period` layers that begin `phase` layers after a multiple of it; the
/// first of several.
fn longest_run(
    graph: &Graph,
    readers: &Readers,
    order: &Order,
    period: usize,
    phase: usize,
) -> (Vec<Layer>, Range<usize>) {
    let mut longest = (Vec::new(), 0..0);
    // The run that the last layer belongs to, and where it ends.
    let (mut run, mut end): (Vec<Layer>, usize) = (Vec::new(), 0);
    let mut kind = Vec::new();
    let mut close = |run: &mut Vec<Layer>, end: usize| {
        if run.len() > longest.0.len() {
            let range = end - run.len() * period..end;
            longest = (std::mem::take(run), range);
        }
        run.clear();
    };
    let starts = (phase..(order.forward.len() + 1).saturating_sub(period)).step_by(period);
    for start in starts {
        let group = start..start + period;
        let forward = order.forward[group.clone()].concat();
        let backward: Vec<NodeId> = order.backward[group].iter().rev().flatten().copied().collect();
        let Some(layer) = chain_layer(graph, readers, &forward, &backward) else {
            close(&mut run, end);
            continue;
        };
        let signature = signature(graph, &layer);
        if run.last().is_some_and(|last| last.output != layer.input || signature != kind) {
            close(&mut run, end);
        }
        kind = signature;
        run.push(layer);
        end = start + period;
    }
    close(&mut run, end);
    longest
}

/// Nodes sorted by where they stand.
struct Order {
    /// Forward nodes before the first layer.
    start: Vec<NodeId>,
    forward: Vec<Vec<NodeId>>,
    /// Forward nodes behind the last layer.
    after: Vec<NodeId>,
    /// Backward nodes before the last layer's.
    turn: Vec<NodeId>,
    backward: Vec<Vec<NodeId>>,
    /// Backward nodes behind the first layer's.
    finish: Vec<NodeId>,
}

/// Sorts nodes, or refuses when layers are not contiguous and in order.
fn node_order(graph: &Graph, layer_of: &[Option<usize>], count: usize) -> Option<Order> {
    let mut order = Order {
        start: Vec::new(),
        forward: vec![Vec::new(); count],
        after: Vec::new(),
        turn: Vec::new(),
        backward: vec![Vec::new(); count],
        finish: Vec::new(),
    };
    // Layers begun so far: forward in rising, backward in falling order.
    let (mut begun, mut left) = (0, count);
    for id in graph.node_ids().filter(|&id| !graph.node(id).op.is_view()) {
        let node = graph.node(id);
        match node.phase {
            Phase::Forward => match layer_of[id.index()] {
                Some(layer) => {
                    if layer + 1 < begun || layer > begun || !order.after.is_empty() {
                        return None;
                    }
                    begun = layer + 1;
                    order.forward[layer].push(id);
                }
                None if begun == count => order.after.push(id),
                None if begun == 0 => order.start.push(id),
                None => return None,
            },
            Phase::Backward => match node.derivative_of.and_then(|forward| layer_of[forward.index()]) {
                Some(layer) => {
                    if layer > left || layer + 1 < left {
                        return None;
                    }
                    left = layer;
                    order.backward[layer].push(id);
                }
                None if left == count => order.turn.push(id),
                None if left == 0 => order.finish.push(id),
                None => return None,
            },
            Phase::Update => {}
        }
    }
    Some(order)
}

/// Values a group of forward nodes reads that are neither its own, nor state, nor graph inputs.
fn external_inputs(graph: &Graph, forward: &[NodeId], own: &Members) -> Vec<Value> {
    let mut found = Vec::new();
    for &id in forward {
        for &input in &graph.node(id).inputs {
            let storage = graph.storage(input);
            let info = graph.value(storage);
            let given = info.state.is_some() || info.source == ValueSource::Input;
            if !given && !own.make(graph, storage) && !found.contains(&storage) {
                found.push(storage);
            }
        }
    }
    found
}

/// Values of a group that forward nodes outside read. None if another value is read outside, by a backward node that is
/// not the next layer's.
fn outputs_read_elsewhere(
    graph: &Graph,
    readers: &Readers,
    forward: &[NodeId],
    own: &Members,
    backward: &Members,
) -> Option<Vec<Value>> {
    // A named scalar, such as a loss that the layer adds, is counted beside all layers and costs next to nothing.
    let lasting = |value: Value| own.make(graph, graph.storage(value)) && !graph.shape(value).is_empty();
    if graph.outputs().iter().any(|&(_, value)| lasting(value)) {
        return None;
    }
    let mut passed = Vec::new();
    for &value in forward.iter().flat_map(|&id| &graph.node(id).outputs) {
        let outside =
            readers.of_value(value).iter().filter(|&&id| !own.contains(id) && !backward.contains(id));
        let (mut by_forward, mut by_others) = (false, false);
        for &id in outside {
            let forward = graph.node(id).phase == Phase::Forward;
            (by_forward, by_others) = (by_forward || forward, by_others || !forward);
        }
        if by_others && !by_forward {
            return None;
        }
        if by_forward {
            passed.push(value);
        }
    }
    Some(passed)
}

fn only(values: &[Value]) -> Option<Value> {
    match *values {
        [one] => Some(one),
        _ => None,
    }
}

/// A node as it is compared: its op, and each operand with its type.
type Kind = (Op, Vec<(Place, Type)>);

/// Where an operand comes from; a value of the layer has the number of its first appearance.
#[derive(Debug, PartialEq)]
enum Place {
    State,
    Input,
    /// A named output of the graph.
    Named(usize),
    Numbered(usize),
}

/// A list that is the same for layers that compute the same thing.
fn signature(graph: &Graph, layer: &Layer) -> Vec<Kind> {
    let named: BTreeSet<Value> = graph.outputs().iter().map(|(_, value)| graph.storage(*value)).collect();
    let mut numbers: BTreeMap<Value, usize> = BTreeMap::new();
    let mut place = |value: Value| {
        let storage = graph.storage(value);
        let info = graph.value(storage);
        if info.state.is_some() {
            return Place::State;
        }
        if info.source == ValueSource::Input {
            return Place::Input;
        }
        let next = numbers.len();
        let number = *numbers.entry(storage).or_insert(next);
        if named.contains(&storage) { Place::Named(number) } else { Place::Numbered(number) }
    };
    let mut kind = |&id: &NodeId| {
        let node = graph.node(id);
        let operands = node.inputs.iter().chain(&node.outputs);
        (node.op.without_stream(), operands.map(|&value| (place(value), graph.ty(value))).collect())
    };
    layer.forward.iter().chain(&layer.backward).map(&mut kind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::{DType, Init, differentiate};

    fn graph(widths: &[usize], skip: bool) -> Graph {
        let mut g = Graph::new();
        let ids = g.input("ids", [4], DType::I32);
        let table = g.param("table", [16, 8], Init::Normal(0.1));
        let mut x = g.embedding(table, ids);
        let first = x;
        for (layer, &width) in widths.iter().enumerate() {
            x = g.block(&format!("layer.{layer}"), |g| {
                let up = g.param("up", [width, 8], Init::Normal(0.1));
                let down = g.param("down", [8, width], Init::Normal(0.1));
                let h = g.linear(x, up, None);
                let h = g.silu(h);
                let h = g.linear(h, down, None);
                let y = g.add(x, h);
                if skip && layer == 2 { g.add(y, first) } else { y }
            });
        }
        let loss = g.sum(x, &[0, 1]);
        g.output("loss", loss);
        differentiate(&g.finish().unwrap(), loss).unwrap()
    }

    #[test]
    fn equal_layers_are_a_chain() {
        let chain = Chain::find(&graph(&[32; 4], false)).unwrap();
        assert_eq!(chain.layers.len(), 4);
        assert!(chain.layers.windows(2).all(|pair| pair[0].output == pair[1].input));
        assert!(!chain.turn.forward.is_empty());
    }

    #[test]
    fn layers_of_another_shape_are_a_lead_or_left_to_what_is_behind() {
        let chain = Chain::find(&graph(&[16, 32, 32, 32, 16], false)).unwrap();
        assert_eq!((chain.first, chain.layers.len()), (1, 3));
        let alone = Chain::find(&graph(&[32; 3], false)).unwrap();
        assert_eq!(chain.before.forward.len(), alone.before.forward.len());
        let lead = chain.lead.unwrap();
        assert_eq!((lead.forward.len(), lead.output), (4, chain.layers[0].input));
        assert!(alone.lead.is_none());
        assert_eq!(chain.turn.backward.len(), alone.turn.backward.len() + chain.layers[0].backward.len());
    }

    #[test]
    fn layers_that_take_turns_are_a_chain_of_pairs() {
        let chain = Chain::find(&graph(&[8, 32, 16, 32, 16, 32, 16, 8], false)).unwrap();
        assert_eq!((chain.first, chain.period, chain.layers.len()), (1, 2, 3));
    }

    #[test]
    fn a_layer_that_reads_two_others_is_no_part_of_a_chain() {
        let skipped = Chain::find(&graph(&[32; 4], true));
        assert!(skipped.is_none_or(|chain| chain.layers.len() < 4), "a layer with two inputs");
    }

    #[test]
    fn graphs_with_fewer_layers_than_kinds_are_looked_at_without_fault() {
        for widths in [&[32, 16][..], &[32, 16, 8], &[32, 16, 8, 4], &[32, 16, 8, 4, 2]] {
            assert!(Chain::find(&graph(widths, false)).is_none(), "{widths:?} has no two layers alike");
        }
    }
}
