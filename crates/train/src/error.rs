//! Errors between a request and a trained model.

use std::fmt;
use std::io;
use std::path::Path;

use plimsoll_exec::ExecError;
use plimsoll_graph::GraphError;
use plimsoll_plan::{ArenaBytes, DeviceSpec, ProcessBytes, SearchError, Tried};

use crate::data::DataError;
use crate::files::{FileError, WeightError};
use crate::memory::{Budget, BudgetError, MemoryError, Size};

/// Another request, which fits where the user's request does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternative {
    /// Flags to type beside the rest.
    pub flags: String,
    /// The effect of these flags.
    pub why: String,
}

/// Room on another tier that is too small for a plan which would fit the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LackingRoom {
    /// The place, for people.
    pub place: String,
    /// Bytes that may be taken on the tier.
    pub room: u64,
    /// Bytes that a plan takes on the tier.
    pub needed: u64,
    /// The flag that states `room`; `None` if it is all free space.
    pub stated: Option<&'static str>,
}

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
        /// The smallest plan of the request.
        smallest: Box<Tried>,
        /// Plans that would fit if less were fixed.
        hints: Vec<Tried>,
        /// Other ways of asking, which fit.
        alternatives: Vec<Alternative>,
        /// Room lacking on another tier, if more of it would make a plan fit.
        lacking: Option<Box<LackingRoom>>,
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
    /// The arena was not used to the planned byte.
    Peak {
        /// Bytes that were used.
        measured: ArenaBytes,
        /// Bytes that were planned.
        planned: ArenaBytes,
    },
    /// The process took more memory than its budget.
    Crossed {
        /// The most bytes that the process held.
        peak: ProcessBytes,
        /// The budget.
        budget: ProcessBytes,
    },
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
    /// Whether a number of the model was not finite: the same step fails again from the same weights.
    pub(crate) fn is_not_finite(&self) -> bool {
        matches!(self, TrainError::NotFinite { .. } | TrainError::Exec(ExecError::NotFinite(_)))
    }

    /// Whether the numbers of a run ceased to be finite, so that the same settings lead to the same end.
    pub fn has_diverged(&self) -> bool {
        self.is_not_finite() || matches!(self, TrainError::PartlyUpdated { .. })
    }

    /// The user's error for a search under `budget` that found nothing.
    pub fn search(error: SearchError, budget: &Budget) -> TrainError {
        match error {
            SearchError::Budget { smallest, hints, .. } => TrainError::Budget {
                budget: Box::new(*budget),
                smallest: Box::new(smallest),
                hints,
                alternatives: Vec::new(),
                lacking: None,
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

    /// Whether the user can mend the error by asking differently.
    pub fn is_users(&self) -> bool {
        if let TrainError::File(error) = self {
            return error.is_users();
        }
        matches!(
            self,
            TrainError::Config(_)
                | TrainError::Graph(_)
                | TrainError::Budget { .. }
                | TrainError::Plan(SearchError::Batch { .. } | SearchError::TooManyRuns { .. })
                | TrainError::Data(_)
        )
    }

    /// The error's sentence for a command line: settings appear as flags, `--seq-len`, where the error itself says
    /// `seq_len`.
    pub fn with_flags(&self) -> String {
        WithFlags(self).to_string()
    }

    /// Ways out that were tried and work, as flags.
    pub fn hints(&self) -> Vec<String> {
        let TrainError::Budget { budget, smallest, hints, alternatives, lacking } = self else {
            return Vec::new();
        };
        let outside = budget.outside;
        // Rounded up to a whole MiB so that the figure works when it is typed. For a process one more MiB is added,
        // since processes vary in size.
        let spare = u64::from(budget.ceiling.is_none());
        let whole = smallest.arena_bytes.process(outside).0.div_ceil(1 << 20) + spare;
        let mut lines: Vec<String> = hints
            .iter()
            .map(|hint| {
                let Tried { micro_batch, strategy, arena_bytes, .. } = hint;
                let bytes = Size { bytes: arena_bytes.process(outside).0 };
                format!("`--micro-batch {micro_batch} --recompute {strategy}` fits in {bytes}")
            })
            .collect();
        lines.extend(alternatives.iter().map(|Alternative { flags, why }| format!("`{flags}` fits: {why}")));
        lines.extend(lacking.as_ref().map(|lacking| lacking.way_out()));
        let enough = ProcessBytes(whole << 20);
        if enough <= budget.total {
            return lines;
        }
        lines.push(if budget.ceiling.is_none_or(|most| enough <= most) {
            format!("`--memory {whole}MiB` is about the smallest budget for what was asked")
        } else {
            larger_device(enough)
        });
        lines
    }
}

impl LackingRoom {
    fn way_out(&self) -> String {
        let LackingRoom { place, needed, stated, .. } = self;
        let (whole, size) = (needed.div_ceil(1 << 20), Size { bytes: *needed });
        if let Some(flag) = stated {
            return format!("`{flag} {whole}MiB` fits: so much waits {place}");
        }
        format!("{size} of room {place} fit: free them there, or name another disk with `--offload-folder`")
    }
}

impl fmt::Display for LackingRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LackingRoom { place, room, needed, stated } = self;
        let (room, needed) = (Size { bytes: *room }, Size { bytes: *needed });
        let limit = stated.map_or_else(|| "there is room for".to_owned(), |flag| format!("{flag} allows"));
        write!(f, "a plan that fits would have {needed} wait {place}, and {limit} {room}")
    }
}

/// A described device that is large enough. All have the same alignment and scratch, so a plan has the same size on
/// each.
fn larger_device(bytes: ProcessBytes) -> String {
    let enough = DeviceSpec::all().iter().filter(|spec| ProcessBytes(spec.memory_bytes) >= bytes);
    match enough.min_by_key(|spec| spec.memory_bytes) {
        Some(spec) => {
            format!("`--device {}` without --memory has {}", spec.name(), Size { bytes: spec.memory_bytes })
        }
        None => "no single device described here is large enough in fp32; take a smaller model".to_owned(),
    }
}

impl fmt::Display for TrainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&in_fields(&self.with_flags()))
    }
}

/// A sentence in which `--micro-batch` is `micro_batch`: flags of a command line as fields of the settings.
fn in_fields(text: &str) -> String {
    let (mut fields, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("--") {
        let (before, flag) = (&rest[..at], &rest[at + 2..]);
        let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let length = flag.find(|c| !is_part(c)).unwrap_or(flag.len());
        let name = flag[..length].trim_end_matches('-');
        // Two dashes inside a word are part of a name, as in the hub's cache; `--help` is no setting.
        let is_word = before.ends_with(|c: char| c.is_alphanumeric() || "-_/.".contains(c));
        fields.push_str(before);
        let is_setting = !is_word && name != "help" && name.starts_with(|c: char| c.is_ascii_lowercase());
        if is_setting {
            fields.push_str(&name.replace('-', "_"));
            rest = &flag[name.len()..];
        } else {
            fields.push_str("--");
            rest = flag;
        }
    }
    fields + rest
}

/// The sentence of an error, with settings as flags.
struct WithFlags<'a>(&'a TrainError);

impl fmt::Display for WithFlags<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            TrainError::Config(why) | TrainError::Output(why) => f.write_str(why),
            TrainError::Graph(error) => error.fmt(f),
            TrainError::Budget { budget, smallest, lacking, .. } => {
                let needed = Size { bytes: smallest.arena_bytes.process(budget.outside).0 }.at_least();
                write!(f, "the smallest plan needs {needed}, the budget is {}", budget.described())?;
                lacking.as_ref().map_or(Ok(()), |lacking| write!(f, "; {lacking}"))
            }
            TrainError::Plan(error) => error.fmt(f),
            TrainError::Exec(error) => error.fmt(f),
            TrainError::Data(error) => error.fmt(f),
            TrainError::File(error) => error.fmt(f),
            TrainError::Memory(error) => error.fmt(f),
            TrainError::Peak { measured, planned } => write!(
                f,
                "the arena was used up to byte {measured} and planned up to byte {planned}, which is a fault of plimsoll"
            ),
            TrainError::Crossed { peak, budget } => {
                BudgetError::Crossed { peak: *peak, budget: *budget }.fmt(f)
            }
            TrainError::NotFinite { step, what } => write!(
                f,
                "the {what} of step {step} is not a finite number; the weights are as step {} left them",
                step - 1
            ),
            TrainError::PartlyUpdated { step } => write!(
                f,
                "a gradient of step {step} is not a finite number, and parameters nearer to the loss were updated before it \
                 was found: some weights are of this step and others of the one before, so none are saved; \
                 `--update separate` finds such a gradient first"
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

impl From<BudgetError> for TrainError {
    fn from(error: BudgetError) -> TrainError {
        match error {
            BudgetError::Memory(error) => TrainError::Memory(error),
            BudgetError::Refused(why) => TrainError::Config(why),
            BudgetError::Crossed { peak, budget } => TrainError::Crossed { peak, budget },
        }
    }
}

impl From<WeightError> for TrainError {
    fn from(error: WeightError) -> TrainError {
        match error {
            WeightError::File(error) => TrainError::File(error),
            WeightError::Device(error) => TrainError::Exec(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_named_with_the_room_that_is_there_and_the_room_that_is_needed() {
        let place = "on the disk of /scratch".to_owned();
        let full = LackingRoom { place, room: 3 << 20, needed: (40 << 20) + 1, stated: None };
        let cause = "a plan that fits would have 40.0 MiB wait on the disk of /scratch, and there is room for 3.00 MiB";
        assert_eq!(full.to_string(), cause);
        let way = "40.0 MiB of room on the disk of /scratch fit: free them there, or name another disk with `--offload-folder`";
        assert_eq!(full.way_out(), way);
        let stated = LackingRoom { stated: Some("--disk-space"), ..full };
        assert!(stated.to_string().ends_with("--disk-space allows 3.00 MiB"), "{stated}");
        assert!(stated.way_out().starts_with("`--disk-space 41MiB` fits"), "{}", stated.way_out());
    }

    #[test]
    fn an_error_names_fields_and_flags_for_a_command_line() {
        let why = "--micro-batch 2 × `--seq-len 16` (--data), models--a--b and `--resume x--y` -- 5";
        let error = TrainError::Config(why.into());
        assert_eq!(
            error.to_string(),
            "micro_batch 2 × `seq_len 16` (data), models--a--b and `resume x--y` -- 5"
        );
        assert_eq!(error.with_flags(), why);
    }
}
