//! Conformance cases: one set of inputs and one judge for all devices.
//!
//! A case is data: an op, how its inputs are filled, which outputs are added to, and how far from the
//! reference kernel a result may lie. Inputs are functions of the case's name, so every device and every
//! machine sees the same ones. `all` lists the cases in the order of `op.rs`.
//!
//! They are part of the library, not of its tests, so that a machine can be checked where it stands.

mod balance;
mod building;
mod elementwise;
mod experts;
mod fill;
mod losses;
mod movement;
mod network;
mod norms;
mod products;
mod quantised;
mod quick;
mod routing;
mod state;
mod subspace;
mod transformer;

use plimsoll_graph::{DType, Op, Type, infer};

use crate::reference::{self, Tensor};
use crate::{ExecError, random, rounding};
pub use fill::{Fill, Input};
pub use quick::few;

/// Every case, in the order of `op.rs`; then those of weights stored in fewer bits, of bf16 between nodes, and of gradients
/// summed in bf16.
pub fn all() -> Vec<Case> {
    let cases = [
        movement::all(),
        elementwise::all(),
        products::all(),
        norms::all(),
        transformer::all(),
        network::all(),
        routing::all(),
        experts::all(),
        balance::all(),
        quantised::all(),
        losses::all(),
        state::all(),
        subspace::all(),
    ]
    .concat();
    let halves: Vec<Case> = cases.iter().filter_map(building::with_half_weight).collect();
    let narrow: Vec<Case> = cases.iter().chain(&halves).filter_map(building::in_bf16).collect();
    let sums: Vec<Case> = cases.iter().chain(&narrow).filter_map(building::with_half_sums).collect();
    [cases, halves, narrow, sums].concat()
}

/// The cases of `reference/ops.py` by name, with the parameters of their ops.
pub fn golden() -> Vec<(&'static str, Op)> {
    [
        movement::golden(),
        elementwise::golden(),
        products::golden(),
        norms::golden(),
        transformer::golden(),
        network::golden(),
        routing::golden(),
        experts::golden(),
        balance::golden(),
        losses::golden(),
        state::golden(),
        subspace::golden(),
    ]
    .concat()
}

/// How far a result may lie from the reference, and why that far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Largest difference allowed, relative to the largest magnitude of the expected output; 0 asks for
    /// the same numbers.
    pub relative: f64,
    /// Where the difference comes from.
    pub reason: &'static str,
}

/// One op on given inputs.
#[derive(Clone, Debug)]
pub struct Case {
    /// Unique; begins with the name of the op.
    pub name: String,
    /// The op under test.
    pub op: Op,
    /// Its inputs.
    pub inputs: Vec<Input>,
    /// Whether every output that can be added to is.
    pub accumulate: bool,
    /// The type of outputs that an op [stores as either](Op::stores_either); that of its operands where none is given.
    pub sums: Option<DType>,
    /// How far a result may lie from the reference.
    pub tolerance: Tolerance,
    /// The same for results in bf16, where it differs.
    pub rounded: Option<Tolerance>,
    /// Magnitude of an output's terms, if they may cancel: a difference is judged relative to at least this. 0 if
    /// nothing cancels.
    pub least_scale: f64,
}

impl Case {
    /// The inputs.
    pub fn tensors(&self) -> Vec<Tensor> {
        fill::tensors(&self.inputs, random::name_hash(&self.name))
    }

    /// Which outputs are added to their old contents.
    pub fn accumulates(&self) -> Vec<bool> {
        let count = self.output_types().len();
        (0..count).map(|output| self.accumulate && self.op.can_accumulate(output)).collect()
    }

    /// Contents of the outputs before the op runs: random numbers, which an op that does not add must overwrite. Second
    /// moments and the scales of codes are never negative.
    pub fn outputs(&self) -> Vec<Tensor> {
        let types = self.output_types();
        let last = types.len().saturating_sub(1);
        let inputs: Vec<Input> = (types.into_iter().enumerate())
            .map(|(output, ty)| {
                let positive = output > 0 && (output == last || ty.shape != self.inputs[0].ty.shape);
                let fill = match ty.dtype {
                    DType::U8 => Fill::Below(256),
                    _ if self.op.updates() && positive => Fill::Squares(0.1),
                    _ => Fill::Normal(1.0),
                };
                Input { ty, fill }
            })
            .collect();
        fill::tensors(&inputs, random::name_hash(&self.name) ^ 1)
    }

    /// The reference's result.
    ///
    /// # Errors
    ///
    /// None for the cases of [`all`]; a case of one's own may not fit its op.
    pub fn expected(&self) -> Result<Vec<Tensor>, ExecError> {
        self.result(&self.tensors(), self.outputs())
    }

    /// The reference's result on given inputs, over given contents of the outputs.
    pub(crate) fn result(
        &self,
        inputs: &[Tensor],
        mut outputs: Vec<Tensor>,
    ) -> Result<Vec<Tensor>, ExecError> {
        reference::eval(&self.op, &inputs.iter().collect::<Vec<_>>(), &mut outputs, &self.accumulates())?;
        Ok(outputs)
    }

    /// Compares a device's result with the reference: the largest relative difference of any output, if it is within
    /// the tolerance.
    ///
    /// # Errors
    ///
    /// A sentence that names the element furthest off.
    pub fn judge(&self, actual: &[Tensor]) -> Result<f64, String> {
        let expected = self.expected().map_err(|error| format!("{}: {error}", self.name))?;
        self.compare(&expected, actual)
    }

    /// As [`judge`](Self::judge), with the reference's result in hand.
    pub(crate) fn compare(&self, expected: &[Tensor], actual: &[Tensor]) -> Result<f64, String> {
        if expected.len() != actual.len() {
            return Err(format!("{}: {} outputs, not {}", self.name, actual.len(), expected.len()));
        }
        let (expected, actual) = (joined(expected), joined(actual));
        let mut worst = 0.0f64;
        for (output, (expected, actual)) in expected.iter().zip(&actual).enumerate() {
            let narrow = self.op.updates() && matches!(expected.ty.dtype, DType::Bf16 | DType::U8);
            let difference = if narrow {
                compare_rounded(expected, actual)
            } else {
                let tolerance = self.rounded.filter(|_| expected.ty.dtype == DType::Bf16);
                compare(expected, actual, tolerance.unwrap_or(self.tolerance).relative, self.least_scale)
            };
            let difference = difference.map_err(|why| format!("{}: output {output}: {why}", self.name))?;
            worst = worst.max(difference);
        }
        Ok(worst)
    }

    /// The types of the outputs.
    pub fn output_types(&self) -> Vec<Type> {
        let types: Vec<Type> = self.inputs.iter().map(|input| input.ty).collect();
        let mut types = infer(&self.op, &types).unwrap_or_default();
        for (output, ty) in types.iter_mut().enumerate() {
            if let (Some(dtype), true) = (self.sums, self.op.stores_either(output)) {
                ty.dtype = dtype;
            }
        }
        types
    }
}

/// The share of elements that differ, for f32 results that were rounded to far fewer bits. If the last bit differs, a
/// result between two neighbours may round to the other one. One in a hundred may, by one step.
fn compare_rounded(expected: &Tensor, actual: &Tensor) -> Result<f64, String> {
    let step = if expected.ty.dtype == DType::U8 { 1.0 / 255.0 } else { 1.0 / 128.0 };
    compare(expected, actual, step, 0.0)?;
    let pairs: Vec<(f64, f64)> = expected.numbers().into_iter().zip(actual.numbers()).collect();
    let other = pairs.iter().filter(|(e, a)| e.total_cmp(a).is_ne()).count();
    let most = pairs.len() / 100;
    if other > most {
        return Err(format!(
            "{other} of {} elements are rounded to another number; {most} may be",
            pairs.len()
        ));
    }
    Ok(other as f64 / pairs.len() as f64)
}

/// The outputs in a form to be compared: the two halves of a split parameter become one f32, since either half alone
/// may differ by much when the number differs by its last bit.
fn joined(outputs: &[Tensor]) -> Vec<Tensor> {
    match outputs {
        [upper, lower, rest @ ..] if lower.ty.dtype == DType::I16 => {
            let halves = upper.numbers().into_iter().zip(lower.numbers());
            let join = |(upper, lower)| rounding::join(half::bf16::from_f64(upper), lower as i16);
            let whole = Tensor::f32(upper.ty.shape, halves.map(join).collect());
            [whole].into_iter().chain(rest.iter().cloned()).collect()
        }
        _ => outputs.to_vec(),
    }
}

/// The largest difference between two tensors, relative to the largest finite magnitude expected or to
/// `least_scale` if that is more. Infinite and undefined elements must match in kind.
///
/// # Errors
///
/// When the difference is more than `tolerance`, a sentence that names the element.
pub fn compare(expected: &Tensor, actual: &Tensor, tolerance: f64, least_scale: f64) -> Result<f64, String> {
    if expected.ty != actual.ty {
        return Err(format!("is {}, not {}", actual.ty, expected.ty));
    }
    let (expected, actual) = (expected.numbers(), actual.numbers());
    let largest = expected.iter().filter(|x| x.is_finite()).fold(least_scale, |max, x| max.max(x.abs()));
    let mut worst = 0.0f64;
    for (index, (e, a)) in expected.iter().zip(&actual).enumerate() {
        let same = e.total_cmp(a).is_eq() || e.is_nan() && a.is_nan() || e.abs() + a.abs() <= 0.0;
        let difference = if same { 0.0 } else { (e - a).abs() / largest };
        if difference.is_nan() || difference > tolerance {
            return Err(format!(
                "element {index} is {a:e} instead of {e:e}: off by {difference:.1e} of the largest, {largest:e}; \
                 {tolerance:.1e} is allowed"
            ));
        }
        worst = worst.max(difference);
    }
    Ok(worst)
}

#[cfg(test)]
#[path = "../../../graph/tests/support/op_names.rs"]
mod op_names;

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use plimsoll_graph::op::Family;

    use super::op_names::op_names;
    use super::*;

    #[test]
    fn every_op_has_cases_with_names_of_their_own() {
        let mut names = BTreeSet::new();
        for case in all() {
            assert!(case.name.starts_with(case.op.name()), "{}", case.name);
            assert!(names.insert(case.name.clone()), "{} twice", case.name);
        }
        for op in op_names() {
            let prefix = format!("{op} ");
            let count = names.iter().filter(|name| name.starts_with(&prefix)).count();
            assert!(count >= 2, "{op} has {count} cases");
        }
    }

    #[test]
    fn the_reference_passes_its_own_cases_with_finite_numbers() {
        for case in all() {
            let expected = case.expected().unwrap_or_else(|error| panic!("{}: {error}", case.name));
            assert_eq!(case.judge(&expected), Ok(0.0), "{}", case.name);
            let meant = case.name.contains("overflow");
            for output in &expected {
                assert!(meant || output.numbers().iter().all(|x| x.is_finite()), "{}", case.name);
            }
        }
    }

    #[test]
    fn whatever_can_add_is_asked_to_add_and_to_overwrite() {
        let (cases, ops) = (all(), op_names());
        for op in ops {
            let of_op: Vec<&Case> = cases.iter().filter(|case| case.op.name() == op).collect();
            let adds = |case: &Case| case.accumulates().contains(&true);
            let can = of_op.iter().any(|case| (0..3).any(|output| case.op.can_accumulate(output)));
            assert_eq!(of_op.iter().any(|case| adds(case)), can, "{op}");
            assert!(of_op.iter().any(|case| !adds(case)), "{op}");
        }
    }

    #[test]
    fn every_case_whose_values_have_a_type_to_choose_has_a_twin_in_bf16_with_a_reason() {
        let cases = all();
        let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        // Ops that are about types, and those whose operands are f32 under every precision.
        let types_matter = |case: &Case| {
            let whole = (0..case.inputs.len()).all(|input| case.op.reads_whole(input));
            case.op.family() == Family::State || case.op.name() == "cast" || whole
        };
        let is_twin = |case: &Case| case.name.ends_with("in bf16") || case.name.ends_with("bf16 sum");
        let floats = |case: &Case| case.inputs.iter().all(|input| input.ty.dtype != DType::U8);
        for case in cases.iter().filter(|case| !types_matter(case) && !is_twin(case) && floats(case)) {
            assert!(names.contains(format!("{} in bf16", case.name).as_str()), "{}", case.name);
        }
        for case in cases.iter().filter(|case| is_twin(case)) {
            let types = case.inputs.iter().map(|input| input.ty).chain(case.output_types());
            assert!(types.into_iter().any(|ty| ty.dtype == DType::Bf16), "{}", case.name);
            assert!(!case.rounded.unwrap_or(case.tolerance).reason.is_empty(), "{}", case.name);
        }
        let summed = cases.iter().filter(|case| case.name.ends_with("into a bf16 sum"));
        assert!(summed.clone().any(|case| case.accumulate) && summed.clone().any(|case| !case.accumulate));
    }

    /// An op whose stream stays would make equal layers look different, and each would be planned and timed on its own.
    #[test]
    fn an_op_without_its_stream_differs_in_the_stream_alone() {
        let mut drawing: BTreeMap<&str, bool> = BTreeMap::new();
        for Case { op, name, .. } in all() {
            let text = format!("{op:?}");
            let cleared = without_streams(&text);
            assert_eq!(format!("{:?}", op.without_stream()), cleared, "{name}");
            if text.contains("stream: ") {
                *drawing.entry(op.name()).or_default() |= text != cleared;
            }
        }
        assert!(drawing.len() > 10, "streams have another name now: {drawing:?}");
        assert!(
            drawing.values().all(|cleared| *cleared),
            "a case whose stream is 0 says nothing: {drawing:?}"
        );
    }

    /// The derived text of an op, with 0 for every stream.
    fn without_streams(text: &str) -> String {
        let mut parts = text.split("stream: ");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, rest| {
            text + "stream: 0" + rest.trim_start_matches(|digit: char| digit.is_ascii_digit())
        })
    }

    #[test]
    fn a_result_that_is_off_is_named() {
        let case = all().into_iter().find(|case| case.name.starts_with("softmax f32[5,33]")).unwrap();
        let mut actual = case.expected().unwrap();
        let mut numbers = actual[0].numbers();
        numbers[1] += 0.5;
        actual[0] = Tensor::from_numbers(actual[0].ty, &numbers);
        let why = case.judge(&actual).unwrap_err();
        assert!(why.contains("element 1 is"), "{why}");
        numbers[1] = f64::NAN;
        actual[0] = Tensor::from_numbers(actual[0].ty, &numbers);
        assert!(case.judge(&actual).is_err());
    }
}
