//! A planned model that can be trained: the loop is yours, or the [`Trainer`](crate::Trainer)'s.
//!
//! ```text
//! let mut run = Run::new(model, &options)?;           plans, takes the arena, fills in the weights
//! for batch in micro_batches { run.backward(&batch)?; }
//! run.step(lr)?;                                      clips, updates, and the next step begins
//! ```
//!
//! The first `backward` of a step replaces the gradients, the others add to them. The loss of a
//! micro-batch is multiplied by the graph input `scale`, one over the valid targets of *all* its
//! micro-batches, so the losses of a step add up to the mean over the global batch, and so do the
//! gradients.
//!
//! Where parameters are updated inside the backward pass ([`Options::update`]), the learning rate must be known
//! before it: such a loop calls [`Run::begin`] first. Loops that do not know which it is may always call it.

use std::collections::BTreeMap;
use std::path::Path;

use plimsoll_exec::{CpuDevice, Data, Device, Engine};
use plimsoll_graph::{StateKind, Type};
use plimsoll_plan::{Choice, Plan, Program, Role};

use crate::budget::Budget;
use crate::error::TrainError;
use crate::files::{self, Form, Loaded, ModelFolder};
use crate::in_backward::SQUARES;
use crate::memory;
use crate::options::Options;
use crate::planning::{Model, Planned, plan_for};
use crate::size::Size;

/// A planned model in its arena.
#[derive(Debug)]
pub struct Run<D: Device = CpuDevice> {
    engine: Engine<D>,
    plan: Plan,
    budget: Budget,
    micro_batch: usize,
    accumulation: usize,
    seed: u64,
    /// What each state is for.
    kinds: BTreeMap<String, StateKind>,
    /// Micro-batches since the last update.
    gathered: usize,
    /// Updates so far.
    steps: u64,
    /// Whether a loss of this step was not finite.
    spoiled: bool,
    /// Passes over a micro-batch that updates parameters itself, two where the first is for the norm alone; 0 where the
    /// update is a schedule of its own.
    updating_passes: usize,
    /// The learning rate of this step, once it is known.
    lr: Option<f32>,
    /// Whether state may be of two steps: an update was begun and did not come to its end.
    torn: bool,
}

impl Run<CpuDevice> {
    /// Plans a model for this machine's CPU and takes the memory.
    ///
    /// # Errors
    ///
    /// When nothing fits, the memory cannot be had, or the model is wrong.
    #[allow(clippy::needless_pass_by_value, reason = "a closure is handed over and forgotten")]
    pub fn new(model: impl Model, options: &Options) -> Result<Run, TrainError> {
        let device = options.device()?;
        let planned = plan_for(&model, &device, options)?;
        Run::start(device, planned, options.seed)
    }
}

impl<D: Device> Run<D> {
    /// Takes the memory of a plan and fills in the weights.
    ///
    /// # Errors
    ///
    /// When the memory cannot be had.
    pub fn start(device: D, planned: Planned, seed: u64) -> Result<Run<D>, TrainError> {
        let Planned { choice, budget } = planned;
        let Choice { plan, program, micro_batch, accumulation, .. } = choice;
        let updating_passes = if program.updates_in_backward() { program.passes() } else { 0 };
        // The system lends more than it has and takes it back by force; better to say so now.
        let free = memory::available()?;
        if plan.arena_bytes > free {
            let (needed, free) = (Size { bytes: plan.arena_bytes }, Size { bytes: free });
            return Err(TrainError::Config(format!(
                "the plan needs {needed} but only {free} of memory are free; state a smaller --memory"
            )));
        }
        let engine = Engine::new(device, &program, &plan, seed)?;
        // Last, so that the training graph has the say: others do not train and may know less.
        let kinds = [program.generate, program.evaluate, Some(program.train)].into_iter().flatten();
        let kinds = kinds.flat_map(|part| {
            part.graph.states().iter().map(|state| (state.name.clone(), state.kind)).collect::<Vec<_>>()
        });
        Ok(Run {
            engine,
            plan,
            budget,
            micro_batch,
            accumulation,
            seed,
            kinds: kinds.collect(),
            gathered: 0,
            steps: 0,
            spoiled: false,
            updating_passes,
            lr: None,
            torn: false,
        })
    }

    /// Begins a step whose learning rate is `lr`. Needed only where the backward pass updates parameters; elsewhere
    /// [`step`](Self::step) tells it.
    pub fn begin(&mut self, lr: f32) {
        self.lr = Some(lr);
    }

    /// Runs forward and backward of one micro-batch; returns its share of the loss.
    ///
    /// `inputs` are the graph's inputs by name, `scale` among them; `rng` is supplied.
    ///
    /// # Errors
    ///
    /// When an input is missing or of the wrong size, or holds bad data.
    pub fn backward(&mut self, inputs: &[(&str, Data)]) -> Result<f32, TrainError> {
        let role = if self.gathered == 0 { Role::First } else { Role::Further };
        let (lr, step) = ([self.update_rate()?], [(self.steps + 1) as f32]);
        let rng = self.rng();
        let mut clip = [f32::NAN];
        if self.updating_passes == 2 {
            clip = self.clip_factor(inputs, &lr, &step, &rng)?;
        }
        self.torn |= self.updating_passes > 0;
        self.run_pass(role, inputs, &OwnInputs { clip: &clip, lr: &lr, step: &step, rng: &rng })?;
        self.gathered += 1;
        let loss = self.engine.scalar(role, "loss")?;
        self.spoiled |= !loss.is_finite();
        Ok(loss)
    }

    /// Runs the pass that changes nothing; returns the clipping factor, NaN where the next pass must change nothing
    /// either.
    fn clip_factor(
        &mut self,
        inputs: &[(&str, Data)],
        lr: &[f32],
        step: &[f32],
        rng: &[i32],
    ) -> Result<[f32; 1], TrainError> {
        self.run_pass(Role::First, inputs, &OwnInputs { clip: &[f32::NAN], lr, step, rng })?;
        let loss = self.engine.scalar(Role::First, "loss")?;
        let factor = self.engine.scalar(Role::First, Program::CLIP)?;
        Ok([if loss.is_finite() { factor } else { f32::NAN }])
    }

    /// Runs a schedule with the caller's inputs and those of the run's own that it has.
    fn run_pass(&mut self, role: Role, inputs: &[(&str, Data)], own: &OwnInputs) -> Result<(), TrainError> {
        let OwnInputs { clip, lr, step, rng } = *own;
        let own = [
            (Program::CLIP, Data::F32(clip)),
            ("lr", Data::F32(lr)),
            ("step", Data::F32(step)),
            ("rng", Data::I32(rng)),
            ("rounding", Data::I32(rng)),
        ];
        let mut all = [("", Data::F32(&[])); MAX_INPUTS];
        let mut count = 0;
        let read = own.into_iter().filter(|(name, _)| self.engine.reads(role, name));
        for input in read.chain(inputs.iter().copied()) {
            *all.get_mut(count).ok_or_else(|| {
                TrainError::Config(format!("a batch has at most {} inputs", MAX_INPUTS - own.len()))
            })? = input;
            count += 1;
        }
        Ok(self.engine.run(role, &all[..count])?)
    }

    /// Clips the gathered gradients and updates the parameters; returns the gradient norm.
    ///
    /// # Errors
    ///
    /// When a loss or the norm is not finite: then nothing has changed, and the gathered gradients are
    /// forgotten. Only where the backward pass updates parameters, a gradient that is not finite may be found when
    /// others have been applied, and the error says so.
    pub fn step(&mut self, lr: f32) -> Result<f32, TrainError> {
        if self.gathered == 0 {
            return Err(TrainError::Config("`step` needs at least one `backward` before it".into()));
        }
        self.gathered = 0;
        let step = self.steps + 1;
        if std::mem::take(&mut self.spoiled) {
            // No update was begun, or each saw the loss and changed nothing.
            self.torn = false;
            return Err(TrainError::NotFinite { step, what: "loss" });
        }
        if self.updating_passes > 0 {
            return self.finish_step(step, lr);
        }
        let (lr, number, rng) = ([lr], [step as f32], self.rng());
        self.torn = true;
        self.run_pass(
            Role::Update,
            &[],
            &OwnInputs { clip: &[f32::NAN], lr: &lr, step: &number, rng: &rng },
        )?;
        let norm = self.engine.scalar(Role::Update, "grad_norm")?;
        self.torn = false;
        if !norm.is_finite() {
            return Err(TrainError::NotFinite { step, what: "gradient norm" });
        }
        self.steps = step;
        Ok(norm)
    }

    /// The learning rate that the backward pass is about to use, 0 where it uses none.
    fn update_rate(&self) -> Result<f32, TrainError> {
        if self.updating_passes == 0 {
            return Ok(0.0);
        }
        if self.gathered > 0 {
            return Err(TrainError::Config(
                "this plan updates parameters inside the backward pass, so each `backward` needs its `step`"
                    .into(),
            ));
        }
        self.lr.ok_or_else(|| {
            TrainError::Config(
                "this plan updates parameters inside the backward pass; call `begin` with the learning rate first"
                    .into(),
            )
        })
    }

    /// Closes a step whose updates have been made.
    fn finish_step(&mut self, step: u64, lr: f32) -> Result<f32, TrainError> {
        if let Some(used) = self.lr.take().filter(|used| used.to_bits() != lr.to_bits()) {
            return Err(TrainError::Config(format!(
                "`step` is told a learning rate of {lr}, but `begin` was told {used} and updates were made with it"
            )));
        }
        let norm = self.engine.scalar(Role::First, "grad_norm")?;
        self.torn = !norm.is_finite() && self.updating_passes == 1 && self.some_gradient_is_finite()?;
        if self.torn {
            self.steps = step;
            return Err(TrainError::PartlyUpdated { step });
        }
        if !norm.is_finite() {
            return Err(TrainError::NotFinite { step, what: "gradient norm" });
        }
        self.steps = step;
        Ok(norm)
    }

    /// Whether a parameter was updated inside a backward pass whose norm is not finite: each sees to its own gradient.
    fn some_gradient_is_finite(&self) -> Result<bool, TrainError> {
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

    /// Whether all state is of one step. It is not after an update that failed on its way, or one that
    /// [`TrainError::PartlyUpdated`] tells of; such a run must not be saved, and goes on only from a checkpoint.
    pub fn is_whole(&self) -> bool {
        !self.torn
    }

    /// The loss of a micro-batch, forward only: nothing changes, and no gradient is touched.
    ///
    /// # Errors
    ///
    /// When the run was not planned to evaluate, or an input is missing or bad.
    pub fn evaluate(&mut self, inputs: &[(&str, Data)]) -> Result<f32, TrainError> {
        self.engine.run(Role::Evaluate, inputs)?;
        Ok(self.engine.scalar(Role::Evaluate, "loss")?)
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
        self.engine.run(Role::Generate, &inputs)?;
        Ok(self.engine.output(Role::Generate, "logits", logits)?)
    }

    /// The gradient of a parameter, summed over the micro-batches since the last step.
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

    /// The numbers of a parameter or any other state.
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

    /// Replaces the numbers of a parameter or any other state. Of a weight that is kept in halves it is the upper one: what
    /// completes it to its master copy is a state of its own.
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

    /// Names and types of all state that is for one of the purposes `wanted` says yes to.
    pub fn states_of(&self, wanted: impl Fn(StateKind) -> bool) -> impl Iterator<Item = (&str, Type)> {
        self.engine.states().filter(move |(name, _)| self.kinds.get(*name).is_some_and(|kind| wanted(*kind)))
    }

    /// Names and types of the parameters: all of them, or those alone that are trained.
    pub fn parameters(&self, frozen_too: bool) -> impl Iterator<Item = (&str, Type)> {
        self.states_of(move |kind| match kind {
            StateKind::Parameter { trainable } => trainable || frozen_too,
            _ => false,
        })
    }

    /// The plan that is being run.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The budget it was made for.
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

    /// Goes on as after `steps` updates: what came before is in the state that the caller has put in place.
    /// Gathered gradients are forgotten.
    pub fn continue_after(&mut self, steps: u64) {
        (self.steps, self.gathered, self.spoiled, self.torn) = (steps, 0, false, false);
    }

    /// Reads every parameter from a model's folder; see [`load_weights`](files::load_weights).
    ///
    /// # Errors
    ///
    /// When one is missing, has another shape, or cannot be read.
    pub fn load_weights(&mut self, folder: &ModelFolder, form: &Form) -> Result<Loaded, TrainError> {
        let parameters: Vec<(String, Type)> =
            self.parameters(form.frozen).map(|(name, ty)| (name.to_owned(), ty)).collect();
        let parameters = parameters.iter().map(|(name, ty)| (name.as_str(), *ty));
        files::load_weights(&mut self.engine, parameters, folder, &*form.stored)
    }

    /// Writes every parameter as a model's folder; see [`save_weights`](files::save_weights).
    ///
    /// # Errors
    ///
    /// When the folder cannot be written.
    pub fn save_weights(&self, folder: &Path, form: &Form) -> Result<Vec<String>, TrainError> {
        files::save_weights(&self.engine, self.parameters(form.frozen), folder, form)
    }

    /// The engine: its peak, its state and what it timed.
    pub fn engine(&self) -> &Engine<D> {
        &self.engine
    }

    /// The engine, for who writes its state or has it time its actions.
    pub fn engine_mut(&mut self) -> &mut Engine<D> {
        &mut self.engine
    }

    /// Seed, step and first row of the micro-batch about to run.
    fn rng(&self) -> [i32; 4] {
        let row = self.gathered * self.micro_batch;
        [self.seed as i32, (self.seed >> 32) as i32, self.steps as i32, row as i32]
    }
}

/// What a run knows itself of the inputs of its graphs.
#[derive(Clone, Copy)]
struct OwnInputs<'a> {
    clip: &'a [f32],
    lr: &'a [f32],
    step: &'a [f32],
    rng: &'a [i32],
}

/// Inputs of a graph, `rng` included, that [`Run::backward`] takes without allocating.
const MAX_INPUTS: usize = 16;
