//! More memory never costs more. Plans without a proof are searched at the budgets of a fixed ladder only.
//!
//! A search that is cut short may find a costlier schedule in more memory. A proven optimum cannot cost more in more
//! memory, and neither can the best of a set of schedules that only grows. So the graph alone fixes a ladder of budgets
//! (hundredths of the peak without recomputation, and the smallest that works), and with `M` between the rungs `r ≤ M ≤
//! r'`:
//!
//! ```text
//! the searches at M and at r' both end      the optimum at M
//! only the search at r' ends                the cheapest of what was found at M, at r and at every rung below
//! otherwise                                 the cheapest of what was found at r and at every rung below
//! ```
//!
//! Take `M < N`. If `N` has a proof and so has the rung above it, nothing in less memory is cheaper. If not, and a rung
//! lies between, `M ≤ r' ≤ N`, then the schedule found at `r'` is among those that `N` chooses from: it is the optimum
//! there if `M` used a schedule of its own, and otherwise `M` chose from a subset of them. If both lie between the same
//! two rungs and the upper one has no proof, they get the same schedule. One case is left: both between the same two
//! rungs, a proof at the upper one and none at `N`. A search that ends at the rung above is given twenty times the
//! work; should it still not end, `N` can cost more than `M`, though never more than the rung below.
//!
//! A graph that uses up the [work](super::work) of a whole plan is the other case: it gets the best of what was found until
//! then.
//!
//! A rung whose lower bound is no better than a known schedule is skipped, and so are all rungs below it.

use super::lazy::Path;
use super::solver::{Best, Solver};

/// Rungs to the peak.
const RUNGS: u64 = 100;
/// The smallest budget is found with a relative error of at most one part in this number.
const PRECISION: u64 = 500;
/// Factor on the work of an exact search if the search at the rung above ended.
const PERSISTENCE: u64 = 20;

/// The budgets that the ladder of a graph spans.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ladder {
    /// Below this, no schedule exists.
    pub(crate) least: u64,
    /// The budget from which on nothing is recomputed.
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

    /// The schedule for a budget, and a lower bound on the forward cost of any schedule there.
    pub(crate) fn best<const W: usize>(self, solver: &Solver<'_, W>, memory: u64) -> Option<(Path<W>, f64)> {
        let above = self.above(memory);
        let next = solver.work.share(4, || solver.best(above, solver.effort.in_passing()));
        let mut own = solver.work.share(2, || solver.best(memory, solver.effort));
        if next.proven && !own.proven {
            own = solver.best_with(memory, solver.effort, PERSISTENCE * solver.effort.work);
        }
        let Best { found, lower, proven } = own;
        // Larger budgets can choose the next rung's optimum, so a plan found here cannot make them worse.
        let here = found.clone().filter(|_| next.proven);
        if next.proven && proven {
            return here.map(|(path, _)| (path, lower));
        }
        let below = self.cheapest_below(solver, memory, (above == memory).then_some(next));
        let cheapest = cheaper(here, below);
        let cheapest = if solver.work.is_done() { cheaper(cheapest, found) } else { cheapest };
        cheapest.map(|(path, _)| (path, lower))
    }

    /// The cheapest schedule of all rungs up to `memory`; `own` is the one found at `memory`, if that is a rung.
    fn cheapest_below<const W: usize>(
        self,
        solver: &Solver<'_, W>,
        memory: u64,
        mut own: Option<Best<W>>,
    ) -> Option<(Path<W>, f64)> {
        let effort = solver.effort.in_passing();
        let mut cheapest: Option<(Path<W>, f64)> = None;
        for rung in self.below(memory) {
            let Best { found, lower, .. } = own.take().unwrap_or_else(|| solver.best(rung, effort));
            cheapest = cheaper(cheapest, found);
            if solver.limit(cheapest.as_ref()) <= lower || solver.work.is_done() {
                return cheapest;
            }
        }
        let (smallest, found) = self.smallest(solver);
        if smallest > memory {
            return cheapest;
        }
        cheaper(cheaper(cheapest, found), solver.best(smallest, effort).found)
    }

    /// The smallest budget known to work, with a schedule for it; if none is known, the budget that needs no recomputation.
    pub(crate) fn smallest<const W: usize>(self, solver: &Solver<'_, W>) -> (u64, Option<(Path<W>, f64)>) {
        if let Some(found) = solver.any(self.least) {
            return (self.least, Some(found));
        }
        let (mut below, mut smallest, mut found) = (self.least, self.peak, None);
        while smallest - below > 1 + smallest / PRECISION && !solver.work.is_done() {
            let middle = below + (smallest - below) / 2;
            match solver.any(middle) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remat::oracle::Dice;
    use crate::remat::{Dag, DagEffort, DagNode, plan_dag, simulate};

    /// A network with skips: each gradient reads its node's inputs and output, and the gradient before.
    fn network(seed: u64) -> Dag {
        const FORWARD: usize = 24;
        let dice = &mut Dice(seed);
        let mut nodes: Vec<DagNode> = Vec::new();
        for id in 0..=2 * FORWARD {
            let backward = id >= FORWARD;
            let mut sources: Vec<usize> = id.checked_sub(1).into_iter().collect();
            if backward && id > FORWARD {
                let of = 2 * FORWARD - id;
                sources.extend(nodes[of].sources.iter().copied().chain([of]));
            } else if id > 2 && dice.below(3) == 0 {
                sources.push(dice.below(id - 1));
            }
            sources.sort_unstable();
            sources.dedup();
            let (cost, bytes) = ((1 + dice.below(20)) as f64, (1000 + dice.below(9000)) as u64);
            nodes.push(DagNode { name: format!("n{id}"), backward, cost, bytes, running: bytes, sources });
        }
        Dag { nodes }
    }

    /// How often `cost` rises over budgets that rise.
    fn rises(budgets: &[u64], cost: impl Fn(u64) -> Option<f64>) -> usize {
        let costs: Vec<f64> = budgets.iter().map(|&memory| cost(memory).unwrap_or(f64::INFINITY)).collect();
        costs.windows(2).filter(|pair| pair[0] < pair[1]).count()
    }

    #[test]
    fn a_search_cut_short_can_find_less_in_more_memory_and_the_ladder_cannot() {
        let hasty = DagEffort { labels: 50, pairs: 5, trials: 4, beam: 4, work: 60_000, total: u64::MAX };
        let mut alone = 0;
        for seed in 4..7 {
            let dag = network(seed);
            let peak = simulate(&dag, &dag.keep_all()).unwrap().peak;
            let budgets: Vec<u64> = (60..=210).map(|index| peak * index / 250).collect();
            let solver: Solver<1> = Solver::new(&dag, hasty);
            alone += rises(&budgets, |memory| solver.best(memory, hasty).found.map(|(_, cost)| cost));
            let planned = |memory| plan_dag(&dag, memory, hasty).ok().map(|plan| plan.total_cost);
            assert_eq!(rises(&budgets, planned), 0, "seed {seed}");
        }
        assert!(alone > 8, "searches alone rise {alone} times: the test is too easy");
    }
}
