//! The classic strategies beside the chosen plan: memory and time of each.
//!
//! The strategies are compared at one micro-batch, the one that was fixed or the whole global batch, with
//! all the scratch they can use, as a trainer without a planner would run them.

use crate::bytes::ArenaBytes;
use crate::program::Build;
use crate::recompute::Strategy;
use crate::search::{Choice, Request, SearchError, Searcher, Tried};

/// One line of the comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// A strategy's name, or `accumulation`.
    pub name: String,
    /// Sequences of one micro-batch.
    pub micro_batch: usize,
    /// Micro-batches of one step.
    pub accumulation: usize,
    /// Size of the arena.
    pub arena_bytes: ArenaBytes,
    /// Predicted time of one step.
    pub step_seconds: f64,
    /// Time relative to keeping everything at the common micro-batch, less 1.
    pub slowdown: f64,
    /// Whether the plan fits the request's budget.
    pub fits: bool,
}

/// The strategies that are compared, in the order of the table.
const CLASSIC: [Strategy; 5] =
    [Strategy::None, Strategy::Full, Strategy::Sqrt, Strategy::Selective, Strategy::Minimal];

/// The classic strategies, accumulation alone, and `auto`, which is the given choice.
///
/// # Errors
///
/// When the request or the model is at fault.
pub fn compare(
    searcher: &mut Searcher<impl Build>,
    request: Request,
    auto: &Choice,
) -> Result<Vec<Compared>, SearchError> {
    let common = request.micro_batch.unwrap_or(request.global_batch);
    let mut rows: Vec<(String, usize, ArenaBytes, f64)> = Vec::new();
    let row = |name: &str, tried: &Tried| {
        (name.to_owned(), tried.micro_batch, tried.arena_bytes, tried.step_seconds)
    };
    for strategy in CLASSIC {
        let tried = searcher.try_named(request.global_batch, common, &[strategy])?;
        rows.extend(tried.first().map(|tried| row(&strategy.to_string(), tried)));
    }
    rows.extend(accumulation_alone(searcher, request)?.map(|tried| row("accumulation", &tried)));
    rows.push(("auto".to_owned(), auto.micro_batch, auto.plan.arena_bytes, auto.step_seconds()));
    let base = rows[0].3;
    let compared = |(name, micro_batch, arena_bytes, step_seconds)| Compared {
        name,
        micro_batch,
        accumulation: request.global_batch / micro_batch,
        arena_bytes,
        step_seconds,
        slowdown: step_seconds / base - 1.0,
        fits: arena_bytes <= request.budget,
    };
    Ok(rows.into_iter().map(compared).collect())
}

/// Keeping everything at a smaller micro-batch: the fastest that fits, or the smallest when none does.
fn accumulation_alone(
    searcher: &mut Searcher<impl Build>,
    request: Request,
) -> Result<Option<Tried>, SearchError> {
    let mut tried = Vec::new();
    for micro_batch in (Request { micro_batch: None, ..request }).micro_batches()? {
        let all = searcher.try_named(request.global_batch, micro_batch, &[Strategy::None])?;
        tried.extend(all.first().copied());
    }
    let fitting = tried.iter().filter(|t| t.arena_bytes <= request.budget);
    let fastest = fitting.min_by(|a, b| a.step_seconds.total_cmp(&b.step_seconds)).copied();
    Ok(fastest.or_else(|| tried.into_iter().min_by_key(|t| t.arena_bytes)))
}
