//! Matrices inside a model, which Muon steps orthogonally: those that nothing but products reads.
//!
//! Embeddings, positions and the head are matrices too, but tables of rows rather than maps; the original leaves them to
//! `AdamW`, and so do vectors. Readers decide, not names, so that the rule holds for any model.

use plimsoll_graph::{Graph, Op, Phase, StateId, Value};

/// Whether only products read the parameter, and it has two or more axes.
pub(super) fn is_hidden_matrix(graph: &Graph, parameter: StateId) -> bool {
    let versions = graph.node_ids().flat_map(|id| &graph.node(id).inputs).copied();
    let mut read: Vec<Value> = versions
        .filter(|&value| graph.value(value).state.is_some_and(|(state, _)| state == parameter))
        .collect();
    read.sort_unstable();
    read.dedup();
    graph.state(parameter).ty.shape.len() >= 2
        && read.into_iter().all(|value| only_products_read(graph, value))
}

fn only_products_read(graph: &Graph, value: Value) -> bool {
    let readers =
        graph.nodes().iter().filter(|node| node.phase != Phase::Update && node.inputs.contains(&value));
    let mut readers = readers.peekable();
    readers.all(|node| match node.op {
        Op::Linear { .. }
        | Op::LinearGradInput { .. }
        | Op::Matmul { .. }
        | Op::Mlp(_)
        | Op::MlpGrad { .. }
        | Op::GroupedLinear
        | Op::GroupedLinearGradInput => true,
        Op::Cast { .. } | Op::Transpose { .. } => only_products_read(graph, node.outputs[0]),
        _ => false,
    })
}
