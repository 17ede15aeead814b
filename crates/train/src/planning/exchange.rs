//! The exchanges that several ranks add to a training graph.
//!
//! ```text
//! grad.w@1  ← backward                 this rank's part of the sum
//! grad.w@2  ← all_reduce(grad.w@1)     the sum over all ranks, in their order
//! the optimizer reads grad.w@2         every rank computes the same update, to the bit
//! ```
//!
//! Gradients become ready from the last layer to the first, and are declared in that order. So the first exchanges are
//! those of the last layers.

use plimsoll_graph::op::Collective;
use plimsoll_graph::{Graph, Op, Phase, StateId, StateKind};

use crate::optimizer::trained;

/// The graph with every gradient summed over `ranks` ranks before the optimizer reads it, and every tally before a record
/// shows it.
pub(super) fn sum_over_ranks(mut graph: Graph, ranks: usize) -> Graph {
    if ranks < 2 {
        return graph;
    }
    graph.set_phase(Phase::Update);
    let mut summed: Vec<StateId> = trained(&graph).into_iter().map(|(_, gradient)| gradient).collect();
    summed.sort();
    let all = (0..graph.states().len() as u32).map(StateId);
    summed.extend(all.filter(|&id| graph.state(id).kind == StateKind::Tally));
    for state in summed {
        let own = graph.newest(state);
        let sum = graph.apply_all(Op::Collective(Collective::AllReduce { ranks }), &[own]);
        graph.write_state(sum, 0, state);
    }
    graph
}
