//! Going down the ladder of budgets of a graph that is no chain.
//!
//! Rungs are further apart than those of a chain, because each is a search of its own. The ladder begins just above the
//! stated budget, because a plan can take less than the abstract graph counts, and ends a little below what
//! the smallest kept set takes, because a search can do with less.

use crate::attempt::Attempt;
use crate::general::GraphPlanner;
use crate::plan::assemble;
use crate::problem::Scratch;
use crate::search::{SearchError, Tried};
use crate::strategy::Strategy;

/// Rungs below what the smallest kept set takes.
const BELOW: i32 = 4;

impl Attempt<'_> {
    /// Plans the rungs of a graph that could be chosen over what was tried.
    pub(crate) fn rungs_of_graph(
        &self,
        planner: &GraphPlanner,
        scratch: Scratch,
        budget: u64,
        tried: &mut Vec<Tried>,
    ) {
        for rung in planner.rungs(budget).rev() {
            let Some((seconds, lower)) = planner.planned(rung, |planned| (planned.seconds, planned.lower))
            else {
                continue;
            };
            if self.could_matter(self.step_seconds(seconds, scratch), tried)
                && let Some(order) = planner.order(rung)
            {
                tried.extend(self.fitted(&order, Strategy::Auto, scratch, Some(rung), tried));
            }
            if !self.could_matter(self.step_seconds(lower, scratch), tried) {
                break;
            }
        }
    }

    /// Plans the smallest rungs that a budget of just their size finds again.
    pub(crate) fn smallest_of_graph(
        &self,
        planner: &GraphPlanner,
        scratch: Scratch,
        tried: &mut Vec<Tried>,
    ) -> Result<(), SearchError> {
        let mut found = 0;
        for rung in planner.rungs(planner.most_bytes()) {
            let Some(smallest) = self.rung(planner, scratch, rung)? else { continue };
            if rung <= planner.highest_rung(smallest.arena_bytes.saturating_sub(self.prepared.state_bytes()))
            {
                tried.push(smallest);
            }
            found += 1;
            if found > BELOW {
                break;
            }
        }
        Ok(())
    }

    /// The real plan of a rung.
    fn rung(
        &self,
        planner: &GraphPlanner,
        scratch: Scratch,
        rung: u64,
    ) -> Result<Option<Tried>, SearchError> {
        let Some(order) = planner.order(rung) else { return Ok(None) };
        let plan = assemble(&self.prepared.program, &order, Strategy::Auto, scratch)?;
        Ok(Some(self.entry(&plan, Some(rung))))
    }
}

impl GraphPlanner {
    /// The highest rung that a budget may use.
    fn highest_rung(&self, budget: u64) -> u64 {
        (budget as f64 * self.rung) as u64
    }

    /// The rungs that a budget may use, rising.
    fn rungs(&self, budget: u64) -> impl DoubleEndedIterator<Item = u64> + use<> {
        let (most, highest, ratio) = (self.most_bytes(), self.highest_rung(budget), self.rung);
        let index = |bytes: u64| (bytes.max(1) as f64).ln() / ratio.ln();
        let bottom = index(self.enough_bytes()).ceil() as i32 - BELOW;
        let top = index(most.min(highest)).floor() as i32 + 1;
        let whole = (highest >= most).then_some(most);
        let rungs = (bottom.max(0)..=top).map(move |index| ratio.powi(index) as u64);
        rungs.filter(move |&bytes| bytes <= highest && bytes < most).chain(whole)
    }
}
