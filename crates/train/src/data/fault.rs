//! Why a sample cannot be used: it is broken, all of its kind are, or there is no room for it.

use std::path::PathBuf;

use super::DataError;

/// Why a sample cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The sample is broken; others may be whole.
    Sample(String),
    /// No sample of its kind can be used.
    All(DataError),
    /// The chat template of a file refuses it, or writes nothing of it to learn; `why` continues a sentence about the
    /// template.
    Rendering { template: Option<PathBuf>, why: String },
    /// The chat template of a file writes the answer of a message, counted from 1, so that it cannot be told from the rest.
    Answers { template: Option<PathBuf>, message: usize },
    /// This many bytes of it would have to be tokenised at once, and there is no room for that.
    Unbroken(usize),
}

impl From<DataError> for Fault {
    fn from(fault: DataError) -> Fault {
        Fault::All(fault)
    }
}

impl From<String> for Fault {
    fn from(why: String) -> Fault {
        Fault::Sample(why)
    }
}
