//! A few steps of a model on made-up data, with every action timed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use plimsoll_exec::{Engine, Timings};
use plimsoll_plan::{Action, Choice, Plan, Program, Role};

use crate::config::LanguageModel;
use crate::data::{Batches, Source, Synthetic};
use crate::error::TrainError;
use crate::memory::Budget;
use crate::planning::{Options, Planned};
use crate::run::Run;
use crate::trainer::{Decay, Lr, Trainer};

/// The rate does not change how long a step takes; at this one losses stay finite.
const RATE: Lr = Lr { peak: 1e-3, warmup_steps: 0, max_steps: 1 << 20, decay: Decay::Constant };

/// A model that is timed in `accumulation` micro-batches of `rows` rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimedModel<'a> {
    pub(super) model: &'a LanguageModel,
    pub(super) options: &'a Options,
    pub(super) rows: usize,
    pub(super) accumulation: usize,
}

/// The number of steps that are taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    /// Steps before the first that is timed.
    pub(super) untimed: usize,
    /// Timed steps at most.
    pub(super) timed: usize,
    /// No further step is timed after this.
    pub(super) long_enough: Duration,
}

/// Which of several times of an op counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rank {
    /// The median: a disturbed run counts for no more than an undisturbed one.
    Median,
    /// The lower quartile: for few times, most of which may have been disturbed.
    LowerQuartile,
}

impl Rank {
    fn of(self, mut seconds: Vec<f64>) -> Option<f64> {
        seconds.sort_by(f64::total_cmp);
        let place = match self {
            Rank::Median => seconds.len() / 2,
            Rank::LowerQuartile => seconds.len() / 4,
        };
        seconds.get(place).copied()
    }
}

/// Steps that were taken and timed.
#[derive(Debug)]
pub(super) struct TimedSteps {
    choice: Choice,
    trainer: Trainer,
    /// The shortest of the steps.
    pub(super) seconds: f64,
}

impl TimedModel<'_> {
    /// Takes steps of a program as planned.
    pub(super) fn steps(
        &self,
        program: Program,
        plan: Plan,
        budget: Budget,
        steps: &Steps,
    ) -> Result<TimedSteps, TrainError> {
        // Where gradients are used up inside the backward pass, no second micro-batch adds to them.
        let accumulation = if program.updates_in_backward() { 1 } else { self.accumulation };
        let choice =
            Choice { plan, program, micro_batch: self.rows, accumulation, lower_bound_seconds: None };
        let planned = Planned { choice: choice.clone(), budget };
        let run = Run::start(self.options.plain_device()?, planned, self.options.seed)?;
        let batches = Batches::new(self.made_up()?, (accumulation * self.rows) as u64, self.rows);
        let mut trainer = Trainer::new(run, batches, RATE);
        for _ in 0..steps.untimed {
            trainer.step()?;
        }
        trainer.run_mut().engine_mut().time_actions();
        let (begin, mut seconds) = (Instant::now(), f64::INFINITY);
        for _ in 0..steps.timed {
            let step = Instant::now();
            trainer.step()?;
            seconds = seconds.min(step.elapsed().as_secs_f64());
            // A large model has many layers alike, each a sample; it need not run for minutes.
            if begin.elapsed() > steps.long_enough {
                break;
            }
        }
        Ok(TimedSteps { choice, trainer, seconds })
    }

    /// Made-up data: the tokens do not change the time of a step; only labels must be labels.
    fn made_up(&self) -> Result<Source, TrainError> {
        let architecture = &self.model.architecture;
        let ids = architecture.labels().unwrap_or_else(|| architecture.vocab());
        Ok(Source::Synthetic(Synthetic::new(self.options.seed, ids, self.model.seq_len)?))
    }
}

impl TimedSteps {
    /// Times of the ops, by signature.
    pub(super) fn times(&self, rank: Rank) -> Result<Timings, TrainError> {
        times_of_ops(&self.choice, self.trainer.run().engine(), rank)
    }
}

/// Times of all ops of a training step that the engine has timed, one for all nodes of a signature.
pub(crate) fn times_of_ops(choice: &Choice, engine: &Engine, rank: Rank) -> Result<Timings, TrainError> {
    let (plan, graph) = (&choice.plan, &choice.program.train.graph);
    let mut all: BTreeMap<String, (_, Vec<f64>)> = BTreeMap::new();
    for role in [Role::First, Role::Further, Role::Update] {
        let Some(schedule) = plan.schedules.get(&role) else { continue };
        for (action, seconds) in schedule.actions.iter().zip(engine.action_seconds(role)?) {
            if let Action::Run { node, .. } = action {
                let node = graph.node(*node);
                let (_, known) = all.entry(graph.signature(node)).or_insert((node, Vec::new()));
                known.extend(seconds);
            }
        }
    }
    let mut timings = Timings::default();
    for (node, seconds) in all.into_values() {
        if let Some(seconds) = rank.of(seconds) {
            timings.record(graph, node, plan.scratch, seconds);
        }
    }
    Ok(timings)
}
