//! Budgets for a model whose nodes run faster with more scratch.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_graph::GraphError;
use plimsoll_plan::{
    ArenaBytes, Choice, Costed, Plan, Program, Request, Role, Scratch, SearchError, Searcher, Strategy,
    Workspace, plan, search, try_all,
};

mod support;
use support::{families, program, residual_chain, trained};

/// A chain whose every node can use 8 KiB of scratch and can do with 1. Rows do not matter to it, so a
/// smaller micro-batch only takes more of them.
#[allow(clippy::unnecessary_wraps, reason = "the shape of a builder that search calls")]
fn build(_rows: usize) -> Result<Program, GraphError> {
    let mut program = program(residual_chain(16), 0);
    for node in &mut program.train.facts.nodes {
        node.workspace = Workspace { least: 1 << 10, best: 8 << 10 };
        node.lean_seconds = 1.5;
    }
    Ok(program)
}

fn request(budget: u64) -> Request {
    Request { global_batch: 4, micro_batch: None, strategy: None, budget: ArenaBytes(budget), slack: 0.0 }
}

fn arena(strategy: Strategy, scratch: Scratch) -> u64 {
    plan(&build(4).unwrap(), strategy, scratch).unwrap().arena_bytes.0
}

#[test]
fn with_room_for_it_nothing_is_recomputed_and_nothing_starves() {
    let Choice { plan, micro_batch, .. } = search(request(u64::MAX), build).unwrap();
    assert_eq!((plan.scratch, micro_batch), (Scratch::Best, 4));
    let once = plimsoll_plan::plan(&build(4).unwrap(), Strategy::None, Scratch::Best).unwrap();
    let runs = |plan: &Plan| plan.schedules[&Role::First].actions.len();
    assert_eq!(runs(&plan), runs(&once));
}

#[test]
fn memory_that_brings_less_than_the_slack_is_spared() {
    let fastest = search(request(u64::MAX), build).unwrap();
    let spared = search(Request { slack: 0.01, ..request(u64::MAX) }, build).unwrap();
    let seconds = |choice: &Choice| choice.step_seconds();
    assert!(spared.plan.arena_bytes.0 < fastest.plan.arena_bytes.0);
    assert!(seconds(&spared) <= 1.01 * seconds(&fastest));
}

#[test]
fn every_budget_is_kept_and_a_larger_one_is_never_slower() {
    let smallest = arena(Strategy::Minimal, Scratch::Least);
    let largest = arena(Strategy::None, Scratch::Best);
    let mut slowest = f64::INFINITY;
    for budget in (smallest..=largest).step_by(512) {
        let Choice { plan, accumulation, .. } = search(request(budget), build).unwrap();
        assert!(plan.arena_bytes.0 <= budget);
        let seconds = plan.step_seconds(accumulation);
        assert!(seconds <= slowest, "{budget} bytes: {seconds} s, with less memory {slowest} s");
        slowest = seconds;
    }
}

#[test]
fn an_impossible_budget_is_refused_with_the_smallest_that_works() {
    let error = search(request(1000), build).unwrap_err();
    let SearchError::Budget { budget, smallest, hints } = error else { panic!("{error}") };
    let all = try_all(4, &[1, 2, 4], &Strategy::LADDER, build).unwrap();
    assert_eq!(budget, ArenaBytes(1000));
    assert_eq!(
        Searcher::once(build).smallest(request(1000)).unwrap(),
        smallest,
        "the question has the same answer"
    );
    assert_eq!(smallest.arena_bytes.0, all.iter().map(|tried| tried.arena_bytes.0).min().unwrap());
    assert!(hints.is_empty(), "nothing was fixed, so there is nothing to let go of");
    assert!(search(request(smallest.arena_bytes.0), build).is_ok(), "what is called the smallest works");
}

#[test]
fn hints_are_plans_that_fit() {
    let budget = arena(Strategy::Full, Scratch::Best);
    let fixed = Request { strategy: Some(Strategy::None), ..request(budget) };
    let SearchError::Budget { hints, .. } = search(fixed, build).unwrap_err() else { panic!() };
    assert!(!hints.is_empty());
    for hint in hints {
        let request =
            Request { strategy: Some(hint.strategy), micro_batch: Some(hint.micro_batch), ..request(budget) };
        assert!(search(request, build).unwrap().plan.arena_bytes.0 <= budget);
    }
}

/// A Llama whose nodes take a constant time plus one in proportion to their output: neither the largest nor the smallest
/// micro-batch wins in every budget.
fn build_llama(rows: usize) -> Result<Program, GraphError> {
    let [(_, llama), ..] = families();
    let mut program = program(trained(&llama.training(rows, 16)?), 256);
    let Costed { graph, facts } = &mut program.train;
    for (node, facts) in graph.nodes().iter().zip(&mut facts.nodes) {
        let written: usize = node.outputs.iter().map(|&value| graph.shape(value).elements()).sum();
        facts.seconds = 1.0 + written as f64 / 1024.0;
        facts.lean_seconds = facts.seconds;
    }
    Ok(program)
}

#[test]
fn passing_over_micro_batches_loses_nothing() {
    let pinned = |budget, micro_batch| {
        let request = Request { global_batch: 8, micro_batch: Some(micro_batch), ..request(budget) };
        match search(request, build_llama) {
            Ok(choice) => choice.step_seconds(),
            Err(SearchError::Budget { .. }) => f64::INFINITY,
            Err(error) => panic!("{error}"),
        }
    };
    let smallest = Searcher::once(build_llama).smallest(Request { global_batch: 8, ..request(0) }).unwrap();
    let mut chosen = Vec::new();
    for step in 0..12 {
        let budget = smallest.arena_bytes.0 + step * 40_000;
        let free = search(Request { global_batch: 8, ..request(budget) }, build_llama).unwrap();
        let best = [1, 2, 4, 8]
            .map(|micro_batch| pinned(budget, micro_batch))
            .into_iter()
            .fold(f64::INFINITY, f64::min);
        assert!((free.step_seconds() - best).abs() < 1e-9 * best, "{budget} bytes");
        chosen.push(free.micro_batch);
    }
    chosen.dedup();
    assert!(chosen.len() > 1, "{chosen:?}: the budgets decide something");
}
