//! One micro-batch: what can be planned for it inside a budget, and whether it is worth planning.
//!
//! The table of the chain is asked on a fixed ladder of budgets from just above the stated one downwards, until
//! the real arena fits; see [`search`](crate::search()) for why the ladder is fixed.

use std::collections::BTreeSet;

use plimsoll_graph::{Phase, Value};

use crate::chain::{ChainPlanner, is_chain};
use crate::order::Order;
use crate::placement::persistent_bytes;
use crate::plan::{Costed, Plan, Tiered, assemble, assemble_within, plan};
use crate::planner::Planner;
use crate::prepared::Prepared;
use crate::problem::Scratch;
use crate::search::{Request, SearchError, Tried};
use crate::strategy::Strategy;

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

    /// Plans the one strategy that the request fixes, and what offload makes of it where the device offers it.
    pub(crate) fn fixed(&self, strategy: Strategy, tried: &mut Vec<Tried>) -> Result<(), SearchError> {
        self.named(&[strategy], tried)?;
        for &scratch in self.amounts() {
            self.offloaded(scratch, tried)?;
        }
        if self.fastest(tried).is_infinite() {
            self.smallest_offloaded(strategy, tried)?;
        }
        Ok(())
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
        let Costed { graph, facts } = &self.prepared.program.train;
        let bytes = |values: &[Value]| -> u64 {
            let values: BTreeSet<Value> = values.iter().map(|&value| graph.storage(value)).collect();
            let transient = values.into_iter().filter(|&value| graph.value(value).state.is_none());
            transient.map(|value| graph.ty(value).bytes() as u64).sum()
        };
        let nodes = graph.nodes().iter().zip(&facts.nodes).filter(|(node, _)| !node.op.is_view());
        // Outputs may take over the bytes of inputs, so the two do not add up.
        let needs = nodes.map(|(node, f)| bytes(&node.inputs).max(bytes(&node.outputs)) + f.workspace.least);
        Ok(persistent_bytes(&self.prepared.program, u64::MAX)? + needs.max().unwrap_or(0)
            <= self.request.budget)
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

    /// Plans the optimum of the chain with either amount of scratch, or what the planner of graphs and the named
    /// strategies find where there is no chain, and what offload makes of them where the device offers it. Returns the
    /// lower bound of a step; none for a graph that is too large for anything but named strategies.
    pub(crate) fn optimal(&self, tried: &mut Vec<Tried>) -> Result<Option<f64>, SearchError> {
        if !self.can_fit()? {
            return Ok(None);
        }
        let program = &self.prepared.program;
        let budget = self.request.budget.saturating_sub(persistent_bytes(program, 0)?);
        let mut bound = self.once_seconds(Scratch::Best);
        for &scratch in self.amounts() {
            // Nothing is faster than everything once: often that settles it.
            if !self.could_matter(self.once_seconds(scratch), tried) {
                break;
            }
            let Some(planner) = self.prepared.planner(scratch) else {
                self.named(&Strategy::LADDER, tried)?;
                for &scratch in self.amounts() {
                    self.offloaded(scratch, tried)?;
                }
                return Ok(None);
            };
            if scratch == Scratch::Best && matches!(planner, Planner::Graph(_)) {
                // Keeping everything comes first: where it fits, nothing else matters.
                for strategy in Strategy::LADDER {
                    if self.could_matter(bound, tried) {
                        self.named(&[strategy], tried)?;
                    }
                }
            }
            if scratch == Scratch::Best {
                // The bound counts what a budget forces; everything once is needed in any case.
                bound = bound.max(self.forced_seconds(planner)?);
                if !self.could_matter(bound, tried) {
                    break;
                }
            }
            match planner {
                Planner::Chain(chain) => self.rungs_of_chain(chain, scratch, budget, tried)?,
                Planner::Graph(graph) => self.rungs_of_graph(graph, scratch, budget, tried)?,
            }
            self.offloaded(scratch, tried)?;
        }
        Ok(Some(bound))
    }

    /// Plans the optimum of a chain.
    fn rungs_of_chain(
        &self,
        planner: &ChainPlanner,
        scratch: Scratch,
        budget: u64,
        tried: &mut Vec<Tried>,
    ) -> Result<(), SearchError> {
        let fitted = self.descend_ladder(planner, scratch, budget)?;
        tried.extend(fitted);
        if let Some(fastest) = fitted.filter(|_| self.request.slack > 0.0) {
            tried.extend(self.spare(planner, scratch, fastest)?);
        }
        if scratch == Scratch::Best && planner.most_bytes().is_some_and(|most| budget >= most / 4 * 3) {
            // The table rounds sizes up, so keeping everything can fit where the table rebuilds a trifle.
            tried.push(self.entry(&plan(&self.prepared.program, Strategy::None, scratch)?, None));
        }
        Ok(())
    }

    /// Plans the smallest that there is without regard to a budget: named strategies, with state and values away too
    /// where the device has a place for them, and the lowest rungs of a graph that is no chain.
    pub(crate) fn smallest(&self, tried: &mut Vec<Tried>) -> Result<(), SearchError> {
        self.named(&Strategy::LADDER, tried)?;
        // A chain has no use for its table here, which takes long to make.
        for &scratch in self.amounts().iter().filter(|_| !is_chain(&self.prepared.program.train.graph)) {
            if let Some(Planner::Graph(graph)) = self.prepared.planner(scratch) {
                self.smallest_of_graph(graph, scratch, tried)?;
            }
        }
        self.smallest_offloaded(Strategy::None, tried)
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
        let part = &self.prepared.program.train;
        let nodes = part.graph.node_ids().filter(|&id| part.graph.node(id).phase == Phase::Update);
        let update: f64 = nodes.map(|id| part.facts.nodes[id.index()].seconds_with(scratch)).sum();
        seconds * self.passes() + update
    }

    /// The highest rung whose real arena fits.
    fn descend_ladder(
        &self,
        planner: &ChainPlanner,
        scratch: Scratch,
        budget: u64,
    ) -> Result<Option<Tried>, SearchError> {
        let program = &self.prepared.program;
        for rung in rungs(budget, planner.most_bytes().unwrap_or(u64::MAX)) {
            if planner.seconds(rung).is_infinite() {
                break;
            }
            if let Some(regions) = planner.regions(&program.train.graph, rung) {
                let plan = assemble(program, &Order::Regions(regions), Strategy::Auto, scratch)?;
                if plan.arena_bytes <= self.request.budget {
                    return Ok(Some(self.entry(&plan, Some(rung))));
                }
            }
        }
        Ok(None)
    }

    /// The lowest rung that is slower than `fastest` by no more than the slack: memory that hardly brings
    /// anything is spared.
    fn spare(
        &self,
        planner: &ChainPlanner,
        scratch: Scratch,
        fastest: Tried,
    ) -> Result<Option<Tried>, SearchError> {
        let limit = fastest.step_seconds * (1.0 + self.request.slack);
        let fast_enough = |&rung: &u64| self.step_seconds(planner.seconds(rung), scratch) <= limit;
        let from = fastest.rung.unwrap_or(0);
        let Some(rung) = rungs(from, from).take_while(fast_enough).last() else { return Ok(None) };
        let program = &self.prepared.program;
        let Some(regions) = planner.regions(&program.train.graph, rung) else { return Ok(None) };
        let plan = assemble(program, &Order::Regions(regions), Strategy::Auto, scratch)?;
        Ok((plan.arena_bytes <= self.request.budget).then(|| self.entry(&plan, Some(rung))))
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
