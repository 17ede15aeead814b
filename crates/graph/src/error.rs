//! Errors of a graph.

use std::fmt;

/// A mistake in a model, found while it is built or verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphError {
    /// The op or declaration that is wrong.
    pub what: String,
    /// The block it stands in, dotted; empty at the top.
    pub block: String,
    /// Both sides of the disagreement, and the way out where there is one.
    pub why: String,
    /// Source file and line of the model code, when the builder found it.
    pub at: Option<String>,
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what)?;
        if !self.block.is_empty() {
            write!(f, " in block {}", self.block)?;
        }
        if let Some(at) = &self.at {
            write!(f, " at {at}")?;
        }
        write!(f, ": {}", self.why)
    }
}

impl std::error::Error for GraphError {}
