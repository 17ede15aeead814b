//! The items of a training graph in words: a plan remembers them, so that a difference has a name.
//!
//! Hashes decide whether a plan may run; these words only explain a refusal to people.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_graph::{Graph, Phase, StateKind};
use serde_json::Value;

/// The items of a graph, each with its name in plain words; items that people set come first.
pub(super) fn items(graph: &Graph) -> Vec<(&'static str, String)> {
    // Numbers are an optimizer's inputs; a batch has rows.
    let inputs =
        graph.inputs().iter().map(|&value| graph.value(value)).filter(|info| !info.ty.shape.is_empty());
    let inputs: Vec<String> = inputs.map(|info| format!("{} {}", info.name, info.ty)).collect();
    let tensors = |wanted: fn(StateKind) -> bool| tensors(graph, wanted);
    let updates = graph.nodes().iter().filter(|node| node.phase == Phase::Update);
    let updates: BTreeSet<&str> = updates.map(|node| node.op.name()).collect();
    let list = |names: BTreeSet<&str>| names.into_iter().collect::<Vec<_>>().join(", ");
    vec![
        ("inputs", inputs.join(", ")),
        ("parameters", tensors(|kind| matches!(kind, StateKind::Parameter { .. }))),
        ("trained parameters", tensors(|kind| kind == StateKind::Parameter { trainable: true })),
        ("gradients", tensors(|kind| matches!(kind, StateKind::Gradient | StateKind::Transient))),
        ("moments", tensors(|kind| kind == StateKind::Moment)),
        ("ops of the update", list(updates)),
        ("number of nodes", graph.nodes().len().to_string()),
    ]
}

/// The first item that differs, in words; `None` if the difference lies outside these items.
pub(super) fn difference(planned: &Value, graph: &Graph) -> Option<String> {
    let planned = |name: &str| planned.as_array()?.iter().find(|item| item[0] == name)?[1].as_str();
    let mut known = items(graph).into_iter().filter_map(|(name, here)| Some((name, planned(name)?, here)));
    let (name, planned, here) = known.find(|(_, planned, here)| planned != here)?;
    Some(format!("its {name}: {planned}; here: {here}"))
}

/// Number and elements of the state of some kind, by element type.
fn tensors(graph: &Graph, wanted: impl Fn(StateKind) -> bool) -> String {
    let mut by_type: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for state in graph.states().iter().filter(|state| wanted(state.kind)) {
        let (count, elements) = by_type.entry(state.ty.dtype.to_string()).or_default();
        (*count, *elements) = (*count + 1, *elements + state.ty.shape.elements());
    }
    let words =
        by_type.iter().map(|(dtype, (count, elements))| format!("{elements} of {dtype} in {count} tensors"));
    let words: Vec<String> = words.collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}
