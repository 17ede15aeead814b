//! Layers of a graph: its blocks, or pieces of a graph that has none.
//!
//! A graph without blocks is cut at its articulation points, and where it has none, into even pieces.

use plimsoll_graph::{BlockId, Graph, Node, Phase};

/// The layer of each node (none outside layers, and for nodes that are not forward) and their number.
pub(crate) fn layers(graph: &Graph) -> (Vec<Option<usize>>, usize) {
    let level = graph.layer_blocks();
    if level.is_empty() { cut_layers(graph) } else { block_layers(graph, &level) }
}

/// A name for each of the `count` layers of [`layers`].
pub(crate) fn layer_names(graph: &Graph, count: usize) -> Vec<String> {
    let level = graph.layer_blocks();
    let name = |layer: usize| level.get(layer).map(|&block| graph.block_name(block));
    (0..count).map(|layer| name(layer).unwrap_or_else(|| format!("part {layer}"))).collect()
}

fn block_layers(graph: &Graph, level: &[BlockId]) -> (Vec<Option<usize>>, usize) {
    let mut index_of = vec![None; graph.blocks().len()];
    for (index, block) in level.iter().enumerate() {
        index_of[block.index()] = Some(index);
    }
    let layer = |node: &Node| {
        let path = graph.block_path(node.block);
        path.iter().find_map(|block| index_of[block.index()]).filter(|_| node.phase == Phase::Forward)
    };
    (graph.nodes().iter().map(layer).collect(), level.len())
}

/// Layers of a graph without blocks: the pieces between articulation points, or even pieces when there
/// are none.
fn cut_layers(graph: &Graph) -> (Vec<Option<usize>>, usize) {
    let crossing = crossing_values(graph);
    let forward = crossing.len();
    let mut cuts: Vec<usize> = (1..forward).filter(|&at| crossing[at - 1] == 1).collect();
    if cuts.is_empty() && forward > 3 {
        let piece = (forward as f64).sqrt().ceil() as usize;
        cuts =
            (1..forward.div_ceil(piece)).map(|index| quietest(&crossing, index * piece, piece / 2)).collect();
        cuts.dedup();
    }
    let layer = |position: usize| cuts.partition_point(|&cut| cut <= position);
    let mut layer_of = vec![None; graph.nodes().len()];
    for (position, slot) in layer_of.iter_mut().take(forward).enumerate() {
        *slot = Some(layer(position));
    }
    (layer_of, cuts.len() + 1)
}

/// For each forward node, the number of values that it or an earlier node computes and a later forward node reads.
fn crossing_values(graph: &Graph) -> Vec<usize> {
    let forward = graph.nodes().iter().take_while(|node| node.phase == Phase::Forward).count();
    let mut last_reader = vec![0; graph.value_count()];
    for (position, node) in graph.nodes()[..forward].iter().enumerate() {
        for &input in &node.inputs {
            last_reader[graph.storage(input).index()] = position;
        }
    }
    let mut change = vec![0isize; forward + 1];
    for (position, node) in graph.nodes()[..forward].iter().enumerate().filter(|(_, node)| !node.op.is_view())
    {
        for output in &node.outputs {
            let last = last_reader[output.index()];
            if last > position {
                change[position] += 1;
                change[last] -= 1;
            }
        }
    }
    let running = change.iter().scan(0isize, |live, &delta| {
        *live += delta;
        Some(*live as usize)
    });
    running.take(forward).collect()
}

/// The cut near `at` that the fewest values cross.
fn quietest(crossing: &[usize], at: usize, reach: usize) -> usize {
    let window = at.saturating_sub(reach).max(1)..(at + reach).min(crossing.len() - 1) + 1;
    window.min_by_key(|&cut| (crossing[cut - 1], cut.abs_diff(at))).unwrap_or(at)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use plimsoll_graph::{DType, Init};

    /// `x → x + silu(x·w)` per layer, with or without blocks.
    pub(in crate::recompute) fn residual(depth: usize, blocks: bool) -> Graph {
        let mut g = Graph::new();
        let mut x = g.input("x", [4, 8], DType::F32);
        for layer in 0..depth {
            let body = |g: &mut Graph| {
                let w = g.param(&format!("w{layer}"), [8, 8], Init::Normal(0.1));
                let h = g.linear(x, w, None);
                let h = g.silu(h);
                g.add(x, h)
            };
            x = if blocks { g.block(&format!("layer.{layer}"), body) } else { body(&mut g) };
        }
        g.output("x", x);
        g.finish().unwrap()
    }

    #[test]
    fn a_graph_without_blocks_is_cut_where_one_value_passes() {
        let (layer_of, count) = layers(&residual(4, false));
        // The first layer reads a graph input, which always exists, so only its inner values cross.
        assert_eq!(count, 6);
        let expected: Vec<_> = [0, 1, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5].map(Some).to_vec();
        assert_eq!(layer_of, expected);
    }

    #[test]
    fn a_block_around_everything_is_not_a_layer() {
        let mut g = Graph::new();
        let x = g.input("x", [4], DType::F32);
        g.block("model", |g| {
            let a = g.block("0", |g| g.silu(x));
            g.block("1", |g| g.silu(a))
        });
        let (layer_of, count) = layers(&g);
        assert_eq!((layer_of, count), (vec![Some(0), Some(1)], 2));
    }
}
