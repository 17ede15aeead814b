//! The language-model head and its loss, forward and backward at once, a chunk of rows at a time.
//!
//! ```text
//!   x (N, C)            logits (rows, V), in the workspace
//!  ┌───────┐  · wᵀ + b  ┌───────────────────────┐   row by row: loss, then logits become dlogits
//!  │▒▒▒▒▒▒▒│ ─────────▶ │▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│   dx = dlogits · w
//!  ├───────┤            └───────────────────────┘   dw += dlogitsᵀ · x
//!  │       │                                        db += sum of the rows of dlogits
//! ```
//!
//! A second product of few columns may be added to the logits, `x₂·w₂ᵀ`; then `dx₂ = dlogits · w₂` too.
//!
//! How many rows go at once depends on the workspace that was granted, and no bit depends on that: every sum
//! over rows (loss, `dw`, `db`) takes one row after the other, and a chunk continues where the last stopped.
//!
//! If values between nodes are bf16, dlogits are rounded to it in place, as if two ops passed them on, so that products
//! may multiply bf16 by bf16. Logits, their exponentials and sums are f32.

mod errors;

use plimsoll_graph::op::Head;
use plimsoll_graph::{DType, Op, Type};
use plimsoll_plan::Workspace;

use super::element;
use super::exp::exp;
use super::linear::kept_if;
use super::matmul::{self, Extents, Factors, Start, product};
use super::pack::{Numbers, View};
use super::rounded::{self, Begin};
use super::simd::widest;
use super::{Call, split};
use crate::ExecError;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    Some(match call.op {
        Op::HeadLoss(head) => head_loss(call, *head),
        Op::HeadLossGrad { head, weight, bias } => head_loss_grad(call, *head, *weight, *bias),
        Op::HeadErrors { head, answers } => errors::head_errors(call, *head, *answers),
        _ => return None,
    })
}

/// The scratch that an op of this file needs.
pub(super) fn workspace(op: &Op, inputs: &[Type], _: &[Type], _: usize) -> Option<Workspace> {
    Some(match op {
        Op::HeadLoss(head) | Op::HeadLossGrad { head, .. } | Op::HeadErrors { head, .. } => {
            head_workspace(*head, inputs)
        }
        _ => return None,
    })
}

/// Rows at once in the smallest workspace; the rows of a chunk are a multiple of this.
const FEWEST_ROWS: usize = 16;
/// Beyond this many rows, a larger chunk gains little: packing the weight once per chunk is then a few percent.
const MOST_ROWS: usize = 256;
/// Floats set aside to begin the logits at a cache line.
const LINE: usize = 16;
/// Logits that a thread takes at once, at least.
const WORTH_SHARING: usize = 8192;
/// Columns of the bias gradient that a thread takes at once.
const BIAS_COLUMNS: usize = 2048;

/// `(x, w, targets, scale[, b][, x₂, w₂]) → loss`.
fn head_loss(call: &Call, head: Head) -> Result<(), ExecError> {
    HeadCall::new(call, head)?.run(None);
    Ok(())
}

/// `(x, w, targets, scale[, b][, x₂, w₂]) → (loss, dx[, dx₂][, dw][, db])`.
fn head_loss_grad(call: &Call, head: Head, weight: bool, bias: bool) -> Result<(), ExecError> {
    let head_call = HeadCall::new(call, head)?;
    let accumulates = |output: usize| call.outputs[output].accumulate;
    let first = 2 + usize::from(head.second);
    let gradients = Gradients {
        dx: Rows::output(call, 1),
        second: head.second.then(|| Rows::output(call, 2)),
        dw: weight.then(|| Sum { into: call.output(first), kept: accumulates(first) }),
        db: bias.then(|| {
            let output = first + usize::from(weight);
            Sum { into: call.output(output), kept: accumulates(output) }
        }),
    };
    head_call.run(Some(gradients));
    Ok(())
}

/// Scratch of [`head_loss`] and [`head_loss_grad`].
fn head_workspace(head: Head, inputs: &[Type]) -> Workspace {
    let (n, v) = (inputs[0].shape[0], inputs[1].shape[0]);
    let second = if head.second { inputs[head.second_at()].shape[1] } else { 0 };
    let c = inputs[0].shape[1].max(second);
    let bytes = |rows: usize, product: u64| (4 * (rows.min(n) * (v + 1) + LINE)) as u64 + product;
    let product = product_workspace(c, v, inputs[0].dtype == DType::Bf16);
    Workspace { least: bytes(FEWEST_ROWS, product.least), best: bytes(MOST_ROWS, product.best) }
}

/// Scratch of the products of a chunk, which run one after the other; the widest has `c` columns. The gradient sent
/// back is rounded if values between nodes are bf16.
fn product_workspace(c: usize, v: usize, half: bool) -> Workspace {
    let rows = MOST_ROWS;
    let logits = matmul::workspace(Extents { m: rows, n: v, k: c });
    let dx = rounded::workspace(Extents { m: rows, n: c, k: v }, half);
    let dw = matmul::workspace(Extents { m: v, n: c, k: rows });
    let most = |of: fn(Workspace) -> u64| [logits, dx, dw].map(of).into_iter().max().unwrap_or(0);
    Workspace { least: most(|one| one.least), best: most(|one| one.best) }
}

/// Outputs of the backward pass.
struct Gradients<'a> {
    dx: Rows<'a>,
    second: Option<Rows<'a>>,
    dw: Option<Sum<'a>>,
    db: Option<Sum<'a>>,
}

/// Rows that are sent back, as values between nodes are stored.
enum Rows<'a> {
    F32(&'a mut [f32]),
    Bf16(&'a mut [half::bf16]),
}

impl<'a> Rows<'a> {
    fn output(call: &'a Call, index: usize) -> Rows<'a> {
        match call.outputs[index].ty.dtype {
            DType::Bf16 => Rows::Bf16(call.output_as(index)),
            _ => Rows::F32(call.output(index)),
        }
    }

    /// Writes a product to the rows from `first` on.
    fn store(&mut self, first: usize, factors: Factors, packing: &mut [f32]) {
        let Extents { m, n, .. } = factors.extents;
        match self {
            Rows::F32(rows) => factors.product(Start::Zero, &mut rows[first * n..][..m * n], packing),
            Rows::Bf16(rows) => factors.rounded(Begin::Zero, &mut rows[first * n..][..m * n], packing),
        }
    }
}

/// The rows that are worked on together, with their logits and one number for each row.
struct Chunk<'a> {
    /// The number of the first row.
    first: usize,
    logits: &'a mut [f32],
    losses: &'a [f32],
    packing: &'a mut [f32],
}

/// A sum over all rows, and whether it begins with the existing contents.
struct Sum<'a> {
    into: &'a mut [f32],
    kept: bool,
}

/// The operands of the second product.
#[derive(Clone, Copy)]
struct Second<'a> {
    /// (N, R)
    x: Numbers<'a>,
    /// (V, R)
    w: &'a [f32],
    columns: usize,
}

/// The checked operands of a call.
struct HeadCall<'a> {
    /// (N, C)
    x: Numbers<'a>,
    /// (V, C)
    w: Numbers<'a>,
    /// (N)
    targets: &'a [i32],
    bias: Option<&'a [f32]>,
    second: Option<Second<'a>>,
    scale: f32,
    ignore_index: i32,
    c: usize,
    v: usize,
    /// Whether values between nodes are bf16.
    half: bool,
    loss: &'a mut f32,
    scratch: &'a mut [f32],
}

impl<'a> HeadCall<'a> {
    fn new(call: &'a Call, head: Head) -> Result<HeadCall<'a>, ExecError> {
        let half = call.precision()? == DType::Bf16;
        let (c, v) = (call.inputs[0].ty.shape[1], call.inputs[1].ty.shape[0]);
        let targets = call.integers(2);
        let bad = |&&id: &&i32| id != head.ignore_index && usize::try_from(id).map_or(true, |id| id >= v);
        if let Some(id) = targets.iter().find(bad) {
            return Err(ExecError::Data(format!("target {id} is outside the vocabulary of {v}")));
        }
        Ok(HeadCall {
            x: call.numbers(0),
            w: call.numbers(1),
            targets,
            bias: head.bias.then(|| call.input(4)),
            second: head.second.then(|| {
                let at = head.second_at();
                Second { x: call.numbers(at), w: call.input(at + 1), columns: call.inputs[at].ty.shape[1] }
            }),
            scale: call.input(3)[0],
            ignore_index: head.ignore_index,
            c,
            v,
            half,
            loss: &mut call.output(0)[0],
            scratch: call.scratch(),
        })
    }

    /// Rows of a chunk in the scratch that was granted.
    fn chunk_rows(&self) -> usize {
        let widest = self.c.max(self.second.map_or(0, |second| second.columns));
        let reserved = product_workspace(widest, self.v, self.half).least as usize / 4 + LINE;
        let rows = self.scratch.len().saturating_sub(reserved) / (self.v + 1);
        let whole = rows / FEWEST_ROWS * FEWEST_ROWS;
        let most = MOST_ROWS.min(self.targets.len());
        let rows = if rows >= most { most } else { whole };
        assert!(rows > 0 || self.targets.is_empty(), "the workspace of a head is too small");
        rows.max(1)
    }

    fn run(mut self, mut gradients: Option<Gradients>) {
        let backward = gradients.is_some();
        let mut total = 0.0;
        self.chunk_by_chunk(
            |of, logits, target| of.loss_of_row(logits, target, backward),
            |of, Chunk { first, logits, losses, packing }| {
                total = losses.iter().fold(total, |sum, &loss| sum + f64::from(loss));
                if let Some(gradients) = &mut gradients {
                    of.backward(first, losses.len(), logits, gradients, packing);
                }
            },
        );
        *self.loss = (f64::from(self.scale) * total) as f32;
    }

    /// For one chunk of rows after the other: computes the logits, lets `of_row` turn those of each row into one number, and hands
    /// the chunk to `then`.
    fn chunk_by_chunk(
        &mut self,
        of_row: impl Fn(&Self, &mut [f32], i32) -> f32 + Sync,
        mut then: impl FnMut(&Self, Chunk),
    ) {
        let rows = self.chunk_rows();
        let scratch = std::mem::take(&mut self.scratch);
        let at = (scratch.len() - rows * (self.v + 1)) / LINE * LINE;
        let (packing, chunk) = scratch.split_at_mut(at);
        let (logits, losses) = chunk.split_at_mut(rows * self.v);
        for first in (0..self.targets.len()).step_by(rows) {
            let rows = rows.min(self.targets.len() - first);
            let (logits, losses) = (&mut logits[..rows * self.v], &mut losses[..rows]);
            self.logits(first, rows, logits, packing);
            self.each_row(first, logits, losses, &of_row);
            then(self, Chunk { first, logits, losses, packing: &mut *packing });
        }
    }

    /// `x·wᵀ + b` for the rows of a chunk.
    fn logits(&self, first: usize, rows: usize, logits: &mut [f32], packing: &mut [f32]) {
        let (c, v) = (self.c, self.v);
        let x = View::of(self.x.from(first * c), rows, c, c, 1);
        let w = View::of(self.w, v, c, c, 1);
        let start = self.bias.map_or(Start::Zero, Start::Bias);
        product(Extents { m: rows, n: v, k: c }, x, w, start, logits, packing);
        if let Some(Second { x, w, columns }) = self.second {
            let x = View::of(x.from(first * columns), rows, columns, columns, 1);
            let w = View::new(w, v, columns, columns, 1);
            product(Extents { m: rows, n: v, k: columns }, x, w, Start::Kept, logits, packing);
        }
    }

    /// The number of each row, which `of_row` finds in its logits.
    fn each_row(
        &self,
        first: usize,
        logits: &mut [f32],
        losses: &mut [f32],
        of_row: &(impl Fn(&Self, &mut [f32], i32) -> f32 + Sync),
    ) {
        let targets = &self.targets[first..];
        let rows = WORTH_SHARING.div_ceil(self.v);
        split::chunks([(logits, rows * self.v), (losses, rows)], |piece, [logits, losses]| {
            let targets = &targets[piece * rows..];
            for ((logits, loss), &target) in logits.chunks_exact_mut(self.v).zip(losses).zip(targets) {
                *loss = of_row(self, logits, target);
            }
        });
    }

    /// The loss of a row. With `backward`, its logits become dlogits.
    fn loss_of_row(&self, logits: &mut [f32], target: i32, backward: bool) -> f32 {
        if target == self.ignore_index {
            if backward {
                logits.fill(0.0);
            }
            return 0.0;
        }
        let target = target as usize;
        let largest = largest(logits);
        let chosen = logits[target];
        let sum = exponentials(logits, largest, backward);
        if backward {
            scale_all(logits, self.scale / sum);
            logits[target] = if chosen.is_finite() { logits[target] - self.scale } else { f32::NAN };
            if self.half {
                element::round_in_place(logits);
            }
        }
        sum.ln() + (largest - chosen)
    }

    fn backward(
        &self,
        first: usize,
        rows: usize,
        dlogits: &[f32],
        into: &mut Gradients,
        packing: &mut [f32],
    ) {
        let (c, v) = (self.c, self.v);
        let numbers = Numbers::in_scratch(dlogits, self.half);
        let (a, b) = (View::of(numbers, rows, v, v, 1), View::of(self.w, c, v, 1, c));
        into.dx.store(first, Factors { extents: Extents { m: rows, n: c, k: v }, a, b }, packing);
        if let (Some(dx), Some(Second { w, columns, .. })) = (&mut into.second, self.second) {
            let b = View::new(w, columns, v, 1, columns);
            dx.store(first, Factors { extents: Extents { m: rows, n: columns, k: v }, a, b }, packing);
        }
        if let Some(dw) = &mut into.dw {
            let along_rows = View::of(numbers, v, rows, 1, v);
            let x = View::of(self.x.from(first * c), c, rows, 1, c);
            let start = kept_if(dw.kept || first > 0);
            product(Extents { m: v, n: c, k: rows }, along_rows, x, start, dw.into, packing);
        }
        if let Some(db) = &mut into.db {
            let kept = db.kept || first > 0;
            split::chunks([(&mut *db.into, BIAS_COLUMNS)], |piece, [sums]| {
                add_rows(sums, &dlogits[piece * BIAS_COLUMNS..], v, kept);
            });
        }
    }
}

widest! {
    fn largest(row: &[f32]) -> f32 {
        let (groups, rest) = row.as_chunks::<16>();
        let mut most = [f32::NEG_INFINITY; 16];
        for group in groups {
            for (most, &x) in most.iter_mut().zip(group) {
                *most = if x > *most { x } else { *most };
            }
        }
        most.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, f32::max)
    }
}

widest! {
    /// `Σ exp(x − shift)`; the terms replace the row if `keep`. Sixteen sums side by side, joined in order.
    fn exponentials(row: &mut [f32], shift: f32, keep: bool) -> f32 {
        let (groups, rest) = row.as_chunks_mut::<16>();
        let mut sums = [0.0; 16];
        for group in groups {
            let mut terms = [0.0; 16];
            for lane in 0..16 {
                terms[lane] = exp(group[lane] - shift);
                sums[lane] += terms[lane];
            }
            if keep {
                *group = terms;
            }
        }
        let mut sum = sums.iter().sum();
        for x in rest {
            let term = exp(*x - shift);
            sum += term;
            if keep {
                *x = term;
            }
        }
        sum
    }
}

widest! {
    fn scale_all(row: &mut [f32], factor: f32) {
        for x in row {
            *x *= factor;
        }
    }
}

widest! {
    /// Adds rows, `stride` apart, to `sums`, one after the other.
    fn add_rows(sums: &mut [f32], rows: &[f32], stride: usize, kept: bool) {
        if !kept {
            sums.fill(0.0);
        }
        for row in rows.chunks(stride) {
            for (sum, x) in sums.iter_mut().zip(row) {
                *sum += x;
            }
        }
    }
}

#[cfg(test)]
mod tests;
