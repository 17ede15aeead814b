//! Losses of a training graph: their kind, and the targets they read.

use plimsoll_graph::{Graph, Node, Op};

/// Whether the loss of a training graph is a cross-entropy, whose gradient is NaN where the loss is not finite.
pub(super) fn is_cross_entropy(graph: &Graph) -> bool {
    let loss = graph.outputs().iter().find(|(name, _)| name == "loss").map(|(_, loss)| *loss);
    let is_loss = |op: &Op| matches!(op, Op::CrossEntropy { .. } | Op::HeadLoss(_) | Op::HeadLossGrad { .. });
    let made_by = |node: &Node| loss.is_some_and(|loss| node.outputs.first() == Some(&loss));
    graph.nodes().iter().any(|node| is_loss(&node.op) && made_by(node))
}

/// The inputs that losses of a graph take their targets from, each with the id that carries no loss.
pub(super) fn target_inputs(graph: &Graph) -> Vec<(String, i32)> {
    let mut inputs = Vec::new();
    for node in graph.nodes() {
        let (targets, ignored) = match &node.op {
            Op::CrossEntropy { ignore_index } => (node.inputs[1], *ignore_index),
            Op::HeadLoss(head) | Op::HeadLossGrad { head, .. } | Op::HeadErrors { head, .. } => {
                (node.inputs[2], head.ignore_index)
            }
            _ => continue,
        };
        // Targets may be read under another shape than they are given in.
        let targets = graph.storage(targets);
        let name = &graph.value(targets).name;
        if graph.inputs().contains(&targets) && !inputs.iter().any(|(known, _)| known == name) {
            inputs.push((name.clone(), ignored));
        }
    }
    inputs
}
