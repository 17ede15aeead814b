//! When ranks begin to gather weights: so far ahead of their reader that the exchange hides behind compute.
//!
//! ```text
//! as listed   gather a · a·x · gather b · b·h · gather c · gather d · mlp(c, d)
//! ahead       gather a · gather b · a·x · gather c · gather d · b·h · mlp(c, d)
//! ```
//!
//! A product takes time in proportion to the elements of its weight, and so does the exchange of one. So the gathers
//! of a node begin before as many runs as together read at least as many elements of weights as the node does.
//! Gathers keep their order, and none is begun before its layer: so a layer can be planned by itself, as chains of
//! equal layers are.

use plimsoll_graph::{Graph, NodeId, Phase, Value};

use super::layers::layers;
use crate::schedule::sequence::{Execution, Sequence};

/// Begins every gather of `sequence` ahead of its reader. `layer` names the layer of the run at a place.
pub(super) fn begin_gathers_ahead(
    graph: &Graph,
    sequence: &mut Sequence,
    layer: impl Fn(usize, NodeId) -> usize,
) {
    let listed = std::mem::take(&mut sequence.executions);
    let runs = Vec::with_capacity(listed.len());
    let mut ahead = Ahead { graph, runs, first: 0, readers: Vec::new(), waiting: Vec::new() };
    let mut last = None;
    for (at, run) in listed.into_iter().enumerate() {
        let own = Some(layer(at, run.node));
        if own != last {
            ahead.enter_layer();
            last = own;
        }
        ahead.add(run);
    }
    ahead.place_waiting();
    sequence.executions = ahead.runs;
}

/// A sequence whose gathers are placed ahead.
struct Ahead<'a> {
    graph: &'a Graph,
    runs: Vec<Execution>,
    /// The first place where a gather may begin: behind the one before it, inside its layer.
    first: usize,
    /// Places of the layer's runs that read weights, each with the elements of these.
    readers: Vec<(usize, usize)>,
    /// Gathers of the next reader.
    waiting: Vec<Execution>,
}

impl Ahead<'_> {
    fn enter_layer(&mut self) {
        self.place_waiting();
        self.readers.clear();
        self.first = self.runs.len();
    }

    fn add(&mut self, run: Execution) {
        if self.graph.gathers(run.node) {
            self.waiting.push(run);
            return;
        }
        self.place_waiting();
        let inputs = self.graph.node(run.node).inputs.iter();
        let elements = self.elements(inputs.map(|&value| self.graph.storage(value)));
        if elements > 0 {
            self.readers.push((self.runs.len(), elements));
        }
        self.runs.push(run);
    }

    /// Number of elements of the gathered weights among `values`.
    fn elements(&self, values: impl Iterator<Item = Value>) -> usize {
        let weights = values.filter(|&value| self.graph.is_gathered(value));
        weights.map(|value| self.graph.shape(value).elements()).sum()
    }

    /// Puts the gathers of the next run so early that the runs behind them read at least as many elements.
    fn place_waiting(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let own = self.elements(self.waiting.iter().map(|run| self.graph.node(run.node).outputs[0]));
        let mut passed = 0;
        let mut enough = self.readers.iter().rev().skip_while(|(_, elements)| {
            passed += elements;
            passed < own
        });
        let place = enough.next().map_or(self.first, |&(place, _)| place.max(self.first));
        let count = self.waiting.len();
        self.readers.iter_mut().filter(|(at, _)| *at >= place).for_each(|(at, _)| *at += count);
        self.runs.splice(place..place, self.waiting.drain(..));
        self.first = place + count;
    }
}

/// A number for the layer of each node, its backward pass included; nodes outside layers share one.
pub(super) fn layers_of_nodes(graph: &Graph) -> Vec<usize> {
    let (layer_of, count) = layers(graph);
    let of = |id: NodeId| {
        let node = graph.node(id);
        let forward = if node.phase == Phase::Forward { Some(id) } else { node.derivative_of };
        forward.and_then(|forward| layer_of[forward.index()]).unwrap_or(count)
    };
    graph.node_ids().map(of).collect()
}
