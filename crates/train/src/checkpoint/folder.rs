//! The folder that checkpoints of one run lie in: written, found, rotated.
//!
//! The folder is locked while a run has it open, so that no second run tidies away what the first is
//! writing. The lock is the system's and ends with the process, however it ends.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use plimsoll_exec::Device;

use super::optimizer;
use super::state::{Checkpoint, PREFIX, PlanSummary, Progress, STATE, TrainerState};
use crate::error::TrainError;
use crate::files::{FileError, Form, Loaded, ModelFolder, UNFINISHED};
use crate::files::{copy_file, read_bytes, sync_folder, write_model};
use crate::run::Run;

/// What is being written, and what is being removed.
const TEMPORARY: &str = ".tmp-checkpoint-";
const DISCARDED: &str = ".tmp-old-checkpoint-";

/// Where a run saves itself.
#[derive(Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    /// How the model is laid down in each.
    form: Form,
    /// How many are kept; all when absent.
    limit: Option<usize>,
    /// Holds the lock.
    _lock: File,
}

/// The newest whole checkpoint, and what was passed over on the way to it.
#[derive(Debug)]
pub struct Found {
    /// The checkpoint, if any is whole.
    pub checkpoint: Option<Checkpoint>,
    /// Newer ones that are broken, each with its reason.
    pub broken: Vec<FileError>,
}

impl Checkpoints {
    /// Makes the folder ready: creates it, locks it, and clears what a killed run left.
    ///
    /// # Errors
    ///
    /// When it cannot be written, or another run has it.
    pub fn open(folder: &Path, form: Form, limit: Option<usize>) -> Result<Checkpoints, FileError> {
        let unwritable = |fault: io::Error| {
            FileError::wrong(folder, format!("cannot be written to ({fault}); give another --output-dir"))
        };
        fs::create_dir_all(folder).map_err(unwritable)?;
        let lock = File::open(folder).map_err(unwritable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let why = "is in use by another run; wait for its end or give another --output-dir";
                return Err(FileError::wrong(folder, why));
            }
            Err(TryLockError::Error(fault)) => return Err(unwritable(fault)),
        }
        // Better known now than after the first hours.
        let probe = folder.join(".tmp-probe");
        File::create(&probe).and_then(|_| fs::remove_file(&probe)).map_err(unwritable)?;
        tidy(folder)?;
        Ok(Checkpoints { folder: folder.to_owned(), form: Form::default(), limit, _lock: lock }.in_form(form))
    }

    /// The same folder, in which models are laid down in another form.
    #[must_use]
    pub fn in_form(self, form: Form) -> Checkpoints {
        // A run goes on from the very numbers it had, whatever the model is to be written as in the end.
        Checkpoints { form: Form { dtype: None, ..form }, ..self }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// How many checkpoints there are, whole or not.
    ///
    /// # Errors
    ///
    /// When the folder cannot be read.
    pub fn count(&self) -> Result<usize, FileError> {
        Ok(steps(&self.folder, PREFIX)?.len())
    }

    /// The newest checkpoint whose checksums hold.
    ///
    /// # Errors
    ///
    /// When the folder cannot be read. A broken checkpoint is no error: it is passed over and named.
    pub fn latest(&self) -> Result<Found, FileError> {
        let mut broken = Vec::new();
        for step in steps(&self.folder, PREFIX)?.into_iter().rev() {
            match Checkpoint::open(&self.path(step)) {
                Ok(checkpoint) => return Ok(Found { checkpoint: Some(checkpoint), broken }),
                Err(fault) => broken.push(fault),
            }
        }
        Ok(Found { checkpoint: None, broken })
    }

    /// Saves a run that stands between two steps; returns the new checkpoint's folder.
    ///
    /// `position` counts the groups taken from the data, `facts` is what a run that goes on must share.
    ///
    /// # Errors
    ///
    /// When it cannot be written; then what was saved before is as it was.
    pub fn save<D: Device>(
        &self,
        run: &Run<D>,
        position: u64,
        facts: BTreeMap<String, String>,
        progress: &Progress,
    ) -> Result<PathBuf, TrainError> {
        let step = run.steps();
        let temporary = self.folder.join(format!("{TEMPORARY}{step}"));
        if let Err(error) = self.write(run, position, facts, progress, &temporary) {
            // Why it failed matters more than what the next start will tidy away.
            let _ = fs::remove_dir_all(&temporary);
            return Err(error);
        }
        let saved = self.name(&temporary, step)?;
        self.rotate(step, progress)?;
        Ok(saved)
    }

    /// Gives what was written whole its name, in the place of an older one of the same step.
    fn name(&self, temporary: &Path, step: u64) -> Result<PathBuf, FileError> {
        self.forget(step)?;
        let named = self.path(step);
        fs::rename(temporary, &named).map_err(|fault| FileError::writing(&named, &fault))?;
        sync_folder(&self.folder)?;
        Ok(named)
    }

    fn write<D: Device>(
        &self,
        run: &Run<D>,
        position: u64,
        facts: BTreeMap<String, String>,
        progress: &Progress,
        folder: &Path,
    ) -> Result<(), TrainError> {
        remove(folder)?;
        fs::create_dir(folder).map_err(|fault| FileError::writing(folder, &fault))?;
        let parameters = run.parameters(self.form.frozen);
        let mut files: BTreeMap<_, _> =
            write_model(run.engine(), parameters, folder, &self.form)?.into_iter().collect();
        files.insert(optimizer::OPTIMIZER.to_owned(), optimizer::write(run, folder)?);
        let at = (run.steps(), position);
        TrainerState::new(at, facts, progress.clone(), PlanSummary::of(run), files).write(folder)?;
        Ok(sync_folder(folder)?)
    }

    /// Puts a run back to where a checkpoint was saved. The data is the caller's to bring there too.
    ///
    /// # Errors
    ///
    /// When the checkpoint is of another model or another run; then the run must not go on.
    pub fn restore<D: Device>(
        &self,
        run: &mut Run<D>,
        checkpoint: &Checkpoint,
        facts: &BTreeMap<String, String>,
    ) -> Result<(), TrainError> {
        checkpoint.check_facts(facts)?;
        self.return_to(run, checkpoint)
    }

    /// Gives a run the weights of a checkpoint and the optimizer state that belongs to them: of the best evaluation,
    /// say.
    ///
    /// # Errors
    ///
    /// When the checkpoint is of another model; then the run must not go on.
    pub fn return_to<D: Device>(&self, run: &mut Run<D>, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        let model = ModelFolder::open_named(&checkpoint.path, &self.form.stem)?;
        let Loaded { unused, absent } = run.load_weights(&model, &self.form)?;
        let of_another_model = |why: String| FileError::wrong(&checkpoint.path, why);
        if let Some(name) = unused.first() {
            let why = format!("holds `{name}`, which this model does not have; it is of another model");
            return Err(of_another_model(why).into());
        }
        if let Some(name) = absent.first() {
            let why = format!("lacks `{name}`, which this model has; it is of another model");
            return Err(of_another_model(why).into());
        }
        optimizer::read(run, &checkpoint.path)?;
        run.continue_after(checkpoint.state.step);
        Ok(())
    }

    /// Checkpoints here that a run which goes on from `from` would take for its own, by step: those after it, of a
    /// course that is given up; and where `from` lies in another folder, all but a copy of its best.
    ///
    /// # Errors
    ///
    /// When the folder cannot be read.
    pub fn in_the_way(&self, from: &Checkpoint) -> Result<Vec<u64>, FileError> {
        let mut steps = steps(&self.folder, PREFIX)?;
        if self.holds(from) {
            steps.retain(|&step| step > from.state.step);
        } else {
            let best = from.best().filter(|(step, path)| same_state(&self.path(*step), path));
            steps.retain(|&step| best.as_ref().is_none_or(|(best, _)| *best != step));
        }
        Ok(steps)
    }

    /// Whether a checkpoint is one of this folder's own.
    pub fn holds(&self, checkpoint: &Checkpoint) -> bool {
        let place = |path: &Path| path.canonicalize().ok();
        place(&checkpoint.path).is_some_and(|path| path.parent() == place(&self.folder).as_deref())
    }

    /// Looks for the best checkpoint that `from` tells of, and copies it where it lies beside `from` in another folder.
    /// Says whether it is here now, if there is any: then rotation spares it and the run can return to it.
    ///
    /// # Errors
    ///
    /// When it cannot be copied.
    pub(crate) fn bring_best(&self, from: &Checkpoint) -> Result<bool, FileError> {
        let Some((step, path)) = from.best() else { return Ok(true) };
        let own = self.holds(from);
        if own && step == from.state.step || !own && same_state(&self.path(step), &path) {
            return Ok(true);
        }
        match Checkpoint::open(&path) {
            Ok(best) if best.state.step == step => {
                if !own {
                    self.copy(&best)?;
                }
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn copy(&self, checkpoint: &Checkpoint) -> Result<(), FileError> {
        let step = checkpoint.state.step;
        let temporary = self.folder.join(format!("{TEMPORARY}{step}"));
        remove(&temporary)?;
        fs::create_dir(&temporary).map_err(|fault| FileError::writing(&temporary, &fault))?;
        for name in checkpoint.state.files.keys().map(String::as_str).chain([STATE]) {
            copy_file(&checkpoint.path.join(name), &temporary.join(name))?;
        }
        sync_folder(&temporary)?;
        self.name(&temporary, step).map(drop)
    }

    /// Removes the oldest beyond the limit, but never the one just saved nor the best.
    fn rotate(&self, saved: u64, progress: &Progress) -> Result<(), FileError> {
        let Some(limit) = self.limit else { return Ok(()) };
        let best = progress.best.map(|best| best.step);
        let mut others = steps(&self.folder, PREFIX)?;
        others.retain(|&step| step != saved && Some(step) != best);
        let spare = limit.saturating_sub(1);
        for &step in &others[..others.len().saturating_sub(spare)] {
            self.discard(step)?;
        }
        Ok(())
    }

    /// Removes the checkpoint after `step`, if it is there.
    ///
    /// # Errors
    ///
    /// When it cannot be removed.
    pub fn forget(&self, step: u64) -> Result<(), FileError> {
        if self.path(step).exists() { self.discard(step) } else { Ok(()) }
    }

    /// Takes a checkpoint its name away, then its files: nobody finds it half removed.
    fn discard(&self, step: u64) -> Result<(), FileError> {
        let (path, discarded) = (self.path(step), self.folder.join(format!("{DISCARDED}{step}")));
        remove(&discarded)?;
        fs::rename(&path, &discarded).map_err(|fault| FileError::writing(&path, &fault))?;
        sync_folder(&self.folder)?;
        remove(&discarded)
    }

    /// Where the checkpoint after `step` lies, if there is one.
    pub fn path(&self, step: u64) -> PathBuf {
        self.folder.join(format!("{PREFIX}{step}"))
    }
}

/// Clears temporaries. One that is whole only lacks its name: the run was killed while it put the new in
/// the place of an old one of the same step, and the old one may be gone.
fn tidy(folder: &Path) -> Result<(), FileError> {
    for step in steps(folder, TEMPORARY)? {
        let temporary = folder.join(format!("{TEMPORARY}{step}"));
        let named = folder.join(format!("{PREFIX}{step}"));
        if !named.exists() && Checkpoint::open(&temporary).is_ok() {
            fs::rename(&temporary, &named).map_err(|fault| FileError::writing(&named, &fault))?;
        } else {
            remove(&temporary)?;
        }
    }
    for step in steps(folder, DISCARDED)? {
        remove(&folder.join(format!("{DISCARDED}{step}")))?;
    }
    remove(&folder.join(UNFINISHED))
}

/// Whether two checkpoints say the same about themselves, checksums of their files included.
fn same_state(one: &Path, other: &Path) -> bool {
    let [one, other] = [one, other].map(|checkpoint| read_bytes(&checkpoint.join(STATE)));
    matches!((one, other), (Ok(one), Ok(other)) if one == other)
}

/// The steps of all folders named so, in order.
fn steps(folder: &Path, prefix: &str) -> Result<Vec<u64>, FileError> {
    let unreadable = |fault: io::Error| FileError::reading(folder, &fault);
    let mut steps = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix(prefix));
        // Written back, so that `checkpoint-007` is not taken for ours.
        let number =
            step.and_then(|step| step.parse().ok().filter(|number: &u64| number.to_string() == step));
        steps.extend(number);
    }
    steps.sort_unstable();
    Ok(steps)
}

/// Removes a folder if it is there.
fn remove(folder: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(folder) {
        Err(fault) if fault.kind() != io::ErrorKind::NotFound => Err(FileError::writing(folder, &fault)),
        _ => Ok(()),
    }
}
