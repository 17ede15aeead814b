//! Norms over the last axis: a block for each row, and column sums for the gradients of their weights.

use plimsoll_exec::ExecError;
use plimsoll_graph::Op;

use super::launch::Arg;
use super::lowering::{Call, Lowering, Operand, i64, suffix, threads_for, unsupported};
use super::sums::{Total, chunks, column_tiles, finish};

/// Rows of a block in which each thread takes one.
const ROWS: usize = 128;
/// The most threads that share a row.
const MOST_THREADS: u32 = 512;

pub(super) fn layer_norm(to: &mut Lowering, call: &Call, epsilon: f32) -> Result<(), ExecError> {
    let (x, w, b) = (&call.inputs[0], &call.inputs[1], &call.inputs[2]);
    let outputs = call.outputs.iter().map(Operand::pointer);
    let mut args = vec![x.pointer(), w.pointer(), w.kind(), b.pointer(), b.kind()];
    args.extend(outputs.chain([i64(x.shape().columns()), Arg::F32(epsilon)]));
    per_row(to, call, "layer_norm", x, args)
}

pub(super) fn rms_norm(to: &mut Lowering, call: &Call, epsilon: f32) -> Result<(), ExecError> {
    let (x, w) = (&call.inputs[0], &call.inputs[1]);
    let outputs = call.outputs.iter().map(Operand::pointer);
    let mut args = vec![x.pointer(), w.pointer(), w.kind()];
    args.extend(outputs.chain([i64(x.shape().columns()), Arg::F32(epsilon)]));
    per_row(to, call, "rms_norm", x, args)
}

pub(super) fn grad_input(to: &mut Lowering, call: &Call) -> Result<(), ExecError> {
    let (x, w, dx) = (&call.inputs[0], &call.inputs[1], &call.outputs[0]);
    let [mean, rstd, dy] = statistics(call, &call.inputs[2..])?;
    let args =
        vec![x.pointer(), w.pointer(), w.kind(), mean, rstd, dy, dx.pointer(), i64(x.shape().columns())];
    per_row(to, call, "norm_grad_input", x, args)
}

pub(super) fn grad_weight(to: &mut Lowering, call: &Call) -> Result<(), ExecError> {
    let (x, dw) = (&call.inputs[0], &call.outputs[0]);
    let (rows, columns) = (x.shape().rows(), x.shape().columns());
    let [mean, rstd, dy] = statistics(call, &call.inputs[1..])?;
    let (count, chunk) = chunks(rows);
    let partial = to.take((4 * count * columns) as u64);
    let args = vec![x.pointer(), mean, rstd, dy, Arg::Pointer(partial), i64(rows), i64(columns), i64(chunk)];
    let kernel = format!("norm_grad_weight_{}", suffix(call, x.ty.dtype)?);
    let grid = [column_tiles(columns, x.ty.dtype) as u32, count as u32, 1];
    to.launch_grid(kernel, grid, [32, 8], 0, args);
    finish(to, partial, [1, count, columns], Total::of(dw));
    Ok(())
}

pub(super) fn inverse_norm(to: &mut Lowering, call: &Call, scale: f32) -> Result<(), ExecError> {
    let (out, rank) = (call.inputs[2].shape()[0], call.inputs[2].shape()[1]);
    let operands = call.inputs.iter().chain(call.outputs).map(Operand::pointer);
    let args = operands.chain([i64(out), i64(rank), Arg::F32(scale)]).collect();
    to.launch("inverse_norm", out.div_ceil(ROWS), ROWS as u32, args);
    Ok(())
}

/// `[mean, rstd, dy]` of a gradient's last inputs; only the layer norm has a mean.
fn statistics(call: &Call, rest: &[Operand]) -> Result<[Arg; 3], ExecError> {
    let centred = matches!(call.op, Op::LayerNormGradInput | Op::LayerNormGradWeight);
    match rest {
        [mean, rstd, dy] if centred => Ok([mean.pointer(), rstd.pointer(), dy.pointer()]),
        [rstd, dy] => Ok([Arg::Null, rstd.pointer(), dy.pointer()]),
        _ => Err(unsupported(call, "has other operands than its kernel")),
    }
}

fn per_row(
    to: &mut Lowering,
    call: &Call,
    kernel: &str,
    x: &Operand,
    args: Vec<Arg>,
) -> Result<(), ExecError> {
    let dtype = x.ty.dtype;
    let threads = threads_for(x.shape().columns(), dtype, MOST_THREADS);
    to.launch(format!("{kernel}_{}", suffix(call, dtype)?), x.shape().rows(), threads, args);
    Ok(())
}
