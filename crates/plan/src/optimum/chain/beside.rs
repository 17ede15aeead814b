//! Bytes that are alive in addition to what the layers of a chain hold: operands at the turn, operands of the last
//! layer's backward pass, and values that last while all layers run.

use std::collections::BTreeSet;

use plimsoll_graph::{Graph, NodeId, StateId, StateKind, Value};

use super::find::{Chain, Layer};
use crate::device::{Facts, aligned};

/// The most bytes that one node of the turn works on, not counting state and values of layers. Only nodes that come
/// after the last layer in every order count.
pub(super) fn turn_operands(graph: &Graph, facts: &Facts, chain: &Chain) -> u64 {
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

/// The most bytes that are alive, beside the values of the waiting layers, while one node of the last layer's backward pass
/// runs: the operands of the node, and gradients made before it and read after it.
pub(super) fn last_operands(graph: &Graph, facts: &Facts, chain: &Chain) -> u64 {
    let Some((last, others)) = chain.layers.split_last() else { return 0 };
    let backward: Vec<NodeId> = [&chain.turn.backward[..], &last.backward].concat();
    let beside = |&id: &NodeId| {
        let mut values = operands(graph, id);
        values.extend(passing(graph, &backward, id));
        bytes_beside(graph, facts, others, id, values)
    };
    last.backward.iter().map(beside).max().unwrap_or(0)
}

/// Results of `nodes` that pass by `id`: `id` depends on them, directly or not, and a node that depends on `id` reads
/// them too.
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

/// Graph inputs, named outputs, and values made before the first layer and read after it.
pub(super) fn fixed_bytes(graph: &Graph, facts: &Facts, chain: &Chain) -> u64 {
    let bytes = |value: Value| aligned(graph.ty(value).bytes() as u64, facts.alignment);
    let mut fixed: BTreeSet<Value> = graph.inputs().iter().copied().collect();
    fixed.extend(graph.outputs().iter().map(|(_, value)| graph.storage(*value)));
    for id in graph.node_ids().filter(|id| !chain.before.forward.contains(id)) {
        let read = graph.node(id).inputs.iter().map(|&value| graph.storage(value));
        // A weight that is read again is gathered again.
        let made_before = |value: &Value| {
            let producer = graph.producer(*value);
            let made_there = |node: NodeId| !graph.gathers(node) && chain.before.forward.contains(&node);
            producer.is_some_and(made_there)
        };
        fixed.extend(read.filter(made_before));
    }
    let values: u64 = fixed.into_iter().filter(|&value| graph.value(value).state.is_none()).map(bytes).sum();
    values + shared_gradient_bytes(graph, facts, chain)
}

/// Transient gradients to which several parts of the chain contribute, such as that of a tied embedding. They are alive
/// throughout the backward pass of the layers.
fn shared_gradient_bytes(graph: &Graph, facts: &Facts, chain: &Chain) -> u64 {
    let parts = [&chain.before, &chain.turn].into_iter().chain(&chain.lead).chain(&chain.layers);
    let mut part_of = vec![None; graph.nodes().len()];
    for (index, part) in parts.enumerate() {
        part.backward.iter().for_each(|id| part_of[id.index()] = Some(index));
    }
    // A gradient that one part makes and uses up is counted there.
    let shared = |id: &StateId| {
        let versions = &graph.state(*id).versions;
        let mut writers = versions
            .iter()
            .filter_map(|&version| graph.producer(version))
            .map(|writer| part_of[writer.index()]);
        let first = writers.next();
        first.is_some_and(|first| first.is_none() || writers.any(|other| other != first))
    };
    let ids = (0..graph.states().len() as u32).map(StateId);
    let transient = ids.filter(|&id| graph.state(id).kind == StateKind::Transient);
    transient.filter(shared).map(|id| aligned(graph.state(id).ty.bytes() as u64, facts.alignment)).sum()
}
