//! Going down the ladder of budgets of a graph that is no chain.
//!
//! Rungs are further apart than those of a chain, because each is a search of its own. The ladder begins just above the
//! stated budget, because a plan can take less than the abstract graph counts, and ends a little below what
//! the smallest kept set takes, because a search can do with less.

use super::micro_batch::Attempt;
use super::{SearchError, Tried};
use crate::device::Scratch;
use crate::optimum::GraphPlanner;
use crate::plan::assemble;
use crate::recompute::Strategy;

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
            if found > GraphPlanner::BELOW {
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
