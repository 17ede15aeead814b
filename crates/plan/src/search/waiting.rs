//! Micro-batches that wait for their turn in a search, the one with the least bound first.

use super::error::SearchError;
use super::micro_batch::MicroBatch;
use crate::device::Scratch;

/// Sequences of a micro-batch, and whether its feed-forward networks are in tiles.
pub(super) type Key = (usize, bool);

/// Whether a micro-batch is worth a second program, whose networks run in tiles. Both have the same state.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tiles {
    /// Yes.
    Matter,
    /// The program is long. Of such programs only the smallest micro-batch is tried in tiles as well.
    OfSmallest,
    /// State alone takes more than the budget.
    TooMuchState,
}

/// A micro-batch that waits for its turn.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub(super) key: Key,
    /// A lower bound on the time of the micro-batch's plans.
    pub(super) seconds: f64,
    /// The micro-batch with the smallest value comes first, because fast plans rule out slow ones.
    pub(super) order: f64,
    /// Whether the bound depends on the budget; none while it does not yet count the recomputation that the budget forces.
    pub(super) bounded: Option<bool>,
}

impl Waiting {
    /// The micro-batch, ranked by its time without recomputation.
    pub(super) fn unbounded(key: Key, of: MicroBatch) -> Waiting {
        let seconds = of.once_seconds(Scratch::Best);
        Waiting { key, seconds, order: seconds, bounded: None }
    }

    /// The micro-batch, ranked by its bound.
    pub(super) fn bounded(key: Key, of: MicroBatch) -> Result<Waiting, SearchError> {
        let seconds = of.bound()?;
        Ok(Waiting { key, seconds, order: seconds, bounded: Some(of.is_bounded()) })
    }
}

/// Takes the next one out; among equals the largest micro-batch, and the one without tiles.
pub(super) fn first(waiting: &mut Vec<Waiting>) -> Option<Waiting> {
    let order = |a: &Waiting, b: &Waiting| {
        let ((a_rows, a_tiled), (b_rows, b_tiled)) = (a.key, b.key);
        a.order.total_cmp(&b.order).then(b_rows.cmp(&a_rows)).then(a_tiled.cmp(&b_tiled))
    };
    let index = (0..waiting.len()).min_by(|&a, &b| order(&waiting[a], &waiting[b]))?;
    Some(waiting.swap_remove(index))
}
