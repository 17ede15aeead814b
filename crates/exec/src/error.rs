//! Errors while a schedule runs.

use std::fmt;

/// A fault met while preparing or running a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecError {
    /// Data that a kernel cannot work with, such as a token id outside the vocabulary.
    Data(String),
    /// A number of the model that is not finite where the computation cannot go on with it.
    NotFinite(String),
    /// The device has no kernel for this op on these element types.
    Unsupported(String),
    /// The arena could not be had.
    Memory(String),
    /// A name or a size that does not match the graph.
    Mismatch(String),
    /// The device, or a disk it copies to, failed.
    Device(String),
    /// Another rank failed, hung or did something else; the sentence names it.
    Rank(String),
}

impl ExecError {
    /// The error of a kernel with the block of the graph that its node lies in, if there is one.
    #[must_use]
    pub fn within(self, block: &str) -> ExecError {
        let named = |why: String| if block.is_empty() { why } else { format!("{why}, in `{block}`") };
        match self {
            ExecError::Data(why) => ExecError::Data(named(why)),
            ExecError::NotFinite(why) => ExecError::NotFinite(named(why)),
            other => other,
        }
    }
}

impl fmt::Display for ExecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExecError::Data(why)
            | ExecError::NotFinite(why)
            | ExecError::Unsupported(why)
            | ExecError::Memory(why)
            | ExecError::Mismatch(why)
            | ExecError::Device(why)
            | ExecError::Rank(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for ExecError {}
