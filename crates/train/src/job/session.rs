//! A job under way: the trainer with its data, its folder, and the files that record it.

use std::fmt;

use plimsoll_exec::{Device, MemoryPool};
use plimsoll_graph::{Graph, Node, work};
use plimsoll_plan::{ArenaBytes, Costed, ProcessBytes};
use serde_json::{Value, json};

use super::Job;
use super::device::OpenedDevice;
use super::notes::Note;
use super::other_ranks::OtherRanks;
use super::records::{self, Records};
use super::run_folder::{DiskNeed, Finished, RunFolder};
use super::summary::{Questions, Summary};
use super::times::TimesFile;
use super::watch::Stage;
use crate::config::Config;
use crate::data::{Batches, Shown};
use crate::error::TrainError;
use crate::measure::{Rank, matmul_flops, matmul_rate, times_of_ops};
use crate::planning::{Options, Planned};
use crate::run::Run;
use crate::trainer::EndRecord;
use crate::trainer::Lr;
use crate::trainer::Trainer;
use crate::trainer::ValidationSet;
use crate::trainer::{Listener, TrainLoop};

/// Rows of the products whose speed is the ceiling: small enough to fit beside any budget.
const CEILING_SIZE: usize = 384;
const CEILING_SECONDS: f64 = 0.15;

/// Runs of each schedule whose ops are timed, after its first run.
const TIMED_RUNS: usize = 4;

/// A planned run in its memory, with its weights and its data, ready to step.
#[derive(Debug)]
pub struct Session {
    config: Config,
    summary: Summary,
    /// The other ranks. They stand before the trainer, so that they are told to end before it is dropped.
    ranks: Option<OtherRanks>,
    trainer: Trainer,
    device_name: String,
    lr: Lr,
    course: TrainLoop,
    ceiling: f64,
    /// Where the times of this run's ops are added.
    times: Option<TimesFile>,
    shown: Vec<Shown>,
    validation: Option<ValidationSet>,
    folder: Option<RunFolder>,
    disk_need: Option<DiskNeed>,
    records: Option<Records>,
    notes: Vec<Note>,
    /// Whether this part of the run took any step: a run resumed after its last step takes none.
    stepped: bool,
}

impl Session {
    /// Takes the memory of `planned` and fills it: with weights, and with a checkpoint if the run resumes from one.
    pub(super) fn start(mut job: Job<'_>, planned: Planned) -> Result<Session, TrainError> {
        let OpenedDevice { mut device, name: device_name, times, .. } = job.take_device()?;
        let mut summary = summary_of(&job.config, &*device, planned)?;
        job.watch.hear(Stage::Working);
        let ceiling = ceiling(&summary, &*device, &job.config.options)?;
        let (mut planned, seed) = (summary.planned.clone(), job.config.options.seed);
        let world = OtherRanks::world(&job.config, job.world.take(), &mut *device)?;
        let mut run = Run::start_or_replan(device, &mut planned, seed, |device| job.plan_on(device))?;
        if let Some(communicator) = world.first() {
            run.join(communicator);
        }
        if planned.budget != summary.planned.budget {
            summary = summary_of(&job.config, run.engine().device(), planned)?;
        }
        let Job { config, data, folder, mut watch, mut notes, pause, .. } = job;
        notes.extend(run.engine().device().notes().into_iter().map(Note::Device));
        watch.hear(Stage::Reading);
        let loaded = config.load(&mut run)?;
        watch.hear(Stage::Working);
        notes.extend(some(loaded.absent).map(Note::NewParameters));
        notes.extend(some(loaded.unused).map(Note::UnusedTensors));
        let rows = run.micro_batch();
        let batches = Batches::new(data.train, config.options.global_batch as u64, rows);
        let lr = config.lr(batches.steps_per_epoch())?;
        let validation = data.validation.map(|source| config.validation(source, rows));
        // Facts are for checkpoints, and those of the data require reading all of it.
        let facts = if config.output.is_some() { config.facts(batches.source())? } else { Vec::new() };
        let mut trainer = Trainer::new(run, batches, lr).with_noise(config.noise(&lr)).with_facts(facts);
        watch.hear(Stage::Reading);
        let folder = folder.map(|folder| folder.resume(&config, &mut trainer, &mut notes)).transpose()?;
        watch.hear(Stage::Working);
        // The other ranks take their memory only now: while files are read, a guard may watch that of the process.
        let resumed = folder.as_ref().and_then(RunFolder::resumed_from);
        let ranks = OtherRanks::start(&config, &summary.planned, resumed, world)?;
        trainer.share_state()?;
        let course = TrainLoop { pause, ..config.train_loop(lr.max_steps) };
        summary.steps = Some(course.end().saturating_sub(trainer.run().steps()));
        let disk_need = folder.as_ref().map(|folder| folder.disk_need(&config, trainer.run(), course.end()));
        Ok(Session {
            disk_need: disk_need.transpose()?,
            shown: data.shown,
            records: None,
            stepped: false,
            config,
            summary,
            ranks,
            trainer,
            device_name,
            lr,
            course,
            ceiling,
            times,
            validation,
            folder,
            notes,
        })
    }

    /// Takes all steps and informs the listeners, in their order; the outputs that the settings ask for go to the run's
    /// folder.
    ///
    /// # Errors
    ///
    /// The first fault of a step, an evaluation or a listener. The run is saved before it ends with one.
    pub fn train<E: From<TrainError> + fmt::Display + 'static>(
        &mut self,
        listeners: &mut [&mut dyn Listener<E>],
    ) -> Result<EndRecord, E> {
        self.open_records()?;
        let mut all: Vec<&mut dyn Listener<E>> = Vec::new();
        if let Some(records) = &mut self.records {
            all.extend(records.listeners());
        }
        all.extend(listeners.iter_mut().map(|listener| &mut **listener as &mut dyn Listener<E>));
        let before = self.trainer.run().steps();
        let checkpoints = self.folder.as_ref().map(RunFolder::checkpoints);
        if self.times.is_some() {
            self.trainer.run_mut().engine_mut().time_some_runs(1, TIMED_RUNS);
        }
        let result = self.trainer.train(&self.course, self.validation.as_mut(), checkpoints, &mut all);
        self.stepped = self.trainer.run().steps() != before;
        self.learn();
        result
    }

    /// Adds the times of this run's ops to those known of the machine. They refine later plans. A run of too few steps,
    /// or an engine without timings, adds nothing.
    fn learn(&self) {
        let Some(file) = &self.times else { return };
        let timings = times_of_ops(&self.summary.planned.choice, self.trainer.run().engine(), Rank::Median);
        if let Ok(timings) = timings
            && timings.iter().next().is_some()
        {
            file.add_run(&timings);
        }
    }

    /// Opens the files that record the run, if it has a folder. [`train`](Session::train) does so if the caller has
    /// not.
    ///
    /// # Errors
    ///
    /// When they cannot be written.
    pub fn open_records(&mut self) -> Result<(), TrainError> {
        if let (None, Some(output)) = (&self.records, &self.config.output) {
            self.records = Some(Records::open(output, self.trainer.run().steps(), &self.start_record())?);
        }
        Ok(())
    }

    /// The model, its plan, and the machine's figures.
    fn start_record(&self) -> Value {
        json!({
            "event": "start",
            "time": records::now(),
            "version": env!("CARGO_PKG_VERSION"),
            "model": self.config.name,
            "device": self.device_name,
            "steps": self.lr.max_steps,
            "seq_len": self.config.model.seq_len,
            "ceiling_tokens_per_second": self.ceiling,
            "settings": self.config.effective(),
            "samples": records::samples(&self.shown, &self.config.configuration.labels),
            "plan": self.summary.to_json(),
        })
    }

    /// Writes the trained model into the run's folder and returns which weights those are; `None` if the run has no
    /// folder.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn finish(&mut self, end: &EndRecord) -> Result<Option<Finished>, TrainError> {
        let Session { folder, config, trainer, .. } = self;
        folder.as_ref().map(|folder| folder.finish(config, trainer, end)).transpose()
    }

    /// Whether the promise was kept: the arena was used to the planned byte and the process stayed inside the budget.
    ///
    /// # Errors
    ///
    /// When it was not.
    pub fn judge(&self, end: &EndRecord) -> Result<(), TrainError> {
        let &EndRecord { measured_peak_bytes: measured, planned_peak_bytes: planned, .. } = end;
        // Without a step the arena is used only for its state.
        if self.stepped && measured != planned {
            let (measured, planned) = (ArenaBytes(measured), ArenaBytes(planned));
            return Err(TrainError::Peak { measured, planned });
        }
        Ok(self.summary.planned.budget.stayed_inside(ProcessBytes(end.process_peak_bytes))?)
    }

    /// How many ranks train together, this one included.
    pub fn ranks(&self) -> usize {
        1 + self.ranks.as_ref().map_or(0, OtherRanks::count)
    }

    /// The settings, completed by the data.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The plan with everything people ask about it.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The trainer inside.
    pub fn trainer(&self) -> &Trainer {
        &self.trainer
    }

    /// The trainer inside, to drive it by hand.
    pub fn trainer_mut(&mut self) -> &mut Trainer {
        &mut self.trainer
    }

    /// The device, and where its times come from.
    pub fn device_name(&self) -> &str {
        &self.device_name
    }

    /// The learning rate, and in it the length of the whole run.
    pub fn lr(&self) -> &Lr {
        &self.lr
    }

    /// Tasks of the loop besides its steps, and its end.
    pub fn train_loop(&self) -> &TrainLoop {
        &self.course
    }

    /// Tokens per second of all ranks if all time went into the model's matrix products.
    pub fn ceiling(&self) -> f64 {
        self.ceiling
    }

    /// The first samples, as many as the settings ask for.
    pub fn shown(&self) -> &[Shown] {
        &self.shown
    }

    /// Bytes that the rest of the run takes on the disk, where it is kept.
    pub fn disk_need(&self) -> Option<DiskNeed> {
        self.disk_need
    }

    /// Notes since the last call.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }
}

fn summary_of(config: &Config, device: &dyn Device, planned: Planned) -> Result<Summary, TrainError> {
    let facts = |graph: &Graph| device.facts(graph);
    Questions::new(config, &facts, planned.budget).summarise(planned)
}

fn some(names: Vec<String>) -> Option<Vec<String>> {
    Some(names).filter(|names| !names.is_empty())
}

/// Tokens per second of all ranks if all time went into products. The processor is measured before the arena is taken, so
/// that this needs no extra memory; for a GPU the ceiling follows from its facts.
fn ceiling(summary: &Summary, device: &dyn Device, options: &Options) -> Result<f64, TrainError> {
    let choice = &summary.planned.choice;
    let (ranks, tokens) = (choice.program.ranks(), (choice.micro_batch * summary.seq_len) as f64);
    let Costed { graph, facts } = &choice.program.train;
    if device.pool()? == MemoryPool::Process {
        let rate = matmul_rate(options, CEILING_SIZE, CEILING_SECONDS)?;
        return Ok(of_all(ranks, tokens, matmul_flops(graph) / rate));
    }
    let products = graph.nodes().iter().zip(&facts.nodes).filter(|(node, _)| is_product(graph, node));
    Ok(of_all(ranks, tokens, products.map(|(_, facts)| facts.seconds).sum()))
}

/// Tokens per second where each rank takes so many seconds for `tokens` tokens.
fn of_all(ranks: usize, tokens: f64, seconds: f64) -> f64 {
    ranks as f64 * tokens / seconds.max(f64::MIN_POSITIVE)
}

fn is_product(graph: &Graph, node: &Node) -> bool {
    work(&node.op, &graph.input_types(node), &graph.output_types(node)).matmul_flops > 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ceiling_is_that_of_all_ranks_as_tokens_a_second_are() {
        let of = |ranks| of_all(ranks, 1000.0, 0.5);
        assert!((of(1) - 2000.0).abs() < 1e-9 && (of(4) - 8000.0).abs() < 1e-9);
    }
}
