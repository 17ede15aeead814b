//! The order in which nodes run, recomputed values included.
//!
//! An [`Order`] says what is recomputed, in either of two forms. A tree of regions says when values are dropped and
//! recomputes the rest on demand. For graphs whose best order is no tree, [`Order::Runs`] names every run itself, gathers excepted.
//!
//! For a tree, the forward pass runs every node once. At the turn, values that do not belong to the root region are
//! forgotten. The backward pass then runs each of its nodes once. Just before a node it recomputes the values that the
//! node reads and that are not held, and nothing more: a value that no backward node reads is never recomputed.
//! Recomputed values are held if their region is open; otherwise they are forgotten when the pass leaves its current
//! region. Forgetting only ends a lifetime: the bytes were free from the last read on.
//!
//! In the end weights that ranks gather are begun ahead of their readers: see [`gathers`](super::gathers).

use std::collections::BTreeSet;

use plimsoll_graph::{Graph, Node, NodeId, Phase, Value, ValueSource};

use super::gathers::{begin_gathers_ahead, layers_of_nodes};
use super::regions::{ROOT, Regions};
use super::strategy::Strategy;
use crate::schedule::sequence::{Operand, Sequence};

/// How the order of runs is given.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Order {
    /// Every forward node once, then the recomputation that the tree demands.
    Regions(Regions),
    /// Runs that follow one after another.
    Runs(Vec<Run>),
}

/// An entry of an explicit order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// The node runs, once more if it ran before.
    Node(NodeId),
    /// A later reader finds the value only if its producer runs again.
    Forget(Value),
}

impl Order {
    /// The order of a strategy with a fixed rule.
    pub(crate) fn named(graph: &Graph, strategy: Strategy) -> Order {
        Order::Regions(Regions::new(graph, strategy))
    }
}

/// Forward and backward passes of one micro-batch.
pub(crate) fn micro_batch(graph: &Graph, order: &Order) -> Sequence {
    let mut writer = Writer::new(graph, Phase::Backward);
    match order {
        Order::Regions(regions) => writer.both_passes(regions),
        Order::Runs(runs) => writer.runs(runs),
    }
    writer.with_gathers_ahead()
}

/// Some forward nodes, then some backward nodes, as if the rest of the graph had run: values read from outside exist
/// from the beginning. `kept` survives the turn.
pub(crate) fn part(graph: &Graph, forward: &[NodeId], backward: &[NodeId], kept: &[Value]) -> Sequence {
    let mut writer =
        Writer { graph, sequence: Sequence::default(), resident: Resident::new(graph.value_count()) };
    let among = members(graph, forward.iter().chain(backward));
    let own = |value: Value| graph.producer(value).is_some_and(|node| among[node.index()]);
    for &id in forward.iter().chain(backward) {
        for &input in &graph.node(id).inputs {
            let storage = graph.storage(input);
            let outside = graph.value(storage).state.is_none() && !own(storage);
            if outside && writer.resident.get(storage).is_none() {
                writer.instance(storage);
            }
        }
    }
    for &id in forward {
        writer.run(id);
    }
    for &id in forward {
        for &value in &graph.node(id).outputs {
            if !kept.contains(&value) || graph.gathers(id) {
                writer.resident.forget(value);
            }
        }
    }
    for &id in backward {
        for missing in writer.missing(id) {
            writer.run(missing);
        }
        writer.run(id);
    }
    // Between the two passes other layers run.
    begin_gathers_ahead(graph, &mut writer.sequence, |at, _| usize::from(at >= forward.len()));
    writer.sequence
}

/// For each node of the graph, whether it is among `nodes`.
pub(crate) fn members<'a>(graph: &Graph, nodes: impl Iterator<Item = &'a NodeId>) -> Vec<bool> {
    let mut among = vec![false; graph.nodes().len()];
    for id in nodes {
        among[id.index()] = true;
    }
    among
}

/// The forward pass alone.
pub(crate) fn forward(graph: &Graph) -> Sequence {
    let mut writer = Writer::new(graph, Phase::Forward);
    writer.forward();
    writer.with_gathers_ahead()
}

/// The nodes that follow the last micro-batch.
pub(crate) fn update(graph: &Graph) -> Sequence {
    let mut writer = Writer::new(graph, Phase::Update);
    for id in nodes_of(graph, Phase::Update) {
        writer.run(id);
    }
    writer.sequence
}

fn nodes_of(graph: &Graph, phase: Phase) -> impl Iterator<Item = NodeId> + use<'_> {
    graph.node_ids().filter(move |&id| graph.node(id).phase == phase && !graph.node(id).op.is_view())
}

struct Writer<'a> {
    graph: &'a Graph,
    sequence: Sequence,
    /// The instance that holds each value now, by storage.
    resident: Resident,
}

/// The instance that holds each value, counted from 1; 0 if none does. Zeroed memory costs nothing before it is
/// written, and a part of a graph touches little of it.
struct Resident(Vec<u32>);

impl Resident {
    fn new(values: usize) -> Resident {
        Resident(vec![0; values])
    }

    fn get(&self, value: Value) -> Option<usize> {
        (self.0[value.index()] as usize).checked_sub(1)
    }

    fn hold(&mut self, value: Value, instance: usize) {
        self.0[value.index()] = instance as u32 + 1;
    }

    fn forget(&mut self, value: Value) {
        self.0[value.index()] = 0;
    }
}

impl<'a> Writer<'a> {
    fn new(graph: &'a Graph, last: Phase) -> Writer<'a> {
        let mut writer =
            Writer { graph, sequence: Sequence::default(), resident: Resident::new(graph.value_count()) };
        let update_only = |value: Value| {
            let reads = |node: &&Node| node.inputs.contains(&value);
            graph.nodes().iter().find(reads).is_some_and(|node| node.phase == Phase::Update)
        };
        for &input in graph.inputs() {
            if update_only(input) == (last == Phase::Update) {
                writer.instance(input);
            }
        }
        writer
    }

    /// The sequence, with weights gathered ahead of their readers inside each layer.
    fn with_gathers_ahead(mut self) -> Sequence {
        if self.graph.node_ids().any(|id| self.graph.gathers(id)) {
            let layers = layers_of_nodes(self.graph);
            begin_gathers_ahead(self.graph, &mut self.sequence, |_, node| layers[node.index()]);
        }
        self.sequence
    }

    fn instance(&mut self, value: Value) -> usize {
        self.sequence.instances.push(value);
        let instance = self.sequence.instances.len() - 1;
        self.resident.hold(value, instance);
        instance
    }

    fn forward(&mut self) {
        for id in nodes_of(self.graph, Phase::Forward) {
            self.run(id);
        }
    }

    fn both_passes(&mut self, regions: &Regions) {
        self.forward();
        for value in (0..self.graph.value_count() as u32).map(Value) {
            if regions.owner(value) != ROOT && self.graph.value(value).source != ValueSource::Input {
                self.resident.forget(value);
            }
        }
        self.backward(regions);
    }

    /// Runs the nodes that the list names, and gathers their weights, which a list does not name. A layer that runs again
    /// shares them with its backward pass.
    fn runs(&mut self, runs: &[Run]) {
        let layers = layers_of_nodes(self.graph);
        let (mut gathered, mut last, mut turned) = (Vec::new(), None, false);
        for run in runs {
            match *run {
                Run::Node(id) => {
                    turned |= self.graph.node(id).phase == Phase::Backward;
                    let place = Some((layers[id.index()], turned));
                    if place != last {
                        gathered.drain(..).for_each(|value| self.resident.forget(value));
                        last = place;
                    }
                    self.gather_for(id, &mut gathered);
                    self.run(id);
                }
                Run::Forget(value) => self.resident.forget(value),
            }
        }
    }

    /// Gathers the weights that a node reads and that are not there; those that may be gathered again are added to `gathered`.
    fn gather_for(&mut self, id: NodeId, gathered: &mut Vec<Value>) {
        let graph = self.graph;
        for &input in &graph.node(id).inputs {
            let value = graph.storage(input);
            if let Some(gather) = graph.producer(value).filter(|&gather| graph.gathers(gather))
                && self.resident.get(value).is_none()
            {
                self.run(gather);
                gathered.extend(Some(value).filter(|_| graph.node(gather).phase == Phase::Forward));
            }
        }
    }

    fn backward(&mut self, regions: &Regions) {
        let mut open = vec![false; regions.count()];
        open[ROOT] = true;
        let mut current = ROOT;
        let mut recomputed: Vec<Value> = Vec::new();
        for id in nodes_of(self.graph, Phase::Backward) {
            let region = regions.of_node(id);
            if region != current {
                recomputed.retain(|&value| {
                    let hold = open[regions.owner(value)];
                    if !hold {
                        self.resident.forget(value);
                    }
                    hold
                });
                current = region;
                regions.chain(region).for_each(|r| open[r] = true);
            }
            for missing in self.missing(id) {
                self.run(missing);
                recomputed.extend(&self.graph.node(missing).outputs);
            }
            self.run(id);
        }
    }

    /// The nodes to run again before `id` can run, in order.
    fn missing(&self, id: NodeId) -> BTreeSet<NodeId> {
        let mut wanted = vec![id];
        let mut found = BTreeSet::new();
        while let Some(node) = wanted.pop() {
            for &input in &self.graph.node(node).inputs {
                let storage = self.graph.storage(input);
                if self.graph.value(storage).state.is_some() || self.resident.get(storage).is_some() {
                    continue;
                }
                if let Some(producer) = self.graph.producer(storage)
                    && found.insert(producer)
                {
                    wanted.push(producer);
                }
            }
        }
        found
    }

    fn run(&mut self, id: NodeId) {
        let node = self.graph.node(id);
        let first = self.sequence.operands.len();
        for &value in &node.inputs {
            let place = self.place(value);
            self.sequence.operands.push(place);
        }
        for &value in &node.outputs {
            let place = match self.graph.value(value).state {
                Some((state, _)) => Operand::State(state),
                None => Operand::Instance(self.write(value) as u32),
            };
            self.sequence.operands.push(place);
        }
        self.sequence.run(id, first, node.inputs.len());
    }

    /// A new instance of an output. If an older instance is still held, it remains the value's place: both have the
    /// same bits, and readers of the older one are already counted.
    fn write(&mut self, value: Value) -> usize {
        let held = self.resident.get(value);
        let instance = self.instance(value);
        if let Some(held) = held {
            self.resident.hold(value, held);
        }
        instance
    }

    fn place(&self, value: Value) -> Operand {
        let storage = self.graph.storage(value);
        match (self.graph.value(storage).state, self.resident.get(storage)) {
            (Some((state, _)), _) => Operand::State(state),
            (None, Some(instance)) => Operand::Instance(instance as u32),
            // `missing` has recomputed everything a node reads; a graph that verified has no other gap.
            (None, None) => unreachable!("{storage} is read before it is computed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::{DType, Init, differentiate};

    fn chain(depth: usize) -> Graph {
        let mut g = Graph::new();
        let mut x = g.input("x", [4, 8], DType::F32);
        for layer in 0..depth {
            x = g.block(&format!("layer.{layer}"), |g| {
                let w = g.param("w", [8, 8], Init::Normal(0.1));
                let h = g.linear(x, w, None);
                g.silu(h)
            });
        }
        let loss = g.sum(x, &[0, 1]);
        g.output("loss", loss);
        differentiate(&g.finish().unwrap(), loss).unwrap()
    }

    fn reruns(graph: &Graph, strategy: Strategy) -> usize {
        let sequence = micro_batch(graph, &Order::named(graph, strategy));
        sequence.executions.len() - graph.nodes().len()
    }

    #[test]
    fn each_strategy_recomputes_what_it_says_and_no_more() {
        let graph = chain(8);
        assert_eq!(reruns(&graph, Strategy::None), 0);
        // Each layer recomputes its product. The silu after the product is the input of the next layer, and is kept.
        assert_eq!(reruns(&graph, Strategy::Full), 8);
        assert_eq!(reruns(&graph, Strategy::Selective), 0);
        // Groups of three: all but the last silu of each group are recomputed too.
        assert_eq!(reruns(&graph, Strategy::Every(3)), 8 + 5);
        // Layer n recomputes n − 1 whole layers before it and its own product.
        assert_eq!(reruns(&graph, Strategy::Minimal), 8 * 7 + 8);
    }

    #[test]
    fn marks_drop_what_they_enclose_also_when_nested() {
        let mut g = Graph::new();
        let x = g.input("x", [4], DType::F32);
        let w = g.param("w", [4], Init::Fill(1.0));
        let a = g.mul(x, w);
        let y = g.checkpoint(|g| {
            let b = g.silu(a);
            let c = g.checkpoint(|g| {
                let c = g.silu(b);
                g.silu(c)
            });
            g.silu(c)
        });
        let loss = g.sum(y, &[0]);
        let graph = differentiate(&g, loss).unwrap();
        // The outer region recomputes b, its inner silus (transient) and so c; then the inner one recomputes
        // its first silu once more.
        assert_eq!(reruns(&graph, Strategy::Manual), 4);
    }
}
