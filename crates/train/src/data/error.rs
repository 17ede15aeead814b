//! What can be wrong with the data a user names: one sentence each, with a way out.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A fault in the data, not in the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataError {
    /// Nothing is there.
    Missing {
        /// What was named.
        path: PathBuf,
    },
    /// It is there, and the system does not let us read it.
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// The system's words.
        why: String,
    },
    /// A device, a pipe or a socket, which cannot be read at an offset.
    NotAFile {
        /// What was named.
        path: PathBuf,
    },
    /// A folder without a single text file.
    NoTextFiles {
        /// The folder.
        path: PathBuf,
    },
    /// Not one byte in the file, or in all files of the folder.
    Empty {
        /// What was named.
        path: PathBuf,
    },
    /// Less data than one sequence.
    TooShort {
        /// Tokens there are, with those that open and close documents.
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
    /// A file is not what it was when the run began.
    Changed {
        /// The file.
        path: PathBuf,
    },
}

impl DataError {
    /// The fault behind an I/O error at `path`.
    pub(super) fn reading(path: &Path, fault: &io::Error) -> DataError {
        DataError::Unreadable { path: path.to_owned(), why: fault.to_string() }
    }
}

impl fmt::Display for DataError {
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
            DataError::NoTextFiles { path } => write!(
                f,
                "{} holds no .txt, .md or .rs file; give --data another folder or the file itself",
                path.display()
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
        }
    }
}

impl std::error::Error for DataError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_one_sentence_with_the_facts_first_and_the_way_out_last() {
        let path = || PathBuf::from("d/x");
        let sentences = [
            (DataError::Missing { path: path() }, "d/x does not exist; give --data"),
            (DataError::reading(&path(), &io::Error::other("denied")), "d/x cannot be read (denied); check"),
            (DataError::NotAFile { path: path() }, "d/x is neither a file nor a folder; write"),
            (DataError::NoTextFiles { path: path() }, "d/x holds no .txt, .md or .rs file; give --data"),
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
