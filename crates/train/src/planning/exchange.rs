//! The exchanges that several ranks add to a training graph.
//!
//! ```text
//! grad.w@1  ← backward                 this rank's part of the sum
//! grad.w@2  ← all_reduce(grad.w@1)     the sum over all ranks, in their order
//! the optimizer reads grad.w@2         every rank computes the same update, to the bit
//! ```
//!
//! Gradients become ready from the last layer to the first, and are declared in that order. So the gradients of the last
//! layers are exchanged first.

use plimsoll_graph::op::Collective;
use plimsoll_graph::{Graph, GraphError, Op, Phase, StateId, StateKind, divide};

use super::options::Options;
use crate::optimizer::{scatter_in_backward, trained};

/// The graph with every gradient summed over the ranks of `world` before the optimizer reads it, and every tally before a
/// record shows it; the same graph for a run alone.
pub(super) fn sum_over_ranks(graph: Graph, world: Option<usize>) -> Graph {
    let Some(ranks) = world else { return graph };
    let mut gradients: Vec<StateId> = trained(&graph).into_iter().map(|(_, gradient)| gradient).collect();
    gradients.sort();
    sum_tallies(sum(graph, gradients, ranks), ranks)
}

/// The graph with weights divided over ranks, where the stage does so.
pub(super) fn divided(graph: Graph, options: &Options) -> Result<Graph, GraphError> {
    match options.world().filter(|_| options.zero_stage.divides_weights()) {
        Some(ranks) => divide(graph, ranks),
        None => Ok(graph),
    }
}

/// The graph of a stage that divides moments, before the optimizer: tallies are summed over ranks, and gradients as well where
/// the stage divides them. Weights are divided first.
pub(super) fn for_stage(graph: Graph, options: &Options) -> Result<Graph, GraphError> {
    let (ranks, graph) = (options.ranks, divided(graph, options)?);
    let graph =
        if options.zero_stage.divides_gradients() { scatter_in_backward(graph, ranks)? } else { graph };
    Ok(sum_tallies(graph, ranks))
}

/// The graph with every tally summed over `ranks` ranks.
fn sum_tallies(graph: Graph, ranks: usize) -> Graph {
    let all = (0..graph.states().len() as u32).map(StateId);
    let tallies = all.filter(|&id| graph.state(id).kind == StateKind::Tally).collect();
    sum(graph, tallies, ranks)
}

/// The graph with these states summed over `ranks` ranks.
fn sum(mut graph: Graph, states: Vec<StateId>, ranks: usize) -> Graph {
    graph.set_phase(Phase::Update);
    for state in states {
        let own = graph.newest(state);
        let sum = graph.apply_all(Op::Collective(Collective::AllReduce { ranks }), &[own]);
        graph.write_state(sum, 0, state);
    }
    graph
}
