//! Updates inside the backward pass: every update node moves to the point where its operands are ready and no later
//! node needs the values it overwrites.
//!
//! ```text
//! before   … dw1 · dx1 · dw0 · dx0 │ update w1 · update w0        all gradients live to the end
//! after    … dw1 · dx1 · update w1 · dw0 · dx0 · update w0        one layer's at a time
//! ```
//!
//! A parameter's update waits for all contributions to its gradient, for every backward node that reads the old weight,
//! and for every backward node that could make a forward node read it again: if a plan drops a value, its producer runs
//! once more just before the reader, together with everything the producer needs. The wait assumes that everything is
//! dropped, so the order suits any plan.
//!
//! A node that reads the result of an exchange between ranks waits for the end of its layer, so that the exchange runs beside
//! the layer's other nodes. It does not wait longer: a layer that ends with nothing under way can be planned by itself.
//!
//! A node that moved becomes a backward node of the layer it moved to. Its computation and the order of updates stay
//! the same: the numbers are those of updates at the end, bit for bit.

use crate::graph::{Graph, Node, NodeId, Phase, ValueSource};
use crate::{GraphError, Value};

/// `graph` with its update nodes moved into the backward phase. Ids of values stay the same.
///
/// # Errors
///
/// When the result does not verify, which cannot happen for a graph that verified before.
pub fn interleave(graph: Graph) -> Result<Graph, GraphError> {
    let Some(turn) = graph.nodes().iter().position(|node| node.phase == Phase::Backward) else {
        return Ok(graph);
    };
    let behind = placements(&graph, turn);
    let mut order: Vec<usize> = (0..graph.nodes().len()).collect();
    // The sort is stable: updates keep their order and come after the node that they wait for.
    order.sort_by_key(|&index| behind[index]);
    permute(graph, &order, &behind).finish()
}

/// The backward node each update node is to follow; for any other node its own position.
fn placements(graph: &Graph, turn: usize) -> Vec<usize> {
    let mut last_read = last_reads(graph);
    let ends = layer_ends(graph);
    let mut behind: Vec<usize> = (0..graph.nodes().len()).collect();
    for (index, node) in graph.nodes().iter().enumerate().filter(|(_, node)| node.phase == Phase::Update) {
        let overwritten = node.outputs.iter().filter_map(|&value| {
            let (state, version) = graph.value(value).state?;
            graph.state(state).versions.get((version as usize).checked_sub(1)?).copied()
        });
        let overwritten: Vec<Value> = overwritten.collect();
        let made = node.inputs.iter().chain(&overwritten).filter_map(|&value| graph.producer(value));
        let made = made.map(|producer| behind[producer.index()]);
        let read = overwritten.iter().map(|value| last_read[value.index()]);
        let place = made.chain(read).chain([turn]).max().unwrap_or(turn);
        let exchanged = |&value: &Value| {
            graph.producer(value).is_some_and(|producer| graph.node(producer).op.collective().is_some())
        };
        let place = if node.inputs.iter().any(exchanged) { ends[place] } else { place };
        for input in &node.inputs {
            last_read[input.index()] = last_read[input.index()].max(place);
        }
        behind[index] = place;
    }
    behind
}

/// For each node, the last node of the run of backward nodes of its layer.
fn layer_ends(graph: &Graph) -> Vec<usize> {
    let layers = graph.layer_blocks();
    let layer_of =
        |node: &Node| graph.block_path(node.block).into_iter().find(|block| layers.contains(block));
    let mut ends: Vec<usize> = (0..graph.nodes().len()).collect();
    for (index, pair) in graph.nodes().windows(2).enumerate().rev() {
        let same = pair.iter().all(|node| node.phase == Phase::Backward);
        if same && layer_of(&pair[0]).is_some_and(|layer| layer_of(&pair[1]) == Some(layer)) {
            ends[index] = ends[index + 1];
        }
    }
    ends
}

/// For each value, the last backward node that reads the value, or that may need it for recomputing; 0 for none.
fn last_reads(graph: &Graph) -> Vec<usize> {
    let mut last = vec![0; graph.value_count()];
    for (index, node) in graph.nodes().iter().enumerate().rev() {
        let again = node.outputs.iter().map(|value| last[value.index()]).max().unwrap_or(0);
        let read = match node.phase {
            Phase::Update => continue,
            Phase::Backward if node.op.is_view() => again.max(index),
            Phase::Backward => index,
            Phase::Forward => again,
        };
        for input in &node.inputs {
            last[input.index()] = last[input.index()].max(read);
        }
    }
    last
}

/// Nodes in the order `order`; an update node takes phase, block and layer of the node it follows.
fn permute(mut graph: Graph, order: &[usize], behind: &[usize]) -> Graph {
    let old = std::mem::take(&mut graph.nodes);
    let places: Vec<_> = old.iter().map(|node| (node.block, node.derivative_of)).collect();
    let mut old: Vec<Option<Node>> = old.into_iter().map(Some).collect();
    // Each node is moved once: `order` names each index once.
    for (index, (from, mut node)) in
        order.iter().filter_map(|&from| Some((from, old[from].take()?))).enumerate()
    {
        if node.phase == Phase::Update {
            let (block, derivative_of) = places[behind[from]];
            // Forward nodes did not move, so a derivative still names the right forward node.
            node = Node { phase: Phase::Backward, block, derivative_of, ..node };
        }
        for (output, value) in node.outputs.iter().enumerate() {
            graph.values[value.index()].source = ValueSource::Node { node: NodeId(index as u32), output };
        }
        graph.nodes.push(node);
    }
    graph
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Init, Op, differentiate, gradient_name};

    /// Two products, the second's weight shared with a third, and an update of each weight at the end.
    fn trained(shared: bool) -> Graph {
        let mut g = Graph::new();
        let x = g.input("x", [4, 8], DType::F32);
        let names = if shared { ["a", "b", "a"] } else { ["a", "b", "c"] };
        let h = names.iter().fold(x, |h, name| {
            let w = g.param(name, [8, 8], Init::Normal(0.1));
            let h = g.linear(h, w, None);
            g.silu(h)
        });
        let loss = g.sum(h, &[0, 1]);
        g.output("loss", loss);
        let mut g = differentiate(&g.finish().unwrap(), loss).unwrap();
        g.set_phase(Phase::Update);
        for name in ["a", "b", "c"] {
            let Some(gradient) = g.state_named(&gradient_name(name)) else { continue };
            let update = g.apply_all(Op::Accumulate { to: DType::F32 }, &[g.newest(gradient)]);
            g.write_state(update, 0, g.state_named(name).unwrap());
        }
        g
    }

    fn order(graph: &Graph) -> Vec<String> {
        let backward = graph.nodes().iter().filter(|node| node.phase == Phase::Backward);
        let name = |node: &Node| match node.outputs.iter().find_map(|&value| graph.value(value).state) {
            Some((state, _)) => format!("{} {}", node.op.name(), graph.state(state).name),
            None => node.op.name().to_owned(),
        };
        backward.map(name).collect()
    }

    #[test]
    fn an_update_follows_the_last_reader_of_the_old_weight() {
        let graph = interleave(trained(false)).unwrap();
        assert!(graph.nodes().iter().all(|node| node.phase != Phase::Update));
        assert_eq!(
            order(&graph),
            [
                "broadcast",
                "silu_grad",
                "linear_grad_weight grad.c",
                "linear_grad_input",
                "accumulate c",
                "silu_grad",
                "linear_grad_weight grad.b",
                "linear_grad_input",
                "accumulate b",
                "silu_grad",
                "linear_grad_weight grad.a",
                "accumulate a",
            ]
        );
    }

    #[test]
    fn a_shared_weight_waits_for_both_contributions() {
        let order = order(&interleave(trained(true)).unwrap());
        assert_eq!(order[order.len() - 2..], ["linear_grad_weight grad.a", "accumulate a"]);
        assert_eq!(order.iter().filter(|name| name.starts_with("accumulate")).count(), 2);
    }

    #[test]
    fn an_update_waits_for_readers_of_what_would_be_recomputed_with_the_old_weight() {
        // `h = x·wᵀ` is read late in the backward pass by the gradient of `late`, through a sum that is not.
        let mut g = Graph::new();
        let x = g.input("x", [4, 8], DType::F32);
        let late = g.param("late", [8], Init::Fill(1.0));
        let w = g.param("w", [8, 8], Init::Normal(0.1));
        let h = g.linear(x, w, None);
        let y = g.scale(h, 2.0);
        let loss = g.sum(y, &[0, 1]);
        g.output("loss", loss);
        let mut g = differentiate(&g.finish().unwrap(), loss).unwrap();
        g.set_phase(Phase::Backward);
        let reader = g.mul(h, late);
        g.output("reader", reader);
        g.set_phase(Phase::Update);
        let gradient = g.newest(g.state_named("grad.w").unwrap());
        let update = g.apply_all(Op::Accumulate { to: DType::F32 }, &[gradient]);
        g.write_state(update, 0, g.state_named("w").unwrap());
        let order = order(&interleave(g).unwrap());
        assert_eq!(order[order.len() - 2..], ["mul", "accumulate w"]);
    }
}
