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

use std::path::PathBuf;

use plimsoll_exec::cpu::OUTSIDE_BYTES;
use plimsoll_exec::{CpuDevice, Data, Device, Engine, measure_disk};
use plimsoll_graph::{Graph, GraphError, differentiate, fuse};
use plimsoll_plan::{
    Choice, Costed, DeviceSpec, Facts, Link, Plan, Program, Request, Role, Strategy, Tier, search,
};

use crate::budget::{Budget, Origin};
use crate::error::TrainError;
use crate::memory;
use crate::optimizer::{self, Optimizer};
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
    /// Makes weights and dropout masks repeatable.
    pub seed: u64,
    /// Threads, or one for each core when 0.
    pub threads: usize,
    /// Whether the run is also to compute losses without training ([`Run::evaluate`]).
    pub evaluate: bool,
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
            seed: 0,
            threads: 0,
            evaluate: false,
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
            micro_batch: self.micro_batch,
            strategy: self.recompute,
            budget: budget.arena(),
            // With a stated budget its owner wants speed; without one, memory that brings nothing is spared.
            slack: if budget.origin == Origin::Stated { 0.0 } else { 0.01 },
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
    plan_within(options.budget()?, options, |rows| program(model, device, options, rows))
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
    plan_within(budget, options, |rows| costed_program(model, facts, options, rows))
}

fn plan_within(
    budget: Budget,
    options: &Options,
    build: impl FnMut(usize) -> Result<Program, GraphError>,
) -> Result<Planned, TrainError> {
    let choice =
        search(options.request(&budget), build).map_err(|error| TrainError::search(error, &budget))?;
    Ok(Planned { choice, budget })
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
    let train = optimizer::append(fuse(differentiate(&forward, loss)?)?, &options.optimizer)?;
    let generate = model.generation().transpose()?.map(&costed);
    let evaluate = options.evaluate.then(|| model.evaluation(rows)).transpose()?.map(&costed);
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
    has_rng: bool,
    /// Micro-batches since the last update.
    gathered: usize,
    /// Updates so far.
    steps: u64,
    /// Whether a loss of this step was not finite.
    spoiled: bool,
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
        let has_rng = program.train.graph.input_named("rng").is_some();
        // The system lends more than it has and takes it back by force; better to say so now.
        let free = memory::available()?;
        if plan.arena_bytes > free {
            let (needed, free) = (Size { bytes: plan.arena_bytes }, Size { bytes: free });
            return Err(TrainError::Config(format!(
                "the plan needs {needed} but only {free} of memory are free; state a smaller --memory"
            )));
        }
        let engine = Engine::new(device, &program, &plan, seed)?;
        Ok(Run {
            engine,
            plan,
            budget,
            micro_batch,
            accumulation,
            seed,
            has_rng,
            gathered: 0,
            steps: 0,
            spoiled: false,
        })
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
        if self.has_rng {
            let rng = self.rng();
            let mut with_rng = [("rng", Data::I32(&rng)); MAX_INPUTS];
            let all = with_rng.get_mut(..=inputs.len()).ok_or_else(|| {
                TrainError::Config(format!("a batch has at most {} inputs", MAX_INPUTS - 1))
            })?;
            all[1..].copy_from_slice(inputs);
            self.engine.run(role, all)?;
        } else {
            self.engine.run(role, inputs)?;
        }
        self.gathered += 1;
        let loss = self.engine.scalar(role, "loss")?;
        self.spoiled |= !loss.is_finite();
        Ok(loss)
    }

    /// Clips the gathered gradients and updates the parameters; returns the gradient norm.
    ///
    /// # Errors
    ///
    /// When a loss or the norm is not finite: then nothing has changed, and the gathered gradients are
    /// forgotten.
    pub fn step(&mut self, lr: f32) -> Result<f32, TrainError> {
        if self.gathered == 0 {
            return Err(TrainError::Config("`step` needs at least one `backward` before it".into()));
        }
        self.gathered = 0;
        let step = self.steps + 1;
        if std::mem::take(&mut self.spoiled) {
            return Err(TrainError::NotFinite { step, what: "loss" });
        }
        let inputs = [("lr", Data::F32(&[lr])), ("step", Data::F32(&[step as f32]))];
        self.engine.run(Role::Update, &inputs)?;
        let norm = self.engine.scalar(Role::Update, "grad_norm")?;
        if !norm.is_finite() {
            return Err(TrainError::NotFinite { step, what: "gradient norm" });
        }
        self.steps = step;
        Ok(norm)
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
    /// When it has none.
    pub fn gradient(&self, parameter: &str) -> Result<Vec<f32>, TrainError> {
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
    pub fn states(&self) -> impl Iterator<Item = (&str, plimsoll_graph::Type)> {
        self.engine.states()
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

/// Inputs of a graph, `rng` included, that [`Run::backward`] takes without allocating.
const MAX_INPUTS: usize = 16;
