//! Cases of probabilities with the logarithm of their divisor, and of the choice of the largest.

use plimsoll_graph::{Op, Shape};

use super::building::{DEEP, EXACT, FUNCTION, SUMMED, cancelling, case, floats, integers, named, normal};
use super::{Case, Fill};

pub(super) fn all() -> Vec<Case> {
    [softmax_lse(), top_k()].concat()
}

fn softmax_lse() -> Vec<Case> {
    let mut cases = Vec::new();
    let shapes: [Shape; 5] =
        [[1].into(), [1, 7].into(), [5, 33].into(), [2, 3, 100].into(), [130, 67].into()];
    for shape in shapes {
        cases.push(case(Op::SoftmaxLse, vec![normal(shape)], FUNCTION));
        // Nothing is left of the gradient of a single column.
        let least = if shape.columns() == 1 { 1.0 } else { 0.0 };
        for (softmax, lse) in [(true, true), (true, false), (false, true)] {
            let dp = softmax.then(|| normal(shape));
            let dlse = lse.then(|| normal([shape.rows()]));
            let p = floats(shape, Fill::Squares(0.4));
            let inputs = [p].into_iter().chain(dp).chain(dlse).collect();
            cases.push(cancelling(case(Op::SoftmaxLseGrad { softmax, lse }, inputs, SUMMED), least));
        }
    }
    let far = floats([3, 21], Fill::Normal(100.0));
    cases.push(named(case(Op::SoftmaxLse, vec![far], DEEP), "of large numbers"));
    cases
}

fn top_k() -> Vec<Case> {
    let mut cases = Vec::new();
    let sizes: [(Shape, usize); 6] = [
        ([1].into(), 1),
        ([5, 8].into(), 2),
        ([2, 3, 7].into(), 7),
        ([130, 64].into(), 8),
        ([33, 40].into(), 1),
        ([3, 257].into(), 5),
    ];
    for (shape, k) in sizes {
        let op = Op::TopK { k, steered: false };
        let columns = shape.columns();
        cases.push(case(op.clone(), vec![floats(shape, Fill::Distinct(columns))], EXACT));
        cases.push(named(case(op.clone(), vec![normal(shape)], EXACT), "of normal numbers"));
        let few = floats(shape, Fill::Below(3));
        cases.push(named(case(op, vec![few], EXACT), "with equal scores"));
        let op = Op::TopK { k, steered: true };
        let p = floats(shape, Fill::Squares(0.4));
        let inputs = vec![normal(shape), p, floats([columns], Fill::Normal(0.1))];
        cases.push(named(case(op.clone(), inputs, EXACT), "with biases"));
        let few = || floats(shape, Fill::Below(3));
        let inputs = vec![normal(shape), few(), floats([columns], Fill::Below(2))];
        cases.push(named(case(op, inputs, EXACT), "with biases and equal sums"));
        let chosen = shape.with(shape.len() - 1, k);
        let inputs = vec![integers(chosen, Fill::Distinct(columns)), normal(chosen)];
        cases.push(case(Op::TopKGrad { columns }, inputs, EXACT));
    }
    cases
}

/// Parameters of each case of `reference/ops.py`.
pub(super) fn golden() -> Vec<(&'static str, Op)> {
    let grad = |softmax, lse| Op::SoftmaxLseGrad { softmax, lse };
    vec![
        ("softmax_lse.plain", Op::SoftmaxLse),
        ("softmax_lse_grad.both", grad(true, true)),
        ("softmax_lse_grad.softmax", grad(true, false)),
        ("softmax_lse_grad.lse", grad(false, true)),
        ("top_k.rows", Op::TopK { k: 3, steered: false }),
        ("top_k.steered", Op::TopK { k: 3, steered: true }),
        ("top_k_grad.rows", Op::TopKGrad { columns: 7 }),
    ]
}
