//! Matrices inside a model, which Muon updates by orthogonal steps: those that only products read.
//!
//! Embeddings, positions and the head are matrices too, but tables of rows rather than maps; the original leaves them to
//! `AdamW`, and so do vectors. Readers decide, not names, so that the rule holds for any model.

use plimsoll_graph::{Graph, Op, Phase, State};

/// For each state of a graph, whether it is such a matrix: it has two or more axes, and only products read it. To be
/// called before updates are appended.
pub(super) fn hidden_matrices(graph: &Graph) -> Vec<bool> {
    let read_otherwise = read_otherwise(graph);
    let is_hidden = |state: &State| {
        state.ty.shape.len() >= 2 && !state.versions.iter().any(|version| read_otherwise[version.index()])
    };
    graph.states().iter().map(is_hidden).collect()
}

/// For each value, whether a node that is no product reads it. Readers come after the node that makes a value, so one walk
/// from the last node to the first sees them all.
fn read_otherwise(graph: &Graph) -> Vec<bool> {
    let mut otherwise = vec![false; graph.value_count()];
    for node in graph.nodes().iter().rev().filter(|node| node.phase != Phase::Update) {
        let is_other = match node.op {
            Op::Linear { .. }
            | Op::LinearGradInput { .. }
            | Op::Matmul { .. }
            | Op::Mlp(_)
            | Op::MlpGrad { .. }
            | Op::GroupedLinear
            | Op::GroupedLinearGradInput => false,
            Op::Cast { .. } | Op::Transpose { .. } => otherwise[node.outputs[0].index()],
            _ => true,
        };
        for input in &node.inputs {
            otherwise[input.index()] |= is_other;
        }
    }
    otherwise
}
