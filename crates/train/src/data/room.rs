//! How much text may be in memory while it is tokenised, and the budget that a longer text needs.
//!
//! Short samples are gathered in batches and encoded on all threads. A sample longer than a batch is encoded alone,
//! window by window, and its ids are written as they come: memory holds the text, the line or rendering it was made
//! from, and one window. The factor of each was measured: `benchmarks/long_texts_20261116.md`.
//!
//! Absent: the memory of parquet parsers and unusual chat templates. The program's guard bounds it.

use super::windows::{WINDOW, WINDOWS_PER_THREAD};
use crate::memory;

/// Bytes that a tokenizer holds for each byte of text encoded at once. Measured: 171 to 357 for byte pairs, 54 to 490
/// for BERT's words; the most when every character is a word of its own.
const PER_BYTE_ENCODED: u64 = 512;
/// Bytes for each byte of a run of letters that BERT's tokenizers turn into one unknown token: measured as 57.
const PER_BYTE_OF_WORD: u64 = 80;
/// Bytes for each byte of a batch: its text, up to one id per byte in a list that grows, renderings, and the library's
/// words.
const PER_BYTE_OF_BATCH: u64 = 16 + 32;
/// Bytes of samples to gather at once, for each thread; more brings no speed.
const ENOUGH: usize = 1 << 20;

/// Bytes for each byte of a line of JSON: the line and its text.
const PER_BYTE_OF_LINE: u64 = 2;
/// Bytes for each byte of a line with escapes: the parser unescapes a text into a buffer that grows by doubling.
const PER_BYTE_ESCAPED: u64 = 4;
/// Bytes for each byte of a conversation, after its line was freed. Measured as 4.9 for templates that print messages
/// unchanged; some templates take messages apart first.
const PER_BYTE_RENDERED: u64 = 8;
/// Bytes for each comma, colon and bracket of JSON. In a list that grows by doubling, a value takes 72 bytes and has
/// one such sign. An entry of an object takes 104 and its name, for two signs; a list of one value takes 432, also
/// for two.
const PER_VALUE: u64 = 224;
/// Bytes for each row that a text becomes: its entries in lists that are sorted.
const PER_ROW: u64 = 80;
/// Bytes for any long text: the writer's buffer, two windows, and the library's words of one thread.
const FOR_ANY: u64 = (1 << 20) + (2 * PER_BYTE_ENCODED + 32 * WINDOWS_PER_THREAD as u64) * WINDOW as u64;
/// Bytes by which another process with the same settings may be larger.
const SPARE: u64 = 2 << 20;

/// Limits that keep a process inside its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// Threads that tokenise at once.
    pub(super) threads: usize,
    /// Bytes of samples after which a batch is full, and the most bytes of a sample in a batch.
    pub(super) batch: usize,
    /// The most bytes of text in a batch that go through a tokenizer at once.
    pub(super) unbroken: usize,
    /// Bytes that the process may still take, and bytes that it holds.
    left: u64,
    taken: u64,
    seq_len: u64,
}

/// Facts about a long sample before it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extent {
    /// Bytes of text.
    pub(super) bytes: u64,
    pub(super) form: Form,
    /// Commas, colons and brackets of the sample's JSON.
    pub(super) values: u64,
}

/// How a sample is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Form {
    /// The sample is plain text.
    #[default]
    Text,
    /// In JSON, or in columns.
    Fields,
    /// In JSON with escapes.
    Escaped,
    /// A conversation, which is rendered.
    Conversation,
}

impl Extent {
    /// Text that is read as it is.
    pub(super) fn of_text(bytes: u64) -> Extent {
        Extent { bytes, form: Form::Text, values: 0 }
    }

    /// Bytes that the sample takes until it is encoded.
    fn held(&self) -> u64 {
        let (per_byte, per_value) = match self.form {
            Form::Text => (1, 0),
            Form::Fields => (PER_BYTE_OF_LINE, PER_VALUE),
            Form::Escaped => (PER_BYTE_ESCAPED, PER_VALUE),
            // The template holds a copy of the values.
            Form::Conversation => (PER_BYTE_RENDERED, 2 * PER_VALUE),
        };
        self.bytes.saturating_mul(per_byte).saturating_add(self.values.saturating_mul(per_value))
    }
}

impl Room {
    /// The room that is left in a process of at most `memory` bytes, for `threads` threads and rows of `seq_len` tokens.
    pub(super) fn now(memory: u64, threads: usize, seq_len: usize) -> Room {
        // Where the system does not report the process's memory, no budget can be kept.
        let taken = memory::process().map_or(0, |process| process.resident);
        Room::of(memory.saturating_sub(taken), taken, threads, seq_len)
    }

    /// A quarter of the bytes is for windows, and the rest for a batch, whose last sample may double its size.
    fn of(left: u64, taken: u64, threads: usize, seq_len: usize) -> Room {
        let whole = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let windows = whole(left / 4 / PER_BYTE_ENCODED);
        let threads = (windows / WINDOW).clamp(1, threads.max(1));
        let batch = whole(left / 4 * 3 / 2 / PER_BYTE_OF_BATCH).min(ENOUGH * threads);
        Room { threads, batch, unbroken: windows / threads, left, taken, seq_len: seq_len as u64 }
    }

    /// Whether there is room for a long sample, beside the text of a batch.
    pub(super) fn holds(&self, sample: &Extent) -> bool {
        self.needed(sample) <= self.left
    }

    /// The least budget that has room for a long sample: a figure that the user can type and that another process
    /// accepts.
    pub(super) fn least(&self, sample: &Extent) -> u64 {
        self.budget(self.needed(sample))
    }

    /// The most bytes that pass a tokenizer at once when a sample is encoded alone. With `words`, only a word without a
    /// space can be that long.
    pub(super) fn unbroken_alone(&self, sample: &Extent, words: bool) -> usize {
        let held = sample.held().saturating_add(FOR_ANY);
        usize::try_from((self.left / 4 * 3).saturating_sub(held) / per_byte_at_once(words))
            .unwrap_or(usize::MAX)
    }

    /// The least budget with which this many bytes of a sample may pass a tokenizer at once.
    pub(super) fn least_unbroken(&self, sample: &Extent, words: bool, bytes: u64) -> u64 {
        let window = (bytes + 1).saturating_mul(per_byte_at_once(words));
        // Other samples of the same batch take up to a quarter.
        let needed =
            window.saturating_add(sample.held()).saturating_add(FOR_ANY).div_ceil(3).saturating_mul(4);
        self.budget(needed.max(self.needed(sample)).saturating_add(16))
    }

    /// Bytes needed for a long sample, together with a batch before it that is not encoded yet.
    fn needed(&self, sample: &Extent) -> u64 {
        let rows = (sample.bytes / self.seq_len.max(1)).saturating_mul(PER_ROW);
        let needed = sample.held().max(rows).saturating_add(FOR_ANY);
        needed.saturating_add(needed / 32)
    }

    fn budget(&self, needed: u64) -> u64 {
        self.taken.saturating_add(needed).saturating_add(SPARE).div_ceil(1 << 20).saturating_mul(1 << 20)
    }
}

fn per_byte_at_once(words: bool) -> u64 {
    if words { PER_BYTE_OF_WORD } else { PER_BYTE_ENCODED }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_room_means_fewer_threads_and_smaller_batches() {
        let ample = Room::of(1 << 40, 0, 8, 16);
        assert_eq!((ample.threads, ample.batch), (8, 8 << 20));
        let little = Room::of(32 << 20, 0, 8, 16);
        assert_eq!((little.threads, little.batch), (4, 256 << 10));
        let held = 2 * PER_BYTE_OF_BATCH * little.batch as u64;
        let encoded = PER_BYTE_ENCODED * (little.threads * little.unbroken) as u64;
        assert!(held + encoded <= 32 << 20);
        let none = Room::of(0, 0, 8, 16);
        assert_eq!((none.threads, none.batch, none.unbroken), (1, 0, 0));
        assert!(!none.holds(&Extent::of_text(1)));
    }

    #[test]
    fn the_least_budget_that_is_named_is_accepted_by_a_process_that_holds_a_little_more() {
        let mib = 1 << 20;
        let texts = [1, 21 * mib, 3 << 30, u64::MAX / 1024];
        let forms = [Form::Text, Form::Fields, Form::Escaped, Form::Conversation];
        let samples =
            texts.into_iter().flat_map(|bytes| forms.map(|form| Extent { bytes, form, values: bytes / 900 }));
        for (sample, seq_len) in samples.flat_map(|sample| [(sample, 8), (sample, 2048)]) {
            let room = Room::of(5 * mib, 17 * mib, 4, seq_len);
            let again = |budget: u64| Room::of(budget - 18 * mib, 18 * mib, 4, seq_len);
            assert!(!room.holds(&sample) && again(room.least(&sample)).holds(&sample), "{sample:?}");
            for words in [false, true] {
                let least = room.least_unbroken(&sample, words, 100_000);
                assert!(again(least).unbroken_alone(&sample, words) >= 100_000, "{sample:?}");
            }
        }
    }
}
