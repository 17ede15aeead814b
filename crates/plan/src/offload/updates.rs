//! Times of updates that stream state, shared by the micro-batches of a searcher.
//!
//! The runs of an update do not depend on how many rows a micro-batch has. So programs that send away the same state have the
//! same update, and a walk over it answers for all of them. Rows can change which weights leave first, because larger
//! micro-batches leave more time to fetch them; updates that differ are kept apart.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::transfers::Transfers;

/// The most updates that are kept. A long program has four residencies and two amounts of scratch.
const KEPT: usize = 32;

/// An update some of whose state is away, with its times and bounds by limit, as far as they are known.
#[derive(Debug)]
pub(crate) struct TimedUpdate {
    transfers: Transfers,
    seconds: RefCell<BTreeMap<u64, Option<f64>>>,
    bounds: RefCell<BTreeMap<u64, f64>>,
}

/// Updates that were met before.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownUpdates(Rc<RefCell<Vec<Rc<TimedUpdate>>>>);

impl KnownUpdates {
    /// The update with these transfers.
    pub(super) fn of(&self, transfers: Transfers) -> Rc<TimedUpdate> {
        let mut known = self.0.borrow_mut();
        if let Some(same) = known.iter().find(|update| update.transfers == transfers) {
            return Rc::clone(same);
        }
        if known.len() == KEPT {
            known.remove(0);
        }
        let new = Rc::new(TimedUpdate { transfers, seconds: RefCell::default(), bounds: RefCell::default() });
        known.push(Rc::clone(&new));
        new
    }

    /// The number of updates.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.0.borrow().len()
    }
}

impl TimedUpdate {
    /// The transfers.
    pub(super) fn transfers(&self) -> &Transfers {
        &self.transfers
    }

    /// Time of the update if it keeps a limit; none when the tier has no room.
    pub(super) fn within(&self, limit: u64) -> Option<f64> {
        let seconds = || self.transfers.seconds_within(limit);
        *self.seconds.borrow_mut().entry(limit).or_insert_with(seconds)
    }

    /// A lower bound on the time of an update that keeps a limit. It takes a fraction of the time of a walk.
    pub(super) fn bound(&self, limit: u64) -> f64 {
        *self.bounds.borrow_mut().entry(limit).or_insert_with(|| self.transfers.lower_bound(limit))
    }
}
