//! Chains of hundreds of layers: planning grows with their length and not with its square.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_graph::{Graph, GraphError, Node, Phase};
use plimsoll_plan::{
    ArenaBytes, Choice, Costed, Facts, Link, NodeFacts, Program, Request, Role, SearchError, Searcher,
    Strategy, Tier, Workspace,
};

mod support;
use support::{llama, trained};

/// A disk of a stated speed.
const DISK: Link = Link {
    tier: Tier::Disk,
    room: 1 << 40,
    block: 4096,
    out_rate: 1.5e9,
    in_rate: 2e9,
    latency: 1e-4,
    toll: 2e-11,
};

fn facts(graph: &Graph, link: Option<Link>) -> Facts {
    let node = |index: usize| {
        let seconds = 1e-5 * (1 + index % 3) as f64;
        NodeFacts { seconds, lean_seconds: seconds, workspace: Workspace::exactly(0) }
    };
    Facts { alignment: 64, nodes: (0..graph.nodes().len()).map(node).collect(), link }
}

fn build(layers: usize, link: Option<Link>) -> impl FnMut(usize) -> Result<Program, GraphError> {
    move |rows| {
        let graph = trained(&llama(layers).training(rows, 16)?);
        let facts = facts(&graph, link);
        Ok(Program { train: Costed { graph, facts }, evaluate: None, generate: None })
    }
}

fn request(budget: u64) -> Request {
    Request { global_batch: 2, micro_batch: None, strategy: None, budget: ArenaBytes(budget), slack: 0.0 }
}

/// Runs of a micro-batch that recomputes every forward node once.
fn twice(choice: &Choice) -> usize {
    let count = |node: &Node| match node.phase {
        Phase::Forward => 2,
        Phase::Backward => 1,
        Phase::Update => 0,
    };
    let graph = &choice.program.train.graph;
    graph.nodes().iter().filter(|node| !node.op.is_view()).map(count).sum()
}

#[test]
fn the_smallest_plan_of_a_long_chain_repeats_one_forward_pass_and_is_found_again() {
    for layers in [120, 300] {
        let mut searcher = Searcher::once(build(layers, None));
        let Err(SearchError::Budget { smallest, .. }) = searcher.search(request(1)) else {
            panic!("a plan in a byte")
        };
        let choice = searcher.search(request(smallest.arena_bytes.0)).unwrap();
        assert!(choice.plan.arena_bytes.0 <= smallest.arena_bytes.0);
        let runs = choice.plan.schedules[&Role::First].actions.len();
        // The limit is one of time, so there may be a few more runs of nodes that take little.
        let most = twice(&choice) * 21 / 20;
        assert!(runs <= most, "{runs} runs of {layers} layers, {most} at most");
    }
}

#[test]
fn keeping_nothing_of_a_long_chain_is_refused_by_name() {
    let mut searcher = Searcher::once(build(300, None));
    let minimal = Request { strategy: Some(Strategy::Minimal), ..request(1 << 40) };
    let refused = searcher.search(minimal).unwrap_err();
    assert!(matches!(refused, SearchError::TooManyRuns { .. }), "{refused}");
    assert!(refused.to_string().contains("`minimal`"), "{refused}");
    assert!(Searcher::once(build(40, None)).search(minimal).is_ok(), "a short chain may");
}

#[test]
fn more_memory_is_never_slower_on_a_long_chain_and_the_bound_holds() {
    const BUDGETS: u64 = 8;
    for link in [None, Some(DISK)] {
        let mut searcher = Searcher::once(build(120, link));
        let least = searcher.smallest(request(0)).unwrap().arena_bytes.0;
        let whole = searcher.search(request(u64::MAX)).unwrap();
        let (most, once) = (whole.plan.arena_bytes.0, whole.step_seconds());
        let mut slowest = f64::INFINITY;
        for budget in (0..=BUDGETS).map(|step| least + (most - least) * step / BUDGETS) {
            let choice = searcher.search(request(budget)).unwrap();
            let (seconds, bound) = (choice.step_seconds(), choice.lower_bound_seconds.unwrap());
            assert!(choice.plan.arena_bytes.0 <= budget, "{} bytes in {budget}", choice.plan.arena_bytes.0);
            assert!(seconds <= slowest, "{seconds} s in {budget} bytes, {slowest} s in fewer");
            assert!(
                once <= bound * (1.0 + 1e-9) && bound <= seconds,
                "{seconds} s in {budget} bytes, bound {bound} s"
            );
            slowest = seconds;
        }
        assert!((slowest - once).abs() < 1e-9, "with room for it nothing is recomputed");
    }
}

/// The work of a refusal and of a search that finds a plan, for each layer of a chain.
fn work_for_a_layer(layers: usize, link: Option<Link>) -> [f64; 2] {
    let mut refused = Searcher::once(build(layers, link));
    let Err(SearchError::Budget { smallest, .. }) = refused.search(request(1)) else {
        panic!("a plan in a byte")
    };
    let mut fits = Searcher::once(build(layers, link));
    fits.search(request(smallest.arena_bytes.0 * 5 / 4)).unwrap();
    let work = [refused.work(), fits.work()];
    // Programs are built a fixed number of times, whatever their length.
    assert!(work.iter().all(|work| work.programs <= 16), "{layers} layers: {work:?}");
    work.map(|work| work.runs as f64 / layers as f64)
}

#[test]
fn the_work_of_a_search_is_proportional_to_the_length_of_the_chain_with_and_without_a_disk() {
    for link in [None, Some(DISK)] {
        let short = work_for_a_layer(120, link);
        for layers in [300, 600, 1000] {
            let long = work_for_a_layer(layers, link);
            let grown = long.iter().zip(&short).map(|(long, short)| long / short);
            let most = grown.fold(0.0, f64::max);
            assert!(most <= 2.0, "{layers} layers, disk {}: {long:?}, {short:?}", link.is_some());
        }
    }
}

#[test]
fn half_the_activations_of_a_long_chain_cost_hardly_more_than_the_bound_says() {
    let mut searcher = Searcher::once(build(300, None));
    let least = searcher.smallest(request(0)).unwrap().arena_bytes.0;
    let most = searcher.search(request(u64::MAX)).unwrap().plan.arena_bytes.0;
    let choice = searcher.search(request(least.midpoint(most))).unwrap();
    let gap = choice.step_seconds() / choice.lower_bound_seconds.unwrap() - 1.0;
    assert!(gap < 0.02, "{:.2} % above the bound", 100.0 * gap);
}
