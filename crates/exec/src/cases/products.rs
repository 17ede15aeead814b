//! Cases of matrix products and convolutions.

use plimsoll_graph::Op;
use plimsoll_graph::op::Conv;

use super::Case;
use super::building::{SUMMED, both_ways, case, normal};

pub(super) fn all() -> Vec<Case> {
    [linear(), matmul(), conv2d()].concat()
}

fn linear() -> Vec<Case> {
    let mut cases = Vec::new();
    // (rows, in, out)
    let sizes = [(1, 1, 1), (1, 7, 5), (3, 16, 16), (13, 33, 17), (65, 48, 40), (130, 96, 72), (5, 257, 3)];
    for (rows, input, out) in sizes {
        for transposed in [false, true] {
            let weight = normal(if transposed { [input, out] } else { [out, input] });
            let (x, dy) = (normal([rows, input]), normal([rows, out]));
            let plain = Op::Linear { transposed, bias: false };
            let biased = Op::Linear { transposed, bias: true };
            cases.push(case(plain, vec![x.clone(), weight.clone()], SUMMED));
            cases.push(case(biased.clone(), vec![x.clone(), weight.clone(), normal([out])], SUMMED));
            cases.push(case(biased, vec![x.clone(), weight.clone(), dy.clone()], SUMMED));
            cases.push(case(Op::LinearGradInput { transposed }, vec![weight, dy.clone()], SUMMED));
            cases.extend(both_ways(case(Op::LinearGradWeight { transposed }, vec![x, dy], SUMMED)));
        }
    }
    let deep = Op::Linear { transposed: false, bias: true };
    cases.push(case(deep, vec![normal([2, 3, 5]), normal([7, 5]), normal([7])], SUMMED));
    let weight = Op::LinearGradWeight { transposed: false };
    cases.extend(both_ways(case(weight, vec![normal([2, 3, 5]), normal([2, 3, 7])], SUMMED)));
    cases
}

fn matmul() -> Vec<Case> {
    let mut cases = Vec::new();
    let sizes = [(1, 1, 1), (5, 7, 3), (17, 33, 9), (66, 20, 35)]; // (m, k, n)
    for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
        for (m, k, n) in sizes {
            let a = if transpose_a { [k, m] } else { [m, k] };
            let b = if transpose_b { [n, k] } else { [k, n] };
            let op = Op::Matmul { transpose_a, transpose_b };
            cases.push(case(op.clone(), vec![normal(a), normal(b)], SUMMED));
            let [a, b] = [a, b].map(|[rows, columns]| normal([2, 3, rows, columns]));
            cases.push(case(op, vec![a, b], SUMMED));
        }
    }
    cases
}

fn conv2d() -> Vec<Case> {
    let mut cases = Vec::new();
    // (batch, channels, out, image, window, stride, padding)
    let sizes = [
        (1, 1, 1, [1, 1], [1, 1], 1, 0),
        (2, 3, 5, [7, 6], [3, 3], 1, 1),
        (1, 3, 4, [9, 9], [3, 2], 2, 0),
        (2, 2, 3, [8, 5], [4, 4], 4, 2),
        (1, 5, 7, [16, 16], [3, 3], 1, 1),
    ];
    for (batch, channels, out, image, window, stride, padding) in sizes {
        let conv = Conv { stride, padding };
        let extent = |axis: usize| (image[axis] + 2 * padding - window[axis]) / stride + 1;
        let x = normal([batch, channels, image[0], image[1]]);
        let w = normal([out, channels, window[0], window[1]]);
        let dy = normal([batch, out, extent(0), extent(1)]);
        cases.push(case(Op::Conv2d { conv, bias: false }, vec![x.clone(), w.clone()], SUMMED));
        cases.push(case(Op::Conv2d { conv, bias: true }, vec![x.clone(), w.clone(), normal([out])], SUMMED));
        cases.push(case(Op::Conv2dGradInput { conv, image }, vec![w, dy.clone()], SUMMED));
        cases.extend(both_ways(case(Op::Conv2dGradWeight { conv, window }, vec![x, dy], SUMMED)));
    }
    cases
}

/// Parameters of each case of `reference/ops.py`.
pub(super) fn golden() -> Vec<(&'static str, Op)> {
    let linear = |transposed, bias| Op::Linear { transposed, bias };
    let matmul = |transpose_a, transpose_b| Op::Matmul { transpose_a, transpose_b };
    let same = Conv { stride: 1, padding: 1 };
    let stride = Conv { stride: 2, padding: 0 };
    vec![
        ("linear.rows", linear(false, false)),
        ("linear.rows_bias", linear(false, true)),
        ("linear.transposed", linear(true, false)),
        ("linear.transposed_bias", linear(true, true)),
        ("linear_grad_input.rows", Op::LinearGradInput { transposed: false }),
        ("linear_grad_input.transposed", Op::LinearGradInput { transposed: true }),
        ("linear_grad_weight.rows", Op::LinearGradWeight { transposed: false }),
        ("linear_grad_weight.rows_adding", Op::LinearGradWeight { transposed: false }),
        ("linear_grad_weight.transposed", Op::LinearGradWeight { transposed: true }),
        ("linear_grad_weight.transposed_adding", Op::LinearGradWeight { transposed: true }),
        ("matmul.nn", matmul(false, false)),
        ("matmul.nt", matmul(false, true)),
        ("matmul.tn", matmul(true, false)),
        ("matmul.tt", matmul(true, true)),
        ("conv2d.same", Op::Conv2d { conv: same, bias: false }),
        ("conv2d.same_bias", Op::Conv2d { conv: same, bias: true }),
        ("conv2d.stride", Op::Conv2d { conv: stride, bias: false }),
        ("conv2d.stride_bias", Op::Conv2d { conv: stride, bias: true }),
        ("conv2d_grad_input.same", Op::Conv2dGradInput { conv: same, image: [6, 5] }),
        ("conv2d_grad_input.stride", Op::Conv2dGradInput { conv: stride, image: [6, 5] }),
        ("conv2d_grad_weight.same", Op::Conv2dGradWeight { conv: same, window: [3, 3] }),
        ("conv2d_grad_weight.stride", Op::Conv2dGradWeight { conv: stride, window: [2, 3] }),
    ]
}
