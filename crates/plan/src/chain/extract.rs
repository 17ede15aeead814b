//! Recognising a chain of equal layers in a graph.
//!
//! ```text
//! before ──x0──▶ layer 1 ──x1──▶ layer 2 ── … ──xL──▶ after (norm, head: the turn)
//!                   ◀──d0──        ◀──d1──      ◀──dL──
//! ```
//!
//! A chain passes exactly one value forward between neighbours, and everything else a layer reads is its
//! own, state, or an input of the graph. Layers are equal when their nodes, forward and backward, are the
//! same ops on the same shapes wired the same way; then one of them is planned for all.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use plimsoll_graph::{Graph, NodeId, Op, Phase, Source, Value};

use crate::regions::layers;

/// The nodes of one layer.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    /// In execution order, views left out.
    pub(crate) forward: Vec<NodeId>,
    /// In execution order, views left out.
    pub(crate) backward: Vec<NodeId>,
    /// What the layer before passes to it.
    pub(crate) input: Value,
    /// What it passes to the layer behind.
    pub(crate) output: Value,
}

/// A graph as equal layers with something before and behind them.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    /// Equal layers, in forward order.
    pub(crate) layers: Vec<Layer>,
    /// Nodes between the last layer's forward and its backward: the turn.
    pub(crate) turn: Layer,
}

impl Chain {
    /// The chain in `graph`, if it is one.
    pub(crate) fn find(graph: &Graph) -> Option<Chain> {
        let (layer_of, count) = layers(graph);
        if count < 2 {
            return None;
        }
        let order = node_order(graph, &layer_of, count)?;
        let mut found: Vec<Layer> = Vec::with_capacity(count);
        for layer in 0..count {
            let (forward, backward) = (order.forward[layer].clone(), order.backward[layer].clone());
            let input = only(&external_inputs(graph, &forward))?;
            let output = only(&outputs_read_elsewhere(graph, &forward, &backward)?)?;
            if found.last().is_some_and(|before| before.output != input) {
                return None;
            }
            found.push(Layer { forward, backward, input, output });
        }
        let first = signature(graph, &found[0]);
        if found[1..].iter().any(|layer| signature(graph, layer) != first) {
            return None;
        }
        let last = found.last()?.output;
        let turn = Layer { forward: order.after, backward: order.turn, input: last, output: last };
        Some(Chain { layers: found, turn })
    }
}

/// Nodes sorted by where they stand.
struct Order {
    forward: Vec<Vec<NodeId>>,
    backward: Vec<Vec<NodeId>>,
    /// Forward nodes behind the last layer.
    after: Vec<NodeId>,
    /// Backward nodes before the last layer's.
    turn: Vec<NodeId>,
}

/// Sorts nodes, or refuses when layers are not contiguous and in order.
fn node_order(graph: &Graph, layer_of: &[Option<usize>], count: usize) -> Option<Order> {
    let mut order = Order {
        forward: vec![Vec::new(); count],
        backward: vec![Vec::new(); count],
        after: vec![],
        turn: vec![],
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
                None if begun == 0 => {}
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
                None if left == 0 => {}
                None => return None,
            },
            Phase::Update => {}
        }
    }
    Some(order)
}

/// Values a group of forward nodes reads that are neither its own, nor state, nor graph inputs.
fn external_inputs(graph: &Graph, forward: &[NodeId]) -> Vec<Value> {
    let mut found = Vec::new();
    for &id in forward {
        for &input in &graph.node(id).inputs {
            let storage = graph.storage(input);
            let info = graph.value(storage);
            let own = graph.producer(storage).is_some_and(|producer| forward.contains(&producer));
            if !own && info.state.is_none() && info.source != Source::Input && !found.contains(&storage) {
                found.push(storage);
            }
        }
    }
    found
}

/// Values of a group that forward nodes outside read. Refuses when a value is read outside by a backward
/// node that is not the next layer's, unless it is such an output.
fn outputs_read_elsewhere(graph: &Graph, forward: &[NodeId], backward: &[NodeId]) -> Option<Vec<Value>> {
    let mut forward_readers: Vec<Value> = Vec::new();
    let mut backward_readers: Vec<Value> = Vec::new();
    for id in graph.node_ids().filter(|id| !forward.contains(id) && !backward.contains(id)) {
        let node = graph.node(id);
        if node.op.is_view() {
            continue;
        }
        for &input in &node.inputs {
            let storage = graph.storage(input);
            if graph.producer(storage).is_some_and(|producer| forward.contains(&producer)) {
                let readers =
                    if node.phase == Phase::Forward { &mut forward_readers } else { &mut backward_readers };
                if !readers.contains(&storage) {
                    readers.push(storage);
                }
            }
        }
    }
    for (_, value) in graph.outputs() {
        let storage = graph.storage(*value);
        if graph.producer(storage).is_some_and(|producer| forward.contains(&producer)) {
            return None;
        }
    }
    backward_readers.iter().all(|value| forward_readers.contains(value)).then_some(forward_readers)
}

fn only(values: &[Value]) -> Option<Value> {
    match *values {
        [one] => Some(one),
        _ => None,
    }
}

/// A text that is the same for layers that compute the same thing.
fn signature(graph: &Graph, layer: &Layer) -> String {
    let mut text = String::new();
    let mut numbers: BTreeMap<Value, usize> = BTreeMap::new();
    for &id in layer.forward.iter().chain(&layer.backward) {
        let node = graph.node(id);
        // Which mask a dropout draws does not matter to a plan.
        let op = match &node.op {
            Op::Dropout { p, .. } => Op::Dropout { p: *p, stream: 0 },
            op => op.clone(),
        };
        let _ = write!(text, "{op:?}(");
        for &value in node.inputs.iter().chain(&node.outputs) {
            let storage = graph.storage(value);
            let ty = graph.ty(value);
            let info = graph.value(storage);
            if info.state.is_some() {
                let _ = write!(text, "state {ty} ");
            } else if info.source == Source::Input {
                let _ = write!(text, "input {ty} ");
            } else {
                let next = numbers.len();
                let number = *numbers.entry(storage).or_insert(next);
                let _ = write!(text, "{number} {ty} ");
            }
        }
        text.push_str(")\n");
    }
    text
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
    fn a_layer_of_another_shape_or_a_skip_over_layers_is_not() {
        assert!(Chain::find(&graph(&[32, 32, 16, 32], false)).is_none());
        assert!(Chain::find(&graph(&[32; 4], true)).is_none());
    }
}
