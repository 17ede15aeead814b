//! More memory never costs more: what is not proven is searched on a fixed ladder of budgets only.
//!
//! A search that is cut short can find less in more memory. A proven optimum cannot cost more in more memory; nor can
//! the best of a set of schedules that only grows. So the graph alone fixes a ladder of budgets (hundredths of the
//! peak without recomputation, and the smallest that works), and with `M` between the rungs `r ≤ M ≤ r'`:
//!
//! ```text
//! the searches at M and at r' both end      the optimum at M
//! otherwise                                 the cheapest of what was found at r and at every rung below
//! ```
//!
//! Take `M < N`. If `N` has a proof, nothing in less memory is cheaper. If it has none and `M` lies on or below a rung
//! `r' ≤ N`, what was found at `r'` is among the schedules `N` chooses from: the optimum there if `M` has a proof, and
//! otherwise `M` chose from some of them. If both lie between the same two rungs and neither has a proof, they get the
//! same schedule. One case is left: a proof at `M`, none at `N`, and a proof at the next rung above both. A search that
//! ends on either side of a budget is given eight times the work there; should it still not end, `N` can cost more.
//!
//! Rungs whose lower bound is no better than what is known are passed over, and all below them.

use super::policy::Path;
use super::solve::{Best, Effort, Solver};

/// Rungs to the peak.
const RUNGS: u64 = 100;
/// The smallest budget is found to one part in so many.
const PRECISION: u64 = 500;
/// How much longer a search is tried that ends at the rung above.
const PERSISTENCE: u64 = 8;

/// What the ladder of a graph spans.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ladder {
    /// Below this, no schedule exists.
    pub(crate) least: u64,
    /// From this on, nothing is recomputed.
    pub(crate) peak: u64,
}

impl Ladder {
    fn rungs(self) -> impl DoubleEndedIterator<Item = u64> {
        let rung = move |index: u64| (u128::from(self.peak) * u128::from(index) / u128::from(RUNGS)) as u64;
        (0..=RUNGS).map(rung)
    }

    /// The lowest rung that is not below `memory`.
    fn above(self, memory: u64) -> u64 {
        self.rungs().find(|&rung| rung >= memory).unwrap_or(self.peak)
    }

    /// Rungs that are not above `memory`, falling.
    fn below(self, memory: u64) -> impl Iterator<Item = u64> {
        self.rungs().rev().filter(move |rung| (self.least..=memory).contains(rung))
    }
}

impl<const W: usize> Solver<'_, W> {
    /// The schedule for a budget, and what the forward runs of any schedule cost there at least.
    pub(crate) fn on_ladder(&self, memory: u64, ladder: Ladder) -> Option<(Path<W>, f64)> {
        let above = ladder.above(memory);
        let next = self.best(above, self.effort.in_passing());
        let mut own = self.best(memory, self.effort);
        if next.proven && !own.proven {
            own = self.best(memory, Effort { work: PERSISTENCE * self.effort.work, ..self.effort });
        }
        let Best { found, lower, proven } = own;
        let found = if next.proven && proven {
            found
        } else {
            self.cheapest_below(memory, ladder, (above == memory).then_some(next))
        };
        found.map(|(path, _)| (path, lower))
    }

    /// The cheapest of what is found on all rungs up to `memory`; `own` is what was found there if it is one.
    fn cheapest_below(
        &self,
        memory: u64,
        ladder: Ladder,
        mut own: Option<Best<W>>,
    ) -> Option<(Path<W>, f64)> {
        let effort = self.effort.in_passing();
        let mut cheapest: Option<(Path<W>, f64)> = None;
        for rung in ladder.below(memory) {
            let Best { found, lower, .. } = own.take().unwrap_or_else(|| self.best(rung, effort));
            cheapest = cheaper(cheapest, found);
            if self.limit(cheapest.as_ref()) <= lower {
                return cheapest;
            }
        }
        let (smallest, found) = self.smallest(ladder);
        if smallest > memory {
            return cheapest;
        }
        cheaper(cheaper(cheapest, found), self.best(smallest, effort).found)
    }

    /// The smallest budget known to work, and a schedule for it; without one, what takes no recomputation.
    pub(crate) fn smallest(&self, ladder: Ladder) -> (u64, Option<(Path<W>, f64)>) {
        if let Some(found) = self.any(ladder.least) {
            return (ladder.least, Some(found));
        }
        let (mut below, mut smallest, mut found) = (ladder.least, ladder.peak, None);
        while smallest - below > 1 + smallest / PRECISION {
            let middle = below + (smallest - below) / 2;
            match self.any(middle) {
                Some(fitting) => (smallest, found) = (middle, Some(fitting)),
                None => below = middle,
            }
        }
        (smallest, found)
    }
}

/// The cheaper of two schedules, the first of equals.
fn cheaper<const W: usize>(
    first: Option<(Path<W>, f64)>,
    second: Option<(Path<W>, f64)>,
) -> Option<(Path<W>, f64)> {
    match (first, second) {
        (Some(first), Some(second)) => Some(if second.1 < first.1 { second } else { first }),
        (first, second) => first.or(second),
    }
}
