//! Cases of elementwise ops, dropout and jitter.

use plimsoll_graph::op::Gelu;
use plimsoll_graph::{Op, Shape};

use super::building::{FUNCTION, ROUNDED, case, integers, named, normal};
use super::{Case, Fill};

pub(super) fn all() -> Vec<Case> {
    [elementwise(), dropout(), jitter()].concat()
}

fn elementwise() -> Vec<Case> {
    let mut cases = Vec::new();
    let pairs: [(Shape, Shape); 8] = [
        ([].into(), [].into()),
        ([1].into(), [1].into()),
        ([7, 13].into(), [7, 13].into()),
        ([129, 257].into(), [129, 257].into()),
        ([3, 5, 7].into(), [7].into()),
        ([3, 5, 7].into(), [5, 7].into()),
        ([65, 33].into(), [33].into()),
        ([3, 5].into(), [].into()),
    ];
    for (a, b) in pairs {
        cases.push(case(Op::Add, vec![normal(a), normal(b)], ROUNDED));
        cases.push(case(Op::Mul, vec![normal(a), normal(b)], ROUNDED));
    }
    let shapes: [Shape; 4] = [[1].into(), [7, 13].into(), [3, 5, 33].into(), [129, 257].into()];
    for shape in shapes {
        cases.push(case(Op::Scale { factor: -0.37 }, vec![normal(shape)], ROUNDED));
        for (op, inputs) in functions() {
            cases.push(case(op, vec![normal(shape); inputs], FUNCTION));
        }
    }
    // Where e^−x overflows f32, the functions must still be 0 or x.
    for (op, inputs) in functions() {
        let mut operands = vec![normal([4, 19]); inputs];
        operands[0].fill = Fill::Normal(60.0);
        cases.push(named(case(op, operands, FUNCTION), "large"));
    }
    cases
}

/// The nonlinear functions, each with its number of inputs of equal shape.
fn functions() -> [(Op, usize); 12] {
    [
        (Op::Silu, 1),
        (Op::SiluGrad, 2),
        (Op::Gelu(Gelu::Tanh), 1),
        (Op::Gelu(Gelu::Erf), 1),
        (Op::GeluGrad(Gelu::Tanh), 2),
        (Op::GeluGrad(Gelu::Erf), 2),
        (Op::Tanh, 1),
        (Op::TanhGrad, 2),
        (Op::Sigmoid, 1),
        (Op::SigmoidGrad, 2),
        (Op::Swiglu, 2),
        (Op::SwigluGrad, 3),
    ]
}

fn dropout() -> Vec<Case> {
    let dropout = |shape: Shape, p| {
        let op = Op::Dropout { p, stream: 0x0123_4567_89ab_cdef };
        case(op, vec![normal(shape), integers([4], Fill::Rng)], ROUNDED)
    };
    vec![
        dropout([].into(), 0.5),
        dropout([9].into(), 0.3),
        dropout([3, 7].into(), 0.1),
        dropout([2, 5, 33].into(), 0.5),
        dropout([130, 67].into(), 0.25),
    ]
}

fn jitter() -> Vec<Case> {
    let jitter = |shape: Shape, noise| {
        let op = Op::Jitter { noise, stream: 0x0123_4567_89ab_cdef };
        case(op, vec![normal(shape), integers([4], Fill::Rng)], ROUNDED)
    };
    vec![
        jitter([].into(), 0.5),
        jitter([3, 7].into(), 0.01),
        jitter([2, 5, 33].into(), 0.1),
        jitter([130, 67].into(), 0.9),
    ]
}

/// Parameters of each case of `reference/ops.py`.
pub(super) fn golden() -> Vec<(&'static str, Op)> {
    vec![
        ("add.same", Op::Add),
        ("add.row", Op::Add),
        ("mul.same", Op::Mul),
        ("mul.row", Op::Mul),
        ("scale.minus", Op::Scale { factor: -0.5 }),
        ("silu.plain", Op::Silu),
        ("silu_grad.plain", Op::SiluGrad),
        ("gelu.tanh", Op::Gelu(Gelu::Tanh)),
        ("gelu.erf", Op::Gelu(Gelu::Erf)),
        ("gelu_grad.tanh", Op::GeluGrad(Gelu::Tanh)),
        ("gelu_grad.erf", Op::GeluGrad(Gelu::Erf)),
        ("tanh.plain", Op::Tanh),
        ("tanh_grad.plain", Op::TanhGrad),
        ("sigmoid.plain", Op::Sigmoid),
        ("sigmoid_grad.plain", Op::SigmoidGrad),
        ("swiglu.plain", Op::Swiglu),
        ("swiglu_grad.plain", Op::SwigluGrad),
    ]
}
