//! Cases of feed-forward networks in tiles.

use plimsoll_graph::Op;
use plimsoll_graph::op::{Activation, Gelu, Mlp};

use super::building::{DEEP, both_ways, case, floats, normal};
use super::{Case, Fill, Input};

pub(super) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    let gelu = |form| Activation::Gelu(form);
    // (rows, width, hidden width, rows of a tile, form)
    let sizes = [
        (1, 1, 1, 1, (Activation::Swiglu, false, false)),
        (7, 5, 11, 3, (Activation::Swiglu, false, false)),
        (130, 33, 57, 64, (Activation::Swiglu, false, false)),
        (40, 19, 48, 32, (Activation::Swiglu, true, true)),
        (9, 13, 21, 100, (gelu(Gelu::Tanh), true, true)),
        (130, 33, 57, 32, (gelu(Gelu::Tanh), true, true)),
        (67, 24, 40, 64, (gelu(Gelu::Erf), false, true)),
        (12, 65, 7, 5, (gelu(Gelu::Erf), false, false)),
    ];
    for (rows, width, hidden, tile, (activation, transposed, bias)) in sizes {
        let mlp = Mlp { activation, transposed, bias, rows: tile };
        let products = mlp.products();
        let extents = |index: usize| if index + 1 == products { (width, hidden) } else { (hidden, width) };
        let weight = |index| {
            let (out, input) = extents(index);
            floats(if transposed { [input, out] } else { [out, input] }, Fill::Normal(0.3))
        };
        let weights = (0..products).map(weight);
        let biases = (0..products).filter(|_| bias).map(|index| normal([extents(index).0]));
        let parameters: Vec<Input> = weights.chain(biases).collect();
        let operands = |rows_read| [&vec![normal([rows, width]); rows_read], &parameters[..]].concat();
        cases.push(case(Op::Mlp(mlp), operands(1), DEEP));
        let gradient = |weights, biases| case(Op::MlpGrad { mlp, weights, biases }, operands(2), DEEP);
        cases.push(gradient(false, false));
        cases.extend(both_ways(gradient(true, bias)));
        if bias {
            cases.extend(both_ways(gradient(false, true)));
        }
    }
    cases
}

/// Parameters of each case of `reference/ops.py`.
pub(super) fn golden() -> Vec<(&'static str, Op)> {
    let swiglu = Mlp { activation: Activation::Swiglu, transposed: false, bias: false, rows: 2 };
    let gelu = |form, transposed| {
        let activation = Activation::Gelu(form);
        Mlp { activation, transposed, bias: true, rows: 2 }
    };
    let gradient = |mlp: Mlp| Op::MlpGrad { mlp, weights: true, biases: mlp.bias };
    vec![
        ("mlp.swiglu", Op::Mlp(swiglu)),
        ("mlp.tanh", Op::Mlp(gelu(Gelu::Tanh, true))),
        ("mlp.erf", Op::Mlp(gelu(Gelu::Erf, false))),
        ("mlp_grad.swiglu", gradient(swiglu)),
        ("mlp_grad.tanh", gradient(gelu(Gelu::Tanh, true))),
        ("mlp_grad.erf", gradient(gelu(Gelu::Erf, false))),
        ("mlp_grad.adding", gradient(swiglu)),
    ]
}
