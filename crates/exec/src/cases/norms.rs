//! Cases of sums, softmax and norms.

use plimsoll_graph::{Axes, Op, Shape, Type};

use super::building::{DEEP, FUNCTION, SUMMED, both_ways, cancelling, case, floats, named, normal, stored};
use super::{Case, Fill};

pub(super) fn all() -> Vec<Case> {
    [reductions(), norms(), row_norms()].concat()
}

fn reductions() -> Vec<Case> {
    let sum = |shape: Shape, axes: &[usize]| {
        let op = Op::Sum { axes: Axes::of(axes.iter().copied()) };
        let terms: usize = axes.iter().map(|&axis| shape[axis]).product();
        both_ways(cancelling(case(op, vec![normal(shape)], SUMMED), (terms as f64).sqrt()))
    };
    let mut cases = [
        sum([1].into(), &[0]),
        sum([7, 13].into(), &[0]),
        sum([7, 13].into(), &[1]),
        sum([7, 13].into(), &[0, 1]),
        sum([2, 3, 4, 5].into(), &[0, 2]),
        sum([2, 3, 4, 5].into(), &[0, 2, 3]),
        sum([130, 67].into(), &[0]),
        sum([130, 67].into(), &[0, 1]),
    ]
    .concat();
    let shapes: [Shape; 5] =
        [[1].into(), [1, 7].into(), [5, 33].into(), [2, 3, 100].into(), [130, 67].into()];
    for shape in shapes {
        cases.push(case(Op::Softmax, vec![normal(shape)], FUNCTION));
        let y = stored(Type::f32(shape), &Op::Softmax, &[1], 0);
        // The gradient of a single column is 0.
        let least = if shape.columns() == 1 { 1.0 } else { 0.0 };
        cases.push(cancelling(case(Op::SoftmaxGrad, vec![y, normal(shape)], SUMMED), least));
    }
    let far = floats([3, 21], Fill::Normal(100.0));
    cases.push(named(case(Op::Softmax, vec![far], DEEP), "of large numbers"));
    cases
}

fn norms() -> Vec<Case> {
    let mut cases = Vec::new();
    let shapes: [Shape; 6] =
        [[7].into(), [1, 5].into(), [5, 33].into(), [2, 3, 64].into(), [130, 100].into(), [4, 1].into()];
    for shape in shapes {
        let (x, w, b) = (normal(shape), normal([shape.columns()]), normal([shape.columns()]));
        let (dy, per_row) = (normal(shape), Type::f32([shape.rows()]));
        // The gradient of a single column is 0, though rstd makes its terms large first.
        let least = if shape.columns() == 1 { 10.0 } else { 0.0 };
        let norm = Op::LayerNorm { epsilon: 1e-5 };
        cases.push(case(norm.clone(), vec![x.clone(), w.clone(), b.clone()], SUMMED));
        // Statistics depend on x alone; w (index 1) and x stand in for the other operands.
        let mean = |from: &[usize]| stored(per_row, &norm, from, 1);
        let rstd = |from: &[usize]| stored(per_row, &norm, from, 2);
        let inputs = vec![x.clone(), w.clone(), mean(&[0, 1, 1]), rstd(&[0, 1, 1]), dy.clone()];
        cases.push(cancelling(case(Op::LayerNormGradInput, inputs, SUMMED), least));

        let norm = Op::RmsNorm { epsilon: 1e-6 };
        cases.push(case(norm.clone(), vec![x.clone(), w.clone()], SUMMED));
        let inputs = vec![x.clone(), w, stored(per_row, &norm, &[0, 1], 1), dy.clone()];
        cases.push(cancelling(case(Op::RmsNormGradInput, inputs, SUMMED), least));

        // The gradients of the weight read no weight, so their statistics are drawn at random.
        let (mean, rstd) =
            (floats(per_row.shape, Fill::Normal(0.1)), floats(per_row.shape, Fill::Squares(1.0)));
        let inputs = vec![x.clone(), mean, rstd.clone(), dy.clone()];
        cases.extend(both_ways(case(Op::LayerNormGradWeight, inputs, SUMMED)));
        cases.extend(both_ways(case(Op::RmsNormGradWeight, vec![x, rstd, dy], SUMMED)));
    }
    cases
}

/// Squares are large, so that no sum of these numbers is below zero.
fn row_norms() -> Vec<Case> {
    let sizes: [[usize; 2]; 4] = [[1, 1], [5, 3], [130, 8], [67, 33]];
    let small = |shape: [usize; 2]| floats(shape, Fill::Normal(0.3));
    let case = |[out, rank]: [usize; 2]| {
        let squares = floats([out], Fill::Number(200.0));
        let inputs = vec![squares, small([rank, out]), small([out, rank]), small([rank, rank])];
        case(Op::InverseNorm { scale: 0.5 }, inputs, SUMMED)
    };
    sizes.into_iter().map(case).collect()
}

/// Parameters of each case of `reference/ops.py`.
pub(super) fn golden() -> Vec<(&'static str, Op)> {
    vec![
        ("sum.leading", Op::Sum { axes: Axes::of([0, 1]) }),
        ("sum.middle", Op::Sum { axes: Axes::of([1]) }),
        ("sum.all", Op::Sum { axes: Axes::of([0, 1, 2]) }),
        ("softmax.plain", Op::Softmax),
        ("softmax_grad.plain", Op::SoftmaxGrad),
        ("layer_norm.plain", Op::LayerNorm { epsilon: 1e-5 }),
        ("layer_norm_grad_input.plain", Op::LayerNormGradInput),
        ("layer_norm_grad_weight.plain", Op::LayerNormGradWeight),
        ("rms_norm.plain", Op::RmsNorm { epsilon: 1e-5 }),
        ("rms_norm_grad_input.plain", Op::RmsNormGradInput),
        ("rms_norm_grad_weight.plain", Op::RmsNormGradWeight),
        ("inverse_norm.plain", Op::InverseNorm { scale: 0.5 }),
    ]
}
