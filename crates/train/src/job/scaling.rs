//! The same step on 1 to 1024 ranks that are not here: memory of each rank, traffic, and efficiency.
//!
//! Every rank works on as many micro-batches of the same size as in the plan that was asked for, so the global batch grows
//! with the ranks. Efficiency compares a step with that of one rank in memory without a limit, which recomputes nothing and
//! waits for nobody.
//!
//! The plan of each row is the fastest in the budget, so a row may use more of it than the row above. The least memory of a rank,
//! which recompute reaches, never grows from two ranks on.

use plimsoll_plan::{ArenaBytes, Choice, ProcessBytes, Scratch, Searcher, Traffic, traffic};

use super::summary::DeviceFacts;
use crate::config::Config;
use crate::error::TrainError;
use crate::memory::Budget;
use crate::planning::{Options, Programs, costed_program, plan_within};

/// The most ranks of the table.
const MOST: usize = 1024;

/// One row: a number of ranks, and the plan of one of them.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalingRow {
    /// The number of ranks.
    pub ranks: usize,
    /// Bytes of the whole process, or of the device, in the smallest plan.
    pub least_bytes: ProcessBytes,
    /// The plan's figures; none where it does not fit.
    pub figures: Option<ScalingFigures>,
}

/// Figures of the plan of one rank among several.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalingFigures {
    /// Bytes of the whole process, or of the device.
    pub process_bytes: ProcessBytes,
    /// Seconds of a step.
    pub step_seconds: f64,
    /// The exchanges of a step; none for one rank.
    pub traffic: Option<Traffic>,
    /// Time of a step of one rank in memory without a limit, as a part of this step's.
    pub efficiency: f64,
}

/// The table for micro-batches of `micro_batch` rows, `accumulation` of them in a step of each rank.
///
/// # Errors
///
/// When the model or the request is at fault.
pub fn scaling(
    config: &Config,
    facts: DeviceFacts<'_>,
    budget: Budget,
    [micro_batch, accumulation]: [usize; 2],
) -> Result<Vec<ScalingRow>, TrainError> {
    let own = config.options.ranks;
    let mut counts: Vec<usize> = (0..=MOST.ilog2()).map(|power| 1 << power).collect();
    counts.push(own);
    counts.sort_unstable();
    counts.dedup();
    let of = |ranks: usize| Options {
        ranks,
        global_batch: micro_batch * accumulation * ranks,
        micro_batch: Some(micro_batch),
        ..config.options.clone()
    };
    let alone = costed_program(&config.model, facts, &of(1), micro_batch)?;
    let alone = alone.once_seconds(Scratch::Best, accumulation);
    let row = |ranks: usize| {
        let figures = match plan_within(&config.model, facts, &of(ranks), budget) {
            Ok(planned) => Some(figures(&planned.choice, &planned.budget, alone)),
            Err(TrainError::Budget { .. }) => None,
            Err(error) => return Err(error),
        };
        Ok(ScalingRow { ranks, least_bytes: least(config, facts, &of(ranks), &budget)?, figures })
    };
    counts.into_iter().map(row).collect()
}

/// Bytes of the smallest plan of one rank, of all stages that the settings allow.
fn least(
    config: &Config,
    facts: DeviceFacts<'_>,
    options: &Options,
    budget: &Budget,
) -> Result<ProcessBytes, TrainError> {
    let mut least = ArenaBytes::MAX;
    for options in options.stages(&config.model) {
        let programs = Programs { model: &config.model, facts, options: &options };
        let smallest = Searcher::once(programs).smallest(options.request(budget));
        least = least.min(smallest.map_err(|error| TrainError::search(error, budget))?.arena_bytes);
    }
    Ok(least.process(budget.outside))
}

fn figures(choice: &Choice, budget: &Budget, alone: f64) -> ScalingFigures {
    let step_seconds = choice.step_seconds();
    ScalingFigures {
        process_bytes: choice.plan.arena_bytes.process(budget.outside),
        step_seconds,
        traffic: traffic(choice),
        efficiency: alone / step_seconds.max(f64::MIN_POSITIVE),
    }
}
