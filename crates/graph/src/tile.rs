//! The pass that has feed-forward networks worked on in tiles of rows, before differentiation.
//!
//! ```text
//! gate = linear(x, wg)                                          hidden values of F columns and all rows exist,
//! up   = linear(x, wu)        ──▶   y = mlp(x, wg, wu, wd)      and so do their gradients; behind the arrow they
//! h    = swiglu(gate, up)                                       exist for a tile of rows, in scratch
//! y    = linear(h, wd)
//! ```
//!
//! With long sequences those values are most of a layer's memory. The price is that the derivative always computes the
//! products before the activation a second time. No bit changes: a row of a product depends on that row alone, and sums
//! over rows continue from tile to tile in order. The gradient of `x` is summed as by the rules of the single nodes, as
//! long as `x` has no other readers.
//!
//! A network is recognised by its nodes: `linear, linear, swiglu, linear` or `linear, gelu, linear`, where no other
//! node reads the values in between. A network whose inner values have other readers (adapters, dropout inside) stays
//! as it is, and so does one that has too few rows for tiles.

use crate::graph::{Graph, Node, NodeId, StateKind};
use crate::op::{Activation, Mlp};
use crate::{GraphError, Op, Value};

/// Rows of a tile, at most. A product with fewer spends more of its time on reading weights than it need.
const MOST_ROWS: usize = 256;
/// Rows of a tile are a multiple of this: kernels sum the gradients of biases in pieces of this many rows.
const ROW_STEP: usize = 32;
/// Tiles of a network with few rows: its hidden values then take a quarter of their bytes.
const TILES: usize = 4;

/// `graph` with its feed-forward networks in tiles; `None` if no network of it can be tiled.
///
/// # Errors
///
/// When it is more than a forward graph.
pub fn tile(graph: &Graph) -> Result<Option<Graph>, GraphError> {
    let readers = readers(graph);
    let found = graph.node_ids().map(|last| network(graph, &readers, last));
    let networks: Vec<Option<Network>> = found.collect();
    if networks.iter().all(Option::is_none) {
        return Ok(None);
    }
    let inner: Vec<NodeId> = networks.iter().flatten().flat_map(|network| network.inner.clone()).collect();
    let tiled = graph.rewrite_nodes(
        |state| state.kind,
        |made, id, moved| {
            if inner.contains(&id) {
                return Vec::new();
            }
            let node = match &networks[id.index()] {
                Some(Network { mlp, operands, .. }) => {
                    let operands: Vec<Value> = operands.iter().map(|value| moved[value.index()]).collect();
                    made.apply_all(Op::Mlp(*mlp), &operands)
                }
                None => made.copy(graph.node(id), moved),
            };
            made.node(node).outputs.clone()
        },
    );
    tiled.map(Some)
}

impl Graph {
    /// Rows of the tiles in which feed-forward networks run, if they do.
    pub fn tile_rows(&self) -> Option<usize> {
        let rows = |node: &Node| match node.op {
            Op::Mlp(mlp) => Some(mlp.rows),
            _ => None,
        };
        self.nodes.iter().find_map(rows)
    }
}

/// A feed-forward network among the nodes of a graph.
struct Network {
    mlp: Mlp,
    /// Inputs of [`Op::Mlp`].
    operands: Vec<Value>,
    /// All nodes of the network but the last.
    inner: Vec<NodeId>,
}

/// How often each value is read, by a node or by the caller.
fn readers(graph: &Graph) -> Vec<usize> {
    let mut readers = vec![0; graph.value_count()];
    let read = graph.nodes().iter().flat_map(|node| &node.inputs);
    for value in read.chain(graph.outputs().iter().map(|(_, value)| value)) {
        readers[value.index()] += 1;
    }
    readers
}

/// Rows of the tiles of a network that has `rows` rows; `None` if a single tile would hold all rows.
fn rows_of_tile(rows: usize) -> Option<usize> {
    let tile = (rows / TILES / ROW_STEP * ROW_STEP).clamp(ROW_STEP, MOST_ROWS);
    (tile < rows).then_some(tile)
}

/// The network that `last` is the last product of, if it can be worked on in tiles.
fn network(graph: &Graph, readers: &[usize], last: NodeId) -> Option<Network> {
    let inner = |value: Value| graph.producer(value).filter(|_| readers[value.index()] == 1);
    let (transposed, bias) = linear(graph, last)?;
    let hidden = inner(graph.node(last).inputs[0])?;
    let activation = match graph.node(hidden).op {
        Op::Swiglu => Activation::Swiglu,
        Op::Gelu(form) => Activation::Gelu(form),
        _ => return None,
    };
    let leading: Vec<NodeId> = graph.node(hidden).inputs.iter().copied().map(inner).collect::<Option<_>>()?;
    let products: Vec<NodeId> = leading.iter().copied().chain([last]).collect();
    let x = graph.node(leading[0]).inputs[0];
    let fits = leading.iter().all(|&product| {
        linear(graph, product) == Some((transposed, bias)) && graph.node(product).inputs[0] == x
    });
    let together = products.iter().all(|&product| graph.node(product).block == graph.node(hidden).block);
    if !fits || !together {
        return None;
    }
    let rows = rows_of_tile(graph.shape(x).rows())?;
    let operand = |index: usize| -> Vec<Value> {
        products.iter().filter_map(|&product| graph.node(product).inputs.get(index).copied()).collect()
    };
    let (weights, biases) = (operand(1), operand(2));
    if !alike(graph, &weights) || !alike(graph, &biases) {
        return None;
    }
    Some(Network {
        mlp: Mlp { activation, transposed, bias, rows },
        operands: [vec![x], weights, biases].concat(),
        inner: leading.into_iter().chain([hidden]).collect(),
    })
}

/// Whether the weight of a linear layer is stored `(in, out)`, and whether it has a bias that is a row.
fn linear(graph: &Graph, id: NodeId) -> Option<(bool, bool)> {
    let node = graph.node(id);
    let Op::Linear { transposed, bias } = node.op else { return None };
    let row = node.inputs.get(2).is_none_or(|&bias| graph.shape(bias).len() == 1);
    row.then_some((transposed, bias))
}

/// Whether these are distinct parameters, either all trained or all frozen: their gradients are computed together.
fn alike(graph: &Graph, values: &[Value]) -> bool {
    let kind = |value: Value| {
        let (state, _) = graph.value(value).state?;
        let kind = graph.state(state).kind;
        matches!(kind, StateKind::Parameter { .. }).then_some(kind)
    };
    let distinct = |(index, value): (usize, &Value)| !values[..index].contains(value);
    let Some(&first) = values.first() else { return true };
    kind(first).is_some()
        && values.iter().all(|&value| kind(value) == kind(first))
        && values.iter().enumerate().all(distinct)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Gelu;
    use crate::{DType, Init, differentiate, gradient_name};

    /// A gated layer and one with biases, of `2 · half` rows; the first one's gate may have a second reader.
    fn layers(half: usize, read_twice: bool) -> Graph {
        let mut g = Graph::new();
        let x = g.input("x", [2, half, 4], DType::F32);
        let scaled = g.param("scale", [4], Init::Fill(1.0));
        let x = g.mul(x, scaled);
        let y = g.block("gated", |g| {
            let [gate, up] = ["gate", "up"].map(|name| g.param(name, [8, 4], Init::Normal(0.1)));
            let down = g.param("down", [4, 8], Init::Normal(0.1));
            let gate = g.linear(x, gate, None);
            let up = g.linear(x, up, None);
            if read_twice {
                g.output("gate", gate);
            }
            let hidden = g.swiglu(gate, up);
            let update = g.linear(hidden, down, None);
            g.add(x, update)
        });
        let y = g.block("plain", |g| {
            let up = g.param("up", [4, 8], Init::Normal(0.1));
            let up_bias = g.param("up.bias", [8], Init::Fill(0.0));
            let down = g.frozen("down", [8, 4], Init::Normal(0.1));
            let down_bias = g.param("down.bias", [4], Init::Fill(0.0));
            let hidden = g.linear_transposed(y, up, Some(up_bias));
            let hidden = g.gelu(hidden, Gelu::Tanh);
            g.linear_transposed(hidden, down, Some(down_bias))
        });
        let loss = g.sum(y, &[0, 1, 2]);
        g.output("loss", loss);
        g.finish().unwrap()
    }

    fn ops(graph: &Graph) -> Vec<&'static str> {
        graph.nodes().iter().map(|node| node.op.name()).collect()
    }

    #[test]
    fn a_network_becomes_one_node_in_its_block_and_its_gradients_are_written_where_they_are_summed() {
        let tiled = tile(&layers(100, false)).unwrap().unwrap();
        // The weights of the second network are not trained alike.
        assert_eq!(ops(&tiled), ["mul", "mlp", "add", "linear", "gelu", "linear", "sum"]);
        assert_eq!((tiled.block_name(tiled.nodes()[1].block), tiled.tile_rows()), ("gated".into(), Some(32)));
        let trained = differentiate(&tiled, tiled.output_named("loss").unwrap()).unwrap();
        for weight in ["gated.gate", "gated.up", "gated.down"] {
            let gradient = trained.state(trained.state_named(&gradient_name(weight)).unwrap());
            let writer = trained.producer(gradient.versions[1]).unwrap();
            assert_eq!((trained.node(writer).op.name(), gradient.versions.len()), ("mlp_grad", 2));
        }
    }

    #[test]
    fn biases_and_the_form_of_the_activation_go_along() {
        let frozen = layers(1000, false)
            .rewrite(|_| StateKind::Parameter { trainable: false }, |g, node| g.node(node).outputs[0]);
        let tiled = tile(&frozen.unwrap()).unwrap().unwrap();
        assert_eq!(ops(&tiled), ["mul", "mlp", "add", "mlp", "sum"]);
        let activation = Activation::Gelu(Gelu::Tanh);
        let expected = Mlp { activation, transposed: true, bias: true, rows: 256 };
        assert_eq!(tiled.nodes()[3].op, Op::Mlp(expected));
        let names: Vec<String> = tiled.nodes()[3].inputs.iter().map(|&v| tiled.value_name(v)).collect();
        assert_eq!(names[1..], ["plain.up@0", "plain.down@0", "plain.up.bias@0", "plain.down.bias@0"]);
    }

    #[test]
    fn a_network_with_another_reader_inside_or_few_rows_stays() {
        assert!(tile(&layers(100, true)).unwrap().is_none());
        assert!(tile(&layers(16, false)).unwrap().is_none());
        assert_eq!(tile(&layers(17, false)).unwrap().unwrap().tile_rows(), Some(32));
    }
}
