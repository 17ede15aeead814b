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
    let bytes = inputs.iter().chain(outputs).map(|ty| ty.bytes() as f64).sum();
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
        Op::HeadLoss(_) => 2.0 * elements(&inputs[0]) * inputs[1].shape[0] as f64,
        Op::HeadLossGrad { weight, .. } => {
            let products = if *weight { 6.0 } else { 4.0 };
            products * elements(&inputs[0]) * inputs[1].shape[0] as f64
        }
        _ => 0.0,
    };
    Work { matmul_flops, bytes }
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
    fn a_linear_layer_costs_two_flops_per_weight_and_row() {
        let op = Op::Linear { transposed: false, bias: false };
        let work = work(&op, &[Type::f32([10, 8]), Type::f32([4, 8])], &[Type::f32([10, 4])]);
        assert_eq!(work, Work { matmul_flops: 2.0 * 10.0 * 8.0 * 4.0, bytes: 4.0 * (80.0 + 32.0 + 40.0) });
    }
}
