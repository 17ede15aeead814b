//! Parameters that move in a random subspace, and the gradient of their coordinates.

use plimsoll_exec::ExecError;

use super::elementwise::blocks;
use super::launch::Arg;
use super::lowering::{Call, Lowering, i64};
use super::sums::{Total, chunks, finish};

pub(super) fn subspace(to: &mut Lowering, call: &Call, stream: u64) -> Result<(), ExecError> {
    let ([w, v], result) = ([0, 1].map(|index| call.inputs[index]), call.outputs[0]);
    let mut args = vec![w.pointer(), w.kind(), v.pointer(), result.pointer(), result.kind()];
    args.extend([Arg::U64(stream), i64(v.count()), i64(w.count())]);
    to.launch("subspace", blocks(w.count(), 1), 256, args);
    Ok(())
}

pub(super) fn subspace_grad(
    to: &mut Lowering,
    call: &Call,
    stream: u64,
    dimension: usize,
) -> Result<(), ExecError> {
    let dw = call.inputs[0];
    let (pieces, chunk) = chunks(dw.count().div_ceil(dimension));
    let partial = to.take(4 * (pieces * dimension) as u64);
    let mut args = vec![dw.pointer(), dw.kind(), Arg::Pointer(partial), Arg::U64(stream)];
    args.extend([dimension, chunk, dw.count()].map(i64));
    let grid = [dimension.div_ceil(256) as u32, pieces as u32, 1];
    to.launch_grid("subspace_sums", grid, [256, 1], 0, args);
    finish(to, partial, [1, pieces, dimension], Total::of(&call.outputs[0]));
    Ok(())
}
