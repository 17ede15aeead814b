//! Training in a random subspace (Li et al. 2018; Aghajanyan et al. 2020): all weights are a function of few numbers.
//!
//! ```text
//! y = x·Wᵀ      becomes      y = x·(W + P·v)ᵀ          W frozen; v (d), shared by all weights or by those of a layer
//! ```
//!
//! `P` is sparse, one ±1 for each element of a weight: see [`Op::Subspace`](plimsoll_graph::Op::Subspace). It is a function
//! of the seed and of the parameter's name and is never stored, so the adapter's file holds `v` alone. Each reader of a
//! weight has its own moved copy, which a plan may drop and make again.
//!
//! Absent on purpose: a trained scale for each layer (Aghajanyan's structure-aware form).

use std::collections::BTreeMap;

use plimsoll_graph::{Graph, GraphError, Init, NodeId, State, StateKind, Value, name_hash};

use super::Lora;
use crate::language::refuse;

/// Prefix of the names of coordinates, in the graph and in files.
const PREFIX: &str = "intrinsic.";
/// Name of the coordinates that all parameters share.
const ALL: &str = "all";
/// Coordinates of parameters that belong to no layer.
const OUTSIDE: &str = "outside";

/// A random subspace of a model's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intrinsic {
    /// Trained numbers.
    pub dimension: usize,
    /// Whether every layer has coordinates of its own, as many as any other.
    pub per_layer: bool,
    /// Decides the subspace.
    pub seed: u64,
}

/// The coordinates that move a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coordinates {
    /// Name of the coordinates.
    pub name: String,
    /// Number of coordinates.
    pub count: usize,
    /// Stream of random numbers from which the parameter's projection is drawn.
    pub stream: u64,
}

/// Whether a parameter is coordinates.
pub(super) fn is_coordinates(parameter: &str) -> bool {
    parameter.starts_with(PREFIX)
}

impl Intrinsic {
    /// The coordinates of each parameter that is trained in the subspace; those that are `saved` are trained as a whole.
    pub(super) fn coordinates(
        &self,
        forward: &Graph,
        saved: impl Fn(&str) -> bool,
    ) -> Result<BTreeMap<String, Coordinates>, GraphError> {
        let trains = StateKind::Parameter { trainable: true };
        let trained = |state: &&State| state.kind == trains && !saved(&state.name);
        let parameters: Vec<&State> = forward.states().iter().filter(trained).collect();
        let mut groups: BTreeMap<String, usize> = BTreeMap::new();
        for state in &parameters {
            *groups.entry(self.group(&state.name)).or_default() += state.ty.shape.elements();
        }
        let counts = self.counts(&groups)?;
        let of = |state: &&State| {
            let group = self.group(&state.name);
            let stream = name_hash(&format!("{}/subspace/{}", state.name, self.seed));
            let count = counts.get(&group).copied().unwrap_or(1);
            (state.name.clone(), Coordinates { name: format!("{PREFIX}{group}"), count, stream })
        };
        Ok(parameters.iter().map(of).collect())
    }

    /// Coordinates of each group: the dimension divided evenly, the first groups having one more where it is not even.
    fn counts(&self, groups: &BTreeMap<String, usize>) -> Result<BTreeMap<String, usize>, GraphError> {
        let (dimension, elements) = (self.dimension, groups.values().sum::<usize>());
        if dimension == 0 || dimension > elements {
            let why = format!(
                "a subspace of {dimension} dimensions: the model has {elements} parameters to move in it"
            );
            return Err(wrong(why));
        }
        if dimension < groups.len() {
            let why = format!(
                "{dimension} dimensions for {} layers, embeddings and head among them; give at least one each",
                groups.len()
            );
            return Err(wrong(why));
        }
        let (each, rest) = (dimension / groups.len(), dimension % groups.len());
        let counts = groups.iter().enumerate().map(|(index, (group, &elements))| {
            let count = each + usize::from(index < rest);
            if count > elements {
                let why = format!("{count} dimensions for layer {group}, which has {elements} parameters");
                return Err(wrong(why));
            }
            Ok((group.clone(), count))
        });
        counts.collect()
    }

    /// The group that a parameter belongs to: its layer's number, which is the first number between dots.
    fn group(&self, parameter: &str) -> String {
        let number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        match parameter.split('.').find(number) {
            _ if !self.per_layer => ALL.to_owned(),
            Some(layer) => layer.to_owned(),
            None => OUTSIDE.to_owned(),
        }
    }
}

/// The forward graph whose parameters are moved before each reader.
pub(super) fn adapt(forward: &Graph, lora: &Lora, form: Intrinsic) -> Result<Graph, GraphError> {
    let coordinates = form.coordinates(forward, |name| lora.saves(name))?;
    let kind = |state: &State| match state.kind {
        StateKind::Parameter { .. } => StateKind::Parameter { trainable: lora.saves(&state.name) },
        other => other,
    };
    forward.rewrite_nodes(kind, |g, node, moved| make(forward, &coordinates, g, node, moved))
}

/// A copy of a node that reads moved parameters.
fn make(
    forward: &Graph,
    coordinates: &BTreeMap<String, Coordinates>,
    g: &mut Graph,
    id: NodeId,
    moved: &[Value],
) -> Vec<Value> {
    let node = forward.node(id);
    let mut inputs = Vec::new();
    for &input in &node.inputs {
        let parameter = forward.value(input).state.map(|(state, _)| &forward.state(state).name);
        let (value, own) = (moved[input.index()], parameter.and_then(|name| coordinates.get(name)));
        inputs.push(match own {
            Some(Coordinates { name, count, stream }) => {
                let v = g.param_named(name, [*count], Init::Fill(0.0)); // (d)
                g.subspace(value, v, *stream)
            }
            None => value,
        });
    }
    let copy = g.apply_all(node.op.clone(), &inputs);
    g.node(copy).outputs.clone()
}

fn wrong(why: String) -> GraphError {
    refuse("intrinsic", why)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use plimsoll_graph::{DType, Op, differentiate};

    use super::*;

    /// A table, two layers and a head.
    fn model() -> Graph {
        let mut g = Graph::new();
        let ids = g.input("ids", [4], DType::I32);
        let table = g.param("table", [10, 8], Init::Normal(0.1)); // (V, C)
        let mut x = g.embedding(table, ids); // (N, C)
        for layer in ["layers.0", "layers.1"] {
            x = g.block(layer, |g| {
                let norm = g.param("norm", [8], Init::Fill(1.0));
                let x = g.rms_norm(x, norm, 1e-6);
                let w = g.param("weight", [8, 8], Init::Normal(0.1));
                g.linear(x, w, None)
            });
        }
        let x = g.linear(x, table, None); // (N, V)
        let loss = g.sum(x, &[0, 1]);
        g.output("loss", loss);
        g.finish().unwrap()
    }

    fn form(dimension: usize, per_layer: bool) -> Intrinsic {
        Intrinsic { dimension, per_layer, seed: 3 }
    }

    #[test]
    fn only_coordinates_are_trained_and_every_reader_has_a_copy_of_its_own() {
        let graph = adapt(&model(), &Lora::default(), form(20, false)).unwrap();
        let trained = |state: &&State| state.kind == StateKind::Parameter { trainable: true };
        let names: Vec<&str> =
            graph.states().iter().filter(trained).map(|state| state.name.as_str()).collect();
        assert_eq!(names, ["intrinsic.all"]);
        let moves = graph.nodes().iter().filter(|node| matches!(node.op, Op::Subspace { .. }));
        // The table twice, and a norm and a weight of each layer.
        assert_eq!(moves.count(), 6);
        let graph = differentiate(&graph, graph.output_named("loss").unwrap()).unwrap();
        assert!(
            graph.state_named("grad.intrinsic.all").is_some() && graph.state_named("grad.table").is_none()
        );
    }

    #[test]
    fn layers_of_their_own_share_the_dimension_evenly_and_a_seed_gives_other_streams() {
        let of = |form: Intrinsic| form.coordinates(&model(), |_| false).unwrap();
        let layers = of(form(20, true));
        let count = |name: &str| (layers[name].name.clone(), layers[name].count);
        assert_eq!(count("layers.0.norm"), ("intrinsic.0".to_owned(), 7));
        assert_eq!(count("layers.1.weight"), ("intrinsic.1".to_owned(), 7));
        assert_eq!(count("table"), ("intrinsic.outside".to_owned(), 6));
        let other = of(Intrinsic { seed: 4, ..form(20, true) });
        assert!(other.iter().all(|(name, of)| of.stream != layers[name].stream));
    }

    #[test]
    fn more_dimensions_than_parameters_and_fewer_than_layers_are_refused() {
        let why = |dimension, per_layer| {
            form(dimension, per_layer).coordinates(&model(), |_| false).unwrap_err().why
        };
        let all = 80 + 2 * (8 + 64);
        assert!(form(all, false).coordinates(&model(), |_| false).is_ok());
        let beyond =
            format!("a subspace of {} dimensions: the model has {all} parameters to move in it", all + 1);
        assert_eq!(why(all + 1, false), beyond);
        assert!(why(0, false).starts_with("a subspace of 0 dimensions"));
        assert_eq!(
            why(2, true),
            "2 dimensions for 3 layers, embeddings and head among them; give at least one each"
        );
        assert_eq!(why(222, true), "74 dimensions for layer 0, which has 72 parameters");
    }
}
