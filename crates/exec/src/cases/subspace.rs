//! Cases of parameters in a random subspace: with a single coordinate, with fewer coordinates than elements, and with more.

use plimsoll_graph::{DType, Op, Shape, Type};

use super::building::{LONG, ROUNDED, both_ways, case, normal};
use super::{Case, Fill, Input};

pub(super) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    let shapes: [(Shape, usize); 5] = [
        ([7, 113].into(), 10),
        ([129, 257].into(), 1000),
        ([5].into(), 64),
        ([3, 5, 33].into(), 1),
        ([300].into(), 300),
    ];
    for (shape, dimension) in shapes {
        cases.push(case(Op::Subspace { stream: 5 }, vec![normal(shape), normal([dimension])], ROUNDED));
        let half = Input { ty: Type { shape, dtype: DType::Bf16 }, fill: Fill::Normal(1.0) };
        let moved = case(Op::Subspace { stream: 6 }, vec![half, normal([dimension])], ROUNDED);
        cases.push(Case { name: format!("{} half weight", moved.name), ..moved });
        cases.extend(both_ways(case(Op::SubspaceGrad { stream: 5, dimension }, vec![normal(shape)], LONG)));
    }
    cases
}

/// Parameters of each case of `reference/ops.py`.
pub(super) fn golden() -> Vec<(&'static str, Op)> {
    let stream = 0x0123_4567_89ab_cdef;
    vec![
        ("subspace.plain", Op::Subspace { stream }),
        ("subspace_grad.plain", Op::SubspaceGrad { stream, dimension: 11 }),
    ]
}
