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
                ExchangeKind::Broadcast => self.copy(self.all[0].source, 0, own.whole),
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
        // SAFETY: the share lies inside the whole. A broadcast's source may be its own destination.
        unsafe { own.destination.add(first * bytes).copy_from(from, count * bytes) };
    }

    /// Adds up elements of all ranks in their order.
    unsafe fn sum(&self, first: usize, count: usize, to: *mut u8) {
        // SAFETY: `check` has refused other types; the elements lie inside each rank's whole.
        unsafe {
            match self.own().dtype {
                DType::Bf16 => self.sum_of(first, count, to, bf16::to_f32, bf16::from_f32),
                _ => self.sum_of(first, count, to, |x: f32| x, |x| x),
            }
        }
    }

    unsafe fn sum_of<T: Copy>(
        &self,
        first: usize,
        count: usize,
        to: *mut u8,
        wide: impl Fn(T) -> f32,
        narrow: impl Fn(f32) -> T,
    ) {
        let mut sums = [0.0f32; PIECE];
        for at in (0..count).step_by(PIECE) {
            let sums = &mut sums[..PIECE.min(count - at)];
            for (rank, operands) in self.all.iter().enumerate() {
                // SAFETY: the piece lies inside the whole at the source, whose elements nobody writes in this turn,
                // except for the share that this rank itself writes below.
                let piece = unsafe {
                    std::slice::from_raw_parts(operands.source.cast::<T>().add(first + at), sums.len())
                };
                let add = |(sum, &x): (&mut f32, &T)| *sum = if rank == 0 { wide(x) } else { *sum + wide(x) };
                sums.iter_mut().zip(piece).for_each(add);
            }
            for (offset, &sum) in sums.iter().enumerate() {
                // SAFETY: inside this rank's share of the destination; the slices above have ended.
                unsafe { to.cast::<T>().add(at + offset).write(narrow(sum)) };
            }
        }
    }
}
