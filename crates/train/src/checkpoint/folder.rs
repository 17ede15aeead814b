//! The folder that checkpoints of one run lie in: written, found, rotated.
//!
//! The folder is locked while a run has it open, so that no second run clears away files that the first is writing. The
//! system holds the lock and releases it with the process, however that ends. `own.rs` alone decides which checkpoints
//! may be removed.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::names::{Kind, Name, PLAN, STATE, is_taken, steps};
use super::own::{Ledger, remove, set_aside};
use super::recovery::recover;
use super::state::{Checkpoint, EvaluationState, Fault, PlanSummary, TrainerState};
use super::{optimizer, own::Facts};
use crate::error::TrainError;
use crate::files::{FileError, Loaded, ModelFolder, ModelFormat};
use crate::files::{
    check_writable, copy_file, create_folder, read_bytes, sync_folder, write_model, write_text,
};
use crate::run::Run;

/// Where a run saves itself.
#[derive(Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    /// The format of the model's files in each checkpoint.
    form: ModelFormat,
    /// The number of checkpoints to keep; all when absent.
    limit: Option<usize>,
    /// The plan that the run goes by, as text; each checkpoint keeps it.
    plan: Option<String>,
    /// Which checkpoints this process may remove.
    ledger: Ledger,
    /// Holds the lock.
    _lock: File,
}

/// The newest whole checkpoint, and the broken ones that were skipped on the way to it.
#[derive(Debug)]
pub struct Found {
    /// The checkpoint; `None` if the folder has no checkpoint that plimsoll wrote.
    pub checkpoint: Option<Checkpoint>,
    /// Newer checkpoints that are broken, each with its reason.
    pub broken: Vec<FileError>,
    /// Newer folders by the name of a checkpoint that no run of plimsoll wrote.
    pub foreign: Vec<FileError>,
}

/// Gives a run the weights in a checkpoint's folder, or its own part of them.
pub(crate) fn read_model(run: &mut Run, folder: &Path, form: &ModelFormat) -> Result<(), TrainError> {
    let Loaded { unused, absent } = run.load_weights(&ModelFolder::open_named(folder, &form.stem)?, form)?;
    let of_another_model = |why: String| FileError::wrong(folder, why);
    if let Some(name) = unused.first() {
        let why = format!("holds `{name}`, which this model does not have; it is of another model");
        return Err(of_another_model(why).into());
    }
    if let Some(name) = absent.first() {
        let why = format!("lacks `{name}`, which this model has; it is of another model");
        return Err(of_another_model(why).into());
    }
    Ok(())
}

impl Checkpoints {
    /// Prepares the folder: creates it, locks it, and clears the remains of a killed run.
    ///
    /// # Errors
    ///
    /// When it cannot be written, or another run has it.
    pub fn open(folder: &Path, form: ModelFormat, limit: Option<usize>) -> Result<Checkpoints, FileError> {
        let unwritable = |fault: io::Error| {
            FileError::wrong(folder, format!("cannot be written to ({fault}); give another --output-dir"))
        };
        create_folder(folder).map_err(unwritable)?;
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
        check_writable(folder).map_err(unwritable)?;
        recover(folder)?;
        let (folder, ledger) = (folder.to_owned(), Ledger::default());
        let unformed =
            Checkpoints { folder, form: ModelFormat::default(), limit, plan: None, ledger, _lock: lock };
        Ok(unformed.in_form(form))
    }

    /// The same folder, in which models are written in another format.
    #[must_use]
    pub fn in_form(self, form: ModelFormat) -> Checkpoints {
        // A run resumes from exactly the numbers it had, independent of the element type of the final model.
        Checkpoints { form: ModelFormat { dtype: None, ..form }, ..self }
    }

    /// The same folder for a run with a plan, which its checkpoints then keep: a run that resumes from one of them need
    /// not search for a plan again.
    #[must_use]
    pub fn with_plan(self, plan: String) -> Checkpoints {
        Checkpoints { plan: Some(plan), ..self }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The number of folders that describe themselves as checkpoints of plimsoll.
    ///
    /// # Errors
    ///
    /// When the folder cannot be read.
    pub fn count(&self) -> Result<usize, FileError> {
        let steps = steps(&self.folder, Kind::Regular)?;
        Ok(steps.into_iter().filter(|&step| Checkpoint::glance(&self.path(step)).is_ok()).count())
    }

    /// The newest checkpoint whose checksums hold. Broken ones are skipped and named, as long as one is whole.
    ///
    /// # Errors
    ///
    /// When the folder or a newer checkpoint cannot be read, or when all checkpoints are broken: a run that started
    /// over would lose them.
    pub fn latest(&self) -> Result<Found, FileError> {
        let mut found = Found { checkpoint: None, broken: Vec::new(), foreign: Vec::new() };
        for step in steps(&self.folder, Kind::Regular)?.into_iter().rev() {
            match Checkpoint::examine(&self.path(step)) {
                Ok(checkpoint) => {
                    found.checkpoint = Some(checkpoint);
                    return Ok(found);
                }
                Err(Fault::Broken(fault)) => found.broken.push(fault),
                Err(Fault::Foreign(fault)) => found.foreign.push(fault),
                Err(Fault::Unreadable(fault)) => return Err(self.unreadable(step, &fault)),
            }
        }
        match found.broken.first() {
            None => Ok(found),
            Some(newest) => {
                let count = found.broken.len();
                let them = if count == 1 { "a checkpoint".into() } else { format!("{count} checkpoints") };
                let why = format!(
                    "holds {them} and none that is whole: {newest}; to begin anew, name another --output-dir or move them \
                     away"
                );
                Err(FileError::wrong(&self.folder, why))
            }
        }
    }

    /// The fault of a checkpoint that may be whole, with the way out.
    fn unreadable(&self, step: u64, fault: &FileError) -> FileError {
        let path = self.path(step);
        let why = format!(
            "may be whole and cannot be read now: {fault}; mend that, or move the checkpoint away to go on without it"
        );
        FileError::wrong(&path, why)
    }

    /// The step of the newest regular checkpoint before `step`, by its name alone.
    ///
    /// # Errors
    ///
    /// When the folder cannot be read.
    pub(crate) fn newest_before(&self, step: u64) -> Result<Option<u64>, FileError> {
        Ok(steps(&self.folder, Kind::Regular)?.into_iter().rev().find(|known| *known < step))
    }

    /// Step and folder of the newest state that was kept because the step after it was not finite, if there is one.
    ///
    /// # Errors
    ///
    /// When the folder cannot be read.
    pub fn last_finite(&self) -> Result<Option<(u64, PathBuf)>, FileError> {
        Checkpoints::last_finite_in(&self.folder)
    }

    /// The same of a run's folder that is not opened.
    ///
    /// # Errors
    ///
    /// When the folder cannot be read.
    pub fn last_finite_in(folder: &Path) -> Result<Option<(u64, PathBuf)>, FileError> {
        let step = steps(folder, Kind::LastFinite)?.pop();
        Ok(step.map(|step| (step, Name { kind: Kind::LastFinite, step }.path(folder))))
    }

    /// Sentences about checkpoints that were left or set aside since the last call.
    pub fn take_notes(&self) -> Vec<String> {
        self.ledger.take_notes()
    }

    /// Saves a run that stands between two steps; returns the new checkpoint's folder.
    ///
    /// `position` counts the groups taken from the data; a run that resumes must have the same `facts`.
    ///
    /// # Errors
    ///
    /// When it cannot be written; earlier checkpoints stay as they were.
    pub fn save(
        &self,
        run: &Run,
        position: u64,
        facts: &BTreeMap<String, String>,
        progress: &EvaluationState,
    ) -> Result<PathBuf, TrainError> {
        let step = run.steps();
        let saved = self.save_as(Name::regular(step), run, position, facts, progress)?;
        self.rotate(step, facts, progress);
        Ok(saved)
    }

    /// Saves a run whose next step is not finite, under a name that rotation does not touch.
    ///
    /// # Errors
    ///
    /// When it cannot be written; earlier checkpoints stay as they were.
    pub fn save_last_finite(
        &self,
        run: &Run,
        position: u64,
        facts: &BTreeMap<String, String>,
        progress: &EvaluationState,
    ) -> Result<PathBuf, TrainError> {
        self.save_as(Name { kind: Kind::LastFinite, step: run.steps() }, run, position, facts, progress)
    }

    fn save_as(
        &self,
        name: Name,
        run: &Run,
        position: u64,
        facts: &Facts,
        progress: &EvaluationState,
    ) -> Result<PathBuf, TrainError> {
        let temporary = name.temporary(&self.folder);
        match self.write(run, position, facts, progress, &temporary) {
            Ok(state) => Ok(self.name(name, &state, facts)?),
            Err(error) => {
                // The fault matters more than files that the next start will remove.
                let _ = fs::remove_dir_all(&temporary);
                Err(error)
            }
        }
    }

    /// Renames a complete checkpoint into place, over an older one of the same step. Anything else with that name is
    /// set aside.
    fn name(&self, name: Name, state: &TrainerState, facts: &Facts) -> Result<PathBuf, FileError> {
        let (temporary, named) = (name.temporary(&self.folder), name.path(&self.folder));
        let mut replaced = None;
        if is_taken(&named)? {
            if let Some(own) = self.ledger.prove(name, &self.folder, facts) {
                replaced = Some(own.rename_away(&self.folder)?);
            } else {
                let aside = set_aside(&named)?;
                self.ledger.note(format!("its name is needed; it is now {}", aside.display()));
            }
        }
        fs::rename(&temporary, &named).map_err(|fault| FileError::writing(&named, &fault))?;
        sync_folder(&self.folder)?;
        self.ledger.know(&named, state);
        if let Some(replaced) = replaced {
            remove(&replaced)?;
        }
        Ok(named)
    }

    fn write(
        &self,
        run: &Run,
        position: u64,
        facts: &Facts,
        progress: &EvaluationState,
        folder: &Path,
    ) -> Result<TrainerState, TrainError> {
        remove(folder)?;
        fs::create_dir(folder).map_err(|fault| FileError::writing(folder, &fault))?;
        let parameters = run.parameters(self.form.frozen);
        let mut files: BTreeMap<_, _> =
            write_model(run, parameters, folder, &self.form)?.into_iter().collect();
        files.insert(optimizer::OPTIMIZER.to_owned(), optimizer::write(run, folder)?);
        if let Some(plan) = &self.plan {
            files.insert(PLAN.to_owned(), write_text(&folder.join(PLAN), plan)?);
        }
        let at = (run.steps(), position);
        let state = TrainerState::new(at, facts.clone(), progress.clone(), PlanSummary::of(run), files);
        let state = state.write(folder)?;
        sync_folder(folder)?;
        Ok(state)
    }

    /// Puts a run back to where a checkpoint was saved. The data is the caller's to bring there too.
    ///
    /// # Errors
    ///
    /// When the checkpoint is of another model or another run; then the run must not continue.
    pub fn restore(
        &self,
        run: &mut Run,
        checkpoint: &Checkpoint,
        facts: &BTreeMap<String, String>,
    ) -> Result<(), TrainError> {
        checkpoint.check_facts(facts)?;
        self.return_to(run, checkpoint)?;
        if self.holds(checkpoint)
            && checkpoint.path.file_name() == self.path(checkpoint.state.step).file_name()
        {
            self.ledger.know(&self.path(checkpoint.state.step), &checkpoint.state);
        }
        Ok(())
    }

    /// Gives a run the weights of a checkpoint, such as the best one, and the optimizer state that belongs to them.
    ///
    /// # Errors
    ///
    /// When the checkpoint is of another model; then the run must not continue.
    pub fn return_to(&self, run: &mut Run, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        read_model(run, &checkpoint.path, &self.form)?;
        optimizer::read(run, &checkpoint.path)?;
        run.continue_after(checkpoint.state.step);
        Ok(())
    }

    /// Checkpoints here, by step, that a run resuming from `from` would wrongly take for its own. If `from` lies here, they
    /// are all later checkpoints, whose course is abandoned. If `from` lies in another folder, they are all checkpoints
    /// except a copy of its best.
    ///
    /// # Errors
    ///
    /// When the folder cannot be read.
    pub fn in_the_way(&self, from: &Checkpoint) -> Result<Vec<u64>, FileError> {
        let mut steps = steps(&self.folder, Kind::Regular)?;
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

    /// Looks for the best checkpoint that `from` names, and copies it here if it lies beside `from` in another folder.
    /// Returns false if it is lost. Otherwise it now lies here, where rotation keeps it and the run can return to it, or
    /// `from` names none.
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
        let name = Name::regular(checkpoint.state.step);
        let temporary = name.temporary(&self.folder);
        remove(&temporary)?;
        fs::create_dir(&temporary).map_err(|fault| FileError::writing(&temporary, &fault))?;
        for name in checkpoint.state.files.keys().map(String::as_str).chain([STATE]) {
            copy_file(&checkpoint.path.join(name), &temporary.join(name))?;
        }
        sync_folder(&temporary)?;
        self.name(name, &checkpoint.state, &checkpoint.state.facts).map(drop)
    }

    /// Removes checkpoints that a kill after the last save left here: the former best that `from` surpassed, and those
    /// beyond the limit. `progress` holds the run's measurements so far, with its best.
    pub(crate) fn clear_left_over(&self, from: &Checkpoint, facts: &Facts, progress: &EvaluationState) {
        if self.holds(from) {
            if let Some(surpassed) = from.state.progress.surpasses {
                self.forget(surpassed, facts);
            }
            self.rotate(from.state.step, facts, progress);
        }
    }

    /// Removes the oldest checkpoints beyond the limit, but never the one just saved nor the best. Only whole
    /// checkpoints of this run count. A checkpoint that cannot be removed stays and is noted: the run matters more
    /// than disk space.
    fn rotate(&self, saved: u64, facts: &Facts, progress: &EvaluationState) {
        let Some(limit) = self.limit else { return };
        let best = progress.best.map(|best| best.step);
        let steps = steps(&self.folder, Kind::Regular).unwrap_or_else(|fault| {
            self.ledger.note(format!("no checkpoint was removed: {fault}"));
            Vec::new()
        });
        let others = steps.into_iter().rev().filter(|&step| step < saved && Some(step) != best);
        let counts = |step: &u64| {
            let other = Checkpoint::glance(&self.path(*step)).map_err(Fault::into_error);
            other.is_ok_and(|other| other.check_facts(facts).is_ok())
        };
        for step in others.filter(counts).skip(limit.saturating_sub(1)).collect::<Vec<u64>>() {
            self.forget(step, facts);
        }
    }

    /// Removes the checkpoint after `step`, if it exists and is this run's; otherwise it stays, with a note.
    pub fn forget(&self, step: u64, facts: &BTreeMap<String, String>) {
        let name = Name::regular(step);
        if is_taken(&name.path(&self.folder)).is_ok_and(|taken| !taken) {
            return;
        }
        let own = self.ledger.prove(name, &self.folder, facts);
        if let Some(Err(fault)) = own.map(|own| own.discard(&self.folder)) {
            self.ledger.note(format!("a checkpoint that is no longer needed was not removed: {fault}"));
        }
    }

    /// Where the checkpoint after `step` lies, if there is one.
    pub fn path(&self, step: u64) -> PathBuf {
        Name::regular(step).path(&self.folder)
    }
}

/// Whether two checkpoints have the same description, checksums of their files included.
fn same_state(one: &Path, other: &Path) -> bool {
    let [one, other] = [one, other].map(|checkpoint| read_bytes(&checkpoint.join(STATE)));
    matches!((one, other), (Ok(one), Ok(other)) if one == other)
}
