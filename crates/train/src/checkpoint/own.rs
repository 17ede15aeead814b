//! The right to remove a checkpoint.
//!
//! Nothing is removed unless this process has written it, or has read every byte of it and found it whole and of the
//! same run. [`Own`] is that proof: only [`Ledger::prove`] makes one, and only an [`Own`] can be discarded. Anything
//! else with the name of a checkpoint (a folder of another program or run, a damaged one, one that is unreadable at the
//! moment) stays; if its name is needed, it is set aside under another name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::names::{Name, is_taken};
use super::state::{Checkpoint, TrainerState};
use crate::files::{FileError, sync_folder};

/// Facts that a resumed run must share with the run that saved.
pub(super) type Facts = BTreeMap<String, String>;

/// Checkpoints that this process has written or read as whole, and notes about others.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    /// Path and identity of each checkpoint that is known to be whole and of this run.
    known: BTreeMap<PathBuf, String>,
    /// Checkpoints that were found not to be this run's, so that they are neither read nor reported again.
    doubtful: BTreeSet<PathBuf>,
    notes: Vec<String>,
}

impl Ledger {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that this process has just written a checkpoint, or read it as whole and of this run.
    pub(super) fn know(&self, path: &Path, state: &TrainerState) {
        let mut pages = self.pages();
        pages.doubtful.remove(path);
        pages.known.insert(path.to_owned(), state.identity().to_owned());
    }

    /// Records a note for the user of the run.
    pub(super) fn note(&self, sentence: String) {
        self.pages().notes.push(sentence);
    }

    /// The sentences so far, each once.
    pub(super) fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut self.pages().notes)
    }

    /// Proves that a checkpoint may be removed: from memory if this process knows it, otherwise by reading it. If it
    /// may not be removed, reports the reason once.
    pub(super) fn prove(&self, name: Name, folder: &Path, facts: &Facts) -> Option<Own> {
        let path = name.path(folder);
        if self.pages().doubtful.contains(&path) {
            return None;
        }
        if self.is_known(&path) {
            return Some(Own { name, path });
        }
        match read_own(name, &path, facts) {
            Ok(checkpoint) => {
                self.know(&path, &checkpoint.state);
                Some(Own { name, path })
            }
            Err(fault) => {
                let mut pages = self.pages();
                pages.notes.push(format!("{} is left where it is: {fault}", path.display()));
                pages.doubtful.insert(path);
                None
            }
        }
    }

    /// Whether the very checkpoint that this process knows still lies there.
    fn is_known(&self, path: &Path) -> bool {
        let Some(identity) = self.pages().known.get(path).cloned() else { return false };
        TrainerState::read(path).is_ok_and(|state| state.identity() == identity)
    }
}

/// Reads a checkpoint that must be whole, of this run and of the step its name says.
fn read_own(name: Name, path: &Path, facts: &Facts) -> Result<Checkpoint, FileError> {
    let checkpoint = Checkpoint::open(path)?;
    checkpoint.check_facts(facts)?;
    if checkpoint.state.step == name.step {
        return Ok(checkpoint);
    }
    let why = format!("says that it was saved after step {}", checkpoint.state.step);
    Err(FileError::wrong(path, why))
}

/// Proof that this process has written a checkpoint, or read it as whole and of this run.
#[derive(Debug)]
pub(super) struct Own {
    name: Name,
    path: PathBuf,
}

impl Own {
    /// Renames the checkpoint, then removes its files, so that no reader finds it half removed.
    pub(super) fn discard(self, folder: &Path) -> Result<(), FileError> {
        let discarded = self.rename_away(folder)?;
        sync_folder(folder)?;
        remove(&discarded)
    }

    /// Moves the checkpoint away to make room for a newer one of the same name; returns its place until the newer one
    /// is in.
    pub(super) fn rename_away(self, folder: &Path) -> Result<PathBuf, FileError> {
        let discarded = self.name.discarded(folder);
        remove(&discarded)?;
        fs::rename(&self.path, &discarded).map_err(|fault| FileError::writing(&self.path, &fault))?;
        Ok(discarded)
    }
}

/// Renames a folder that must not be removed; returns the new name.
pub(super) fn set_aside(path: &Path) -> Result<PathBuf, FileError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut number = 1;
    loop {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        let aside = path.with_file_name(format!("{name}.before{suffix}"));
        if !is_taken(&aside)? {
            fs::rename(path, &aside).map_err(|fault| FileError::writing(path, &fault))?;
            return Ok(aside);
        }
        number += 1;
    }
}

/// Removes a folder under a temporary name, if it is there.
pub(super) fn remove(folder: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(folder) {
        Err(fault) if fault.kind() != io::ErrorKind::NotFound => Err(FileError::writing(folder, &fault)),
        _ => Ok(()),
    }
}
