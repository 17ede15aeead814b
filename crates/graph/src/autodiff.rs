//! Reverse-mode differentiation: a forward graph in, a graph with explicit backward nodes out.
//!
//! Each op has one rule, in the file of its family in `rules`. A rule turns the cotangent of a node's first output into
//! contributions to the cotangents of its inputs. Contributions to ordinary values are added. Contributions to
//! trainable parameters are summed in place in a range of state, `grad.<name>`: an op that can accumulate writes there
//! directly, any other is followed by `accumulate`.
//!
//! The fused head is special: when its loss is the root, forward and backward become one node, the
//! first of the backward phase. [Added losses](crate::Graph::add_loss) leave it so: each has its weight as cotangent, and
//! no node adds them up. Where the loss is only a part of the root, the forward twin stays and
//! the backward builds the logits a second time.
//!
//! Second derivatives are not here: backward ops have no rule.

use crate::graph::{AddedLoss, Graph, Node, NodeId, Phase, StateKind, Tally, ValueSource};
use crate::rules::{derivative, turn_head};
use crate::tape::Tape;
use crate::{DType, GraphError, Op, Type, Value};

/// The graph of `forward` followed by the nodes that compute the gradient of `loss`, and of the losses that the graph
/// adds to it, with respect to every trainable parameter, each in the state `grad.<parameter>`. Ids of values stay the
/// same.
///
/// # Errors
///
/// When `loss` is not a scalar of the forward phase, or depends on a parameter through something that
/// has no derivative.
pub fn differentiate(forward: &Graph, loss: Value) -> Result<Graph, GraphError> {
    let mut graph = forward.clone();
    let needs = depends_on_parameters(&graph);
    check_loss(&graph, loss, &needs)?;
    let mut cotangents = vec![None; graph.value_count()];
    graph.set_phase(Phase::Backward);
    let head = fused_head(&graph, loss);
    let last_forward = graph.nodes.len() - usize::from(head.is_some());
    let mut tape = if let Some(head) = head {
        move_to_end(&mut graph, head);
        let mut tape = Tape { graph, needs, cotangents };
        turn_head(&mut tape);
        tape
    } else {
        let one = graph.constant("one", [], vec![1.0]);
        cotangents[loss.index()] = Some(one);
        Tape { graph, needs, cotangents }
    };
    give_weights(&mut tape);
    for id in (0..last_forward as u32).rev().map(NodeId) {
        let node = tape.graph.node(id).clone();
        let cotangents: Vec<Option<Value>> =
            node.outputs.iter().map(|&value| tape.cotangent(value)).collect();
        if cotangents.iter().any(Option::is_some) {
            tape.graph.current = node.block;
            tape.graph.derivative_of = Some(id);
            derivative(&mut tape, &node, &cotangents)?;
        }
        add_tallies(&mut tape.graph, id);
    }
    tape.graph.tallies.clear();
    tape.graph.current = Graph::ROOT;
    tape.graph.derivative_of = None;
    tape.graph.finish()
}

fn check_loss(graph: &Graph, loss: Value, needs: &[bool]) -> Result<(), GraphError> {
    let refuse = |why| Err(GraphError { what: "loss".to_owned(), block: String::new(), why, at: None });
    if graph.ty(loss) != Type::f32([]) {
        return refuse(format!("must be an f32 scalar to be differentiated, got {}", graph.ty(loss)));
    }
    if !needs[loss.index()] {
        return refuse("depends on no trainable parameter".to_owned());
    }
    match graph.added_losses.iter().find(|added| added.value == loss) {
        Some(added) => refuse(format!("is added to itself as `{}`", added.name)),
        None => Ok(()),
    }
}

/// Gives each added loss its weight as cotangent, unless that is 0 and the value is only reported. Weights are
/// constants, one for each distinct number. They are state, so that layers which add a loss stay equal.
fn give_weights(tape: &mut Tape) {
    let weighted = |added: &AddedLoss| added.weight.abs() > 0.0;
    for AddedLoss { value, weight, .. } in tape.graph.added_losses.clone().into_iter().filter(weighted) {
        let cotangent = tape.graph.constant(&format!("loss_weight.{weight}"), [], vec![weight]);
        tape.share(value, cotangent);
    }
}

/// For each tallied value of a forward node, appends a node that adds it to its sum. That is a backward node, since
/// those run exactly once for every micro-batch.
fn add_tallies(graph: &mut Graph, id: NodeId) {
    let Node { block, outputs, .. } = graph.node(id).clone();
    for Tally { name, value } in
        graph.tallies.clone().into_iter().filter(|tally| outputs.contains(&tally.value))
    {
        graph.current = block;
        graph.derivative_of = Some(id);
        graph.state_range(&name, graph.ty(value), StateKind::Tally);
        let sum = graph.apply_all(Op::Accumulate { to: DType::F32 }, &[value]);
        if let Some(state) = graph.state_named(&name) {
            graph.write_state(sum, 0, state);
        }
    }
}

/// For every value, whether a trainable parameter reaches it.
fn depends_on_parameters(graph: &Graph) -> Vec<bool> {
    let mut needs = vec![false; graph.value_count()];
    for state in graph.states() {
        needs[state.versions[0].index()] = matches!(state.kind, StateKind::Parameter { trainable: true });
    }
    for node in graph.nodes() {
        let any = node.inputs.iter().any(|input| needs[input.index()]);
        for &output in &node.outputs {
            needs[output.index()] = any && graph.ty(output).dtype.is_float() && !node.op.detaches();
        }
    }
    needs
}

/// The fused head whose loss is the root and nothing else's input.
fn fused_head(graph: &Graph, loss: Value) -> Option<NodeId> {
    let producer = graph.producer(loss)?;
    let used = graph.nodes().iter().any(|node| node.inputs.contains(&loss));
    (!used && matches!(graph.node(producer).op, Op::HeadLoss(_))).then_some(producer)
}

/// Makes `id` the last node.
fn move_to_end(graph: &mut Graph, id: NodeId) {
    let node = graph.nodes.remove(id.index());
    graph.nodes.push(node);
    for index in id.index()..graph.nodes.len() {
        for output in 0..graph.nodes[index].outputs.len() {
            let value = graph.nodes[index].outputs[output];
            graph.values[value.index()].source = ValueSource::Node { node: NodeId(index as u32), output };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Init, Shape};

    fn classifier(frozen_first: bool) -> (Graph, Value) {
        let mut g = Graph::new();
        let x = g.input("x", [4, 8], DType::F32);
        let targets = g.input("targets", [4], DType::I32);
        let scale = g.loss_scale();
        let w1 = if frozen_first { Graph::frozen } else { Graph::param };
        let w1 = w1(&mut g, "w1", Shape::from([16, 8]), Init::Normal(0.1));
        let h = g.linear(x, w1, None);
        let h = g.silu(h);
        let w2 = g.param("w2", [10, 16], Init::Normal(0.1));
        let loss = g.head_loss(h, w2, None, targets, scale, -100);
        g.output("loss", loss);
        (g.finish().unwrap(), loss)
    }

    #[test]
    fn the_head_is_the_turn_and_gradients_are_written_where_they_are_summed() {
        let (forward, loss) = classifier(false);
        let graph = differentiate(&forward, loss).unwrap();
        let ops: Vec<&str> = graph.nodes().iter().map(|node| node.op.name()).collect();
        assert_eq!(ops, ["linear", "silu", "head_loss_grad", "silu_grad", "linear_grad_weight"]);
        for name in ["grad.w1", "grad.w2"] {
            let state = graph.state_named(name).unwrap();
            assert_eq!(graph.state(state).versions.len(), 2, "{name} has one writer");
        }
    }

    #[test]
    fn frozen_weights_have_no_gradient_and_no_backward_products() {
        let (forward, loss) = classifier(true);
        let graph = differentiate(&forward, loss).unwrap();
        assert_eq!(graph.state_named("grad.w1"), None);
        assert!(graph.nodes().iter().all(|node| !matches!(node.op, Op::LinearGradWeight { .. })));
    }

    #[test]
    fn a_loss_that_is_only_part_of_the_root_takes_the_two_node_form() {
        let (mut g, loss) = classifier(false);
        let root = g.scale(loss, 0.5);
        let graph = differentiate(&g, root).unwrap();
        let ops: Vec<&str> = graph.nodes().iter().map(|node| node.op.name()).collect();
        assert!(ops.contains(&"head_loss") && ops.contains(&"head_loss_grad"));
    }

    /// A classifier with a penalty on its hidden values and one that no parameter reaches.
    fn penalised() -> (Graph, Value) {
        let (mut g, loss) = classifier(false);
        let h = g.nodes()[1].outputs[0];
        let x = g.inputs()[0];
        g.block("layer", |g| {
            for (name, value) in [("hidden", h), ("given", x)] {
                let squares = g.mul(value, value);
                let sum = g.sum(squares, &[0, 1]);
                g.add_loss(name, sum, 0.01);
            }
        });
        (g.finish().unwrap(), loss)
    }

    #[test]
    fn a_head_stays_the_turn_when_other_losses_are_added() {
        let (forward, loss) = penalised();
        let graph = differentiate(&forward, loss).unwrap();
        let of = |phase| -> Vec<&str> {
            let nodes = graph.nodes().iter().filter(move |node| node.phase == phase);
            nodes.map(|node| node.op.name()).collect()
        };
        assert_eq!(of(Phase::Forward), ["linear", "silu", "mul", "sum", "mul", "sum"]);
        let backward = of(Phase::Backward);
        assert_eq!(backward[0], "head_loss_grad");
        assert!(!backward.contains(&"head_loss"), "{backward:?}");
        assert_eq!(
            backward.iter().filter(|&&op| op == "broadcast").count(),
            1,
            "no parameter reaches `given`"
        );
        for name in ["layer.hidden", "layer.given", "loss"] {
            assert!(graph.output_named(name).is_some(), "{name} is reported on its own");
        }
        let text = graph.to_string();
        assert!(text.contains("state loss_weight.0.01: f32[] constant"), "{text}");
        assert!(text.ends_with("loss + 0.01 · layer.hidden\nloss + 0.01 · layer.given\n"), "{text}");
    }

    #[test]
    fn added_losses_that_are_no_finite_scalars_or_the_loss_itself_are_refused() {
        let fault = |add: fn(&mut Graph, Value)| {
            let (mut g, loss) = classifier(false);
            add(&mut g, loss);
            g.finish().and_then(|g| differentiate(&g, loss)).unwrap_err().why
        };
        let wide = |g: &mut Graph, _| g.add_loss("wide", g.inputs()[0], 0.1);
        assert_eq!(fault(wide), "`wide` must be an f32 scalar, got f32[4,8]");
        let endless = |g: &mut Graph, loss| {
            let half = g.scale(loss, 0.5);
            g.add_loss("half", half, f32::INFINITY);
        };
        assert_eq!(fault(endless), "the weight of `half` is inf; choose a finite number");
        let twice = |g: &mut Graph, loss| g.add_loss("again", loss, 1.0);
        assert_eq!(fault(twice), "is added to itself as `again`");
    }

    #[test]
    fn a_rewrite_keeps_added_losses() {
        let (forward, _) = penalised();
        let again = forward.rewrite(|state| state.kind, |g, node| g.node(node).outputs[0]).unwrap();
        let named = |graph: &Graph| -> Vec<(String, f32)> {
            graph.added_losses().iter().map(|added| (added.name.clone(), added.weight)).collect()
        };
        assert_eq!(named(&again), named(&forward));
        assert_eq!(again.added_losses()[0].value, again.output_named("layer.hidden").unwrap());
    }

    #[test]
    fn a_shared_weight_has_one_sum_with_two_writers() {
        let mut g = Graph::new();
        let ids = g.input("ids", [4], DType::I32);
        let targets = g.input("targets", [4], DType::I32);
        let scale = g.loss_scale();
        let table = g.param("table", [10, 8], Init::Normal(0.1));
        let x = g.embedding(table, ids);
        let loss = g.head_loss(x, table, None, targets, scale, -100);
        let graph = differentiate(&g, loss).unwrap();
        let state = graph.state_named("grad.table").unwrap();
        assert_eq!(graph.state(state).versions.len(), 3);
    }

    #[test]
    fn a_loss_that_is_not_a_scalar_is_refused() {
        let mut g = Graph::new();
        let w = g.param("w", [3], Init::Fill(0.0));
        let error = differentiate(&g, w).unwrap_err();
        assert_eq!(error.to_string(), "loss: must be an f32 scalar to be differentiated, got f32[3]");
    }
}
