//! Rows of a table by id, and the table's gradient by sorted ids. Rows of another type than the table's are moved to scratch
//! and cast.

use plimsoll_exec::ExecError;

use super::elementwise::cast;
use super::launch::{Arg, Check};
use super::lowering::{Call, Lowering, i32, i64, suffix, unsupported};

/// Keys that one block sorts.
const SORT_TILE: usize = 1024;

pub(super) fn embedding(to: &mut Lowering, call: &Call) -> Result<(), ExecError> {
    let (table, ids, result) = (&call.inputs[0], &call.inputs[1], call.outputs[0]);
    let other_type = table.ty.dtype != result.ty.dtype;
    let y = if other_type { to.value(result.shape(), table.ty.dtype) } else { result };
    let (rows, row_bytes) = (table.shape()[0], table.shape().columns() * table.ty.dtype.bytes());
    let element = if row_bytes.is_multiple_of(16) { 16 } else { table.ty.dtype.bytes() };
    if !matches!(element, 2 | 4 | 16) {
        return Err(unsupported(call, &format!("has no CUDA kernel for {}", table.ty.dtype)));
    }
    let columns = row_bytes / element;
    let threads = (columns.next_multiple_of(32) as u32).clamp(32, 256);
    let check = Arg::Check(Check::Token { rows });
    let args = vec![table.pointer(), ids.pointer(), y.pointer(), i64(columns), i32(rows), check];
    to.launch(format!("embedding_{element}"), ids.count(), threads, args);
    if other_type {
        cast(to, &Call { op: call.op, inputs: &[y], outputs: &[result] })?;
    }
    Ok(())
}

pub(super) fn embedding_grad(to: &mut Lowering, call: &Call, rows: usize) -> Result<(), ExecError> {
    let (ids, dy, table) = (&call.inputs[0], &call.inputs[1], &call.outputs[0]);
    if !table.accumulate {
        to.zero(table);
    }
    let (count, columns) = (ids.count(), dy.shape().columns());
    let padded = count.next_multiple_of(SORT_TILE);
    let [mut sorted, mut other] = [to.take(8 * padded as u64), to.take(8 * padded as u64)];
    let check = Arg::Check(Check::Token { rows });
    let args = vec![ids.pointer(), Arg::Pointer(sorted), i64(count), i32(rows), check];
    to.launch("embedding_keys", padded / SORT_TILE, 512, args);
    let mut run = SORT_TILE;
    while run < padded {
        let args = vec![Arg::Pointer(sorted), Arg::Pointer(other), i64(padded), i64(run)];
        to.launch("merge_runs", padded / 256, 256, args);
        (sorted, other, run) = (other, sorted, 2 * run);
    }
    let args =
        vec![Arg::Pointer(sorted), dy.pointer(), table.pointer(), table.kind(), i64(count), i64(columns)];
    let kernel = format!("embedding_grad_{}", suffix(call, dy.ty.dtype)?);
    to.launch_grid(kernel, [count as u32, 1, 1], [32, 8], 0, args);
    Ok(())
}
