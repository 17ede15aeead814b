//! The making of programs: a caller that wants a plan builds one for each micro-batch that is tried.

use plimsoll_graph::GraphError;

use super::Program;

/// Builds the programs of a model.
pub trait Build {
    /// The program for micro-batches of `micro_batch` sequences.
    ///
    /// # Errors
    ///
    /// When the model is wrong.
    fn whole(&mut self, micro_batch: usize) -> Result<Program, GraphError>;

    /// The same with feed-forward networks in tiles of rows; `None` if there is nothing to tile, or no way to.
    ///
    /// # Errors
    ///
    /// When the model is wrong.
    fn tiled(&mut self, _micro_batch: usize) -> Result<Option<Program>, GraphError> {
        Ok(None)
    }
}

impl<F: FnMut(usize) -> Result<Program, GraphError>> Build for F {
    fn whole(&mut self, micro_batch: usize) -> Result<Program, GraphError> {
        self(micro_batch)
    }
}
