//! `plimsoll train`: the plan, a progress bar, records.

use std::io::{self, Write};
use std::path::Path;

use plimsoll::training::ceiling::{matmul_flops, matmul_rate};
use plimsoll::training::checkpoint::{Checkpoint, Checkpoints};
use plimsoll::training::course::{Course, Event, Listener};
use plimsoll::training::data::Batches;
use plimsoll::training::files::Form;
use plimsoll::training::lr::Lr;
use plimsoll::training::metrics::{EndRecord, write_line};
use plimsoll::training::{Config, Resume, Validation, free_disk_bytes};
use plimsoll::{CpuDevice, Device, Run, StateKind, TrainError, Trainer};

use crate::args::TrainArgs;
use crate::commands::planfile;
use crate::exit::Failure;
use crate::outputs::{self, Outputs};
use crate::progress::Progress;
use crate::summary::{Summary, questions};
use crate::{costs, table, tokenising};

/// Rows of the products whose speed is the ceiling: small enough to fit beside any budget.
const CEILING_SIZE: usize = 384;
const CEILING_SECONDS: f64 = 0.15;

pub(crate) fn run(args: &TrainArgs) -> Result<(), Failure> {
    let mut config = Config::check(&args.settings.raw()?)?;
    if args.print_config {
        let text = config.effective().to_toml()?;
        return io::stdout().lock().write_all(text.as_bytes()).map_err(|error| Failure::output(&error));
    }
    if args.stop_after == Some(0) {
        return Err(TrainError::Config("--stop-after must be at least 1".into()).into());
    }
    config.target.trains()?;
    if let Some(output) = &config.output {
        // Before anything takes long: whether what will be trained can be written at all.
        config.form()?;
        outputs::prepare(output, config.resume.is_some())?;
    }
    let mut session = Session::open(&mut config, args.plan.as_deref())?;
    let saved = Saved::open(&config, &mut session)?;
    let steps = args.stop_after.map_or(session.lr.max_steps, |most| session.lr.max_steps.min(most));
    announce(&config, &session, steps, args.json)?;
    let mut outputs = Outputs::open(&config, &session)?;
    let json = args.json;
    let mut lines = |event: &Event<'_>| if json { line(event) } else { Ok(()) };
    let mut listeners: Vec<&mut dyn Listener<Failure>> = vec![&mut lines];
    if let Some(outputs) = &mut outputs {
        listeners.extend(outputs.listeners());
    }
    end_on_signals(&session)?;
    let result =
        session.train(&config.course(steps), saved.as_ref().map(|saved| &saved.checkpoints), &mut listeners);
    // Also of a run that failed: what it had told is worth seeing.
    let page = outputs.as_ref().map(Outputs::finish).transpose().map(Option::flatten);
    let end = result?;
    if !json {
        say(&summary(&end, session.summary.planned.budget.total))?;
    }
    match page? {
        Some(page) if !json => say(&format!("the report is in {page}\n"))?,
        _ => {}
    }
    match &saved {
        Some(saved) => saved.finish(&session),
        None => Ok(()),
    }
}

/// Where a run keeps what it has learned.
struct Saved {
    checkpoints: Checkpoints,
    form: Form,
}

impl Saved {
    /// Opens the folder of a run and puts the run back to its checkpoint, where it goes on from one.
    fn open(config: &Config, session: &mut Session) -> Result<Option<Saved>, Failure> {
        let Some(output) = &config.output else { return Ok(None) };
        let form = config.form()?;
        let checkpoints =
            Checkpoints::open(&output.folder, form.clone(), config.saving.limit).map_err(TrainError::from)?;
        let from = match &config.resume {
            None => None,
            Some(Resume::From(path)) => Some(Checkpoint::open(path).map_err(TrainError::from)?),
            Some(Resume::Latest) => {
                let found = checkpoints.latest().map_err(TrainError::from)?;
                for broken in &found.broken {
                    say(&format!("passed over: {broken}\n"))?;
                }
                let none = || {
                    let folder = output.folder.display();
                    TrainError::Config(format!(
                        "`{folder}` holds no whole checkpoint; to begin anew, leave out --resume and name an empty folder"
                    ))
                };
                Some(found.checkpoint.ok_or_else(none)?)
            }
        };
        if let Some(from) = &from {
            session.trainer.resume(&checkpoints, from)?;
            say(&format!("going on after step {} of {}\n", from.state.step, from.path.display()))?;
        }
        Ok(Some(Saved { checkpoints, form }))
    }

    /// Writes what was trained, unless the run was asked to end before it was done.
    fn finish(&self, session: &Session) -> Result<(), Failure> {
        let folder = self.checkpoints.folder();
        if session.trainer.stop_requested() {
            return say(&format!("stopped; go on with --resume latest --output-dir {}\n", folder.display()));
        }
        session.trainer.run().save_weights(folder, &self.form)?;
        say(&format!("what was trained is in {}\n", folder.display()))
    }
}

/// The first Ctrl-C or termination ends the run after its step, with a checkpoint; the second ends it at once.
fn end_on_signals(session: &Session) -> Result<(), Failure> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::flag::{register, register_conditional_shutdown};
    let stop = session.trainer.stop_flag();
    for signal in [SIGINT, SIGTERM] {
        register_conditional_shutdown(signal, 128 + signal, stop.clone())
            .and_then(|_| register(signal, stop.clone()))
            .map_err(|error| Failure::Other(format!("signals cannot be heard: {error}")))?;
    }
    Ok(())
}

/// What is about to happen: the peak by purpose, and how long it will take.
fn announce(config: &Config, session: &Session, steps: u64, json: bool) -> Result<(), Failure> {
    if !json {
        say(&format!("{} on {}\n", config.name, session.device_name))?;
    }
    let mut table = Vec::new();
    table::plan(&mut table, &session.summary).map_err(|error| Failure::output(&error))?;
    say(&String::from_utf8_lossy(&table))?;
    let left = steps.saturating_sub(session.trainer.run().steps());
    say(&table::run_time(&session.summary, left))?;
    if let Some(output) = &config.output {
        let (each, free) = (checkpoint_bytes(config, session)?, free_disk_bytes(&output.folder).ok());
        let free =
            free.map_or_else(String::new, |bytes| format!(", of {} that are free", table::size(bytes)));
        say(&format!("each checkpoint takes {} on the disk{free}\n", table::size(each)))?;
    }
    if config.output.is_none() {
        say("what is trained is not kept; give --output-dir to keep it\n")?;
    }
    Ok(())
}

/// Bytes of what is trained and of the optimizer's state.
fn checkpoint_bytes(config: &Config, session: &Session) -> Result<u64, Failure> {
    let run = session.trainer.run();
    let model = run.parameters(config.form()?.frozen).map(|(_, ty)| ty.bytes() as u64);
    let moments = run.states_of(|kind| kind == StateKind::Moment).map(|(_, ty)| ty.bytes() as u64);
    Ok(model.sum::<u64>() + moments.sum::<u64>())
}

/// A planned run with its data, ready to step.
pub(crate) struct Session {
    pub(crate) summary: Summary,
    pub(crate) trainer: Trainer<CpuDevice>,
    pub(crate) device_name: String,
    /// The learning rate, and in it the length of the whole run.
    pub(crate) lr: Lr,
    /// Tokens per second if all time went into the model's matrix products.
    pub(crate) ceiling: f64,
    validation: Option<Validation>,
}

impl Session {
    /// Opens the data, plans or reads the plan, takes the memory and reads what was trained before.
    pub(crate) fn open(config: &mut Config, plan: Option<&Path>) -> Result<Session, Failure> {
        config.target.trains()?;
        for note in &config.configuration.notes {
            say(&format!("note: {note}\n"))?;
        }
        let data = tokenising::open_data(config)?;
        if let Some((count, first)) = &data.skipped {
            say(&format!("{count} samples were passed over; the first: {first}\n"))?;
        }
        let (device, device_name) = costs::device(config)?;
        let planned = planfile::load(plan, config, &device)?;
        let summary = questions(config, &|graph| device.facts(graph), planned.budget).summarise(planned)?;
        let ceiling = ceiling(&summary, device.threads())?;
        let mut run = Run::start(device, summary.planned.clone(), config.options.seed)?;
        if run.engine().device().disk().is_some_and(|disk| !disk.bypasses_page_cache()) {
            say(
                "note: this file system does not let --offload bypass the page cache; the kernel may keep copies in memory\n",
            )?;
        }
        let loaded = config.load(&mut run)?;
        for (what, names) in [("not in the folder, so new", &loaded.absent), ("passed over", &loaded.unused)]
        {
            if !names.is_empty() {
                say(&format!("{what}: {}\n", names.join(", ")))?;
            }
        }
        let rows = run.micro_batch();
        let batches = Batches::new(data.train, config.options.global_batch as u64, rows);
        let lr = config.lr(batches.steps_per_epoch())?;
        let validation = data.validation.map(|source| config.validation(source, rows));
        let trainer = Trainer::new(run, batches, lr).with_facts(config.facts()?);
        Ok(Session { summary, trainer, device_name, lr, ceiling, validation })
    }

    /// Takes all steps behind a progress bar and checks the promise at the end.
    pub(crate) fn train(
        &mut self,
        course: &Course,
        checkpoints: Option<&Checkpoints>,
        listeners: &mut [&mut dyn Listener<Failure>],
    ) -> Result<EndRecord, Failure> {
        let budget = self.summary.planned.budget.total;
        let before = self.trainer.run().steps();
        let mut progress = Progress::new(course.steps, budget, self.ceiling);
        let mut all = |event: &Event<'_>| {
            progress.hear(event)?;
            listeners.iter_mut().try_for_each(|listener| listener.hear(event))
        };
        let result = self.trainer.train(course, self.validation.as_mut(), checkpoints, &mut [&mut all]);
        let end = result.inspect_err(|_| progress.abandon())?;
        // A run that goes on after its last step takes none, and uses the arena for its state alone.
        kept(&end, budget, self.trainer.run().steps() > before)?;
        Ok(end)
    }
}

/// Measured before the arena is taken, so that it needs no memory of its own.
fn ceiling(summary: &Summary, threads: usize) -> Result<f64, Failure> {
    let choice = &summary.planned.choice;
    let tokens = (choice.micro_batch * summary.seq_len) as f64;
    let flops_per_token = matmul_flops(&choice.program.train.graph) / tokens;
    Ok(matmul_rate(threads, CEILING_SIZE, CEILING_SECONDS)? / flops_per_token)
}

/// The promise: the arena was used to the planned byte and the process stayed inside the budget.
fn kept(end: &EndRecord, budget: u64, stepped: bool) -> Result<(), Failure> {
    if stepped && end.measured_peak_bytes != end.planned_peak_bytes {
        return Err(Failure::Other(format!(
            "the arena was used up to byte {} and planned up to byte {}, which is a fault of plimsoll",
            end.measured_peak_bytes, end.planned_peak_bytes
        )));
    }
    if end.process_peak_bytes > budget {
        return Err(Failure::Other(format!(
            "the process reached {}, above the budget of {}: more than was reserved outside the arena",
            table::size(end.process_peak_bytes),
            table::size(budget)
        )));
    }
    Ok(())
}

/// What a run came to.
pub(crate) fn summary(end: &EndRecord, budget: u64) -> String {
    let best = end.best.map_or_else(String::new, |best| {
        let early = if end.stopped_early { "; stopped early, as it no longer got better" } else { "" };
        format!("best validation loss {:.4} after step {}{early}\n", best.eval_loss, best.step)
    });
    format!(
        "{best}arena planned {} used {}   process {} of {}   {:.0} tokens/s\n",
        table::size(end.planned_peak_bytes),
        table::size(end.measured_peak_bytes),
        table::size(end.process_peak_bytes),
        table::size(budget),
        end.tokens_per_second
    )
}

/// Writes the record of an event to standard output.
fn line(event: &Event<'_>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = match event {
        Event::Step(_) | Event::Saved(_) => Ok(()),
        Event::Log(record) => write_line(&mut out, record),
        Event::Evaluation(record) => write_line(&mut out, record),
        Event::End(record) => write_line(&mut out, record),
    };
    written.map_err(|error| Failure::output(&error))
}

/// Writes text to standard error, where everything goes that is not data.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    io::stderr().lock().write_all(text.as_bytes()).map_err(|error| Failure::output(&error))
}
