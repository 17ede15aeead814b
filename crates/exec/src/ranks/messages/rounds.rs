//! Exchanges in rounds of messages: in each round a rank sends at most one piece to every other rank and hears at most one.
//!
//! ```text
//! all-reduce, three ranks, shares a b c       first rounds: rank 1 sends pieces of a and c, hears b of ranks 0 and 2, and
//!                                             adds up b of ranks 0, 1, 2, in this order
//!                                             further rounds: rank 1 sends b, and hears a from rank 0 and c from rank 2
//! ```
//!
//! Which rank sends how much in which round follows from the operands, and these are compared: every message carries its
//! exchange in words.

use std::slice;

use super::super::queue::Queue;
use super::super::share::sum_in_order;
use super::super::{ExchangeKind, ExchangeOperands};
use super::talk::{PART, Talk, Waiting, head};
use super::wire::{HEAD_BYTES, Wire, body_bytes};

/// One exchange of a rank.
struct Rounds<'a, W> {
    talk: &'a mut Talk<W>,
    queue: &'a Queue,
    operands: ExchangeOperands,
    /// Bytes of an element, and elements of one message.
    bytes: usize,
    elements: usize,
    head: [u8; HEAD_BYTES],
    name: String,
    round: u64,
}

/// Where the facts of an exchange stand in the head of a message.
const NUMBER: usize = 8;
const ROUND: usize = 16;
const SHARE: usize = 24;
const WORD: usize = 32;
const NAME: usize = 40;

impl<W: Wire> Talk<W> {
    /// Takes part in one exchange.
    ///
    /// # Safety
    ///
    /// The bytes of the operands are touched by nobody else until this has returned.
    pub(super) unsafe fn exchange(
        &mut self,
        queue: &Queue,
        operands: ExchangeOperands,
    ) -> Result<(), String> {
        self.exchanges += 1;
        let (bytes, name) = (operands.dtype.bytes(), operands.described());
        let mut head = head(PART);
        head[NUMBER..ROUND].copy_from_slice(&self.exchanges.to_le_bytes());
        head[SHARE..WORD].copy_from_slice(&(operands.share as u64).to_le_bytes());
        head[WORD] = u8::from(operands.word);
        let length = name.len().min(HEAD_BYTES - NAME);
        head[NAME..NAME + length].copy_from_slice(&name.as_bytes()[..length]);
        let elements = body_bytes(self.wire.ranks()) / bytes.max(1);
        let mut rounds = Rounds { talk: self, queue, operands, bytes, elements, head, name, round: 0 };
        // SAFETY: as above; places are those of the table in `ExchangeOperands`.
        unsafe { rounds.run() }
    }
}

impl<W: Wire> Rounds<'_, W> {
    unsafe fn run(&mut self) -> Result<(), String> {
        let ExchangeOperands { kind, source, destination, share, .. } = self.operands;
        let (first, count) = self.share_of(self.talk.wire.rank());
        // SAFETY: shares lie inside the whole.
        unsafe {
            let own = destination.add(first * self.bytes);
            match kind {
                ExchangeKind::AllReduce => {
                    self.sum(own)?;
                    self.gather(own)
                }
                ExchangeKind::ReduceScatter => {
                    self.sum(destination)?;
                    destination.add(count * self.bytes).write_bytes(0, (share - count) * self.bytes);
                    Ok(())
                }
                ExchangeKind::AllGather => {
                    own.copy_from(source, count * self.bytes);
                    self.gather(source)
                }
                ExchangeKind::Broadcast { root } => self.broadcast(root),
            }
        }
    }

    /// The first element of a rank's share, and the length of the share. The last shares may be shorter than the others, or empty.
    fn share_of(&self, rank: usize) -> (usize, usize) {
        let ExchangeOperands { whole, share, .. } = self.operands;
        let first = (rank * share).min(whole);
        (first, share.min(whole - first))
    }

    /// The elements of a share in the round that begins at element `at` of it.
    fn piece_of(&self, rank: usize, at: usize) -> usize {
        self.share_of(rank).1.saturating_sub(at).min(self.elements)
    }

    /// Adds up this rank's share of all ranks, in their order.
    unsafe fn sum(&mut self, to: *mut u8) -> Result<(), String> {
        let own = self.talk.wire.rank();
        let (first, _) = self.share_of(own);
        for at in (0..self.operands.share).step_by(self.elements.max(1)) {
            for rank in self.talk.others() {
                let from = self.operands.source.wrapping_add((self.share_of(rank).0 + at) * self.bytes);
                // SAFETY: a piece of that rank's share in this rank's whole.
                unsafe { self.send(rank, from, self.piece_of(rank, at)) }?;
            }
            let count = self.piece_of(own, at);
            if count > 0 {
                for rank in self.talk.others() {
                    self.hear(rank, count, Waiting::Limited)?;
                }
                let (wire, source) = (&self.talk.wire, self.operands.source);
                let place = |rank: usize| {
                    if rank == own {
                        source.wrapping_add((first + at) * self.bytes)
                    } else {
                        wire.inbox(rank).as_ptr().wrapping_add(HEAD_BYTES)
                    }
                };
                let (dtype, ranks) = (self.operands.dtype, wire.ranks());
                // SAFETY: `start` has refused other types; each message has that many elements, aligned as the wire
                // promises; the share of this rank is sent to nobody in these rounds.
                unsafe { sum_in_order(dtype, ranks, place, count, to.add(at * self.bytes)) };
                self.talk.others().for_each(|rank| self.talk.taken(rank));
            }
            self.end_round()?;
        }
        Ok(())
    }

    /// Sends this rank's share, which lies at `own`, and places those of the others in the whole.
    unsafe fn gather(&mut self, own: *const u8) -> Result<(), String> {
        let rank = self.talk.wire.rank();
        for at in (0..self.operands.share).step_by(self.elements.max(1)) {
            let count = self.piece_of(rank, at);
            for other in self.talk.others() {
                // SAFETY: a piece of this rank's share.
                unsafe { self.send(other, own.wrapping_add(at * self.bytes), count) }?;
            }
            for other in self.talk.others() {
                let (count, first) = (self.piece_of(other, at), self.share_of(other).0 + at);
                // SAFETY: a piece of that rank's share of the whole.
                unsafe { self.take(other, first, count, Waiting::Limited) }?;
            }
            self.end_round()?;
        }
        Ok(())
    }

    /// Sends the whole of `root` to all others.
    unsafe fn broadcast(&mut self, root: usize) -> Result<(), String> {
        let ExchangeOperands { source, destination, whole, .. } = self.operands;
        if self.talk.wire.rank() == root {
            // SAFETY: both places have the whole, and may be one.
            unsafe { destination.copy_from(source, whole * self.bytes) };
        }
        for at in (0..whole).step_by(self.elements.max(1)) {
            let count = self.elements.min(whole - at);
            // The others wait for the first word of `root` as long as it lives: it may be evaluating or writing files.
            let waiting = if at == 0 { Waiting::Endless } else { Waiting::Limited };
            if self.talk.wire.rank() == root {
                for rank in self.talk.others() {
                    // SAFETY: a piece of the whole.
                    unsafe { self.send(rank, source.wrapping_add(at * self.bytes), count) }?;
                }
            } else {
                // SAFETY: the same piece.
                unsafe { self.take(root, at, count, waiting) }?;
            }
            self.end_round()?;
        }
        Ok(())
    }

    /// Sends elements to a rank, if there are any.
    unsafe fn send(&mut self, to: usize, from: *const u8, count: usize) -> Result<(), String> {
        if count == 0 {
            return Ok(());
        }
        self.head[ROUND..SHARE].copy_from_slice(&self.round.to_le_bytes());
        // SAFETY: the caller's elements; the wire copies them before this returns.
        let body = unsafe { slice::from_raw_parts(from, count * self.bytes) };
        self.talk.wire.send(to, &self.head, body)
    }

    /// Hears elements of a rank, if there are any, and places them in the whole from element `first` on.
    unsafe fn take(
        &mut self,
        rank: usize,
        first: usize,
        count: usize,
        waiting: Waiting,
    ) -> Result<(), String> {
        if count == 0 {
            return Ok(());
        }
        self.hear(rank, count, waiting)?;
        let body = &self.talk.wire.inbox(rank)[HEAD_BYTES..];
        // SAFETY: the message has that many elements, and they lie inside the whole.
        unsafe { self.operands.destination.add(first * self.bytes).copy_from(body.as_ptr(), body.len()) };
        self.talk.taken(rank);
        Ok(())
    }

    /// Waits for a message of this round with `count` elements; it stays in the inbox.
    fn hear(&mut self, rank: usize, count: usize, waiting: Waiting) -> Result<(), String> {
        self.talk.part_of(self.queue, rank, waiting, &self.name)?;
        self.head[ROUND..SHARE].copy_from_slice(&self.round.to_le_bytes());
        let message = self.talk.wire.inbox(rank);
        if message[..HEAD_BYTES] == self.head && message.len() == HEAD_BYTES + count * self.bytes {
            return Ok(());
        }
        let theirs = String::from_utf8_lossy(&message[NAME..HEAD_BYTES]);
        let theirs = theirs.trim_end_matches('\0');
        let own = self.talk.wire.rank();
        let mut both = [(rank, theirs), (own, self.name.as_str())];
        both.sort_unstable();
        let [(low, first), (high, second)] = both;
        Err(format!("rank {high} began {second} where rank {low} began {first}"))
    }

    /// Waits until the others have taken everything that was sent.
    fn end_round(&mut self) -> Result<(), String> {
        self.round += 1;
        self.talk.all_sent(self.queue, &self.name)
    }
}
