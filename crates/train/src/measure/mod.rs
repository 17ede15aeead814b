//! Measuring ops where they are used: a few steps of a model, every action timed.
//!
//! An op is timed between the ops that come before and after it in training, with real data, so caches are as warm or
//! cold as in a run. `probes` does so with small models, in about a second, when a machine is first used; a training
//! run does so on the way; `plimsoll bench ops` does so with one model at length. The times are kept in a file per
//! machine and read by later plans (`known`).

mod ceiling;
mod committed;
mod known;
mod probes;
mod timed_steps;

use std::time::Duration;

use plimsoll_exec::{Probing, Timings};
use plimsoll_graph::Graph;
use plimsoll_plan::{Build, Plan, Program, Scratch, SearchError, Strategy, plan};

use crate::config::Config;
use crate::error::TrainError;
use crate::memory::Budget;
use crate::memory::machine::Cpu;
use crate::planning::Programs;
pub use ceiling::{matmul_flops, matmul_rate};
pub(crate) use committed::committed;
pub use known::{Measured, OPS_FILE_VERSION};
pub use probes::{Probed, measure_device, probe_room};
pub(crate) use timed_steps::{Rank, times_of_ops};
use timed_steps::{Steps, TimedModel};

/// The steps of `bench ops`: one that is not timed and up to five that are. No further step is timed after three
/// seconds.
const STEPS: Steps = Steps { untimed: 1, timed: 5, long_enough: Duration::from_secs(3) };

/// This processor, with this many threads: the disk's speed holds for it.
pub fn measured_machine(threads: usize) -> String {
    let model = Cpu::look().model;
    let model = model.as_deref().unwrap_or("unknown processor");
    format!("{model}, {threads} thread{}", if threads == 1 { "" } else { "s" })
}

/// This processor, with this many threads and the kernels that run ops: times of ops hold for it.
pub fn timed_machine(threads: usize, probing: &Probing) -> String {
    format!("{}, {}", measured_machine(threads), probing.kernels)
}

/// Times the ops of a model for micro-batches of `rows` rows, with either amount of scratch, and also the ops that
/// replace them when it runs in tiles.
///
/// # Errors
///
/// When the model does not fit, or its data cannot be read.
pub fn measure_ops(config: &Config, rows: usize) -> Result<Timings, TrainError> {
    let mut timings = Timings::default();
    // One micro-batch that writes gradients, and one that adds to them.
    let timed = TimedModel { model: &config.model, options: &config.options, rows, accumulation: 2 };
    let device = config.options.plain_device()?;
    let facts = |graph: &Graph| device.facts(graph);
    let mut programs = Programs { model: &config.model, facts, options: &config.options };
    for scratch in [Scratch::Best, Scratch::Least] {
        // The whole program comes last, so that its times win for ops that both have.
        let both = [programs.tiled(rows)?, Some(programs.whole(rows)?)];
        for program in both.into_iter().flatten() {
            if scratch == Scratch::Least && !takes_less(&program) {
                continue;
            }
            let budget = config.options.budget_on(&*device)?.beside(&program);
            let plan = small_enough(&program, scratch, &budget)?;
            timings.update(timed.steps(program, plan, budget, &STEPS)?.times(Rank::Median)?);
        }
    }
    Ok(timings)
}

/// Whether an op of the program can do with less scratch than is best for it.
fn takes_less(program: &Program) -> bool {
    program.train.facts.nodes.iter().any(|node| node.workspace.least < node.workspace.best)
}

/// Any plan inside the budget will do, as long as it runs every op.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::RawConfig;

    #[test]
    fn every_op_of_a_model_is_measured_wherever_it_is_updated_and_the_form_is_kept_exactly() {
        let raw = RawConfig { seq_len: Some(48), threads: Some(1), ..RawConfig::default() };
        let timings = every_op_measured(&raw);
        // Updates that use gradients up allow one micro-batch a step, and epochs play no role here.
        let whole = RawConfig { global_batch: Some(2), num_train_epochs: Some(2.0), ..raw };
        every_op_measured(&RawConfig { max_grad_norm: Some(0.0), ..whole.clone() });
        every_op_measured(&RawConfig { update: Some("two-pass".into()), ..whole });
        let measured = Measured::new("machine".into(), &timings);
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
}
