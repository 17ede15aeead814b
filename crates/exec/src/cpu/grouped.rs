//! Products of each expert's rows with its own weight, and their two gradients.
//!
//! Every expert is one product of the usual kind over its rows, so rows of padding cost nothing. The place and number
//! of an expert's rows are data. Large products run one after the other, each shared by all threads; the rest are dealt
//! out, each thread with scratch of its own. An element is one chain of multiply-adds either way, so neither the choice
//! nor the number of threads changes a bit.
#![allow(unsafe_code, reason = "experts write rows of their own, at places that are known from data")]

use std::ops::Range;

use half::bf16;
use plimsoll_graph::{DType, Op, Type};
use plimsoll_plan::Workspace;

use super::element::Element;
use super::linear::kept_if;
use super::matmul::{self, Extents, Factors, Start};
use super::pack::View;
use super::rounded::{self, Begin};
use super::split::{self, Lent};
use super::{Call, pieces};
use crate::ExecError;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    Some(match call.op {
        Op::GroupedLinear | Op::GroupedLinearGradInput => rows(call),
        Op::GroupedLinearGradWeight => weights(call),
        _ => return None,
    })
}

/// The scratch that an op of this file needs. The most that it can use is that of one product per thread, for small
/// experts with an even load.
pub(super) fn workspace(op: &Op, inputs: &[Type], outputs: &[Type], threads: usize) -> Option<Workspace> {
    let experts = match op {
        Op::GroupedLinear | Op::GroupedLinearGradInput | Op::GroupedLinearGradWeight => inputs[2].shape[0],
        _ => return None,
    };
    let form = Form::of(op, inputs);
    let all = form.extents(inputs[form.rows_of].shape.rows());
    let one = rounded::workspace(all, outputs[0].dtype == DType::Bf16);
    let even = form.extents(inputs[form.rows_of].shape.rows().div_ceil(experts));
    let shares = if matmul::is_small(even) { threads.min(experts).max(1) } else { 1 };
    Some(Workspace { least: one.least, best: one.best * shares as u64 })
}

/// Which of the three products of a grouped linear layer.
#[derive(Clone, Copy)]
struct Form {
    kind: Kind,
    /// An input with a row for each copy.
    rows_of: usize,
    out: usize,
    input: usize,
}

#[derive(Clone, Copy)]
enum Kind {
    /// `y = x·wᵀ`.
    Forward,
    /// `dx = dy·w`.
    Input,
    /// `dw = dyᵀ·x`.
    Weight,
}

impl Form {
    fn of(op: &Op, inputs: &[Type]) -> Form {
        let (kind, rows_of, out, input) = match op {
            Op::GroupedLinear => (Kind::Forward, 0, inputs[1].shape[1], inputs[1].shape[2]),
            Op::GroupedLinearGradInput => (Kind::Input, 1, inputs[0].shape[1], inputs[0].shape[2]),
            _ => (Kind::Weight, 0, inputs[1].shape[1], inputs[0].shape[1]),
        };
        Form { kind, rows_of, out, input }
    }

    /// The product of an expert with `rows` rows.
    fn extents(self, rows: usize) -> Extents {
        let Form { out, input, .. } = self;
        match self.kind {
            Kind::Forward => Extents { m: rows, n: out, k: input },
            Kind::Input => Extents { m: rows, n: input, k: out },
            Kind::Weight => Extents { m: out, n: input, k: rows },
        }
    }

    /// The factors of one expert's product.
    fn factors<'a>(self, call: &'a Call, expert: usize, rows: &Range<usize>) -> Factors<'a> {
        let Form { out, input, .. } = self;
        let (first, extents) = (rows.start, self.extents(rows.len()));
        let weight = |index: usize| call.numbers(index).from(expert * out * input);
        let (a, b) = match self.kind {
            Kind::Forward => (
                View::of(call.numbers(0).from(first * input), rows.len(), input, input, 1),
                View::of(weight(1), out, input, input, 1),
            ),
            Kind::Input => (
                View::of(call.numbers(1).from(first * out), rows.len(), out, out, 1),
                View::of(weight(0), input, out, 1, input),
            ),
            Kind::Weight => (
                View::of(call.numbers(1).from(first * out), out, rows.len(), 1, out),
                View::of(call.numbers(0).from(first * input), input, rows.len(), 1, input),
            ),
        };
        Factors { extents, a, b }
    }
}

/// `(x, w, ranges) → y` and `(w, dy, ranges) → dx`.
fn rows(call: &Call) -> Result<(), ExecError> {
    match call.precision()? {
        DType::Bf16 => rows_as(call, |factors, c: &mut [bf16], scratch| {
            factors.rounded(Begin::Zero, c, scratch);
        }),
        _ => rows_as(call, |factors, c: &mut [f32], scratch| factors.product(Start::Zero, c, scratch)),
    }
}

fn rows_as<E: Element>(
    call: &Call,
    product: impl Fn(Factors, &mut [E], &mut [f32]) + Sync + Send,
) -> Result<(), ExecError> {
    let output = call.output_as::<E>(0);
    let width = call.outputs[0].ty.shape.columns();
    let ranges = Ranges::of(call, call.outputs[0].ty.shape.rows())?;
    let mut end = 0;
    for range in ranges.iter() {
        output[end * width..range.start * width].fill(E::ZERO);
        end = range.end;
    }
    output[end * width..].fill(E::ZERO);
    let output = Lent::new(output);
    each(call, ranges, !E::WHOLE, |factors, _, rows, scratch| {
        // SAFETY: ranges of different experts do not overlap, which `Ranges::of` has checked.
        let rows = unsafe { output.range(rows.start * width, rows.len() * width) };
        product(factors, rows, scratch);
    });
    Ok(())
}

/// `(x, dy, ranges) → dw`.
fn weights(call: &Call) -> Result<(), ExecError> {
    call.precision()?;
    let accumulate = call.outputs[0].accumulate;
    if call.outputs[0].ty.dtype == DType::Bf16 {
        let begin = if accumulate { Begin::Added } else { Begin::Zero };
        weights_as(call, |factors, c: &mut [bf16], scratch| factors.rounded(begin, c, scratch))
    } else {
        let start = kept_if(accumulate);
        weights_as(call, |factors, c: &mut [f32], scratch| factors.product(start, c, scratch))
    }
}

fn weights_as<E: Element>(
    call: &Call,
    product: impl Fn(Factors, &mut [E], &mut [f32]) + Sync + Send,
) -> Result<(), ExecError> {
    let ranges = Ranges::of(call, call.inputs[0].ty.shape.rows())?;
    let output = call.output_as::<E>(0);
    let len = call.outputs[0].ty.shape[1] * call.outputs[0].ty.shape[2];
    if !call.outputs[0].accumulate {
        // An expert without rows has a gradient of zeros.
        let idle =
            output.chunks_exact_mut(len.max(1)).zip(ranges.iter()).filter(|(_, range)| range.is_empty());
        idle.for_each(|(weight, _)| weight.fill(E::ZERO));
    }
    let output = Lent::new(output);
    each(call, ranges, !E::WHOLE, |factors, expert, _, scratch| {
        // SAFETY: each expert has a weight of its own.
        let weight = unsafe { output.range(expert * len, len) };
        product(factors, weight, scratch);
    });
    Ok(())
}

/// Runs `body` for every expert that has rows.
fn each(
    call: &Call,
    ranges: Ranges,
    rounded: bool,
    body: impl Fn(Factors, usize, &Range<usize>, &mut [f32]) + Sync + Send,
) {
    let types: [Type; 3] = std::array::from_fn(|index| call.inputs[index].ty);
    let form = Form::of(call.op, &types);
    let scratch = call.scratch();
    let share = scratch.len() / pieces::threads();
    let dealt = |range: &Range<usize>| {
        let extents = form.extents(range.len());
        matmul::is_small(extents) && rounded::workspace(extents, rounded).least as usize / 4 <= share
    };
    let one = |expert: usize, range: &Range<usize>, scratch: &mut [f32]| {
        body(form.factors(call, expert, range), expert, range, scratch);
    };
    for (expert, range) in ranges.iter().enumerate().filter(|(_, range)| !range.is_empty() && !dealt(range)) {
        one(expert, &range, scratch);
    }
    split::with_scratch(ranges.count(), scratch, share, |expert, scratch| {
        let range = ranges.range(expert);
        if !range.is_empty() && dealt(&range) {
            one(expert, &range, scratch);
        }
    });
}

/// The rows of each expert, in disjoint ranges in the order of experts.
#[derive(Clone, Copy)]
struct Ranges<'a>(&'a [i32]);

impl<'a> Ranges<'a> {
    /// The last input of a call whose operands have `rows` rows.
    ///
    /// # Errors
    ///
    /// When ranges overlap or end beyond the rows: no sort yields such.
    fn of(call: &'a Call, rows: usize) -> Result<Ranges<'a>, ExecError> {
        let ranges = Ranges(call.integers(2));
        let mut end = 0;
        for range in ranges.0.chunks_exact(2) {
            let wrong = || {
                ExecError::Data(format!("rows {range:?} of an expert overlap others or lie beyond {rows}"))
            };
            let [first, count] = [0, 1].map(|index| usize::try_from(range[index]));
            let (first, count) = (first.map_err(|_| wrong())?, count.map_err(|_| wrong())?);
            if first < end || first + count > rows {
                return Err(wrong());
            }
            end = first + count;
        }
        Ok(ranges)
    }

    fn count(self) -> usize {
        self.0.len() / 2
    }

    fn range(self, expert: usize) -> Range<usize> {
        let first = self.0[2 * expert] as usize;
        first..first + self.0[2 * expert + 1] as usize
    }

    fn iter(self) -> impl Iterator<Item = Range<usize>> + 'a {
        (0..self.count()).map(move |expert| self.range(expert))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::trial::{Trial, numbers};

    const RANGES: [i32; 6] = [0, 3, 4, 0, 8, 2];

    fn padded(rows: usize, width: usize) -> Vec<f32> {
        let mut x = numbers(rows * width, 3);
        for row in (0..rows).filter(|row| !(0..3).contains(row) && !(8..10).contains(row)) {
            x[row * width..(row + 1) * width].fill(f32::NAN);
        }
        x
    }

    #[test]
    fn rows_of_padding_are_not_read_and_come_out_as_zeros() {
        let (x, w) = (padded(12, 7), numbers(3 * 5 * 7, 4));
        let forward = Trial::new(Op::GroupedLinear).f32([12, 7], &x).f32([3, 5, 7], &w);
        let y = forward.i32([3, 2], &RANGES).run_everywhere().remove(0);
        assert!(y[3 * 5..8 * 5].iter().chain(&y[10 * 5..]).all(|y| y.to_bits() == 0));
        assert!(y[..15].iter().chain(&y[8 * 5..10 * 5]).all(|y| y.is_finite() && y.abs() > 0.0));
        let gradient = Trial::new(Op::GroupedLinearGradWeight).f32([12, 7], &x).f32([12, 5], &padded(12, 5));
        let dw = gradient.i32([3, 2], &RANGES).run_everywhere().remove(0);
        assert!(dw.iter().all(|dw| dw.is_finite()));
        assert!(dw[35..70].iter().all(|dw| dw.to_bits() == 0), "an expert without rows");
    }

    #[test]
    fn large_and_small_experts_have_the_bits_of_the_product_of_their_rows_alone() {
        let ranges = [0, 700, 700, 3, 703, 0, 703, 90];
        let (x, w) = (numbers(793 * 96, 1), numbers(4 * 80 * 96, 2));
        let grouped = Trial::new(Op::GroupedLinear).f32([793, 96], &x).f32([4, 80, 96], &w);
        let y = grouped.i32([4, 2], &ranges).run_everywhere().remove(0);
        for (expert, rows) in ranges.chunks_exact(2).enumerate().filter(|(_, rows)| rows[1] > 0) {
            let (first, count) = (rows[0] as usize, rows[1] as usize);
            let alone = Trial::new(Op::Linear { transposed: false, bias: false })
                .f32([count, 96], &x[first * 96..][..count * 96])
                .f32([80, 96], &w[expert * 80 * 96..][..80 * 96]);
            assert_eq!(alone.run_everywhere()[0], y[first * 80..][..count * 80], "expert {expert}");
        }
    }

    #[test]
    fn ranges_that_overlap_or_leave_their_rows_are_refused() {
        for ranges in [[0, 3, 2, 1], [0, 3, 3, 3], [0, -1, 3, 1]] {
            let trial = Trial::random(Op::GroupedLinear, &[&[5, 2], &[2, 4, 2]]).i32([2, 2], &ranges);
            assert!(matches!(trial.attempt(), Err(ExecError::Data(_))), "{ranges:?}");
        }
    }
}
