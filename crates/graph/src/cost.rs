//! The cost of an op before anybody has measured it: arithmetic and memory traffic.
//!
//! A device turns these into seconds with its own rates; the planner sees only seconds.

use crate::rules::{matmul_flops, tile_bytes};
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
    let operands: f64 = inputs.iter().chain(outputs).map(|ty| ty.bytes() as f64).sum();
    Work { matmul_flops: matmul_flops(op, inputs, outputs), bytes: operands + tile_bytes(op, inputs) }
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
