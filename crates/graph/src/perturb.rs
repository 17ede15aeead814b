//! The pass that moves every trained parameter along a random direction for its readers. It comes after
//! [`store`](crate::store).
//!
//! ```text
//! y = linear(x, w)          →   w₁ = perturb(w, probe, size);  y = linear(x, w₁)
//! y = embedding(table, ids) →   y₁ = embedding(table, ids);    y = perturb_rows(y₁, ids, probe, size)
//! ```
//!
//! Each reader has its own `perturb` node right before it, so a perturbed copy lives for two actions under any plan, and the
//! parameter itself does not change. The inputs `probe` and `probe_size` say which probe runs.
//!
//! Absent on purpose: gradients. Graphs with backward nodes are refused.

use crate::graph::{Graph, Node, Phase, StateKind};
use crate::splice::Splice;
use crate::{DType, GraphError, Op, Value, name_hash};

/// The input that says from which random numbers the direction of a probe is drawn.
pub const PROBE: &str = "probe";
/// The input that says how far from the weights a probe lies.
pub const PROBE_SIZE: &str = "probe_size";

/// Perturbs all trained parameters of a forward graph.
///
/// # Errors
///
/// When the graph has backward nodes or trains nothing, or does not verify afterwards.
pub fn perturb(mut graph: Graph) -> Result<Graph, GraphError> {
    let refuse =
        |why: &str| GraphError { what: "perturb".into(), block: String::new(), why: why.into(), at: None };
    if graph.nodes().iter().any(|node| node.phase != Phase::Forward) {
        return Err(refuse("probes have no backward pass"));
    }
    let trains = |state: &crate::graph::State| state.kind == StateKind::Parameter { trainable: true };
    if !graph.states().iter().any(trains) {
        return Err(refuse("the graph has no trained parameter"));
    }
    let drawn = [graph.input(PROBE, [4], DType::I32), graph.input(PROBE_SIZE, [], DType::F32)];
    let (splice, nodes) = Splice::of(graph);
    let mut pass = Pass { splice, drawn };
    for node in nodes {
        pass.rewrite(node);
    }
    pass.splice.finish()
}

struct Pass {
    splice: Splice,
    /// The probe and its size.
    drawn: [Value; 2],
}

impl Pass {
    /// The hash of a parameter's name, if the value is a trained parameter.
    fn stream(&self, value: Value) -> Option<u64> {
        let (state, _) = self.splice.graph.values[value.index()].state?;
        let state = &self.splice.graph.states[state.index()];
        // The hash takes more than the name, because the initial weights are drawn from the name alone.
        let trained = state.kind == StateKind::Parameter { trainable: true };
        trained.then(|| probe_stream(&state.name))
    }

    /// Appends a node with perturbed operands.
    fn rewrite(&mut self, mut node: Node) {
        if let (Op::Embedding, Some(stream)) = (&node.op, self.stream(node.inputs[0])) {
            return self.rows_after(node, stream);
        }
        for index in 0..node.inputs.len() {
            let Some(stream) = self.stream(node.inputs[index]) else { continue };
            let parameter = node.inputs[index];
            let copy = self.splice.fresh_of(self.splice.graph.ty(parameter));
            let [probe, size] = self.drawn;
            self.splice.insert_all(&node, Op::Perturb { stream }, vec![parameter, probe, size], copy);
            node.inputs[index] = copy;
        }
        self.splice.keep(node);
    }

    /// Appends an embedding and perturbs the rows that it yields.
    fn rows_after(&mut self, mut node: Node, stream: u64) {
        let (rows, ids, [probe, size]) = (node.outputs[0], node.inputs[1], self.drawn);
        let taken = self.splice.fresh_of(self.splice.graph.ty(rows));
        node.outputs[0] = taken;
        let beside = node.clone();
        self.splice.keep(node);
        self.splice.insert_all(&beside, Op::PerturbRows { stream }, vec![taken, ids, probe, size], rows);
    }
}

/// The stream of random numbers from which a parameter's perturbations are drawn.
pub fn probe_stream(parameter: &str) -> u64 {
    name_hash(&format!("{parameter}/probe"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Init, differentiate};

    fn model() -> (Graph, Value) {
        let mut g = Graph::new();
        let ids = g.input("ids", [6], DType::I32);
        let table = g.param("table", [10, 8], Init::Normal(0.1)); // (V, C)
        let x = g.embedding(table, ids); // (N, C)
        let frozen = g.frozen("frozen", [8, 8], Init::Normal(0.1));
        let x = g.linear(x, frozen, None);
        // The table is read again, as the head reads a tied one.
        let x = g.linear(x, table, None); // (N, V)
        let loss = g.sum(x, &[0, 1]);
        g.output("loss", loss);
        (g.finish().unwrap(), loss)
    }

    #[test]
    fn every_reader_of_a_trained_parameter_has_a_copy_of_its_own_right_before_it() {
        let graph = perturb(model().0).unwrap();
        let names: Vec<&str> = graph.nodes().iter().map(|node| node.op.name()).collect();
        assert_eq!(names, ["embedding", "perturb_rows", "linear", "perturb", "linear", "sum"]);
        let streams: Vec<u64> = (graph.nodes().iter())
            .filter_map(|node| match node.op {
                Op::Perturb { stream } | Op::PerturbRows { stream } => Some(stream),
                _ => None,
            })
            .collect();
        assert_eq!(streams, [probe_stream("table"); 2], "both readers see the same table");
        assert!(graph.states().iter().all(|state| state.versions.len() == 1), "no parameter is written");
    }

    #[test]
    fn graphs_with_gradients_and_graphs_that_train_nothing_are_refused() {
        let (graph, loss) = model();
        let why = perturb(differentiate(&graph, loss).unwrap()).unwrap_err().why;
        assert_eq!(why, "probes have no backward pass");
        let mut g = Graph::new();
        let x = g.input("x", [2], DType::F32);
        g.output("loss", x);
        assert_eq!(perturb(g.finish().unwrap()).unwrap_err().why, "the graph has no trained parameter");
    }
}
