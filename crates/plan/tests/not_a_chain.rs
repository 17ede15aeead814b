//! Graphs that are no chain of layers, planned on a fine grid of budgets.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the table is what a reader wants to see")]

use plimsoll_graph::op::Conv;
use plimsoll_graph::{DType, Graph, Init, Value};
use plimsoll_plan::{
    ArenaBytes, Build, Costed, Link, Program, Request, Role, Scratch, Searcher, Strategy, Tier, Workspace,
    report, search, try_all,
};

mod support;
use support::{program, trained};

/// Gives every node a time in proportion to the bytes it reads and writes, matrix products more, and some scratch.
fn costed(graph: Graph) -> Program {
    let mut program = program(graph, 0);
    let Costed { graph, facts } = &mut program.train;
    for (node, facts) in graph.nodes().iter().zip(&mut facts.nodes) {
        let touched: usize =
            node.inputs.iter().chain(&node.outputs).map(|&value| graph.shape(value).elements()).sum();
        let product = if node.op.is_matmul() { 20.0 } else { 1.0 };
        facts.seconds = 1.0 + product * touched as f64 / 256.0;
        facts.lean_seconds = 1.1 * facts.seconds;
        facts.workspace = Workspace { least: 0, best: 256 };
    }
    program
}

/// A U-net: each contracting level halves the sides and doubles the channels, and each expanding level joins the result of
/// its contracting twin.
fn u_net(rows: usize, depth: usize) -> Graph {
    fn layer(g: &mut Graph, name: &str, x: Value, channels: usize, stride: usize) -> Value {
        let w = g.param(&format!("{name}.w"), [channels, g.shape(x)[1], 3, 3], Init::Normal(0.1));
        let y = g.conv2d(x, w, None, Conv { stride, padding: 1 });
        g.silu(y)
    }
    let mut g = Graph::new();
    let side = 4 << depth;
    let mut x = g.input("x", [rows, 2, side, side], DType::F32);
    let mut skips = Vec::new();
    for level in 0..depth {
        x = g.block(&format!("down.{level}"), |g| {
            let x = layer(g, "a", x, 4 << level, 1);
            layer(g, "b", x, 4 << level, 1)
        });
        skips.push(x);
        x = g.block(&format!("half.{level}"), |g| layer(g, "c", x, 8 << level, 2));
    }
    for (level, skip) in skips.into_iter().enumerate().rev() {
        x = g.block(&format!("up.{level}"), |g| {
            let (channels, side) = (g.shape(skip)[1], g.shape(x)[2]);
            let x = layer(g, "d", x, 4 * channels, 1);
            let x = g.reshape(x, [rows, channels, 2, 2, side, side]);
            let x = g.transpose(x, &[0, 1, 4, 2, 5, 3]);
            let x = g.reshape(x, [rows, channels, 2 * side, 2 * side]);
            let both = g.concat(&[x, skip], 1);
            layer(g, "e", both, channels, 1)
        });
    }
    let loss = g.sum(x, &[0, 1, 2, 3]);
    g.output("loss", loss);
    trained(&g.finish().unwrap())
}

/// Residual layers of changing width, without marks of where a layer begins, and a value that all of them read.
fn residual(rows: usize, depth: usize) -> Graph {
    const WIDTH: usize = 16;
    let mut g = Graph::new();
    let mut x = g.input("x", [4 * rows, WIDTH], DType::F32);
    let gate = g.param("gate", [WIDTH, WIDTH], Init::Normal(0.1));
    let gate = g.linear(x, gate, None);
    let gate = g.tanh(gate);
    for layer in 0..depth {
        let inner = WIDTH * (1 + layer % 4);
        let norm = g.param(&format!("{layer}.norm"), [WIDTH], Init::Fill(1.0));
        let up = g.param(&format!("{layer}.up"), [inner, WIDTH], Init::Normal(0.1));
        let down = g.param(&format!("{layer}.down"), [WIDTH, inner], Init::Normal(0.1));
        let h = g.rms_norm(x, norm, 1e-6);
        let h = g.linear(h, up, None);
        let h = g.silu(h);
        let h = g.linear(h, down, None);
        let h = g.mul(h, gate);
        x = g.add(x, h);
    }
    let loss = g.sum(x, &[0, 1]);
    g.output("loss", loss);
    trained(&g.finish().unwrap())
}

fn request(budget: u64) -> Request {
    Request { global_batch: 2, micro_batch: Some(2), strategy: None, budget: ArenaBytes(budget), slack: 0.0 }
}

/// The least that any plan takes.
fn smallest(build: impl Build) -> u64 {
    Searcher::once(build).smallest(request(0)).unwrap().arena_bytes.0
}

fn check(name: &str, build: impl Fn(usize) -> Graph) {
    const BUDGETS: u64 = 30;
    let build = |rows: usize| Ok(costed(build(rows)));
    let named = try_all(2, &[2], &Strategy::LADDER, build).unwrap();
    let most = named.iter().find(|t| t.strategy == Strategy::None && t.scratch == Scratch::Best).unwrap();
    let (least, top) = (smallest(build), most.arena_bytes.0);
    assert!(
        named.iter().all(|t| least <= t.arena_bytes.0),
        "{name}: named strategies do with less than {least}"
    );
    let mut searcher = Searcher::new(build);
    let (mut slowest, mut faster) = (f64::INFINITY, 0);
    for step in 0..=BUDGETS {
        let budget = least + (top - least) * step / BUDGETS;
        let choice = searcher.search(request(budget)).unwrap();
        let (arena, seconds) = (choice.plan.arena_bytes.0, choice.step_seconds());
        let bound = choice.lower_bound_seconds.unwrap();
        let fits = named.iter().filter(|t| t.arena_bytes.0 <= budget);
        let best_named = fits.map(|t| t.step_seconds).fold(f64::INFINITY, f64::min);
        println!(
            "{name}: {arena} of {budget} bytes, {seconds:.1} s, named {best_named:.1}, bound {bound:.1}"
        );
        assert!(arena <= budget, "{name}: {arena} bytes of {budget}");
        assert!(seconds <= slowest, "{name}: {budget} bytes take {seconds} s, fewer took {slowest} s");
        assert!(bound <= seconds * (1.0 + 1e-9), "{name}: {seconds} s in {budget} bytes, bound {bound} s");
        assert!(seconds <= best_named, "{name}: {seconds} s in {budget} bytes, named {best_named} s");
        faster += usize::from(seconds < 0.99 * best_named);
        slowest = seconds;
    }
    assert!(
        (slowest - most.step_seconds).abs() < 1e-9 * slowest,
        "{name}: with room for it nothing is recomputed"
    );
    assert!(faster > 15, "{name}: faster than named strategies at {faster} budgets");
}

#[test]
fn a_net_in_the_shape_of_a_u() {
    check("u-net", |rows| u_net(rows, 3));
}

#[test]
fn a_residual_graph_without_blocks() {
    check("residual", |rows| residual(rows, 8));
}

#[test]
fn with_a_tier_less_memory_is_enough_and_more_is_never_slower() {
    let link = Link {
        tier: Tier::Disk,
        room: 1 << 30,
        block: 512,
        out_rate: 8.0,
        in_rate: 8.0,
        latency: 1.0,
        toll: 0.0,
    };
    let without = |rows: usize| Ok(costed(u_net(rows, 2)));
    let with = |rows: usize| {
        let mut program = costed(u_net(rows, 2));
        program.train.facts.link = Some(link);
        Ok(program)
    };
    let (alone, least) = (smallest(without), smallest(with));
    assert!(least < alone, "{least} bytes with a tier, {alone} without");
    let mut slowest = f64::INFINITY;
    for step in 0..8 {
        let budget = least + (2 * alone - least) * step / 8;
        let choice = search(request(budget), with).unwrap();
        let (seconds, bound) = (choice.step_seconds(), choice.lower_bound_seconds.unwrap());
        assert!(choice.plan.arena_bytes.0 <= budget);
        assert!(seconds <= slowest, "{budget} bytes take {seconds} s, fewer took {slowest} s");
        assert!(bound <= seconds * (1.0 + 1e-9));
        let sent = report(&choice.program, &choice.plan).offload_bytes > 0;
        assert!(sent || budget >= alone, "{budget} bytes do not fit without sending something away");
        slowest = seconds;
    }
}

#[test]
fn what_is_recomputed_is_told_by_layer() {
    let build = |rows: usize| Ok(costed(u_net(rows, 3)));
    let least = smallest(build);
    let choice = search(request(least + least / 20), build).unwrap();
    let runs = choice.plan.schedules[&Role::First].executions(&choice.program.train.graph);
    assert!(runs.iter().any(|&times| times > 2), "some node runs more than twice");
    let report = report(&choice.program, &choice.plan);
    let layers: usize = report.layers.iter().map(|layer| layer.count).sum();
    assert_eq!(layers, 9, "three levels down, three halved, three up");
    assert!(report.layers.iter().any(|layer| !layer.recompute.is_empty()) && report.recompute_fraction > 0.3);
}
