//! What an op costs before anybody has measured it: arithmetic and memory traffic.
//!
//! A device turns these into seconds with its own rates; the planner sees only seconds.

use crate::{Op, Type};

/// Work of one node.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Work {
    /// Multiplications and additions inside matrix products.
    pub matmul_flops: f64,
    /// Bytes read and written, each operand once.
    pub bytes: f64,
}

/// Work of `op` on operands of these types.
pub fn work(op: &Op, inputs: &[Type], outputs: &[Type]) -> Work {
    if op.is_view() {
        return Work::default();
    }
    let elements = |ty: &Type| ty.shape.elements() as f64;
    let operands: f64 = inputs.iter().chain(outputs).map(|ty| ty.bytes() as f64).sum();
    let matmul_flops = match op {
        Op::Linear { .. } => 2.0 * elements(&outputs[0]) * inputs[0].shape.columns() as f64,
        Op::LinearGradInput { .. } => 2.0 * elements(&outputs[0]) * inputs[1].shape.columns() as f64,
        Op::LinearGradWeight { .. } => 2.0 * elements(&outputs[0]) * inputs[0].shape.rows() as f64,
        Op::Matmul { transpose_a, .. } => {
            let shape = inputs[0].shape;
            let inner = if *transpose_a { shape[shape.len() - 2] } else { shape.columns() };
            2.0 * elements(&outputs[0]) * inner as f64
        }
        Op::Conv2d { .. } => {
            2.0 * elements(&outputs[0]) * inputs[1].shape[1..].iter().product::<usize>() as f64
        }
        Op::Conv2dGradInput { .. } => {
            2.0 * elements(&inputs[1]) * inputs[0].shape[1..].iter().product::<usize>() as f64
        }
        Op::Conv2dGradWeight { .. } => {
            2.0 * elements(&inputs[1]) * outputs[0].shape[1..].iter().product::<usize>() as f64
        }
        Op::Attention { mask, .. } => 4.0 * visible_products(inputs, mask),
        Op::AttentionGrad { mask, .. } => 10.0 * visible_products(inputs, mask),
        // Each weight takes part in one product forward; backward in those for its input and for itself, and all
        // but the last in one that rebuilds what is hidden.
        Op::Mlp(mlp) => products(inputs[0], &inputs[1..=mlp.products()]),
        Op::MlpGrad { mlp, weights, .. } => {
            let all = &inputs[2..2 + mlp.products()];
            let times = if *weights { 2.0 } else { 1.0 };
            times * products(inputs[0], all) + products(inputs[0], &all[..all.len() - 1])
        }
        Op::HeadLoss(_) => 2.0 * elements(&inputs[0]) * inputs[1].shape[0] as f64,
        Op::HeadLossGrad { weight, .. } => {
            let products = if *weight { 6.0 } else { 4.0 };
            products * elements(&inputs[0]) * inputs[1].shape[0] as f64
        }
        _ => 0.0,
    };
    Work { matmul_flops, bytes: operands + tile_bytes(op, inputs) }
}

/// Products of the rows of `x` with weights.
fn products(x: Type, weights: &[Type]) -> f64 {
    let elements: usize = weights.iter().map(|weight| weight.shape.elements()).sum();
    2.0 * x.shape.rows() as f64 * elements as f64
}

/// Traffic inside an op that works on tiles. What is hidden is charged as it is where it has nodes of its own: written
/// once and read about once forward, and about five passes backward. And every tile reads the weights again, backward
/// twice, with their gradients read and written.
fn tile_bytes(op: &Op, inputs: &[Type]) -> f64 {
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

/// `B·H·D` times the number of visible (query, key) pairs of one head, documents left out of account.
fn visible_products(inputs: &[Type], mask: &crate::op::Mask) -> f64 {
    let q = inputs[0].shape;
    let length = q[1] as f64;
    let keys = mask.window.map_or(length, |window| (window as f64).min(length));
    let per_query = if mask.causal && mask.window.is_none() { keys / 2.0 } else { keys };
    q.elements() as f64 * per_query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_in_tiles_costs_what_its_nodes_cost_and_what_it_builds_again() {
        use crate::op::{Activation, Mlp};
        let mlp = Mlp { activation: Activation::Swiglu, transposed: false, bias: false, rows: 64 };
        let (x, up, down) = (Type::f32([256, 8]), Type::f32([20, 8]), Type::f32([8, 20]));
        let products = |op: Op, inputs: &[Type]| {
            let outputs = crate::infer(&op, inputs).unwrap();
            work(&op, inputs, &outputs).matmul_flops as usize / (2 * 256 * 8 * 20)
        };
        let gradient = |weights| Op::MlpGrad { mlp, weights, biases: false };
        assert_eq!(products(Op::Mlp(mlp), &[x, up, up, down]), 3);
        assert_eq!(products(gradient(true), &[x, x, up, up, down]), 3 + 3 + 2);
        assert_eq!(products(gradient(false), &[x, x, up, up, down]), 3 + 2);
    }

    #[test]
    fn a_linear_layer_costs_two_flops_per_weight_and_row() {
        let op = Op::Linear { transposed: false, bias: false };
        let work = work(&op, &[Type::f32([10, 8]), Type::f32([4, 8])], &[Type::f32([10, 4])]);
        assert_eq!(work, Work { matmul_flops: 2.0 * 10.0 * 8.0 * 4.0, bytes: 4.0 * (80.0 + 32.0 + 40.0) });
    }
}
