//! Names in a run's folder: those of each kind of checkpoint while it is written, kept and removed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::files::FileError;

/// Prefix of the step in the name of a checkpoint's folder.
pub(super) const PREFIX: &str = "checkpoint-";
/// Name of the file that holds the run's plan.
pub(super) const PLAN: &str = "plan.jsonl";
/// Name of the file that makes a folder a checkpoint.
pub(super) const STATE: &str = "trainer_state.json";

/// The purpose of a kept checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A regular checkpoint: `--resume latest` takes the newest, rotation removes the oldest.
    Regular,
    /// The run before a step whose numbers were not finite. The same settings lead to the same step, so a run resumes
    /// from it only by name, and rotation does not touch it.
    LastFinite,
}

impl Kind {
    pub(super) const ALL: [Kind; 2] = [Kind::Regular, Kind::LastFinite];

    /// The text before the step.
    fn prefix(self) -> &'static str {
        match self {
            Kind::Regular => PREFIX,
            Kind::LastFinite => "last-finite-",
        }
    }
}

/// A checkpoint by kind and step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) kind: Kind,
    pub(super) step: u64,
}

impl Name {
    pub(super) fn regular(step: u64) -> Name {
        Name { kind: Kind::Regular, step }
    }

    fn text(self) -> String {
        format!("{}{}", self.kind.prefix(), self.step)
    }

    /// The path of the checkpoint in `folder`.
    pub(super) fn path(self, folder: &Path) -> PathBuf {
        folder.join(self.text())
    }

    /// The path under which the checkpoint is written, before it is renamed.
    pub(super) fn temporary(self, folder: &Path) -> PathBuf {
        folder.join(format!("{TEMPORARY}{}", self.text()))
    }

    /// The path to which the checkpoint is renamed before it is removed.
    pub(super) fn discarded(self, folder: &Path) -> PathBuf {
        folder.join(format!("{DISCARDED}{}", self.text()))
    }
}

const TEMPORARY: &str = ".tmp-";
const DISCARDED: &str = ".tmp-old-";

/// The steps of all checkpoints of a kind, in order, by their names alone.
pub(super) fn steps(folder: &Path, kind: Kind) -> Result<Vec<u64>, FileError> {
    numbered(folder, kind.prefix())
}

/// The steps of all checkpoints of a kind that were being written.
pub(super) fn temporaries(folder: &Path, kind: Kind) -> Result<Vec<u64>, FileError> {
    numbered(folder, &format!("{TEMPORARY}{}", kind.prefix()))
}

/// The steps of all checkpoints of a kind that were being removed.
pub(super) fn discarded(folder: &Path, kind: Kind) -> Result<Vec<u64>, FileError> {
    numbered(folder, &format!("{DISCARDED}{}", kind.prefix()))
}

fn numbered(folder: &Path, prefix: &str) -> Result<Vec<u64>, FileError> {
    let unreadable = |fault: io::Error| FileError::reading(folder, &fault);
    let mut steps = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix(prefix));
        // Formatted again and compared, so that `checkpoint-007` is not taken for ours.
        let number =
            step.and_then(|step| step.parse().ok().filter(|number: &u64| number.to_string() == step));
        steps.extend(number);
    }
    steps.sort_unstable();
    Ok(steps)
}

/// Whether anything has this name, a link that leads nowhere included.
pub(super) fn is_taken(path: &Path) -> Result<bool, FileError> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(fault) => Err(FileError::reading(path, &fault)),
    }
}
