//! Purposes of bytes: the lines of a memory report.

use plimsoll_graph::op::Collective;
use plimsoll_graph::{Graph, Op, StateKind, Value, ValueSource};

/// The purpose of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// Parameters and constants.
    Weights,
    /// Gradient sums.
    Gradients,
    /// Moments of the optimizer.
    Optimizer,
    /// Inputs, activations and their gradients.
    Activations,
    /// Scratch of one action.
    Workspace,
    /// Landing place of copies from another tier.
    Staging,
    /// Perturbed copies of parameters, which the probes of zeroth-order training read.
    Perturbed,
    /// Weights that ranks divide, whole for the nodes of one layer.
    Gathered,
}

impl Purpose {
    /// All purposes, in the order of reports.
    pub const ALL: [Purpose; 8] = [
        Purpose::Weights,
        Purpose::Gradients,
        Purpose::Optimizer,
        Purpose::Activations,
        Purpose::Workspace,
        Purpose::Staging,
        Purpose::Perturbed,
        Purpose::Gathered,
    ];

    /// The purpose of a range of state.
    pub(crate) fn of_state(kind: StateKind) -> Purpose {
        match kind {
            StateKind::Parameter { .. } | StateKind::Constant => Purpose::Weights,
            StateKind::Gradient | StateKind::Transient | StateKind::Tally => Purpose::Gradients,
            StateKind::Moment => Purpose::Optimizer,
        }
    }

    /// The purpose of a value that is no state.
    pub(crate) fn of_value(graph: &Graph, value: Value) -> Purpose {
        let made_by = match graph.value(value).source {
            ValueSource::Node { node, .. } => Some(&graph.node(node).op),
            _ => None,
        };
        match made_by {
            Some(Op::Perturb { .. }) => Purpose::Perturbed,
            Some(Op::Collective(Collective::AllGather { .. })) => Purpose::Gathered,
            _ => Purpose::Activations,
        }
    }

    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Weights => "weights",
            Purpose::Gradients => "gradients",
            Purpose::Optimizer => "optimizer",
            Purpose::Activations => "activations",
            Purpose::Workspace => "workspace",
            Purpose::Staging => "staging",
            Purpose::Perturbed => "perturbed",
            Purpose::Gathered => "gathered",
        }
    }
}
