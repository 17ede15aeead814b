//! A checkpoint's description of itself, and the checks that it is true.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::names::{PLAN, PREFIX, STATE};
use super::other_folder::other_folder;
use crate::files::{Checksum, FileError, hex, read_any_text, read_bytes, stays_inside, write_text};
use crate::run::Run;
use crate::settings::{changeable, differ, value_of};

/// Checkpoints of this form are read.
const FORMAT: u32 = 1;

/// The content of `trainer_state.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    format: u32,
    /// Updates so far.
    pub step: u64,
    /// Groups taken from the data so far.
    pub position: u64,
    /// Facts that must be equal for the run to continue as if never interrupted: seed, global batch, data.
    pub facts: BTreeMap<String, String>,
    /// Measurements so far.
    pub progress: EvaluationState,
    /// The plan of the run. The run may resume with another.
    pub plan: PlanSummary,
    /// All other files of the checkpoint.
    pub files: BTreeMap<String, Checksum>,
    /// SHA-256 of this file with this field empty.
    checksum: String,
}

/// Measurements of a run that its next part continues.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationState {
    /// Training loss of the last step.
    pub loss: Option<f64>,
    /// The last evaluation.
    pub metric: Option<f64>,
    /// The best evaluation. Rotation spares its checkpoint.
    pub best: Option<Best>,
    /// The loss that an evaluation must undercut to count as better, for stopping early.
    pub mark: Option<f64>,
    /// Evaluations since then, for stopping early.
    pub without_gain: u64,
    /// Whether the run was stopped before an evaluation that was due after this step: the next part begins with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub owes_evaluation: bool,
    /// The former best evaluation, whose checkpoint is removed once this one is written. A run that was killed in
    /// between removes it on resuming.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub surpasses: Option<u64>,
    /// Steps that are in no record yet: the next part of the run includes them in its first record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unrecorded: Option<Unrecorded>,
}

/// Sums over the steps since the last record.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unrecorded {
    /// The number of steps.
    pub steps: u64,
    /// The sum of the steps' losses.
    pub loss: f64,
    /// Positions in the steps' sequences.
    pub tokens: u64,
    /// Positions whose target counts in the loss.
    pub valid_tokens: u64,
    /// Seconds that the steps took.
    pub seconds: f64,
}

/// The best evaluation so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The step that the evaluation followed.
    pub step: u64,
    /// The value of the metric.
    pub metric: f64,
}

/// How the work was divided, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanSummary {
    /// Values that are dropped and recomputed.
    pub recompute: String,
    /// Rows of one micro-batch.
    pub micro_batch: usize,
    /// Micro-batches of one step.
    pub accumulation: usize,
    /// Size of the arena.
    pub arena_bytes: u64,
    /// Bytes of the whole process that were allowed.
    pub budget_bytes: u64,
    /// The instruction path of the processor, where it computed: another may give other last bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
}

impl PlanSummary {
    pub(super) fn of(run: &Run) -> PlanSummary {
        PlanSummary {
            recompute: run.plan().strategy.to_string(),
            micro_batch: run.micro_batch(),
            accumulation: run.accumulation(),
            arena_bytes: run.plan().arena_bytes.0,
            budget_bytes: run.budget().total.0,
            instructions: run.engine().device().instructions().map(|path| path.to_string()),
        }
    }
}

impl TrainerState {
    pub(super) fn new(
        (step, position): (u64, u64),
        facts: BTreeMap<String, String>,
        progress: EvaluationState,
        plan: PlanSummary,
        files: BTreeMap<String, Checksum>,
    ) -> TrainerState {
        let checksum = String::new();
        TrainerState { format: FORMAT, step, position, facts, progress, plan, files, checksum }
    }

    /// Writes the file into a checkpoint's folder; returns the state with its checksum.
    pub(super) fn write(mut self, folder: &Path) -> Result<TrainerState, FileError> {
        self.checksum = self.sum();
        write_text(&folder.join(STATE), &format!("{}\n", self.text()))?;
        Ok(self)
    }

    /// Reads the file in a checkpoint's folder. The fault tells whether the folder belongs to something else, is
    /// damaged, or cannot be read now: the three are treated differently.
    pub(super) fn read(folder: &Path) -> Result<TrainerState, Fault> {
        #[derive(Deserialize)]
        struct Version {
            format: Option<u32>,
        }
        let path = folder.join(STATE);
        let text = read_bytes(&path).and_then(|bytes| {
            String::from_utf8(bytes).map_err(|fault| io::Error::new(io::ErrorKind::InvalidData, fault))
        });
        let text = match text {
            Ok(text) => text,
            Err(fault) if matches!(fault.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Err(no_state(folder));
            }
            Err(fault) if fault.kind() == io::ErrorKind::InvalidData => return Err(damaged(&path, &fault)),
            Err(fault) => return Err(Fault::Unreadable(FileError::reading(&path, &fault))),
        };
        let Version { format } = serde_json::from_str(&text).map_err(|fault| damaged(&path, &fault))?;
        match format {
            Some(FORMAT) => {}
            Some(format) => {
                let why = format!(
                    "has form {format} and this version reads {FORMAT}; use the version that wrote it"
                );
                return Err(Fault::Unreadable(FileError::wrong(&path, why)));
            }
            None => return Err(Fault::Foreign(other_folder(folder))),
        }
        let state: TrainerState = serde_json::from_str(&text).map_err(|fault| damaged(&path, &fault))?;
        if state.sum() != state.checksum {
            let why = "is not as it was written: its checksum differs; take another checkpoint";
            return Err(Fault::Broken(FileError::wrong(&path, why)));
        }
        Ok(state)
    }

    /// SHA-256 over its whole description, checksums of the checkpoint's files included: equal only for the same
    /// checkpoint.
    pub(super) fn identity(&self) -> &str {
        &self.checksum
    }

    fn sum(&self) -> String {
        hex(&Sha256::digest(TrainerState { checksum: String::new(), ..self.clone() }.text()))
    }

    fn text(&self) -> String {
        serde_json::to_value(self).map_or_else(|fault| fault.to_string(), |value| format!("{value:#}"))
    }
}

/// Why a run cannot resume from a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nothing shows that a run of plimsoll wrote the checkpoint.
    Foreign(FileError),
    /// A run wrote it, and its content is known to be wrong: cut off, changed, incomplete.
    Broken(FileError),
    /// It may be whole: the system did not let it be read, or a later version wrote it.
    Unreadable(FileError),
}

impl Fault {
    pub(super) fn into_error(self) -> FileError {
        match self {
            Fault::Foreign(error) | Fault::Broken(error) | Fault::Unreadable(error) => error,
        }
    }
}

fn damaged(path: &Path, fault: &dyn std::fmt::Display) -> Fault {
    Fault::Broken(FileError::wrong(path, format!("is broken ({fault}); take another checkpoint")))
}

/// The fault of a folder in which no trainer state was found: the folder is unreadable, or it is no checkpoint.
fn no_state(folder: &Path) -> Fault {
    match fs::metadata(folder) {
        Err(fault) if fault.kind() != io::ErrorKind::NotFound => {
            Fault::Unreadable(FileError::reading(folder, &fault))
        }
        _ => Fault::Foreign(other_folder(folder)),
    }
}

/// A checkpoint that was found whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The checkpoint's folder.
    pub path: PathBuf,
    /// The checkpoint's description of itself.
    pub state: TrainerState,
}

impl Checkpoint {
    /// Opens a checkpoint and reads every file of it once, to compare checksums.
    ///
    /// # Errors
    ///
    /// When it is none, or a file of it is missing, cut off or changed.
    pub fn open(path: &Path) -> Result<Checkpoint, FileError> {
        Checkpoint::examine(path).map_err(Fault::into_error)
    }

    /// As [`open`](Self::open), with the kind of fault.
    pub(super) fn examine(path: &Path) -> Result<Checkpoint, Fault> {
        let checkpoint = Checkpoint::glance(path)?;
        for (name, written) in &checkpoint.state.files {
            let file = path.join(name);
            let found = Checksum::of(&file).map_err(Fault::Unreadable)?;
            if found != *written {
                let why = "is not as it was saved: its checksum differs; take another checkpoint";
                return Err(Fault::Broken(FileError::wrong(&file, why)));
            }
        }
        Ok(checkpoint)
    }

    /// Reads a checkpoint's description and checks that its files exist and have the right lengths. A number in them
    /// may be wrong: this is enough to count checkpoints, not to resume from one or to remove one.
    pub(super) fn glance(path: &Path) -> Result<Checkpoint, Fault> {
        let state = TrainerState::read(path)?;
        for (name, written) in &state.files {
            if !stays_inside(name) {
                let why =
                    format!("names `{name}`, which lies outside its folder; only files beside it are read");
                return Err(Fault::Broken(FileError::wrong(&path.join(STATE), why)));
            }
            let (file, had) = (path.join(name), written.bytes);
            match fs::metadata(&file) {
                Ok(found) if found.is_file() && found.len() != had => {
                    let has = found.len();
                    let why =
                        format!("has {has} bytes and had {had} when it was saved; take another checkpoint");
                    return Err(Fault::Broken(FileError::wrong(&file, why)));
                }
                Ok(_) => {}
                Err(fault) if fault.kind() == io::ErrorKind::NotFound => {
                    return Err(Fault::Broken(FileError::reading(&file, &fault)));
                }
                Err(fault) => return Err(Fault::Unreadable(FileError::reading(&file, &fault))),
            }
        }
        Ok(Checkpoint { path: path.to_owned(), state })
    }

    /// The text of the plan that the run went by, where the checkpoint keeps it and it can be read.
    pub fn plan(&self) -> Option<String> {
        self.state.files.contains_key(PLAN).then(|| read_any_text(&self.path.join(PLAN)).ok())?
    }

    /// The step of the best evaluation it knows, and the folder of that step's checkpoint: beside it, or itself.
    pub(super) fn best(&self) -> Option<(u64, PathBuf)> {
        let Best { step, .. } = self.state.progress.best?;
        let own = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        let path = if step == self.state.step { own } else { own.with_file_name(format!("{PREFIX}{step}")) };
        Some((step, path))
    }

    /// Settings that may differ in a resumed run and do differ from these facts: name, value then and value now.
    pub(crate) fn changes(&self, facts: &BTreeMap<String, String>) -> Vec<(&'static str, String, String)> {
        let changed = |name| {
            let (then, now) = (self.state.facts.get(name)?, facts.get(name)?);
            (then != now).then(|| (name, then.clone(), now.clone()))
        };
        changeable().filter_map(changed).collect()
    }

    /// Refuses to resume a run if a fact differs from the saved run.
    pub(super) fn check_facts(&self, facts: &BTreeMap<String, String>) -> Result<(), FileError> {
        for name in facts.keys().chain(self.state.facts.keys()) {
            let [now, then] = [facts, &self.state.facts].map(|of| value_of(of, name));
            if differ(name, then, now) {
                let [now, then] = [now, then].map(|value| value.unwrap_or("none"));
                let why = format!(
                    "is a checkpoint of another run: its {name} is {then}, here it is {now}; \
                     resume with the same settings, or give another --output-dir"
                );
                return Err(FileError::wrong(&self.path, why));
            }
        }
        Ok(())
    }
}
