//! Names that people recognise: a node by the weight it reads or the op it is, layers as ranges.

use std::collections::BTreeMap;

use plimsoll_graph::{Graph, NodeId, Phase, StateKind, Value, ValueSource};

/// A name for each of a layer's forward nodes: `q` for the product with `q_proj.weight`, `swiglu` for the op.
/// The name of an op that occurs several times includes its operand: `rope q`, `rope k`.
pub(crate) fn forward_names(graph: &Graph, nodes: &[NodeId]) -> Vec<String> {
    let plain: Vec<String> = nodes.iter().map(|&id| plain_name(graph, id)).collect();
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for name in &plain {
        *times.entry(name).or_default() += 1;
    }
    let position = |id: NodeId| nodes.iter().position(|&node| node == id);
    let mut names: Vec<String> = Vec::with_capacity(nodes.len());
    for (&id, name) in nodes.iter().zip(&plain) {
        // Operands come before the node, so their own names are ready.
        let operand = graph.node(id).inputs.iter().rev().find_map(|&input| {
            let producer = graph.producer(graph.storage(input))?;
            names.get(position(producer)?)
        });
        names.push(match operand {
            Some(operand) if times[name.as_str()] > 1 => format!("{name} {operand}"),
            _ => name.clone(),
        });
    }
    names
}

/// The name of a buffer's value: the name of an input, or of its producer with the enclosing block.
pub(crate) fn value_name(graph: &Graph, value: Value) -> String {
    let info = graph.value(value);
    match info.source {
        ValueSource::Node { node, .. } => {
            let (name, block) = (producer_name(graph, node), graph.block_name(graph.node(node).block));
            if block.is_empty() { name } else { format!("{name} of {block}") }
        }
        ValueSource::Input | ValueSource::State if info.name.is_empty() => value.to_string(),
        ValueSource::Input | ValueSource::State => info.name.clone(),
    }
}

fn producer_name(graph: &Graph, id: NodeId) -> String {
    match graph.node(id).derivative_of {
        Some(forward) => format!("gradient at {}", plain_name(graph, forward)),
        None => plain_name(graph, id),
    }
}

/// The weights a node reads, or its op where it reads none.
fn plain_name(graph: &Graph, id: NodeId) -> String {
    let node = graph.node(id);
    if node.phase != Phase::Forward {
        return node.op.name().to_owned();
    }
    let mut weights: Vec<&str> = Vec::new();
    for &input in &node.inputs {
        let Some((state, _)) = graph.value(graph.storage(input)).state else { continue };
        let state = graph.state(state);
        let name = weight_name(&state.name);
        if matches!(state.kind, StateKind::Parameter { .. }) && !weights.contains(&name) {
            weights.push(name);
        }
    }
    if weights.is_empty() { node.op.name().to_owned() } else { weights.join("+") }
}

/// `q` of `model.layers.3.self_attn.q_proj.weight`.
fn weight_name(state: &str) -> &str {
    let stem = state.strip_suffix(".weight").or_else(|| state.strip_suffix(".bias")).unwrap_or(state);
    let last = stem.rsplit('.').next().unwrap_or(stem);
    last.strip_suffix("_proj").unwrap_or(last)
}

/// Names as a list in which consecutive numbers are a range: `layers.0-4, layers.7`.
pub(crate) fn ranges(names: &[String]) -> String {
    let mut parts: Vec<(&str, Option<(usize, usize)>)> = Vec::new();
    for name in names {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let (stem, number) = name.split_at(name.len() - digits);
        match (number.parse().ok(), parts.last_mut()) {
            (Some(number), Some((last, Some((_, end))))) if *last == stem && *end + 1 == number => {
                *end = number;
            }
            (Some(number), _) => parts.push((stem, Some((number, number)))),
            (None, _) => parts.push((name, None)),
        }
    }
    let text = |(stem, range): &(&str, Option<(usize, usize)>)| match range {
        Some((first, last)) if first < last => format!("{stem}{first}-{last}"),
        Some((first, _)) => format!("{stem}{first}"),
        None => (*stem).to_owned(),
    };
    parts.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_called_by_the_last_word_of_their_name() {
        assert_eq!(weight_name("model.layers.3.self_attn.q_proj.weight"), "q");
        assert_eq!(weight_name("h.0.attn.c_attn.bias"), "c_attn");
        assert_eq!(weight_name("w1"), "w1");
    }

    #[test]
    fn consecutive_names_become_a_range() {
        let names = |list: &[&str]| ranges(&list.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(names(&["l.0", "l.1", "l.2", "l.5", "m.6"]), "l.0-2, l.5, m.6");
        assert_eq!(names(&["down", "l.9", "l.10"]), "down, l.9-10");
        assert_eq!(names(&[]), "");
    }
}
