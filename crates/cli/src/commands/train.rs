//! `plimsoll train`: the plan, a progress bar, records.

use std::fs;
use std::io::{self, IsTerminal as _, Write};
use std::path::Path;

use plimsoll::training::ceiling::{matmul_flops, matmul_rate};
use plimsoll::training::checkpoint::Checkpoints;
use plimsoll::training::course::{Course, Event, Listener};
use plimsoll::training::data::{Batches, Shown};
use plimsoll::training::lr::Lr;
use plimsoll::training::metrics::{EndRecord, write_line};
use plimsoll::training::{Config, Validation};
use plimsoll::{Device, Options, Planned, Run, TrainError, Trainer};

use crate::args::TrainArgs;
use crate::commands::planfile;
use crate::dispensable::Dispensable;
use crate::exit::{self, Failure, printable};
use crate::keeping::Kept;
use crate::outputs::{self, Outputs};
use crate::progress::{Progress, ShownRecords, Steps};
use crate::signals::Preparing;
use crate::summary::{Summary, questions};
use crate::{costs, guard, heartbeat, planning, samples, table, tokenising};

/// Rows of the products whose speed is the ceiling: small enough to fit beside any budget.
const CEILING_SIZE: usize = 384;
const CEILING_SECONDS: f64 = 0.15;

pub(crate) fn run(args: &TrainArgs) -> Result<(), Failure> {
    let raw = args.settings.raw()?;
    guard::raise(raw.memory.as_deref())?;
    let mut config = Config::check(&raw)?;
    if args.print_config {
        let text = config.effective().to_toml()?;
        return io::stdout().lock().write_all(text.as_bytes()).map_err(|error| Failure::output(&error));
    }
    if args.stop_after == Some(0) {
        return Err(TrainError::Config("--stop-after must be at least 1".into()).into());
    }
    config.target.trains()?;
    let mut made = None;
    if let Some(output) = &config.output {
        // Before anything takes long: whether what will be trained can be written at all.
        config.form()?;
        made = outputs::prepare(output, config.resume.is_some())?.then(|| output.folder.clone());
        exit::go_on_unheard();
    }
    let signals = Preparing::begin(move || undo(made.as_deref()))?;
    let kept = Kept::open(&config)?;
    let before = kept.as_ref().and_then(Kept::micro_batch);
    let mut session = Session::open(&mut config, args.plan.as_deref(), before)?;
    guard::raise_again();
    let kept = kept.map(|kept| kept.resume(&config, &mut session)).transpose()?;
    guard::lower();
    let course = Course { pause: args.stop_after, ..config.course(session.lr.max_steps) };
    session.summary.steps = Some(course.end().saturating_sub(session.trainer.run().steps()));
    announce(&config, &session, args.json)?;
    match &kept {
        Some(kept) => kept.announce(&config, &session, course.end())?,
        None => say("what is trained is not kept; give --output-dir to keep it\n")?,
    }
    // From here on a signal ends the run like any other, also before its first step.
    signals.train(session.trainer.stop_flag());
    let mut outputs = Outputs::open(&config, &session)?;
    let json = args.json;
    let telling = Telling { shown: ShownRecords::of(&config), outputs: outputs.as_mut(), json };
    let result = session.train_telling(&course, kept.as_ref().map(Kept::checkpoints), telling);
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

/// Removes what a run that has not begun has made: its folder, if that is new and empty, and a plan that was handed on.
fn undo(made: Option<&Path>) {
    // Whatever stays is empty or temporary, and there is nobody left to tell.
    let _ = made.map(fs::remove_dir);
    let _ = planfile::made_before().map(fs::remove_file);
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
    pub(crate) trainer: Trainer,
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

/// Listeners of a run under way.
struct Telling<'a, 'c> {
    shown: ShownRecords,
    outputs: Option<&'a mut Outputs<'c>>,
    json: bool,
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
        guard::lower();
        let (device, device_name) = costs::device(config)?;
        let waiting = heartbeat::waiting_for("planning");
        let before = before.filter(|_| plan.is_none() && config.options.micro_batch.is_none());
        let planned = match before.filter(|_| planfile::made_before().is_none()) {
            Some(rows) => planned_as_before(config, &*device, rows)?,
            None => None,
        };
        let planned = planned.map_or_else(|| planfile::load(plan, config, &*device), Ok)?;
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
        drop(waiting);
        let ceiling = ceiling(&summary, device.threads())?;
        let mut run = Run::start(device, summary.planned.clone(), config.options.seed)?;
        for note in run.engine().device().notes() {
            say(&format!("note: {note}\n"))?;
        }
        guard::raise_again();
        let loaded = config.load(&mut run)?;
        guard::lower();
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

    /// Takes all steps and tells of them: as lines where scripts want `json`, and in the run's folder.
    fn train_telling(
        &mut self,
        course: &Course,
        checkpoints: Option<&Checkpoints>,
        telling: Telling<'_, '_>,
    ) -> Result<EndRecord, Failure> {
        let Telling { shown, outputs, json } = telling;
        let mut lines = |event: &Event<'_>| if json { line(event) } else { Ok(()) };
        let mut lines = Dispensable::new("what --json asks for", &mut lines);
        let (metrics, events, page) = outputs.map_or((None, None, None), Outputs::listeners);
        let mut events = events.map(|events| Dispensable::new("TensorBoard's file", events));
        let mut page = page.map(|page| Dispensable::new("the page of the run", page));
        let mut listeners: Vec<&mut dyn Listener<Failure>> = vec![&mut lines];
        listeners.extend(metrics.map(|metrics| metrics as &mut dyn Listener<Failure>));
        listeners.extend(events.as_mut().map(|events| events as &mut dyn Listener<Failure>));
        listeners.extend(page.as_mut().map(|page| page as &mut dyn Listener<Failure>));
        self.train(course, shown, checkpoints, &mut listeners)
    }

    /// Takes all steps behind a progress bar. A line stands for each of the records that are `shown`.
    pub(crate) fn train(
        &mut self,
        course: &Course,
        shown: ShownRecords,
        checkpoints: Option<&Checkpoints>,
        listeners: &mut [&mut dyn Listener<Failure>],
    ) -> Result<EndRecord, Failure> {
        let budget = self.summary.planned.budget.total;
        let before = self.trainer.run().steps();
        let steps = Steps { before, end: course.end(), shown };
        let mut progress = Progress::new(steps, budget, self.ceiling);
        let mut bar = Dispensable::new("progress", &mut progress);
        let mut all: Vec<&mut dyn Listener<Failure>> = vec![&mut bar];
        all.extend(listeners.iter_mut().map(|listener| &mut **listener as &mut dyn Listener<Failure>));
        let result = self.trainer.train(course, self.validation.as_mut(), checkpoints, &mut all);
        heartbeat::at_work();
        self.stepped = self.trainer.run().steps() != before;
        result.inspect_err(|_| progress.abandon())
    }

    /// Whether the promise was kept.
    pub(crate) fn judge(&self, end: &EndRecord) -> Result<(), Failure> {
        kept(end, self.summary.planned.budget.total, self.stepped)
    }
}

/// A plan with the micro-batches a run had before, so that it goes on to the bit; nothing where the budget has no room.
fn planned_as_before(config: &Config, device: &dyn Device, rows: usize) -> Result<Option<Planned>, Failure> {
    let options = Options { micro_batch: Some(rows), ..config.options.clone() };
    match planning::plan_for(config, device, &options) {
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
        Event::Step(_) | Event::Saving | Event::Saved(_) | Event::Note(_) => Ok(()),
        Event::Log(record) => write_line(&mut out, record),
        Event::Evaluation(record) => write_line(&mut out, record),
        Event::End(record) => write_line(&mut out, record),
    };
    written.and_then(|()| out.flush()).map_err(|error| Failure::output(&error))
}

/// Writes text to standard error, where everything goes that is not data.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    heartbeat::spoke();
    exit::said(io::stderr().lock().write_all(text.as_bytes()))
}
