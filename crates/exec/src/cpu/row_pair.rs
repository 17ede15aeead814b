//! Two adjacent actions that work row by row, run as one pass over the rows.
//!
//! ```text
//! apart     sum   rows 0 … N     then    norm  rows 0 … N          a sum has left the cache before it is normed
//! as one    sum, norm  row 0     then    sum, norm  row 1   …
//! ```
//!
//! Pairs are a sum and the norm of it, and the gradient of a norm and the sum with the cotangent it is added to. Both
//! actions have the code of their single kernels, so each operand ends with the bits it has without pairs, those that
//! nobody reads any more included.
//!
//! Threads take different rows, so neither action may write bytes that the other one uses for other rows:
//! [`is_pair`] compares all operands. Plans know nothing of pairs. If a plan has put a result into bytes of an operand
//! that died before, shifted against it, the two actions run apart.
//!
//! Absent on purpose: longer chains, and a general form that calls any two kernels on a few rows at a time. The latter
//! was slower than two passes at every number of rows: each call begins its streams of memory anew
//! (docs/decisions/0058).
#![allow(
    clippy::inline_always,
    reason = "inner loops must be compiled with their callers' vector instructions"
)]
#![allow(unsafe_code, reason = "operands of one action may take the place of operands of the other")]

use std::ops::Range;

use half::bf16;
use plimsoll_graph::{DType, Op};

use super::element::Element;
use super::elementwise::Sum;
use super::lanes::{PIECE, Streams, Work, at_full_width};
use super::norms::{layer_norm_grad_row, layer_norm_row, rms_norm_grad_row, rms_norm_row};
use super::split::Shared;
use super::{Call, CpuOperand, pieces};

/// Elements of each operand that the first action leaves in the first-level cache for the second.
const BLOCK: usize = 1024;
/// The fewest columns of a pair. Statistics of narrower rows could be mistaken for rows.
const FEWEST_COLUMNS: usize = 16;

/// Whether two adjacent actions can run as one pass: the second reads the first one's result, row for row, and no bytes
/// of different rows meet.
pub(super) fn is_pair(first: &Call, second: &Call) -> bool {
    let known = matches!(
        (first.op, second.op),
        (Op::Add, Op::RmsNorm { .. } | Op::LayerNorm { .. })
            | (Op::RmsNormGradInput | Op::LayerNormGradInput, Op::Add)
    );
    let (Some(made), true) = (first.outputs.first(), known) else { return false };
    let wide = made.ty.shape.columns() >= FEWEST_COLUMNS;
    // The second operand of a sum may be a row that is repeated; both actions are over the same matrix.
    let whole = |call: &Call| call.op != &Op::Add || call.inputs.iter().all(|input| input.ty == made.ty);
    let reads = |input: &CpuOperand| input.pointer == made.pointer && input.ty == made.ty;
    wide && whole(first)
        && whole(second)
        && second.inputs.iter().any(reads)
        && first.precision().is_ok_and(|dtype| second.precision().is_ok_and(|other| dtype == other))
        && extents(first).all(|one| extents(second).all(|two| one.agrees(two)))
}

/// The bytes of an operand.
#[derive(Clone, Copy)]
struct Extent {
    bytes: (usize, usize),
    /// Bytes of each row; 0 for the weights of a norm, which have none.
    row: usize,
    written: bool,
}

impl Extent {
    /// Whether rows may be worked on in any order: nobody writes, or no byte is shared, or the bytes of a row belong to
    /// the same row of both.
    fn agrees(self, other: Extent) -> bool {
        let read = !self.written && !other.written;
        let apart = self.bytes.1 <= other.bytes.0 || other.bytes.1 <= self.bytes.0;
        let same = self.bytes == other.bytes && self.row == other.row && self.row > 0;
        read || apart || same
    }
}

/// The bytes of all operands of an action that may be one of a pair.
fn extents<'a>(call: &'a Call) -> impl Iterator<Item = Extent> {
    let rows = call.outputs[0].ty.shape.rows();
    let weights = match call.op {
        Op::Add => 0..0,
        Op::LayerNorm { .. } => 1..3,
        _ => 1..2,
    };
    let inputs = call.inputs.len();
    let operands = call.inputs.iter().chain(call.outputs).enumerate();
    operands.map(move |(index, operand): (usize, &'a CpuOperand)| {
        let (start, bytes) = (operand.pointer as usize, operand.ty.bytes());
        let row = if weights.contains(&index) { 0 } else { bytes / rows.max(1) };
        Extent { bytes: (start, start + bytes), row, written: index >= inputs }
    })
}

/// Runs two actions as one pass.
///
/// # Safety
///
/// [`is_pair`] holds, and for each action in turn the contract of [`run`](super::run).
pub(super) unsafe fn run_pair(first: &Call, second: &Call) {
    let shape = first.outputs[0].ty.shape;
    let at_once = PIECE.div_ceil(shape.columns());
    pieces::for_each(shape.rows().div_ceil(at_once), |piece| {
        let rows = piece * at_once..shape.rows().min((piece + 1) * at_once);
        // SAFETY: the caller's promise; pieces have different rows.
        unsafe { run_rows(first, second, rows) };
    });
}

/// Runs two actions on some of their rows.
///
/// # Safety
///
/// As for [`run_pair`]; no other thread works on these rows.
unsafe fn run_rows(first: &Call, second: &Call, rows: Range<usize>) {
    match first.outputs[0].ty.dtype {
        DType::Bf16 => run_as::<bf16>(first, second, rows),
        _ => run_as::<f32>(first, second, rows),
    }
}

fn run_as<E: Element>(first: &Call, second: &Call, rows: Range<usize>) {
    let at_once = BLOCK.div_ceil(first.outputs[0].ty.shape.columns());
    match second.op {
        Op::RmsNorm { epsilon } | Op::LayerNorm { epsilon } => {
            let (first, second) = (SumRow::<E>::of(first), NormRow::<E>::of(second, *epsilon));
            at_full_width(Pass { first, second, rows, at_once });
        }
        _ => {
            let (first, second) = (NormGradRow::<E>::of(first), SumRow::<E>::of(second));
            at_full_width(Pass { first, second, rows, at_once });
        }
    }
}

/// The work of an action on some rows.
trait RowWork {
    /// Does it. Implementations must be `#[inline(always)]`.
    fn rows(&self, rows: Range<usize>);
}

/// Two actions over some rows, `at_once` of them at a time.
struct Pass<A, B> {
    first: A,
    second: B,
    rows: Range<usize>,
    at_once: usize,
}

impl<A: RowWork, B: RowWork> Work for Pass<A, B> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for start in self.rows.clone().step_by(self.at_once) {
            let rows = start..self.rows.end.min(start + self.at_once);
            self.first.rows(rows.clone());
            self.second.rows(rows);
        }
    }
}

/// `a + b`, which may be written over either.
struct SumRow<E> {
    streams: Streams<2, 1, E>,
    width: usize,
}

impl<E: Element> SumRow<E> {
    fn of(call: &Call) -> SumRow<E> {
        SumRow { streams: Streams::of(call), width: call.outputs[0].ty.shape.columns() }
    }
}

impl<E: Element> RowWork for SumRow<E> {
    #[inline(always)]
    fn rows(&self, rows: Range<usize>) {
        // SAFETY: the rows lie inside all operands, which have one shape.
        unsafe { self.streams.from(rows.start * self.width).apply_here(&Sum, rows.len() * self.width) }
    }
}

/// Rows that other actions of the pass may write; lent one at a time.
struct Lines<E> {
    elements: Shared<E>,
    width: usize,
}

impl<E> Lines<E> {
    fn of(operand: &CpuOperand, rows: usize) -> Lines<E> {
        let elements = operand.ty.shape.elements();
        Lines { elements: Shared::at(operand.pointer.cast(), elements), width: elements / rows.max(1) }
    }

    /// One row.
    ///
    /// # Safety
    ///
    /// No row that is alive overlaps this one, and no other thread works on it.
    #[inline(always)]
    unsafe fn at<'a>(&self, row: usize) -> &'a mut [E] {
        // SAFETY: the caller's promise.
        unsafe { self.elements.part(row * self.width..(row + 1) * self.width) }
    }
}

/// A norm: a layer norm where there is a bias and a mean.
struct NormRow<'a, E> {
    x: Lines<E>,
    w: &'a [f32],
    centred: Option<(&'a [f32], Lines<f32>)>,
    epsilon: f32,
    y: Lines<E>,
    rstd: Lines<f32>,
}

impl<'a, E: Element> NormRow<'a, E> {
    fn of(call: &'a Call, epsilon: f32) -> NormRow<'a, E> {
        let rows = call.outputs[0].ty.shape.rows();
        let statistic = |index: usize| Lines::of(&call.outputs[index], rows);
        let centred = (call.outputs.len() > 2).then(|| (call.input(2), statistic(1)));
        let [x, y] = [&call.inputs[0], &call.outputs[0]].map(|operand| Lines::of(operand, rows));
        NormRow { x, w: call.input(1), centred, epsilon, y, rstd: statistic(call.outputs.len() - 1) }
    }
}

impl<E: Element> RowWork for NormRow<'_, E> {
    #[inline(always)]
    fn rows(&self, rows: Range<usize>) {
        for row in rows {
            // SAFETY: outputs of a norm overlap none of its operands, and the other action is not at work.
            unsafe {
                let (x, y) = (&*self.x.at(row), self.y.at(row));
                self.rstd.at(row)[0] = match &self.centred {
                    Some((bias, means)) => {
                        let [mean, rstd] = layer_norm_row(x, [self.w, bias], self.epsilon, y);
                        means.at(row)[0] = mean;
                        rstd
                    }
                    None => rms_norm_row(x, self.w, self.epsilon, y),
                };
            }
        }
    }
}

/// The gradient of a norm's input: of a layer norm where there are means.
struct NormGradRow<'a, E> {
    x: Lines<E>,
    w: &'a [f32],
    mean: Option<&'a [f32]>,
    rstd: &'a [f32],
    dy: Lines<E>,
    dx: Lines<E>,
}

impl<'a, E: Element> NormGradRow<'a, E> {
    fn of(call: &'a Call) -> NormGradRow<'a, E> {
        let rows = call.outputs[0].ty.shape.rows();
        let (mean, rstd) = match call.op {
            Op::LayerNormGradInput => (Some(call.input(2)), call.input(3)),
            _ => (None, call.input(2)),
        };
        let dy = &call.inputs[call.inputs.len() - 1];
        let [x, dy, dx] = [&call.inputs[0], dy, &call.outputs[0]].map(|operand| Lines::of(operand, rows));
        NormGradRow { x, w: call.input(1), mean, rstd, dy, dx }
    }
}

impl<E: Element> RowWork for NormGradRow<'_, E> {
    #[inline(always)]
    fn rows(&self, rows: Range<usize>) {
        for row in rows {
            // SAFETY: the gradient overlaps none of its operands, and the other action is not at work.
            let (x, dy, dx) = unsafe { (&*self.x.at(row), &*self.dy.at(row), self.dx.at(row)) };
            match self.mean {
                Some(mean) => layer_norm_grad_row(x, self.w, dy, [mean[row], self.rstd[row]], dx),
                None => rms_norm_grad_row(x, self.w, dy, self.rstd[row], dx),
            }
        }
    }
}

#[cfg(test)]
mod tests;
