//! Gradients of which each rank keeps a shard: stage 2 of `ZeRO`.
//!
//! ```text
//! grad.w        ← backward                    this rank's micro-batch; it lives until its exchange has ended
//! shard         ← reduce_scatter(grad.w)      as soon as grad.w is whole, beside the rest of its layer
//! grad_shard.w += shard                       at the end of the layer: this rank's range of the sum so far
//! ```
//!
//! Each micro-batch is summed over ranks and then added up. Stages 0 and 1 add up the micro-batches of a rank first. So with
//! one micro-batch a step the bits of stage 2 are those of stage 1, and with several the order of sums differs.

use plimsoll_graph::op::Collective;
use plimsoll_graph::{Graph, GraphError, Op, Phase, StateId, StateKind, interleave};

use super::trained;

/// Prefix of a parameter's name in the name of its gradient's shard.
const SHARD: &str = "grad_shard";

/// The graph with every gradient summed over `ranks` ranks inside the backward pass, so that only shards of gradients
/// outlive it.
///
/// # Errors
///
/// When the result does not verify.
pub(crate) fn scatter_in_backward(mut graph: Graph, ranks: usize) -> Result<Graph, GraphError> {
    graph.set_phase(Phase::Update);
    let mut parameters = trained(&graph);
    parameters.sort_by_key(|&(_, gradient)| gradient);
    for (parameter, gradient) in parameters {
        let whole = graph.state(gradient).ty;
        let scatter = Op::Collective(Collective::ReduceScatter { ranks });
        let part = graph.apply(scatter, &[graph.newest(gradient)]);
        let ty = graph.ty(part);
        let add = graph.apply_all(Op::Accumulate { to: ty.dtype }, &[part]);
        let name = shard_name(&graph.state(parameter).name);
        graph.state_range(&name, ty, StateKind::Gradient);
        if let Some(shard) = graph.state_named(&name) {
            graph.make_shard(shard, whole);
            graph.write_state(add, 0, shard);
        }
        graph.make_transient(gradient);
    }
    interleave(graph)
}

/// The shard of a parameter's gradient, where gradients are divided.
pub(super) fn shard_of(graph: &Graph, parameter: StateId) -> Option<StateId> {
    graph.state_named(&shard_name(&graph.state(parameter).name))
}

fn shard_name(parameter: &str) -> String {
    format!("{SHARD}.{parameter}")
}
