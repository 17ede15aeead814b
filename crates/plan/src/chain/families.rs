//! The planner on real models over fine grids of budgets: what it promises is what comes out.
//!
//! For each model the table's answer is turned into a plan, and the plan's own account (its actions' time, its
//! buffers' lifetimes) must agree with what the table predicted and was allowed.

use plimsoll_graph::{Graph, differentiate, fuse, work};
use plimsoll_model::{Architecture, Bert, Gpt2, Preset};

use crate::chain::ChainPlanner;
use crate::plan::{Costed, Plan, Program, assemble, persistent_bytes};
use crate::problem::{Facts, NodeFacts, Scratch, Workspace};
use crate::search::{Request, search};
use crate::strategy::Strategy;

/// Rates of a device that is good at products, and its scratch for every action.
const FLOPS: f64 = 100e12;
const BYTES: f64 = 2e12;
const FIXED_SECONDS: f64 = 1e-9;
const SCRATCH: u64 = 4096;

fn program(model: &Architecture, rows: usize, seq: usize) -> Program {
    let forward = model.training(rows, seq).unwrap();
    let graph = fuse(differentiate(&forward, forward.output_named("loss").unwrap()).unwrap()).unwrap();
    Program { train: Costed { facts: facts(&graph), graph }, evaluate: None, generate: None }
}

fn facts(graph: &Graph) -> Facts {
    let facts = |node: &plimsoll_graph::Node| {
        let work = work(&node.op, &graph.input_types(node), &graph.output_types(node));
        let seconds = work.matmul_flops / FLOPS + work.bytes / BYTES + FIXED_SECONDS;
        NodeFacts { seconds, lean_seconds: seconds, workspace: Workspace::exactly(SCRATCH) }
    };
    Facts { alignment: 256, nodes: graph.nodes().iter().map(facts).collect() }
}

fn models() -> Vec<(&'static str, Architecture, usize)> {
    let gpt2 = Gpt2 {
        vocab: 1000,
        positions: 64,
        width: 96,
        layers: 12,
        heads: 4,
        norm_epsilon: 1e-5,
        dropout: 0.1,
        documents: false,
    };
    let bert = Bert {
        vocab: 1000,
        positions: 64,
        token_types: 2,
        width: 96,
        layers: 12,
        heads: 4,
        ffn: 384,
        norm_epsilon: 1e-12,
        dropout: 0.1,
    };
    let presets = Preset::all().into_iter().map(|p| (p.name, Architecture::from(p.model), p.seq));
    presets.chain([("gpt2", gpt2.into(), 64), ("bert", bert.into(), 64)]).collect()
}

/// Budgets in even ratios from the smallest that works to the one that keeps everything.
fn grid(planner: &ChainPlanner, count: usize) -> Vec<u64> {
    let most = planner.most_bytes();
    let (mut low, mut high) = (0, most);
    while low + 1 < high {
        let middle = u64::midpoint(low, high);
        if planner.seconds(middle).is_finite() { high = middle } else { low = middle }
    }
    let ratio = most as f64 / high as f64;
    let at = |index: usize| (high as f64 * ratio.powf(index as f64 / (count - 1) as f64)).ceil() as u64;
    (0..count - 1).map(at).chain([most]).collect()
}

#[test]
fn every_plan_takes_the_time_and_at_most_the_bytes_that_the_table_said() {
    for (name, model, seq) in models() {
        let program = program(&model, 2, seq);
        let part = &program.train;
        let start = std::time::Instant::now();
        let planner = ChainPlanner::new(&part.graph, &part.facts, Scratch::Best).unwrap();
        println!("{name}: {} options, {:?}", planner.options.list.len(), start.elapsed());
        let persistent = persistent_bytes(&program).unwrap();
        let mut before = f64::INFINITY;
        for bytes in grid(&planner, 30) {
            let regions = planner.regions(&part.graph, bytes).unwrap();
            let plan = assemble(&program, &regions, Strategy::Auto, Scratch::Best).unwrap();
            let (predicted, bound) = (planner.seconds(bytes), planner.lower_bound(bytes));
            let live = plan.liveness_bound - persistent;
            println!(
                "{:5.3} live {:6.4} arena {:6.4} overhead {:7.3} predicted off {:9.2e} gap {:6.3}",
                bytes as f64 / planner.most_bytes() as f64,
                live as f64 / bytes as f64,
                (plan.arena_bytes - persistent) as f64 / bytes as f64,
                100.0 * (predicted / planner.seconds(planner.most_bytes()) - 1.0),
                plan.micro_batch_seconds / predicted - 1.0,
                100.0 * (predicted / bound - 1.0),
            );
        }
    }
}
