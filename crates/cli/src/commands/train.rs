//! `plimsoll train`: the plan, a progress bar, records.

use std::io::{self, IsTerminal as _, Write};
use std::path::Path;

use plimsoll::training::ceiling::{matmul_flops, matmul_rate};
use plimsoll::training::checkpoint::Checkpoints;
use plimsoll::training::course::{Course, Event, Listener};
use plimsoll::training::data::{Batches, Shown};
use plimsoll::training::lr::Lr;
use plimsoll::training::metrics::{EndRecord, write_line};
use plimsoll::training::{Config, Validation};
use plimsoll::{CpuDevice, Device, Options, Planned, Run, TrainError, Trainer, plan_for};

use crate::args::TrainArgs;
use crate::commands::planfile;
use crate::exit::{self, Failure, printable};
use crate::keeping::Kept;
use crate::outputs::{self, Outputs};
use crate::progress::Progress;
use crate::summary::{Summary, questions};
use crate::{costs, samples, table, tokenising};

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
        exit::go_on_unheard();
    }
    let kept = Kept::open(&config)?;
    let before = kept.as_ref().and_then(Kept::micro_batch);
    let mut session = Session::open(&mut config, args.plan.as_deref(), before)?;
    let kept = kept.map(|kept| kept.resume(&config, &mut session)).transpose()?;
    let course = Course { pause: args.stop_after, ..config.course(session.lr.max_steps) };
    session.summary.steps = Some(course.end().saturating_sub(session.trainer.run().steps()));
    announce(&config, &session, args.json)?;
    match &kept {
        Some(kept) => kept.announce(&config, &session, course.end())?,
        None => say("what is trained is not kept; give --output-dir to keep it\n")?,
    }
    let mut outputs = Outputs::open(&config, &session)?;
    let json = args.json;
    let mut lines = |event: &Event<'_>| if json { line(event) } else { Ok(()) };
    let mut listeners: Vec<&mut dyn Listener<Failure>> = vec![&mut lines];
    if let Some(outputs) = &mut outputs {
        listeners.extend(outputs.listeners());
    }
    end_on_signals(&session)?;
    let result = session.train(&course, kept.as_ref().map(Kept::checkpoints), &mut listeners);
    // Also of a run that failed: what it had told is worth seeing.
    let page = outputs.as_ref().map(Outputs::finish).transpose().map(Option::flatten);
    let end = result?;
    if !json {
        say(&summary(&end, session.summary.planned.budget.total))?;
    }
    if let (Ok(Some(page)), false) = (&page, json) {
        say(&format!("the report is in {page}\n"))?;
    }
    if let Some(kept) = &kept {
        kept.finish(&config, &mut session, &end)?;
    }
    // What was trained is written whatever else went wrong.
    page?;
    session.judge(&end)
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
fn announce(config: &Config, session: &Session, json: bool) -> Result<(), Failure> {
    if !json {
        say(&format!("{} on {}\n", config.name, session.device_name))?;
    }
    let mut table = Vec::new();
    table::plan(&mut table, &session.summary).map_err(|error| Failure::output(&error))?;
    say(&String::from_utf8_lossy(&table))
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
    /// Samples to be seen on the page of the run.
    pub(crate) shown: Vec<Shown>,
    validation: Option<Validation>,
    /// Whether this part of the run took any step: one that goes on after the last takes none.
    stepped: bool,
}

impl Session {
    /// Opens the data, plans or reads the plan, takes the memory and reads what was trained before. A run that goes on
    /// had micro-batches of `before` sequences.
    pub(crate) fn open(
        config: &mut Config,
        plan: Option<&Path>,
        before: Option<usize>,
    ) -> Result<Session, Failure> {
        config.target.trains()?;
        let data = tokenising::open_data(config)?;
        let (device, device_name) = costs::device(config)?;
        let before = before.filter(|_| plan.is_none() && config.options.micro_batch.is_none());
        let planned = match before.filter(|_| planfile::made_before().is_none()) {
            Some(rows) => planned_as_before(config, &device, rows)?,
            None => None,
        };
        let planned = planned.map_or_else(|| planfile::load(plan, config, &device), Ok)?;
        if plan.is_none() {
            // Nothing was said so far that would be said again.
            planfile::begin_anew_with(&planned)?;
        }
        for note in &config.configuration.notes {
            say(&format!("note: {}\n", printable(note)))?;
        }
        if let Some((count, first)) = &data.skipped {
            say(&format!("{count} samples were passed over; the first: {}\n", printable(first)))?;
        }
        if data.untaught > 0 {
            say(&format!(
                "{} samples or parts of them have no target within --seq-len {} and are left out; a longer one has their prompts and answers in one row\n",
                data.untaught, config.model.seq_len
            ))?;
        }
        say(&samples::counted(&data, &config.samples.task, config.model.seq_len))?;
        let labels = &config.configuration.labels;
        say(&samples::text(&data.shown, labels, io::stderr().is_terminal()))?;
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
        // Facts are for checkpoints, and those of the data take a look at all of it.
        let facts = if config.output.is_some() { config.facts(batches.source())? } else { Vec::new() };
        let trainer = Trainer::new(run, batches, lr).with_facts(facts);
        let shown = data.shown;
        Ok(Session { summary, trainer, device_name, lr, ceiling, shown, validation, stepped: false })
    }

    /// Takes all steps behind a progress bar.
    pub(crate) fn train(
        &mut self,
        course: &Course,
        checkpoints: Option<&Checkpoints>,
        listeners: &mut [&mut dyn Listener<Failure>],
    ) -> Result<EndRecord, Failure> {
        let budget = self.summary.planned.budget.total;
        let before = self.trainer.run().steps();
        let mut progress = Progress::new(course.end(), budget, self.ceiling);
        let mut all = |event: &Event<'_>| {
            progress.hear(event)?;
            listeners.iter_mut().try_for_each(|listener| listener.hear(event))
        };
        let result = self.trainer.train(course, self.validation.as_mut(), checkpoints, &mut [&mut all]);
        self.stepped = self.trainer.run().steps() != before;
        result.inspect_err(|_| progress.abandon())
    }

    /// Whether the promise was kept.
    pub(crate) fn judge(&self, end: &EndRecord) -> Result<(), Failure> {
        kept(end, self.summary.planned.budget.total, self.stepped)
    }
}

/// A plan with the micro-batches a run had before, so that it goes on to the bit; nothing where the budget has no room.
fn planned_as_before(config: &Config, device: &CpuDevice, rows: usize) -> Result<Option<Planned>, Failure> {
    let options = Options { micro_batch: Some(rows), ..config.options.clone() };
    match plan_for(&config.model, device, &options) {
        Ok(planned) => Ok(Some(planned)),
        Err(TrainError::Budget { .. } | TrainError::Plan(_)) => {
            say(&format!(
                "note: micro-batches of {rows}, as they were, do not fit; with others the run goes on within rounding\n"
            ))?;
            Ok(None)
        }
        Err(error) => Err(error.into()),
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
    // Without a step the arena is used for its state alone.
    if stepped && end.measured_peak_bytes != end.planned_peak_bytes {
        return Err(Failure::Other(format!(
            "the arena was used up to byte {} and planned up to byte {}, which is a fault of plimsoll",
            end.measured_peak_bytes, end.planned_peak_bytes
        )));
    }
    inside(end.process_peak_bytes, budget)
}

/// Whether a process that reached `peak` bytes stayed inside its budget.
pub(crate) fn inside(peak: u64, budget: u64) -> Result<(), Failure> {
    if peak <= budget {
        return Ok(());
    }
    Err(Failure::Other(format!(
        "the process reached {}, above the budget of {}: more than was reserved outside the arena",
        table::size(peak),
        table::size(budget)
    )))
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
    exit::said(written)
}

/// Writes text to standard error, where everything goes that is not data.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    exit::said(io::stderr().lock().write_all(text.as_bytes()))
}
