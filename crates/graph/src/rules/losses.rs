//! Losses: cross entropy of logits, and the language-model head fused with it.

use super::{Cotangents, equal, float, no_derivative, no_types, operands, vector};
use crate::graph::{Graph, Node, NodeId};
use crate::op::Head;
use crate::tape::Tape;
use crate::{DType, GraphError, Op, Type, Value};

impl Graph {
    /// `scale · Σ −log softmax(logits)[target]`; `scale` is usually the graph input that holds one over
    /// the valid targets of the global batch: see [`Graph::loss_scale`].
    #[track_caller]
    pub fn cross_entropy(&mut self, logits: Value, targets: Value, scale: Value, ignore_index: i32) -> Value {
        self.apply(Op::CrossEntropy { ignore_index }, &[logits, targets, scale])
    }

    /// Language-model head and loss in one, so that the full logits never exist.
    #[track_caller]
    pub fn head_loss(
        &mut self,
        x: Value,
        w: Value,
        bias: Option<Value>,
        targets: Value,
        scale: Value,
        ignore_index: i32,
    ) -> Value {
        let inputs: Vec<Value> = [x, w, targets, scale].into_iter().chain(bias).collect();
        self.apply(Op::HeadLoss(Head { ignore_index, bias: bias.is_some(), second: false }), &inputs)
    }

    /// The scalar graph input `scale` that every loss is multiplied by: one over the number of valid
    /// targets of the *global* batch, which is known before its first micro-batch runs.
    #[track_caller]
    pub fn loss_scale(&mut self) -> Value {
        self.input("scale", [], DType::F32)
    }
}

pub(super) fn types(op: &Op, inputs: &[Type]) -> Result<Vec<Type>, String> {
    match op {
        Op::CrossEntropy { .. } => cross_entropy(inputs).map(|_| vec![Type::f32([])]),
        Op::CrossEntropyGrad { .. } => cross_entropy(inputs).map(|logits| vec![logits]),
        Op::HeadLoss(head) => head_loss(inputs, *head).map(|_| vec![Type::f32([])]),
        Op::HeadLossGrad { head, weight, bias } => {
            let x = head_loss(inputs, *head)?;
            if *bias && !head.bias {
                return Err("a bias gradient needs a bias".into());
            }
            let gradients = head.gradients(*weight, *bias).into_iter();
            let gradients = gradients.map(|input| Type { dtype: x.dtype, ..inputs[input] });
            Ok([Type::f32([])].into_iter().chain(gradients).collect())
        }
        Op::HeadErrors { head, answers } => {
            let rows = head_loss(inputs, *head)?.shape.rows();
            match *answers {
                Some(length) if length == 0 || !rows.is_multiple_of(length) => {
                    Err(format!("{rows} rows are no whole number of sequences of {length}"))
                }
                _ => Ok(vec![Type::f32([])]),
            }
        }
        other => no_types(other),
    }
}

pub(super) fn derivative(tape: &mut Tape, node: &Node, dys: Cotangents) -> Result<(), GraphError> {
    let Some(dy) = dys[0] else { return Ok(()) };
    let inputs = &node.inputs;
    match &node.op {
        Op::CrossEntropy { ignore_index } => {
            let scale = tape.graph.mul(inputs[2], dy);
            let op = Op::CrossEntropyGrad { ignore_index: *ignore_index };
            tape.emit(inputs[0], op, &[inputs[0], inputs[1], scale]);
        }
        // The two-node form: the loss is only part of the root, so its cotangent joins the scale.
        Op::HeadLoss(head) => {
            let (weight, bias) = wanted(tape, inputs, *head);
            let mut operands = inputs.clone();
            operands[3] = tape.graph.mul(inputs[3], dy);
            let gradient = tape.graph.apply_all(Op::HeadLossGrad { head: *head, weight, bias }, &operands);
            give_gradients(tape, gradient, inputs, &head.gradients(weight, bias));
        }
        other => return no_derivative(other),
    }
    Ok(())
}

/// Turns the head, the last node, into its forward-and-backward form.
pub(crate) fn turn_head(tape: &mut Tape) {
    let id = NodeId(tape.graph.nodes.len() as u32 - 1);
    let Node { op: Op::HeadLoss(head), inputs, .. } = tape.graph.nodes[id.index()].clone() else {
        return;
    };
    let (weight, bias) = wanted(tape, &inputs, head);
    tape.graph.turn_backward(id, Op::HeadLossGrad { head, weight, bias });
    give_gradients(tape, id, &inputs, &head.gradients(weight, bias));
}

pub(super) fn flops(op: &Op, inputs: &[Type]) -> f64 {
    let product = |inputs: &[Type]| 2.0 * inputs[0].shape.elements() as f64 * inputs[1].shape[0] as f64;
    match op {
        Op::HeadLoss(head) | Op::HeadErrors { head, .. } => product(inputs) + second(inputs, *head, product),
        Op::HeadLossGrad { head, weight, .. } => {
            product(inputs) * if *weight { 3.0 } else { 2.0 } + 2.0 * second(inputs, *head, product)
        }
        _ => 0.0,
    }
}

/// The second product of a head, if it has one.
fn second(inputs: &[Type], head: Head, product: impl Fn(&[Type]) -> f64) -> f64 {
    if head.second { product(&inputs[head.second_at()..]) } else { 0.0 }
}

/// Whether the weight and the bias of a head need a gradient.
fn wanted(tape: &Tape, inputs: &[Value], head: Head) -> (bool, bool) {
    (tape.needs(inputs[1]), head.bias && tape.needs(inputs[4]))
}

fn give_gradients(tape: &mut Tape, node: NodeId, inputs: &[Value], gradients: &[usize]) {
    for (output, &input) in (1..).zip(gradients) {
        tape.give(inputs[input], node, output);
    }
}

/// Checks the operands of a loss; returns the type of the logits.
fn cross_entropy(inputs: &[Type]) -> Result<Type, String> {
    let [logits, targets, scale] = operands(inputs)?;
    let &[rows, _] = &logits.shape[..] else {
        return Err(format!("logits must be [rows, words], got {}", logits.shape));
    };
    float(logits)?;
    equal(targets, Type::i32([rows]), "targets")?;
    equal(scale, Type::f32([]), "scale")?;
    Ok(logits)
}

/// Checks the operands of a fused head; returns the type of its input.
fn head_loss(inputs: &[Type], head: Head) -> Result<Type, String> {
    let (first, rest) = inputs.split_at(inputs.len().min(4));
    let [x, w, targets, scale] = operands(first)?;
    let (&[rows, width], &[words, weight_width]) = (&x.shape[..], &w.shape[..]) else {
        return Err(format!("input {} and weight {} must be matrices", x.shape, w.shape));
    };
    float(x)?;
    if width != weight_width {
        return Err(format!("input has {width} columns, weight wants {weight_width}"));
    }
    equal(targets, Type::i32([rows]), "targets")?;
    equal(scale, Type::f32([]), "scale")?;
    let wanted = head.second_at() + 2 * usize::from(head.second);
    if inputs.len() != wanted {
        return Err(format!("takes {wanted} inputs, got {}", inputs.len()));
    }
    if head.bias {
        vector(rest[0], words, "bias")?;
    }
    if let [.., x2, w2] = rest
        && head.second
    {
        let columns = w2.shape.columns();
        equal(*x2, Type { shape: [rows, columns].into(), ..x }, "second input")?;
        equal(*w2, Type { shape: [words, columns].into(), ..*w2 }, "second weight")?;
    }
    Ok(x)
}
