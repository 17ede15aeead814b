//! The pass that chooses element types of weights and gradients, after differentiation and before the optimizer.
//!
//! Arithmetic stays f32. Only the bytes in memory between nodes change:
//!
//! ```text
//! linear(x, w)          → linear(x, w)                      kernels widen a bf16 weight as they read it
//! embedding(w, ids)     → cast f32(embedding(w, ids))       rows are copied as they are, then widened
//! rms_norm(x, w)        → rms_norm(x, cast f32(w))          any other reader has a cast of its own
//! grad.w = op(…)        → grad.w = op(…)                    the op rounds the sum once, as it stores it
//! grad.w = head(…)      → grad.w = accumulate(head(…))      an op that sums in turns has an f32 sum first
//! ```
//!
//! Casts stand right before their readers, one each, so that no f32 copy of a weight outlives its use; only small
//! weights (norms, biases, convolutions) need them. If an op processes rows in several rounds (the head, networks in
//! tiles, tables, convolutions), its gradient exists as f32 up to its `accumulate`, one parameter at a time.

use crate::graph::{Graph, Node, StateKind};
use crate::splice::Splice;
use crate::{DType, GraphError, Op, Value};

/// Element types of a model's state.
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
    let (splice, nodes) = Splice::of(graph);
    let mut pass = Pass { splice };
    let graph = &mut pass.splice.graph;
    for state in &mut graph.states {
        state.ty.dtype = stored_as(storage, state.kind);
        for version in &state.versions {
            graph.values[version.index()].ty.dtype = state.ty.dtype;
        }
    }
    for node in nodes {
        pass.rewrite(node);
    }
    pass.splice.finish()
}

fn stored_as(storage: Storage, kind: StateKind) -> DType {
    match kind {
        StateKind::Parameter { .. } => storage.weights,
        StateKind::Gradient | StateKind::Transient => storage.gradients,
        StateKind::Constant | StateKind::Moment | StateKind::Tally => DType::F32,
    }
}

struct Pass {
    splice: Splice,
}

impl Pass {
    /// Appends a node, with the casts it needs before and after.
    fn rewrite(&mut self, mut node: Node) {
        for index in 0..node.inputs.len() {
            let input = node.inputs[index];
            let reads = node.op.reads_half(index) || matches!(node.op, Op::Cast { .. });
            if self.is_half(input) && !reads {
                node.inputs[index] = self.splice.cast(&node, input, DType::F32);
            }
        }
        if let Op::Accumulate { to } = &mut node.op {
            *to = self.splice.graph.ty(node.outputs[0]).dtype;
            return self.splice.keep(node);
        }
        let mut after = Vec::new();
        let half_rows = matches!(node.op, Op::Embedding) && self.is_half(node.inputs[0]);
        for (index, output) in node.outputs.iter_mut().enumerate() {
            // The value keeps its id, and with it its readers; the node gets another in its place.
            let (of_node, op) = if self.is_half(*output) && !node.op.sums_in_half(index) {
                (DType::F32, Op::Accumulate { to: DType::Bf16 })
            } else if half_rows && self.splice.graph.ty(*output).dtype == DType::F32 {
                (DType::Bf16, Op::Cast { to: DType::F32 })
            } else {
                continue;
            };
            let plain = self.splice.fresh(*output, of_node);
            after.push((op, plain, std::mem::replace(output, plain)));
        }
        let beside = node.clone();
        self.splice.keep(node);
        for (op, input, output) in after {
            self.splice.insert(&beside, op, input, output);
        }
    }

    fn is_half(&self, value: Value) -> bool {
        let info = self.splice.graph.value(value);
        info.state.is_some() && info.ty.dtype == DType::Bf16
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
                let direct = matches!(writer.op, Op::LinearGradWeight { .. } | Op::RmsNormGradWeight);
                assert!(direct || writer.op == Op::Accumulate { to: DType::Bf16 }, "{}", state.name);
            }
        }
        assert_eq!(ops(&graph).iter().filter(|&&op| op == "accumulate").count(), 2, "table, twice");
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
