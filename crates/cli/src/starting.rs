//! From settings to a run that is ready to step, for every command that trains. The process starts anew if tokenising
//! or planning has taken memory that the run may not hold.

use std::fs;
use std::io::{self, IsTerminal as _};
use std::path::Path;

use plimsoll::Planned;
use plimsoll::training::Config;
use plimsoll::training::job::{Job, Note, Session};

use crate::environment::environment;
use crate::exit::Failure;
use crate::launch::Launch;
use crate::say::say;
use crate::watching::Watching;
use crate::{guard, notes, reexec, samples};

/// Choices about a run that its command makes.
#[derive(Default)]
pub(crate) struct Start<'a> {
    /// A file with the plan.
    pub(crate) plan: Option<&'a Path>,
    /// The step after which to pause.
    pub(crate) pause: Option<u64>,
    /// The other processes of the run.
    pub(crate) launch: Option<Launch>,
}

/// Opens the data, makes or reads the plan, takes the memory and reads earlier weights.
pub(crate) fn start(config: Config, how: &Start<'_>, watching: Watching) -> Result<Session, Failure> {
    let mut job = Job::open(config, &environment(), Box::new(watching))?.pause_after(how.pause);
    if job.has_tokenised() {
        reexec::after_tokenising();
    }
    if job.device()?.measured {
        let of_times = job.device()?.notes.clone();
        notes::tell(&of_times)?;
        reexec::after_measuring();
    }
    let planned = plan(&mut job, how.plan)?;
    // Notes about the plan are printed now: a process that starts anew gets the plan without its notes.
    let about_plan = |note: &Note| matches!(note, Note::OtherMicroBatch { .. });
    let (about_plan, others): (Vec<Note>, Vec<Note>) = job.take_notes().into_iter().partition(about_plan);
    // If the checkpoint itself does not suit, its plan does not either, and the later error about the checkpoint
    // explains it better.
    let (of_checkpoint, others): (Vec<Note>, Vec<Note>) =
        others.into_iter().partition(|note| matches!(note, Note::OtherPlan { .. }));
    notes::tell(&about_plan)?;
    if how.plan.is_none() {
        reexec::with_plan(&planned)?;
    }
    notes::tell(&others)?;
    let (data, config) = (job.data(), job.config());
    say(&samples::counted(data, &config.samples.task, config.model.seq_len))?;
    say(&samples::text(&data.shown, &config.configuration.labels, io::stderr().is_terminal()))?;
    if let Some(launch) = &how.launch {
        let world = launch.begin(job.config().rank_limit)?;
        job.lead(world)?;
    }
    let mut session = job.start(planned)?;
    notes::tell(&of_checkpoint)?;
    notes::tell(&session.take_notes())?;
    Ok(session)
}

/// The plan in `file`, the one that was made before the process started anew, or one made now.
fn plan(job: &mut Job<'_>, file: Option<&Path>) -> Result<Planned, Failure> {
    if let Some(path) = reexec::plan_made_before() {
        let planned = job.plan_from(&path);
        let _ = fs::remove_file(&path);
        return Ok(planned?);
    }
    let Some(file) = file else { return Ok(job.plan()?) };
    job.device()?;
    guard::raise_again();
    let planned = job.plan_from(file)?;
    guard::lower();
    Ok(planned)
}
