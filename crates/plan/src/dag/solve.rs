//! From a graph and a budget to a plan: the parts put together, cheapest first.
//!
//! 1. If nothing need be recomputed, there is nothing to search.
//! 2. Kept sets from the label frontier at the turn, each turned into a schedule and simulated.
//! 3. The bound says what every schedule pays.
//! 4. Beams, from the best of those sets and from the start, wider and wider while a gap is left.
//! 5. The exact search, while a gap is left, with all found so far as its limit: first without runs ahead of
//!    demand, then with them, which alone gives a proof.
//! 6. Where there is no proof, the [`ladder`](super::ladder) decides, so that more memory does not cost more but in one case.
//!
//! The judge has the last word on every schedule.

use std::fmt;

use super::Dag;
use super::bound::{Bound, BoundEffort, bound, turn_labels};
use super::labels::Label;
use super::ladder::Ladder;
use super::policy::{Action, Draft, Path, lazy};
use super::problem::{Oddities, Problem};
use super::search::{Found, Search, Seed, Width};
use super::set::{MOST, Set, sized};
use super::simulate::{Outcome, Step, simulate};

/// How much work a plan may take, in steps rather than seconds.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Labels per state of a frontier.
    pub labels: usize,
    /// Frontiers for pairs of instants in the bound.
    pub pairs: usize,
    /// Kept sets turned into schedules.
    pub trials: usize,
    /// States that survive each position of the widest beam; 0 for no beam.
    pub beam: usize,
    /// Set operations of all beams together, some thirty million a second; half as many for an exact search.
    pub work: u64,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { labels: 4000, pairs: 600, trials: 200, beam: 256, work: 12_000_000 }
    }
}

/// Part of the work of beams that an exact search may take: it ends early or not at all.
const EXACT_SHARE: u64 = 2;

impl Effort {
    /// What is spent on a budget that stands beside the one that was asked for.
    pub(crate) fn in_passing(self) -> Effort {
        Effort { pairs: self.pairs / 6, trials: self.trials / 4, ..self }
    }

    fn of_bound(self, worth: f64) -> BoundEffort {
        BoundEffort { labels: self.labels, pairs: self.pairs, worth }
    }
}

/// A schedule inside a budget, and how good it is.
#[derive(Clone, Debug)]
pub struct DagPlan {
    /// Cost of running every node once.
    pub base_cost: f64,
    /// Cost of the schedule.
    pub total_cost: f64,
    /// No schedule inside the budget costs less.
    pub lower_bound_cost: f64,
    /// Most bytes resident at once.
    pub peak_bytes: u64,
    /// The schedule.
    pub schedule: Vec<Step>,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unplannable {
    /// No schedule can stay inside the budget.
    TooSmall {
        /// The smallest budget for which a schedule was found.
        smallest: u64,
    },
    /// None was found, which does not prove that there is none.
    NotFound {
        /// The smallest budget for which a schedule was found.
        smallest: u64,
        /// A budget below which there certainly is none.
        least: u64,
    },
    /// More forward nodes than the planner is built for.
    TooLarge {
        /// How many there are.
        forward: usize,
        /// How many there may be.
        most: usize,
    },
}

impl fmt::Display for Unplannable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unplannable::TooSmall { smallest } => {
                write!(f, "no schedule fits: the smallest budget that works is {smallest} bytes")
            }
            Unplannable::NotFound { smallest, least } => write!(
                f,
                "no schedule was found: the smallest budget known to work is {smallest} bytes, and below {least} bytes there is none"
            ),
            Unplannable::TooLarge { forward, most } => {
                write!(f, "the graph has {forward} forward nodes; at most {most} can be planned")
            }
        }
    }
}

impl std::error::Error for Unplannable {}

/// The cheapest schedule found for `dag` inside `memory` bytes. More memory does not cost more, but in the
/// case that `ladder.rs` names.
///
/// # Errors
///
/// When no schedule was found, with the smallest budget that works, or the graph is too large.
pub fn plan_dag(dag: &Dag, memory: u64, effort: Effort) -> Result<DagPlan, Unplannable> {
    let forward = dag.forward_nodes();
    if forward > MOST {
        return Err(Unplannable::TooLarge { forward, most: MOST });
    }
    sized!(forward, W => Solver::<W>::new(dag, effort).plan(memory))
}

/// What the search leaves at one budget.
#[derive(Clone, Debug)]
pub(crate) struct Best<const W: usize> {
    /// The cheapest schedule found, with the cost of its forward runs.
    pub(crate) found: Option<(Path<W>, f64)>,
    /// No schedule's forward runs cost less.
    pub(crate) lower: f64,
    /// Whether the schedule is the cheapest there is.
    pub(crate) proven: bool,
}

pub(crate) struct Solver<'a, const W: usize> {
    pub(crate) dag: &'a Dag,
    pub(crate) effort: Effort,
    pub(crate) problem: Problem<W>,
    /// Forward cost without recomputation.
    forward: f64,
}

impl<'a, const W: usize> Solver<'a, W> {
    pub(crate) fn new(dag: &'a Dag, effort: Effort) -> Solver<'a, W> {
        let problem = Problem::new(dag, Oddities::Once);
        let forward = problem.cost.iter().sum();
        Solver { dag, effort, problem, forward }
    }

    fn plan(&self, memory: u64) -> Result<DagPlan, Unplannable> {
        let base_cost = self.dag.base_cost();
        let keep_all = self.dag.keep_all();
        let outcome = self.judged(&keep_all);
        if outcome.peak <= memory {
            return Ok(self.finished(keep_all, base_cost));
        }
        let reduced: Problem<W> = Problem::new(self.dag, Oddities::Removed);
        let least = reduced.least_memory();
        if memory < least {
            return Err(self.too_small(least, outcome.peak));
        }
        let Some((path, lower)) = self.on_ladder(memory, Ladder { least, peak: outcome.peak }) else {
            return Err(self.too_small(least, outcome.peak));
        };
        let lower = if self.problem.odd {
            // The search solved a more rigid problem, and its proof is not ours.
            base_cost + bound(&reduced, memory, self.effort.of_bound(f64::INFINITY)).extra
        } else {
            self.problem.fixed_cost + lower
        };
        Ok(self.finished(self.steps(&path), lower))
    }

    /// The best schedule for one budget, and what is known of it.
    pub(crate) fn best(&self, memory: u64, effort: Effort) -> Best<W> {
        self.best_with(memory, effort, effort.work / EXACT_SHARE)
    }

    /// The same with so much work for the exact search.
    pub(crate) fn best_with(&self, memory: u64, effort: Effort, work: u64) -> Best<W> {
        let (draft, seeds) = self.trials(memory, effort);
        let mut best = draft.map(|draft| (draft.path, draft.cost));
        let worth = self.limit(best.as_ref()) - self.forward;
        let bound = bound(&self.problem, memory, effort.of_bound(worth));
        let mut lower = self.forward + bound.extra;
        self.beams(memory, &bound, &seeds, effort, &mut best);
        for ahead in [false, true] {
            let limit = self.limit(best.as_ref());
            if limit > lower {
                let search = Search::new(&self.problem, memory, &bound.after, limit, work);
                let Found { better, lower: proven } = search.exact(ahead);
                let ended = better.is_some() || proven >= limit;
                lower = if ahead { lower.max(proven) } else { lower };
                best = better.or(best);
                if !ended {
                    break;
                }
            }
        }
        let proven = self.limit(best.as_ref()) <= lower;
        Best { found: best, lower, proven }
    }

    /// Some schedule for a budget: the first that turns up.
    pub(crate) fn any(&self, memory: u64) -> Option<(Path<W>, f64)> {
        let effort = Effort { labels: 200, pairs: 0, trials: 10, ..self.effort };
        if let (Some(draft), _) = self.trials(memory, effort) {
            return Some((draft.path, draft.cost));
        }
        let bound = bound(&self.problem, memory, effort.of_bound(f64::INFINITY));
        let search = || Search::new(&self.problem, memory, &bound.after, f64::INFINITY, effort.work);
        let narrow = |drops| search().beam(&[], self.width(drops, 4)).0;
        narrow(2).or_else(|| narrow(3)).or_else(|| search().exact(false).better)
    }

    fn width(&self, drops: usize, beam: usize) -> Width {
        Width { runs: 2 * self.problem.forward_ids.len() + 8, drops, beam }
    }

    /// Costs from here on are of no interest.
    pub(crate) fn limit(&self, best: Option<&(Path<W>, f64)>) -> f64 {
        best.map_or(f64::INFINITY, |(_, cost)| cost - self.rounding())
    }

    /// Beams of doubling width until one meets the bound or the work is used up: small graphs get wide ones. Few sets
    /// of drops leave room for many states; none of these ways is best everywhere.
    fn beams(
        &self,
        memory: u64,
        bound: &Bound,
        seeds: &[Seed<W>],
        effort: Effort,
        best: &mut Option<(Path<W>, f64)>,
    ) {
        let ways: [(&[Seed<W>], usize); 4] = [(&[], 2), (&[], 3), (seeds, 8), (&[], 6)];
        let mut work = effort.work;
        let widths = std::iter::successors(Some(4), |width| Some(2 * width));
        for beam in widths.take_while(|&width| width <= effort.beam) {
            for (seeds, drops) in ways {
                let limit = self.limit(best.as_ref());
                if limit <= self.forward + bound.extra || work == 0 {
                    return;
                }
                let search = Search::new(&self.problem, memory, &bound.after, limit, work);
                let (better, used) = search.beam(seeds, self.width(drops, beam));
                work = work.saturating_sub(used);
                *best = better.or(best.take());
            }
        }
    }

    /// The cheapest schedule from a kept set that fits, and the states in which such schedules stand at the
    /// turn.
    fn trials(&self, memory: u64, effort: Effort) -> (Option<Draft<W>>, Vec<Seed<W>>) {
        let labels = turn_labels(&self.problem, memory, effort.labels);
        let (mut best, mut seeds): (Option<Draft<W>>, _) = (None, Vec::new());
        // Half of the trials go to the fullest sets, half are spread over all: where a peak lies elsewhere
        // than at the turn, the sets that fill the turn do not fit.
        let dense = effort.trials / 2;
        let stride = (labels.len() / (dense + 1)).max(1);
        let tried = |(index, _): &(usize, &Label)| *index < dense || index % stride == 0;
        for (_, label) in labels.iter().rev().enumerate().filter(tried) {
            let cost = best.as_ref().map_or(f64::INFINITY, |draft| draft.cost);
            // Emptier sets cost more from here on.
            if self.forward + label.time >= cost {
                break;
            }
            let keep: Set<W> = label.keep.iter().copied().collect();
            for hold in [usize::MAX, 3, 1] {
                let draft = lazy(&self.problem, &keep, hold);
                if hold == usize::MAX {
                    seeds.extend(self.seed(&draft, memory));
                }
                if draft.peak <= memory {
                    if draft.cost < cost {
                        best = Some(draft);
                    }
                    break;
                }
            }
        }
        (best, seeds)
    }

    /// The state of a schedule before the first once-node, if it gets there inside the budget.
    pub(crate) fn seed(&self, draft: &Draft<W>, memory: u64) -> Option<Seed<W>> {
        let problem = &self.problem;
        let turn = draft.path.iter().position(|(_, action)| matches!(action, Action::Once(_)))?;
        let (path, rest) = draft.path.split_at(turn);
        let forward = |action: &Action| match *action {
            Action::Forward(node) => Some(node),
            Action::Once(_) => None,
        };
        let fits = path.iter().all(|(resident, action)| {
            forward(action).is_none_or(|node| problem.size(resident) + problem.running[node] <= memory)
        });
        let cost = path.iter().filter_map(|(_, action)| forward(action)).map(|node| problem.cost[node]).sum();
        fits.then(|| Seed { path: path.to_vec(), resident: rest[0].0, cost })
    }

    /// A path as explicit steps.
    pub(crate) fn steps(&self, path: &Path<W>) -> Vec<Step> {
        let problem = &self.problem;
        let mut steps = Vec::new();
        let mut resident = Set::EMPTY;
        for (before, action) in path {
            let gone: Set<W> = resident.minus(before);
            steps.extend(gone.iter().map(|node| Step::Drop(problem.forward_ids[node])));
            resident = *before;
            match *action {
                Action::Forward(node) => {
                    steps.push(Step::Run(problem.forward_ids[node]));
                    resident.insert(node);
                }
                Action::Once(position) => {
                    let id = problem.once_ids[position];
                    steps.push(Step::Run(id));
                    let next = problem.held_ids.get(position + 1).map_or(&[][..], |ids| ids);
                    let there = problem.held_ids[position].iter().chain([&id]);
                    steps.extend(there.filter(|id| !next.contains(id)).map(|&id| Step::Drop(id)));
                }
            }
        }
        steps
    }

    pub(crate) fn finished(&self, schedule: Vec<Step>, lower: f64) -> DagPlan {
        let outcome = self.judged(&schedule);
        DagPlan {
            base_cost: self.dag.base_cost(),
            total_cost: outcome.cost,
            lower_bound_cost: if lower + 2.0 * self.rounding() >= outcome.cost {
                outcome.cost
            } else {
                lower
            },
            peak_bytes: outcome.peak,
            schedule,
        }
    }

    /// Proof and schedule add the same costs in different orders: smaller differences mean nothing.
    pub(crate) fn rounding(&self) -> f64 {
        1e-9 * self.dag.base_cost()
    }

    pub(crate) fn judged(&self, schedule: &[Step]) -> Outcome {
        match simulate(self.dag, schedule) {
            Ok(outcome) => outcome,
            Err(violation) => unreachable!("the planner made an illegal schedule: {violation:?}"),
        }
    }

    /// The error for a budget at which nothing was found, with the smallest at which something is.
    fn too_small(&self, least: u64, most: u64) -> Unplannable {
        match self.smallest(Ladder { least, peak: most }).0 {
            smallest if smallest == least => Unplannable::TooSmall { smallest },
            smallest => Unplannable::NotFound { smallest, least },
        }
    }
}
