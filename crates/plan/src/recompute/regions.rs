//! Which values are kept for the backward pass and which are dropped and recomputed: a tree of regions.
//!
//! Every strategy is a tree. A value belongs to the smallest region that encloses its producer and all its readers. It
//! is held from the moment the backward pass *opens* that region, that is, reaches its first node inside. The root is
//! open from the start, so values that belong to the root are kept:
//!
//! ```text
//! none      root{ a b c d }                 everything belongs to the root
//! full      root{ {a} {b} {c} {d} }         only values between layers do
//! every:2   root{ {a b} {c d} }
//! minimal   root{ {{{{a} b} c} d} }         opening d recomputes a b c and holds none of them
//! manual    the user's own nest of checkpoint marks
//! ```
//!
//! [`layers`](super::layers) says what a layer is. A value that crosses from one layer to another belongs to the root by
//! the rule above.
//!
//! Weights that ranks gather belong to a region of their own that no pass opens: whatever the strategy, they are dropped at the
//! turn and when the backward pass leaves a region.

use std::ops::Range;

use plimsoll_graph::{Graph, NodeId, Phase, Value};

use super::layers::layers;
use super::strategy::Strategy;

/// The tree of regions of one graph under one strategy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Regions {
    /// Surrounding region of each region; region 0 is the root and its own parent.
    parent: Vec<usize>,
    /// Distance of each region from the root.
    depth: Vec<usize>,
    /// Region of each node.
    of_node: Vec<usize>,
    /// Region that each value belongs to, by storage.
    owner: Vec<usize>,
}

/// The treatment of part of a chain in an optimal plan.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    /// A layer, or several treated as one, that keeps these values and recomputes the other values that its backward
    /// pass reads.
    Layer {
        /// The indices of the layers.
        layers: Range<usize>,
        /// Values whose storage is held from the forward pass of the layers on.
        keep: Vec<Value>,
    },
    /// Consecutive layers that are dropped and recomputed together.
    Segment(Vec<Item>),
}

/// The region whose values are never dropped.
pub(crate) const ROOT: usize = 0;

impl Regions {
    /// The regions of `graph` under `strategy`.
    pub(crate) fn new(graph: &Graph, strategy: Strategy) -> Regions {
        let mut regions = match strategy {
            // Without a budget nothing need be dropped; inside one the search builds the regions.
            Strategy::None | Strategy::Auto => Regions::flat(graph),
            Strategy::Manual => Regions::from_marks(graph),
            Strategy::Full | Strategy::Selective => Regions::from_layers(graph, 1),
            Strategy::Every(layers) => Regions::from_layers(graph, layers),
            Strategy::Sqrt => {
                let (_, count) = layers(graph);
                Regions::from_layers(graph, ((count as f64).sqrt().round() as usize).max(1))
            }
            Strategy::Minimal => Regions::nested(graph),
        };
        regions.assign_owners(graph, strategy == Strategy::Selective);
        regions
    }

    /// The regions of an optimal plan: a region for each layer, inside one for each dropped segment. The
    /// values a layer keeps belong to the region around it.
    pub(crate) fn from_items(graph: &Graph, items: &[Item]) -> Regions {
        let mut regions = Regions::flat(graph);
        let (layer_of, count) = layers(graph);
        let mut of_layer = vec![ROOT; count];
        let mut kept = Vec::new();
        regions.add_items(items, ROOT, &mut of_layer, &mut kept);
        regions.place(graph, |node| layer_of[node.index()].map_or(ROOT, |layer| of_layer[layer]));
        regions.assign_owners(graph, false);
        for (value, region) in kept {
            regions.owner[value.index()] = regions.common(regions.owner(value), region);
        }
        regions
    }

    fn add_items(
        &mut self,
        items: &[Item],
        around: usize,
        of_layer: &mut [usize],
        kept: &mut Vec<(Value, usize)>,
    ) {
        for item in items {
            let region = self.add(around);
            match item {
                Item::Layer { layers, keep } => {
                    of_layer[layers.clone()].fill(region);
                    kept.extend(keep.iter().map(|&value| (value, around)));
                }
                Item::Segment(inside) => self.add_items(inside, region, of_layer, kept),
            }
        }
    }

    /// Region of a node.
    pub(crate) fn of_node(&self, node: NodeId) -> usize {
        self.of_node[node.index()]
    }

    /// Region that a value belongs to.
    pub(crate) fn owner(&self, value: Value) -> usize {
        self.owner[value.index()]
    }

    /// Number of regions.
    pub(crate) fn count(&self) -> usize {
        self.parent.len()
    }

    /// `region` and the regions around it, the root last.
    pub(crate) fn chain(&self, region: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(region), |&r| (r != ROOT).then(|| self.parent[r]))
    }

    fn flat(graph: &Graph) -> Regions {
        Regions {
            parent: vec![ROOT],
            depth: vec![0],
            of_node: vec![ROOT; graph.nodes().len()],
            owner: vec![ROOT; graph.value_count()],
        }
    }

    fn add(&mut self, parent: usize) -> usize {
        self.parent.push(parent);
        self.depth.push(self.depth[parent] + 1);
        self.parent.len() - 1
    }

    /// One region for every `group` consecutive layers.
    fn from_layers(graph: &Graph, group: usize) -> Regions {
        let mut regions = Regions::flat(graph);
        let (layer_of, count) = layers(graph);
        let first = regions.count();
        for _ in 0..count.div_ceil(group) {
            regions.add(ROOT);
        }
        regions.place(graph, |node| layer_of[node.index()].map_or(ROOT, |layer| first + layer / group));
        regions
    }

    /// Each layer's region encloses the regions of all layers before it.
    fn nested(graph: &Graph) -> Regions {
        let mut regions = Regions::flat(graph);
        let (layer_of, count) = layers(graph);
        let mut of_layer = vec![ROOT; count];
        let mut outer = ROOT;
        for layer in (0..count).rev() {
            outer = regions.add(outer);
            of_layer[layer] = outer;
        }
        regions.place(graph, |node| layer_of[node.index()].map_or(ROOT, |layer| of_layer[layer]));
        regions
    }

    /// One region per `checkpoint` mark, nested as the marks are.
    fn from_marks(graph: &Graph) -> Regions {
        let mut regions = Regions::flat(graph);
        let mut of_block = vec![ROOT; graph.blocks().len()];
        // A block comes after the block around it, so parents are ready when they are looked up.
        for (index, block) in graph.blocks().iter().enumerate().skip(1) {
            let outer = of_block[block.parent.index()];
            of_block[index] = if block.checkpoint { regions.add(outer) } else { outer };
        }
        regions.place(graph, |node| of_block[graph.node(node).block.index()]);
        regions
    }

    /// Gives every forward node its region, and every backward node that of the node it differentiates.
    fn place(&mut self, graph: &Graph, region: impl Fn(NodeId) -> usize) {
        for id in graph.node_ids() {
            let node = graph.node(id);
            self.of_node[id.index()] = match (node.phase, node.derivative_of) {
                (Phase::Forward, _) => region(id),
                (Phase::Backward, Some(forward)) => self.of_node[forward.index()],
                _ => ROOT,
            };
        }
    }

    fn assign_owners(&mut self, graph: &Graph, keep_products: bool) {
        const UNSEEN: usize = usize::MAX;
        let mut owner = vec![UNSEEN; graph.value_count()];
        for id in graph.node_ids() {
            let node = graph.node(id);
            let region = self.of_node(id);
            for &value in node.inputs.iter().chain(&node.outputs) {
                let storage = graph.storage(value).index();
                owner[storage] = match owner[storage] {
                    UNSEEN => region,
                    earlier => self.common(earlier, region),
                };
            }
            let kept = node.op.is_once() || (keep_products && node.op.is_matmul());
            if kept && node.phase == Phase::Forward {
                for &value in &node.outputs {
                    owner[value.index()] = ROOT;
                }
            }
        }
        for (_, value) in graph.outputs() {
            owner[graph.storage(*value).index()] = ROOT;
        }
        self.let_go(graph, &mut owner);
        self.owner = owner.into_iter().map(|region| if region == UNSEEN { ROOT } else { region }).collect();
    }

    /// Gives gathered weights a region that is never open.
    fn let_go(&mut self, graph: &Graph, owner: &mut [usize]) {
        let mut never_open = None;
        for id in graph.node_ids().filter(|&id| graph.gathers(id)) {
            let region = *never_open.get_or_insert_with(|| self.add(ROOT));
            owner[graph.node(id).outputs[0].index()] = region;
        }
    }

    /// The smallest region that encloses both.
    fn common(&self, mut a: usize, mut b: usize) -> usize {
        while a != b {
            if self.depth[a] >= self.depth[b] {
                a = self.parent[a];
            } else {
                b = self.parent[b];
            }
        }
        a
    }
}

#[cfg(test)]
mod tests {
    use super::super::layers::tests::residual;
    use super::*;

    #[test]
    fn what_passes_between_layers_belongs_to_the_root() {
        let graph = residual(2, true);
        let regions = Regions::new(&graph, Strategy::Full);
        let output = |node: usize| graph.nodes()[node].outputs[0];
        assert_ne!(regions.owner(output(0)), ROOT, "the product is read inside its layer only");
        assert_eq!(regions.owner(output(2)), ROOT, "the sum is read by the next layer");
    }

    #[test]
    fn selective_keeps_products() {
        let graph = residual(2, true);
        let regions = Regions::new(&graph, Strategy::Selective);
        assert_eq!(regions.owner(graph.nodes()[0].outputs[0]), ROOT);
        assert_ne!(regions.owner(graph.nodes()[1].outputs[0]), ROOT);
    }
}
