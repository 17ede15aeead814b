//! Products of each expert's rows with its own weight, and their two gradients.
//!
//! The rows of an expert are data, so a launch has the blocks that any routing needs and each finds its rows on the GPU.

use plimsoll_exec::ExecError;
use plimsoll_graph::DType;

use super::launch::Arg;
use super::lowering::{Call, Lowering, Operand, i32, suffix, unsupported};

/// Rows of the result that a block makes.
const ROWS: usize = 128;
/// Neighbouring tiles of columns that are in flight together, so that they read their rows from the cache.
const GROUP: usize = 8;
/// The most blocks along the second and third axis of a grid.
const MOST_BLOCKS: usize = 65_535;
/// Stages of tiles in shared memory, and terms of a sum in one of them, as `tensor.cuh` has them.
const STAGES: usize = 4;
const TERMS: usize = 32;

/// Columns of the result that a block makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Columns {
    /// Columns in all.
    all: usize,
    /// Columns of a tile.
    tile: usize,
}

impl Columns {
    /// By tensor cores: wide tiles read less, narrow ones leave fewer columns empty.
    fn of_tensor_cores(all: usize) -> Columns {
        let tile = if all.is_multiple_of(256) || all > 1024 { 256 } else { 128 };
        Columns { all, tile }
    }

    fn plain(all: usize) -> Columns {
        Columns { all, tile: ROWS }
    }

    /// Tiles along x, and groups of them.
    fn grid(self) -> [usize; 2] {
        let tiles = self.all.div_ceil(self.tile);
        [tiles.min(GROUP), tiles.div_ceil(GROUP)]
    }

    /// Threads: a warp for each 64 × 64.
    fn threads(self) -> u32 {
        self.tile as u32
    }

    /// Bytes of all stages.
    fn shared(self) -> u32 {
        (STAGES * (ROWS + self.tile) * TERMS * 2) as u32
    }
}

/// `(x[R,in], w[E,out,in], ranges) → y[R,out]`.
pub(super) fn linear(to: &mut Lowering, call: &Call) -> Result<(), ExecError> {
    let [x, w] = [&call.inputs[0], &call.inputs[1]];
    rows(to, call, [x, w], false)
}

/// `(w[E,out,in], dy[R,out], ranges) → dx[R,in]`.
pub(super) fn linear_grad_input(to: &mut Lowering, call: &Call) -> Result<(), ExecError> {
    let [w, dy] = [&call.inputs[0], &call.inputs[1]];
    rows(to, call, [dy, w], true)
}

/// `c = a·w` for each expert's rows; `turned` says that the rows of `w` are summed over.
fn rows(to: &mut Lowering, call: &Call, [a, w]: [&Operand; 2], turned: bool) -> Result<(), ExecError> {
    let (ranges, c) = (&call.inputs[2], &call.outputs[0]);
    let (rows, experts) = (c.shape().rows(), ranges.shape()[0]);
    let (columns, terms) = (c.shape().columns(), a.shape().columns());
    let shape = Arg::Struct([experts, rows, columns, terms].map(i32).into());
    let blocks = rows.div_ceil(ROWS) + experts;
    let pointers = [a, w, ranges, c].map(Operand::pointer).to_vec();
    let half = a.ty.dtype == DType::Bf16 && w.ty.dtype == DType::Bf16;
    if half {
        let name = if turned { "grouped_linear_grad_input" } else { "grouped_linear" };
        let columns = Columns::of_tensor_cores(columns);
        let [along, groups] = columns.grid();
        let grid = grid(call, [along, blocks, groups])?;
        let args = [pointers, vec![shape]].concat();
        let kernel = format!("{name}_{}", columns.tile);
        to.launch_grid(kernel, grid, [columns.threads(), 1], columns.shared(), args);
    } else {
        let kernel = format!("grouped_plain_{}_{}", suffix(call, a.ty.dtype)?, suffix(call, w.ty.dtype)?);
        let [along, groups] = Columns::plain(columns).grid();
        let grid = grid(call, [along, blocks, groups])?;
        let args = [pointers, vec![Arg::I32(i32::from(turned)), shape]].concat();
        to.launch_grid(kernel, grid, [256, 1], 0, args);
    }
    Ok(())
}

/// `(x[R,in], dy[R,out], ranges) → dw[E,out,in]`.
pub(super) fn linear_grad_weight(to: &mut Lowering, call: &Call) -> Result<(), ExecError> {
    let ([x, dy, ranges], dw) = ([&call.inputs[0], &call.inputs[1], &call.inputs[2]], &call.outputs[0]);
    let (rows, experts) = (x.shape().rows(), ranges.shape()[0]);
    let (columns, out) = (x.shape().columns(), dy.shape().columns());
    let shape = Arg::Struct([experts, rows, columns, out].map(i32).into());
    let mut args = [dy, x, ranges, dw].map(Operand::pointer).to_vec();
    args.extend([dw.kind(), dw.adds(), shape]);
    let half = x.ty.dtype == DType::Bf16;
    suffix(call, x.ty.dtype)?;
    let columns = if half { Columns::of_tensor_cores(columns) } else { Columns::plain(columns) };
    let [along, groups] = columns.grid();
    let grid = grid(call, [along, out.div_ceil(ROWS), groups * experts])?;
    if half {
        let kernel = format!("grouped_linear_grad_weight_{}", columns.tile);
        to.launch_grid(kernel, grid, [columns.threads(), 1], columns.shared(), args);
    } else {
        to.launch_grid("grouped_plain_grad_weight", grid, [256, 1], 0, args);
    }
    Ok(())
}

fn grid(call: &Call, blocks: [usize; 3]) -> Result<[u32; 3], ExecError> {
    if blocks[1..].iter().any(|&blocks| blocks > MOST_BLOCKS) {
        let why = format!("has {} × {} blocks, more than a grid takes", blocks[1], blocks[2]);
        return Err(unsupported(call, &why));
    }
    Ok(blocks.map(|blocks| blocks as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_all_columns_and_fit_the_shared_memory_of_every_card() {
        for all in [1, 70, 128, 256, 768, 1000, 1408, 14_336, 53_248] {
            let columns = Columns::of_tensor_cores(all);
            let [along, groups] = columns.grid();
            assert!(along * groups * columns.tile >= all, "{columns:?}");
            assert!(columns.shared() <= 99 << 10, "sm_89 and sm_120 give a block 99 KiB");
        }
    }
}
