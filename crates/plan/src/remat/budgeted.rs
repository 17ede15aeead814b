//! The planner for a search that tries many budgets of one graph. For each it returns a schedule or none, without
//! searching for a budget that would be enough, and the bound by itself.
//!
//! Kept sets are made once for all budgets ([`Pool`]). At each budget the beam and the exact search begin from the
//! cheapest set that fits and from sets that nearly fit.

use std::cell::OnceCell;

use super::Dag;
use super::bound::{BoundEffort, bound_at, turn_labels};
use super::lazy::{Path, Trial, lazy};
use super::pool::Pool;
use super::search::{Found, Search, Seed, Width};
use super::search_graph::{Oddities, SearchGraph};
use super::set::sized;
use super::simulate::simulate;
use super::solver::{DagEffort, DagPlan, Solver};
use super::work::Work;

/// The effort spent on a budget, in steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Care {
    /// Labels per state of a frontier of the bound.
    pub(crate) labels: usize,
    /// Number of instants of each pass at which the bound is evaluated.
    pub(crate) instants: usize,
    /// Kept sets of each family that are turned into schedules, for all budgets together.
    pub(crate) sets: usize,
    /// Set operations of an exact search; a beam may take four times that.
    pub(crate) work: u64,
}

/// A graph with the effort to spend on each budget.
#[derive(Debug)]
pub(crate) struct Budgeted {
    dag: Dag,
    care: Care,
    pool: OnceCell<Pool>,
}

/// Kept sets from which the beam begins: this many that fit, and this many that nearly fit.
const SEEDS: usize = 4;
/// Points of the frontier at a budget, and the number of them that are tried.
const LABELS: usize = 400;
const TRIED: usize = 12;
/// Much is recomputed if the forward runs exceed those of one forward pass by this factor.
const MUCH: f64 = 1.25;
/// Beams: whether from the kept sets or from the start, sets of drops for each run, states that survive.
const BEAMS: [(bool, usize, usize); 4] = [(true, 8, 8), (false, 2, 8), (false, 3, 8), (true, 8, 32)];

impl Budgeted {
    /// The most forward nodes of a graph.
    const MOST_NODES: usize = 512;

    /// A planner for `dag`; `None` if the graph has too many forward nodes.
    pub(crate) fn new(dag: Dag, care: Care) -> Option<Budgeted> {
        (dag.forward_nodes() <= Budgeted::MOST_NODES).then_some(Budgeted { dag, care, pool: OnceCell::new() })
    }

    /// Bytes that keeping everything takes.
    pub(crate) fn most_bytes(&self) -> u64 {
        simulate(&self.dag, &self.dag.keep_all()).map_or(u64::MAX, |outcome| outcome.peak)
    }

    /// The fewest bytes for which a kept set is known.
    pub(crate) fn enough_bytes(&self) -> u64 {
        self.pool().best.last().map_or(u64::MAX, |kept| kept.peak)
    }

    fn pool(&self) -> &Pool {
        self.pool.get_or_init(|| {
            sized!(self.dag.forward_nodes(), W => {
                let graph: SearchGraph<W> = SearchGraph::new(&self.dag, Oddities::Once);
                Pool::new(&graph, self.care.sets)
            })
        })
    }

    /// The cheapest schedule found in `memory` bytes. Its lower bound is for schedules in which every node that the
    /// backward pass does not depend on runs in its place; it holds for less memory too.
    pub(crate) fn plan(&self, memory: u64) -> Option<DagPlan> {
        sized!(self.dag.forward_nodes(), W => self.plan_sized::<W>(memory))
    }

    fn plan_sized<const W: usize>(&self, memory: u64) -> Option<DagPlan> {
        let solver: Solver<W> = Solver::new(&self.dag, DagEffort::default());
        let keep_all = self.dag.keep_all();
        if solver.judged(&keep_all).peak <= memory {
            return Some(solver.finished(keep_all, self.dag.base_cost()));
        }
        if memory < solver.graph.least_memory() {
            return None;
        }
        let trials = self.trials(&solver.graph, memory);
        let seeds: Vec<Seed<W>> = trials.iter().filter_map(|trial| solver.seed(trial, memory)).collect();
        let fitting = trials.into_iter().filter(|trial| trial.peak <= memory);
        let cheapest = fitting.min_by(|a, b| a.cost.total_cmp(&b.cost));
        let (path, lower) = self.improve(&solver, memory, cheapest, &seeds)?;
        Some(solver.finished(solver.steps(&path), solver.graph.fixed_cost + lower))
    }

    /// Schedules from kept sets that fit, or nearly do.
    fn trials<const W: usize>(&self, graph: &SearchGraph<W>, memory: u64) -> Vec<Trial<W>> {
        // Schedules are sorted by cost, and peaks fall as costs rise. So those that do not fit come first, the closest last.
        let known = &self.pool().best;
        let (beyond, fitting) = known.split_at(known.partition_point(|kept| kept.peak > memory));
        let limit = fitting.first().map_or(f64::INFINITY, |kept| kept.cost);
        let refined = self.pool().refined(graph, memory, limit);
        let near = refined.iter().chain(fitting.iter().take(SEEDS)).chain(beyond.iter().rev().take(SEEDS));
        let mut trials: Vec<Trial<W>> = near.map(|kept| kept.trial(graph)).collect();
        // Where little is recomputed, the frontier of this very budget is the better guide: the fullest sets first.
        if limit < MUCH * graph.cost.iter().sum::<f64>() {
            for label in turn_labels(graph, memory, LABELS, &Work::endless()).iter().rev().take(TRIED) {
                let keep = label.keep.iter().copied().collect();
                let trial = lazy(graph, &keep, usize::MAX, &Work::endless());
                let fits = trial.peak <= memory;
                trials.push(trial);
                if fits {
                    break;
                }
            }
        }
        trials
    }

    /// The cheapest path of the beams, the exact search and `trial`, and a lower bound on the forward cost of any
    /// path.
    fn improve<const W: usize>(
        &self,
        solver: &Solver<W>,
        memory: u64,
        trial: Option<Trial<W>>,
        seeds: &[Seed<W>],
    ) -> Option<(Path<W>, f64)> {
        let graph = &solver.graph;
        let forward: f64 = graph.cost.iter().sum();
        let mut best = trial.map(|trial| (trial.path, trial.cost));
        let limit = |best: &Option<(Path<W>, f64)>| {
            best.as_ref().map_or(f64::INFINITY, |(_, cost)| cost - solver.rounding())
        };
        let effort = self.effort(limit(&best) - forward);
        let bound = bound_at(graph, memory, effort, self.care.instants, &Work::endless());
        let mut lower = forward + bound.extra;
        let search = |limit: f64, work: u64| Search::new(graph, memory, &bound.after, limit, work);
        for (seeded, drops, beam) in BEAMS {
            if limit(&best) > lower {
                let width = Width { runs: 2 * graph.forward_ids.len() + 8, drops, beam };
                let seeds = if seeded { seeds } else { &[] };
                best = search(limit(&best), 4 * self.care.work).beam(seeds, width).0.or(best);
            }
        }
        for ahead in [false, true] {
            if limit(&best) > lower {
                let Found { better, lower: proven } = search(limit(&best), self.care.work).exact(ahead).0;
                lower = if ahead { lower.max(proven) } else { lower };
                best = better.or(best);
            }
        }
        best.map(|(path, _)| (path, lower))
    }

    fn effort(&self, worth: f64) -> BoundEffort {
        BoundEffort { labels: self.care.labels, pairs: self.care.labels / 10, worth }
    }

    /// A lower bound on the cost of every schedule in `memory` bytes; infinite where none fits.
    pub(crate) fn lower_bound(&self, memory: u64) -> f64 {
        sized!(self.dag.forward_nodes(), W => {
            let graph: SearchGraph<W> = SearchGraph::new(&self.dag, Oddities::Removed);
            if memory < graph.least_memory() {
                return f64::INFINITY;
            }
            let effort = self.effort(f64::INFINITY);
            let bound = bound_at(&graph, memory, effort, self.care.instants, &Work::endless());
            self.dag.base_cost() + bound.extra
        })
    }
}
