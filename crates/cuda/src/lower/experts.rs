//! Copies of tokens sorted by expert, moved to their rows, and summed back.

use plimsoll_exec::ExecError;
use plimsoll_graph::DType;
use plimsoll_graph::op::Sorting;

use super::launch::{Arg, Check};
use super::lowering::{Call, Lowering, Operand, i32, i64, suffix, threads_for};

/// About as many chunks of copies as a sort is cut into, and the bounds of a chunk.
const CHUNKS: usize = 256;
const LEAST: usize = 256;
const MOST: usize = 8192;

/// How the copies of a sort are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    /// Copies of a sequence.
    sequence: usize,
    /// Copies of a chunk.
    chunk: usize,
    /// Chunks of a sequence.
    chunks: usize,
    /// Chunks in all.
    all: usize,
}

impl Cut {
    /// If the capacity is counted per sequence, each sequence is cut into chunks of its own.
    fn of(copies: usize, sequences: usize) -> Cut {
        let sequence = copies / sequences;
        let chunk = copies.div_ceil(CHUNKS).next_power_of_two().clamp(LEAST, MOST);
        let chunks = sequence.div_ceil(chunk);
        Cut { sequence, chunk, chunks, all: sequences * chunks }
    }
}

/// `(indices[…,k]) → (places, slots, ranges)`.
pub(super) fn sort(to: &mut Lowering, call: &Call, sorting: Sorting) -> Result<(), ExecError> {
    let Sorting { experts, tile, capacity } = sorting;
    let (indices, [places, slots, ranges]) =
        (&call.inputs[0], [0, 1, 2].map(|output| call.outputs[output].pointer()));
    let sequences = capacity.map_or(1, |_| sorting.sequences(indices.shape()));
    let cut = Cut::of(indices.count(), sequences.max(1));
    let most = capacity.unwrap_or(indices.count());
    let rows = call.outputs[1].count();
    let form = Arg::Struct(
        [experts, tile, most, rows, indices.count(), cut.sequence, cut.chunk, cut.chunks].map(i32).into(),
    );
    let (counts, left) = (to.value([cut.all, experts], DType::I32), to.value([cut.all, experts], DType::I32));
    let threads = |most: u32| (experts.next_multiple_of(32) as u32).clamp(32, most);
    let (grid, shared) = ([cut.all as u32, 1, 1], 4 * cut.chunk as u32);
    let check = Arg::Check(Check::Expert { experts });
    let args = vec![indices.pointer(), places.clone(), slots.clone(), counts.pointer(), form.clone(), check];
    to.launch_grid("sort_count", grid, [threads(256), 1], shared, args);
    let args = vec![counts.pointer(), left.pointer(), ranges.clone(), i32(cut.all), form.clone()];
    to.launch("sort_ranges", 1, threads(1024), args);
    let args = vec![indices.pointer(), counts.pointer(), left.pointer(), ranges, places, slots, form];
    to.launch_grid("sort_place", grid, [threads(256), 1], shared, args);
    Ok(())
}

/// `(x[…,C], slots[R], places[…,k][, weights[…,k]]) → y[R,C]`.
pub(super) fn dispatch(to: &mut Lowering, call: &Call) -> Result<(), ExecError> {
    let (x, places) = (&call.inputs[0], &call.inputs[2]);
    let width = x.shape().columns();
    let args = vec![
        x.pointer(),
        call.inputs[1].pointer(),
        weights(call),
        call.outputs[0].pointer(),
        i64(width),
        i32(places.shape().columns()),
        i64(places.count()),
    ];
    let kernel = format!("dispatch_{}", suffix(call, x.ty.dtype)?);
    to.launch(kernel, call.outputs[0].shape().rows(), threads_for(width, x.ty.dtype, 256), args);
    Ok(())
}

/// `(h[R,C], slots[R], places[…,k][, weights[…,k]]) → y[…,C]`.
pub(super) fn combine(to: &mut Lowering, call: &Call) -> Result<(), ExecError> {
    let (h, places) = (&call.inputs[0], &call.inputs[2]);
    let width = h.shape().columns();
    let args = vec![
        h.pointer(),
        places.pointer(),
        weights(call),
        call.outputs[0].pointer(),
        i64(width),
        i32(places.shape().columns()),
        i64(h.shape().rows()),
    ];
    let kernel = format!("combine_{}", suffix(call, h.ty.dtype)?);
    to.launch(kernel, call.outputs[0].shape().rows(), threads_for(width, h.ty.dtype, 256), args);
    Ok(())
}

/// `(h[R,C], dy[…,C], places[…,k]) → dweights[…,k]`.
pub(super) fn combine_grad_weights(to: &mut Lowering, call: &Call) -> Result<(), ExecError> {
    let (h, places) = (&call.inputs[0], &call.inputs[2]);
    let operands = call.inputs.iter().chain(call.outputs).map(Operand::pointer);
    let sizes =
        [i64(h.shape().columns()), i32(places.shape().columns()), i64(places.count()), i64(h.shape().rows())];
    let kernel = format!("combine_grad_weights_{}", suffix(call, h.ty.dtype)?);
    to.launch(kernel, places.count().div_ceil(4), 128, operands.chain(sizes).collect());
    Ok(())
}

/// The fourth input, the weights, if there is one.
fn weights(call: &Call) -> Arg {
    call.inputs.get(3).map_or(Arg::Null, Operand::pointer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_every_copy_and_stay_inside_their_sequence() {
        for (copies, sequences) in [(1, 1), (300, 1), (600, 2), (524_288, 1), (1 << 24, 64)] {
            let cut = Cut::of(copies, sequences);
            assert_eq!(cut.sequence * sequences, copies);
            assert!(cut.chunk * cut.chunks >= cut.sequence && cut.chunk * (cut.chunks - 1) < cut.sequence);
            assert!(4 * cut.chunk <= 48 << 10, "{cut:?} has more than a block's shared memory");
        }
    }
}
