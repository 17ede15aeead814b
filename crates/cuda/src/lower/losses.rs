//! Softmax, cross-entropy, and the head whose logits exist a chunk of rows at a time.

use plimsoll_exec::ExecError;
use plimsoll_graph::op::Head;
use plimsoll_graph::{DType, Op};

use super::launch::{Arg, Check};
use super::lowering::{Call, Lowering, Operand, i64, suffix, threads_for};
use super::product::{Matrix, Plus, grad_weight, product};
use super::sums::{Total, sum_rows};

/// Rows of a chunk are a multiple of this, which keeps every chunk aligned and whole for the library's tiles.
const CHUNK_ROWS: usize = 128;

pub(super) fn softmax(to: &mut Lowering, call: &Call) -> Result<(), ExecError> {
    let x = &call.inputs[0];
    let columns = x.shape().columns();
    let operands = call.inputs.iter().chain(call.outputs).map(Operand::pointer);
    let args = operands.chain([i64(columns)]).collect();
    let kernel = format!(
        "{}_{}",
        if matches!(call.op, Op::Softmax) { "softmax" } else { "softmax_grad" },
        suffix(call, x.ty.dtype)?
    );
    to.launch(kernel, x.shape().rows(), threads_for(columns, x.ty.dtype, 512), args);
    Ok(())
}

pub(super) fn cross_entropy(to: &mut Lowering, call: &Call, ignore: i32) -> Result<(), ExecError> {
    let (targets, scale) = (call.inputs[1], call.inputs[2]);
    let logits = Matrix::of(&call.inputs[0]);
    let losses = to.value([logits.rows], DType::F32);
    let rows = Rows { logits, bias: None, targets, scale, ignore, first: 0 };
    rows.launch(to, call, Some(losses), None)?;
    sum_losses(to, losses, scale, call.outputs[0]);
    Ok(())
}

pub(super) fn cross_entropy_grad(to: &mut Lowering, call: &Call, ignore: i32) -> Result<(), ExecError> {
    let (targets, scale) = (call.inputs[1], call.inputs[2]);
    let logits = Matrix::of(&call.inputs[0]);
    let rows = Rows { logits, bias: None, targets, scale, ignore, first: 0 };
    rows.launch(to, call, None, Some(call.outputs[0].pointer()))
}

/// Rows of logits, and the operands of their losses.
struct Rows {
    logits: Matrix,
    bias: Option<Operand>,
    targets: Operand,
    scale: Operand,
    ignore: i32,
    /// Row of the targets that belongs to the first of the logits.
    first: usize,
}

impl Rows {
    fn launch(
        &self,
        to: &mut Lowering,
        call: &Call,
        losses: Option<Operand>,
        gradient: Option<Arg>,
    ) -> Result<(), ExecError> {
        let losses = losses.map_or(Arg::Null, |losses| losses.pointer());
        self.each(
            to,
            call,
            "cross_entropy",
            vec![self.scale.pointer(), losses, gradient.unwrap_or(Arg::Null)],
        )
    }

    /// Writes whether another word beats each target.
    fn mark(&self, to: &mut Lowering, call: &Call, marks: Operand) -> Result<(), ExecError> {
        self.each(to, call, "mark_errors", vec![marks.pointer()])
    }

    /// Launches a block for each row.
    fn each(&self, to: &mut Lowering, call: &Call, kernel: &str, results: Vec<Arg>) -> Result<(), ExecError> {
        let Matrix { place, dtype, rows, columns: words } = self.logits;
        let (bias, bias_kind) = match &self.bias {
            Some(bias) => (bias.pointer(), bias.kind()),
            None => (Arg::Null, Arg::I32(0)),
        };
        let logits = [Arg::Pointer(place), bias, bias_kind, self.targets.pointer()];
        let form = [i64(words), Arg::I32(self.ignore), Arg::Check(Check::Target { words }), i64(self.first)];
        let args = logits.into_iter().chain(results).chain(form).collect();
        let kernel = format!("{kernel}_{}", suffix(call, dtype)?);
        to.launch(kernel, rows, threads_for(words, dtype, 1024), args);
        Ok(())
    }
}

fn sum_losses(to: &mut Lowering, losses: Operand, scale: Operand, loss: Operand) {
    let count = losses.count();
    let args = vec![losses.pointer(), scale.pointer(), loss.pointer(), i64(count)];
    to.launch("sum_losses", 1, threads_for(count, DType::U8, 1024).max(256), args);
}

pub(super) fn head_loss(to: &mut Lowering, call: &Call, head: Head) -> Result<(), ExecError> {
    let losses = to.value([call.inputs[0].shape().rows()], DType::F32);
    chunks(to, call, head, |to, rows| rows.launch(to, call, Some(losses), None))?;
    sum_losses(to, losses, call.inputs[3], call.outputs[0]);
    Ok(())
}

/// Marks each row in which another word has a higher score than the target. Then adds up the marks, one for each row,
/// or one for each answer with a marked row.
pub(super) fn head_errors(
    to: &mut Lowering,
    call: &Call,
    head: Head,
    answers: Option<usize>,
) -> Result<(), ExecError> {
    let (targets, scale) = (call.inputs[2], call.inputs[3]);
    let marks = to.value([call.inputs[0].shape().rows()], DType::F32);
    chunks(to, call, head, |to, rows| rows.mark(to, call, marks))?;
    let count = marks.count();
    let mut args = vec![marks.pointer(), targets.pointer(), scale.pointer(), call.outputs[0].pointer()];
    args.extend([i64(count), i64(answers.unwrap_or(0)), Arg::I32(head.ignore_index)]);
    to.launch("sum_marks", 1, 256, args);
    Ok(())
}

pub(super) fn head_loss_grad(
    to: &mut Lowering,
    call: &Call,
    head: Head,
    weight: bool,
    bias: bool,
) -> Result<(), ExecError> {
    let (x, w) = (Matrix::of(&call.inputs[0]), Matrix::of(&call.inputs[1]));
    let dx = Matrix::of(&call.outputs[1]);
    let second = head.second.then(|| [&call.outputs[2], &call.inputs[head.second_at() + 1]].map(Matrix::of));
    let first_sum = 2 + usize::from(head.second);
    let dw = weight.then(|| &call.outputs[first_sum]);
    let db = bias.then(|| &call.outputs[first_sum + usize::from(weight)]);
    let losses = to.value([x.rows], DType::F32);
    let backward = |to: &mut Lowering, rows: &Rows| {
        let (dlogits, first) = (rows.logits, rows.first);
        // Each chunk's gradient replaces its logits.
        rows.launch(to, call, Some(losses), Some(Arg::Pointer(dlogits.place)))?;
        let (x, dx) = (x.rows_from(first, dlogits.rows), dx.rows_from(first, dlogits.rows));
        product(to, call, [(dlogits, false), (w, false)], dx, Plus::Nothing)?;
        if let Some([dx, w]) = second {
            let dx = dx.rows_from(first, dlogits.rows);
            product(to, call, [(dlogits, false), (w, false)], dx, Plus::Nothing)?;
        }
        if let Some(dw) = dw {
            let adds = dw.accumulate || first > 0;
            grad_weight(to, call, [x, dlogits], (Matrix::of(dw), adds), false)?;
        }
        if let Some(db) = db {
            let total = Total { adds: db.accumulate || first > 0, ..Total::of(db) };
            let extents = [dlogits.rows, dlogits.columns];
            sum_rows(to, call, (dlogits.place, dlogits.dtype), extents, total)?;
        }
        Ok(())
    };
    chunks(to, call, head, backward)?;
    sum_losses(to, losses, call.inputs[3], call.outputs[0]);
    Ok(())
}

/// Computes the logits of one chunk of rows after the other, and hands them over.
fn chunks(
    to: &mut Lowering,
    call: &Call,
    head: Head,
    then: impl Fn(&mut Lowering, &Rows) -> Result<(), ExecError>,
) -> Result<(), ExecError> {
    let (x, w) = (Matrix::of(&call.inputs[0]), Matrix::of(&call.inputs[1]));
    let (targets, scale) = (call.inputs[2], call.inputs[3]);
    let most = chunk_rows(to, &x, w.rows);
    let logits = Matrix::of(&to.value([most, w.rows], x.dtype));
    for first in (0..x.rows).step_by(most) {
        let logits = logits.rows_from(0, most.min(x.rows - first));
        let part = x.rows_from(first, logits.rows);
        product(to, call, [(part, false), (w, true)], logits, Plus::Nothing)?;
        if head.second {
            let [x, w] = [0, 1].map(|which| Matrix::of(&call.inputs[head.second_at() + which]));
            let part = x.rows_from(first, logits.rows);
            product(to, call, [(part, false), (w, true)], logits, Plus::Result)?;
        }
        let bias = head.bias.then(|| call.inputs[4]);
        then(to, &Rows { logits, bias, targets, scale, ignore: head.ignore_index, first })?;
    }
    Ok(())
}

/// Rows of a chunk. They depend only on shape and the device's limits, since gradients are summed chunk by chunk.
fn chunk_rows(to: &Lowering, x: &Matrix, words: usize) -> usize {
    let fitting = to.limits.head_bytes / (words * x.dtype.bytes()).max(1) as u64;
    let whole = fitting as usize / CHUNK_ROWS * CHUNK_ROWS;
    whole.max(to.limits.head_rows).min(x.rows).max(1)
}
