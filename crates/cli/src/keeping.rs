//! Where a run keeps what it has learned: finding what to go on from, the room it takes on the disk, and the end.

use std::fs;
use std::path::Path;

use plimsoll::training::checkpoint::{Best, Checkpoint, Checkpoints};
use plimsoll::training::files::Form;
use plimsoll::training::metrics::EndRecord;
use plimsoll::training::{Config, Resume, free_disk_bytes};
use plimsoll::{StateKind, TrainError};

use crate::commands::train::{Session, say};
use crate::exit::Failure;
use crate::{outputs, table};

/// The folder of a run, locked.
pub(crate) struct Kept {
    checkpoints: Checkpoints,
    form: Form,
    /// Where the run goes on.
    from: Option<Checkpoint>,
}

impl Kept {
    /// Locks the folder and finds the checkpoint to go on from: before anything is planned, since it says how.
    pub(crate) fn open(config: &Config) -> Result<Option<Kept>, Failure> {
        let Some(output) = &config.output else { return Ok(None) };
        let form = config.form()?;
        let checkpoints =
            Checkpoints::open(&output.folder, form.clone(), config.saving.limit).map_err(TrainError::from)?;
        outputs::clear_left_over(&output.folder)?;
        let from = match &config.resume {
            None => None,
            Some(Resume::From(path)) => {
                let from = Checkpoint::open(path).map_err(TrainError::from)?;
                refuse_to_mix(&checkpoints, &from)?;
                Some(from)
            }
            Some(Resume::Latest) => latest(&checkpoints)?,
        };
        Ok(Some(Kept { checkpoints, form, from }))
    }

    pub(crate) fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// Sequences per micro-batch of the run so far: the same again give the same bits.
    pub(crate) fn micro_batch(&self) -> Option<usize> {
        self.from.as_ref().map(|from| from.state.plan.micro_batch)
    }

    /// Puts a run back to its checkpoint, where it goes on from one.
    pub(crate) fn resume(self, config: &Config, session: &mut Session) -> Result<Kept, Failure> {
        // Only now is it settled: the data has told the number of classes.
        let form = config.form()?;
        let kept = Kept { checkpoints: self.checkpoints.in_form(form.clone()), form, from: self.from };
        if let Some(from) = &kept.from {
            let lost = session.trainer.resume(&kept.checkpoints, from)?;
            say(&format!("going on after step {} of {}\n", from.state.step, from.path.display()))?;
            if let Some(Best { step, metric }) = lost {
                say(&format!(
                    "note: the best so far, {metric:.4} after step {step}, has no checkpoint any more; it is looked for anew\n"
                ))?;
            }
            for (name, then, now) in session.trainer.changes_since(from) {
                say(&format!("note: {name} is {now} from here on, and was {then}\n"))?;
            }
            for note in kept.checkpoints.take_notes() {
                say(&format!("note: {note}\n"))?;
            }
        }
        Ok(kept)
    }

    /// Says what the rest of the run takes on the disk, and refuses to begin where that is not there.
    pub(crate) fn announce(&self, config: &Config, session: &Session, steps: u64) -> Result<(), Failure> {
        let run = session.trainer.run();
        let model: u64 = run.parameters(self.form.frozen).map(|(_, ty)| ty.bytes() as u64).sum();
        let moments = run.states_of(|kind| kind == StateKind::Moment).map(|(_, ty)| ty.bytes() as u64);
        let each = model + moments.sum::<u64>();
        let more = self.more_checkpoints(config, run.steps(), steps)?;
        let needed = more.saturating_mul(each).saturating_add(model);
        let shown = format!("{more} × {} of checkpoints and the model", table::size(each));
        let folder = self.checkpoints.folder();
        match free_disk_bytes(folder).ok() {
            Some(free) if free < needed => Err(TrainError::Config(format!(
                "the run needs {} on the disk of `{}` ({shown}), and {} are free; make room, name another --output-dir, \
                 or keep fewer with --save-total-limit or --save-steps",
                table::size(needed),
                folder.display(),
                table::size(free)
            ))
            .into()),
            free => {
                let free = free.map_or_else(String::new, |free| format!(", of {} that are free", table::size(free)));
                say(&format!("the run takes {} on the disk, {shown}{free}\n", table::size(needed)))
            }
        }
    }

    /// How many more checkpoints there will be at one time than there are, the one being written included.
    fn more_checkpoints(&self, config: &Config, done: u64, steps: u64) -> Result<u64, Failure> {
        let (every, best) = (config.saving.every, u64::from(config.evaluation.is_some()));
        let regular = (steps / every).saturating_sub(done / every);
        let new = regular + u64::from(steps > done && !steps.is_multiple_of(every)) + best;
        let Some(limit) = config.saving.limit else { return Ok(new) };
        let there = self.checkpoints.count().map_err(TrainError::from)? as u64;
        Ok(new.min((limit as u64 + best + 1).saturating_sub(there).max(1)))
    }

    /// Writes what was trained, unless the run was asked to end before it was done.
    pub(crate) fn finish(
        &self,
        config: &Config,
        session: &mut Session,
        end: &EndRecord,
    ) -> Result<(), Failure> {
        let folder = self.checkpoints.folder();
        let shown = folder.display();
        if session.trainer.stop_requested() {
            return say(&format!("stopped; go on with --resume latest --output-dir {shown}\n"));
        }
        let last = session.trainer.run().steps();
        let better = end.best.map(|best| best.step).filter(|&step| step != last);
        let better = better.map(|step| (step, self.checkpoints.path(step)));
        let of = match better {
            None => String::new(),
            // It must not cost what was trained that somebody has tidied up meanwhile.
            Some((step, path)) if config.saving.load_best => match Checkpoint::open(&path) {
                Ok(best) => {
                    self.checkpoints.return_to(session.trainer.run_mut(), &best)?;
                    format!(", as it was after step {step}")
                }
                Err(fault) => {
                    format!(", as it was after step {last}; the best, after step {step}, is lost: {fault}")
                }
            },
            Some((_, path)) if path.is_dir() => {
                format!(", as it was after step {last}; the best is in {}", path.display())
            }
            Some(_) => format!(", as it was after step {last}"),
        };
        session.trainer.run().save_weights(folder, &self.form)?;
        say(&format!("what was trained is in {shown}{of}\n"))
    }
}

/// The newest whole checkpoint. None where a run has begun, or not even that, but saved nothing: so a script may always
/// ask for the latest. Where something might be lost by beginning anew, that is an error.
fn latest(checkpoints: &Checkpoints) -> Result<Option<Checkpoint>, Failure> {
    let found = checkpoints.latest().map_err(TrainError::from)?;
    for broken in &found.broken {
        say(&format!("passed over: {broken}\n"))?;
    }
    let last_finite = checkpoints.last_finite().map_err(TrainError::from)?;
    if let (Some(checkpoint), Some((step, last))) = (&found.checkpoint, &last_finite)
        && *step > checkpoint.state.step
    {
        let last = last.display();
        say(&format!(
            "note: {last} is later, from before a step whose numbers were not finite; it is taken with `--resume {last}`\n"
        ))?;
    }
    if found.checkpoint.is_none() {
        let (folder, shown) = (checkpoints.folder(), checkpoints.folder().display());
        if let Some((_, last)) = last_finite {
            let last = last.display();
            return Err(TrainError::Config(format!(
                "`{shown}` holds no checkpoint but {last}, from before a step whose numbers were not finite; the same settings \
                 lead to that step again: go on with `--resume {last}` and a lower --learning-rate or --max-grad-norm, or \
                 name an empty folder"
            ))
            .into());
        }
        if let Some(name) = foreign(folder, outputs::is_ours)? {
            let why = found.foreign.first().map_or_else(String::new, |why| format!(" ({why})"));
            return Err(TrainError::Config(format!(
                "`{shown}` holds no whole checkpoint, and has a `{name}`{why}; to begin anew, name an empty folder"
            ))
            .into());
        }
        say(&format!("`{shown}` holds no whole checkpoint yet; the run begins anew\n"))?;
    }
    Ok(found.checkpoint)
}

/// Refuses to go on from a checkpoint in a folder that holds another model, another run, or another course of this one:
/// they would be overwritten, rotated away or gone on from by mistake.
fn refuse_to_mix(checkpoints: &Checkpoints, from: &Checkpoint) -> Result<(), Failure> {
    let (folder, shown) = (checkpoints.folder(), checkpoints.folder().display());
    let refused = |why: String| Err(TrainError::Config(why).into());
    let own = checkpoints.holds(from);
    let in_the_way = checkpoints.in_the_way(from).map_err(TrainError::from)?;
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
    match foreign(folder, |name| outputs::is_ours(name) || name.starts_with("checkpoint-"))? {
        Some(name) if !own => refused(format!(
            "`{shown}` holds no checkpoint, and has a `{name}`; name an empty folder as --output-dir"
        )),
        _ => Ok(()),
    }
}

/// The first of the names in a folder that are not `ours`. What a run leaves under temporary names has been cleared.
fn foreign(folder: &Path, ours: impl Fn(&str) -> bool) -> Result<Option<String>, Failure> {
    let unreadable = |error| Failure::Other(format!("cannot read `{}`: {error}", folder.display()));
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        names.push(entry.map_err(unreadable)?.file_name().to_string_lossy().into_owned());
    }
    Ok(names.into_iter().filter(|name| !ours(name)).min())
}
