//! Errors of a search, with requests that would work.

use std::fmt;

use plimsoll_graph::GraphError;

use super::tried::Tried;
use crate::bytes::ArenaBytes;
use crate::plan::PlanError;
use crate::program::StateDiffers;
use crate::recompute::Strategy;

/// Why there is no plan.
#[derive(Clone, Debug)]
pub enum SearchError {
    /// The micro-batch does not divide the global batch, or one of them is 0.
    Batch {
        /// The requested micro-batch.
        micro_batch: usize,
        /// The requested global batch.
        global_batch: usize,
    },
    /// Nothing fits.
    Budget {
        /// Bytes the arena was allowed.
        budget: ArenaBytes,
        /// The smallest plan of the request.
        smallest: Tried,
        /// Plans that fit without the settings that the user fixed, fastest first.
        hints: Vec<Tried>,
    },
    /// A strategy whose list of runs would take more memory than it saves.
    TooManyRuns {
        /// The requested strategy.
        strategy: Strategy,
    },
    /// The model cannot be built.
    Graph(GraphError),
    /// The program cannot be planned.
    Plan(PlanError),
}

impl fmt::Display for SearchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SearchError::Batch { micro_batch, global_batch } => write!(
                f,
                "a micro-batch of {micro_batch} does not divide a global batch of {global_batch} sequences"
            ),
            SearchError::Budget { budget, smallest, .. } => {
                write!(
                    f,
                    "the smallest plan needs {} bytes, the arena may take {budget}",
                    smallest.arena_bytes
                )
            }
            SearchError::TooManyRuns { strategy } => write!(
                f,
                "recompute `{strategy}` runs so many nodes of a chain of this length that their list would take more \
                 memory than it spares; choose auto, sqrt or full"
            ),
            SearchError::Graph(error) => error.fmt(f),
            SearchError::Plan(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SearchError {}

impl From<GraphError> for SearchError {
    fn from(error: GraphError) -> SearchError {
        SearchError::Graph(error)
    }
}

impl From<PlanError> for SearchError {
    fn from(error: PlanError) -> SearchError {
        SearchError::Plan(error)
    }
}

impl From<StateDiffers> for SearchError {
    fn from(error: StateDiffers) -> SearchError {
        SearchError::Plan(error.into())
    }
}
