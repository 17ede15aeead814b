//! One rank's work in an exchange: its share of the sum, and copies from other ranks.
//!
//! ```text
//! all-reduce, three ranks, shares a b c      first turn: rank 1 adds up b of ranks 0, 1, 2, in this order
//!                                            second turn: rank 1 copies a from rank 0 and c from rank 2
//! ```
//!
//! In a turn each rank writes bytes that no other rank reads, so the turns need no locks.

use half::bf16;
use plimsoll_graph::DType;

use super::{ExchangeKind, ExchangeOperands};
use crate::ExecError;

/// Elements that are added up at a time: sums of all ranks stay in the cache.
const PIECE: usize = 1024;

/// The operands of all ranks, and which of them are ours.
#[derive(Clone, Copy)]
pub(super) struct Turn<'a> {
    pub(super) all: &'a [ExchangeOperands],
    pub(super) rank: usize,
}

impl Turn<'_> {
    /// Refuses operands that cannot be summed.
    pub(super) fn check(operands: &ExchangeOperands) -> Result<(), ExecError> {
        let sums = matches!(operands.kind, ExchangeKind::AllReduce | ExchangeKind::ReduceScatter);
        if sums && !matches!(operands.dtype, DType::F32 | DType::Bf16) {
            let (name, dtype) = (operands.kind.name(), operands.dtype);
            return Err(ExecError::Unsupported(format!("{name} sums f32 and bf16, and not {dtype}")));
        }
        Ok(())
    }

    fn own(&self) -> &ExchangeOperands {
        &self.all[self.rank]
    }

    /// Elements of a rank's share that are there: the first and how many.
    fn share_of(&self, rank: usize) -> (usize, usize) {
        let ExchangeOperands { whole, share, .. } = *self.own();
        let first = (rank * share).min(whole);
        (first, share.min(whole - first))
    }

    /// The first turn.
    ///
    /// # Safety
    ///
    /// All ranks have begun this exchange and none has left; no other turn of it runs.
    pub(super) unsafe fn first(&self) {
        let own = self.own();
        let (first, count) = self.share_of(self.rank);
        // SAFETY: as above; places are those of the table in `ExchangeOperands`.
        unsafe {
            match own.kind {
                ExchangeKind::AllReduce => {
                    self.sum(first, count, own.destination.add(first * own.dtype.bytes()));
                }
                ExchangeKind::ReduceScatter => {
                    self.sum(first, count, own.destination);
                    let bytes = own.dtype.bytes();
                    own.destination.add(count * bytes).write_bytes(0, (own.share - count) * bytes);
                }
                ExchangeKind::AllGather => {
                    for rank in 0..self.all.len() {
                        let (first, count) = self.share_of(rank);
                        self.copy(self.all[rank].source, first, count);
                    }
                }
                ExchangeKind::Broadcast { root } => self.copy(self.all[root].source, 0, own.whole),
            }
        }
    }

    /// The second turn, which only an all-reduce has.
    ///
    /// # Safety
    ///
    /// As [`first`](Self::first); all ranks have ended the first turn.
    pub(super) unsafe fn second(&self) {
        for rank in (0..self.all.len()).filter(|&rank| rank != self.rank) {
            let (first, count) = self.share_of(rank);
            let from = self.all[rank].destination.cast_const();
            // SAFETY: each rank's own share at its destination is whole, and nobody writes it in this turn.
            unsafe { self.copy(from.add(first * self.own().dtype.bytes()), first, count) };
        }
    }

    /// Copies elements to their place in the whole at this rank's destination.
    unsafe fn copy(&self, from: *const u8, first: usize, count: usize) {
        let own = self.own();
        let bytes = own.dtype.bytes();
        // SAFETY: the share lies inside the whole.
        let to = unsafe { own.destination.add(first * bytes) };
        // Bytes that are in place already, such as those of a broadcast's root, are left alone: other ranks read them now.
        if !std::ptr::eq(from, to) {
            // SAFETY: as above; sources of other ranks lie in their memory, and the own one does not overlap this place.
            unsafe { to.copy_from_nonoverlapping(from, count * bytes) };
        }
    }

    /// Adds up elements of all ranks in their order.
    unsafe fn sum(&self, first: usize, count: usize, to: *mut u8) {
        let dtype = self.own().dtype;
        // SAFETY: the elements lie inside each rank's whole, and nobody writes them in this turn, except for the share that
        // this rank itself writes.
        unsafe {
            let source = |rank: usize| self.all[rank].source.add(first * dtype.bytes());
            sum_in_order(dtype, self.all.len(), source, count, to);
        }
    }
}

/// Adds up `count` elements of each rank, rank 0 first, in f32, and rounds the sums once. Every communicator sums by this
/// function, so all have the same bits.
///
/// # Safety
///
/// The type is one that [`Turn::check`] allows. The places of all ranks and `to` hold that many aligned elements, which
/// nobody else writes; `to` may be one of the places.
pub(super) unsafe fn sum_in_order(
    dtype: DType,
    ranks: usize,
    source: impl Fn(usize) -> *const u8,
    count: usize,
    to: *mut u8,
) {
    // SAFETY: as above.
    unsafe {
        match dtype {
            DType::Bf16 => {
                sum_of(ranks, |rank| source(rank).cast(), count, to, (bf16::to_f32, bf16::from_f32));
            }
            _ => sum_of(ranks, |rank| source(rank).cast(), count, to, (|x: f32| x, |x: f32| x)),
        }
    }
}

unsafe fn sum_of<T: Copy>(
    ranks: usize,
    source: impl Fn(usize) -> *const T,
    count: usize,
    to: *mut u8,
    (wide, narrow): (impl Fn(T) -> f32, impl Fn(f32) -> T),
) {
    let mut sums = [0.0f32; PIECE];
    for at in (0..count).step_by(PIECE) {
        let sums = &mut sums[..PIECE.min(count - at)];
        for rank in 0..ranks {
            // SAFETY: the piece lies inside the elements of that rank; if `to` is among them, it is written below.
            let piece = unsafe { std::slice::from_raw_parts(source(rank).add(at), sums.len()) };
            let add = |(sum, &x): (&mut f32, &T)| *sum = if rank == 0 { wide(x) } else { *sum + wide(x) };
            sums.iter_mut().zip(piece).for_each(add);
        }
        for (offset, &sum) in sums.iter().enumerate() {
            // SAFETY: inside the destination; the slices above have ended.
            unsafe { to.cast::<T>().add(at + offset).write(narrow(sum)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory that cannot be written: an attempt ends the process.
    static WORDS: [u8; 4] = [1, 2, 3, 4];

    #[test]
    fn a_rank_does_not_write_bytes_that_are_in_place_already() {
        let place = WORDS.as_ptr();
        let operands = |kind, destination: *const u8, source| ExchangeOperands {
            kind,
            dtype: DType::U8,
            source,
            destination: destination.cast_mut(),
            whole: 4,
            share: 4,
            word: true,
        };
        let mut other = [0; 4];
        for kind in [ExchangeKind::Broadcast { root: 0 }, ExchangeKind::AllGather] {
            let all = [operands(kind, place, place), operands(kind, other.as_mut_ptr(), other.as_ptr())];
            // SAFETY: both ranks have begun, and their turns run one after the other. The second gathers an empty share.
            unsafe { (0..2).for_each(|rank| Turn { all: &all, rank }.first()) };
            assert_eq!((WORDS, std::mem::take(&mut other)), ([1, 2, 3, 4], [1, 2, 3, 4]));
        }
    }
}
