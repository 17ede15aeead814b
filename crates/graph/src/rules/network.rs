//! Feed-forward networks as one op that works on tiles of rows.
//!
//! Models do not call it: the pass [`tile`](crate::tile) puts it in place of the nodes of a network.

use super::{Cotangents, equal, no_derivative, no_types, products, vector};
use crate::graph::Node;
use crate::op::Mlp;
use crate::tape::Tape;
use crate::{GraphError, Op, Type, Value};

pub(super) fn types(op: &Op, inputs: &[Type]) -> Result<Vec<Type>, String> {
    match op {
        Op::Mlp(form) => {
            let (&[x], parameters) = split::<1>(inputs, *form)?;
            Ok(vec![result(x, parameters, *form)?])
        }
        Op::MlpGrad { mlp: form, weights, biases } => {
            let (&[x, dy], parameters) = split::<2>(inputs, *form)?;
            equal(result(x, parameters, *form)?, dy, "output and gradient")?;
            let parameters = parameters.split_at(form.products());
            let wanted = [(parameters.0, *weights), (parameters.1, *biases)];
            let gradients = wanted.iter().filter(|(_, wanted)| *wanted).flat_map(|(of, _)| of.iter());
            let gradients = gradients.map(|ty| Type { dtype: x.dtype, ..*ty });
            Ok([x].into_iter().chain(gradients).collect())
        }
        other => no_types(other),
    }
}

pub(super) fn derivative(tape: &mut Tape, node: &Node, dys: Cotangents) -> Result<(), GraphError> {
    let Some(dy) = dys[0] else { return Ok(()) };
    let (inputs, x) = (&node.inputs, node.inputs[0]);
    let Op::Mlp(mlp) = &node.op else { return no_derivative(&node.op) };
    let (weights, biases) = inputs[1..].split_at(mlp.products());
    let [any_weight, any_bias] = [weights, biases].map(|of| of.iter().any(|&value| tape.needs(value)));
    let op = Op::MlpGrad { mlp: *mlp, weights: any_weight, biases: any_bias };
    let operands: Vec<Value> = [x, dy].into_iter().chain(inputs[1..].iter().copied()).collect();
    let gradient = tape.graph.apply_all(op, &operands);
    let wanted = [(weights, any_weight), (biases, any_bias)];
    let given = wanted.iter().filter(|(_, wanted)| *wanted).flat_map(|(of, _)| of.iter());
    for (output, &to) in [x].iter().chain(given).enumerate() {
        tape.give(to, gradient, output);
    }
    Ok(())
}

/// Forward, each weight takes part in one product. Backward, it takes part in the product for the gradient of its input
/// and, if it is trained, in the one for its own; all weights but the last take part in one more, which recomputes the
/// hidden values.
pub(super) fn flops(op: &Op, inputs: &[Type]) -> f64 {
    match op {
        Op::Mlp(mlp) => products_with(inputs[0], &inputs[1..=mlp.products()]),
        Op::MlpGrad { mlp, weights, .. } => {
            let all = &inputs[2..2 + mlp.products()];
            let times = if *weights { 2.0 } else { 1.0 };
            times * products_with(inputs[0], all) + products_with(inputs[0], &all[..all.len() - 1])
        }
        _ => 0.0,
    }
}

/// Memory traffic inside an op that works on tiles. Hidden values cost what they would cost as nodes of their own: one
/// write and about one read forward, about five passes backward. Every tile also reads the weights again: once forward,
/// twice backward, where it also reads and writes their gradients.
pub(crate) fn tile_bytes(op: &Op, inputs: &[Type]) -> f64 {
    let (mlp, first_weight, hidden_passes, weight_passes) = match op {
        Op::Mlp(mlp) => (mlp, 1, 2, 1),
        Op::MlpGrad { mlp, weights: false, .. } => (mlp, 2, 5, 2),
        Op::MlpGrad { mlp, .. } => (mlp, 2, 5, 4),
        _ => return 0.0,
    };
    let (x, weights) = (inputs[0], &inputs[first_weight..first_weight + mlp.products()]);
    let rows = x.shape.rows();
    let hidden = weights[0].shape.elements() / x.shape.columns().max(1); // F
    let hidden = hidden_passes * weights.len() * rows * hidden * x.dtype.bytes();
    let weights: usize = weights.iter().map(Type::bytes).sum();
    (hidden + weight_passes * (rows.div_ceil(mlp.rows.max(1)) - 1) * weights) as f64
}

/// Products of the rows of `x` with weights.
fn products_with(x: Type, weights: &[Type]) -> f64 {
    let elements: usize = weights.iter().map(|weight| weight.shape.elements()).sum();
    2.0 * x.shape.rows() as f64 * elements as f64
}

/// The first `N` operands, and the weights and biases behind them.
fn split<const N: usize>(inputs: &[Type], form: Mlp) -> Result<(&[Type; N], &[Type]), String> {
    let wanted = N + form.parameters();
    match inputs.split_first_chunk() {
        Some(parts) if inputs.len() == wanted => Ok(parts),
        _ => Err(format!("takes {wanted} inputs, got {}", inputs.len())),
    }
}

/// The result of a feed-forward network with these weights, then biases.
fn result(x: Type, parameters: &[Type], mlp: Mlp) -> Result<Type, String> {
    if mlp.rows == 0 {
        return Err("a tile of no rows".into());
    }
    let (weights, biases) = parameters.split_at(mlp.products());
    let layer = |x: Type, index: usize| {
        let operands: Vec<Type> = [x, weights[index]].into_iter().chain(biases.get(index).copied()).collect();
        let y = products::linear(&operands, mlp.transposed)?;
        biases.get(index).map_or(Ok(()), |bias| vector(*bias, y.shape.columns(), "bias"))?;
        Ok::<Type, String>(y)
    };
    let last = weights.len() - 1;
    let hidden = layer(x, 0)?;
    for index in 1..last {
        equal(hidden, layer(x, index)?, "gate and up")?;
    }
    layer(hidden, last)
}
