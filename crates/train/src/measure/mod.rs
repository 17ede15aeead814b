//! Measuring ops where they are used: a few steps of the model itself, every action timed.
//!
//! An op is timed between the ops that come before and after it in training, with the data it will see, so
//! caches are as warm or cold as they will be. What comes out is kept in a file per machine and read by later
//! plans.

mod ceiling;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use plimsoll_exec::{Device, Timing, Timings};
use plimsoll_graph::Graph;
use plimsoll_plan::{Action, Build, Choice, Plan, Program, Role, Scratch, SearchError, Strategy, plan};
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::data::{Batches, Source, Synthetic};
use crate::error::TrainError;
use crate::memory::Budget;
use crate::memory::machine::Cpu;
use crate::planning::{Planned, Programs};
use crate::run::Run;
use crate::trainer::{Decay, Lr, Trainer};
pub use ceiling::{matmul_flops, matmul_rate};

/// Version of the form of [`Measured`].
pub const OPS_FILE_VERSION: u32 = 1;

/// Steps that are timed at most, after one that is not.
const STEPS: u64 = 5;
/// No further step is timed after this.
const LONG_ENOUGH: Duration = Duration::from_secs(3);

/// Times of ops on one machine, in the form that is kept in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// [`OPS_FILE_VERSION`] when it was written.
    pub version: u32,
    /// The [machine](measured_machine) it was measured on: on another one the times do not hold.
    pub machine: String,
    /// By signature: seconds with the best scratch, with the least, flops and bytes.
    ops: BTreeMap<String, (Option<f64>, Option<f64>, f64, f64)>,
}

impl Measured {
    /// The form to keep.
    pub fn new(machine: String, timings: &Timings) -> Measured {
        let form = |t: &Timing| (t.seconds, t.lean_seconds, t.matmul_flops, t.bytes);
        let ops = timings.iter().map(|(signature, timing)| (signature.to_owned(), form(timing))).collect();
        Measured { version: OPS_FILE_VERSION, machine, ops }
    }

    /// The times, for [`Setup::timings`](plimsoll_devices::Setup::timings).
    pub fn timings(&self) -> Timings {
        let mut timings = Timings::default();
        for (signature, &(seconds, lean_seconds, matmul_flops, bytes)) in &self.ops {
            timings.insert(signature.clone(), Timing { seconds, lean_seconds, matmul_flops, bytes });
        }
        timings
    }

    /// Adds the times of `newer`, which replace those of the same ops.
    #[must_use]
    pub fn updated(mut self, newer: Measured) -> Measured {
        self.ops.extend(newer.ops);
        self
    }

    /// The shorter time where both know an op: other work of the machine can only slow an op down.
    #[must_use]
    pub fn fastest(mut self, other: Measured) -> Measured {
        let shorter = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a.min(b)).or(a).or(b);
        for (signature, (seconds, lean_seconds, flops, bytes)) in other.ops {
            let known = self.ops.entry(signature).or_insert((seconds, lean_seconds, flops, bytes));
            (known.0, known.1) = (shorter(known.0, seconds), shorter(known.1, lean_seconds));
        }
        self
    }

    /// Number of ops.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }
}

/// The machine that times hold for: this processor, with this many threads.
pub fn measured_machine(threads: usize) -> String {
    let model = Cpu::look().model;
    let model = model.as_deref().unwrap_or("unknown processor");
    format!("{model}, {threads} thread{}", if threads == 1 { "" } else { "s" })
}

/// Times the ops of a model for micro-batches of `rows` rows, with either amount of scratch, and those that take
/// their place where it is worked on in tiles.
///
/// # Errors
///
/// When the model does not fit, or its data cannot be read.
pub fn measure_ops(config: &Config, rows: usize) -> Result<Timings, TrainError> {
    let mut timings = Timings::default();
    for scratch in [Scratch::Best, Scratch::Least] {
        let device = || config.options.plain_device();
        let facts = device()?;
        let facts = |graph: &Graph| facts.facts(graph);
        let mut programs = Programs { model: &config.model, facts, options: &config.options };
        // The whole comes last, because its times replace those of the parts.
        if let Some(tiled) = programs.tiled(rows)? {
            measure_program(&mut timings, config, device()?, &tiled, scratch, rows)?;
        }
        let whole = programs.whole(rows)?;
        measure_program(&mut timings, config, device()?, &whole, scratch, rows)?;
    }
    Ok(timings)
}

fn measure_program(
    timings: &mut Timings,
    config: &Config,
    device: Box<dyn Device>,
    program: &Program,
    scratch: Scratch,
    rows: usize,
) -> Result<(), TrainError> {
    let budget = Budget::resolve(config.options.memory)?.beside(program);
    let plan = small_enough(program, scratch, &budget)?;
    let accumulation = micro_batches(program);
    let choice = Choice {
        plan: plan.clone(),
        program: program.clone(),
        micro_batch: rows,
        accumulation,
        lower_bound_seconds: None,
    };
    let run = Run::start(device, Planned { choice, budget }, config.options.seed)?;
    let batches = Batches::new(made_up(config)?, (accumulation * rows) as u64, rows);
    let mut trainer = Trainer::new(run, batches, RATE);
    trainer.step()?;
    trainer.run_mut().engine_mut().time_actions();
    let start = Instant::now();
    for _ in 0..STEPS {
        trainer.step()?;
        // A large model has many layers alike, each a sample; it need not run for minutes.
        if start.elapsed() > LONG_ENOUGH {
            break;
        }
    }
    collect(timings, program, &plan, scratch, &trainer)
}

/// Times do not depend on the numbers that are read; only labels must be labels.
fn made_up(config: &Config) -> Result<Source, TrainError> {
    let architecture = &config.model.architecture;
    let ids = architecture.labels().unwrap_or_else(|| architecture.vocab());
    Ok(Source::Synthetic(Synthetic::new(config.options.seed, ids, config.model.seq_len)?))
}

/// The rate does not change how long it takes either; at this one losses stay finite.
const RATE: Lr = Lr { peak: 1e-3, warmup_steps: 0, max_steps: STEPS + 1, decay: Decay::Constant };

/// Micro-batches of a measured step: one that writes gradients and one that adds to them, unless gradients are used up
/// inside the backward pass.
fn micro_batches(program: &Program) -> usize {
    if program.updates_in_backward() { 1 } else { 2 }
}

/// A plan inside the budget: any plan will do that runs every op.
fn small_enough(program: &Program, scratch: Scratch, budget: &Budget) -> Result<Plan, TrainError> {
    let plan = |strategy| {
        plan(program, strategy, scratch).map_err(|error| TrainError::search(SearchError::Plan(error), budget))
    };
    let mut smallest = plan(Strategy::Full)?;
    if smallest.arena_bytes > budget.arena() {
        smallest = plan(Strategy::Minimal)?;
    }
    if smallest.arena_bytes > budget.arena() {
        return Err(TrainError::Config(format!(
            "measuring needs an arena of {} bytes and the budget leaves {}; state a smaller --micro-batch or a larger --memory",
            smallest.arena_bytes,
            budget.arena()
        )));
    }
    Ok(smallest)
}

/// The median over all nodes of a signature and all steps, so that a disturbed run counts no more than
/// an undisturbed one.
fn collect(
    timings: &mut Timings,
    program: &Program,
    plan: &Plan,
    scratch: Scratch,
    trainer: &Trainer,
) -> Result<(), TrainError> {
    let graph = &program.train.graph;
    let mut all: BTreeMap<String, (_, Vec<f64>)> = BTreeMap::new();
    for role in [Role::First, Role::Further, Role::Update] {
        let Some(schedule) = plan.schedules.get(&role) else { continue };
        let seconds = trainer.run().engine().action_seconds(role)?;
        for (action, seconds) in schedule.actions.iter().zip(seconds) {
            if let Action::Run { node, .. } = action {
                let node = graph.node(*node);
                let (_, known) = all.entry(graph.signature(node)).or_insert((node, Vec::new()));
                known.extend(seconds);
            }
        }
    }
    for (node, mut seconds) in all.into_values() {
        seconds.sort_by(f64::total_cmp);
        if let Some(&median) = seconds.get(seconds.len() / 2) {
            timings.record(graph, node, scratch, median);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::RawConfig;

    #[test]
    fn every_op_of_a_model_is_measured_wherever_it_is_updated_and_the_form_is_kept_exactly() {
        let raw = RawConfig { seq_len: Some(48), threads: Some(1), ..RawConfig::default() };
        let timings = every_op_measured(&raw);
        // Gradients that are used up leave nothing to add to, and epochs are of no matter here.
        let whole = RawConfig { global_batch: Some(2), num_train_epochs: Some(2.0), ..raw };
        every_op_measured(&RawConfig { max_grad_norm: Some(0.0), ..whole.clone() });
        every_op_measured(&RawConfig { update: Some("two-pass".into()), ..whole });
        let measured = Measured::new(measured_machine(1), &timings);
        let text = serde_json::to_string(&measured).unwrap();
        let again: Measured = serde_json::from_str(&text).unwrap();
        assert_eq!(again.timings(), timings);
    }

    /// The times of all ops in micro-batches of two, each of which must have been taken.
    fn every_op_measured(raw: &RawConfig) -> Timings {
        let config = Config::check(raw).unwrap();
        let timings = measure_ops(&config, 2).unwrap();
        let device = config.options.plain_device().unwrap();
        let facts = |graph: &Graph| device.facts(graph);
        let mut programs = Programs { model: &config.model, facts, options: &config.options };
        for program in [programs.whole(2).unwrap(), programs.tiled(2).unwrap().unwrap()] {
            let graph = program.train.graph;
            for node in graph.nodes().iter().filter(|node| !node.op.is_view()) {
                let timing = timings.get(&graph.signature(node)).unwrap_or_else(|| panic!("{:?}", node.op));
                assert!(timing.seconds.unwrap() > 0.0 && timing.lean_seconds.unwrap() > 0.0);
            }
        }
        timings
    }

    #[test]
    fn of_two_measurements_the_shorter_time_counts() {
        let measured = |ops: &[(&str, Option<f64>, Option<f64>)]| Measured {
            version: OPS_FILE_VERSION,
            machine: "machine".into(),
            ops: ops.iter().map(|&(name, best, lean)| (name.to_owned(), (best, lean, 1.0, 1.0))).collect(),
        };
        let disturbed = measured(&[("a", Some(3.0), Some(2.0)), ("b", None, Some(4.0))]);
        let quiet = measured(&[("a", Some(1.0), Some(5.0)), ("b", Some(6.0), None), ("c", Some(7.0), None)]);
        let both = [("a", Some(1.0), Some(2.0)), ("b", Some(6.0), Some(4.0)), ("c", Some(7.0), None)];
        assert_eq!(disturbed.fastest(quiet), measured(&both));
    }
}
