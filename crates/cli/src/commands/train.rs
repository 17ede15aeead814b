//! `plimsoll train`: the plan, a progress bar, records.

use std::io::{self, Write};

use indicatif::{ProgressBar, ProgressStyle};

use plimsoll::training::data::Batches;
use plimsoll::training::metrics::{EndRecord, StepRecord, write_line};
use plimsoll::training::{Config, memory};
use plimsoll::{CpuDevice, Device, Run, Trainer, plan_for};

use crate::args::TrainArgs;
use crate::exit::Failure;
use crate::summary::{Summary, questions};
use crate::table;

pub(crate) fn run(args: &TrainArgs) -> Result<(), Failure> {
    let mut config = Config::check(&args.raw())?;
    if args.stop_after == Some(0) {
        return Err(plimsoll::TrainError::Config("--stop-after must be at least 1".into()).into());
    }
    config.max_steps = args.stop_after.map_or(config.max_steps, |steps| config.max_steps.min(steps));
    let mut session = Session::open(&config)?;
    if !args.fit.json {
        say(&format!("{} on {}\n", args.fit.model, session.device_name))?;
    }
    let mut table = Vec::new();
    table::plan(&mut table, &session.summary).map_err(|error| Failure::output(&error))?;
    say(&String::from_utf8_lossy(&table))?;
    say(&table::run_time(&session.summary, config.max_steps))?;
    let json = args.fit.json;
    let end = session.train(&config, |record| if json { line(record) } else { Ok(()) })?;
    if json {
        return line(&end);
    }
    say(&summary(&end, session.summary.planned.budget.total))
}

/// A planned run with its data, ready to step.
pub(crate) struct Session {
    pub(crate) summary: Summary,
    pub(crate) trainer: Trainer<CpuDevice>,
    pub(crate) device_name: String,
}

impl Session {
    /// Opens the data, plans and takes the memory.
    pub(crate) fn open(config: &Config) -> Result<Session, Failure> {
        config.target.trains()?;
        let source = config.source()?;
        let device = config.options.device()?;
        let device_name = device.name();
        let planned = plan_for(&config.model, &device, &config.options)?;
        let summary = questions(config, &|graph| device.facts(graph), planned.budget).summarise(planned)?;
        let run = Run::start(device, summary.planned.clone(), config.options.seed)?;
        if run.engine().device().disk().is_some_and(|disk| !disk.bypasses_page_cache()) {
            say(
                "note: this file system does not let --offload bypass the page cache; the kernel may keep copies in memory\n",
            )?;
        }
        let batches = Batches::new(source, config.options.global_batch as u64, run.micro_batch());
        let trainer = Trainer::new(run, batches, config.lr, config.model.documents);
        Ok(Session { summary, trainer, device_name })
    }

    /// Takes all steps behind a progress bar and checks the promise at the end.
    pub(crate) fn train(
        &mut self,
        config: &Config,
        mut report: impl FnMut(&StepRecord) -> Result<(), Failure>,
    ) -> Result<EndRecord, Failure> {
        let budget = self.summary.planned.budget.total;
        let bar = progress(config.max_steps);
        for _ in 0..config.max_steps {
            let record = self.trainer.step().inspect_err(|_| bar.abandon())?;
            let used = memory::process().map_err(Failure::memory)?.peak;
            let state = format!(
                "loss {:.3}  {:.0} tokens/s  memory {} of {}",
                record.loss,
                record.tokens_per_second,
                table::size(used),
                table::size(budget)
            );
            // Where no bar can be drawn, some twenty plain lines tell the same.
            let every = (config.max_steps / 20).max(1);
            if bar.is_hidden() && (record.step % every == 0 || record.step == 1) {
                say(&format!("step {:>5} of {}  {state}\n", record.step, config.max_steps))?;
            }
            bar.set_message(state);
            bar.inc(1);
            report(&record)?;
        }
        bar.finish();
        let end = self.trainer.end()?;
        kept(&end, budget)?;
        Ok(end)
    }
}

/// The promise: the arena was used to the planned byte and the process stayed inside the budget.
fn kept(end: &EndRecord, budget: u64) -> Result<(), Failure> {
    if end.measured_peak_bytes != end.planned_peak_bytes {
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

/// What a run came to, in one line.
pub(crate) fn summary(end: &EndRecord, budget: u64) -> String {
    format!(
        "arena planned {} used {}   process {} of {}   {:.0} tokens/s\n",
        table::size(end.planned_peak_bytes),
        table::size(end.measured_peak_bytes),
        table::size(end.process_peak_bytes),
        table::size(budget),
        end.tokens_per_second
    )
}

fn progress(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{pos:>5}/{len} {bar:24} {msg}  eta {eta}");
    ProgressBar::new(steps).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Writes a record to standard output.
fn line(record: &impl serde::Serialize) -> Result<(), Failure> {
    write_line(&mut io::stdout().lock(), record).map_err(|error| Failure::output(&error))
}

/// Writes text to standard error, where everything goes that is not data.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    io::stderr().lock().write_all(text.as_bytes()).map_err(|error| Failure::output(&error))
}
