//! The fastest plan that fits: micro-batch × strategy × scratch under a fixed global batch.
//!
//! Every combination is planned and replayed; there are a few dozen, and each takes milliseconds. What
//! changes the result beyond the order of sums (precision, the optimizer) is never chosen here.

use std::fmt;

use plimsoll_graph::GraphError;

use crate::plan::{Plan, PlanError, Program, plan};
use crate::problem::Scratch;
use crate::strategy::Strategy;

/// What is asked for. What is left open is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Sequences of one step.
    pub global_batch: usize,
    /// Sequences of one micro-batch, if the user fixed it.
    pub micro_batch: Option<usize>,
    /// The recompute strategy, if the user fixed it.
    pub strategy: Option<Strategy>,
    /// Bytes the arena may take.
    pub budget: u64,
    /// Among plans slower than the fastest by at most this fraction, the smallest is taken.
    pub slack: f64,
}

/// A plan with the program it is for.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The plan.
    pub plan: Plan,
    /// Its graphs, built for the chosen micro-batch.
    pub program: Program,
    /// Sequences of one micro-batch.
    pub micro_batch: usize,
    /// Micro-batches of one step.
    pub accumulation: usize,
}

/// One combination that was planned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tried {
    /// Sequences of one micro-batch.
    pub micro_batch: usize,
    /// The recompute strategy.
    pub strategy: Strategy,
    /// How much scratch actions get.
    pub scratch: Scratch,
    /// Size of the arena.
    pub arena_bytes: u64,
    /// Predicted time of one step.
    pub step_seconds: f64,
}

/// Why there is no plan.
#[derive(Clone, Debug)]
pub enum SearchError {
    /// The micro-batch does not divide the global batch, or one of them is 0.
    Batch {
        /// As asked.
        micro_batch: usize,
        /// As asked.
        global_batch: usize,
    },
    /// Nothing fits.
    Budget {
        /// Bytes the arena was allowed.
        budget: u64,
        /// The smallest plan of what was asked for.
        smallest: Tried,
        /// Plans that would fit if the user let go of what they fixed, fastest first.
        hints: Vec<Tried>,
    },
    /// The model cannot be built.
    Graph(GraphError),
    /// The program cannot be planned.
    Plan(PlanError),
}

impl fmt::Display for SearchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SearchError::Batch { micro_batch, global_batch } => write!(
                f,
                "a micro-batch of {micro_batch} does not divide a global batch of {global_batch} sequences"
            ),
            SearchError::Budget { budget, smallest, .. } => {
                write!(
                    f,
                    "the smallest plan needs {} bytes, the arena may take {budget}",
                    smallest.arena_bytes
                )
            }
            SearchError::Graph(error) => error.fmt(f),
            SearchError::Plan(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SearchError {}

/// The fastest plan that fits; `build` makes the program for a micro-batch.
///
/// # Errors
///
/// When nothing fits (with the smallest plan and hints), or the request or the model is at fault.
pub fn search(
    request: Request,
    mut build: impl FnMut(usize) -> Result<Program, GraphError>,
) -> Result<Choice, SearchError> {
    let micro_batches = micro_batches(request.global_batch, request.micro_batch)?;
    let strategies = request.strategy.map_or(Strategy::LADDER.to_vec(), |strategy| vec![strategy]);
    let tried = try_all(request.global_batch, &micro_batches, &strategies, &mut build)?;
    let Some(best) = select(&tried, request.budget, request.slack) else {
        let smallest = tried.iter().copied().min_by_key(|t| t.arena_bytes);
        let Some(smallest) = smallest else {
            return Err(SearchError::Batch { micro_batch: 0, global_batch: request.global_batch });
        };
        let hints = hints(request, &mut build)?;
        return Err(SearchError::Budget { budget: request.budget, smallest, hints });
    };
    let program = build(best.micro_batch).map_err(SearchError::Graph)?;
    let plan = plan(&program, best.strategy, best.scratch).map_err(SearchError::Plan)?;
    let accumulation = request.global_batch / best.micro_batch;
    Ok(Choice { plan, program, micro_batch: best.micro_batch, accumulation })
}

/// Plans every combination.
///
/// # Errors
///
/// When a program cannot be built or planned.
pub fn try_all(
    global_batch: usize,
    micro_batches: &[usize],
    strategies: &[Strategy],
    mut build: impl FnMut(usize) -> Result<Program, GraphError>,
) -> Result<Vec<Tried>, SearchError> {
    let mut tried = Vec::new();
    for &micro_batch in micro_batches {
        let program = build(micro_batch).map_err(SearchError::Graph)?;
        for &strategy in strategies {
            for scratch in [Scratch::Best, Scratch::Least] {
                let plan = plan(&program, strategy, scratch).map_err(SearchError::Plan)?;
                tried.push(Tried {
                    micro_batch,
                    strategy,
                    scratch,
                    arena_bytes: plan.arena_bytes,
                    step_seconds: plan.step_seconds(global_batch / micro_batch),
                });
            }
        }
    }
    Ok(tried)
}

/// The smallest of those that fit and are at most `slack` slower than the fastest that fits.
fn select(tried: &[Tried], budget: u64, slack: f64) -> Option<Tried> {
    let fits: Vec<Tried> = tried.iter().copied().filter(|t| t.arena_bytes <= budget).collect();
    let fastest = fits.iter().map(|t| t.step_seconds).min_by(f64::total_cmp)?;
    let near = fits.into_iter().filter(|t| t.step_seconds <= fastest * (1.0 + slack));
    near.min_by_key(|t| (t.arena_bytes, t.scratch))
}

/// What would fit if the user fixed less: other strategies, then smaller micro-batches.
fn hints(
    request: Request,
    build: &mut impl FnMut(usize) -> Result<Program, GraphError>,
) -> Result<Vec<Tried>, SearchError> {
    if request.micro_batch.is_none() && request.strategy.is_none() {
        return Ok(Vec::new());
    }
    let all = micro_batches(request.global_batch, None)?;
    let micro_batches: Vec<usize> =
        all.into_iter().filter(|&b| request.micro_batch.is_none_or(|fixed| b <= fixed)).collect();
    let mut fitting: Vec<Tried> = try_all(request.global_batch, &micro_batches, &Strategy::LADDER, build)?
        .into_iter()
        .filter(|t| t.arena_bytes <= request.budget)
        .collect();
    fitting.sort_by(|a, b| a.step_seconds.total_cmp(&b.step_seconds));
    fitting.dedup_by_key(|t| (t.micro_batch, t.strategy));
    fitting.truncate(3);
    Ok(fitting)
}

/// The micro-batches to try: the one asked for, or all divisors of the global batch.
fn micro_batches(global_batch: usize, fixed: Option<usize>) -> Result<Vec<usize>, SearchError> {
    let divides = |b: usize| b > 0 && global_batch > 0 && global_batch.is_multiple_of(b);
    match fixed {
        Some(micro_batch) if divides(micro_batch) => Ok(vec![micro_batch]),
        Some(micro_batch) => Err(SearchError::Batch { micro_batch, global_batch }),
        None if global_batch == 0 => Err(SearchError::Batch { micro_batch: 0, global_batch }),
        None => Ok((1..=global_batch).filter(|&b| divides(b)).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(micro_batch: usize, arena_bytes: u64, step_seconds: f64) -> Tried {
        Tried { micro_batch, strategy: Strategy::None, scratch: Scratch::Best, arena_bytes, step_seconds }
    }

    #[test]
    fn the_fastest_that_fits_is_taken() {
        let all = [tried(4, 400, 1.0), tried(2, 200, 1.5), tried(1, 100, 2.0)];
        assert_eq!(select(&all, 250, 0.0), Some(all[1]));
        assert_eq!(select(&all, 50, 0.0), None);
    }

    #[test]
    fn within_the_slack_the_smallest_is_taken() {
        let all = [tried(4, 400, 1.0), tried(2, 200, 1.005), tried(1, 100, 2.0)];
        assert_eq!(select(&all, 1000, 0.01), Some(all[1]));
    }

    #[test]
    fn only_divisors_of_the_global_batch_are_tried() {
        assert_eq!(micro_batches(12, None).unwrap(), [1, 2, 3, 4, 6, 12]);
        assert!(matches!(micro_batches(12, Some(5)), Err(SearchError::Batch { .. })));
        assert!(micro_batches(0, None).is_err());
    }
}
