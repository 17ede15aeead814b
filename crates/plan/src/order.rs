//! What a plan says about rebuilding, in either of two forms that [`micro_batch`](crate::sequence::micro_batch) turns
//! into runs: a tree of regions, which says when values are dropped and leaves the rest to demand, or every run
//! itself, for graphs in which no tree says what is best.

use plimsoll_graph::{Graph, NodeId, Value};

use crate::regions::Regions;
use crate::strategy::Strategy;

/// How the order of runs is given.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Order {
    /// Every forward node once, then what the tree says.
    Regions(Regions),
    /// One after another.
    Runs(Vec<Run>),
}

/// An entry of an explicit order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// The node runs, once more if it ran before.
    Node(NodeId),
    /// Who reads the value from here on finds it only if its producer runs again.
    Forget(Value),
}

impl Order {
    /// The order of a strategy with a fixed rule.
    pub(crate) fn named(graph: &Graph, strategy: Strategy) -> Order {
        Order::Regions(Regions::new(graph, strategy))
    }
}
