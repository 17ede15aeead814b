//! The planner asked by a search that goes through many budgets of one graph: a schedule or none, without a search for
//! the budget that would be enough, and the bound by itself.
//!
//! Kept sets are made once for all budgets ([`Pool`]). At each budget the cheapest that fits is where the beam and the
//! exact search begin, together with sets that fit nearly.

use std::cell::OnceCell;

use super::Dag;
use super::bound::{BoundEffort, bound};
use super::policy::Draft;
use super::pool::Pool;
use super::problem::{Oddities, Problem};
use super::search::Seed;
use super::simulate::simulate;
use super::solve::{DagPlan, Effort, Solver};

/// A graph with the effort that each budget is worth.
#[derive(Debug)]
pub(crate) struct Within {
    dag: Dag,
    effort: Effort,
    pool: OnceCell<Pool>,
}

/// Runs `$body` with `$width` words for a set of the graph's forward nodes.
macro_rules! sized {
    ($dag:expr, $width:ident => $body:expr) => {
        match forward_nodes($dag) {
            0..=64 => {
                const $width: usize = 1;
                $body
            }
            65..=128 => {
                const $width: usize = 2;
                $body
            }
            129..=256 => {
                const $width: usize = 4;
                $body
            }
            _ => {
                const $width: usize = 8;
                $body
            }
        }
    };
}

/// How many nodes of a graph may run again.
pub(crate) fn forward_nodes(dag: &Dag) -> usize {
    dag.nodes.iter().filter(|node| !node.backward).count()
}

/// Kept sets from which the beam begins: so many that fit, and so many that nearly do.
const SEEDS: usize = 4;
/// Points of the frontier at a budget.
const LABELS: usize = 400;
/// Forward runs over those of one forward pass, beyond which much is rebuilt.
const MUCH: f64 = 1.25;

impl Within {
    /// The most forward nodes of a graph.
    const MOST_NODES: usize = 512;

    /// None for a graph with too many forward nodes.
    pub(crate) fn new(dag: Dag, effort: Effort) -> Option<Within> {
        (forward_nodes(&dag) <= Within::MOST_NODES).then_some(Within { dag, effort, pool: OnceCell::new() })
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
            sized!(&self.dag, W => {
                let problem: Problem<W> = Problem::new(&self.dag, Oddities::Once);
                Pool::new(&problem, self.effort.trials)
            })
        })
    }

    /// The cheapest schedule found in `memory` bytes. Its lower bound is for schedules in which every node that the
    /// backward pass does not build on runs in its place, and holds for less memory too.
    pub(crate) fn plan(&self, memory: u64) -> Option<DagPlan> {
        sized!(&self.dag, W => self.plan_sized::<W>(memory))
    }

    fn plan_sized<const W: usize>(&self, memory: u64) -> Option<DagPlan> {
        let solver: Solver<W> = Solver::new(&self.dag, self.effort);
        let keep_all = self.dag.keep_all();
        if solver.judged(&keep_all).peak <= memory {
            return Some(solver.finished(keep_all, self.dag.base_cost()));
        }
        if memory < solver.problem.least_memory() {
            return None;
        }
        // Peaks fall as costs rise: first those that do not fit, the nearest last.
        let known = &self.pool().best;
        let (beyond, fitting) = known.split_at(known.partition_point(|kept| kept.peak > memory));
        let limit = fitting.first().map_or(f64::INFINITY, |kept| kept.cost);
        let refined = self.pool().refined(&solver.problem, memory, limit);
        let near = refined.iter().chain(fitting.iter().take(SEEDS)).chain(beyond.iter().rev().take(SEEDS));
        let drafts: Vec<Draft<W>> = near.map(|kept| kept.draft(&solver.problem)).collect();
        let mut seeds: Vec<Seed<W>> = drafts.iter().filter_map(|draft| solver.seed(draft, memory)).collect();
        // Where little is rebuilt, the frontier of this very budget is the better guide.
        let forward: f64 = solver.problem.cost.iter().sum();
        let own = if limit < MUCH * forward {
            let (own, more) = solver.trials(memory, LABELS, 2 * self.effort.trials);
            seeds.extend(more.into_iter().take(SEEDS));
            own
        } else {
            None
        };
        let fitting = drafts.into_iter().filter(|draft| draft.peak <= memory).chain(own);
        let cheapest = fitting.min_by(|a, b| a.cost.total_cmp(&b.cost));
        let best = solver.improve(memory, cheapest, &seeds)?;
        Some(solver.finished(solver.steps(&best.path), solver.problem.fixed_cost + best.lower))
    }

    /// No schedule in `memory` bytes costs less; infinite where none fits.
    pub(crate) fn lower_bound(&self, memory: u64) -> f64 {
        let Effort { labels, pairs, instants, .. } = self.effort;
        let effort = BoundEffort { labels, pairs, instants, worth: f64::INFINITY };
        sized!(&self.dag, W => {
            let problem: Problem<W> = Problem::new(&self.dag, Oddities::Removed);
            if memory < problem.least_memory() {
                return f64::INFINITY;
            }
            self.dag.base_cost() + bound(&problem, memory, effort).extra
        })
    }
}
