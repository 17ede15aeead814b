//! The request for data: files with weights, a task, a share for validation.

use std::path::{Path, PathBuf};

/// The task that is learned from the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// The next token: of texts, of answers in conversations, of completions.
    Causal,
    /// Hidden words.
    Masked,
    /// The class of a text.
    Classify {
        /// Names of the classes; empty if they come from the data.
        labels: Vec<String>,
    },
}

/// How documents lie in rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowLayout {
    /// Several to a row. Only the causal task supports it; other tasks are always padded.
    Packed,
    /// Each row holds one document.
    Padded,
}

/// A file or folder of the data.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// `.txt`, `.jsonl`, `.parquet`, or a folder of them.
    pub path: PathBuf,
    /// How often an epoch sees the part.
    pub weight: f64,
}

impl From<&Path> for Part {
    fn from(path: &Path) -> Part {
        Part { path: path.to_owned(), weight: 1.0 }
    }
}

/// The data that a model is judged by.
#[derive(Clone, Debug, PartialEq)]
pub enum Validation {
    /// Nothing.
    None,
    /// This share of every part, which is then not trained on: whole documents, the same for every seed. If there are
    /// too few documents, the end of the text.
    Share(f64),
    /// Files that are for validation alone.
    Files(Vec<Part>),
}

/// All settings that decide the rows.
#[derive(Clone, Debug, PartialEq)]
pub struct DataSpec {
    /// Files to train on.
    pub parts: Vec<Part>,
    /// Validation data.
    pub validation: Validation,
    /// The task.
    pub task: Task,
    /// How documents lie in rows.
    pub layout: RowLayout,
    /// Positions of a row.
    pub seq_len: usize,
    /// Ids the model knows.
    pub vocabulary: usize,
    /// Decides the order of rows, and the words that are hidden.
    pub seed: u64,
    /// Whether samples that cannot be used are counted instead of refused.
    pub skip_bad_lines: bool,
    /// The folder for tokenised data.
    pub cache: PathBuf,
    /// Threads that tokenise.
    pub threads: usize,
    /// Classes of the model, where it is made already.
    pub classes: Option<usize>,
    /// Bytes of the whole process that tokenising keeps to.
    pub memory: u64,
}
