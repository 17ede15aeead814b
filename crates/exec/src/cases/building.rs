//! The pieces that cases are built from: tolerances with their reasons, inputs, and twins of a case.

use plimsoll_graph::{DType, Op, Shape, Type};

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
/// The ignored target of all cases.
pub(super) const IGNORE: i32 = -100;

/// A case named after its op, its parameters and the types it reads.
pub(super) fn case(op: Op, inputs: Vec<Input>, tolerance: Tolerance) -> Case {
    let types: Vec<String> = inputs.iter().map(|input| input.ty.to_string()).collect();
    let name = format!("{} {} {op:?}", op.name(), types.join(" "));
    Case { name, op, inputs, accumulate: false, tolerance, least_scale: 0.0 }
}

/// The case, and its twin that adds to what the outputs hold, which has magnitude 1 and may cancel.
pub(super) fn both_ways(case: Case) -> [Case; 2] {
    let name = format!("{} adding", case.name);
    let adding = Case { name, accumulate: true, least_scale: case.least_scale.max(1.0), ..case.clone() };
    [case, adding]
}

/// The case, judged relative to `magnitude` at least, because terms that large cancel in it.
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
