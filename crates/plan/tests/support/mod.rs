//! Graphs for the planner's tests, with facts of a device that needs no scratch and no time to speak of.

#![allow(dead_code, reason = "each test file uses its own part")]

use plimsoll_graph::op::Conv;
use plimsoll_graph::{DType, Graph, Init, Value, differentiate};
use plimsoll_model::Architecture;
use plimsoll_plan::{Costed, Facts, NodeFacts, Program, Strategy, Workspace};

#[path = "../../../model/tests/support/families.rs"]
mod models;
use models::Size;

/// Every strategy there is, `every` with two group sizes.
pub(crate) const STRATEGIES: [Strategy; 8] = [
    Strategy::None,
    Strategy::Selective,
    Strategy::Full,
    Strategy::Sqrt,
    Strategy::Every(2),
    Strategy::Every(3),
    Strategy::Minimal,
    Strategy::Manual,
];

/// Adds the derivative of the output `loss`.
pub(crate) fn trained(forward: &Graph) -> Graph {
    let loss = forward.output_named("loss").unwrap();
    differentiate(forward, loss).unwrap()
}

/// A program of one graph whose every node takes a second and `scratch` bytes.
pub(crate) fn program(graph: Graph, scratch: u64) -> Program {
    let node = NodeFacts { seconds: 1.0, lean_seconds: 1.0, workspace: Workspace::exactly(scratch) };
    let facts = Facts { alignment: 64, nodes: vec![node; graph.nodes().len()], link: None };
    Program { train: Costed { graph, facts }, evaluate: None, generate: None }
}

/// `x ← x + w₂·silu(w₁·x)`, one block and one mark per layer, with its derivative.
pub(crate) fn residual_chain(depth: usize) -> Graph {
    chain(depth, |g, layer, x| {
        g.block(&format!("layer.{layer}"), |g| g.checkpoint(|g| residual_layer(g, "", x)))
    })
}

/// The same chain with nothing that says where a layer begins.
pub(crate) fn plain_chain(depth: usize) -> Graph {
    chain(depth, |g, layer, x| residual_layer(g, &format!("layer.{layer}."), x))
}

const WIDTH: usize = 16;

fn chain(depth: usize, layer: impl Fn(&mut Graph, usize, Value) -> Value) -> Graph {
    let mut g = Graph::new();
    let mut x = g.input("x", [4, WIDTH], DType::F32);
    for index in 0..depth {
        x = layer(&mut g, index, x);
    }
    let loss = g.sum(x, &[0, 1]);
    g.output("loss", loss);
    trained(&g.finish().unwrap())
}

fn residual_layer(g: &mut Graph, prefix: &str, x: Value) -> Value {
    let w1 = g.param(&format!("{prefix}w1"), [WIDTH, WIDTH], Init::Normal(0.1));
    let w2 = g.param(&format!("{prefix}w2"), [WIDTH, WIDTH], Init::Normal(0.1));
    let h = g.linear(x, w1, None);
    let h = g.silu(h);
    let h = g.linear(h, w2, None);
    g.add(x, h)
}

/// A U-net of `depth` levels: each expanding level reads the values of its contracting twin, which live across everything
/// between.
pub(crate) fn skip_network(depth: usize) -> Graph {
    const CHANNELS: usize = 4;
    let layer = |g: &mut Graph, name: &str, x: Value| {
        g.block(name, |g| {
            let channels = g.shape(x)[1];
            let w = g.param("w", [CHANNELS, channels, 3, 3], Init::Normal(0.1));
            let b = g.param("b", [CHANNELS], Init::Fill(0.0));
            let y = g.conv2d(x, w, Some(b), Conv { stride: 1, padding: 1 });
            g.silu(y)
        })
    };
    let mut g = Graph::new();
    let mut x = g.input("x", [2, CHANNELS, 8, 8], DType::F32);
    let mut skips = Vec::new();
    for level in 0..depth {
        x = layer(&mut g, &format!("down.{level}"), x);
        skips.push(x);
    }
    for (level, skip) in skips.into_iter().enumerate().rev() {
        let both = g.concat(&[x, skip], 1);
        x = layer(&mut g, &format!("up.{level}"), both);
    }
    let loss = g.sum(x, &[0, 1, 2, 3]);
    g.output("loss", loss);
    trained(&g.finish().unwrap())
}

/// The smallest size that has every part.
const SIZE: Size = Size { layers: 4, dropout: 0.1, ..Size::GOLDEN };

/// The three families in the smallest shape that has every part.
pub(crate) fn families() -> [(&'static str, Architecture); 3] {
    models::families(SIZE)
}

/// A Llama of that shape with another number of layers.
pub(crate) fn llama(layers: usize) -> Architecture {
    models::llama(Size { layers, ..SIZE }).into()
}

/// One family's graph with its derivative.
pub(crate) fn family(model: &Architecture) -> Graph {
    trained(&model.training(2, 16).unwrap())
}
