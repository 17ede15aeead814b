//! The pass that divides weights over ranks, after [`store`](crate::store): stage 3 of `ZeRO` (Rajbhandari et al., 2020).
//!
//! ```text
//! y = linear(x, w)           →   w₁ = all_gather(w);  y = linear(x, w₁)       w is this rank's shard
//! dx = linear_grad_input(w)  →                        dx = linear_grad_input(w₁)
//! ```
//!
//! Each layer has a gather of its own for each weight that it reads, before the first node that reads it. The nodes of the
//! layer's backward pass read the same value. No plan keeps it for them: the gather is a forward node, so it runs again, once
//! for all nodes of the layer that read the weight then. Layers share nothing, so equal layers stay equal.
//!
//! Nodes outside layers are taken in stretches: a table that is read at the beginning and tied to a head at the end is
//! gathered at both places.
//!
//! Weights in few bits stay whole. Their codes and scales are several ranges that are filled together, and they are small.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{BlockId, Graph, Node, NodeId, Phase, StateId, StateKind};
use crate::op::{Collective, shard_elements};
use crate::splice::Splice;
use crate::{GraphError, Op, Type, Value};

/// The graph of one of `ranks` ranks, each of which keeps a shard of every parameter.
///
/// # Errors
///
/// When the result does not verify.
pub fn divide(graph: Graph, ranks: usize) -> Result<Graph, GraphError> {
    let weights = weights(&graph);
    let stretches = stretches(&graph);
    let (splice, nodes) = Splice::of(graph);
    let mut pass = Pass { splice, ranks, wholes: BTreeMap::new(), gathered: BTreeMap::new() };
    for state in weights {
        pass.shard(state);
    }
    for (node, stretch) in nodes.into_iter().zip(stretches) {
        pass.rewrite(node, stretch);
    }
    pass.splice.finish()
}

impl Graph {
    /// Whether a node gathers a weight for the nodes of its layer; see [`divide`]. Its result is never kept for later.
    pub fn gathers(&self, node: NodeId) -> bool {
        let Node { op, phase, .. } = self.node(node);
        *phase != Phase::Update && matches!(op, Op::Collective(Collective::AllGather { .. }))
    }

    /// Whether a value is a weight that was gathered for the nodes of a layer.
    pub fn is_gathered(&self, value: Value) -> bool {
        self.producer(value).is_some_and(|node| self.gathers(node))
    }
}

/// The parameters to divide.
fn weights(graph: &Graph) -> Vec<StateId> {
    let dequantised = graph.nodes().iter().filter(|node| matches!(node.op, Op::Dequantise(_)));
    let in_few_bits: BTreeSet<Value> = dequantised.flat_map(|node| node.inputs.iter().copied()).collect();
    let all = (0..graph.states().len() as u32).map(StateId);
    let divided = |&id: &StateId| {
        let state = graph.state(id);
        matches!(state.kind, StateKind::Parameter { .. }) && !in_few_bits.contains(&state.versions[0])
    };
    all.filter(divided).collect()
}

/// For each node the number of its stretch; nodes of one stretch may share gathered weights. A stretch is a run of
/// neighbouring nodes of one layer, or of no layer, with their backward nodes.
fn stretches(graph: &Graph) -> Vec<usize> {
    let layers: BTreeSet<BlockId> = graph.layer_blocks().into_iter().collect();
    let layer_of =
        |node: &Node| graph.block_path(node.block).into_iter().find(|block| layers.contains(block));
    let (mut stretches, mut last) = (Vec::with_capacity(graph.nodes().len()), None);
    let mut count = 0;
    for node in graph.nodes() {
        let own = Some((node.phase, layer_of(node)));
        let forward = node.derivative_of.filter(|_| node.phase == Phase::Backward);
        if own != last {
            (last, count) = (own, count + 1);
        }
        let of_forward = forward.and_then(|forward| stretches.get(forward.index()).copied());
        stretches.push(of_forward.unwrap_or(count));
    }
    stretches
}

struct Pass {
    splice: Splice,
    ranks: usize,
    /// Types of the divided weights.
    wholes: BTreeMap<Value, Type>,
    /// The gathered copy of a divided weight, for each stretch of nodes.
    gathered: BTreeMap<(Value, usize), Value>,
}

impl Pass {
    /// Gives a parameter's range the type of a shard.
    fn shard(&mut self, id: StateId) {
        let state = &mut self.splice.graph.states[id.index()];
        let (whole, value) = (state.ty, state.versions[0]);
        let shard = Type { shape: [shard_elements(whole.shape.elements(), self.ranks)].into(), ..whole };
        (state.ty, state.whole) = (shard, Some(whole));
        self.splice.graph.values[value.index()].ty = shard;
        self.wholes.insert(value, whole);
    }

    /// Appends a node, after the nodes that gather its weights.
    fn rewrite(&mut self, mut node: Node, stretch: usize) {
        for index in 0..node.inputs.len() {
            let shard = node.inputs[index];
            let Some(&whole) = self.wholes.get(&shard) else { continue };
            node.inputs[index] = match self.gathered.get(&(shard, stretch)) {
                Some(&known) => known,
                None => self.gather(&node, (shard, stretch), whole),
            };
        }
        self.splice.keep(node);
    }

    fn gather(&mut self, beside: &Node, (shard, stretch): (Value, usize), whole: Type) -> Value {
        let op = Op::Collective(Collective::AllGather { ranks: self.ranks, whole: whole.shape });
        let weight = self.splice.fresh_of(whole);
        self.splice.insert_all(beside, op, vec![shard], weight);
        self.gathered.insert((shard, stretch), weight);
        weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Init, differentiate};

    /// Two layers between a table and a head that is the same table.
    fn tied() -> Graph {
        let mut g = Graph::new();
        let ids = g.input("ids", [4], DType::I32);
        let table = g.param("table", [65, 64], Init::Normal(0.1)); // (V, C)
        let mut x = g.embedding(table, ids); // (N, C)
        for layer in ["0", "1"] {
            x = g.block(layer, |g| {
                let w = g.param("w", [64, 64], Init::Normal(0.1)); // (C, C)
                let h = g.linear(x, w, None);
                let h = g.silu(h);
                g.linear(h, w, None)
            });
        }
        let y = g.linear(x, table, None); // (N, V)
        let loss = g.sum(y, &[0, 1]);
        g.output("loss", loss);
        differentiate(&g.finish().unwrap(), loss).unwrap()
    }

    /// Gathers of a graph: the state, the phase and the number of readers.
    fn gathers(graph: &Graph) -> Vec<(String, Phase, usize)> {
        let readers = |value: Value| graph.nodes().iter().filter(|node| node.inputs.contains(&value)).count();
        let told = |id: NodeId| {
            let node = graph.node(id);
            let (state, _) = graph.value(node.inputs[0]).state.unwrap();
            (graph.state(state).name.clone(), node.phase, readers(node.outputs[0]))
        };
        graph.node_ids().filter(|&id| graph.gathers(id)).map(told).collect()
    }

    #[test]
    fn a_layer_gathers_each_weight_once_for_all_its_readers_and_both_passes() {
        let graph = divide(tied(), 2).unwrap();
        let forward = Phase::Forward;
        assert_eq!(
            gathers(&graph),
            [
                ("table".to_owned(), forward, 1),
                // Two products, and a gradient of the input of each.
                ("0.w".to_owned(), forward, 4),
                ("1.w".to_owned(), forward, 4),
                ("table".to_owned(), forward, 2),
            ]
        );
        let shard = graph.state(graph.state_named("table").unwrap());
        // 65·64 = 4160 elements make 2080 for each of two ranks. A shard is whole blocks of 256, so it has 9 of them.
        assert_eq!((shard.ty, shard.whole), (Type::f32([2304]), Some(Type::f32([65, 64]))));
    }

    #[test]
    fn frozen_weights_are_divided_and_weights_in_few_bits_are_not() {
        let mut g = Graph::new();
        let x = g.input("x", [6, 64], DType::F32); // (N, C)
        let a = g.param("a", [64, 64], Init::Normal(0.1)); // (C, C)
        let x = g.linear(x, a, None);
        let mut y = x;
        for name in ["frozen", "few"] {
            let w = g.frozen(name, [64, 64], Init::Normal(0.1));
            y = g.linear(y, w, None);
        }
        let loss = g.sum(y, &[0, 1]);
        g.output("loss", loss);
        let graph = differentiate(&g.finish().unwrap(), loss).unwrap();
        let few = BTreeSet::from(["few".to_owned()]);
        let graph = crate::quantise(graph, &few, crate::op::Quantised::Int8, DType::F32).unwrap();
        let graph = divide(graph, 4).unwrap();
        let divided = graph.states().iter().filter(|state| state.whole.is_some());
        assert_eq!(divided.map(|state| &*state.name).collect::<Vec<_>>(), ["a", "frozen"]);
    }
}
