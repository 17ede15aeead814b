//! The pass that chooses element types of values between nodes, after differentiation and before [`store`](crate::store).
//!
//! Under bf16, activations and their cotangents are rounded once, as their node stores them, and widened as they are
//! read; arithmetic is f32. These stay f32:
//!
//! ```text
//! scalars                     losses, scales, norms of gradients, and what is computed of them
//! statistics                  means and deviations of norms, log-sum-exp of attention
//! sums of gradients           the node writes, or adds, straight into the range that `store` gives a type to
//! small weights, tables       of norms, biases and convolutions; rotary frequencies
//! inputs and outputs          of the graph: the caller's types, with a cast beside them
//! ```
//!
//! Weights are not values between nodes: `store` chooses their type. An op reads a matrix of weights as it is stored;
//! if an op needs operands of one type (`add`, `mul`), a cast is put before it.
//!
//! Absent on purpose: any choice by layer or by size. Two plans of one run must not differ in a rounding.

use std::fmt;
use std::str::FromStr;

use crate::graph::{Graph, Node};
use crate::op::Family;
use crate::splice::Splice;
use crate::{DType, GraphError, Op, Shape, Value, infer};

/// The element type of values between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Precision {
    /// f32.
    #[default]
    F32,
    /// bf16, rounded to nearest even.
    Bf16,
}

impl Precision {
    /// As it is typed and reported.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> Result<Precision, String> {
        match name {
            "f32" => Ok(Precision::F32),
            "bf16" => Ok(Precision::Bf16),
            _ => Err(format!("values between nodes cannot be `{name}`; known are f32 and bf16")),
        }
    }
}

/// Gives the values between the nodes of an f32 graph this precision. The graph has no update yet.
///
/// # Errors
///
/// When the graph does not verify afterwards, which cannot happen for one that verified before.
pub fn narrow(graph: Graph, precision: Precision) -> Result<Graph, GraphError> {
    if precision == Precision::F32 {
        return Ok(graph);
    }
    let (splice, nodes) = Splice::of(graph);
    let mut pass = Pass { splice };
    for node in nodes {
        pass.rewrite(node)?;
    }
    pass.splice.finish()
}

impl Graph {
    /// The precision of the values between its nodes, as far as these show it: rows of a table that are moved as stored
    /// do not, nor do quantised weights.
    pub fn precision(&self) -> Precision {
        let between = |node: &&Node| !matches!(node.op, Op::Embedding | Op::Cast { .. } | Op::Dequantise(_));
        let nodes = self.nodes().iter().filter(between);
        let mut values = nodes.flat_map(|node| &node.outputs).map(|&value| self.value(value));
        let half = values.any(|value| value.state.is_none() && value.ty.dtype == DType::Bf16);
        if half { Precision::Bf16 } else { Precision::F32 }
    }
}

struct Pass {
    splice: Splice,
}

impl Pass {
    /// Puts a node, and the casts it needs, at the end of the list.
    fn rewrite(&mut self, mut node: Node) -> Result<(), GraphError> {
        if !matches!(node.op.family(), Family::State | Family::Ranks) && !matches!(node.op, Op::Cast { .. }) {
            self.cast_operands(&mut node);
        }
        let types = self.splice.graph.input_types(&node);
        let yielded = infer(&node.op, &types).map_err(|why| GraphError {
            what: node.op.name().to_owned(),
            block: self.splice.graph.block_name(node.block),
            why,
            at: None,
        })?;
        let mut given_back = Vec::new();
        for (output, &value) in node.outputs.iter().enumerate() {
            let dtype = self.stored_as(&node.op, output, value, yielded[output].dtype);
            if dtype != self.splice.graph.ty(value).dtype {
                self.splice.graph.values[value.index()].ty.dtype = dtype;
                given_back.push(value);
            }
        }
        let beside = node.clone();
        self.splice.keep(node);
        for value in given_back {
            self.give_back(&beside, value);
        }
        Ok(())
    }

    /// The type of an output for which the op yields `yielded` on its operands.
    fn stored_as(&self, op: &Op, output: usize, value: Value, yielded: DType) -> DType {
        let info = self.splice.graph.value(value);
        if info.state.is_some() {
            info.ty.dtype
        } else if op.stores_either(output) && info.ty.dtype == DType::F32 {
            // Norms and biases are small, and most are read as f32.
            let small = matches!(op, Op::Subspace { .. }) && info.ty.shape.len() < 2;
            // An op that sums over several turns would round its sum once a turn.
            let turns = op.can_accumulate(output) && !op.sums_in_half(output);
            if small || turns || info.ty.shape.is_empty() { DType::F32 } else { DType::Bf16 }
        } else {
            yielded
        }
    }

    /// Casts inputs that the op cannot read as they are.
    fn cast_operands(&mut self, node: &mut Node) {
        let wanted = self.type_of_operands(node);
        for index in 0..node.inputs.len() {
            let input = node.inputs[index];
            let dtype = self.splice.graph.ty(input).dtype;
            let to = if self.is_between(node, index) { wanted } else { DType::F32 };
            let as_stored = !dtype.is_float() || node.op.reads_half(index);
            if dtype != to && !as_stored {
                node.inputs[index] = self.splice.cast(node, input, to);
            }
        }
    }

    /// The one type of the values between nodes that an op reads. If it reads only scalars, it is f32; so is a part cut
    /// out of a weight or an input.
    fn type_of_operands(&self, node: &Node) -> DType {
        let graph = &self.splice.graph;
        let mut between = (0..node.inputs.len())
            .filter(|&index| self.is_between(node, index))
            .map(|index| graph.ty(node.inputs[index]));
        let moves = node.op.family() == Family::Movement && !matches!(node.op, Op::Broadcast { .. });
        let spreads = |shape: Shape| !shape.is_empty() || matches!(node.op, Op::Broadcast { .. });
        let half = between
            .any(|ty| ty.dtype == DType::Bf16 || ty.dtype == DType::F32 && !moves && spreads(ty.shape));
        if half { DType::Bf16 } else { DType::F32 }
    }

    /// Whether an operand has the type of values between nodes: neither a weight that is read as it is stored, nor one of
    /// those that stay f32.
    fn is_between(&self, node: &Node, index: usize) -> bool {
        let shape = |value: Value| self.splice.graph.shape(value);
        // A value of the result's shape that a linear layer adds.
        let added = matches!(node.op, Op::Linear { .. })
            && index == 2
            && shape(node.inputs[2]) == shape(node.outputs[0])
            && shape(node.inputs[2]).len() > 1;
        let float = self.splice.graph.ty(node.inputs[index]).dtype.is_float();
        float && (added || !node.op.reads_half(index) && !node.op.reads_whole(index))
    }

    /// A value that the caller reads gets the type it was declared with.
    fn give_back(&mut self, beside: &Node, value: Value) {
        if !self.splice.graph.outputs.iter().any(|&(_, output)| output == value) {
            return;
        }
        let wide = self.splice.cast(beside, value, DType::F32);
        for (_, output) in &mut self.splice.graph.outputs {
            if *output == value {
                *output = wide;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Init, Storage, Visible, differentiate, store};

    /// An embedding with positions, a norm, attention with rotary positions, a gated network and a head.
    fn model() -> Graph {
        let mut g = Graph::new();
        let ids = g.input("ids", [2, 4], DType::I32);
        let targets = g.input("targets", [8], DType::I32);
        let scale = g.loss_scale();
        let table = g.param("table", [10, 8], Init::Normal(0.1)); // (V, C)
        let positions = g.param("positions", [6, 8], Init::Normal(0.1));
        let x = g.embedding(table, ids); // (B, T, C)
        let cut = g.slice(positions, 0, 0, 4); // (T, C)
        let x = g.add(x, cut);
        let x = g.block("layer", |g| {
            let norm = g.param("norm", [8], Init::Fill(1.0));
            let y = g.rms_norm(x, norm, 1e-6);
            let [q, k, v] = ["q", "k", "v"].map(|name| {
                let w = g.param(name, [8, 8], Init::Normal(0.1));
                let bias = g.param(&format!("{name}.bias"), [8], Init::Fill(0.0));
                let y = g.linear(y, w, Some(bias));
                g.reshape(y, [2, 4, 2, 4])
            });
            let frequencies = g.constant("frequencies", [2], vec![1.0, 0.1]);
            let q = g.rope(q, frequencies, None);
            let y = g.attention(q, k, v, Visible::CAUSAL);
            let y = g.reshape(y, [2, 4, 8]);
            g.add(x, y)
        });
        let x = g.reshape(x, [8, 8]);
        g.output("last", x);
        let loss = g.head_loss(x, table, None, targets, scale, -100);
        g.output("loss", loss);
        differentiate(&g.finish().unwrap(), loss).unwrap()
    }

    fn types(graph: &Graph, op: &str) -> Vec<Vec<DType>> {
        let nodes = graph.nodes().iter().filter(|node| node.op.name() == op);
        nodes.map(|node| graph.output_types(node).iter().map(|ty| ty.dtype).collect()).collect()
    }

    #[test]
    fn values_between_nodes_are_bf16_and_statistics_losses_and_sums_stay_f32() {
        const BF16: DType = DType::Bf16;
        const F32: DType = DType::F32;
        let graph = narrow(model(), Precision::Bf16).unwrap();
        assert_eq!(types(&graph, "embedding"), [[BF16]], "rows are rounded as they are copied");
        assert_eq!(types(&graph, "rms_norm"), [[BF16, F32]]);
        assert_eq!(types(&graph, "attention"), [[BF16, F32]]);
        assert_eq!(types(&graph, "attention_grad"), [[BF16, BF16, BF16]]);
        assert_eq!(types(&graph, "linear"), [[BF16], [BF16], [BF16]]);
        assert_eq!(types(&graph, "linear_grad_weight"), [[F32], [F32], [F32]]);
        assert_eq!(types(&graph, "head_loss_grad"), [[F32, BF16, F32]]);
        assert_eq!(types(&graph, "embedding_grad"), [[F32]]);
        for (state, before) in graph.states().iter().zip(model().states()) {
            assert_eq!(state.ty, before.ty, "{}", state.name);
        }
    }

    #[test]
    fn casts_stand_where_operands_would_mix_and_at_the_graphs_outputs() {
        let graph = narrow(model(), Precision::Bf16).unwrap();
        let casts: Vec<String> = (graph.nodes().iter())
            .filter(|node| matches!(node.op, Op::Cast { .. }))
            .map(|node| format!("{} {}", graph.ty(node.inputs[0]), graph.ty(node.outputs[0])))
            .collect();
        assert_eq!(casts, ["f32[4,8] bf16[4,8]", "bf16[8,8] f32[8,8]"], "the cut positions, and `last`");
        assert_eq!(graph.ty(graph.output_named("last").unwrap()).dtype, DType::F32);
        assert_eq!(graph.ty(graph.output_named("loss").unwrap()).dtype, DType::F32);
    }

    #[test]
    fn the_text_form_says_which_values_are_rounded() {
        let text = narrow(model(), Precision::Bf16).unwrap().to_string();
        assert!(text.contains(": bf16[2,4,8], f32[8] = rms_norm"), "{text}");
        assert!(text.contains(": f32[8,8] = linear_grad_weight"), "{text}");
    }

    #[test]
    fn f32_changes_nothing() {
        assert_eq!(narrow(model(), Precision::F32).unwrap().to_string(), model().to_string());
        let storage = Storage { weights: DType::Bf16, gradients: DType::Bf16 };
        assert_eq!(store(model(), storage).unwrap().precision(), Precision::F32);
        assert_eq!(narrow(model(), Precision::Bf16).unwrap().precision(), Precision::Bf16);
    }

    #[test]
    fn weights_and_sums_may_be_bf16_as_well() {
        let storage = Storage { weights: DType::Bf16, gradients: DType::Bf16 };
        let graph = store(narrow(model(), Precision::Bf16).unwrap(), storage).unwrap();
        assert_eq!(types(&graph, "linear_grad_weight"), [[DType::Bf16]; 3]);
        assert_eq!(types(&graph, "embedding"), [[DType::Bf16]], "no cast follows");
        assert_eq!(
            types(&graph, "head_loss_grad"),
            [[DType::F32, DType::Bf16, DType::F32]],
            "summed in turns"
        );
    }

    #[test]
    fn a_loss_of_plain_ops_keeps_its_scalars_whole() {
        let mut g = Graph::new();
        let x = g.input("x", [4, 8], DType::F32);
        let w = g.param("w", [8, 8], Init::Normal(0.1));
        let gain = g.param("gain", [8], Init::Fill(1.0));
        let y = g.linear(x, w, None);
        let y = g.mul(y, gain);
        let y = g.tanh(y);
        let loss = g.mean(y, &[0, 1]);
        g.output("loss", loss);
        let graph = narrow(differentiate(&g, loss).unwrap(), Precision::Bf16).unwrap();
        for node in graph.nodes() {
            for ty in graph.output_types(node).iter().filter(|ty| ty.shape.is_empty()) {
                let spread = matches!(node.op, Op::Cast { .. });
                assert_eq!(ty.dtype == DType::Bf16, spread, "{}", node.op.name());
            }
        }
        assert_eq!(types(&graph, "tanh"), [[DType::Bf16]]);
        assert_eq!(types(&graph, "sum").last(), Some(&vec![DType::F32]), "the gradient of `gain`");
    }

    #[test]
    fn a_precision_that_does_not_exist_is_refused() {
        let why = "fp8".parse::<Precision>().unwrap_err();
        assert_eq!(why, "values between nodes cannot be `fp8`; known are f32 and bf16");
    }
}
