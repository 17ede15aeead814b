//! What a checkpoint says about itself, and whether it can be believed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use plimsoll_exec::Device;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::config::facts::{changeable, differ};
use crate::files::{Checksum, FileError, hex, read_text, stays_inside, write_text};
use crate::run::Run;

/// Name of the file that makes a folder a checkpoint.
pub(super) const STATE: &str = "trainer_state.json";
/// What precedes the step in the name of a checkpoint's folder.
pub(super) const PREFIX: &str = "checkpoint-";
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
    /// What must be the same for the run to go on as if never interrupted: seed, global batch, data.
    pub facts: BTreeMap<String, String>,
    /// What has been measured so far.
    pub progress: Progress,
    /// The plan that ran. Another may go on.
    pub plan: PlanSummary,
    /// All other files of the checkpoint.
    pub files: BTreeMap<String, Checksum>,
    /// SHA-256 of this file with this field empty.
    checksum: String,
}

/// What a run has come to, as far as the next part of it wants to know.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Training loss of the last step.
    pub loss: Option<f64>,
    /// The last evaluation.
    pub metric: Option<f64>,
    /// The best evaluation. Rotation spares its checkpoint.
    pub best: Option<Best>,
    /// What an evaluation must undercut to count as better, for stopping early.
    pub mark: Option<f64>,
    /// Evaluations since then, for stopping early.
    pub without_gain: u64,
    /// Whether an evaluation was due after this step and the run was stopped before it: the next part begins with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub owes_evaluation: bool,
}

/// The best evaluation so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// After which step.
    pub step: u64,
    /// What it was.
    pub metric: f64,
}

/// How the work was divided, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanSummary {
    /// What is dropped and rebuilt.
    pub recompute: String,
    /// Rows of one micro-batch.
    pub micro_batch: usize,
    /// Micro-batches of one step.
    pub accumulation: usize,
    /// Size of the arena.
    pub arena_bytes: u64,
    /// Bytes of the whole process that were allowed.
    pub budget_bytes: u64,
}

impl PlanSummary {
    pub(super) fn of<D: Device>(run: &Run<D>) -> PlanSummary {
        PlanSummary {
            recompute: run.plan().strategy.to_string(),
            micro_batch: run.micro_batch(),
            accumulation: run.accumulation(),
            arena_bytes: run.plan().arena_bytes,
            budget_bytes: run.budget().total,
        }
    }
}

impl TrainerState {
    pub(super) fn new(
        (step, position): (u64, u64),
        facts: BTreeMap<String, String>,
        progress: Progress,
        plan: PlanSummary,
        files: BTreeMap<String, Checksum>,
    ) -> TrainerState {
        let checksum = String::new();
        TrainerState { format: FORMAT, step, position, facts, progress, plan, files, checksum }
    }

    /// Writes the file into a checkpoint's folder.
    pub(super) fn write(mut self, folder: &Path) -> Result<(), FileError> {
        self.checksum = self.sum();
        write_text(&folder.join(STATE), &format!("{}\n", self.text())).map(drop)
    }

    fn read(path: &Path) -> Result<TrainerState, FileError> {
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let text = read_text(path)?;
        let broken = |fault: serde_json::Error| {
            FileError::wrong(path, format!("is broken ({fault}); take another checkpoint"))
        };
        let Version { format } = serde_json::from_str(&text).map_err(broken)?;
        if format != FORMAT {
            let why =
                format!("has form {format} and this version reads {FORMAT}; use the version that wrote it");
            return Err(FileError::wrong(path, why));
        }
        let state: TrainerState = serde_json::from_str(&text).map_err(broken)?;
        if state.sum() != state.checksum {
            return Err(FileError::wrong(
                path,
                "is not as it was written: its checksum differs; take another checkpoint",
            ));
        }
        Ok(state)
    }

    fn sum(&self) -> String {
        hex(&Sha256::digest(TrainerState { checksum: String::new(), ..self.clone() }.text()))
    }

    fn text(&self) -> String {
        serde_json::to_value(self).map_or_else(|fault| fault.to_string(), |value| format!("{value:#}"))
    }
}

/// A checkpoint that was found whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Its folder.
    pub path: PathBuf,
    /// What it says about itself.
    pub state: TrainerState,
}

impl Checkpoint {
    /// Opens a checkpoint and reads every file of it once, to compare checksums.
    ///
    /// # Errors
    ///
    /// When it is none, or a file of it is missing, cut off or changed.
    pub fn open(path: &Path) -> Result<Checkpoint, FileError> {
        if !path.join(STATE).is_file() {
            return Err(FileError::wrong(
                path,
                format!("is no checkpoint: it has no {STATE}; give the folder checkpoint-N of a run"),
            ));
        }
        let state = TrainerState::read(&path.join(STATE))?;
        for (name, written) in &state.files {
            if !stays_inside(name) {
                let why =
                    format!("names `{name}`, which lies outside its folder; only files beside it are read");
                return Err(FileError::wrong(&path.join(STATE), why));
            }
            let file = path.join(name);
            let found = Checksum::of(&file)?;
            if found.bytes != written.bytes {
                let (has, had) = (found.bytes, written.bytes);
                let why = format!("has {has} bytes and had {had} when it was saved; take another checkpoint");
                return Err(FileError::wrong(&file, why));
            }
            if found != *written {
                let why = "is not as it was saved: its checksum differs; take another checkpoint";
                return Err(FileError::wrong(&file, why));
            }
        }
        Ok(Checkpoint { path: path.to_owned(), state })
    }

    /// The step of the best evaluation it knows, and where the checkpoint of that step was: beside it, or itself.
    pub(super) fn best(&self) -> Option<(u64, PathBuf)> {
        let Best { step, .. } = self.state.progress.best?;
        let own = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        let path = if step == self.state.step { own } else { own.with_file_name(format!("{PREFIX}{step}")) };
        Some((step, path))
    }

    /// What is otherwise in a run that goes on with these facts, though it may: name, value then and value now.
    pub(crate) fn changes(&self, facts: &BTreeMap<String, String>) -> Vec<(&'static str, String, String)> {
        let changed = |name| {
            let (then, now) = (self.state.facts.get(name)?, facts.get(name)?);
            (then != now).then(|| (name, then.clone(), now.clone()))
        };
        changeable().filter_map(changed).collect()
    }

    /// Refuses to go on with a run that differs in a fact from the one that was saved.
    pub(super) fn check_facts(&self, facts: &BTreeMap<String, String>) -> Result<(), FileError> {
        for name in facts.keys().chain(self.state.facts.keys()) {
            let [now, then] = [facts, &self.state.facts].map(|of| of.get(name));
            if differ(name, then, now) {
                let [now, then] = [now, then].map(|value| value.map_or("none", String::as_str));
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
