//! Cases of data movement and casts.

use plimsoll_graph::{Axes, DType, Op, Shape, Type};

use super::building::{EXACT, case, named, normal};
use super::{Case, Fill, Input};

pub(super) fn all() -> Vec<Case> {
    let narrow =
        movement().into_iter().flat_map(|case| [DType::Bf16, DType::U8].map(|to| stored_as(&case, to)));
    [movement(), narrow.collect(), casts()].concat()
}

/// The case with elements of another type, which are moved just the same.
fn stored_as(case: &Case, dtype: DType) -> Case {
    let fill = if dtype == DType::U8 { Fill::Below(256) } else { Fill::Normal(1.0) };
    let mut other = named(case.clone(), dtype.name());
    for input in &mut other.inputs {
        *input = Input { ty: Type { dtype, ..input.ty }, fill: fill.clone() };
    }
    other
}

fn movement() -> Vec<Case> {
    let exact = |op: Op, shape: Shape| case(op, vec![normal(shape)], EXACT);
    let transpose = |shape: Shape, permutation: &[usize]| {
        exact(Op::Transpose { permutation: permutation.to_vec() }, shape)
    };
    let slice = |shape: Shape, axis, start, len| exact(Op::Slice { axis, start, len }, shape);
    let pad = |shape: Shape, axis, start, len| exact(Op::Pad { axis, start, len }, shape);
    let concat = |shapes: &[Shape], axis| {
        case(Op::Concat { axis }, shapes.iter().map(|&shape| normal(shape)).collect(), EXACT)
    };
    let broadcast = |shape: Shape, axes: Axes| exact(Op::Broadcast { shape, axes }, shape.without(axes));
    vec![
        exact(Op::Reshape { shape: [15].into() }, [3, 5].into()),
        exact(Op::Reshape { shape: [2, 3, 1, 7].into() }, [6, 7].into()),
        transpose([5, 7].into(), &[1, 0]),
        transpose([65, 33].into(), &[1, 0]),
        transpose([1, 9].into(), &[1, 0]),
        transpose([2, 3, 5, 4].into(), &[0, 2, 1, 3]),
        transpose([2, 3, 4].into(), &[2, 0, 1]),
        transpose([1, 2, 2, 3, 2, 3].into(), &[0, 3, 1, 4, 2, 5]),
        transpose([6].into(), &[0]),
        slice([7].into(), 0, 2, 3),
        slice([5, 9].into(), 0, 4, 1),
        slice([5, 9].into(), 1, 0, 9),
        slice([3, 4, 33].into(), 2, 1, 17),
        slice([3, 8, 2].into(), 1, 5, 3),
        pad([3].into(), 0, 2, 7),
        pad([2, 5].into(), 1, 0, 6),
        pad([3, 2, 5].into(), 1, 3, 8),
        pad([2, 3].into(), 0, 0, 2),
        concat(&[[2, 3].into()], 0),
        concat(&[[2, 3].into(), [5, 3].into()], 0),
        concat(&[[3, 2].into(), [3, 7].into(), [3, 1].into()], 1),
        concat(&[[2, 3, 5].into(), [2, 1, 5].into()], 1),
        broadcast([3, 5].into(), Axes::of([0, 1])),
        broadcast([7, 13].into(), Axes::of([0])),
        broadcast([7, 13].into(), Axes::of([1])),
        broadcast([2, 3, 4, 5].into(), Axes::of([0, 2])),
        broadcast([2, 6, 33].into(), Axes::of([1])),
    ]
}

fn casts() -> Vec<Case> {
    let cast = |from: DType, to: DType, shape: Shape, fill: Fill| {
        let input = Input { ty: Type { shape, dtype: from }, fill };
        case(Op::Cast { to }, vec![input], EXACT)
    };
    let mut cases = Vec::new();
    for half in [DType::Bf16, DType::F16] {
        cases.push(cast(DType::F32, half, [3, 67].into(), Fill::Normal(1.0)));
        cases.push(cast(half, DType::F32, [3, 67].into(), Fill::Normal(1.0)));
        cases.push(named(cast(DType::F32, half, [18].into(), Fill::Edges), "edges, some overflow"));
    }
    cases.push(cast(DType::F32, DType::F32, [15].into(), Fill::Normal(1.0)));
    cases.push(cast(DType::I32, DType::F32, [2, 9].into(), Fill::Below(50_000)));
    cases
}

/// Parameters of each case of `reference/ops.py`.
pub(super) fn golden() -> Vec<(&'static str, Op)> {
    let broadcast = |shape: Shape, axis| Op::Broadcast { shape, axes: Axes::of([axis]) };
    vec![
        ("reshape.flat", Op::Reshape { shape: [6, 4].into() }),
        ("transpose.cycle", Op::Transpose { permutation: vec![2, 0, 1] }),
        ("transpose.heads", Op::Transpose { permutation: vec![0, 2, 1, 3] }),
        ("slice.middle", Op::Slice { axis: 1, start: 1, len: 2 }),
        ("slice.last", Op::Slice { axis: 2, start: 2, len: 2 }),
        ("pad.middle", Op::Pad { axis: 1, start: 2, len: 6 }),
        ("concat.middle", Op::Concat { axis: 1 }),
        ("broadcast.rows", broadcast([4, 3].into(), 0)),
        ("broadcast.columns", broadcast([3, 5].into(), 1)),
        ("cast.to_bf16", Op::Cast { to: DType::Bf16 }),
        ("cast.from_bf16", Op::Cast { to: DType::F32 }),
        ("cast.to_f16", Op::Cast { to: DType::F16 }),
        ("cast.from_f16", Op::Cast { to: DType::F32 }),
        ("cast.from_i32", Op::Cast { to: DType::F32 }),
    ]
}
