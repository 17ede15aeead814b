//! What can go wrong between a request and a trained model.

use std::fmt;
use std::io;
use std::path::Path;

use plimsoll_exec::ExecError;
use plimsoll_graph::GraphError;
use plimsoll_plan::{DeviceSpec, SearchError, Tried};

use crate::budget::Budget;
use crate::data::DataError;
use crate::files::FileError;
use crate::memory::MemoryError;
use crate::size::Size;
use crate::ways::Way;

/// A fault of a run. [`TrainError::is_users`] tells the user's mistakes from failures.
#[derive(Debug)]
pub enum TrainError {
    /// A setting that makes no sense, with the way out.
    Config(String),
    /// The model cannot be built.
    Graph(GraphError),
    /// Nothing fits the budget.
    Budget {
        /// The whole budget and how it divides.
        budget: Box<Budget>,
        /// The smallest plan of what was asked for.
        smallest: Box<Tried>,
        /// Plans that would fit if less were fixed.
        hints: Vec<Tried>,
        /// Other ways of asking, which fit.
        ways: Vec<Way>,
    },
    /// Planning failed for another reason.
    Plan(SearchError),
    /// A kernel or the device failed.
    Exec(ExecError),
    /// The data is missing or broken.
    Data(DataError),
    /// A file of a model or a checkpoint is missing, broken or cannot be written.
    File(FileError),
    /// The machine does not say how much memory it has.
    Memory(MemoryError),
    /// A file could not be written.
    Output(String),
    /// A loss or a gradient norm that is not a number, found before the update.
    NotFinite {
        /// The step that was not taken.
        step: u64,
        /// `loss` or `gradient norm`.
        what: &'static str,
    },
    /// A gradient that is not a number, found when parameters nearer to the loss had been updated.
    PartlyUpdated {
        /// The step that was taken in part.
        step: u64,
    },
}

impl TrainError {
    /// What a search under `budget` that found nothing means to the user.
    pub fn search(error: SearchError, budget: &Budget) -> TrainError {
        match error {
            SearchError::Budget { smallest, hints, .. } => TrainError::Budget {
                budget: Box::new(*budget),
                smallest: Box::new(smallest),
                hints,
                ways: Vec::new(),
            },
            SearchError::Graph(error) => TrainError::Graph(error),
            other => TrainError::Plan(other),
        }
    }

    /// A failure to write the file at `path`.
    pub fn output(path: &Path, error: &io::Error) -> TrainError {
        TrainError::Output(format!("cannot write `{}`: {error}", path.display()))
    }

    /// Of two attempts to keep a budget, the one that came closer.
    pub(crate) fn closer(self, other: TrainError) -> TrainError {
        match (&self, &other) {
            (TrainError::Budget { smallest: a, .. }, TrainError::Budget { smallest: b, .. })
                if b.arena_bytes < a.arena_bytes =>
            {
                other
            }
            _ => self,
        }
    }

    /// Whether the user can mend it by asking differently.
    pub fn is_users(&self) -> bool {
        if let TrainError::File(error) = self {
            return error.is_users();
        }
        matches!(
            self,
            TrainError::Config(_)
                | TrainError::Graph(_)
                | TrainError::Budget { .. }
                | TrainError::Plan(SearchError::Batch { .. })
                | TrainError::Data(_)
        )
    }

    /// Ways out that were tried and work, as flags.
    pub fn hints(&self) -> Vec<String> {
        let TrainError::Budget { budget, smallest, hints, ways } = self else {
            return Vec::new();
        };
        let outside = budget.outside;
        // So that the figure works when it is typed: rounded up to a whole MiB, and where it is of a process, with the
        // MiB by which one is larger now and then.
        let spare = u64::from(budget.ceiling.is_none());
        let whole = (smallest.arena_bytes + outside).div_ceil(1 << 20) + spare;
        let mut lines: Vec<String> = hints
            .iter()
            .map(|hint| {
                let Tried { micro_batch, strategy, arena_bytes, .. } = hint;
                let bytes = Size { bytes: arena_bytes + outside };
                format!("`--micro-batch {micro_batch} --recompute {strategy}` fits in {bytes}")
            })
            .collect();
        lines.extend(ways.iter().map(|Way { flags, why }| format!("`{flags}` fits: {why}")));
        if whole << 20 <= budget.total {
            return lines;
        }
        lines.push(if budget.ceiling.is_none_or(|most| whole << 20 <= most) {
            format!("`--memory {whole}MiB` is about the smallest budget for what was asked")
        } else {
            larger_device(whole << 20)
        });
        lines
    }
}

/// Which described device would do. All have the same alignment and scratch, so a plan is as large on any.
fn larger_device(bytes: u64) -> String {
    let enough = DeviceSpec::all().iter().filter(|spec| spec.memory_bytes >= bytes);
    match enough.min_by_key(|spec| spec.memory_bytes) {
        Some(spec) => {
            format!("`--device {}` without --memory has {}", spec.name(), Size { bytes: spec.memory_bytes })
        }
        None => "no single device described here is large enough in fp32; take a smaller model".to_owned(),
    }
}

impl fmt::Display for TrainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrainError::Config(why) | TrainError::Output(why) => f.write_str(why),
            TrainError::Graph(error) => error.fmt(f),
            TrainError::Budget { budget, smallest, .. } => {
                let needed = Size { bytes: smallest.arena_bytes + budget.outside };
                write!(f, "the smallest plan needs {needed}, the budget is {}", budget.described())
            }
            TrainError::Plan(error) => error.fmt(f),
            TrainError::Exec(error) => error.fmt(f),
            TrainError::Data(error) => error.fmt(f),
            TrainError::File(error) => error.fmt(f),
            TrainError::Memory(error) => error.fmt(f),
            TrainError::NotFinite { step, what } => write!(
                f,
                "the {what} of step {step} is not a finite number; the weights are as step {} left them",
                step - 1
            ),
            TrainError::PartlyUpdated { step } => write!(
                f,
                "a gradient of step {step} is not a finite number, and parameters nearer to the loss were updated before it \
                 was found: the weights are of two steps and are not saved; `--resume latest --stop-after {}` brings back \
                 those before it, and `--update separate` finds such a gradient first",
                step - 1
            ),
        }
    }
}

impl std::error::Error for TrainError {}

impl From<GraphError> for TrainError {
    fn from(error: GraphError) -> TrainError {
        TrainError::Graph(error)
    }
}

impl From<ExecError> for TrainError {
    fn from(error: ExecError) -> TrainError {
        TrainError::Exec(error)
    }
}

impl From<DataError> for TrainError {
    fn from(error: DataError) -> TrainError {
        TrainError::Data(error)
    }
}

impl From<FileError> for TrainError {
    fn from(error: FileError) -> TrainError {
        TrainError::File(error)
    }
}

impl From<MemoryError> for TrainError {
    fn from(error: MemoryError) -> TrainError {
        TrainError::Memory(error)
    }
}
