//! The planner on real models over fine grids of budgets: its predictions equal the results.
//!
//! For each model the table's answer is turned into a plan. The plan's own account (its actions' time, its buffers'
//! lifetimes) must agree with the table's prediction and budget.

use plimsoll_graph::{Axes, DType, Graph, Init, Op, differentiate, fuse, work};
use plimsoll_model::{Architecture, Bert, Gpt2, Lora, Preset};

use crate::bytes::{ArenaBytes, TransientBytes};
use crate::device::{Facts, NodeFacts, Scratch, Workspace};
use crate::offload::persistent_bytes;
use crate::optimum::Optimum;
use crate::optimum::chain::ChainOptimum;
use crate::optimum::chain::find::Chain;
use crate::plan::{Tiered, assemble, plan};
use crate::program::{Costed, Program};
use crate::recompute::{Order, Strategy};
use crate::search::{Request, Searcher, search};

/// Rates of a device that is good at products, and its scratch for every action.
const FLOPS: f64 = 100e12;
const BYTES: f64 = 2e12;
const FIXED_SECONDS: f64 = 1e-9;
const SCRATCH: u64 = 4096;

fn program(model: &Architecture, rows: usize, seq: usize) -> Program {
    trained(&model.training(rows, seq).unwrap())
}

fn trained(forward: &Graph) -> Program {
    let graph = fuse(differentiate(forward, forward.output_named("loss").unwrap()).unwrap()).unwrap();
    Program { train: Costed { facts: facts(&graph), graph }, evaluate: None, generate: None }
}

fn facts(graph: &Graph) -> Facts {
    let facts = |node: &plimsoll_graph::Node| {
        let work = work(&node.op, &graph.input_types(node), &graph.output_types(node));
        let seconds = work.matmul_flops / FLOPS + work.bytes / BYTES + FIXED_SECONDS;
        NodeFacts { seconds, lean_seconds: seconds, workspace: Workspace::exactly(SCRATCH) }
    };
    Facts { alignment: 256, nodes: graph.nodes().iter().map(facts).collect(), link: None }
}

/// Tokens a sequence of the two below has.
const SEQ: usize = 64;

fn gpt2() -> Architecture {
    Architecture::from(Gpt2 {
        vocab: 1000,
        positions: SEQ,
        width: 96,
        layers: 12,
        heads: 4,
        norm_epsilon: 1e-5,
        dropout: 0.1,
        documents: false,
    })
}

fn bert() -> Architecture {
    Architecture::from(Bert {
        vocab: 1000,
        positions: SEQ,
        token_types: 2,
        width: 96,
        layers: 12,
        heads: 4,
        ffn: 384,
        norm_epsilon: 1e-12,
        dropout: 0.1,
        labels: None,
    })
}

/// Budgets in even ratios from the smallest that works to the one that keeps everything.
fn grid(planner: &ChainOptimum, count: usize) -> Vec<u64> {
    let most = planner.most_bytes().unwrap();
    let (mut low, mut high) = (0, most);
    while low + 1 < high {
        let middle = u64::midpoint(low, high);
        if planner.seconds(TransientBytes(middle)).is_finite() { high = middle } else { low = middle }
    }
    let ratio = most as f64 / high as f64;
    let at = |index: usize| (high as f64 * ratio.powf(index as f64 / (count - 1) as f64)).ceil() as u64;
    (0..count - 1).map(at).chain([most]).collect()
}

/// Compares the plans of one model with the table's figures, over `count` budgets.
fn check(name: &str, program: &Program, count: usize) {
    let part = &program.train;
    let planner = ChainOptimum::new(&part.graph, &part.facts, Scratch::Best, TransientBytes::MAX).unwrap();
    let (most, options) = (planner.most_bytes().unwrap(), planner.options.list.len());
    println!("{name}: {options} options");
    println!("memory   bytes used   arena   overhead %   gap %");
    let persistent = persistent_bytes(program, 0).unwrap();
    let everything_once = planner.seconds(TransientBytes(most));
    let mut before = f64::INFINITY;
    for bytes in grid(&planner, count) {
        let regions = planner.regions(&part.graph, bytes).unwrap();
        let plan =
            assemble(program, &Order::Regions(regions), Strategy::Auto, Scratch::Best, Tiered::default())
                .unwrap();
        let (predicted, bound) = {
            let bytes = TransientBytes(bytes);
            (planner.seconds(bytes), planner.lower_bound(bytes, None))
        };
        let live = plan.liveness_bound - persistent;
        let of = |bytes: u64, whole: u64| bytes as f64 / whole as f64;
        println!(
            "{:6.3} {:12.4} {:7.4} {:12.2} {:7.2}",
            of(bytes, most),
            of(live, bytes),
            of(plan.arena_bytes.0 - persistent, bytes),
            100.0 * (predicted / everything_once - 1.0),
            100.0 * (predicted / bound - 1.0),
        );
        assert!(live <= bytes, "{name}: {live} bytes alive, {bytes} allowed");
        assert!((plan.micro_batch_seconds / predicted - 1.0).abs() < 1e-9, "{name}, {bytes} bytes");
        assert!(predicted <= before, "{name}: slower in {bytes} bytes than in fewer");
        assert!(predicted >= bound * (1.0 - 1e-12), "{name}: faster in {bytes} bytes than can be");
        before = predicted;
    }
    let keep_all = plan(program, Strategy::None, Scratch::Best).unwrap();
    assert!((before / keep_all.micro_batch_seconds - 1.0).abs() < 1e-9, "{name}: nothing is recomputed");
    assert!(
        (before / planner.lower_bound(TransientBytes(most), None) - 1.0).abs() < 1e-9,
        "{name}: and that is the bound"
    );
}

#[test]
fn plans_of_small_presets_take_the_time_and_at_most_the_bytes_that_the_table_said() {
    // Table and plan for the same bytes; whole searches over all presets are tested in the crate that trains them.
    for (name, count) in
        [("tiny", 60), ("s", 30), ("m", 15), ("gpt2", 8), ("bert-base", 8), ("qwen3-0.6b", 8)]
    {
        let Preset { model, seq, .. } = Preset::from_name(name).unwrap();
        check(name, &program(&model, 2, seq), count);
    }
}

#[test]
fn plans_of_a_gpt2_take_the_time_and_at_most_the_bytes_that_the_table_said() {
    check("gpt2", &program(&gpt2(), 2, SEQ), 30);
}

#[test]
fn plans_of_a_bert_take_the_time_and_at_most_the_bytes_that_the_table_said() {
    check("bert", &program(&bert(), 2, SEQ), 30);
}

#[test]
fn layers_with_adapters_are_planned_by_the_table_but_for_the_first_which_sends_nothing_back() {
    let lora = Lora { dropout: 0.1, ..Lora::default() };
    for model in [Preset::from_name("s").unwrap().model, gpt2(), bert()] {
        let program = trained(&lora.adapt(&model.training(2, SEQ).unwrap()).unwrap());
        let chain = Chain::find(&program.train.graph).unwrap();
        let layers = if matches!(model, Architecture::Llama(_)) { 8 } else { 12 };
        assert_eq!(chain.layers.len(), layers - 1, "{model:?}");
        check("adapters", &program, 8);
    }
}

/// Residual layers of these inner widths behind an embedding.
fn of_widths(widths: &[usize]) -> Program {
    const WIDTH: usize = 64;
    let mut g = Graph::new();
    let ids = g.input("ids", [64], DType::I32); // (N)
    let table = g.param("table", [16, WIDTH], Init::Normal(0.1)); // (V, C)
    let mut x = g.embedding(table, ids); // (N, C)
    for (layer, &width) in widths.iter().enumerate() {
        x = g.block(&format!("layer.{layer}"), |g| {
            let up = g.param("up", [width, WIDTH], Init::Normal(0.1)); // (F, C)
            let down = g.param("down", [WIDTH, width], Init::Normal(0.1)); // (C, F)
            let h = g.linear(x, up, None); // (N, F)
            let h = g.silu(h); // (N, F)
            let h = g.linear(h, down, None); // (N, C)
            g.add(x, h) // (N, C)
        });
    }
    let loss = g.sum(x, &[0, 1]); // ()
    g.output("loss", loss);
    trained(&g.finish().unwrap())
}

#[test]
fn layers_of_several_kinds_are_planned_by_the_table_too() {
    check("first and last differ", &of_widths(&[32, 128, 128, 128, 128, 128, 96]), 20);
    check("two kinds in turn", &of_widths(&[[256, 64]; 6].concat()), 20);
    check(
        "three kinds in turn, other ends",
        &of_widths(&[&[32][..], &[256, 64, 128].repeat(4), &[16]].concat()),
        20,
    );
}

/// Residual layers after an embedding. Each is scaled by the scores of two of eight experts, which are chosen once, and
/// adds two losses to that of the head.
fn routed(layers: usize) -> Program {
    const ROWS: usize = 64;
    const WIDTH: usize = 32;
    const EXPERTS: usize = 8;
    let mut g = Graph::new();
    let ids = g.input("ids", [ROWS], DType::I32); // (N)
    let targets = g.input("targets", [ROWS], DType::I32); // (N)
    let scale = g.loss_scale(); // ()
    let table = g.param("table", [64, WIDTH], Init::Normal(0.1)); // (V, C)
    let mut x = g.embedding(table, ids); // (N, C)
    for layer in 0..layers {
        x = g.block(&format!("layer.{layer}"), |g| {
            let router = g.param("router", [EXPERTS, WIDTH], Init::Normal(0.1)); // (E, C)
            let logits = g.linear(x, router, None); // (N, E)
            let [p, lse] = g.softmax_lse(logits); // (N, E), (N)
            let [weights, _] = g.top_k(p, 2); // (N, k)
            let gate = g.sum(weights, &[1]); // (N)
            let spread = Op::Broadcast { shape: [ROWS, WIDTH].into(), axes: Axes::of([1]) };
            let gate = g.apply(spread, &[gate]); // (N, C)
            let up = g.param("up", [4 * WIDTH, WIDTH], Init::Normal(0.1)); // (F, C)
            let down = g.param("down", [WIDTH, 4 * WIDTH], Init::Normal(0.1)); // (C, F)
            let h = g.linear(x, up, None); // (N, F)
            let h = g.silu(h); // (N, F)
            let h = g.linear(h, down, None); // (N, C)
            let h = g.mul(h, gate); // (N, C)
            let load = g.sum(p, &[0]); // (E)
            for (name, value) in [("balance", load), ("z", lse)] {
                let squares = g.mul(value, value);
                let total = g.sum(squares, &[0]); // ()
                let loss = g.mul(total, scale); // ()
                g.add_loss(name, loss, 0.01);
            }
            g.add(x, h) // (N, C)
        });
    }
    let norm = g.param("norm", [WIDTH], Init::Fill(1.0)); // (C)
    let x = g.rms_norm(x, norm, 1e-6); // (N, C)
    let loss = g.head_loss(x, table, None, targets, scale, -100); // ()
    g.output("loss", loss);
    trained(&g.finish().unwrap())
}

#[test]
fn a_choice_inside_a_layer_is_priced_as_kept_and_layers_that_add_losses_stay_a_chain() {
    let program = routed(6);
    let graph = &program.train.graph;
    let turns = graph.nodes().iter().filter(|node| matches!(node.op, Op::HeadLossGrad { .. })).count();
    assert_eq!((turns, graph.added_losses().len()), (1, 12));
    assert!(graph.nodes().iter().all(|node| !matches!(node.op, Op::HeadLoss(_))), "the head stays fused");
    assert_eq!(Chain::find(graph).unwrap().layers.len(), 6);
    let planner = ChainOptimum::new(graph, &program.train.facts, Scratch::Best, TransientBytes::MAX).unwrap();
    // 64 rows of two weights and two indices; of these, the indices that the backward pass reads.
    let pinned = 2 * 64 * 2 * 4;
    assert_eq!(planner.options.pinned_bytes, pinned);
    assert!(
        planner
            .options
            .list
            .iter()
            .all(|option| option.kept_bytes >= pinned + planner.options.boundary_bytes)
    );
    check("routed", &program, 40);
}

#[test]
fn a_long_chain_of_layers_with_a_choice_keeps_its_word_too() {
    let program = routed(140);
    let planner =
        ChainOptimum::new(&program.train.graph, &program.train.facts, Scratch::Best, TransientBytes::MAX)
            .unwrap();
    assert!(planner.is_long());
    check("routed, long", &program, 12);
}

/// Over budgets from the smallest that works: all are kept, and a larger one is never slower.
fn check_search(name: &str, model: &Architecture, seq: usize, micro_batch: Option<usize>, count: usize) {
    let build = |rows: usize| Ok(program(model, rows, seq));
    let request = |budget| Request {
        global_batch: 4,
        micro_batch,
        strategy: None,
        budget: ArenaBytes(budget),
        slack: 0.0,
    };
    let at = |budget: u64| search(request(budget), build);
    let most = at(u64::MAX).unwrap().plan.arena_bytes.0;
    let least = Searcher::once(build).smallest(request(0)).unwrap().arena_bytes.0;
    let mut before = f64::INFINITY;
    for index in 0..count {
        let budget = least + (most - least) * index as u64 / (count as u64 - 1);
        let choice = at(budget).unwrap();
        let seconds = choice.step_seconds();
        assert!(choice.plan.arena_bytes.0 <= budget, "{name}: {} of {budget}", choice.plan.arena_bytes.0);
        assert!(seconds <= before * (1.0 + 1e-12), "{name}: {budget} bytes: {seconds} s, before {before} s");
        if let Some(bound) = choice.lower_bound_seconds {
            assert!(seconds >= bound * (1.0 - 1e-12), "{name}: {budget} bytes: {seconds} s, bound {bound} s");
        }
        before = seconds;
    }
    assert_eq!(before.to_bits(), {
        let choice = at(u64::MAX).unwrap();
        choice.step_seconds().to_bits()
    });
}

#[test]
fn more_memory_is_never_slower_and_every_budget_is_kept() {
    let tiny = Preset::from_name("tiny").unwrap();
    let (tiny, seq) = (tiny.model, tiny.seq);
    check_search("tiny", &tiny, seq, Some(2), 40);
    check_search("tiny", &tiny, seq, None, 20);
    check_search("gpt2", &gpt2(), SEQ, Some(2), 8);
    check_search("bert", &bert(), SEQ, Some(2), 8);
}

/// Limits are half as much again as was counted.
#[test]
fn planning_32_and_80_layers_compares_few_options_and_slots() {
    for (name, most_options, most_compared) in
        [("llama-3.1-8b", 120, 110_000_000), ("llama-3.1-70b", 125, 335_000_000)]
    {
        let program = program(&Preset::from_name(name).unwrap().model, 1, 4096);
        let part = &program.train;
        let planner =
            ChainOptimum::new(&part.graph, &part.facts, Scratch::Best, TransientBytes::MAX).unwrap();
        let regions = planner.regions(&part.graph, planner.most_bytes().unwrap() / 4).unwrap();
        let plan =
            assemble(&program, &Order::Regions(regions), Strategy::Auto, Scratch::Best, Tiered::default())
                .unwrap();
        assert!(plan.arena_bytes.0 as f64 <= plan.liveness_bound as f64 * 1.05);
        let (options, compared) = (planner.options.list.len(), planner.table().compared());
        println!("{name}: {options} options, {compared} slots compared");
        assert!(options <= most_options && compared <= most_compared, "{name}: {options}, {compared}");
    }
}

#[test]
fn the_search_over_all_micro_batches_builds_each_program_at_most_once_and_looks_at_few_runs() {
    let model = Preset::from_name("llama-3.1-8b").unwrap().model;
    let one = program(&model, 1, 4096);
    let planner =
        ChainOptimum::new(&one.train.graph, &one.train.facts, Scratch::Best, TransientBytes::MAX).unwrap();
    let whole = planner.most_bytes().unwrap();
    for (share, most_runs) in [(0.2, 9_500), (4.0, 2_100)] {
        let budget = persistent_bytes(&one, 0).unwrap() + (whole as f64 * share) as u64;
        let request = Request {
            global_batch: 32,
            micro_batch: None,
            strategy: None,
            budget: ArenaBytes(budget),
            slack: 0.0,
        };
        let mut searcher = Searcher::once(|rows| Ok(program(&model, rows, 4096)));
        let choice = searcher.search(request).unwrap();
        let work = searcher.work();
        println!("{share} of one row's memory: {} rows, {work:?}", choice.micro_batch);
        assert!(choice.plan.arena_bytes.0 <= budget);
        // Six micro-batches divide the global batch, each with a second program in tiles.
        assert!(work.programs <= 12 && work.runs <= most_runs, "{share}: {work:?}");
    }
}
