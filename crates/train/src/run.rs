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
use std::path::{Path, PathBuf};

use plimsoll_exec::cpu::OUTSIDE_BYTES;
use plimsoll_exec::{CpuDevice, Data, Device, Engine, measure_disk};
use plimsoll_graph::{Graph, GraphError, StateKind, Type, differentiate, fuse, store};
use plimsoll_plan::{
    Choice, Costed, DeviceSpec, Facts, Link, Plan, Program, Request, Role, Strategy, Tier, gradients, search,
};

use crate::budget::{Budget, Origin};
use crate::error::{TrainError, Unlimited};
use crate::files::{self, Form, Loaded, ModelFolder};
use crate::in_backward::{Update, append_in_backward, append_two_pass};
use crate::memory;
use crate::optimizer::{self, Optimizer, Storage};
use crate::size::Size;

/// What is asked of a run. What is left open is chosen to be fastest inside the budget.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the whole process; the free memory less a margin when not stated.
    pub memory: Option<u64>,
    /// Sequences (rows of the batch axis) of one optimizer step.
    pub global_batch: usize,
    /// Rows of one micro-batch.
    pub micro_batch: Option<usize>,
    /// What is dropped and rebuilt.
    pub recompute: Option<Strategy>,
    /// Where values may wait that do not fit; nowhere when absent.
    pub offload: Option<Offload>,
    /// How parameters are updated.
    pub optimizer: Optimizer,
    /// In which element types weights, gradients and moments are kept.
    pub storage: Storage,
    /// Makes weights and dropout masks repeatable.
    pub seed: u64,
    /// Threads, or one for each core when 0.
    pub threads: usize,
    /// Whether the run is also to compute losses without training ([`Run::evaluate`]).
    pub evaluate: bool,
    /// When parameters are updated. [`Update::Separate`] unless stated: the other ways need [`Run::begin`], and have
    /// no gradients to look at.
    pub update: Update,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            memory: None,
            global_batch: 1,
            micro_batch: None,
            recompute: None,
            offload: None,
            optimizer: Optimizer::default(),
            storage: Storage::default(),
            seed: 0,
            threads: 0,
            evaluate: false,
            update: Update::default(),
        }
    }
}

/// Where values may wait that do not fit into memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Offload {
    /// A disk, for the CPU; memory of the host, for a device that is not the host.
    pub tier: Tier,
    /// Where a file on disk may lie. It has no name and leaves nothing behind.
    pub folder: PathBuf,
    /// Bytes that may be taken; all that is free less a tenth when not stated.
    pub budget: Option<u64>,
    /// Rates of the way there and back; measured when not stated.
    pub link: Option<Link>,
}

impl Options {
    /// This machine's CPU, with the disk that the options offer tried.
    ///
    /// # Errors
    ///
    /// When the threads cannot be had, or the folder cannot hold a file.
    pub fn device(&self) -> Result<CpuDevice, TrainError> {
        let device = CpuDevice::new(self.threads)?;
        let Some(Offload { folder, budget, link, .. }) = &self.offload else { return Ok(device) };
        let link = match link {
            Some(link) => *link,
            None => {
                measure_disk(folder, *budget).map_err(|error| TrainError::Config(error.to_string()))?.link
            }
        };
        Ok(device.with_offload(folder.clone(), link))
    }

    /// How the memory of this machine divides.
    ///
    /// # Errors
    ///
    /// When the memory of the machine cannot be read.
    pub fn budget(&self) -> Result<Budget, TrainError> {
        let mut budget = Budget::resolve(self.memory)?;
        if self.offload.is_some() {
            budget.outside += OUTSIDE_BYTES;
        }
        Ok(budget)
    }

    /// What is asked of the planner when `budget` is there.
    pub fn request(&self, budget: &Budget) -> Request {
        Request {
            global_batch: self.global_batch,
            micro_batch: match self.update {
                Update::InBackward | Update::TwoPass => self.micro_batch.or(Some(self.global_batch)),
                Update::Auto | Update::Separate => self.micro_batch,
            },
            strategy: self.recompute,
            budget: budget.arena(),
            // With a stated budget its owner wants speed; without one, memory that brings nothing is spared.
            // Nor is anything spared in two passes, which are there because nothing else fits.
            slack: if budget.origin == Origin::Stated || self.update == Update::TwoPass { 0.0 } else { 0.01 },
        }
    }

    /// Whether micro-batches of `rows` rows are updated inside their backward pass.
    fn updates_in_backward(&self, rows: usize) -> bool {
        let possible = rows == self.global_batch && self.optimizer.max_grad_norm.is_none();
        possible && matches!(self.update, Update::Auto | Update::InBackward)
    }

    /// The same with two passes, if they were not asked for and could help.
    pub fn in_two_passes(&self) -> Option<Options> {
        let two = Options { update: Update::TwoPass, ..self.clone() };
        let helps = self.update == Update::Auto && self.optimizer.max_grad_norm.is_some();
        (helps && two.check_update().is_ok()).then_some(two)
    }

    /// Refuses an update inside the backward pass where all gradients must be there first.
    fn check_update(&self) -> Result<(), TrainError> {
        if matches!(self.update, Update::Auto | Update::Separate) {
            return Ok(());
        }
        let limit = self.optimizer.max_grad_norm.filter(|_| self.update == Update::InBackward);
        if let Some(norm) = limit {
            return Err(TrainError::Config(format!(
                "updates inside the backward pass cannot limit the norm of all gradients to {norm}; \
                 add `--max-grad-norm 0`, or take `--update two-pass`"
            )));
        }
        match self.micro_batch {
            Some(micro_batch) if micro_batch != self.global_batch => Err(TrainError::Config(format!(
                "updates inside the backward pass take one micro-batch a step, and a global batch of {} in \
                 micro-batches of {micro_batch} has more; leave out `--update`",
                self.global_batch
            ))),
            _ => Ok(()),
        }
    }
}

/// The graphs of a model, each for a number of rows.
pub trait Model {
    /// The forward graph for `rows` rows, with a scalar output `loss`.
    ///
    /// # Errors
    ///
    /// When the model is wrong.
    fn training(&self, rows: usize) -> Result<Graph, GraphError>;

    /// The forward graph that computes the same loss for evaluation: without dropout, where there is any.
    ///
    /// # Errors
    ///
    /// When the model is wrong.
    fn evaluation(&self, rows: usize) -> Result<Graph, GraphError> {
        self.training(rows)
    }

    /// The forward graph that yields the next token, if the run is to generate.
    ///
    /// # Errors
    ///
    /// When the model is wrong.
    fn generation(&self) -> Option<Result<Graph, GraphError>> {
        None
    }
}

impl<F: Fn(usize) -> Result<Graph, GraphError>> Model for F {
    fn training(&self, rows: usize) -> Result<Graph, GraphError> {
        self(rows)
    }
}

/// A plan for a model on this machine, before any memory is taken.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The plan, its graphs, and how the global batch divides.
    pub choice: Choice,
    /// The budget it was made for.
    pub budget: Budget,
}

/// Finds the fastest plan inside the budget.
///
/// # Errors
///
/// When nothing fits (with hints), or the model or the request is at fault.
pub fn plan_for(model: &impl Model, device: &impl Device, options: &Options) -> Result<Planned, TrainError> {
    plan_within(options.budget()?, options, |options, rows| program(model, device, options, rows))
}

/// Finds the fastest plan for a device that is described and need not be here.
///
/// # Errors
///
/// When nothing fits (with hints), or the model or the request is at fault.
pub fn plan_described(
    model: &impl Model,
    spec: &DeviceSpec,
    options: &Options,
) -> Result<Planned, TrainError> {
    let budget = Budget::of_device(spec, options.memory)?;
    let link = options.offload.as_ref().map(|offload| spec.host_link(offload.budget));
    let facts = |graph: &Graph| Facts { link, ..spec.facts(graph) };
    plan_within(budget, options, |options, rows| costed_program(model, facts, options, rows))
}

fn plan_within(
    budget: Budget,
    options: &Options,
    build: impl Fn(&Options, usize) -> Result<Program, GraphError>,
) -> Result<Planned, TrainError> {
    options.check_update()?;
    let found = |options: &Options| {
        let choice = search(options.request(&budget), |rows| build(options, rows));
        choice.map_err(|error| TrainError::search(error, &budget))
    };
    let mut error = match found(options) {
        Ok(choice) => return Ok(Planned { choice, budget }),
        Err(error) => error,
    };
    if let (TrainError::Budget { .. }, Some(two)) = (&error, options.in_two_passes()) {
        match found(&two) {
            // The bound is of one pass.
            Ok(choice) => {
                let choice = Choice { lower_bound_seconds: None, ..choice };
                return Ok(Planned { choice, budget });
            }
            Err(other) => error = error.closer(other),
        }
    }
    Err(hint_at_no_limit(error, options, build))
}

/// Adds to the error of a budget what would fit if the norm of the gradients were not limited, and gradients could
/// be used up inside the backward pass. Other errors stay as they are.
pub fn hint_at_no_limit(
    error: TrainError,
    options: &Options,
    build: impl Fn(&Options, usize) -> Result<Program, GraphError>,
) -> TrainError {
    let TrainError::Budget { budget, smallest, hints, .. } = error else { return error };
    let optimizer = Optimizer { max_grad_norm: None, ..options.optimizer };
    let relaxed = Options { optimizer, update: Update::InBackward, ..options.clone() };
    let separate = options.update == Update::Separate;
    let limited = options.optimizer.max_grad_norm.is_some() || separate;
    let found = (limited && relaxed.check_update().is_ok())
        .then(|| search(relaxed.request(&budget), |rows| build(&relaxed, rows)).ok())
        .flatten();
    let unlimited = found.map(|choice| {
        let states = choice.program.train.graph.states().iter();
        let all = states.filter(|state| state.kind == StateKind::Transient);
        let all: u64 = all.map(|state| state.ty.bytes() as u64).sum();
        Box::new(Unlimited {
            arena_bytes: choice.plan.arena_bytes,
            saved_bytes: all.saturating_sub(gradients(&choice).bytes),
            micro_batch: choice.micro_batch,
            separate,
        })
    });
    TrainError::Budget { budget, smallest, hints, unlimited }
}

/// All graphs of a run with micro-batches of `rows` rows.
///
/// # Errors
///
/// When the model is wrong.
pub fn program(
    model: &impl Model,
    device: &impl Device,
    options: &Options,
    rows: usize,
) -> Result<Program, GraphError> {
    costed_program(model, |graph| device.facts(graph), options, rows)
}

/// All graphs of a run with micro-batches of `rows` rows, for a device that `facts` speaks for.
///
/// # Errors
///
/// When the model is wrong.
pub fn costed_program(
    model: &impl Model,
    facts: impl Fn(&Graph) -> Facts,
    options: &Options,
    rows: usize,
) -> Result<Program, GraphError> {
    let costed = |graph: Graph| Costed { facts: facts(&graph), graph };
    let forward = model.training(rows)?;
    let loss = forward.output_named("loss").ok_or_else(|| GraphError {
        what: "model".into(),
        block: String::new(),
        why: "has no output `loss`; name the scalar to be minimised with `g.output(\"loss\", value)`".into(),
        at: None,
    })?;
    let stored = |graph: Graph| store(graph, options.storage.of_graph());
    let backward = stored(fuse(differentiate(&forward, loss)?)?)?;
    let (optimizer, storage) = (&options.optimizer, options.storage);
    let train = if options.update == Update::TwoPass && rows == options.global_batch {
        append_two_pass(backward, optimizer, storage)?
    } else if options.updates_in_backward(rows) {
        append_in_backward(backward, optimizer, storage)?
    } else {
        optimizer::append(backward, optimizer, storage)?
    };
    let forward_only = |graph: Graph| stored(graph).map(&costed);
    let generate = model.generation().transpose()?.map(forward_only).transpose()?;
    let evaluate = options.evaluate.then(|| model.evaluation(rows)).transpose()?;
    let evaluate = evaluate.map(forward_only).transpose()?;
    Ok(Program { train: costed(train), evaluate, generate })
}

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
    /// forgotten. Only where the backward pass updates parameters, a gradient that is not finite is found when
    /// others have been applied, and the error says so.
    pub fn step(&mut self, lr: f32) -> Result<f32, TrainError> {
        if self.gathered == 0 {
            return Err(TrainError::Config("`step` needs at least one `backward` before it".into()));
        }
        self.gathered = 0;
        let step = self.steps + 1;
        if std::mem::take(&mut self.spoiled) {
            return Err(TrainError::NotFinite { step, what: "loss" });
        }
        if self.updating_passes > 0 {
            return self.finish_step(step, lr);
        }
        let (lr, number, rng) = ([lr], [step as f32], self.rng());
        self.run_pass(
            Role::Update,
            &[],
            &OwnInputs { clip: &[f32::NAN], lr: &lr, step: &number, rng: &rng },
        )?;
        let norm = self.engine.scalar(Role::Update, "grad_norm")?;
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
        if self.updating_passes == 2 && !norm.is_finite() {
            return Err(TrainError::NotFinite { step, what: "gradient norm" });
        }
        self.steps = step;
        if norm.is_finite() { Ok(norm) } else { Err(TrainError::PartlyUpdated { step }) }
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

    /// Replaces the numbers of a parameter or any other state.
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
        (self.steps, self.gathered, self.spoiled) = (steps, 0, false);
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

    /// The engine, for its peak and for tests.
    pub fn engine(&self) -> &Engine<D> {
        &self.engine
    }

    /// The engine, for tests that disturb it.
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
