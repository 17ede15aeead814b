//! Where the token sequences come from: data sets, plain text byte by byte, or a synthetic source that needs no file.
//!
//! ```text
//! files ──▶ records ──▶ ids of samples ──▶ cache on disk ──▶ pieces ──▶ rows ──▶ batches ──▶ inputs
//!           records     sample,            tokenise,         pack       corpus   batches     feed
//!                       tokenizer,         cache
//!                       template
//! ```
//!
//! Bytes of text files are cut without regard to documents:
//!
//! ```text
//! stream       begin a b c end begin d e end      one id per byte
//!
//! seq_len 4    tokens            targets          doc_start
//! row 0        begin a b c       a b c end        0 0 0 0
//! row 1        end begin d e     begin d e end    0 1 1 1
//! ```
//!
//! `doc_start` keeps attention inside a document. The n-th sequence of an epoch is a function of (data,
//! seed, epoch, n): nothing is carried from one sequence to the next, so a run resumes at any step by
//! arithmetic. [`Batches`] groups sequences into global batches and counts the valid tokens of each
//! before any of it is consumed.
//!
//! Absent: downloads, background reading, and any copy of the files in memory.

mod batches;
mod cache;
mod corpus;
mod dataset;
mod error;
mod exact_json;
mod fault;
mod feed;
mod file_kinds;
mod find_files;
mod learned;
mod lines;
mod order;
mod pack;
mod parquet_rows;
mod record;
mod records;
mod room;
mod sample;
mod spec;
mod synthetic;
mod template;
mod text;
mod tokenise;
mod tokenizer;
mod windows;

pub use batches::{Batches, Group};
pub use corpus::{Corpus, Counts};
pub use dataset::Dataset;
pub use error::DataError;
pub use exact_json::parse as exact_json;
pub use feed::{Feed, Inputs};
pub(crate) use find_files::holds_samples;
pub(crate) use learned::shown;
pub use learned::{Shown, ShownPart};
pub use order::{Order, Permutation};
pub use spec::{DataSpec, Part, RowLayout, Task, Validation};
pub use synthetic::Synthetic;
pub use template::{ChatTemplate, FoundBy, Rendered};
pub use text::Text;
pub use tokenise::Progress;
pub use tokenizer::{Special, TextStream, Tokenizer};

/// The id that opens a document; ids below it are bytes.
pub const BEGIN: i32 = 256;
/// The id that closes a document.
pub const END: i32 = 257;
/// The id at positions past the end of the data.
pub const PAD: i32 = 258;
/// The smallest vocabulary that holds bytes and the three ids above.
pub const BYTE_VOCABULARY: usize = 259;
/// The target of a position that does not count in the loss.
pub const IGNORED: i32 = -100;

/// One sequence, in memory that is allocated once and filled again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// The ids the model sees.
    pub tokens: Vec<i32>,
    /// The id each position should predict, or [`IGNORED`].
    pub targets: Vec<i32>,
    /// For each position, the first position in the row that belongs to the same document.
    pub doc_start: Vec<i32>,
}

impl Sequence {
    /// Room for `positions` positions: `seq_len` for one sequence, rows × `seq_len` for a micro-batch.
    pub fn with_positions(positions: usize) -> Sequence {
        Sequence { tokens: vec![0; positions], targets: vec![0; positions], doc_start: vec![0; positions] }
    }

    /// Lends the memory for filling.
    pub fn rows(&mut self) -> Rows<'_> {
        Rows { tokens: &mut self.tokens, targets: &mut self.targets, doc_start: &mut self.doc_start }
    }
}

/// The same three arrays in memory that someone else owns, such as an arena: one row of `seq_len`
/// positions, or several rows one after the other.
#[derive(Debug)]
pub struct Rows<'a> {
    /// See [`Sequence::tokens`].
    pub tokens: &'a mut [i32],
    /// See [`Sequence::targets`].
    pub targets: &'a mut [i32],
    /// See [`Sequence::doc_start`].
    pub doc_start: &'a mut [i32],
}

impl Rows<'_> {
    /// Row `row` of `seq_len` positions.
    fn row(&mut self, row: usize, seq_len: usize) -> Rows<'_> {
        self.part(row * seq_len, seq_len)
    }

    fn part(&mut self, at: usize, len: usize) -> Rows<'_> {
        Rows {
            tokens: &mut self.tokens[at..at + len],
            targets: &mut self.targets[at..at + len],
            doc_start: &mut self.doc_start[at..at + len],
        }
    }

    /// Makes all positions from `at` on padding: one document in which nothing is learned. In a language model, every
    /// other document has learned tokens.
    fn ignore_from(&mut self, at: usize, pad: i32) {
        self.tokens[at..].fill(pad);
        self.targets[at..].fill(IGNORED);
        self.doc_start[at..].fill(at as i32);
    }

    fn valid_tokens(&self) -> u64 {
        self.targets.iter().filter(|&&target| target != IGNORED).count() as u64
    }
}

/// Anything that sequences can be read from.
#[derive(Debug)]
pub enum Source {
    /// Text files, byte by byte.
    Text(Text),
    /// Tokenised files.
    Corpus(Corpus),
    /// An endless invented stream.
    Synthetic(Synthetic),
}

impl Source {
    /// Positions in a sequence.
    pub fn seq_len(&self) -> usize {
        match self {
            Source::Text(text) => text.seq_len(),
            Source::Corpus(corpus) => corpus.seq_len(),
            Source::Synthetic(synthetic) => synthetic.seq_len(),
        }
    }

    /// Sequences until the data begins anew; `None` when it never does.
    pub fn sequences_per_epoch(&self) -> Option<u64> {
        match self {
            Source::Text(text) => Some(text.sequences()),
            Source::Corpus(corpus) => Some(corpus.sequences()),
            Source::Synthetic(_) => None,
        }
    }

    /// A fingerprint of this data, independent of the names of files: checksums of the contents, and how often each is
    /// seen.
    ///
    /// # Errors
    ///
    /// When text that is read byte by byte cannot be read once through.
    pub fn mark(&self) -> Result<String, DataError> {
        match self {
            Source::Text(text) => text.mark(),
            Source::Corpus(corpus) => Ok(corpus.mark()),
            Source::Synthetic(_) => Ok("made-up".to_owned()),
        }
    }

    /// The id that stands where there is no data. A synthetic vocabulary may be too small for
    /// [`PAD`], and an ignored position can hold any id.
    pub fn pad(&self) -> i32 {
        match self {
            Source::Text(_) => PAD,
            Source::Corpus(corpus) => corpus.pad(),
            Source::Synthetic(_) => 0,
        }
    }

    /// Reads sequence `index` of `epoch` into memory for [`Source::seq_len`] positions.
    ///
    /// Panics when `index` is not below [`Source::sequences_per_epoch`], or the memory has another size.
    pub fn fill(&mut self, epoch: u64, index: u64, sequence: &mut Sequence) -> Result<(), DataError> {
        self.fill_row(epoch, index, sequence.rows())
    }

    fn fill_row(&mut self, epoch: u64, index: u64, row: Rows<'_>) -> Result<(), DataError> {
        let seq_len = self.seq_len();
        assert!(
            [row.tokens.len(), row.targets.len(), row.doc_start.len()] == [seq_len; 3],
            "a sequence needs {seq_len} positions"
        );
        match self {
            Source::Text(text) => text.fill_row(epoch, index, row),
            Source::Corpus(corpus) => corpus.fill_row(epoch, index, row),
            Source::Synthetic(synthetic) => {
                synthetic.fill_row(index, row);
                Ok(())
            }
        }
    }
}

/// Positions are numbered in `i32`, and a sequence without any has nothing to learn.
fn check_seq_len(seq_len: usize) -> Result<(), DataError> {
    if (1..=i32::MAX as usize).contains(&seq_len) {
        Ok(())
    } else {
        Err(DataError::SequenceLength { seq_len })
    }
}
