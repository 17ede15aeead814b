//! How much text may be in memory while it is tokenised.
//!
//! What a tokenizer holds besides ids (words, places, alignments) is a few hundred times the text it is given; that is
//! bounded by windows. Samples themselves lie in memory as text and as ids, and a conversation as its rendering too.

use super::windows::WINDOW;
use crate::memory;

/// Bytes that a tokenizer holds for each byte of text it is given at once: measured as 130 to 190 for prose and 350 where
/// every character is a word of its own, to which its ids and places come.
const PER_BYTE_ENCODED: u64 = 480;
/// Bytes for each byte of a sample: its text, up to one id per byte in a list that grows, renderings.
const PER_BYTE_HELD: u64 = 16;
/// Bytes of samples that are worth having at once, for each thread.
const ENOUGH: usize = 1 << 20;

/// Limits that keep a process inside its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// Threads that tokenise at once.
    pub(super) threads: usize,
    /// Bytes of samples after which a batch is full.
    pub(super) batch: usize,
    /// The most bytes of one sample.
    pub(super) record: usize,
    /// The most bytes of text that go through a tokenizer at once.
    pub(super) unbroken: usize,
}

impl Room {
    /// What a process that may hold `memory` bytes has left for `threads` threads.
    pub(super) fn now(memory: u64, threads: usize) -> Room {
        // Where the system does not say what is taken, nothing can be kept to either.
        let resident = memory::process().map_or(0, |process| process.resident);
        Room::of(memory.saturating_sub(resident), threads)
    }

    /// A quarter of the bytes is for windows, a half for the largest sample, and a quarter for those beside it.
    fn of(bytes: u64, threads: usize) -> Room {
        let whole = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let windows = whole(bytes / 4 / PER_BYTE_ENCODED);
        let threads = (windows / WINDOW).clamp(1, threads.max(1));
        let record = whole(bytes / 2 / PER_BYTE_HELD);
        Room { threads, batch: (record / 2).min(ENOUGH * threads), record, unbroken: windows / threads }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_room_means_fewer_threads_and_shorter_samples() {
        let ample = Room::of(1 << 40, 8);
        assert_eq!((ample.threads, ample.batch), (8, 8 << 20));
        let little = Room::of(32 << 20, 8);
        assert_eq!((little.threads, little.batch, little.record), (4, 512 << 10, 1 << 20));
        let held = PER_BYTE_HELD * (little.batch + little.record) as u64;
        let encoded = PER_BYTE_ENCODED * (little.threads * little.unbroken) as u64;
        assert!(held + encoded <= 32 << 20);
        assert_eq!(Room::of(0, 8), Room { threads: 1, batch: 0, record: 0, unbroken: 0 });
    }
}
