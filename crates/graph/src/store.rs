//! The pass that chooses element types of weights and gradients, after differentiation and before the optimizer.
//!
//! Arithmetic stays f32. What changes is what lies in memory between nodes:
//!
//! ```text
//! linear(x, w)          → linear(x, w)                      kernels widen a bf16 weight as they read it
//! embedding(w, ids)     → cast f32(embedding(w, ids))       rows are copied as they are, then widened
//! rms_norm(x, w)        → rms_norm(x, cast f32(w))          any other reader has a cast of its own
//! grad.w = op(…)        → grad.w = accumulate(op(…))        the sum is rounded once, as it is stored
//! ```
//!
//! Casts stand right before their readers, one each, so that no f32 copy of a weight outlives its use; only
//! small ones (norms, biases, convolutions) need them. A gradient in bf16 exists as f32 from the node that computes
//! it to its `accumulate`, one parameter at a time.

use crate::graph::{Graph, Node, NodeId, Source, StateKind, ValueInfo};
use crate::{DType, GraphError, Op, Type, Value};

/// Element types of what a model keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Parameters, frozen ones included: f32 or bf16.
    pub weights: DType,
    /// Sums of gradients: f32 or bf16.
    pub gradients: DType,
}

/// Stores parameters and gradients of an f32 graph in these element types.
///
/// # Errors
///
/// When a type is neither f32 nor bf16.
pub fn store(graph: Graph, storage: Storage) -> Result<Graph, GraphError> {
    for (what, dtype) in [("weights", storage.weights), ("gradients", storage.gradients)] {
        if !matches!(dtype, DType::F32 | DType::Bf16) {
            let why = format!("cannot be stored as {dtype}; choose f32 or bf16");
            return Err(GraphError { what: what.into(), block: String::new(), why, at: None });
        }
    }
    let mut pass = Pass { storage, graph, nodes: Vec::new() };
    for state in 0..pass.graph.states.len() {
        let dtype = pass.stored_as(pass.graph.states[state].kind);
        pass.graph.states[state].ty.dtype = dtype;
        for version in pass.graph.states[state].versions.clone() {
            pass.graph.values[version.index()].ty.dtype = dtype;
        }
    }
    let old = std::mem::take(&mut pass.graph.nodes);
    let mut place = Vec::with_capacity(old.len());
    for node in old {
        place.push(pass.rewrite(node));
    }
    pass.finish(&place)
}

struct Pass {
    storage: Storage,
    /// Without its nodes, which are taken one by one.
    graph: Graph,
    nodes: Vec<Node>,
}

impl Pass {
    fn stored_as(&self, kind: StateKind) -> DType {
        match kind {
            StateKind::Parameter { .. } => self.storage.weights,
            StateKind::Gradient | StateKind::Transient => self.storage.gradients,
            StateKind::Constant | StateKind::Moment => DType::F32,
        }
    }

    /// Puts a node, and what it needs before and after, at the end of the list; returns its place.
    fn rewrite(&mut self, mut node: Node) -> usize {
        let (block, phase, derivative_of) = (node.block, node.phase, node.derivative_of);
        let beside = |op, input, output| Node {
            op,
            inputs: vec![input],
            outputs: vec![output],
            block,
            phase,
            derivative_of,
        };
        for (index, input) in node.inputs.iter_mut().enumerate() {
            if self.is_half(*input) && !node.op.reads_half(index) {
                let wide = self.fresh(*input, DType::F32);
                self.nodes.push(beside(Op::Cast { to: DType::F32 }, *input, wide));
                *input = wide;
            }
        }
        if let Op::Accumulate { to } = &mut node.op {
            *to = self.graph.ty(node.outputs[0]).dtype;
            self.nodes.push(node);
            return self.nodes.len() - 1;
        }
        let mut after = Vec::new();
        let half_rows = matches!(node.op, Op::Embedding) && self.is_half(node.inputs[0]);
        for output in &mut node.outputs {
            // The value keeps its id, and with it its readers; the node gets another in its place.
            let (of_node, op) = if self.is_half(*output) {
                (DType::F32, Op::Accumulate { to: DType::Bf16 })
            } else if half_rows {
                (DType::Bf16, Op::Cast { to: DType::F32 })
            } else {
                continue;
            };
            let plain = self.fresh(*output, of_node);
            after.push(beside(op, plain, std::mem::replace(output, plain)));
        }
        let place = self.nodes.len();
        self.nodes.push(node);
        self.nodes.append(&mut after);
        place
    }

    fn is_half(&self, value: Value) -> bool {
        let info = self.graph.value(value);
        info.state.is_some() && info.ty.dtype == DType::Bf16
    }

    /// A value of the same shape.
    fn fresh(&mut self, like: Value, dtype: DType) -> Value {
        let ty = Type { dtype, ..self.graph.ty(like) };
        self.graph.values.push(ValueInfo { ty, source: Source::Input, state: None, name: String::new() });
        Value(self.graph.values.len() as u32 - 1)
    }

    /// Tells values and derivatives the new places of nodes.
    fn finish(mut self, place: &[usize]) -> Result<Graph, GraphError> {
        for (index, node) in self.nodes.iter_mut().enumerate() {
            node.derivative_of = node.derivative_of.map(|forward| NodeId(place[forward.index()] as u32));
            for (output, &value) in node.outputs.iter().enumerate() {
                self.graph.values[value.index()].source = Source::Node { node: NodeId(index as u32), output };
            }
        }
        self.graph.nodes = self.nodes;
        self.graph.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Init, Phase, differentiate};

    fn tied() -> Graph {
        let mut g = Graph::new();
        let ids = g.input("ids", [4], DType::I32);
        let targets = g.input("targets", [4], DType::I32);
        let scale = g.loss_scale();
        let table = g.param("table", [10, 8], Init::Normal(0.1)); // (V, C)
        let x = g.embedding(table, ids); // (N, C)
        let norm = g.param("norm", [8], Init::Fill(1.0)); // (C)
        let x = g.rms_norm(x, norm, 1e-6); // (N, C)
        let w = g.param("w", [8, 8], Init::Normal(0.1)); // (C, C)
        let x = g.linear(x, w, None); // (N, C)
        let loss = g.head_loss(x, table, None, targets, scale, -100);
        g.output("loss", loss);
        differentiate(&g, loss).unwrap()
    }

    fn ops(graph: &Graph) -> Vec<&'static str> {
        graph.nodes().iter().map(|node| node.op.name()).collect()
    }

    #[test]
    fn only_small_weights_and_chosen_rows_are_widened() {
        let storage = Storage { weights: DType::Bf16, gradients: DType::F32 };
        let graph = store(tied(), storage).unwrap();
        let forward: Vec<&str> = (graph.nodes().iter())
            .filter(|node| node.phase == Phase::Forward)
            .map(|node| node.op.name())
            .collect();
        assert_eq!(forward, ["embedding", "cast", "cast", "rms_norm", "linear"]);
        let wide = |node: &&Node| matches!(node.op, Op::Cast { .. });
        let most = graph.nodes().iter().filter(wide).map(|node| graph.shape(node.outputs[0]).elements());
        assert_eq!(most.max(), Some(4 * 8), "no weight matrix is cast");
        for state in graph.states() {
            let half = matches!(state.kind, StateKind::Parameter { .. });
            assert_eq!(state.ty.dtype == DType::Bf16, half, "{}", state.name);
        }
    }

    #[test]
    fn gradients_in_bf16_are_rounded_as_they_are_added() {
        let storage = Storage { weights: DType::F32, gradients: DType::Bf16 };
        let graph = store(tied(), storage).unwrap();
        for state in graph.states().iter().filter(|state| state.kind == StateKind::Gradient) {
            assert_eq!(state.ty.dtype, DType::Bf16);
            for &version in &state.versions[1..] {
                let writer = graph.node(graph.producer(version).unwrap());
                assert_eq!(writer.op, Op::Accumulate { to: DType::Bf16 }, "{}", state.name);
            }
        }
        assert_eq!(ops(&graph).iter().filter(|&&op| op == "accumulate").count(), 4);
    }

    #[test]
    fn f32_everywhere_changes_nothing() {
        let storage = Storage { weights: DType::F32, gradients: DType::F32 };
        assert_eq!(store(tied(), storage).unwrap().to_string(), tied().to_string());
    }

    #[test]
    fn other_types_are_refused() {
        let storage = Storage { weights: DType::F16, gradients: DType::F32 };
        let error = store(tied(), storage).unwrap_err();
        assert_eq!(error.to_string(), "weights: cannot be stored as f16; choose f32 or bf16");
    }
}
