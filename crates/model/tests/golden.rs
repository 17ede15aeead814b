//! The graphs against the golden files of `reference/models.py`: names, shapes, and the sameness of layers.
//!
//! Numbers are compared where there is a device to compute them, in `train`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use plimsoll_graph::{BlockId, Graph, NodeId, StateKind, Value, ValueSource, differentiate};
use plimsoll_model::Architecture;

#[path = "support/families.rs"]
mod models;
use models::{Size, families};
#[path = "../../graph/tests/support/golden.rs"]
mod golden;
use golden::Golden;

const BATCH: usize = 4;
const SEQ: usize = 16;

#[test]
fn parameters_have_the_names_and_shapes_of_hugging_face() {
    for (file, model) in families(Size::GOLDEN) {
        let graph = model.training(BATCH, SEQ).unwrap();
        assert_eq!(parameters(&graph), golden_weights(file), "{file}");
    }
}

#[test]
fn every_parameter_has_a_gradient_and_its_golden_twin() {
    for (file, model) in families(Size::GOLDEN) {
        let graph = training(&model);
        let gradients: BTreeMap<String, Vec<usize>> = shapes_of(&graph, |kind| kind == StateKind::Gradient);
        let golden = Golden::read(file);
        let tensors = golden.tensors();
        let expected: BTreeMap<String, Vec<usize>> = (tensors.tensors().into_iter())
            .filter(|(name, _)| name.starts_with("grad."))
            .map(|(name, tensor)| (name, tensor.shape().to_vec()))
            .collect();
        assert_eq!(gradients, expected, "{file}");
    }
}

#[test]
fn inputs_have_the_types_of_the_golden_batch() {
    for (file, model) in families(Size::GOLDEN) {
        let graph = model.training(BATCH, SEQ).unwrap();
        let golden = Golden::read(file);
        let tensors = golden.tensors();
        for &input in graph.inputs() {
            let name = &graph.value(input).name;
            if name != "scale" {
                let tensor = tensors.tensor(&format!("batch.{name}")).unwrap();
                assert_eq!(tensor.shape(), &graph.shape(input)[..], "{file} {name}");
                assert_eq!(tensor.dtype(), safetensors::Dtype::I32, "{file} {name}");
            }
        }
    }
}

#[test]
fn all_layers_of_a_model_are_the_same_forward_and_backward() {
    for (file, model) in families(Size::GOLDEN) {
        let graph = training(&model);
        let layers: Vec<Vec<String>> = layer_blocks(&graph).map(|block| describe(&graph, block)).collect();
        assert_eq!(layers.len(), 2, "{file}");
        assert!(layers[0].len() > 30, "{file} has the nodes of its layers in their blocks");
        assert_eq!(layers[0], layers[1], "{file}");
    }
}

#[test]
fn generation_has_the_weights_of_training() {
    for (file, model) in families(Size::GOLDEN) {
        match model.generation(SEQ) {
            Ok(graph) => {
                let logits = graph.output_named("logits").unwrap();
                assert_eq!(graph.shape(logits), [1, model.vocab()].into());
                assert_eq!(parameters(&graph), golden_weights(file), "{file}");
            }
            Err(error) => {
                assert_eq!(file, "bert");
                assert_eq!(
                    error.to_string(),
                    "bert: reads in both directions, so it cannot write a text word by word"
                );
            }
        }
    }
}

fn training(model: &Architecture) -> Graph {
    let forward = model.training(BATCH, SEQ).unwrap();
    let loss = forward.output_named("loss").unwrap();
    differentiate(&forward, loss).unwrap()
}

/// Weights are the tensors that have a gradient.
fn golden_weights(file: &str) -> BTreeMap<String, Vec<usize>> {
    let golden = Golden::read(file);
    let tensors = golden.tensors();
    let weights = tensors.names().into_iter().filter_map(|name| name.strip_prefix("grad."));
    weights.map(|name| (name.to_owned(), tensors.tensor(name).unwrap().shape().to_vec())).collect()
}

fn parameters(graph: &Graph) -> BTreeMap<String, Vec<usize>> {
    shapes_of(graph, |kind| matches!(kind, StateKind::Parameter { .. }))
}

fn shapes_of(graph: &Graph, wanted: impl Fn(StateKind) -> bool) -> BTreeMap<String, Vec<usize>> {
    let states = graph.states().iter().filter(|state| wanted(state.kind));
    states.map(|state| (state.name.clone(), state.ty.shape.to_vec())).collect()
}

/// The blocks whose name ends in a number.
fn layer_blocks(graph: &Graph) -> impl Iterator<Item = BlockId> {
    let numbered = |name: &str| name.rsplit('.').next().is_some_and(|last| last.parse::<usize>().is_ok());
    (0..graph.blocks().len() as u32).map(BlockId).filter(move |&block| numbered(&graph.block_name(block)))
}

/// The nodes of a block with everything named from the block's point of view, so that two blocks have
/// the same description exactly when one can stand for the other.
fn describe(graph: &Graph, block: BlockId) -> Vec<String> {
    let prefix = format!("{}.", graph.block_name(block));
    let nodes: Vec<NodeId> = graph.node_ids().filter(|&id| graph.node(id).block == block).collect();
    let mut outside: Vec<Value> = Vec::new();
    let mut name = |value: Value| match (graph.value(value).state, graph.value(value).source) {
        (Some((state, version)), _) => format!("{}@{version}", graph.state(state).name.replace(&prefix, "")),
        (None, ValueSource::Node { node, output }) if nodes.contains(&node) => {
            format!("node {} output {output}", nodes.iter().position(|&id| id == node).unwrap())
        }
        (None, ValueSource::Input) => graph.value(value).name.clone(),
        (None, _) => {
            let known = outside.iter().position(|&seen| seen == value);
            format!(
                "outside {}",
                known.unwrap_or_else(|| {
                    outside.push(value);
                    outside.len() - 1
                })
            )
        }
    };
    let line = |&id: &NodeId| {
        let node = graph.node(id);
        let inputs: Vec<String> = node.inputs.iter().map(|&value| name(value)).collect();
        let outputs: Vec<String> = node.outputs.iter().map(|&value| name(value)).collect();
        format!("{:?} {:?} {inputs:?} -> {outputs:?} {:?}", node.phase, node.op, graph.output_types(node))
    };
    nodes.iter().map(line).collect()
}
