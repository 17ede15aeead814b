//! Random graphs: the certificate is compared with every known schedule, by the bytes that are really alive in it.

use plimsoll_graph::{DType, Graph, Init, Value, differentiate};

use super::GraphOptimum;
use crate::bytes::{ArenaBytes, TransientBytes};
use crate::device::{Facts, NodeFacts, Scratch, Workspace};
use crate::offload::persistent_bytes;
use crate::optimum::Optimum;
use crate::plan::{Plan, Tiered, assemble};
use crate::program::{Costed, Program};
use crate::recompute::{Order, Strategy};
use crate::remat::oracle::Dice;
use crate::search::{Request, Searcher};

const ROWS: usize = 8;
const WIDTHS: [usize; 3] = [16, 32, 64];

/// A graph of some twenty nodes that read any of those before them, with scratch and whole seconds.
fn random_program(seed: u64) -> Program {
    let dice = &mut Dice(seed);
    let mut g = Graph::new();
    let mut values: Vec<Value> = vec![g.input("x", [ROWS, WIDTHS[0]], DType::F32)];
    for index in 0..10 + dice.below(12) {
        // The newest node is chosen more often than others, so that graphs are deep.
        let back = if dice.below(2) == 0 { 0 } else { dice.below(values.len()) };
        let x = values[values.len() - 1 - back];
        let same: Vec<Value> = values.iter().copied().filter(|&y| g.shape(y) == g.shape(x)).collect();
        let other = same[dice.below(same.len())];
        let width = g.shape(x)[1];
        let to = WIDTHS[dice.below(WIDTHS.len())];
        let next = match dice.below(9) {
            0..=2 => {
                let w = g.param(&format!("w{index}"), [to, width], Init::Normal(0.1));
                g.linear(x, w, None)
            }
            3 => g.silu(x),
            4 => g.tanh(x),
            5 => {
                let w = g.param(&format!("w{index}"), [width], Init::Fill(1.0));
                g.rms_norm(x, w, 1e-6)
            }
            6 => g.mul(x, other),
            7 => g.swiglu(x, other),
            _ => g.add(x, other),
        };
        values.push(next);
    }
    let ends: Vec<Value> = values.iter().rev().take(3).map(|&value| g.sum(value, &[0, 1])).collect();
    let loss = ends.into_iter().reduce(|a, b| g.add(a, b)).unwrap();
    g.output("loss", loss);
    if dice.below(3) == 0 {
        g.output("peek", values[1 + dice.below(values.len() - 1)]);
    }
    let graph = differentiate(&g.finish().unwrap(), loss).unwrap();
    let node = |_| {
        let (seconds, least) = (1.0 + dice.below(9) as f64, 64 * dice.below(4) as u64);
        let workspace = Workspace { least, best: least + 64 * dice.below(8) as u64 };
        NodeFacts { seconds, lean_seconds: seconds + dice.below(2) as f64, workspace }
    };
    let nodes = graph.node_ids().map(node).collect();
    let facts = Facts { alignment: 64, nodes, link: None };
    Program { train: Costed { graph, facts }, evaluate: None, generate: None }
}

#[test]
fn no_real_schedule_is_faster_than_the_bound_for_the_bytes_it_has_alive() {
    let (mut met, mut recomputed) = (0, 0);
    for seed in 0..60 {
        let program = random_program(seed);
        let graph = &program.train.graph;
        let persistent = persistent_bytes(&program, 0).unwrap();
        let planners = [Scratch::Best, Scratch::Least]
            .map(|scratch| (scratch, GraphOptimum::new(&program.train, scratch).unwrap()));
        let once = program.once_seconds(Scratch::Best, 1);
        for (scratch, planner) in &planners {
            let mut judge = |plan: &Plan| {
                let alive = plan.liveness_bound - persistent;
                let (seconds, bound) =
                    (plan.micro_batch_seconds, planner.lower_bound(TransientBytes(alive), None));
                assert!(
                    bound <= seconds + 1e-9,
                    "seed {seed}: {seconds} s in {alive} bytes, bound {bound} s"
                );
                met += usize::from(bound > seconds - 1e-9);
                recomputed += usize::from(seconds > once);
            };
            for strategy in Strategy::LADDER {
                let order = Order::named(&program.train.graph, strategy);
                judge(&assemble(&program, &order, strategy, *scratch, Tiered::default()).unwrap());
            }
            let (least, most) = (planner.enough_bytes(), planner.most_bytes);
            for step in 0..=8 {
                let bytes = least + (most - least) * step / 8;
                let order = planner.order(graph, TransientBytes(bytes)).unwrap();
                let plan = assemble(&program, &order, Strategy::Auto, *scratch, Tiered::default()).unwrap();
                assert!(
                    (plan.micro_batch_seconds - planner.seconds(TransientBytes(bytes))).abs() < 1e-9,
                    "seed {seed}"
                );
                judge(&plan);
            }
            // An output that the planner takes to be written in place may not be: never more than one node writes.
            let order = planner.order(graph, TransientBytes(most)).unwrap();
            let kept = assemble(&program, &order, Strategy::Auto, *scratch, Tiered::default()).unwrap();
            let written = 2 * (ROWS * WIDTHS[2] * 4) as u64;
            assert!(kept.liveness_bound - persistent <= most + written, "seed {seed}: keeping everything");
        }
    }
    assert!(
        met > 200 && recomputed > 300,
        "the bound was met {met} times, {recomputed} schedules recompute something"
    );
}

#[test]
fn more_memory_is_never_slower_on_random_graphs() {
    const BUDGETS: u64 = 24;
    for seed in 100..116 {
        let build = |_: usize| Ok(random_program(seed));
        let request = |budget| {
            let budget = ArenaBytes(budget);
            Request { global_batch: 1, micro_batch: Some(1), strategy: None, budget, slack: 0.0 }
        };
        let mut searcher = Searcher::new(build);
        let smallest = searcher.smallest(request(0)).unwrap();
        let named = searcher.try_named(1, 1, &[Strategy::None]).unwrap();
        let (least, most) = (smallest.arena_bytes.0, named[0].arena_bytes.0);
        let mut slowest = f64::INFINITY;
        for budget in (0..=BUDGETS).map(|step| least + (most - least) * step / BUDGETS) {
            let choice = searcher.search(request(budget)).unwrap();
            let (seconds, bound) = (choice.step_seconds(), choice.lower_bound_seconds.unwrap());
            assert!(choice.plan.arena_bytes.0 <= budget, "seed {seed}");
            assert!(seconds <= slowest, "seed {seed}: {seconds} s in {budget} bytes, {slowest} s in fewer");
            assert!(bound <= seconds + 1e-9, "seed {seed}: {seconds} s in {budget} bytes, bound {bound} s");
            slowest = seconds;
        }
        let once = random_program(seed).once_seconds(Scratch::Best, 1);
        assert!((slowest - once).abs() < 1e-9, "seed {seed}: with room for it nothing is recomputed");
    }
}
