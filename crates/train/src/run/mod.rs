//! A planned model that can be trained: the loop is yours, or the [`Trainer`](crate::Trainer)'s.
//!
//! ```text
//! let mut run = Run::new(model, &options)?;           plans, takes the arena, fills in the weights
//! for batches in data { run.step(lr, &batches)?; }    one update over a few micro-batches
//! ```
//!
//! A step can also be driven micro-batch by micro-batch: see [`Run::begin`].

mod losses;
mod probes;
mod ranks;
mod shards;
mod start;
mod step;
mod words;

use std::collections::BTreeMap;
use std::panic::Location;
use std::path::Path;

use plimsoll_exec::{Data, Device, Engine, ExecError};
use plimsoll_graph::{PROBE, PROBE_SIZE, State, StateKind, Type};
use plimsoll_plan::{Choice, Plan, Program, Role};

use crate::error::TrainError;
use crate::files::{self, Loaded, ModelFolder, ModelFormat};
use crate::memory::Budget;
use crate::optimizer::{PROBES, SQUARES};
use crate::planning::{Model, Options, Planned, plan_for};
use losses::{is_cross_entropy, target_inputs};
use probes::Probes;
use ranks::Peers;
pub(crate) use start::held;
use start::prepared;
pub use step::{Step, Stepped};
pub(crate) use words::{WORD_BYTES, Word};

/// A loss that the graph adds, and its sum over the micro-batches of a step.
#[derive(Debug)]
struct AddedSum {
    name: String,
    sum: f32,
}

/// A planned model in its arena.
#[derive(Debug)]
pub struct Run {
    engine: Engine,
    plan: Plan,
    budget: Budget,
    micro_batch: usize,
    accumulation: usize,
    seed: u64,
    /// The purpose of each state, and the type of the whole where ranks divide it.
    kinds: BTreeMap<String, (StateKind, Option<Type>)>,
    /// Inputs that hold targets, each with the id that carries no loss.
    targets: Vec<(String, i32)>,
    /// Ones for every position of a micro-batch, for batches of callers without marks of padding.
    all_present: Vec<i32>,
    /// The losses that the graph adds to its own.
    added: Vec<AddedSum>,
    /// Losses of the micro-batches of the step that was begun last.
    losses: Vec<f32>,
    /// Whether a loss that is not finite always gives such a gradient: the update then needs no check of its own.
    losses_guard_themselves: bool,
    /// The other ranks of the run, if there are any.
    others: Option<Peers>,
    /// The losses that stand in for gradients, if the run trains without.
    probes: Option<Probes>,
    /// Updates so far.
    pub(crate) steps: u64,
    /// Number of passes over a micro-batch that update parameters themselves; two if the first is only for the norm, 0
    /// if the update is a schedule of its own.
    pub(crate) updating_passes: usize,
    /// Whether state may be of two steps, because an update began and did not finish.
    pub(crate) torn: bool,
}

impl Run {
    /// Plans a model for the device that `options` name and takes the memory.
    ///
    /// # Errors
    ///
    /// When nothing fits, the memory cannot be had, or the model is wrong.
    #[allow(clippy::needless_pass_by_value, reason = "a closure is handed over and forgotten")]
    pub fn new(model: impl Model, options: &Options) -> Result<Run, TrainError> {
        let device = options.device()?;
        let planned = plan_for(&model, &*device, options)?;
        Run::start(device, planned, options.seed)
    }

    /// Takes the memory of a plan and fills in the weights.
    ///
    /// # Errors
    ///
    /// When the memory cannot be had.
    pub fn start(device: Box<dyn Device>, planned: Planned, seed: u64) -> Result<Run, TrainError> {
        let (engine, budget) = prepared(device, &planned)?;
        Run::begun(engine, Planned { budget: budget?, ..planned }, seed)
    }

    /// As [`start`](Self::start). If the device turns out to hold more beside the arena than `planned` has room for,
    /// `again` is called for one more plan, now that the device can tell how much.
    ///
    /// # Errors
    ///
    /// When the memory cannot be had, or the second plan does not fit either.
    pub fn start_or_replan(
        device: Box<dyn Device>,
        planned: &mut Planned,
        seed: u64,
        again: impl FnOnce(&dyn Device) -> Result<Planned, TrainError>,
    ) -> Result<Run, TrainError> {
        let (mut engine, mut budget) = prepared(device, planned)?;
        if budget.is_err() {
            let device = engine.into_device();
            *planned = again(&*device)?;
            (engine, budget) = prepared(device, planned)?;
        }
        planned.budget = budget?;
        Run::begun(engine, planned.clone(), seed)
    }

    /// Takes the memory of an engine that is ready.
    fn begun(mut engine: Engine, planned: Planned, seed: u64) -> Result<Run, TrainError> {
        let Planned { choice, budget } = planned;
        let Choice { plan, program, micro_batch, accumulation, .. } = choice;
        let updating_passes = if program.updates_in_backward() { program.passes() } else { 0 };
        engine.start(&program, seed)?;
        let targets = target_inputs(&program.train.graph);
        let added = program.train.graph.added_losses().iter();
        let added = added.map(|added| AddedSum { name: added.name.clone(), sum: 0.0 }).collect();
        let losses_guard_themselves = is_cross_entropy(&program.train.graph);
        let probes = Probes::of(&program);
        // Last, so that the training graph decides: the other graphs do not train and may know less.
        let kinds = [program.generate, program.evaluate, Some(program.train)].into_iter().flatten();
        let kinds = kinds.flat_map(|part| {
            let about = |state: &State| (state.name.clone(), (state.kind, state.whole));
            part.graph.states().iter().map(about).collect::<Vec<_>>()
        });
        Ok(Run {
            engine,
            plan,
            budget,
            micro_batch,
            accumulation,
            seed,
            kinds: kinds.collect(),
            targets,
            all_present: Vec::new(),
            added,
            losses: Vec::with_capacity(accumulation),
            losses_guard_themselves,
            others: None,
            probes,
            steps: 0,
            updating_passes,
            torn: false,
        })
    }

    /// Runs a schedule with the caller's inputs and the run's own; `next` is the schedule that is likely to follow. An error
    /// about the inputs names the line of the caller.
    #[track_caller]
    pub(crate) fn run_pass(
        &mut self,
        role: Role,
        inputs: &[(&str, Data)],
        own: &OwnInputs,
        next: Option<Role>,
    ) -> Result<(), TrainError> {
        let OwnInputs { clip, lr, scale, step, rng, probe, probe_size } = own;
        let rounding = self.rounding(*rng);
        let given = |name: &str| inputs.iter().any(|(known, _)| *known == name);
        let present = self.engine.input(role, PRESENT).filter(|_| !given(PRESENT));
        self.all_present.resize(present.map_or(self.all_present.len(), |ty| ty.shape.elements()), 1);
        let own = [
            (Program::CLIP, Data::F32(clip)),
            (SCALE, Data::F32(scale)),
            ("lr", Data::F32(lr)),
            ("step", Data::F32(step)),
            ("rng", Data::I32(rng)),
            ("rounding", Data::I32(&rounding)),
            (PROBE, Data::I32(probe)),
            (PROBE_SIZE, Data::F32(probe_size)),
            (PROBES, Data::I32(probe)),
            (PRESENT, Data::I32(&self.all_present)),
        ];
        let mut all = [("", Data::F32(&[])); MAX_INPUTS];
        let mut count = 0;
        let read = own.into_iter().filter(|(name, _)| self.engine.reads(role, name) && !given(name));
        for input in read.chain(inputs.iter().copied()) {
            *all.get_mut(count).ok_or_else(|| {
                TrainError::Config(format!("a batch has at most {} inputs", MAX_INPUTS - own.len()))
            })? = input;
            count += 1;
        }
        let at = Location::caller();
        self.engine.run_before(role, &all[..count], next).map_err(|error| match error {
            ExecError::Mismatch(why) => TrainError::Config(format!("{}:{}: {why}", at.file(), at.line())),
            other => other.into(),
        })
    }

    /// Whether some parameter was updated inside a backward pass whose norm is not finite: each update checks only its
    /// own gradient.
    pub(crate) fn some_gradient_is_finite(&self) -> Result<bool, TrainError> {
        let names = self.engine.states().map(|(name, _)| name).filter(|name| name.starts_with(SQUARES));
        for name in names {
            let mut squares = [0.0];
            self.engine.read_state(name, 0, &mut squares)?;
            if squares[0].is_finite() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether all state is of one step. It is not after an update that failed halfway, or one that ended with
    /// [`TrainError::PartlyUpdated`]; such a run must not be saved, and continues only from a checkpoint.
    pub fn is_whole(&self) -> bool {
        !self.torn
    }

    /// How many targets of a micro-batch carry a loss. A graph without targets counts as one.
    pub fn count_targets(&self, inputs: &[(&str, Data)]) -> u64 {
        if self.targets.is_empty() {
            return 1;
        }
        let counted = self.targets.iter().filter_map(|(name, ignored)| {
            let (_, Data::I32(ids)) = inputs.iter().find(|(given, _)| given == name)? else { return None };
            Some(ids.iter().filter(|id| *id != ignored).count() as u64)
        });
        counted.sum()
    }

    /// The losses of the micro-batches of the last step, each a share of its mean.
    pub fn losses(&self) -> &[f32] {
        &self.losses
    }

    /// The losses that the graph adds to its own, each without its weight and summed over the micro-batches of the step
    /// that is under way or ran last.
    pub fn added_losses(&self) -> impl Iterator<Item = (&str, f32)> {
        self.added.iter().map(|added| (added.name.as_str(), added.sum))
    }

    /// The mean loss of a micro-batch, forward only: nothing changes, and no gradient is touched.
    ///
    /// # Errors
    ///
    /// When the run was not planned to evaluate, or an input is missing or bad, with the line of the caller.
    #[track_caller]
    pub fn evaluate(&mut self, inputs: &[(&str, Data)]) -> Result<f32, TrainError> {
        self.evaluate_share(inputs, self.count_targets(inputs))
    }

    /// The share of a micro-batch in the mean loss over `targets` targets, forward only.
    ///
    /// # Errors
    ///
    /// As [`evaluate`](Self::evaluate).
    #[track_caller]
    pub fn evaluate_share(&mut self, inputs: &[(&str, Data)], targets: u64) -> Result<f32, TrainError> {
        let scale = [1.0 / targets.max(1) as f32];
        let own = OwnInputs { scale, ..OwnInputs::default() };
        self.call(Role::Evaluate)?;
        self.run_pass(Role::Evaluate, inputs, &own, None)?;
        Ok(self.engine.scalar(Role::Evaluate, "loss")?)
    }

    /// The named outputs of the model for a micro-batch, losses left out, forward only. Targets need not be given.
    ///
    /// # Errors
    ///
    /// When the run was not planned to evaluate, the model names no output but its loss, or an input is missing or bad, with
    /// the line of the caller.
    #[track_caller]
    pub fn predict(&mut self, inputs: &[(&str, Data)]) -> Result<BTreeMap<String, Vec<f32>>, TrainError> {
        let names: Vec<String> = self.engine.outputs(Role::Evaluate)?.map(str::to_owned).collect();
        let is_loss = |name: &String| name == "loss" || self.added.iter().any(|added| added.name == *name);
        let wanted: Vec<String> = names.into_iter().filter(|name| !is_loss(name)).collect();
        if wanted.is_empty() {
            return Err(TrainError::Config(
                "the model names no output but `loss`; name a value with `g.output(\"logits\", value)`"
                    .into(),
            ));
        }
        let absent = self.targets.iter().filter(|(name, _)| !inputs.iter().any(|(given, _)| given == name));
        let absent: Vec<(String, Vec<i32>)> = absent
            .filter_map(|(name, ignored)| {
                let count = self.engine.input(Role::Evaluate, name)?.shape.elements();
                Some((name.clone(), vec![*ignored; count]))
            })
            .collect();
        let unknown = absent.iter().map(|(name, ids)| (name.as_str(), Data::I32(ids)));
        let all: Vec<(&str, Data)> = inputs.iter().copied().chain(unknown).collect();
        self.evaluate_share(&all, 1)?;
        wanted.into_iter().map(|name| Ok((name.clone(), self.output(&name)?))).collect()
    }

    /// A named output of the evaluation that ran last.
    fn output(&self, name: &str) -> Result<Vec<f32>, TrainError> {
        let elements = self.engine.output_type(Role::Evaluate, name).map_or(0, |ty| ty.shape.elements());
        let mut values = vec![0.0; elements];
        self.engine.output(Role::Evaluate, name, &mut values)?;
        Ok(values)
    }

    /// Logits of the token after `position` of `tokens`.
    ///
    /// # Errors
    ///
    /// When the run was not planned to generate.
    pub fn generate(
        &mut self,
        tokens: &[i32],
        position: usize,
        logits: &mut [f32],
    ) -> Result<(), TrainError> {
        let position = [position as i32];
        let inputs = [("tokens", Data::I32(tokens)), ("position", Data::I32(&position))];
        self.call(Role::Generate)?;
        self.engine.run(Role::Generate, &inputs)?;
        Ok(self.engine.output(Role::Generate, "logits", logits)?)
    }

    /// The gradient of a parameter, summed over the micro-batches of the last step.
    ///
    /// # Errors
    ///
    /// When it has none, or none that outlives the backward pass.
    pub fn gradient(&self, parameter: &str) -> Result<Vec<f32>, TrainError> {
        if self.updating_passes > 0 {
            return Err(TrainError::Config(format!(
                "the gradient of `{parameter}` was used up inside the backward pass; plan with `--update separate` \
                 to look at gradients"
            )));
        }
        self.state(&plimsoll_graph::gradient_name(parameter))
    }

    /// The numbers of a parameter or any other state, or those that this rank keeps of it.
    ///
    /// # Errors
    ///
    /// When there is no such state.
    pub fn state(&self, name: &str) -> Result<Vec<f32>, TrainError> {
        let elements =
            self.engine.states().find(|(known, _)| *known == name).map_or(0, |(_, ty)| ty.shape.elements());
        let mut values = vec![0.0; elements];
        self.engine.read_state(name, 0, &mut values)?;
        Ok(values)
    }

    /// Replaces the numbers of a parameter or any other state. For a weight that is kept in two halves this is the
    /// upper one: the half that completes it to its master copy is a state of its own.
    ///
    /// # Errors
    ///
    /// When there is no such state or it has another size.
    pub fn set_state(&mut self, name: &str, values: &[f32]) -> Result<(), TrainError> {
        Ok(self.engine.write_state(name, 0, values)?)
    }

    /// Names and types of all state.
    pub fn states(&self) -> impl Iterator<Item = (&str, Type)> {
        self.engine.states()
    }

    /// Names and types of all state whose purpose `wanted` accepts.
    pub fn states_of(&self, wanted: impl Fn(StateKind) -> bool) -> impl Iterator<Item = (&str, Type)> {
        let of_kind = move |name: &str| self.kinds.get(name).is_some_and(|(kind, _)| wanted(*kind));
        self.engine.states().filter(move |(name, _)| of_kind(name))
    }

    /// Names and types of the parameters: all of them, or only the trained ones. Types are those of the whole, whatever part
    /// of it this rank keeps.
    pub fn parameters(&self, frozen_too: bool) -> impl Iterator<Item = (&str, Type)> {
        let parameters = self.states_of(move |kind| match kind {
            StateKind::Parameter { trainable } => trainable || frozen_too,
            _ => false,
        });
        parameters.map(move |(name, ty)| (name, self.whole_type(name).unwrap_or(ty)))
    }

    /// The most bytes that this process has held of the memory that the budget counts.
    ///
    /// # Errors
    ///
    /// When that memory cannot be read.
    pub fn held(&self) -> Result<u64, TrainError> {
        self.own_bytes().map(|bytes| bytes.max(self.held_elsewhere()))
    }

    /// The most bytes of the host's memory that this process held; nothing where that is the memory that the budget counts.
    ///
    /// # Errors
    ///
    /// When that memory cannot be read.
    pub fn held_by_host(&self) -> Result<Option<u64>, TrainError> {
        start::held_by_host(self.engine.device())
    }

    /// The plan that is being run.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The budget that the plan was made for.
    pub fn budget(&self) -> Budget {
        self.budget
    }

    /// Rows of one micro-batch.
    pub fn micro_batch(&self) -> usize {
        self.micro_batch
    }

    /// Micro-batches of one step.
    pub fn accumulation(&self) -> usize {
        self.accumulation
    }

    /// Updates so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Makes everything random repeatable.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Continues as after `steps` updates, from the state that the caller has put in place.
    pub fn continue_after(&mut self, steps: u64) {
        (self.steps, self.torn) = (steps, false);
    }

    /// Reads every parameter from a model's folder; see [`load_weights`](files::load_weights).
    ///
    /// # Errors
    ///
    /// When one is missing, has another shape, or cannot be read.
    pub fn load_weights(&mut self, folder: &ModelFolder, form: &ModelFormat) -> Result<Loaded, TrainError> {
        let parameters: Vec<(String, Type)> =
            self.parameters(form.frozen).map(|(name, ty)| (name.to_owned(), ty)).collect();
        let parameters = parameters.iter().map(|(name, ty)| (name.as_str(), *ty));
        Ok(files::load_weights(&mut self.engine, parameters, folder, &*form.stored)?)
    }

    /// Writes every parameter as a model's folder; see [`save_weights`](files::save_weights).
    ///
    /// # Errors
    ///
    /// When the folder cannot be written.
    pub fn save_weights(&self, folder: &Path, form: &ModelFormat) -> Result<Vec<String>, TrainError> {
        Ok(files::save_weights(self, self.parameters(form.frozen), folder, form)?)
    }

    /// The engine: its peak, its state and its timings.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The engine, for callers that write its state or time its actions.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }
}

/// Inputs of the graphs that a run fills in itself.
#[derive(Clone, Copy, Default)]
pub(crate) struct OwnInputs {
    pub(crate) clip: [f32; 1],
    pub(crate) lr: [f32; 1],
    /// One over the targets of the whole step.
    pub(crate) scale: [f32; 1],
    pub(crate) step: [f32; 1],
    pub(crate) rng: [i32; 4],
    /// Seed, step and direction of a probe, and its distance from the weights.
    pub(crate) probe: [i32; 4],
    pub(crate) probe_size: [f32; 1],
}

/// The input that holds the divisor of losses.
const SCALE: &str = "scale";

/// Inputs of a graph, the run's own included, that a pass takes without allocating.
const MAX_INPUTS: usize = 20;

/// The input that tells tokens from padding.
const PRESENT: &str = "present";
