//! Promises of the pass, on graphs with every kind of gap: the judge accepts its schedules, limits are kept, and the
//! time equals that of an independent account.

use plimsoll_graph::{differentiate, fuse, work};
use plimsoll_model::Preset;

use super::*;
use crate::bytes::{ArenaBytes, TransientBytes};
use crate::device::{NodeFacts, Tier, Workspace};
use crate::offload::persistent_bytes;
use crate::plan::{Tiered, assemble};
use crate::program::{Costed, Program, Role};
use crate::recompute::{Order, Strategy, micro_batch};
use crate::search::{Choice, Request, SearchError, Searcher, search};

const SCRATCH: u64 = 4096;

fn link(rate: f64) -> Link {
    let (tier, room, block) = (Tier::Disk, 1 << 40, 4096);
    Link { tier, room, block, out_rate: rate, in_rate: rate, latency: 1e-6, toll: 1e-11 }
}

fn program(rows: usize, rate: f64) -> Program {
    offered(rows, Some(link(rate)))
}

fn offered(rows: usize, link: Option<Link>) -> Program {
    let preset = Preset::from_name("tiny").unwrap();
    let forward = preset.model.training(rows, preset.seq).unwrap();
    let loss = forward.output_named("loss").unwrap();
    let graph = fuse(differentiate(&forward, loss).unwrap()).unwrap();
    let facts = |node: &plimsoll_graph::Node| {
        let work = work(&node.op, &graph.input_types(node), &graph.output_types(node));
        let seconds = work.matmul_flops / 100e9 + work.bytes / 12e9 + 3e-6;
        NodeFacts { seconds, lean_seconds: seconds, workspace: Workspace::exactly(SCRATCH) }
    };
    let nodes = graph.nodes().iter().map(facts).collect();
    let facts = Facts { alignment: 64, nodes, link };
    Program { train: Costed { graph, facts }, evaluate: None, generate: None }
}

fn runs(program: &Program, strategy: Strategy) -> (Sequence, Transfers) {
    let part = &program.train;
    let sequence = micro_batch(&part.graph, &Order::named(&part.graph, strategy));
    let transfers = Transfers::new(&part.graph, &part.facts, Scratch::Best, &sequence).unwrap();
    (sequence, transfers)
}

#[test]
fn every_limit_is_kept_and_the_judge_and_the_clock_agree() {
    for rate in [1e8, 2e9] {
        let program = program(2, rate);
        let persistent = persistent_bytes(&program, 0).unwrap();
        for strategy in [Strategy::None, Strategy::Selective, Strategy::Full, Strategy::Minimal] {
            let (sequence, transfers) = runs(&program, strategy);
            let (least, most) = (transfers.least_bytes(), transfers.most_bytes());
            let regions = Order::named(&program.train.graph, strategy);
            for share in 0..=10 {
                let limit = least + (most - least) * share / 10;
                let seconds = transfers.seconds_within(limit).unwrap();
                assert!(seconds >= transfers.lower_bound(limit) * (1.0 - 1e-12));
                // The judge has the last word in there.
                let tiered = Tiered { limit: Some(TransientBytes(limit)), away: 0 };
                let plan = assemble(&program, &regions, strategy, Scratch::Best, tiered).unwrap();
                assert!(plan.liveness_bound - persistent <= limit, "{strategy} in {limit}");
                assert!((plan.micro_batch_seconds / seconds - 1.0).abs() < 1e-9, "{strategy}");
            }
            assert!(transfers.within(most, &sequence).unwrap().moves.is_empty(), "nothing has to go");
        }
    }
}

/// A request with the micro-batch pinned.
fn pinned(budget: u64) -> Request {
    Request { global_batch: 4, micro_batch: Some(2), strategy: None, budget: ArenaBytes(budget), slack: 0.0 }
}

fn find(link: Option<Link>, budget: u64) -> Result<Choice, SearchError> {
    search(pinned(budget), |rows| Ok(offered(rows, link)))
}

fn smallest(link: Option<Link>) -> u64 {
    let mut searcher = Searcher::once(|rows: usize| Ok(offered(rows, link)));
    searcher.smallest(pinned(0)).unwrap().arena_bytes.0
}

#[test]
fn more_memory_is_never_slower_and_a_tier_never_does_harm() {
    let most = find(None, u64::MAX).unwrap().plan.arena_bytes.0;
    let without_tier = smallest(None);
    for rate in [1e8, 1e9] {
        let link = Some(link(rate));
        let least = smallest(link);
        assert!(least < without_tier, "{least} bytes with a tier, {without_tier} without");
        let mut before = f64::INFINITY;
        for index in 0..8 {
            let budget = least + (most - least) * index / 7;
            let choice = find(link, budget).unwrap();
            let seconds = choice.step_seconds();
            assert!(choice.plan.arena_bytes.0 <= budget, "{} of {budget}", choice.plan.arena_bytes.0);
            assert!(seconds <= before, "{budget} bytes: {seconds} s, before {before} s");
            let bound = choice.lower_bound_seconds.unwrap();
            assert!(seconds >= bound * (1.0 - 1e-12), "{budget} bytes: {seconds} s, bound {bound} s");
            let alone = find(None, budget);
            let alone = alone.map_or(f64::INFINITY, |alone| alone.step_seconds());
            assert!(seconds <= alone * (1.0 + 1e-12), "{budget} bytes: {seconds} s, without {alone} s");
            before = seconds;
        }
    }
}

#[test]
fn nothing_is_sent_where_nothing_is_offered_or_nothing_has_to_go() {
    let without = find(None, smallest(None) * 2).unwrap();
    assert!(without.plan.schedules.values().all(|schedule| schedule.copies.is_empty()));
    let enough = find(Some(link(1e9)), u64::MAX).unwrap();
    assert!(enough.plan.schedules.values().all(|schedule| schedule.copies.is_empty()));
}

#[test]
fn a_tier_without_room_is_not_written_to() {
    let full = Link { room: 4096, ..link(1e12) };
    let budget = smallest(None);
    let choice = find(Some(full), budget).unwrap();
    for schedule in choice.plan.schedules.values() {
        let end = |copy: &crate::schedule::Copy| Some(copy.tier()?.1 + schedule.buffer(copy.buffer()?).bytes);
        let ends = schedule.copies.iter().filter_map(end);
        assert!(ends.max().unwrap_or(0) <= full.room);
    }
}

#[test]
fn a_link_that_carries_everything_in_time_costs_no_time() {
    let program = offered(2, Some(Link { latency: 0.0, toll: 0.0, ..link(1e12) }));
    let (_, transfers) = runs(&program, Strategy::None);
    for share in 0..=4 {
        let limit = transfers.least_bytes() + (transfers.most_bytes() - transfers.least_bytes()) * share / 4;
        let stall = transfers.seconds_within(limit).unwrap() / transfers.busy_seconds() - 1.0;
        assert!(stall < 1e-3, "{limit} bytes: {stall} of the time stands still");
    }
}

#[test]
fn a_strategy_that_is_fixed_stays_and_what_it_keeps_may_be_sent_away() {
    let request = |budget| Request {
        global_batch: 4,
        micro_batch: Some(2),
        strategy: Some(Strategy::Full),
        budget: ArenaBytes(budget),
        slack: 0.0,
    };
    let alone = search(request(u64::MAX), |rows| Ok(offered(rows, None))).unwrap().plan.arena_bytes.0;
    let less = alone - alone / 20;
    assert!(search(request(less), |rows| Ok(offered(rows, None))).is_err());
    let choice = search(request(less), |rows| Ok(program(rows, 1e9))).unwrap();
    assert_eq!(choice.plan.strategy, Strategy::Full);
    assert!(choice.plan.arena_bytes.0 <= less);
    assert!(!choice.plan.schedules[&Role::Further].copies.is_empty());
}
