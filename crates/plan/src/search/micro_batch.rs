//! One micro-batch: what can be planned for it inside a budget, and whether it is worth planning.
//!
//! The table of the chain is asked on a fixed ladder of budgets from just above the stated one downwards, until
//! the real arena fits; see [`search`](crate::search()) for why the ladder is fixed.

use super::tables::Prepared;
use super::{Request, SearchError, Tried};
use crate::device::Scratch;
use crate::layout::{Effort, fits, slots_of};
use crate::optimum::{ChainPlanner, Planner, is_chain};
use crate::plan::{Plan, Tiered, assemble_within, plan};
use crate::program::Costed;
use crate::recompute::{Order, Strategy, micro_batch};

/// Ratio of neighbouring rungs of the ladder.
const RUNG: f64 = 1.005;

/// One micro-batch under consideration.
pub(crate) struct Attempt<'a> {
    pub(crate) request: &'a Request,
    pub(crate) micro_batch: usize,
    /// Whether feed-forward networks are worked on in tiles.
    pub(crate) tiled: bool,
    pub(crate) prepared: &'a Prepared,
}

impl Attempt<'_> {
    /// Plans named strategies with either amount of scratch.
    pub(crate) fn named(&self, strategies: &[Strategy], tried: &mut Vec<Tried>) -> Result<(), SearchError> {
        for &strategy in strategies {
            for &scratch in self.amounts() {
                let plan = plan(&self.prepared.program, strategy, scratch)?;
                tried.push(self.entry(&plan, None));
            }
        }
        Ok(())
    }

    /// The fastest plans of the one strategy that the request fixes, and what offload makes of it where the device
    /// offers it, as far as they fit.
    pub(crate) fn fixed(&self, strategy: Strategy, tried: &mut Vec<Tried>) -> Result<(), SearchError> {
        for &scratch in self.amounts() {
            if self.could_matter(self.once_seconds(scratch), tried) {
                let order = Order::named(&self.prepared.program.train.graph, strategy);
                tried.extend(self.fitted(&order, strategy, scratch, None, tried));
                self.offloaded(scratch, tried)?;
            }
        }
        Ok(())
    }

    /// What the one strategy that the request fixes takes at least.
    pub(crate) fn fixed_sizes(&self, strategy: Strategy, tried: &mut Vec<Tried>) -> Result<(), SearchError> {
        self.named(&[strategy], tried)?;
        self.smallest_offloaded(strategy, tried)
    }

    /// The amounts of scratch that differ.
    fn amounts(&self) -> &'static [Scratch] {
        let nodes = &self.prepared.program.train.facts.nodes;
        if nodes.iter().all(|node| node.workspace.least == node.workspace.best) {
            &[Scratch::Best]
        } else {
            &[Scratch::Best, Scratch::Least]
        }
    }

    /// Whether state and the largest operands of a node fit: cheap, and true whenever any plan fits.
    pub(crate) fn can_fit(&self) -> Result<bool, SearchError> {
        Ok(self.prepared.least_bytes()? <= self.request.budget)
    }

    /// The plans with the fewest bytes that sending everything away makes of a strategy, with state and without.
    pub(crate) fn smallest_offloaded(
        &self,
        strategy: Strategy,
        tried: &mut Vec<Tried>,
    ) -> Result<(), SearchError> {
        let program = &self.prepared.program;
        for &scratch in self.amounts().iter().filter(|_| program.train.facts.link.is_some()) {
            let order = Order::named(&program.train.graph, strategy);
            for away in [0, u64::MAX] {
                let tiered = Tiered { limit: Some(0), away };
                let plan = assemble_within(program, &order, strategy, scratch, tiered)?;
                tried.push(Tried { tiered, ..self.entry(&plan, None) });
            }
        }
        Ok(())
    }

    /// No plan of this micro-batch takes less time in the budget. Needs no table.
    pub(crate) fn bound(&self) -> Result<f64, SearchError> {
        let once = self.once_seconds(Scratch::Best);
        // The bound counts what a budget forces; everything once is needed in any case.
        let planner = self.prepared.planner(Scratch::Best);
        planner.map_or(Ok(once), |planner| Ok(once.max(self.forced_seconds(planner)?)))
    }

    /// Whether its bound knows the budget.
    pub(crate) fn is_bounded(&self) -> bool {
        self.prepared.planner(Scratch::Best).is_some()
    }

    /// What the named strategies take, the lowest rungs of a graph that is no chain, and the least that sending everything
    /// away leaves.
    pub(crate) fn sizes(&self, tried: &mut Vec<Tried>) -> Result<(), SearchError> {
        self.named(&Strategy::LADDER, tried)?;
        // A chain has no use for its table here, which takes long to make.
        for &scratch in self.amounts().iter().filter(|_| !is_chain(&self.prepared.program.train.graph)) {
            if let Some(Planner::Graph(graph)) = self.prepared.planner(scratch) {
                self.smallest_of_graph(graph, scratch, tried)?;
            }
        }
        self.smallest_offloaded(Strategy::None, tried)
    }

    /// The fastest plan with either amount of scratch: of what the planner of the chain or the graph finds and the named
    /// strategies, and of what offload makes of them where the device offers it.
    pub(crate) fn optimal(&self, tried: &mut Vec<Tried>) -> Result<(), SearchError> {
        if !self.can_fit()? {
            return Ok(());
        }
        for &scratch in self.amounts() {
            // Nothing is faster than everything once: often that settles it.
            if !self.could_matter(self.once_seconds(scratch), tried) {
                break;
            }
            let planner = self.prepared.planner(scratch);
            if let Some(Planner::Chain(chain)) = planner {
                let fitted = self.descend_ladder(chain, scratch, tried);
                tried.extend(fitted);
                if let Some(fastest) = fitted.filter(|_| self.request.slack > 0.0) {
                    tried.extend(self.spare(chain, scratch, fastest, tried));
                }
            }
            self.fitting_named(planner, scratch, tried);
            // Where everything can be kept, nothing else matters.
            if let Some(Planner::Graph(graph)) = planner
                && self.could_matter(self.once_seconds(scratch), tried)
            {
                let budget = self.request.budget.saturating_sub(self.prepared.state_bytes());
                self.rungs_of_graph(graph, scratch, budget, tried);
            }
            self.offloaded(scratch, tried)?;
        }
        Ok(())
    }

    /// The named strategies, as far as they fit: the table rounds sizes up, and a layout of what it found may be larger
    /// than theirs, so each can be faster than it by a trifle.
    fn fitting_named(&self, planner: Option<&Planner>, scratch: Scratch, tried: &mut Vec<Tried>) {
        for strategy in Strategy::LADDER {
            let least = planner.map_or(0.0, |planner| planner.least_seconds(strategy));
            if self.could_matter(self.step_seconds(least, scratch), tried) {
                let order = Order::named(&self.prepared.program.train.graph, strategy);
                tried.extend(self.fitted(&order, strategy, scratch, None, tried));
            }
        }
    }

    /// The entry of a plan that sends nothing away; none where it does not fit or would not be chosen.
    pub(crate) fn fitted(
        &self,
        order: &Order,
        strategy: Strategy,
        scratch: Scratch,
        rung: Option<u64>,
        tried: &[Tried],
    ) -> Option<Tried> {
        let Costed { graph, facts } = &self.prepared.program.train;
        let sequence = micro_batch(graph, order);
        let runs = sequence.executions.iter();
        let pass: f64 = runs.map(|run| facts.nodes[run.node.index()].seconds_with(scratch)).sum();
        let step_seconds = self.step_seconds(pass, scratch);
        let state = self.prepared.state_bytes();
        let room = self.request.budget.checked_sub(state)?;
        let beside = self.prepared.beside_bytes(scratch);
        if beside > room || !self.could_matter(step_seconds, tried) {
            return None;
        }
        let slots = slots_of(graph, facts, scratch, &sequence);
        let arena_bytes = state + fits(&slots, room, f64::INFINITY, Effort::PLAN)?.max(beside);
        let (micro_batch, tiled, tiered) = (self.micro_batch, self.tiled, Tiered::default());
        Some(Tried { micro_batch, tiled, strategy, scratch, arena_bytes, step_seconds, rung, tiered })
    }

    /// Whether a plan of so many seconds could be chosen over what was tried.
    pub(crate) fn could_matter(&self, seconds: f64, tried: &[Tried]) -> bool {
        seconds < self.fastest(tried) * (1.0 + self.request.slack)
    }

    /// Time of the fastest that was tried and fits.
    pub(crate) fn fastest(&self, tried: &[Tried]) -> f64 {
        let fits = tried.iter().filter(|t| t.arena_bytes <= self.request.budget);
        fits.map(|t| t.step_seconds).fold(f64::INFINITY, f64::min)
    }

    /// Time of a step that rebuilds nothing.
    pub(crate) fn once_seconds(&self, scratch: Scratch) -> f64 {
        self.prepared.program.once_seconds(scratch, self.request.global_batch / self.micro_batch)
    }

    /// Passes over micro-batches in one step.
    pub(crate) fn passes(&self) -> f64 {
        (self.prepared.program.passes() * (self.request.global_batch / self.micro_batch)) as f64
    }

    /// Time of a step whose micro-batches take `seconds` in each pass.
    pub(crate) fn step_seconds(&self, seconds: f64, scratch: Scratch) -> f64 {
        seconds * self.passes() + self.prepared.program.update_seconds(scratch)
    }

    /// The highest rung whose real arena fits, unless something else is as fast.
    fn descend_ladder(&self, planner: &ChainPlanner, scratch: Scratch, tried: &[Tried]) -> Option<Tried> {
        let budget = self.request.budget.saturating_sub(self.prepared.state_bytes());
        let matters = |&rung: &u64| {
            let seconds = planner.seconds(rung);
            seconds.is_finite() && self.could_matter(self.step_seconds(seconds, scratch), tried)
        };
        let mut before = None;
        for rung in rungs(budget, planner.most_bytes().unwrap_or(u64::MAX)).take_while(matters) {
            let order = Order::Regions(planner.regions(&self.prepared.program.train.graph, rung)?);
            if before.as_ref() == Some(&order) {
                continue;
            }
            let fitted = self.fitted(&order, Strategy::Auto, scratch, Some(rung), tried);
            if fitted.is_some() {
                return fitted;
            }
            before = Some(order);
        }
        None
    }

    /// The lowest rung that is slower than `fastest` by no more than the slack: memory that hardly brings
    /// anything is spared.
    fn spare(
        &self,
        planner: &ChainPlanner,
        scratch: Scratch,
        fastest: Tried,
        tried: &[Tried],
    ) -> Option<Tried> {
        let limit = fastest.step_seconds * (1.0 + self.request.slack);
        let fast_enough = |&rung: &u64| self.step_seconds(planner.seconds(rung), scratch) <= limit;
        let from = fastest.rung.unwrap_or(0);
        let rung = rungs(from, from).take_while(fast_enough).last()?;
        let order = Order::Regions(planner.regions(&self.prepared.program.train.graph, rung)?);
        self.fitted(&order, Strategy::Auto, scratch, Some(rung), tried)
    }

    pub(crate) fn entry(&self, plan: &Plan, rung: Option<u64>) -> Tried {
        Tried {
            micro_batch: self.micro_batch,
            tiled: self.tiled,
            strategy: plan.strategy,
            scratch: plan.scratch,
            arena_bytes: plan.arena_bytes,
            step_seconds: plan.step_seconds(self.request.global_batch / self.micro_batch),
            rung,
            tiered: Tiered::default(),
        }
    }
}

/// The budget up to which the ladder is asked.
pub(crate) fn one_rung_above(budget: u64) -> u64 {
    (budget as f64 * RUNG) as u64
}

/// Rungs of the fixed ladder downwards, beginning one above `budget`, because a plan can take a little less
/// than the table allowed, or with `most` if that is less: more is never of use.
fn rungs(budget: u64, most: u64) -> impl Iterator<Item = u64> {
    let rung = |index: i32| RUNG.powi(index) as u64;
    let highest = one_rung_above(budget);
    let top = ((highest.min(most).max(1) as f64).ln() / RUNG.ln()).ceil() as i32;
    let whole = (highest >= most).then_some(most);
    whole.into_iter().chain((0..=top).rev().map(rung).filter(move |&bytes| bytes <= highest.min(most)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_larger_budget_sees_all_rungs_of_a_smaller_one() {
        let small: Vec<u64> = rungs(1_000_000, u64::MAX).collect();
        let large: Vec<u64> = rungs(1_500_000, u64::MAX).collect();
        assert!(small.iter().all(|rung| large.contains(rung)));
        let top = small[0] as f64;
        assert!(top <= 1_000_000.0 * RUNG && top > 1_000_000.0 - 2.0, "begins just above the budget: {top}");
    }
}
