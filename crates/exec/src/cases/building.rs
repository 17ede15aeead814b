//! The pieces that cases are built from: tolerances with their reasons, inputs, and twins of a case.

use plimsoll_graph::op::Family;
use plimsoll_graph::{DType, Op, Shape, Type, infer};

use super::{Case, Fill, Input, Tolerance};

pub(super) const EXACT: Tolerance =
    Tolerance { relative: 0.0, reason: "numbers are moved or rounded once, as defined" };
pub(super) const ROUNDED: Tolerance =
    Tolerance { relative: 2.5e-7, reason: "one or two f32 operations, each within half of 2⁻²³" };
pub(super) const FUNCTION: Tolerance =
    Tolerance { relative: 2e-6, reason: "exponentials in f32, good to a few units in the last place" };
pub(super) const SUMMED: Tolerance = Tolerance {
    relative: 5e-6,
    reason: "f32 sums of a few hundred terms, whose roundings grow like a random walk",
};
pub(super) const DEEP: Tolerance =
    Tolerance { relative: 2e-5, reason: "exponentials of f32 sums, whose errors become relative errors" };
pub(super) const LONG: Tolerance = Tolerance {
    relative: 2e-5,
    reason: "f32 sums of tens of thousands of squares, whose roundings need not cancel",
};
pub(super) const FAR: Tolerance = Tolerance {
    relative: 5e-5,
    reason: "position · frequency rounded to f32: half of 2⁻²³ of an angle of up to 512 radians",
};
pub(super) const HALF: Tolerance = Tolerance {
    relative: 1.0 / 128.0,
    reason: "an f32 result rounded once to bf16: half of 2⁻⁷, and as much again where f32 differs near a tie",
};
pub(super) const HALF_INSIDE: Tolerance = Tolerance {
    relative: 1.0 / 32.0,
    reason: "values inside the op are rounded to bf16, or may be: a few roundings of half of 2⁻⁷ each",
};
/// The ignored target of all cases.
pub(super) const IGNORE: i32 = -100;

/// A case named after its op, its parameters and the types it reads.
pub(super) fn case(op: Op, inputs: Vec<Input>, tolerance: Tolerance) -> Case {
    let types: Vec<String> = inputs.iter().map(|input| input.ty.to_string()).collect();
    let name = format!("{} {} {op:?}", op.name(), types.join(" "));
    Case { name, op, inputs, accumulate: false, sums: None, tolerance, rounded: None, least_scale: 0.0 }
}

/// The case, and its twin that adds to its outputs, whose contents have magnitude 1 and may cancel.
pub(super) fn both_ways(case: Case) -> [Case; 2] {
    let name = format!("{} adding", case.name);
    let adding = Case { name, accumulate: true, least_scale: case.least_scale.max(1.0), ..case.clone() };
    [case, adding]
}

/// The case, judged relative to `magnitude` at least, because terms of that size cancel in it.
pub(super) fn cancelling(case: Case, magnitude: f64) -> Case {
    Case { least_scale: magnitude, ..case }
}

pub(super) fn named(case: Case, suffix: &str) -> Case {
    Case { name: format!("{} {suffix}", case.name), ..case }
}

pub(super) fn normal(shape: impl Into<Shape>) -> Input {
    floats(shape, Fill::Normal(1.0))
}

pub(super) fn floats(shape: impl Into<Shape>, fill: Fill) -> Input {
    Input { ty: Type::f32(shape), fill }
}

pub(super) fn integers(shape: impl Into<Shape>, fill: Fill) -> Input {
    Input { ty: Type::i32(shape), fill }
}

pub(super) fn scalar(number: f32) -> Input {
    floats([], Fill::Number(number))
}

/// Output `output` of the forward op, of type `ty`.
pub(super) fn stored(ty: Type, op: &Op, from: &[usize], output: usize) -> Input {
    Input { ty, fill: Fill::Forward { op: op.clone(), from: from.to_vec(), output } }
}

/// The case with its weights stored as bf16, if its op reads any so.
pub(super) fn with_half_weight(case: &Case) -> Option<Case> {
    let mut half = named(case.clone(), "half weight");
    let weights = half.inputs.iter_mut().enumerate().filter(|(input, _)| case.op.reads_half(*input));
    let stored = weights.map(|(_, weight)| weight.ty.dtype = DType::Bf16).count();
    (stored > 0).then_some(half)
}

/// The case with values between nodes in bf16, where they have a type of their own to choose: operands that are no weights,
/// statistics or scales, and results. Sums of gradients are f32.
pub(super) fn in_bf16(case: &Case) -> Option<Case> {
    if case.op.family() == Family::State || matches!(case.op, Op::Cast { .. }) {
        return None; // types are what these ops are about: they have cases of their own
    }
    let mut half = named(case.clone(), "in bf16");
    let either = matches!(case.op, Op::Embedding | Op::Subspace { .. });
    half.sums = Some(if either { DType::Bf16 } else { DType::F32 });
    (half.tolerance, half.rounded) = in_fewer_bits(case);
    let result = infer(&case.op, &types(case)).ok()?.first()?.shape;
    for (index, input) in half.inputs.iter_mut().enumerate() {
        // A linear layer also adds a value of its result's shape.
        let added = matches!(case.op, Op::Linear { .. }) && index == 2 && input.ty.shape == result;
        let between = !case.op.reads_half(index) && !case.op.reads_whole(index) || added && result.len() > 1;
        if input.ty.dtype == DType::F32 && between && !matches!(input.fill, Fill::Forward { .. }) {
            input.ty.dtype = DType::Bf16;
        }
    }
    // A value that the forward pass stored has the type it yields there.
    for index in 0..half.inputs.len() {
        if let Fill::Forward { op, from, output } = &half.inputs[index].fill {
            let read: Vec<Type> = from.iter().map(|&from| half.inputs[from].ty).collect();
            half.inputs[index].ty = *infer(op, &read).ok()?.get(*output)?;
        }
    }
    let moved = half.inputs.iter().any(|input| input.ty.dtype == DType::Bf16);
    (moved || half.sums == Some(DType::Bf16)).then_some(half)
}

/// The case with its gradient summed in bf16, if its op rounds such a sum itself.
pub(super) fn with_half_sums(case: &Case) -> Option<Case> {
    let half =
        Case { sums: Some(DType::Bf16), rounded: Some(HALF), ..named(case.clone(), "into a bf16 sum") };
    case.op.sums_in_half(0).then_some(half)
}

fn types(case: &Case) -> Vec<Type> {
    case.inputs.iter().map(|input| input.ty).collect()
}

/// How far the twin of a case may lie from the reference, in f32 results and in bf16 ones. Arithmetic is f32 as before,
/// so f32 results are judged as before. Products by `vdpbf16ps` always round to nearest even, as all others do, and
/// take numbers below 2⁻¹²⁶ as zeros; no tolerance is as small as that, since tolerances are relative to the largest
/// number.
fn in_fewer_bits(case: &Case) -> (Tolerance, Option<Tolerance>) {
    match case.op {
        Op::HeadLossGrad { .. } | Op::HeadLoss(_) | Op::Mlp(_) | Op::MlpGrad { .. } => (HALF_INSIDE, None),
        _ if case.tolerance.relative <= 0.0 => (case.tolerance, None), // moved, or rounded once as defined
        _ => (case.tolerance, Some(HALF)),
    }
}
