//! Sums over axes, and the column sums that the gradients of norm weights are.
//!
//! Columns are summed by strips: a piece owns some columns and walks all rows, so nothing has to be put
//! together afterwards. Every 32 rows the running sum is put aside, which keeps long columns exact.
#![allow(
    clippy::inline_always,
    reason = "inner loops must be compiled with their callers' vector instructions"
)]

use half::bf16;
use plimsoll_graph::{Axes, DType, MAX_RANK, Op, Shape, Type};
use plimsoll_plan::Workspace;

use super::element::Element;
use super::lanes::{PIECE, Work, at_full_width};
use super::simd::widest;
use super::{Call, reduce, split};
use crate::ExecError;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    Some(match call.op {
        Op::Sum { axes } => sum(call, *axes),
        _ => return None,
    })
}

/// The scratch that an op of this file needs.
pub(super) fn workspace(op: &Op, inputs: &[Type], _: &[Type], _: usize) -> Option<Workspace> {
    Some(match op {
        Op::Sum { .. } => sum_workspace(op, inputs),
        _ => return None,
    })
}

/// Columns a piece owns: eight cache lines of each row.
const STRIP: usize = 128;

/// Rows summed before the sum is put aside.
const ROWS: usize = 32;

/// The terms that a row adds to the sum of each column.
pub(super) trait ColumnTerms: Sync {
    /// Adds the terms of columns `start..` of `row` to `sums`. Implementations must be
    /// `#[inline(always)]`.
    fn add(&self, row: usize, start: usize, sums: &mut [f32]);
}

/// Whether sums of columns replace the numbers in their place or add to them.
#[derive(Clone, Copy)]
enum Before {
    /// The columns are replaced.
    Nothing,
    /// The columns hold addends, to which the sums are added in the end.
    Addend,
    /// The columns hold the sums of the rows before.
    Sums,
}

/// Sums `terms` over `rows` into `output`, one element per column.
pub(super) fn columns<S: Element>(rows: usize, terms: &impl ColumnTerms, output: &mut [S], accumulate: bool) {
    columns_after(if accumulate { Before::Addend } else { Before::Nothing }, rows, terms, output);
}

/// Continues the sums of the columns of a matrix with further rows. The bits are those of one call of [`columns`] if
/// every call but the last has a multiple of [`ROWS`] rows.
pub(super) fn further_columns(x: &[f32], sums: &mut [f32]) {
    let width = sums.len();
    columns_after(Before::Sums, x.len() / width.max(1), &Elements { x, width }, sums);
}

fn columns_after<S: Element>(before: Before, rows: usize, terms: &impl ColumnTerms, output: &mut [S]) {
    split::rows(output.len(), STRIP, [output], |range, [output]| {
        at_full_width(Strip { rows, terms, start: range.start, output, before });
    });
}

struct Strip<'a, T, S> {
    rows: usize,
    terms: &'a T,
    start: usize,
    output: &'a mut [S],
    before: Before,
}

impl<T: ColumnTerms, S: Element> Work for Strip<'_, T, S> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (mut totals, mut sums) = ([0.0f32; STRIP], [0.0f32; STRIP]);
        if matches!(self.before, Before::Sums) {
            for (total, output) in totals.iter_mut().zip(&*self.output) {
                *total = output.wide();
            }
        }
        for row in 0..self.rows {
            self.terms.add(row, self.start, &mut sums[..self.output.len()]);
            if row % ROWS == ROWS - 1 || row == self.rows - 1 {
                for (total, sum) in totals.iter_mut().zip(&mut sums) {
                    *total += std::mem::take(sum);
                }
            }
        }
        for (output, total) in self.output.iter_mut().zip(totals) {
            let added = matches!(self.before, Before::Addend);
            *output = S::rounded(if added { output.wide() + total } else { total });
        }
    }
}

/// Terms that are the elements of a matrix, unchanged.
struct Elements<'a, E> {
    x: &'a [E],
    width: usize,
}

impl<E: Element> ColumnTerms for Elements<'_, E> {
    #[inline(always)]
    fn add(&self, row: usize, start: usize, sums: &mut [f32]) {
        let x = &self.x[row * self.width + start..][..sums.len()];
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum += x.wide();
        }
    }
}

fn sum(call: &Call, axes: Axes) -> Result<(), ExecError> {
    match (call.precision()?, call.outputs[0].ty.dtype) {
        (DType::Bf16, DType::Bf16) => sum_as::<bf16, bf16>(call, axes),
        (DType::Bf16, _) => sum_as::<bf16, f32>(call, axes),
        (_, DType::Bf16) => sum_as::<f32, bf16>(call, axes),
        _ => sum_as::<f32, f32>(call, axes),
    }
    Ok(())
}

fn sum_as<E: Element, S: Element>(call: &Call, axes: Axes) {
    let (x, shape) = (call.elements::<E>(0), call.inputs[0].ty.shape);
    let (output, accumulate) = (call.output_as::<S>(0), call.outputs[0].accumulate);
    match three_parts(shape, axes) {
        Some([_, summed, 1]) => long_rows(x, summed, output, accumulate, call.scratch()),
        Some([_, summed, width]) => {
            for (x, output) in x.chunks_exact(summed * width).zip(output.chunks_exact_mut(width)) {
                columns(summed, &Elements { x, width }, output, accumulate);
            }
        }
        None => scattered(x, shape, axes, output, accumulate),
    }
}

fn sum_workspace(op: &Op, inputs: &[Type]) -> Workspace {
    let Op::Sum { axes } = op else { return Workspace::default() };
    match three_parts(inputs[0].shape, *axes) {
        Some([rows, summed, 1]) if summed > PIECE => {
            Workspace::exactly(4 * (rows * summed.div_ceil(PIECE)) as u64)
        }
        _ => Workspace::default(),
    }
}

/// `[before, summed, after]` when the axes summed over are neighbours, axes of extent 1 aside.
fn three_parts(shape: Shape, axes: Axes) -> Option<[usize; 3]> {
    let mut parts = [1, 1, 1];
    let mut part = 0;
    for (axis, &extent) in shape.iter().enumerate().filter(|(_, extent)| **extent != 1) {
        part = match (part, axes.contains(axis)) {
            (0, true) => 1,
            (1, false) => 2,
            (2, true) => return None,
            (same, _) => same,
        };
        parts[part] *= extent;
    }
    Some(parts)
}

/// Each row of `width` elements into one number. Rows longer than a piece are summed in parts.
fn long_rows<E: Element, S: Element>(
    x: &[E],
    width: usize,
    output: &mut [S],
    accumulate: bool,
    scratch: &mut [f32],
) {
    let rows = output.len();
    if width <= PIECE {
        let per_piece = PIECE / width.max(1);
        split::rows(rows, per_piece, [output], |range, [output]| {
            sum_rows(&x[range.start * width..range.end * width], width, output, accumulate);
        });
        return;
    }
    let parts = width.div_ceil(PIECE);
    let partial = &mut scratch[..rows * parts];
    split::rows(rows * parts, 1, [&mut *partial], |range, [partial]| {
        let (row, start) = (range.start / parts, range.start % parts * PIECE);
        let x = &x[row * width..(row + 1) * width];
        let part = &x[start..width.min(start + PIECE)];
        sum_rows(part, part.len(), partial, false);
    });
    for (output, partial) in output.iter_mut().zip(partial.chunks_exact(parts)) {
        let total = partial.iter().map(|&x| f64::from(x)).sum::<f64>() as f32;
        *output = S::rounded(if accumulate { output.wide() + total } else { total });
    }
}

widest! {
    fn sum_rows<E: Element, S: Element>(x: &[E], width: usize, output: &mut [S], accumulate: bool) {
        for (row, output) in output.iter_mut().enumerate() {
            let total = reduce::sum(&x[row * width..(row + 1) * width]);
            *output = S::rounded(if accumulate { output.wide() + total } else { total });
        }
    }
}

/// Any other choice of axes: for each result, the runs of neighbours that belong to it.
fn scattered<E: Element, S: Element>(x: &[E], shape: Shape, axes: Axes, output: &mut [S], accumulate: bool) {
    let trailing = (0..shape.len()).rev().take_while(|&axis| axes.contains(axis)).count();
    let outer = &shape[..shape.len() - trailing];
    let run: usize = shape[shape.len() - trailing..].iter().product();
    let walk = |inside: bool| {
        let mut walk = Walk::new();
        let mut stride = run;
        for axis in (0..outer.len()).rev() {
            if axes.contains(axis) == inside {
                walk.push(outer[axis], stride);
            }
            stride *= outer[axis];
        }
        walk
    };
    let (kept, summed) = (walk(false), walk(true));
    let per_piece = PIECE.div_ceil(summed.count * run);
    split::rows(output.len(), per_piece, [output], |range, [output]| {
        for (index, output) in range.zip(output) {
            let first = kept.offset(index);
            let runs = (0..summed.count).map(|index| first + summed.offset(index));
            let total = runs.map(|at| f64::from(reduce::sum(&x[at..at + run]))).sum::<f64>() as f32;
            *output = S::rounded(if accumulate { output.wide() + total } else { total });
        }
    });
}

/// Some axes of a value, innermost first, as extents and strides.
pub(super) struct Walk {
    axes: [(usize, usize); MAX_RANK],
    rank: usize,
    /// The number of combinations of indices along these axes.
    pub(super) count: usize,
}

impl Walk {
    /// No axes yet: one combination, at 0.
    pub(super) fn new() -> Walk {
        Walk { axes: [(1, 0); MAX_RANK], rank: 0, count: 1 }
    }

    /// Adds the next axis outwards.
    pub(super) fn push(&mut self, extent: usize, stride: usize) {
        self.axes[self.rank] = (extent, stride);
        self.rank += 1;
        self.count *= extent;
    }

    /// Where the `index`-th combination of indices lies.
    pub(super) fn offset(&self, mut index: usize) -> usize {
        let mut offset = 0;
        for &(extent, stride) in &self.axes[..self.rank] {
            offset += index % extent * stride;
            index /= extent;
        }
        offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::trial::{Trial, assert_near, numbers};

    /// The sum by definition, in f64.
    fn expected(x: &[f32], shape: Shape, axes: Axes) -> Vec<f64> {
        let kept = shape.without(axes);
        let mut sums = vec![0.0; kept.elements()];
        for (flat, &x) in x.iter().enumerate() {
            let (mut rest, mut into, mut stride) = (flat, 0, 1);
            for axis in (0..shape.len()).rev() {
                if !axes.contains(axis) {
                    into += rest % shape[axis] * stride;
                    stride *= shape[axis];
                }
                rest /= shape[axis];
            }
            sums[into] += f64::from(x);
        }
        sums
    }

    #[test]
    fn any_axes_can_be_summed_over_with_the_same_bits_on_two_threads() {
        let shapes: [(Shape, &[usize]); 9] = [
            ([301, 77].into(), &[0]),
            ([13, 5, 70].into(), &[0, 1]),
            ([3, 20_000].into(), &[1]),
            ([40_001].into(), &[0]),
            ([7, 33, 5].into(), &[1]),
            ([4, 3, 5, 9].into(), &[0, 2, 3]),
            ([4, 3, 5, 9].into(), &[1, 3]),
            ([4, 3, 5, 9].into(), &[0, 2]),
            ([6, 5].into(), &[]),
        ];
        for (shape, axes) in shapes {
            let axes = Axes::of(axes.iter().copied());
            let x = numbers(shape.elements(), 4);
            let trial = || Trial::new(Op::Sum { axes }).f32(shape, &x);
            let one = trial().run();
            assert_near(&one[0], &expected(&x, shape, axes), 3e-7);
            assert_eq!(one, trial().threads(2).run(), "{shape}");

            let begin = numbers(one[0].len(), 5);
            let both: Vec<f64> =
                expected(&x, shape, axes).iter().zip(&begin).map(|(a, &b)| a + f64::from(b)).collect();
            assert_near(&trial().onto(0, &begin).run()[0], &both, 3e-7);
        }
    }
}
