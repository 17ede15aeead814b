//! Reverse-mode differentiation: a forward graph in, a graph with explicit backward nodes out.
//!
//! One rule per op, in the order of `op.rs`. A rule turns the cotangent of a node's first output into
//! contributions to the cotangents of its inputs. Contributions to ordinary values are added; those to
//! trainable parameters are summed into a range of state, `grad.<name>`, where they lie: an op that can
//! accumulate writes there directly, any other is followed by `accumulate`.
//!
//! The fused head is special: when its loss is the root, forward and backward become one node, the
//! first of the backward phase. Where the loss is only a part of the root, the forward twin stays and
//! the backward builds the logits a second time.
//!
//! Second derivatives are not here: backward ops have no rule.

use crate::graph::{Graph, Node, NodeId, Phase, Source, StateId, StateKind};
use crate::infer::broadcast_axes;
use crate::op::Head;
use crate::{Axes, GraphError, Op, Type, Value};

/// The graph of `forward` followed by the nodes that compute the gradient of `loss` with respect to
/// every trainable parameter, each in the state `grad.<parameter>`. Ids of values stay the same.
///
/// # Errors
///
/// When `loss` is not a scalar of the forward phase, or depends on a parameter through something that
/// has no derivative.
pub fn differentiate(forward: &Graph, loss: Value) -> Result<Graph, GraphError> {
    let mut graph = forward.clone();
    if graph.ty(loss) != Type::f32([]) {
        return Err(refuse(
            "loss",
            format!("must be an f32 scalar to be differentiated, got {}", graph.ty(loss)),
        ));
    }
    let needs = depends_on_parameters(&graph);
    if !needs[loss.index()] {
        return Err(refuse("loss", "depends on no trainable parameter".into()));
    }
    let mut cotangents = vec![None; graph.value_count()];
    graph.set_phase(Phase::Backward);
    let head = fused_head(&graph, loss);
    let last_forward = graph.nodes.len() - usize::from(head.is_some());
    let mut tape = if let Some(head) = head {
        move_to_end(&mut graph, head);
        let mut tape = Tape { graph, needs, cotangents };
        tape.turn_head();
        tape
    } else {
        let one = graph.constant("one", [], vec![1.0]);
        cotangents[loss.index()] = Some(one);
        Tape { graph, needs, cotangents }
    };
    for id in (0..last_forward as u32).rev().map(NodeId) {
        let node = tape.graph.node(id).clone();
        let (first, rest) = (node.outputs[0], &node.outputs[1..]);
        if rest.iter().any(|&value| tape.cotangent(value).is_some()) {
            return Err(refuse(node.op.name(), "only its first output can be differentiated".into()));
        }
        if let Some(dy) = tape.cotangent(first) {
            tape.graph.current = node.block;
            tape.graph.derivative_of = Some(id);
            tape.rule(&node, dy)?;
        }
    }
    tape.graph.current = Graph::ROOT;
    tape.graph.derivative_of = None;
    tape.graph.finish()
}

/// Name of the state that holds the gradient of the parameter `name`.
pub fn gradient_name(name: &str) -> String {
    format!("grad.{name}")
}

fn refuse(what: &str, why: String) -> GraphError {
    GraphError { what: what.to_owned(), block: String::new(), why, at: None }
}

/// For every value, whether a trainable parameter reaches it.
fn depends_on_parameters(graph: &Graph) -> Vec<bool> {
    let mut needs = vec![false; graph.value_count()];
    for state in graph.states() {
        needs[state.versions[0].index()] = matches!(state.kind, StateKind::Parameter { trainable: true });
    }
    for node in graph.nodes() {
        let any = node.inputs.iter().any(|input| needs[input.index()]);
        for &output in &node.outputs {
            needs[output.index()] = any && graph.ty(output).dtype.is_float();
        }
    }
    needs
}

/// The fused head whose loss is the root and nothing else's input.
fn fused_head(graph: &Graph, loss: Value) -> Option<NodeId> {
    let producer = graph.producer(loss)?;
    let used = graph.nodes().iter().any(|node| node.inputs.contains(&loss));
    (!used && matches!(graph.node(producer).op, Op::HeadLoss(_))).then_some(producer)
}

/// Makes `id` the last node.
fn move_to_end(graph: &mut Graph, id: NodeId) {
    let node = graph.nodes.remove(id.index());
    graph.nodes.push(node);
    for index in id.index()..graph.nodes.len() {
        for output in 0..graph.nodes[index].outputs.len() {
            let value = graph.nodes[index].outputs[output];
            graph.values[value.index()].source = Source::Node { node: NodeId(index as u32), output };
        }
    }
}

struct Tape {
    graph: Graph,
    needs: Vec<bool>,
    /// Cotangent of each value of the forward graph, as far as it has been gathered.
    cotangents: Vec<Option<Value>>,
}

impl Tape {
    fn cotangent(&self, value: Value) -> Option<Value> {
        self.cotangents[value.index()]
    }

    fn needs(&self, value: Value) -> bool {
        self.needs[value.index()]
    }

    /// Turns the head, the last node, into its forward-and-backward form.
    fn turn_head(&mut self) {
        let id = NodeId(self.graph.nodes.len() as u32 - 1);
        let Node { op: Op::HeadLoss(head), inputs, .. } = self.graph.nodes[id.index()].clone() else {
            return;
        };
        let (weight, bias) = (self.needs(inputs[1]), head.bias && self.needs(inputs[4]));
        let types = self.head_gradient_types(&inputs, weight, bias);
        let node = &mut self.graph.nodes[id.index()];
        node.op = Op::HeadLossGrad { head, weight, bias };
        node.phase = Phase::Backward;
        for ty in types {
            let output = self.graph.nodes[id.index()].outputs.len();
            let source = Source::Node { node: id, output };
            self.graph.values.push(crate::graph::ValueInfo { ty, source, state: None, name: String::new() });
            let value = Value(self.graph.values.len() as u32 - 1);
            self.graph.nodes[id.index()].outputs.push(value);
        }
        self.give_head_gradients(id, &inputs, weight, bias);
    }

    fn head_gradient_types(&self, inputs: &[Value], weight: bool, bias: bool) -> Vec<Type> {
        let wanted = [(inputs[0], true), (inputs[1], weight), (inputs[inputs.len() - 1], bias)];
        wanted.iter().filter(|(_, wanted)| *wanted).map(|&(value, _)| self.graph.ty(value)).collect()
    }

    fn give_head_gradients(&mut self, node: NodeId, inputs: &[Value], weight: bool, bias: bool) {
        self.give(inputs[0], node, 1);
        if weight {
            self.give(inputs[1], node, 2);
        }
        if bias {
            self.give(inputs[4], node, 2 + usize::from(weight));
        }
    }

    /// Adds output `output` of the node just made to the cotangent of `to`. The output was made for
    /// this purpose alone, so a weight gradient may be written straight into its sum.
    fn give(&mut self, to: Value, node: NodeId, output: usize) {
        if !self.needs(to) {
            return;
        }
        let contribution = self.graph.node(node).outputs[output];
        match self.gradient_state(to) {
            Some(state) if self.graph.node(node).op.can_accumulate(output) => {
                self.graph.write_state(node, output, state);
            }
            _ => self.share(to, contribution),
        }
    }

    /// Adds a value that others may use as well to the cotangent of `to`.
    fn share(&mut self, to: Value, contribution: Value) {
        if !self.needs(to) {
            return;
        }
        if let Some(state) = self.gradient_state(to) {
            let to = self.graph.ty(contribution).dtype;
            let sum = self.graph.apply_all(Op::Accumulate { to }, &[contribution]);
            self.graph.write_state(sum, 0, state);
            return;
        }
        let sum = match self.cotangents[to.index()] {
            Some(earlier) => self.graph.add(earlier, contribution),
            None => contribution,
        };
        self.cotangents[to.index()] = Some(sum);
    }

    /// The range that sums the gradient of `value`, if it is a parameter.
    fn gradient_state(&mut self, value: Value) -> Option<StateId> {
        let (state, _) = self.graph.value(value).state?;
        let name = gradient_name(&self.graph.state(state).name);
        self.graph.state_range(&name, self.graph.ty(value), StateKind::Gradient);
        self.graph.state_named(&name)
    }

    /// Applies `op` and gives its first output to `to`, unless `to` needs no gradient.
    fn emit(&mut self, to: Value, op: Op, inputs: &[Value]) {
        if self.needs(to) {
            let node = self.graph.apply_all(op, inputs);
            self.give(to, node, 0);
        }
    }

    /// Gives a suffix-broadcast operand its share of `dy`, which has the full shape.
    fn emit_summed(&mut self, to: Value, dy: Value) {
        let axes = broadcast_axes(self.graph.shape(dy), self.graph.shape(to));
        if axes == Axes::default() {
            self.share(to, dy);
        } else {
            self.emit(to, Op::Sum { axes }, &[dy]);
        }
    }

    #[allow(clippy::too_many_lines, reason = "a flat table, one rule per op")]
    fn rule(&mut self, node: &Node, dy: Value) -> Result<(), GraphError> {
        let (inputs, outputs) = (&node.inputs, &node.outputs);
        let x = inputs.first().copied().unwrap_or(dy);
        match &node.op {
            Op::Reshape { .. } => self.emit(x, Op::Reshape { shape: self.graph.shape(x) }, &[dy]),
            Op::Transpose { permutation } => {
                let mut inverse = vec![0; permutation.len()];
                for (axis, &source) in permutation.iter().enumerate() {
                    inverse[source] = axis;
                }
                self.emit(x, Op::Transpose { permutation: inverse }, &[dy]);
            }
            Op::Slice { axis, start, .. } => {
                let len = self.graph.shape(x)[*axis];
                self.emit(x, Op::Pad { axis: *axis, start: *start, len }, &[dy]);
            }
            Op::Pad { axis, start, .. } => {
                let len = self.graph.shape(x)[*axis];
                self.emit(x, Op::Slice { axis: *axis, start: *start, len }, &[dy]);
            }
            Op::Concat { axis } => {
                let mut start = 0;
                for &part in inputs {
                    let len = self.graph.shape(part)[*axis];
                    self.emit(part, Op::Slice { axis: *axis, start, len }, &[dy]);
                    start += len;
                }
            }
            Op::Cast { .. } => self.emit(x, Op::Cast { to: self.graph.ty(x).dtype }, &[dy]),
            Op::Broadcast { axes, .. } => self.emit(x, Op::Sum { axes: *axes }, &[dy]),
            Op::Add => {
                self.emit_summed(inputs[1], dy);
                self.share(x, dy);
            }
            Op::Mul => {
                if self.needs(inputs[1]) {
                    let product = self.graph.mul(dy, x);
                    self.emit_summed(inputs[1], product);
                }
                self.emit(x, Op::Mul, &[dy, inputs[1]]);
            }
            Op::Scale { factor } => self.emit(x, Op::Scale { factor: *factor }, &[dy]),
            Op::Silu => self.emit(x, Op::SiluGrad, &[x, dy]),
            Op::Gelu(form) => self.emit(x, Op::GeluGrad(*form), &[x, dy]),
            Op::Tanh => self.emit(x, Op::TanhGrad, &[outputs[0], dy]),
            Op::Swiglu => {
                let gradient = self.graph.apply_all(Op::SwigluGrad, &[x, inputs[1], dy]);
                self.give(x, gradient, 0);
                self.give(inputs[1], gradient, 1);
            }
            Op::Dropout { p, stream } => {
                self.emit(x, Op::Dropout { p: *p, stream: *stream }, &[dy, inputs[1]]);
            }
            // The weight comes first: its gradient is the last reader of `x`, whose bytes are then free
            // for the gradient of `x`.
            Op::Linear { transposed, bias } => {
                self.emit(inputs[1], Op::LinearGradWeight { transposed: *transposed }, &[x, dy]);
                if *bias {
                    self.emit_summed(inputs[2], dy);
                }
                self.emit(x, Op::LinearGradInput { transposed: *transposed }, &[inputs[1], dy]);
            }
            Op::Matmul { transpose_a, transpose_b } => {
                self.matmul_rule(inputs, dy, *transpose_a, *transpose_b);
            }
            Op::Conv2d { conv, bias } => {
                let (image, window) = (self.graph.shape(x), self.graph.shape(inputs[1]));
                let (image, window) = ([image[2], image[3]], [window[2], window[3]]);
                self.emit(inputs[1], Op::Conv2dGradWeight { conv: *conv, window }, &[x, dy]);
                if *bias {
                    self.emit(inputs[2], Op::Sum { axes: Axes::of([0, 2, 3]) }, &[dy]);
                }
                self.emit(x, Op::Conv2dGradInput { conv: *conv, image }, &[inputs[1], dy]);
            }
            Op::Sum { axes } => {
                self.emit(x, Op::Broadcast { shape: self.graph.shape(x), axes: *axes }, &[dy]);
            }
            Op::Softmax => self.emit(x, Op::SoftmaxGrad, &[outputs[0], dy]),
            Op::LayerNorm { .. } => {
                self.emit(inputs[1], Op::LayerNormGradWeight, &[x, outputs[1], outputs[2], dy]);
                self.emit_summed(inputs[2], dy);
                self.emit(x, Op::LayerNormGradInput, &[x, inputs[1], outputs[1], outputs[2], dy]);
            }
            Op::RmsNorm { .. } => {
                self.emit(inputs[1], Op::RmsNormGradWeight, &[x, outputs[1], dy]);
                self.emit(x, Op::RmsNormGradInput, &[x, inputs[1], outputs[1], dy]);
            }
            Op::Embedding => {
                let rows = self.graph.shape(x)[0];
                self.emit(x, Op::EmbeddingGrad { rows }, &[inputs[1], dy]);
            }
            Op::Rope { inverse, positions } => {
                let rest: Vec<Value> = [dy].into_iter().chain(inputs[1..].iter().copied()).collect();
                self.emit(x, Op::Rope { inverse: !inverse, positions: *positions }, &rest);
            }
            Op::Attention { mask, scale } => {
                let mut operands = vec![x, inputs[1], inputs[2], outputs[0], outputs[1], dy];
                operands.extend(inputs.get(3));
                let op = Op::AttentionGrad { mask: *mask, scale: *scale };
                let gradient = self.graph.apply_all(op, &operands);
                for (output, &input) in inputs[..3].iter().enumerate() {
                    self.give(input, gradient, output);
                }
            }
            Op::Mlp(mlp) => {
                let (weights, biases) = inputs[1..].split_at(mlp.products());
                let [any_weight, any_bias] =
                    [weights, biases].map(|of| of.iter().any(|&value| self.needs(value)));
                let op = Op::MlpGrad { mlp: *mlp, weights: any_weight, biases: any_bias };
                let operands: Vec<Value> = [x, dy].into_iter().chain(inputs[1..].iter().copied()).collect();
                let gradient = self.graph.apply_all(op, &operands);
                let wanted = [(weights, any_weight), (biases, any_bias)];
                let given = wanted.iter().filter(|(_, wanted)| *wanted).flat_map(|(of, _)| of.iter());
                for (output, &to) in [x].iter().chain(given).enumerate() {
                    self.give(to, gradient, output);
                }
            }
            Op::CrossEntropy { ignore_index } => {
                let scale = self.graph.mul(inputs[2], dy);
                self.emit(x, Op::CrossEntropyGrad { ignore_index: *ignore_index }, &[x, inputs[1], scale]);
            }
            Op::HeadLoss(head) => self.head_rule(inputs, *head, dy),
            op => return Err(refuse(op.name(), "has no derivative".into())),
        }
        Ok(())
    }

    /// `c = a·b`: `da = dc·bᵀ`, `db = aᵀ·dc`, with each operand read the other way round where the
    /// product read it transposed.
    fn matmul_rule(&mut self, inputs: &[Value], dc: Value, transpose_a: bool, transpose_b: bool) {
        let (a, b) = (inputs[0], inputs[1]);
        let product = |transpose_a, transpose_b| Op::Matmul { transpose_a, transpose_b };
        if transpose_a {
            self.emit(a, product(transpose_b, true), &[b, dc]);
        } else {
            self.emit(a, product(false, !transpose_b), &[dc, b]);
        }
        if transpose_b {
            self.emit(b, product(true, transpose_a), &[dc, a]);
        } else {
            self.emit(b, product(!transpose_a, false), &[a, dc]);
        }
    }

    /// The two-node form: the loss is only part of the root, so its cotangent joins the scale.
    fn head_rule(&mut self, inputs: &[Value], head: Head, dy: Value) {
        let (weight, bias) = (self.needs(inputs[1]), head.bias && self.needs(inputs[4]));
        let mut operands = inputs.to_vec();
        operands[3] = self.graph.mul(inputs[3], dy);
        let gradient = self.graph.apply_all(Op::HeadLossGrad { head, weight, bias }, &operands);
        self.give_head_gradients(gradient, inputs, weight, bias);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Init, Shape};

    fn classifier(frozen_first: bool) -> (Graph, Value) {
        let mut g = Graph::new();
        let x = g.input("x", [4, 8], DType::F32);
        let targets = g.input("targets", [4], DType::I32);
        let scale = g.loss_scale();
        let w1 = if frozen_first { Graph::frozen } else { Graph::param };
        let w1 = w1(&mut g, "w1", Shape::from([16, 8]), Init::Normal(0.1));
        let h = g.linear(x, w1, None);
        let h = g.silu(h);
        let w2 = g.param("w2", [10, 16], Init::Normal(0.1));
        let loss = g.head_loss(h, w2, None, targets, scale, -100);
        g.output("loss", loss);
        (g.finish().unwrap(), loss)
    }

    #[test]
    fn the_head_is_the_turn_and_gradients_are_written_where_they_are_summed() {
        let (forward, loss) = classifier(false);
        let graph = differentiate(&forward, loss).unwrap();
        let ops: Vec<&str> = graph.nodes().iter().map(|node| node.op.name()).collect();
        assert_eq!(ops, ["linear", "silu", "head_loss_grad", "silu_grad", "linear_grad_weight"]);
        for name in ["grad.w1", "grad.w2"] {
            let state = graph.state_named(name).unwrap();
            assert_eq!(graph.state(state).versions.len(), 2, "{name} has one writer");
        }
    }

    #[test]
    fn frozen_weights_have_no_gradient_and_no_backward_products() {
        let (forward, loss) = classifier(true);
        let graph = differentiate(&forward, loss).unwrap();
        assert_eq!(graph.state_named("grad.w1"), None);
        assert!(graph.nodes().iter().all(|node| !matches!(node.op, Op::LinearGradWeight { .. })));
    }

    #[test]
    fn a_loss_that_is_only_part_of_the_root_takes_the_two_node_form() {
        let (mut g, loss) = classifier(false);
        let root = g.scale(loss, 0.5);
        let graph = differentiate(&g, root).unwrap();
        let ops: Vec<&str> = graph.nodes().iter().map(|node| node.op.name()).collect();
        assert!(ops.contains(&"head_loss") && ops.contains(&"head_loss_grad"));
    }

    #[test]
    fn a_shared_weight_has_one_sum_with_two_writers() {
        let mut g = Graph::new();
        let ids = g.input("ids", [4], DType::I32);
        let targets = g.input("targets", [4], DType::I32);
        let scale = g.loss_scale();
        let table = g.param("table", [10, 8], Init::Normal(0.1));
        let x = g.embedding(table, ids);
        let loss = g.head_loss(x, table, None, targets, scale, -100);
        let graph = differentiate(&g, loss).unwrap();
        let state = graph.state_named("grad.table").unwrap();
        assert_eq!(graph.state(state).versions.len(), 3);
    }

    #[test]
    fn a_loss_that_is_not_a_scalar_is_refused() {
        let mut g = Graph::new();
        let w = g.param("w", [3], Init::Fill(0.0));
        let error = differentiate(&g, w).unwrap_err();
        assert_eq!(error.to_string(), "loss: must be an f32 scalar to be differentiated, got f32[3]");
    }
}
