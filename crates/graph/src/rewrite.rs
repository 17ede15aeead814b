//! Building a forward graph again with changes: the frame that passes over forward graphs share.
//!
//! Blocks, inputs, outputs and state keep their order and names, so that equal layers stay equal. A pass decides the
//! form of each range of state, and the replacement of each node's result.

use crate::graph::{AddedLoss, Graph, Node, NodeId, Phase, State, StateKind, Tally};
use crate::{GraphError, Shape, Value};

impl Graph {
    /// Copies the graph. Each range of state gets the kind that `kind` gives it. After each node has been copied,
    /// `instead` may add nodes to its block; from there on, readers of the node's first output read the value it
    /// returns.
    ///
    /// # Errors
    ///
    /// When the graph is more than a forward graph, or an added node is wrong.
    pub fn rewrite(
        &self,
        kind: impl Fn(&State) -> StateKind,
        mut instead: impl FnMut(&mut Graph, NodeId) -> Value,
    ) -> Result<Graph, GraphError> {
        self.rewrite_nodes(kind, |graph, node, moved| {
            let copy = graph.copy(self.node(node), moved);
            let mut outputs = graph.node(copy).outputs.clone();
            outputs[0] = instead(graph, copy);
            outputs
        })
    }

    /// A copy of another graph's node, on the new values of its inputs.
    pub fn copy(&mut self, node: &Node, moved: &[Value]) -> NodeId {
        let inputs: Vec<Value> = node.inputs.iter().map(|input| moved[input.index()]).collect();
        self.apply_all(node.op.clone(), &inputs)
    }

    /// Copies the graph node by node. `make` adds the replacement of a node and returns, for each of its outputs, the
    /// value that readers read instead; nothing if it has no readers any more. It is given the new place of each value
    /// made so far.
    ///
    /// # Errors
    ///
    /// When the graph is more than a forward graph, or an added node is wrong.
    pub fn rewrite_nodes(
        &self,
        kind: impl Fn(&State) -> StateKind,
        make: impl FnMut(&mut Graph, NodeId, &[Value]) -> Vec<Value>,
    ) -> Result<Graph, GraphError> {
        self.rewrite_with_inputs(|_, shape| shape, kind, make)
    }

    /// As [`rewrite_nodes`](Self::rewrite_nodes), where `shape` gives each input, by its name, the shape it is to have.
    ///
    /// # Errors
    ///
    /// As [`rewrite_nodes`](Self::rewrite_nodes).
    pub fn rewrite_with_inputs(
        &self,
        shape: impl Fn(&str, Shape) -> Shape,
        kind: impl Fn(&State) -> StateKind,
        mut make: impl FnMut(&mut Graph, NodeId, &[Value]) -> Vec<Value>,
    ) -> Result<Graph, GraphError> {
        if let Some(node) = self.nodes.iter().find(|node| node.phase != Phase::Forward) {
            let why = format!(
                "a graph is rewritten before it is differentiated, and it has {:?} nodes",
                node.phase
            );
            return Err(GraphError { what: "rewrite".into(), block: String::new(), why, at: None });
        }
        let mut graph = Graph { blocks: self.blocks.clone(), ..Graph::new() };
        // Where each value of the old graph is found in the new one.
        let mut moved = vec![Value(0); self.values.len()];
        for &input in &self.inputs {
            let info = self.value(input);
            let extents = shape(&info.name, info.ty.shape);
            moved[input.index()] = graph.input(&info.name, extents, info.ty.dtype);
        }
        for state in &self.states {
            let (name, init) = (state.name.clone(), state.init.clone());
            let id = graph.find_or_push_state(name, state.ty, kind(state), init);
            graph.states[id.index()].parts.clone_from(&state.parts);
            graph.states[id.index()].whole = state.whole;
            moved[state.versions[0].index()] = graph.newest(id);
        }
        for (node, id) in self.nodes.iter().zip(self.node_ids()) {
            graph.current = node.block;
            for (&old, new) in node.outputs.iter().zip(make(&mut graph, id, &moved)) {
                moved[old.index()] = new;
            }
        }
        graph.current = Graph::ROOT;
        for (name, value) in &self.outputs {
            graph.output(name, moved[value.index()]);
        }
        graph.added_losses = (self.added_losses.iter())
            .map(|added| AddedLoss { value: moved[added.value.index()], ..added.clone() })
            .collect();
        graph.steered.clone_from(&self.steered);
        graph.tallies = (self.tallies.iter())
            .map(|tally| Tally { value: moved[tally.value.index()], ..tally.clone() })
            .collect();
        graph.finish()
    }
}

#[cfg(test)]
mod tests {
    use crate::{DType, Graph, Init, Op, StateKind, differentiate};

    fn layers() -> Graph {
        let mut g = Graph::new();
        let mut x = g.input("x", [2, 4], DType::F32);
        for layer in 0..2 {
            x = g.block(&format!("layer.{layer}"), |g| {
                let w = g.param("w", [4, 4], Init::Normal(0.1));
                let y = g.linear(x, w, None);
                g.silu(y)
            });
        }
        let loss = g.sum(x, &[0, 1]);
        g.output("loss", loss);
        g.finish().unwrap()
    }

    #[test]
    fn a_rewrite_that_changes_nothing_gives_the_same_graph() {
        let again = |graph: &Graph| {
            graph.rewrite(|state| state.kind, |g, node| g.node(node).outputs[0]).unwrap().to_string()
        };
        // Values are numbered anew, state before nodes; so the text is stable only from the second time on.
        let graph = layers();
        let once = graph.rewrite(|state| state.kind, |g, node| g.node(node).outputs[0]).unwrap();
        assert_eq!(again(&once), again(&graph));
        assert_eq!(once.nodes().len(), graph.nodes().len());
        assert_eq!(once.block_name(once.nodes()[2].block), "layer.1");
    }

    #[test]
    fn readers_see_what_stands_instead_and_it_lies_in_the_same_block() {
        let graph = layers();
        let doubled = graph
            .rewrite(
                |_| StateKind::Parameter { trainable: false },
                |g, node| {
                    let y = g.node(node).outputs[0];
                    if matches!(g.node(node).op, Op::Linear { .. }) { g.scale(y, 2.0) } else { y }
                },
            )
            .unwrap();
        let ops: Vec<&str> = doubled.nodes().iter().map(|node| node.op.name()).collect();
        assert_eq!(ops, ["linear", "scale", "silu", "linear", "scale", "silu", "sum"]);
        let silu = &doubled.nodes()[2];
        assert_eq!((silu.inputs[0], silu.block), (doubled.nodes()[1].outputs[0], doubled.nodes()[1].block));
        assert_eq!(doubled.trainable_elements(), 0);
    }

    #[test]
    fn a_graph_with_backward_nodes_is_refused() {
        let graph = layers();
        let training = differentiate(&graph, graph.output_named("loss").unwrap()).unwrap();
        let error = training.rewrite(|state| state.kind, |g, node| g.node(node).outputs[0]).unwrap_err();
        assert!(error.why.contains("before it is differentiated"), "{}", error.why);
    }
}
