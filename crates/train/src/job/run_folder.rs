//! The folder of a run: created, locked, searched for a checkpoint to resume from, and at the end given the trained
//! model.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use plimsoll_exec::cpu::free_disk_bytes;
use plimsoll_graph::StateKind;

use super::notes::Note;
use crate::checkpoint::{Checkpoint, Checkpoints};
use crate::config::{Config, OutputConfig, Resume};
use crate::error::TrainError;
use crate::files::{FileError, ModelFormat, check_writable, create_folder};
use crate::memory::Size;
use crate::run::Run;
use crate::trainer::EndRecord;
use crate::trainer::Trainer;

/// Names that a run writes beside checkpoints, before the trained model.
const NAMES: [&str; 4] = ["metrics.jsonl", "metrics.jsonl.part", "report.html", "tensorboard"];

/// Refuses a folder that cannot be written to or is not empty, before any long work. Returns whether the folder is new.
pub(super) fn prepare(config: &OutputConfig, resumes: bool) -> Result<bool, TrainError> {
    let folder = &config.folder;
    let unwritable = |error: io::Error| {
        let folder = folder.display();
        TrainError::Config(format!(
            "--output-dir `{folder}` cannot be written to ({error}); name another folder"
        ))
    };
    let is_new = !folder.exists();
    create_folder(folder).and_then(|()| check_writable(folder)).map_err(unwritable)?;
    let mut entries = fs::read_dir(folder).map_err(unwritable)?;
    if entries.next().is_some() && !resumes {
        return Err(TrainError::Config(format!(
            "--output-dir `{}` is not empty; name another folder, or go on with --resume latest",
            folder.display()
        )));
    }
    Ok(is_new)
}

/// Removes halves of files that a killed run has left. The folder must be locked: a run that writes has them too.
fn clear_left_over(folder: &Path) -> Result<(), TrainError> {
    let failed =
        |error: io::Error| TrainError::Output(format!("cannot tidy `{}`: {error}", folder.display()));
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let half = name.to_str().and_then(|name| name.strip_suffix(".part"));
        let of =
            |whole: &str| half.is_some_and(|half| half == whole || half.starts_with(&format!("{whole}.")));
        if (of("report.html") || of("metrics.jsonl")) && entry.file_type().map_err(failed)?.is_file() {
            fs::remove_file(entry.path()).map_err(failed)?;
        }
    }
    Ok(())
}

/// The folder of a run, locked.
#[derive(Debug)]
pub(super) struct RunFolder {
    checkpoints: Checkpoints,
    form: ModelFormat,
    /// The checkpoint that the run resumes from.
    from: Option<Checkpoint>,
}

/// Bytes that the rest of a run takes on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskNeed {
    /// The most checkpoints at one time, beyond those that exist now.
    pub checkpoints: u64,
    /// Bytes of each checkpoint.
    pub each: u64,
    /// Bytes of all these checkpoints and of the trained model.
    pub all: u64,
    /// Bytes that are free, if the system tells.
    pub free: Option<u64>,
}

/// Which weights a run has left in its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finished {
    /// The run was asked to end early: its checkpoints are there, but no model.
    Stopped,
    /// The weights after the last step, which is also the best one.
    Last,
    /// The weights after this step, which had the best evaluation.
    Best(u64),
    /// The weights after the last step, although an earlier step was better.
    NotTheBest {
        /// The last step.
        last: u64,
        /// The earlier step that was better.
        best: BetterStep,
    },
}

/// A step that was better than the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BetterStep {
    /// The step's checkpoint exists.
    Kept(PathBuf),
    /// The step's checkpoint was removed, as the limit on the number of checkpoints allows.
    Gone,
    /// The step's checkpoint was to be used and cannot be read.
    Lost {
        /// The step.
        step: u64,
        /// The fault.
        fault: String,
    },
}

/// Adds a note if a run resumes with other instructions than its checkpoint was computed with.
fn other_instructions(from: &Checkpoint, run: &Run) -> Option<Note> {
    let before = from.state.plan.instructions.clone()?;
    let now = run.engine().device().instructions()?.to_string();
    (before != now).then_some(Note::OtherInstructions { before, now })
}

impl RunFolder {
    /// Locks the folder and finds the checkpoint to resume from. This comes before planning, since the plan depends on
    /// it.
    pub(super) fn open(config: &Config, notes: &mut Vec<Note>) -> Result<Option<RunFolder>, TrainError> {
        let Some(output) = &config.output else { return Ok(None) };
        let form = config.form()?;
        let checkpoints = Checkpoints::open(&output.folder, form.clone(), config.saving.limit)?;
        clear_left_over(&output.folder)?;
        let from = match &config.resume {
            None => None,
            Some(Resume::From(path)) => {
                let from = Checkpoint::open(path)?;
                refuse_to_mix(&checkpoints, &from)?;
                Some(from)
            }
            Some(Resume::Latest) => latest(&checkpoints, notes)?,
        };
        Ok(Some(RunFolder { checkpoints, form, from }))
    }

    pub(super) fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// Sequences per micro-batch of the run so far: with the same number the bits are the same.
    pub(super) fn micro_batch(&self) -> Option<usize> {
        self.from.as_ref().map(|from| from.state.plan.micro_batch)
    }

    /// The plan of the run so far, as its checkpoint keeps it, and the rows of its micro-batches.
    pub(super) fn kept_plan(&self) -> Option<(String, usize)> {
        let from = self.from.as_ref()?;
        Some((from.plan()?, from.state.plan.micro_batch))
    }

    /// The same folder for a run with a plan, which its checkpoints then keep.
    pub(super) fn with_plan(self, plan: String) -> RunFolder {
        RunFolder { checkpoints: self.checkpoints.with_plan(plan), ..self }
    }

    /// Restores a run from its checkpoint, if it resumes from one.
    pub(super) fn resume(
        self,
        config: &Config,
        trainer: &mut Trainer,
        notes: &mut Vec<Note>,
    ) -> Result<RunFolder, TrainError> {
        // Only now is the form known: the data determines the number of classes.
        let form = config.form()?;
        let folder = RunFolder { checkpoints: self.checkpoints.in_form(form.clone()), form, from: self.from };
        if let Some(from) = &folder.from {
            let lost = trainer.resume(&folder.checkpoints, from)?;
            notes.push(Note::Resumed { step: from.state.step, from: from.path.clone() });
            notes.extend(lost.map(Note::LostBest));
            notes.extend(other_instructions(from, trainer.run()));
            let changes = trainer.changes_since(from).into_iter();
            notes.extend(changes.map(|(name, then, now)| Note::Changed { name, then, now }));
            notes.extend(folder.checkpoints.take_notes().into_iter().map(Note::Checkpoints));
        }
        Ok(folder)
    }

    /// The checkpoint that the run goes on from, if there is one.
    pub(super) fn resumed_from(&self) -> Option<&Path> {
        self.from.as_ref().map(|from| &*from.path)
    }

    /// The room that the rest of the run, up to `steps`, takes on the disk. Refuses to begin where the space is missing.
    pub(super) fn disk_need(&self, config: &Config, run: &Run, steps: u64) -> Result<DiskNeed, TrainError> {
        let model: u64 = run.parameters(self.form.frozen).map(|(_, ty)| ty.bytes() as u64).sum();
        let moments = run.states_of(|kind| kind == StateKind::Moment);
        let moments = moments.map(|(name, ty)| run.whole_type(name).unwrap_or(ty).bytes() as u64);
        let each = model + moments.sum::<u64>();
        let checkpoints = self.more_checkpoints(config, run.steps(), steps)?;
        let all = checkpoints.saturating_mul(each).saturating_add(model);
        let folder = self.checkpoints.folder();
        let free = free_disk_bytes(folder).ok();
        if let Some(free) = free.filter(|&free| free < all) {
            let size = |bytes| Size { bytes };
            return Err(TrainError::Config(format!(
                "the run needs {} on the disk of `{}` ({checkpoints} × {} of checkpoints and the model), and {} are free; \
                 make room, name another --output-dir, or keep fewer with --save-total-limit or --save-steps",
                size(all),
                folder.display(),
                size(each),
                size(free)
            )));
        }
        Ok(DiskNeed { checkpoints, each, all, free })
    }

    /// The most checkpoints at one time, beyond those that exist now, including the one being written.
    fn more_checkpoints(&self, config: &Config, done: u64, steps: u64) -> Result<u64, TrainError> {
        let (every, best) = (config.saving.every, u64::from(config.evaluation.is_some()));
        let regular = (steps / every).saturating_sub(done / every);
        let new = regular + u64::from(steps > done && !steps.is_multiple_of(every)) + best;
        let Some(limit) = config.saving.limit else { return Ok(new) };
        let there = self.checkpoints.count()? as u64;
        Ok(new.min((limit as u64 + best + 1).saturating_sub(there).max(1)))
    }

    /// Writes the trained model, unless the run was asked to end early.
    pub(super) fn finish(
        &self,
        config: &Config,
        trainer: &mut Trainer,
        end: &EndRecord,
    ) -> Result<Finished, TrainError> {
        if trainer.stop_requested() {
            return Ok(Finished::Stopped);
        }
        let last = trainer.run().steps();
        let better = end.best.map(|best| best.step).filter(|&step| step != last);
        let better = better.map(|step| (step, self.checkpoints.path(step)));
        let finished = match better {
            None => Finished::Last,
            Some((step, path)) if config.saving.load_best => match Checkpoint::open(&path) {
                Ok(best) => {
                    self.checkpoints.return_to(trainer.run_mut(), &best)?;
                    Finished::Best(step)
                }
                // If the best checkpoint was deleted during the run, the last weights are still written.
                Err(fault) => {
                    Finished::NotTheBest { last, best: BetterStep::Lost { step, fault: fault.to_string() } }
                }
            },
            Some((_, path)) if path.is_dir() => Finished::NotTheBest { last, best: BetterStep::Kept(path) },
            Some(_) => Finished::NotTheBest { last, best: BetterStep::Gone },
        };
        trainer.run().save_weights(self.checkpoints.folder(), &self.form)?;
        Ok(finished)
    }
}

/// The newest whole checkpoint. `None` if no run has saved anything here, so a script may always ask for the latest. If
/// starting over might lose something, that is an error.
fn latest(checkpoints: &Checkpoints, notes: &mut Vec<Note>) -> Result<Option<Checkpoint>, TrainError> {
    let found = checkpoints.latest()?;
    notes.extend(found.broken.iter().map(|broken| Note::BrokenCheckpoint(broken.to_string())));
    let last_finite = checkpoints.last_finite()?;
    if let (Some(checkpoint), Some((step, last))) = (&found.checkpoint, &last_finite)
        && *step > checkpoint.state.step
    {
        notes.push(Note::LaterCheckpoint(last.clone()));
    }
    if found.checkpoint.is_none() {
        let (folder, shown) = (checkpoints.folder(), checkpoints.folder().display());
        if let Some((_, last)) = last_finite {
            let last = last.display();
            return Err(TrainError::Config(format!(
                "`{shown}` holds no checkpoint but {last}, from before a step whose numbers were not finite; the same weights \
                 and data lead to that step again: name an empty folder and begin again with a lower --learning-rate or \
                 --max-grad-norm, or mend the data of that step and go on with `--resume {last}`"
            )));
        }
        if let Some(there) = only_foreign(folder, &found.foreign)? {
            return Err(TrainError::Config(format!(
                "`{shown}` holds no whole checkpoint, {there}; to begin anew, name an empty folder"
            )));
        }
        notes.push(Note::NothingToResume(folder.to_owned()));
    }
    Ok(found.checkpoint)
}

/// A description of the files in a folder without a checkpoint, if a run must not begin beside them. Of several folders by
/// the name of a checkpoint, the newest is explained, since it is the one to go on from.
fn only_foreign(folder: &Path, checkpoints: &[FileError]) -> Result<Option<String>, TrainError> {
    Ok(match checkpoints {
        [] => foreign(folder, |name| NAMES.contains(&name))?.map(|name| format!("and has a `{name}`")),
        [one] => Some(format!("and no run of plimsoll wrote the one there: {one}")),
        [newest, ..] => {
            let count = checkpoints.len();
            Some(format!(
                "and no run of plimsoll wrote the {count} there, of which the newest is this: {newest}"
            ))
        }
    })
}

/// Refuses to resume from a checkpoint in a folder that holds another model, another run, or another course of this
/// one: these would be overwritten, rotated away or resumed from by mistake.
fn refuse_to_mix(checkpoints: &Checkpoints, from: &Checkpoint) -> Result<(), TrainError> {
    let (folder, shown) = (checkpoints.folder(), checkpoints.folder().display());
    let refused = |why: String| Err(TrainError::Config(why));
    let own = checkpoints.holds(from);
    let in_the_way = checkpoints.in_the_way(from)?;
    if let (Some(first), Some(last)) = (in_the_way.first(), in_the_way.last()) {
        let them = match in_the_way.len() {
            1 => format!("checkpoint-{first}"),
            count => format!("{count} checkpoints from checkpoint-{first} to checkpoint-{last}"),
        };
        return refused(if own {
            let from = from.path.display();
            format!(
                "`{shown}` holds {them}, later than {from}; move that away or name another --output-dir, or go on after \
                 it with --resume latest"
            )
        } else {
            format!(
                "`{shown}` holds {them} already; name an empty folder as --output-dir, or go on with what is there with \
                 --resume latest"
            )
        });
    }
    // Checkpoints have been judged.
    match foreign(folder, |name| NAMES.contains(&name) || name.starts_with("checkpoint-"))? {
        Some(name) if !own => refused(format!(
            "`{shown}` holds no checkpoint, and has a `{name}`; name an empty folder as --output-dir"
        )),
        _ => Ok(()),
    }
}

/// The first name in a folder that is not `ours`. Temporary files of runs have been cleared before.
fn foreign(folder: &Path, ours: impl Fn(&str) -> bool) -> Result<Option<String>, TrainError> {
    let unreadable = |error| TrainError::Output(format!("cannot read `{}`: {error}", folder.display()));
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        names.push(entry.map_err(unreadable)?.file_name().to_string_lossy().into_owned());
    }
    Ok(names.into_iter().filter(|name| !ours(name)).min())
}
