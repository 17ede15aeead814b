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
    /// Sequences are cut apart where a capacity counts each on its own.
    fn of(copies: usize, sequences: usize) -> Cut {
        let sequence = copies / sequences;
        let chunk = copies.div_ceil(CHUNKS).next_power_of_two().clamp(LEAST, MOST);
        let chunks = sequence.div_ceil(chunk);
        Cut { sequence, chunk, chunks, all: sequences * chunks }
    }
}

/// `(indices[…,k]) → (places, slots, ranges)`.
pub(super) fn sort(to: &mut Lowering, call: &Call, sorting: Sorting) -> Result<(), ExecError> {
    let (indices, [places, slots, ranges]) =
        (call.inputs[0].pointer(), [0, 1, 2].map(|output| call.outputs[output].pointer()));
    let shape = call.inputs[0].shape();
    let sequences = sorting.capacity.map_or(1, |_| sorting.sequences(shape));
    let cut = Cut::of(shape.elements(), sequences.max(1));
    let form = form(sorting, cut, [shape.elements(), call.outputs[1].count()]);
    let experts = sorting.experts;
    let [counts, left] = [(); 2].map(|()| to.value([cut.all, experts], DType::I32).pointer());
    let check = Arg::Check(Check::Expert { experts });
    let args = vec![indices.clone(), places.clone(), slots.clone(), counts.clone(), form.clone(), check];
    chunks(to, "sort_count", cut, experts, args);
    let args = vec![counts.clone(), left.clone(), ranges.clone(), i32(cut.all), form.clone()];
    to.launch("sort_ranges", 1, threads(experts, 1024), args);
    let args = vec![indices, counts, left, ranges, places, slots, form];
    chunks(to, "sort_place", cut, experts, args);
    Ok(())
}

/// `(indices[…,k], ranges[E,2]) → c[2,E]`.
pub(super) fn count(to: &mut Lowering, call: &Call) -> Result<(), ExecError> {
    let (indices, ranges) = (&call.inputs[0], &call.inputs[1]);
    let (cut, experts) = (Cut::of(indices.count(), 1), ranges.shape()[0]);
    let form = form(Sorting { experts, tile: 1, capacity: None }, cut, [indices.count(), 0]);
    let counts = to.value([cut.all, experts], DType::I32).pointer();
    let check = Arg::Check(Check::Expert { experts });
    chunks(to, "count_copies", cut, experts, vec![indices.pointer(), counts.clone(), form, check]);
    let args = vec![counts, ranges.pointer(), call.outputs[0].pointer(), i32(cut.all), i32(experts)];
    to.launch("finish_counts", 1, threads(experts, 1024), args);
    Ok(())
}

/// The struct `Sort` of the kernels.
fn form(sorting: Sorting, cut: Cut, [copies, rows]: [usize; 2]) -> Arg {
    let Sorting { experts, tile, capacity } = sorting;
    let most = capacity.unwrap_or(copies);
    let fields = [experts, tile, most, rows, copies, cut.sequence, cut.chunk, cut.chunks];
    Arg::Struct(fields.map(i32).into())
}

/// A launch with a block for each chunk, which it holds in shared memory, and a thread for each expert.
fn chunks(to: &mut Lowering, kernel: &str, cut: Cut, experts: usize, args: Vec<Arg>) {
    let shared = 4 * cut.chunk as u32;
    to.launch_grid(kernel, [cut.all as u32, 1, 1], [threads(experts, 256), 1], shared, args);
}

fn threads(experts: usize, most: u32) -> u32 {
    (experts.next_multiple_of(32) as u32).clamp(32, most)
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

/// The fourth input, if there is one.
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
