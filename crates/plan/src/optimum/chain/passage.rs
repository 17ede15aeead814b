//! Nodes of a layer that run again to recompute its output for the next layer, and values that are never dropped.
//!
//! ```text
//! x ─▶ logits ─▶ probabilities ─▶ top-k ═▶ weights ─▶ mixture ─▶ y         ═▶ pinned: top-k runs once
//!                      └─▶ balance ─▶ (named output)                       passage: mixture alone
//! ```

use std::collections::BTreeSet;

use plimsoll_graph::{Graph, NodeId, Value};

use super::find::Layer;
use crate::device::{Facts, aligned};

/// Values of a layer that every schedule holds from the forward pass to their last reader.
pub(super) struct Pinned {
    /// Results of nodes that must not run twice.
    pub(super) once: Vec<Value>,
    /// Named outputs of the graph. They are there to the end, and are counted beside all layers.
    pub(super) named: Vec<Value>,
}

impl Pinned {
    pub(super) fn of(graph: &Graph, layer: &Layer) -> Pinned {
        let outputs: BTreeSet<Value> =
            graph.outputs().iter().map(|(_, value)| graph.storage(*value)).collect();
        let made = |once: bool| {
            let nodes = layer.forward.iter().map(|&id| graph.node(id));
            nodes.filter(move |node| !once || node.op.is_once()).flat_map(|node| node.outputs.iter().copied())
        };
        let named: Vec<Value> = made(false).filter(|value| outputs.contains(value)).collect();
        Pinned { once: made(true).filter(|value| !named.contains(value)).collect(), named }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.once.is_empty() && self.named.is_empty()
    }

    pub(super) fn contains(&self, value: Value) -> bool {
        self.once.contains(&value) || self.named.contains(&value)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = Value> {
        self.once.iter().chain(&self.named).copied()
    }

    /// Bytes of results that must not be computed twice and that one of `readers` reads. The layer's output is not
    /// counted: every account has bytes of its own for it.
    pub(super) fn bytes(&self, graph: &Graph, facts: &Facts, layer: &Layer, readers: &[&[NodeId]]) -> u64 {
        let inputs = readers.iter().copied().flatten().flat_map(|&id| &graph.node(id).inputs);
        let read: BTreeSet<Value> = inputs.map(|&value| graph.storage(value)).collect();
        let counted = self.once.iter().filter(|value| **value != layer.output && read.contains(value));
        counted.map(|&value| aligned(graph.ty(value).bytes() as u64, facts.alignment)).sum()
    }
}

/// The forward nodes that run again to recompute a layer's output, in order: those it depends on, except results that
/// never run twice.
pub(super) fn passage(graph: &Graph, layer: &Layer) -> Vec<NodeId> {
    let mut needed: BTreeSet<NodeId> = graph.producer(layer.output).into_iter().collect();
    let mut passage = Vec::new();
    for &id in layer.forward.iter().rev() {
        if needed.contains(&id) && !graph.node(id).op.is_once() {
            let inputs = graph.node(id).inputs.iter();
            needed.extend(inputs.filter_map(|&value| graph.producer(graph.storage(value))));
            passage.push(id);
        }
    }
    passage.reverse();
    passage
}
