//! How memory and work grow with depth under each strategy: the promises of the literature, counted.
//!
//! The model is a chain of residual layers of four forward actions. A **unit** is one activation of the
//! residual stream; memory is the arena less what persists. Work is counted in actions, since every layer
//! has the same: extra work of one means one more forward pass.
//!
//! ```text
//! none       3 units a layer                       no extra work
//! selective  2 units a layer                       one cheap action a layer
//! full       1 unit a layer                        < 1 extra forward
//! sqrt       √n inputs kept + √n layers recomputed    ≤ 1 extra forward
//! minimal    a constant                            n²/2 layers
//! ```

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::float_cmp, reason = "counts of actions and bytes, which floats of this size hold exactly")]
#![allow(clippy::print_stdout, reason = "the tables are what a reader wants to see")]

use plimsoll_graph::Graph;
use plimsoll_plan::{Role, Scratch, Strategy, plan};

mod support;
use support::{plain_chain, program, residual_chain};

const DEPTHS: [usize; 7] = [16, 32, 64, 128, 256, 512, 1024];
/// Forward actions of a layer.
const LAYER: f64 = 4.0;
/// Bytes of one activation: 4 × 16 floats.
const UNIT: f64 = 256.0;

/// Memory and time of one strategy at one depth.
#[derive(Clone, Copy)]
struct Growth {
    depth: f64,
    /// Activation memory in units.
    units: f64,
    /// Forward layers run again.
    extra_layers: f64,
}

fn measure(strategy: Strategy, depth: usize) -> Growth {
    measure_graph(residual_chain(depth), strategy, depth)
}

fn measure_graph(graph: Graph, strategy: Strategy, depth: usize) -> Growth {
    let program = program(graph, 0);
    let plan = plan(&program, strategy, Scratch::Best).unwrap();
    let persistent = plan.states.iter().map(|range| range.bytes).sum::<u64>();
    let graph = &program.train.graph;
    let runs = plan.schedules[&Role::First].actions.len();
    let nodes = graph.nodes().iter().filter(|node| !node.op.is_view()).count();
    Growth {
        depth: depth as f64,
        units: (plan.arena_bytes.0 - persistent) as f64 / UNIT,
        extra_layers: (runs - nodes) as f64 / LAYER,
    }
}

fn table(strategy: Strategy, depths: &[usize]) -> Vec<Growth> {
    let rows: Vec<Growth> = depths.iter().map(|&depth| measure(strategy, depth)).collect();
    print(&strategy.to_string(), &rows);
    rows
}

fn print(title: &str, rows: &[Growth]) {
    println!("{title}\n{:>6} {:>10} {:>14} {:>15}", "depth", "units", "extra layers", "extra forwards");
    for Growth { depth, units, extra_layers } in rows {
        println!("{depth:>6} {units:>10.1} {extra_layers:>14.2} {:>15.3}", extra_layers / depth);
    }
}

/// The power of depth that memory follows between the first and the last row.
fn exponent(rows: &[Growth]) -> f64 {
    let (first, last) = (rows[0], rows[rows.len() - 1]);
    (last.units / first.units).ln() / (last.depth / first.depth).ln()
}

#[test]
fn none_keeps_three_activations_a_layer_and_repeats_nothing() {
    for row in table(Strategy::None, &DEPTHS) {
        let kept = 3.0 * row.depth;
        assert!((kept..kept + 2.0).contains(&row.units), "{} units at depth {}", row.units, row.depth);
        assert!(row.extra_layers == 0.0);
    }
}

#[test]
fn full_keeps_one_activation_a_layer_and_repeats_half_of_it() {
    for row in table(Strategy::Full, &DEPTHS) {
        assert!(row.units <= row.depth + 4.0, "{} units at depth {}", row.units, row.depth);
        // The second product and the sum are read by nothing but the next layer, whose input is kept.
        assert!(row.extra_layers == row.depth / 2.0);
    }
}

#[test]
fn groups_of_k_layers_keep_a_kth_of_the_activations() {
    for row in table(Strategy::Every(8), &DEPTHS) {
        let kept = row.depth / 8.0 + 3.0 * 8.0;
        assert!(row.units <= kept + 4.0, "{} units at depth {}, kept {kept}", row.units, row.depth);
        assert!(row.extra_layers <= row.depth);
    }
}

#[test]
fn selective_drops_the_cheap_third_and_repeats_one_action_in_four() {
    for row in table(Strategy::Selective, &DEPTHS) {
        assert!(row.units <= 2.0 * row.depth + 4.0, "{} units at depth {}", row.units, row.depth);
        assert!(row.extra_layers == row.depth / 4.0);
    }
}

#[test]
fn sqrt_follows_the_root_of_depth_at_no_more_than_one_extra_forward() {
    check_root_growth(&table(Strategy::Sqrt, &DEPTHS));
}

#[test]
fn without_blocks_sqrt_finds_its_layers_where_one_value_passes() {
    let measure = |&depth: &usize| measure_graph(plain_chain(depth), Strategy::Sqrt, depth);
    let rows: Vec<Growth> = DEPTHS.iter().map(measure).collect();
    print("sqrt, without blocks", &rows);
    check_root_growth(&rows);
}

fn check_root_growth(rows: &[Growth]) {
    for row in rows {
        let roots = row.units / row.depth.sqrt();
        assert!(roots <= 4.25, "{roots} units a root of depth {}", row.depth);
        assert!(row.extra_layers <= row.depth, "{} layers again at depth {}", row.extra_layers, row.depth);
    }
    let power = exponent(rows);
    assert!((0.4..=0.55).contains(&power), "memory grows as depth to the {power}");
}

#[test]
fn minimal_holds_a_constant_and_repeats_half_the_square_of_depth() {
    let rows = table(Strategy::Minimal, &[16, 32, 64, 128]);
    for row in &rows {
        assert!(row.units == rows[0].units, "{} units at depth {}", row.units, row.depth);
        let halves = row.extra_layers / (row.depth * row.depth / 2.0);
        assert!((0.9..1.1).contains(&halves), "{halves} of n²/2 at depth {}", row.depth);
    }
}

#[test]
fn manual_marks_around_every_layer_are_full() {
    for depth in [16, 128] {
        let (manual, full) = (measure(Strategy::Manual, depth), measure(Strategy::Full, depth));
        assert!(manual.units == full.units && manual.extra_layers == full.extra_layers);
    }
}
