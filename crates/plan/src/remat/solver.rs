//! The best schedule at one budget: the parts put together, cheapest first.
//!
//! 1. Kept sets from the label frontier at the turn, each turned into a schedule and simulated.
//! 2. The lower bound on the cost of every schedule.
//! 3. Beams, from the best of those sets and from the start, wider and wider while a gap is left.
//! 4. The exact search, while a gap is left, limited by the best schedule so far: first without runs ahead of demand,
//!    then with them; only the latter gives a proof.
//!
//! The judge has the last word on every schedule.

use super::Dag;
use super::bound::{Bound, BoundEffort, bound, turn_labels};
use super::labels::Label;
use super::lazy::{Action, Path, Trial, lazy};
use super::search::{Found, Search, Seed, Width};
use super::search_graph::{Oddities, SearchGraph};
use super::set::Set;
use super::simulate::{DagStep, Outcome, simulate};
use super::work::Work;

/// How much work a plan may take, in steps rather than seconds.
#[derive(Clone, Copy, Debug)]
pub struct DagEffort {
    /// Labels per state of a frontier.
    pub labels: usize,
    /// Frontiers for pairs of instants in the bound.
    pub pairs: usize,
    /// Kept sets turned into schedules.
    pub trials: usize,
    /// States that survive each position of the widest beam; 0 for no beam.
    pub beam: usize,
    /// Set operations of all beams together, some thirty million a second; an exact search gets half as many.
    pub work: u64,
    /// Operations of all stages at all budgets together, for sets of up to 256 nodes; larger graphs get fewer, since each
    /// takes longer. Published graphs do not use them up.
    pub total: u64,
}

impl Default for DagEffort {
    fn default() -> DagEffort {
        let (work, total) = (12_000_000, 400_000_000);
        DagEffort { labels: 4000, pairs: 600, trials: 200, beam: 256, work, total }
    }
}

/// Part of the work of beams that an exact search may take: it ends early or not at all.
const EXACT_SHARE: u64 = 2;

impl DagEffort {
    /// The effort for a budget other than the stated one.
    pub(crate) fn in_passing(self) -> DagEffort {
        DagEffort { pairs: self.pairs / 6, trials: self.trials / 4, ..self }
    }

    pub(crate) fn of_bound(self, worth: f64) -> BoundEffort {
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
    /// A lower bound on the cost of any schedule inside the budget.
    pub lower_bound_cost: f64,
    /// Most bytes resident at once.
    pub peak_bytes: u64,
    /// The schedule.
    pub schedule: Vec<DagStep>,
}

/// The result of all searches at one budget.
#[derive(Clone, Debug)]
pub(crate) struct Best<const W: usize> {
    /// The cheapest schedule found, with the cost of its forward runs.
    pub(crate) found: Option<(Path<W>, f64)>,
    /// A lower bound on the cost of the forward runs of any schedule.
    pub(crate) lower: f64,
    /// Whether the schedule is the cheapest there is.
    pub(crate) proven: bool,
}

pub(crate) struct Solver<'a, const W: usize> {
    pub(crate) dag: &'a Dag,
    pub(crate) effort: DagEffort,
    pub(crate) graph: SearchGraph<W>,
    /// Forward cost without recomputation.
    forward: f64,
    /// The part of the effort's total that is left.
    pub(crate) work: Work,
}

impl<'a, const W: usize> Solver<'a, W> {
    pub(crate) fn new(dag: &'a Dag, effort: DagEffort) -> Solver<'a, W> {
        let graph = SearchGraph::new(dag, Oddities::Once);
        let forward = graph.cost.iter().sum();
        // Operations on long sets take longer.
        let work = Work::of(effort.total / (W as u64 / 4).max(1));
        Solver { dag, effort, graph, forward, work }
    }

    /// The best schedule for one budget, and its lower bound.
    pub(crate) fn best(&self, memory: u64, effort: DagEffort) -> Best<W> {
        self.best_with(memory, effort, effort.work / EXACT_SHARE)
    }

    /// The same with this much work for the exact search.
    pub(crate) fn best_with(&self, memory: u64, effort: DagEffort, work: u64) -> Best<W> {
        let (trial, seeds) = self.work.share(4, || self.trials(memory, effort));
        let mut best = trial.map(|trial| (trial.path, trial.cost));
        let worth = self.limit(best.as_ref()) - self.forward;
        let bound = self.work.share(2, || bound(&self.graph, memory, effort.of_bound(worth), &self.work));
        let mut lower = self.forward + bound.extra;
        self.beams(memory, &bound, &seeds, effort, &mut best);
        for ahead in [false, true] {
            let limit = self.limit(best.as_ref());
            if limit > lower {
                let search = self.search(memory, &bound, limit, work);
                let (Found { better, lower: proven }, used) = search.exact(ahead);
                self.work.spend(used);
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
        let effort = DagEffort { labels: 200, pairs: 0, trials: 10, ..self.effort };
        if let (Some(trial), _) = self.trials(memory, effort) {
            return Some((trial.path, trial.cost));
        }
        let bound = bound(&self.graph, memory, effort.of_bound(f64::INFINITY), &self.work);
        let search = || self.search(memory, &bound, f64::INFINITY, effort.work);
        let spent = |(better, used)| {
            self.work.spend(used);
            better
        };
        let narrow = |drops| spent(search().beam(&[], self.width(drops, 4)));
        let exact = || {
            let (Found { better, .. }, used) = search().exact(false);
            spent((better, used))
        };
        narrow(2).or_else(|| narrow(3)).or_else(exact)
    }

    /// A search for schedules cheaper than `limit` with so much work, or with the rest of the total if that is less.
    fn search<'b>(&'b self, memory: u64, bound: &'b Bound, limit: f64, work: u64) -> Search<'b, W> {
        let left = self.work.left();
        Search::new(&self.graph, memory, &bound.after, limit, work.min(left)).at_most(left)
    }

    fn width(&self, drops: usize, beam: usize) -> Width {
        Width { runs: 2 * self.graph.forward_ids.len() + 8, drops, beam }
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
        effort: DagEffort,
        best: &mut Option<(Path<W>, f64)>,
    ) {
        let ways: [(&[Seed<W>], usize); 4] = [(&[], 2), (&[], 3), (seeds, 8), (&[], 6)];
        let mut work = effort.work;
        let widths = std::iter::successors(Some(4), |width| Some(2 * width));
        for beam in widths.take_while(|&width| width <= effort.beam) {
            for (seeds, drops) in ways {
                let limit = self.limit(best.as_ref());
                if limit <= self.forward + bound.extra || work == 0 || self.work.is_done() {
                    return;
                }
                let search = self.search(memory, bound, limit, work);
                let (better, used) = search.beam(seeds, self.width(drops, beam));
                work = work.saturating_sub(used);
                self.work.spend(used);
                *best = better.or(best.take());
            }
        }
    }

    /// The cheapest schedule from a kept set that fits, and the states of such schedules at the turn.
    fn trials(&self, memory: u64, effort: DagEffort) -> (Option<Trial<W>>, Vec<Seed<W>>) {
        let mut labels = self.work.share(2, || turn_labels(&self.graph, memory, effort.labels, &self.work));
        if labels.is_empty() {
            // The allowed work was used up. The set that keeps nothing is known without a frontier.
            labels.push(Label { bytes: 0, time: 0.0, keep: Vec::new() });
        }
        let (mut best, mut seeds): (Option<Trial<W>>, _) = (None, Vec::new());
        // Half of the trials go to the fullest sets, half are spread over all: if a peak lies elsewhere than at the
        // turn, the sets that fill the turn do not fit.
        let dense = effort.trials / 2;
        let stride = (labels.len() / (dense + 1)).max(1);
        let tried = |(index, _): &(usize, &Label)| *index < dense || index % stride == 0;
        for (index, label) in labels.iter().rev().enumerate().filter(tried) {
            let cost = best.as_ref().map_or(f64::INFINITY, |trial| trial.cost);
            // Emptier sets cost more from here on.
            if self.forward + label.time >= cost || index > 0 && self.work.is_done() {
                break;
            }
            let keep: Set<W> = label.keep.iter().copied().collect();
            for hold in [usize::MAX, 3, 1] {
                let trial = lazy(&self.graph, &keep, hold, &self.work);
                if hold == usize::MAX {
                    seeds.extend(self.seed(&trial, memory));
                }
                if trial.peak <= memory {
                    if trial.cost < cost {
                        best = Some(trial);
                    }
                    break;
                }
            }
        }
        (best, seeds)
    }

    /// The state of a schedule before the first once-node, if it gets there inside the budget.
    pub(crate) fn seed(&self, trial: &Trial<W>, memory: u64) -> Option<Seed<W>> {
        let graph = &self.graph;
        let turn = trial.path.iter().position(|(_, action)| matches!(action, Action::Once(_)))?;
        let (path, rest) = trial.path.split_at(turn);
        let forward = |action: &Action| match *action {
            Action::Forward(node) => Some(node),
            Action::Once(_) => None,
        };
        let fits = path.iter().all(|(resident, action)| {
            forward(action).is_none_or(|node| graph.size(resident) + graph.running[node] <= memory)
        });
        let cost = path.iter().filter_map(|(_, action)| forward(action)).map(|node| graph.cost[node]).sum();
        fits.then(|| Seed { path: path.to_vec(), resident: rest[0].0, cost })
    }

    /// A path as explicit steps.
    pub(crate) fn steps(&self, path: &Path<W>) -> Vec<DagStep> {
        let graph = &self.graph;
        let mut steps = Vec::new();
        let mut resident = Set::EMPTY;
        for (before, action) in path {
            let gone: Set<W> = resident.minus(before);
            steps.extend(gone.iter().map(|node| DagStep::Drop(graph.forward_ids[node])));
            resident = *before;
            match *action {
                Action::Forward(node) => {
                    steps.push(DagStep::Run(graph.forward_ids[node]));
                    resident.insert(node);
                }
                Action::Once(position) => {
                    let id = graph.once_ids[position];
                    steps.push(DagStep::Run(id));
                    let next = graph.held_ids.get(position + 1).map_or(&[][..], |ids| ids);
                    let there = graph.held_ids[position].iter().chain([&id]);
                    steps.extend(
                        there.filter(|id| next.binary_search(id).is_err()).map(|&id| DagStep::Drop(id)),
                    );
                }
            }
        }
        steps
    }

    pub(crate) fn finished(&self, schedule: Vec<DagStep>, lower: f64) -> DagPlan {
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

    pub(crate) fn judged(&self, schedule: &[DagStep]) -> Outcome {
        match simulate(self.dag, schedule) {
            Ok(outcome) => outcome,
            Err(violation) => unreachable!("the planner made an illegal schedule: {violation:?}"),
        }
    }
}
