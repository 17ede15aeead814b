//! A rank's own shard of a tensor that it holds whole: a copy of a range, with zeros past the end.
//!
//! ```text
//! x of 5 elements, shards of 2      rank 0: x₀ x₁      rank 1: x₂ x₃      rank 2: x₄ 0
//! ```
//!
//! The range depends on the rank, which the device learns when it joins others. So this is no kernel of the table of ops.
#![allow(unsafe_code, reason = "elements of any type are copied by address")]

use super::lanes::PIECE;
use super::{CpuOperand, pieces};

/// Copies the shard of rank `rank` of `whole` to `shard`.
///
/// # Safety
///
/// Both operands are valid, lie apart, and are touched by nothing else meanwhile.
pub(super) unsafe fn own_shard(whole: CpuOperand, shard: CpuOperand, rank: usize) {
    let (all, len) = (whole.ty.shape.elements(), shard.ty.shape.elements());
    let first = (rank * len).min(all);
    let (there, bytes) = (len.min(all - first), whole.ty.dtype.bytes());
    pieces::for_each(len.div_ceil(PIECE), |piece| {
        // Operands may be shared between threads; their bare addresses may not.
        let (whole, shard) = (&whole, &shard);
        let at = piece * PIECE;
        let end = len.min(at + PIECE);
        let copied = there.clamp(at, end) - at;
        // SAFETY: the elements lie inside both operands, and pieces do not overlap.
        unsafe {
            let to = shard.pointer.add(at * bytes);
            to.copy_from_nonoverlapping(whole.pointer.add((first + at.min(there)) * bytes), copied * bytes);
            to.add(copied * bytes).write_bytes(0, (end - at - copied) * bytes);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::Type;

    fn operand(numbers: &mut [f32]) -> CpuOperand {
        let ty = Type::f32([numbers.len()]);
        CpuOperand { pointer: numbers.as_mut_ptr().cast(), ty, accumulate: false }
    }

    #[test]
    fn shards_of_all_ranks_are_the_whole_with_zeros_past_the_end() {
        let len = 2 * PIECE + 100;
        let mut whole: Vec<f32> = (0..3 * len - 300).map(|i| i as f32 + 1.0).collect();
        let mut expected = whole.clone();
        expected.resize(4 * len, 0.0);
        for rank in 0..4 {
            let mut shard = vec![f32::NAN; len];
            // SAFETY: both are vectors of this function.
            unsafe { own_shard(operand(&mut whole), operand(&mut shard), rank) };
            assert_eq!(shard, expected[rank * len..(rank + 1) * len], "rank {rank}");
        }
    }
}
