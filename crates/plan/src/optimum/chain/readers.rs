//! The readers of every value, listed once.
//!
//! To decide whether a layer passes exactly one value on, one must know all readers of its values. Searching the whole
//! graph for each layer would take time quadratic in the number of layers.

use plimsoll_graph::{Graph, NodeId, Value};

/// Nodes that read each value, directly or through a view, in the order of nodes; views themselves are left out.
pub(crate) struct Readers {
    /// The first reader of each value in `nodes`, and the end of the last.
    first: Vec<usize>,
    nodes: Vec<NodeId>,
}

impl Readers {
    /// Lists the readers of all values of `graph`.
    pub(crate) fn of(graph: &Graph) -> Readers {
        let mut pairs: Vec<(Value, NodeId)> = Vec::new();
        for id in graph.node_ids().filter(|&id| !graph.node(id).op.is_view()) {
            pairs.extend(graph.node(id).inputs.iter().map(|&input| (graph.storage(input), id)));
        }
        pairs.sort_unstable();
        pairs.dedup();
        let mut first = vec![0; graph.value_count() + 1];
        for (value, _) in &pairs {
            first[value.index() + 1] += 1;
        }
        for index in 1..first.len() {
            first[index] += first[index - 1];
        }
        Readers { first, nodes: pairs.into_iter().map(|(_, node)| node).collect() }
    }

    /// The readers of one value, by storage.
    pub(crate) fn of_value(&self, value: Value) -> &[NodeId] {
        &self.nodes[self.first[value.index()]..self.first[value.index() + 1]]
    }
}
