//! A whole run from its settings, as in `plimsoll train`: data, device, plan, weights, a checkpoint to resume from, and
//! the folder for results.
//!
//! ```text
//! Environment::complete ─▶ Config::check ─▶ Config::open ─▶ Job::plan ─▶ Job::start ─▶ Session::train ─▶ Session::finish
//! names become folders     settings         folder, data    Planned      memory,      steps, records,    the trained
//!                                                                        weights      checkpoints        model
//! ```
//!
//! Nothing is printed: [`Note`]s are for the user, [`Watch`] is informed of progress, errors name a way out. A process
//! that has tokenised or planned holds memory that a fresh one would not. The binary then starts itself anew
//! ([`Job::has_tokenised`], [`Budget::wants_fresh_process`](crate::memory::Budget::wants_fresh_process)); a library
//! cannot.
//!
//! Absent: the page of a run, progress bars, signals, and the guard around foreign files; these belong to the binary.

mod device;
mod disk_speed;
mod environment;
mod follower;
mod intrinsic;
mod kept_plan;
mod methods;
mod notes;
mod other_ranks;
mod processes;
mod profile;
mod records;
mod run_folder;
mod scaling;
mod session;
mod summary;
mod summary_json;
mod times;
mod watch;

use std::cell::RefCell;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use plimsoll_exec::{Communicator, Device};
use plimsoll_graph::Graph;
use plimsoll_plan::Facts;

use crate::config::{Config, OpenedData};
use crate::data::Source;
use crate::error::TrainError;
use crate::files::read_any_text;
use crate::planning::Options;
use crate::planning::plan_from_file;
use crate::planning::{Planned, budget_for, plan_for, plan_within};
pub use device::OpenedDevice;
pub use environment::{Environment, NamedModel};
pub use intrinsic::{IntrinsicCurve, IntrinsicStep};
pub use methods::{METHODS, Method, MethodFigures, MethodPlan, MethodRow, methods, propose_methods};
pub use notes::Note;
pub use processes::follow;
pub use profile::{Profile, ProfileLine};
pub use records::class_of;
use run_folder::RunFolder;
pub use run_folder::{BetterStep, DiskNeed, Finished};
pub use scaling::{ScalingFigures, ScalingRow, scaling};
pub use session::Session;
pub use summary::{DeviceFacts, Questions, Summary};
pub use times::{TimesFile, read_costs};
pub use watch::{Stage, Watch};

/// A run whose folder is locked and whose data is open.
pub struct Job<'w> {
    config: Config,
    environment: Environment,
    data: OpenedData,
    tokenised: bool,
    folder: Option<RunFolder>,
    device: Option<OpenedDevice>,
    pause: Option<u64>,
    /// Rank 0's end, where the other ranks are processes.
    world: Option<Arc<dyn Communicator>>,
    notes: Vec<Note>,
    watch: Box<dyn Watch + 'w>,
}

impl fmt::Debug for Job<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("config", &self.config).field("data", &self.data).finish_non_exhaustive()
    }
}

impl Config {
    /// Opens a run: creates and locks its folder, finds the checkpoint to resume from, and opens the data, which is
    /// tokenised if it is not in the cache.
    ///
    /// # Errors
    ///
    /// When the settings are for a device that is only described, the folder cannot be used, or the data is missing or
    /// broken.
    pub fn open(self, environment: &Environment) -> Result<Job<'static>, TrainError> {
        Job::open(self, environment, Box::new(()))
    }
}

/// If reading alone has exceeded the budget, returns the error of planning instead: it names a budget for the whole
/// run.
fn with_least_budget(error: TrainError, config: &Config, environment: &Environment) -> TrainError {
    if !matches!(error, TrainError::Config(_)) || config.keeps_budget().is_ok() {
        return error;
    }
    // Times do not decide what fits, so none are measured here.
    let config = Config { costs: Some(times::MODELLED.into()), ..config.clone() };
    let planned = environment
        .device(&config)
        .and_then(|opened| plan_for(&config.model, &*opened.device, &config.options));
    match planned {
        Err(least @ TrainError::Budget { .. }) => least,
        _ => error,
    }
}

impl<'w> Job<'w> {
    /// As [`Config::open`], with a [`Watch`] that hears of the progress.
    ///
    /// # Errors
    ///
    /// As [`Config::open`].
    pub fn open(
        mut config: Config,
        environment: &Environment,
        mut watch: Box<dyn Watch + 'w>,
    ) -> Result<Job<'w>, TrainError> {
        config.settle_device()?;
        let mut notes = Vec::new();
        if let Some(output) = &config.output {
            // Before anything takes long: whether the trained model can be written at all.
            config.form()?;
            let new = run_folder::prepare(output, config.resume.is_some())?;
            watch.hear(Stage::Folder { path: &output.folder, new });
        }
        watch.hear(Stage::Reading);
        let folder = RunFolder::open(&config, &mut notes)?;
        let mut tokenised = false;
        let data = config.open_data(&mut |progress| {
            tokenised = true;
            watch.hear(Stage::Tokenising(progress));
        });
        let data = data.and_then(|data| config.keeps_budget().map(|()| data));
        let data = data.map_err(|error| with_least_budget(error, &config, environment))?;
        watch.hear(Stage::Working);
        notes.extend(config.configuration.notes.iter().cloned().map(Note::Model));
        notes.extend(config.unsaved().into_iter().map(|note| Note::Model(note.to_owned())));
        let skipped = data.skipped.clone();
        notes.extend(skipped.map(|(count, first)| Note::SkippedSamples { count, first }));
        if data.untaught > 0 {
            notes.push(Note::UntaughtSamples { count: data.untaught, seq_len: config.model.seq_len });
        }
        if data.seams > 0 {
            notes.push(Note::Seams { count: data.seams });
        }
        if data.unread_labels > 0 {
            notes.push(Note::UnreadLabels);
        }
        if config.samples.shown > 0 && matches!(data.train, Source::Synthetic(_)) {
            notes.push(Note::NothingToShow);
        }
        let environment = environment.clone();
        Ok(Job {
            config,
            environment,
            data,
            tokenised,
            folder,
            device: None,
            pause: None,
            world: None,
            notes,
            watch,
        })
    }

    /// Ends the run after `steps` steps, though it is planned for more; it can be resumed.
    #[must_use]
    pub fn pause_after(self, steps: Option<u64>) -> Job<'w> {
        Job { pause: steps, ..self }
    }

    /// Makes this process rank 0 of several, once all of them compare equal in program, settings and data. The others
    /// [follow].
    ///
    /// # Errors
    ///
    /// When a rank differs, with the difference, or a rank fails.
    pub fn lead(&mut self, world: Arc<dyn Communicator>) -> Result<(), TrainError> {
        processes::agree(&self.config, &self.data.train, &*world)?;
        self.world = Some(world);
        Ok(())
    }

    /// The fastest plan inside the budget. A run that resumes keeps the plan of its checkpoint. If that plan no longer
    /// suits the settings, it keeps at least the micro-batch, so that it continues bit for bit.
    ///
    /// # Errors
    ///
    /// When nothing fits (with hints), or the settings are at fault.
    pub fn plan(&mut self) -> Result<Planned, TrainError> {
        let device = self.take_device()?;
        let planned = self.plan_on(&*device.device);
        self.device = Some(device);
        planned
    }

    fn plan_on(&mut self, device: &dyn Device) -> Result<Planned, TrainError> {
        self.watch.hear(Stage::Planning);
        let planned = if let Some(planned) = self.kept_plan(device) {
            planned
        } else {
            let planned = self.search(device);
            planned
                .map_err(|error| propose_methods(error, &self.config, &|graph: &Graph| device.facts(graph)))?
        };
        if self.folder.is_some() {
            self.keep_plan(&planned.to_file());
        }
        Ok(planned)
    }

    /// Searches for the fastest plan, with the micro-batch of the run so far if that fits.
    fn search(&mut self, device: &dyn Device) -> Result<Planned, TrainError> {
        let before = self.folder.as_ref().and_then(RunFolder::micro_batch);
        let before = before.filter(|_| self.config.options.micro_batch.is_none());
        let watch = RefCell::new(&mut self.watch);
        let config = &self.config;
        let plan = |options: &Options| {
            let budget = budget_for(&config.model, device, options)?;
            let facts = |graph: &Graph| device.facts(graph);
            plan_within(
                &config.model,
                watched(facts, |stage| watch.borrow_mut().hear(stage)),
                options,
                budget,
            )
        };
        match before {
            Some(rows) => match plan(&Options { micro_batch: Some(rows), ..config.options.clone() }) {
                Err(TrainError::Budget { .. } | TrainError::Plan(_)) => {
                    self.notes.push(Note::OtherMicroBatch { before: rows });
                    plan(&config.options)
                }
                planned => planned,
            },
            None => plan(&config.options),
        }
    }

    /// The plan in a file that [`Planned::to_file`] wrote, for the same settings.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, was made for something else, or does not fit.
    pub fn plan_from(&mut self, path: &Path) -> Result<Planned, TrainError> {
        let device = self.take_device()?;
        self.watch.hear(Stage::Planning);
        let named = |why: String| TrainError::Config(format!("{}: {why}", path.display()));
        let text = read_any_text(path).map_err(|error| named(error.to_string()))?;
        let planned = plan_from_file(&self.config.model, &*device.device, &self.config.options, &text);
        self.device = Some(device);
        self.keep_plan(&text);
        planned.map_err(|error| match error {
            TrainError::Config(why) => named(why),
            other => other,
        })
    }

    /// Takes the memory of a plan, reads weights, and resumes from the checkpoint if there is one.
    ///
    /// # Errors
    ///
    /// When the memory cannot be had, weights cannot be read, a checkpoint is of another run, or the disk has too
    /// little room for the checkpoints and the model.
    pub fn start(self, planned: Planned) -> Result<Session, TrainError> {
        Session::start(self, planned)
    }

    /// The device, opened at the first call.
    ///
    /// # Errors
    ///
    /// When its threads cannot be had, its disk cannot be used, or the file of costs is of another machine.
    pub fn device(&mut self) -> Result<&OpenedDevice, TrainError> {
        let device = self.take_device()?;
        Ok(self.device.insert(device))
    }

    fn take_device(&mut self) -> Result<OpenedDevice, TrainError> {
        if let Some(device) = self.device.take() {
            return Ok(device);
        }
        self.watch.hear(Stage::Opening);
        let device = self.environment.device(&self.config)?;
        self.notes.extend(device.notes.iter().cloned());
        Ok(device)
    }

    /// The settings, completed by the data.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The data.
    pub fn data(&self) -> &OpenedData {
        &self.data
    }

    /// Whether this process has tokenised data. Such a process is larger than one that finds the ids in the cache, so
    /// the next run with the same settings may be planned differently.
    pub fn has_tokenised(&self) -> bool {
        self.tokenised
    }

    /// Notes since the last call.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }
}

/// Facts of graphs from a device; `hear` is called for each program that a search builds.
pub fn watched(facts: impl Fn(&Graph) -> Facts, hear: impl Fn(Stage<'_>)) -> impl Fn(&Graph) -> Facts {
    move |graph| {
        if let Some(stage) = considered(graph) {
            hear(stage);
        }
        facts(graph)
    }
}

/// The stage of a search that builds a program with this graph.
fn considered(graph: &Graph) -> Option<Stage<'static>> {
    let tokens = graph.input_named("tokens")?; // (B, T)
    let micro_batch = graph.shape(tokens).rows();
    Some(Stage::Considering { micro_batch, tiles: graph.tile_rows().is_some() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planning::Model as _;
    use crate::settings::RawConfig;

    #[test]
    fn whoever_waits_is_told_which_micro_batch_is_looked_at() {
        let raw = RawConfig { memory: Some("64MiB".into()), ..RawConfig::default() };
        let model = Config::check(&raw).unwrap().model;
        let graph = model.training(4).unwrap();
        assert!(matches!(considered(&graph), Some(Stage::Considering { micro_batch: 4, tiles: false })));
    }
}
