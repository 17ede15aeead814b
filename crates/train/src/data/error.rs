//! Faults of the data a user names: one sentence each, with a way out.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::memory::Size;

use super::file_kinds::{LISTS, TEXTS};

/// A fault in the data, not in the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataError {
    /// The path does not exist.
    Missing {
        /// The path that was named.
        path: PathBuf,
    },
    /// The path exists, but the system does not let us read it.
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// The system's words.
        why: String,
    },
    /// A device, a pipe or a socket, which cannot be read at an offset.
    NotAFile {
        /// The path that was named.
        path: PathBuf,
    },
    /// A folder without a single file that is read.
    NoFiles {
        /// The folder.
        path: PathBuf,
    },
    /// Not one byte in the file, or in all files of the folder.
    Empty {
        /// The path that was named.
        path: PathBuf,
    },
    /// Less data than one sequence.
    TooShort {
        /// Number of tokens, including those that open and close documents.
        tokens: u64,
        /// Tokens asked for.
        seq_len: usize,
    },
    /// No positions in a sequence, or more than can be numbered.
    SequenceLength {
        /// Tokens asked for.
        seq_len: usize,
    },
    /// The model cannot tell all ids apart.
    Vocabulary {
        /// Ids the model has.
        vocabulary: usize,
        /// Ids the data needs.
        needed: usize,
    },
    /// A file has changed since the run began.
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A model's folder without `tokenizer.json`.
    NoTokenizer {
        /// The folder.
        folder: PathBuf,
    },
    /// A file of the tokenizer is broken, or of a kind that is not known.
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// The fault.
        why: String,
    },
    /// The tokenizer has ids for which the model has no embedding.
    TokenizerTooLarge {
        /// Ids of the tokenizer.
        ids: usize,
        /// Rows of the embedding.
        rows: usize,
    },
    /// The chat template has a mistake.
    Template {
        /// The file that the template comes from, if any.
        path: Option<PathBuf>,
        /// The fault.
        why: String,
    },
    /// The data has conversations and the model no chat template.
    NoTemplate,
    /// A file of a kind that is not read.
    UnknownKind {
        /// The file.
        path: PathBuf,
    },
    /// A line of a `.jsonl` file or a row of a `.parquet` file that cannot be used.
    BadLine {
        /// The file.
        path: PathBuf,
        /// The sample's line or row, counted from 1.
        line: u64,
        /// The fault.
        why: String,
    },
    /// A table's column of texts holds something else, behind which it cannot be read.
    NotText {
        /// The file.
        path: PathBuf,
        /// The row, counted from 1.
        row: u64,
        /// The column.
        column: String,
    },
    /// A conversation and its chat template do not go together: the template refuses it, or writes nothing to learn.
    NotRendered {
        /// The file of the conversation.
        path: PathBuf,
        /// The sample's line or row, counted from 1.
        line: u64,
        /// The file of the template, where it came from one.
        template: Option<PathBuf>,
        /// The fault, as the end of a sentence about the template.
        why: String,
    },
    /// The chat template writes an answer in such a way that it cannot be told from the rest of the conversation.
    AnswersUnclear {
        /// The file of the conversation.
        path: PathBuf,
        /// The sample's line or row, counted from 1.
        line: u64,
        /// The file of the template, where it came from one.
        template: Option<PathBuf>,
        /// The answer's message, counted from 1.
        message: usize,
    },
    /// A text that takes more memory to tokenise than there is.
    TooLong {
        /// The file.
        path: PathBuf,
        /// The sample's line or row, counted from 1; none in a file that is one text.
        line: Option<u64>,
        /// Bytes that would have to be in memory at once.
        bytes: u64,
        /// The least budget that has room for the sample.
        least: u64,
    },
    /// All lines were bad, or all texts empty.
    NothingLeft {
        /// The path that was named.
        path: PathBuf,
        /// Samples that were skipped.
        skipped: u64,
        /// The fault of the first of these samples.
        first: String,
    },
    /// The tokenised data cannot be stored.
    Cache {
        /// The file or folder.
        path: PathBuf,
        /// The system's words.
        why: String,
    },
    /// A share of the data to be kept apart that leaves nothing on one side.
    Split {
        /// The path that was named.
        path: PathBuf,
        /// Documents or pieces of the length of a sequence there are.
        pieces: u64,
    },
    /// The weight of a part of the data is not a valid number.
    Weight {
        /// The path that was named.
        path: PathBuf,
        /// The number, as it was written.
        weight: String,
    },
    /// Some labels are numbers, and some are names.
    MixedLabels {
        /// The path that was named.
        path: PathBuf,
    },
    /// Samples of which nothing is learned, wherever they are cut.
    NoTargets {
        /// The path that was named.
        path: PathBuf,
        /// Tokens of a sequence.
        seq_len: usize,
    },
    /// Words are to be hidden, and the tokenizer has no id for that.
    NoMask,
    /// Sequences are too short for the tokens that the tokenizer puts around every text.
    NoRoom {
        /// Tokens asked for.
        seq_len: usize,
        /// Tokens around every text.
        around: usize,
    },
}

impl DataError {
    /// The fault behind an I/O error at `path`.
    pub(super) fn reading(path: &Path, fault: &io::Error) -> DataError {
        DataError::Unreadable { path: path.to_owned(), why: fault.to_string() }
    }
}

impl fmt::Display for DataError {
    #[allow(clippy::too_many_lines, reason = "one sentence for each fault, nowhere else")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DataError::Missing { path } => {
                write!(f, "{} does not exist; give --data a text file or a folder", path.display())
            }
            DataError::Unreadable { path, why } => {
                write!(f, "{} cannot be read ({why}); check its permissions or leave it out", path.display())
            }
            DataError::NotAFile { path } => write!(
                f,
                "{} is neither a file nor a folder; write its content to a file and give --data that",
                path.display()
            ),
            DataError::NoFiles { path } => write!(
                f,
                "{} holds no file of a kind that is read ({}); give --data another folder or the file itself",
                path.display(),
                TEXTS.iter().chain(&LISTS).map(|kind| format!(".{kind}")).collect::<Vec<_>>().join(", ")
            ),
            DataError::Empty { path } => {
                write!(f, "{} is empty; give --data a file or folder with text in it", path.display())
            }
            DataError::TooShort { tokens, seq_len } => write!(
                f,
                "the data has {tokens} tokens, less than one sequence of {seq_len}; \
                 use --seq-len {tokens} or less, or more text"
            ),
            DataError::SequenceLength { seq_len } => {
                write!(f, "a sequence cannot have {seq_len} tokens; use a --seq-len from 1 to {}", i32::MAX)
            }
            DataError::Vocabulary { vocabulary, needed } => write!(
                f,
                "the model knows {vocabulary} ids and the data needs {needed}; \
                 use a model with a vocabulary of {needed} or more"
            ),
            DataError::Changed { path } => write!(
                f,
                "{} changed while it was being read; start again, with a copy that nothing writes to",
                path.display()
            ),
            DataError::NoTokenizer { folder } => write!(
                f,
                "{} has no tokenizer.json; save the model's fast tokenizer there with transformers' save_pretrained",
                folder.display()
            ),
            DataError::Tokenizer { path, why } => write!(
                f,
                "{} cannot be used ({why}); take the file that was published with the model",
                path.display()
            ),
            DataError::TokenizerTooLarge { ids, rows } => write!(
                f,
                "the tokenizer has {ids} ids and the model's embedding only {rows} rows; \
                 use the tokenizer that was published with the model"
            ),
            DataError::Template { path, why } => write!(
                f,
                "the chat template{} cannot be used: {why}; mend it there, or put another chat_template.jinja beside tokenizer.json",
                of_file(path.as_deref())
            ),
            DataError::NoTemplate => f.write_str(
                "the data has `messages` and the model no chat template; \
                 put a chat_template.jinja beside tokenizer.json, or use `prompt` and `completion`",
            ),
            DataError::UnknownKind { path } => write!(
                f,
                "{} is of a kind that is not read; give --data .txt, .jsonl or .parquet files",
                path.display()
            ),
            DataError::BadLine { path, line, why } => write!(
                f,
                "{}, line {line}: {why}; mend the line, or pass over such lines with --skip-bad-lines",
                path.display()
            ),
            DataError::NotText { path, row, column } => write!(
                f,
                "{}, row {row}: `{column}` is a column of texts and holds bytes that are no UTF-8 text; write the file \
                 again with UTF-8 there",
                path.display()
            ),
            DataError::NotRendered { path, line, template, why } => write!(
                f,
                "{}, line {line}: the chat template{} {why}; mend the line or the template, or pass over such lines with \
                 --skip-bad-lines",
                path.display(),
                of_file(template.as_deref())
            ),
            DataError::AnswersUnclear { path, line, template, message } => write!(
                f,
                "{}, line {line}: the chat template{} writes message {message} differently once others follow, so its answer \
                 cannot be told from the rest; put {{% generation %}} and {{% endgeneration %}} around the answer in the template, \
                 use another chat_template.jinja, learn the last answer alone with `prompt` and `completion`, \
                 or pass over such lines with --skip-bad-lines",
                path.display(),
                of_file(template.as_deref())
            ),
            DataError::TooLong { path, line, bytes, least } => write!(
                f,
                "{}{}: {} of text in one piece; to tokenise it takes a budget of --memory {}MiB; state that, or divide the text",
                path.display(),
                line.map_or_else(String::new, |line| format!(", line {line}")),
                Size { bytes: *bytes },
                least.div_ceil(1 << 20)
            ),
            DataError::NothingLeft { path, skipped, first } => write!(
                f,
                "{}: none of {skipped} samples can be used; the first is {first}; give --data other files",
                path.display()
            ),
            DataError::Cache { path, why } => write!(
                f,
                "{} cannot be written ({why}); make room there or name another folder for tokenised data with --data-cache",
                path.display()
            ),
            DataError::Split { path, pieces } => write!(
                f,
                "{} has {pieces} pieces, too few to keep that share apart for validation; \
                 state another share or give a file for validation",
                path.display()
            ),
            DataError::Weight { path, weight } => write!(
                f,
                "the weight {weight} of {} is not above 0; leave the file out or state how often an epoch sees it",
                path.display()
            ),
            DataError::MixedLabels { path } => write!(
                f,
                "{} has labels that are numbers and labels that are names; write all of them one way",
                path.display()
            ),
            DataError::NoTargets { path, seq_len } => write!(
                f,
                "{} has nothing to learn within --seq-len {seq_len}: all of it is prompts; \
                 use a longer --seq-len or samples with answers",
                path.display()
            ),
            DataError::NoMask => f.write_str(
                "the tokenizer has no mask_token, so words cannot be hidden; \
                 use the tokenizer of a model that was trained so",
            ),
            DataError::NoRoom { seq_len, around } => write!(
                f,
                "sequences of {seq_len} tokens have no room for text beside the {around} tokens around it; \
                 use a --seq-len above {around}"
            ),
        }
    }
}

/// Words that follow "the chat template" in an error: the file it came from, if that is known.
fn of_file(template: Option<&Path>) -> String {
    template.map_or_else(String::new, |path| format!(" of {}", path.display()))
}

impl std::error::Error for DataError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_one_sentence_with_the_facts_first_and_the_way_out_last() {
        let (path, why) = (|| PathBuf::from("d/x"), || String::from("why"));
        let sentences = [
            (DataError::Missing { path: path() }, "d/x does not exist; give --data"),
            (DataError::reading(&path(), &io::Error::other("denied")), "d/x cannot be read (denied); check"),
            (DataError::NotAFile { path: path() }, "d/x is neither a file nor a folder; write"),
            (
                DataError::NoFiles { path: path() },
                "d/x holds no file of a kind that is read (.txt, .md, .rs, .jsonl, .parquet); give --data",
            ),
            (DataError::Empty { path: path() }, "d/x is empty; give --data"),
            (
                DataError::TooShort { tokens: 7, seq_len: 9 },
                "the data has 7 tokens, less than one sequence of 9; use",
            ),
            (
                DataError::SequenceLength { seq_len: 0 },
                "a sequence cannot have 0 tokens; use a --seq-len from 1",
            ),
            (
                DataError::Vocabulary { vocabulary: 5, needed: 259 },
                "the model knows 5 ids and the data needs 259; use",
            ),
            (DataError::Changed { path: path() }, "d/x changed while it was being read; start again"),
            (DataError::NoTokenizer { folder: path() }, "d/x has no tokenizer.json; save"),
            (DataError::Tokenizer { path: path(), why: why() }, "d/x cannot be used (why); take"),
            (
                DataError::TokenizerTooLarge { ids: 9, rows: 8 },
                "the tokenizer has 9 ids and the model's embedding only 8 rows; use",
            ),
            (
                DataError::Template { path: Some(path()), why: why() },
                "the chat template of d/x cannot be used: why; mend it there, or put",
            ),
            (
                DataError::Template { path: None, why: why() },
                "the chat template cannot be used: why; mend it there",
            ),
            (DataError::NoTemplate, "the data has `messages` and the model no chat template; put"),
            (DataError::UnknownKind { path: path() }, "d/x is of a kind that is not read; give --data"),
            (DataError::BadLine { path: path(), line: 3, why: why() }, "d/x, line 3: why; mend the line"),
            (
                DataError::NotText { path: path(), row: 3, column: "text".into() },
                "d/x, row 3: `text` is a column of texts and holds bytes that are no UTF-8 text; write",
            ),
            (
                DataError::NotRendered { path: path(), line: 3, template: None, why: why() },
                "d/x, line 3: the chat template why; mend the line or the template, or pass",
            ),
            (
                DataError::AnswersUnclear { path: path(), line: 3, template: Some("t".into()), message: 2 },
                "d/x, line 3: the chat template of t writes message 2 differently once others follow, so its answer \
                 cannot be told from the rest; put {% generation %} and {% endgeneration %} around",
            ),
            (
                DataError::TooLong { path: path(), line: Some(3), bytes: 2 << 20, least: 40 << 20 },
                "d/x, line 3: 2.00 MiB of text in one piece; to tokenise it takes a budget of --memory 40MiB; state",
            ),
            (
                DataError::NothingLeft { path: path(), skipped: 2, first: why() },
                "d/x: none of 2 samples can be used; the first is why; give --data",
            ),
            (DataError::Cache { path: path(), why: why() }, "d/x cannot be written (why); make room"),
            (DataError::Split { path: path(), pieces: 1 }, "d/x has 1 pieces, too few to keep"),
            (
                DataError::Weight { path: path(), weight: "-1".into() },
                "the weight -1 of d/x is not above 0; leave",
            ),
            (DataError::MixedLabels { path: path() }, "d/x has labels that are numbers and labels"),
            (
                DataError::NoTargets { path: path(), seq_len: 8 },
                "d/x has nothing to learn within --seq-len 8: all of it is prompts; use",
            ),
            (DataError::NoMask, "the tokenizer has no mask_token, so words cannot be hidden; use"),
            (
                DataError::NoRoom { seq_len: 2, around: 2 },
                "sequences of 2 tokens have no room for text beside the 2 tokens around it; use",
            ),
        ];
        for (fault, beginning) in sentences {
            let sentence = fault.to_string();
            assert!(sentence.starts_with(beginning), "{sentence}");
            assert!(
                !sentence.contains('\n') && !sentence.contains("  ") && !sentence.ends_with('.'),
                "{sentence}"
            );
        }
    }
}
