//! Step time against budget: the curve itself, and the next budgets at which a step gets faster.
//!
//! Every point is a plan that was made, at the budget that was searched. The plan can be a little smaller than that
//! budget, a rung of the ladder. A budget as small as the plan would not reach the rung, so the curve does not offer it.

use super::error::SearchError;
use super::request::Request;
use super::searcher::Searcher;
use super::tried::{Choice, Tried};
use crate::bytes::ArenaBytes;
use crate::program::Build;
use crate::recompute::Strategy;

/// Budgets tried between the stated one and the one that keeps everything. There are fewer with a tier, where each is a
/// search over the state on it too, and for a long chain.
const LOOKS: u32 = 6;
const FEW_LOOKS: u32 = 2;
/// A gain below this fraction of a step is not worth a line.
const WORTH: f64 = 0.005;

/// A plan on the curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Size of the arena, or of the budget that is answered this fast.
    pub arena_bytes: ArenaBytes,
    /// Predicted time of one step.
    pub step_seconds: f64,
    /// A lower bound on the time of any schedule in the requested budget, if one is known.
    pub lower_bound_seconds: Option<f64>,
    /// Sequences of one micro-batch.
    pub micro_batch: usize,
}

impl Point {
    /// The point of a plan.
    pub fn of(choice: &Choice) -> Point {
        Point {
            arena_bytes: choice.plan.arena_bytes,
            step_seconds: choice.step_seconds(),
            lower_bound_seconds: choice.lower_bound_seconds,
            micro_batch: choice.micro_batch,
        }
    }

    /// The point of a plan that was not laid out to the end.
    fn tried(tried: &Tried, lower_bound_seconds: Option<f64>) -> Point {
        let &Tried { arena_bytes, step_seconds, micro_batch, .. } = tried;
        Point { arena_bytes, step_seconds, lower_bound_seconds, micro_batch }
    }
}

/// The fastest plan without a budget, even if the request fixes a strategy: everything is kept.
///
/// # Errors
///
/// When the request or the model is at fault.
pub fn unbudgeted(searcher: &mut Searcher<impl Build>, request: Request) -> Result<Point, SearchError> {
    let mut fastest: Option<(f64, usize)> = None;
    for micro_batch in request.micro_batches()? {
        let seconds = searcher.once_seconds(&request, micro_batch)?;
        if fastest.is_none_or(|(known, _)| seconds < known) {
            fastest = Some((seconds, micro_batch));
        }
    }
    let micro_batch = fastest.map_or(request.global_batch, |(_, micro_batch)| micro_batch);
    let tried = searcher.try_named(request.global_batch, micro_batch, &[Strategy::None])?;
    // Best scratch comes first.
    let best = tried.first().ok_or(SearchError::Batch { micro_batch, global_batch: 0 })?;
    Ok(Point {
        arena_bytes: best.arena_bytes,
        step_seconds: best.step_seconds,
        lower_bound_seconds: Some(best.step_seconds),
        micro_batch,
    })
}

/// The fastest plan in each of `budgets`, without repeats; budgets in which nothing fits have none.
///
/// # Errors
///
/// When the request or the model is at fault.
pub fn curve(
    searcher: &mut Searcher<impl Build>,
    request: Request,
    budgets: &[ArenaBytes],
) -> Result<Vec<Point>, SearchError> {
    let mut points: Vec<Point> = Vec::new();
    for &budget in budgets {
        match searcher.best(Request { budget, slack: 0.0, ..request }) {
            Ok((best, bound)) => points.push(Point::tried(&best, bound)),
            Err(SearchError::Budget { .. }) => {}
            Err(other) => return Err(other),
        }
    }
    points.dedup_by_key(|point| (point.arena_bytes, point.step_seconds.to_bits()));
    Ok(points)
}

/// The next larger budgets that make a step faster; after the last of them no budget does. The list is empty, which
/// is no error, if this searcher finds no plan in between. That may happen because the chosen plan is of a kind that this
/// searcher does not make.
///
/// # Errors
///
/// When the request or the model is at fault.
pub fn faster(
    searcher: &mut Searcher<impl Build>,
    request: Request,
    chosen: Point,
    unbudgeted: Point,
) -> Result<Vec<Point>, SearchError> {
    let tier = searcher.program(chosen.micro_batch)?.train.facts.link.is_some();
    let long = searcher.is_long(chosen.micro_batch)?;
    let looks = if tier || long { FEW_LOOKS } else { LOOKS };
    let mut budgets = spread(chosen.arena_bytes, unbudgeted.arena_bytes, looks);
    // Of a long chain a search takes seconds. The last budget keeps everything, which is known without one; with a tier that
    // is the only one.
    if long {
        budgets.truncate(if tier { 0 } else { budgets.len().saturating_sub(1) });
    }
    let mut points = Vec::new();
    for budget in budgets {
        match searcher.best(Request { budget, slack: 0.0, ..request }) {
            Ok((best, bound)) => points.push(Point { arena_bytes: budget, ..Point::tried(&best, bound) }),
            Err(SearchError::Budget { .. }) => {}
            Err(other) => return Err(other),
        }
    }
    points.push(unbudgeted);
    let mut best = chosen.step_seconds;
    let mut gains = Vec::new();
    for point in points {
        if point.arena_bytes > chosen.arena_bytes && point.step_seconds < best * (1.0 - WORTH) {
            best = point.step_seconds;
            gains.push(point);
        }
    }
    Ok(gains)
}

/// `count` sizes above `from`, each larger than the one before by the same ratio, the last `to`. None when
/// `to` is not above `from`.
pub fn spread(ArenaBytes(from): ArenaBytes, ArenaBytes(to): ArenaBytes, count: u32) -> Vec<ArenaBytes> {
    if to <= from || from == 0 {
        return Vec::new();
    }
    let ratio = to as f64 / from as f64;
    let size = |index: u32| (from as f64 * ratio.powf(f64::from(index) / f64::from(count))).ceil() as u64;
    (1..count).map(size).chain([to]).map(ArenaBytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_spread_evenly_in_ratio_and_end_where_they_should() {
        let spread = |from, to| spread(ArenaBytes(from), ArenaBytes(to), 4);
        assert_eq!(spread(100, 1600), [200, 400, 800, 1600].map(ArenaBytes));
        assert_eq!(spread(100, 100), []);
        assert_eq!(spread(0, 100), []);
    }
}
