//! From a graph and a budget to a plan.
//!
//! If nothing needs to be recomputed, there is nothing to search. Otherwise the [`solver`](super::solver) searches at
//! the budget. If it has no proof, the [`ladder`](super::ladder) decides, so that more memory does not cost more except
//! in one case.

use std::fmt;

use super::Dag;
use super::bound::bound;
use super::ladder::Ladder;
use super::search_graph::{Oddities, SearchGraph};
use super::set::{MOST, sized};
use super::solver::{DagEffort, DagPlan, Solver};

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unplannable {
    /// No schedule can stay inside the budget.
    TooSmall {
        /// The smallest budget for which a schedule was found.
        smallest: u64,
    },
    /// No schedule was found, which does not prove that there is none.
    NotFound {
        /// The smallest budget for which a schedule was found.
        smallest: u64,
        /// A budget below which no schedule can exist.
        least: u64,
    },
    /// More nodes than the planner is built for.
    TooMany {
        /// The number of nodes.
        nodes: usize,
        /// The most nodes that a graph may have.
        most: usize,
    },
    /// More forward nodes than the planner is built for.
    TooLarge {
        /// The number of forward nodes.
        forward: usize,
        /// The most forward nodes that a graph may have.
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
            Unplannable::TooMany { nodes, most } => {
                write!(f, "the graph has {nodes} nodes; at most {most} can be planned")
            }
            Unplannable::TooLarge { forward, most } => {
                write!(f, "the graph has {forward} forward nodes; at most {most} can be planned")
            }
        }
    }
}

impl std::error::Error for Unplannable {}

/// The cheapest schedule found for `dag` inside `memory` bytes. More memory does not cost more, but in the
/// cases that `ladder.rs` names.
///
/// # Errors
///
/// When no schedule was found, with the smallest budget that works, or the graph is too large.
pub fn plan_dag(dag: &Dag, memory: u64, effort: DagEffort) -> Result<DagPlan, Unplannable> {
    let forward = dag.forward_nodes();
    if forward > MOST {
        return Err(Unplannable::TooLarge { forward, most: MOST });
    }
    // For each backward node there is a list of the outputs that are held then.
    if dag.nodes.len() > 2 * MOST {
        return Err(Unplannable::TooMany { nodes: dag.nodes.len(), most: 2 * MOST });
    }
    sized!(forward, W => plan_sized(&Solver::<W>::new(dag, effort), memory))
}

fn plan_sized<const W: usize>(solver: &Solver<'_, W>, memory: u64) -> Result<DagPlan, Unplannable> {
    let base_cost = solver.dag.base_cost();
    let keep_all = solver.dag.keep_all();
    let peak = solver.judged(&keep_all).peak;
    if peak <= memory {
        return Ok(solver.finished(keep_all, base_cost));
    }
    let reduced: SearchGraph<W> = SearchGraph::new(solver.dag, Oddities::Removed);
    let ladder = Ladder { least: reduced.least_memory(), peak };
    let found = if memory < ladder.least { None } else { ladder.best(solver, memory) };
    let (path, lower) = found.ok_or_else(|| too_small(solver, ladder))?;
    let lower = if solver.graph.odd {
        // The search solved a more rigid problem, and its proof is not ours.
        base_cost + bound(&reduced, memory, solver.effort.of_bound(f64::INFINITY), &solver.work).extra
    } else {
        solver.graph.fixed_cost + lower
    };
    Ok(solver.finished(solver.steps(&path), lower))
}

/// The error for a budget at which no schedule was found, with the smallest budget that has one.
fn too_small<const W: usize>(solver: &Solver<'_, W>, ladder: Ladder) -> Unplannable {
    match ladder.smallest(solver).0 {
        smallest if smallest == ladder.least => Unplannable::TooSmall { smallest },
        smallest => Unplannable::NotFound { smallest, least: ladder.least },
    }
}
