//! Promises of the search where state may be offloaded: the judge accepts every residency, limits are kept, times equal
//! those of an independent account, and more memory is never slower.

mod exchanges;
mod mutations;

use plimsoll_graph::op::{AdamW, Moments, Stored, Weights};
use plimsoll_graph::{
    DType, Graph, Op, Phase, StateId, StateKind, differentiate, fuse, gradient_name, interleave, work,
};
use plimsoll_model::{Architecture, Gpt2, Preset};

use super::*;
use crate::bytes::{ArenaBytes, TransientBytes};
use crate::device::{Direction, Facts, Link, NodeFacts, Tier, Workspace};
use crate::layout::live_bytes;
use crate::offload::{KnownUpdates, Residency, ResidentRuns, StateOrder, rungs};
use crate::plan::{Plan, assemble};
use crate::program::{Program, Purpose};
use crate::recompute::{Order, Strategy, micro_batch, update};
use crate::schedule::sequence::Sequence;
use crate::search::plans::smallest_plans;
use crate::search::tables::ProgramTables;
use crate::search::work::WorkCount;
use crate::search::{Choice, Request, Searcher, search};

fn link(rate: f64) -> Link {
    let (tier, room, block) = (Tier::Host, 1 << 40, 4096);
    Link { tier, room, block, out_rate: rate, in_rate: rate, latency: 1e-6, toll: 1e-11 }
}

/// Appends an update with two moments for every parameter.
fn with_update(mut graph: Graph, in_backward: bool) -> Graph {
    graph.set_phase(Phase::Update);
    let [lr, step, scale] = ["lr", "step", "scale_of_update"].map(|name| graph.input(name, [], DType::F32));
    for parameter in (0..graph.states().len() as u32).map(StateId) {
        let name = graph.state(parameter).name.clone();
        let Some(gradient) = graph.state_named(&gradient_name(&name)) else { continue };
        let stored = Stored { weights: Weights::F32, moments: Moments::F32 };
        let op = AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.0, stored };
        let update = graph.apply_all(Op::AdamW(op), &[graph.newest(gradient), lr, step, scale]);
        graph.write_state(update, 0, parameter);
        for (output, moment) in [(1, "m"), (2, "v")] {
            let name = format!("{moment}.{name}");
            graph.state_range(&name, graph.ty(graph.node(update).outputs[output]), StateKind::Moment);
            let state = graph.state_named(&name).unwrap();
            graph.write_state(update, output, state);
        }
        if in_backward {
            graph.make_transient(gradient);
        }
    }
    if in_backward { interleave(graph).unwrap() } else { graph.finish().unwrap() }
}

fn costed(graph: Graph, link: Option<Link>) -> Costed {
    let facts = |node: &plimsoll_graph::Node| {
        let work = work(&node.op, &graph.input_types(node), &graph.output_types(node));
        let seconds = work.matmul_flops / 100e9 + work.bytes / 12e9 + 3e-6;
        NodeFacts { seconds, lean_seconds: seconds, workspace: Workspace::exactly(4096) }
    };
    let nodes = graph.nodes().iter().map(facts).collect();
    Costed { facts: Facts { alignment: 64, nodes, link }, graph }
}

fn program(rows: usize, link: Option<Link>, in_backward: bool) -> Program {
    let preset = Preset::from_name("tiny").unwrap();
    of_graph(preset.model.training(rows, preset.seq).unwrap(), link, in_backward)
}

/// Tokens of a sequence of GPT-2.
const SEQ: usize = 64;

/// A GPT-2 of four layers, whose head reads the table of its embedding.
fn gpt2(vocab: usize, rows: usize, link: Option<Link>) -> Program {
    let gpt2 = Gpt2 {
        vocab,
        positions: SEQ,
        width: 64,
        layers: 4,
        heads: 4,
        norm_epsilon: 1e-5,
        dropout: 0.1,
        documents: false,
    };
    of_graph(Architecture::from(gpt2).training(rows, SEQ).unwrap(), link, false)
}

/// `tiny`, or a GPT-2 of four layers.
fn of_model(name: &str, rows: usize, link: Option<Link>) -> Program {
    match name {
        "gpt2" => gpt2(500, rows, link),
        _ => program(rows, link, false),
    }
}

fn of_graph(forward: Graph, link: Option<Link>, in_backward: bool) -> Program {
    let loss = forward.output_named("loss").unwrap();
    let graph = fuse(differentiate(&forward, loss).unwrap()).unwrap();
    let evaluate = Some(costed(forward, link));
    Program { train: costed(with_update(graph, in_backward), link), evaluate, generate: None }
}

/// Time that transfers of state take.
fn state_seconds(part: &Costed, sequence: &Sequence) -> f64 {
    let values = sequence.moves.iter().map(|moved| sequence.instances[moved.instance]);
    let states = values.filter(|&value| part.graph.value(value).state.is_some());
    let link = part.facts.link.unwrap();
    states
        .map(|value| link.seconds(Direction::Out, part.graph.ty(value).bytes().next_multiple_of(64) as u64))
        .sum()
}

/// Bytes of state that are away.
fn gone(plan: &Plan) -> u64 {
    plan.states.iter().filter(|range| range.tier.is_some()).map(|range| range.bytes).sum()
}

#[test]
fn every_placement_passes_the_judge_keeps_its_limit_and_takes_the_time_it_was_said_to_take() {
    for in_backward in [false, true] {
        let program = program(2, Some(link(1e9)), in_backward);
        let part = &program.train;
        for strategy in [Strategy::None, Strategy::Full] {
            let order = Order::named(&part.graph, strategy);
            for bytes in rungs(&StateOrder::new(&program).unwrap(), false).into_iter().rev().step_by(3) {
                let residency = Residency::new(&program, bytes).unwrap();
                let sequence = residency.stream(&part.graph, micro_batch(&part.graph, &order));
                let transfers = Transfers::new(&part.graph, &part.facts, Scratch::Best, &sequence).unwrap();
                let (least, most) = (transfers.least_bytes(), transfers.most_bytes());
                for share in [0, 4, 10] {
                    let limit = least + (most - least) * share / 10;
                    let (seconds, spilled) =
                        transfers.seconds_within(limit).zip(transfers.within(limit, &sequence)).unwrap();
                    assert!(seconds >= transfers.lower_bound(limit) * (1.0 - 1e-12));
                    let tiered = Tiered { limit: Some(TransientBytes(limit)), away: bytes };
                    // The judge checks the plan inside `assemble`.
                    let plan = assemble(&program, &order, strategy, Scratch::Best, tiered).unwrap();
                    let (graph, facts) = (&part.graph, &part.facts);
                    let slots = slots_of(graph, facts, Scratch::Best, &spilled);
                    let alive = live_bytes(&slots).into_iter().max().unwrap();
                    assert!(alive <= limit, "{strategy}, {bytes} away: {alive} bytes in {limit}");
                    // Transfers that cross into the next micro-batch save time, but no more than they take.
                    let crossing = state_seconds(part, &spilled);
                    let saved = seconds - plan.micro_batch_seconds / program.passes() as f64;
                    let within = -1e-9 * seconds..=crossing + 1e-9 * seconds;
                    assert!(within.contains(&saved), "{saved} s of {crossing}");
                    assert!(gone(&plan) >= bytes, "{} of {bytes} bytes are away", gone(&plan));
                }
            }
        }
    }
}

#[test]
fn stays_of_state_give_the_transfers_that_a_look_at_the_whole_order_gives() {
    for (in_backward, strategy) in [(false, Strategy::None), (true, Strategy::None), (false, Strategy::Full)]
    {
        let program = program(2, Some(link(1e9)), in_backward);
        let (Costed { graph, facts }, states) = (&program.train, StateOrder::new(&program).unwrap());
        let passes = micro_batch(graph, &Order::named(graph, strategy));
        for runs in [passes, update(graph)] {
            let runs = ResidentRuns::new(graph, facts, Scratch::Best, runs).unwrap();
            for bytes in [0].into_iter().chain(rungs(&states, false)) {
                let away = states.division(&program.train, bytes).state;
                let quick = runs.with_away(graph, facts, Scratch::Best, &away).unwrap();
                let whole =
                    Transfers::new(graph, facts, Scratch::Best, &runs.streamed(graph, &away)).unwrap();
                assert!(quick == whole, "{strategy}, {bytes} bytes away");
            }
        }
    }
}

/// A request with the micro-batch pinned.
fn pinned(budget: u64) -> Request {
    Request { global_batch: 4, micro_batch: Some(2), strategy: None, budget: ArenaBytes(budget), slack: 0.0 }
}

fn find(link: Option<Link>, budget: u64) -> Result<Choice, SearchError> {
    search(pinned(budget), |rows| Ok(program(rows, link, false)))
}

fn smallest(link: Option<Link>) -> u64 {
    let mut searcher = Searcher::once(|rows: usize| Ok(program(rows, link, false)));
    searcher.smallest(pinned(0)).unwrap().arena_bytes.0
}

#[test]
fn state_leaves_when_it_must_and_more_memory_is_never_slower() {
    let most = find(None, u64::MAX).unwrap().plan.arena_bytes.0;
    let state: u64 = find(None, u64::MAX).unwrap().plan.states.iter().map(|range| range.bytes).sum();
    for rate in [1e8, 4e9] {
        let link = Some(link(rate));
        let least = smallest(link);
        assert!(least < state, "{least} bytes where state alone has {state}");
        let mut before = f64::INFINITY;
        let mut left = Vec::new();
        for index in 0..10 {
            let budget = least + (most - least) * index / 9;
            let choice = find(link, budget).unwrap();
            let seconds = choice.step_seconds();
            assert!(choice.plan.arena_bytes.0 <= budget, "{} of {budget}", choice.plan.arena_bytes.0);
            assert!(seconds <= before * (1.0 + 1e-12), "{budget} bytes: {seconds} s, before {before} s");
            let bound = choice.lower_bound_seconds.unwrap();
            assert!(seconds >= bound * (1.0 - 1e-12), "{budget} bytes: {seconds} s, bound {bound} s");
            assert!(budget >= state || gone(&choice.plan) > 0);
            left.push(gone(&choice.plan));
            before = seconds;
        }
        assert_eq!(left.last(), Some(&0), "nothing leaves where all of it fits");
    }
}

#[test]
fn the_optimizer_leaves_first_and_gradients_last_and_a_full_tier_keeps_what_it_has_room_for() {
    let order = |link: Link, bytes| {
        let program = program(2, Some(link), false);
        let plan = Residency::new(&program, bytes).unwrap();
        let away = |purpose| {
            let away = plan.states.iter().filter(|range| range.tier.is_some() && range.purpose == purpose);
            away.map(|range| range.bytes).sum::<u64>()
        };
        ([Purpose::Optimizer, Purpose::Weights, Purpose::Gradients].map(away), plan.taken)
    };
    let ([optimizer, weights, gradients], taken) = order(link(1e9), u64::MAX);
    assert!(optimizer > 0 && weights > 0 && gradients > 0 && taken >= optimizer + weights + gradients);
    assert_eq!(order(link(1e9), optimizer).0, [optimizer, 0, 0]);
    assert_eq!(order(link(1e9), optimizer + weights).0, [optimizer, weights, 0]);
    let full = Link { room: optimizer / 2, ..link(1e9) };
    let ([less, ..], taken) = order(full, u64::MAX);
    assert!(taken <= full.room && less < optimizer && less > 0);
}

/// Requests for one budget: everything open, and with something fixed.
fn asked(budget: u64, micro_batch: Option<usize>, strategy: Option<Strategy>) -> Request {
    Request { global_batch: 4, micro_batch, strategy, budget: ArenaBytes(budget), slack: 0.0 }
}

/// Searches a model in budgets between the smallest and the largest plan: every budget is kept, more memory is never slower, and
/// neither is a request that leaves open what another fixes.
fn who_fixes_something_is_never_faster(model: &str, rate: f64) {
    let build = |rows: usize| Ok(of_model(model, rows, Some(link(rate))));
    let mut searcher = Searcher::new(build);
    let least = searcher.smallest(asked(0, None, None)).unwrap().arena_bytes.0;
    let most = searcher.search(asked(u64::MAX, None, None)).unwrap().plan.arena_bytes.0;
    let mut before = f64::INFINITY;
    for index in 0..9 {
        let budget = least + (most - least) * index * index / 64;
        let open = searcher.search(asked(budget, None, None)).unwrap();
        let seconds = open.step_seconds();
        assert!(open.plan.arena_bytes.0 <= budget, "{} of {budget}", open.plan.arena_bytes.0);
        assert!(seconds <= before * (1.0 + 1e-9), "{budget} bytes: {seconds} s, before {before} s");
        let bound = open.lower_bound_seconds.unwrap();
        assert!(seconds >= bound * (1.0 - 1e-9), "{budget} bytes: {seconds} s, bound {bound} s");
        before = seconds;
        let pinned = [1, 2, 4].map(|rows| (Some(rows), None));
        let named = Strategy::LADDER.map(|strategy| (None, Some(strategy)));
        for (rows, strategy) in pinned.into_iter().chain(named) {
            let Ok(fixed) = searcher.search(asked(budget, rows, strategy)) else { continue };
            let (what, slower) = ((rows, strategy), fixed.step_seconds());
            assert!(
                seconds <= slower * (1.0 + 1e-9),
                "{model} in {budget} bytes: {seconds} s, {slower} s with {what:?}"
            );
        }
    }
}

#[test]
fn who_fixes_something_is_never_faster_beside_a_slow_disk() {
    who_fixes_something_is_never_faster("tiny", 1e8);
}

#[test]
fn who_fixes_something_is_never_faster_beside_a_fast_disk() {
    who_fixes_something_is_never_faster("tiny", 4e9);
}

#[test]
fn who_fixes_something_is_never_faster_with_gpt2() {
    who_fixes_something_is_never_faster("gpt2", 1e9);
}

#[test]
fn what_was_asked_before_changes_no_answer() {
    let build = |rows: usize| Ok(program(rows, Some(link(1e9)), false));
    let mut searcher = Searcher::new(build);
    let most = searcher.search(asked(u64::MAX, None, None)).unwrap().plan.arena_bytes.0;
    for share in [9, 3, 6, 4] {
        let request = asked(most * share / 10, None, None);
        let (kept, new) = (searcher.search(request).unwrap(), search(request, build).unwrap());
        assert_eq!(kept.step_seconds().to_bits(), new.step_seconds().to_bits(), "{share} tenths");
        assert_eq!(kept.plan.arena_bytes.0, new.plan.arena_bytes.0, "{share} tenths");
    }
}

#[test]
fn a_budget_below_what_an_update_has_in_at_once_is_refused_without_a_layout() {
    // The update of the table takes four times its size, and a micro-batch twice.
    let tables =
        ProgramTables::new(gpt2(8000, 1, Some(link(1e9))), ArenaBytes(u64::MAX), WorkCount::default())
            .unwrap();
    let offers = tables.candidates(Scratch::Best).unwrap();
    let least = offers.residencies.iter().map(ResidencyOption::least_bytes).min().unwrap();
    let request = Request { global_batch: 1, ..asked(least.0 - 1, Some(1), None) };
    let of = MicroBatch { request: &request, rows: 1, tiled: false, tables: &tables, below: f64::INFINITY };
    let mut tried = Vec::new();
    offloaded(of, Scratch::Best, &mut tried).unwrap();
    assert!(tried.is_empty(), "{tried:?}");
    let laid_out = offers.found.borrow().values().filter(|found| found.fails > ArenaBytes(0)).count();
    assert_eq!(laid_out, 0, "of {} combinations", offers.found.borrow().len());
}

#[test]
fn micro_batches_that_send_away_the_same_state_share_their_updates() {
    let updates = KnownUpdates::default();
    let counts = [1, 2].map(|rows| {
        let program = program(rows, Some(link(1e9)), false);
        let tables = ProgramTables::new(program, ArenaBytes(u64::MAX), WorkCount::default()).unwrap();
        let tables = tables.sharing(&updates);
        let residencies = tables.candidates(Scratch::Best).unwrap().residencies.len();
        (residencies, updates.count())
    });
    // All but the residency that keeps all state in the arena have an update of their own.
    let (residencies, count) = counts[0];
    assert!(count > 1 && count < residencies, "{count} updates of {residencies} residencies");
    assert_eq!(counts[0], counts[1], "the second micro-batch brings no new update");
}

#[test]
fn no_strategy_is_laid_out_for_the_smallest_plan_where_state_alone_takes_more() {
    let smallest = |link: Option<Link>, budget: u64| {
        let program = program(2, link, false);
        let tables = ProgramTables::new(program, ArenaBytes(u64::MAX), WorkCount::default()).unwrap();
        let (request, tables) = (pinned(budget), &tables);
        let of = MicroBatch { request: &request, rows: 2, tiled: false, tables, below: f64::INFINITY };
        let mut tried = Vec::new();
        smallest_plans(of, &mut tried).unwrap();
        let (away, resident): (Vec<Tried>, Vec<Tried>) =
            tried.into_iter().partition(|entry| entry.tiered.limit.is_some());
        (away.len(), resident.len())
    };
    let beside = Some(link(1e9));
    assert!(matches!(smallest(None, 0), (0, 1..)), "without a tier state stays");
    assert!(matches!(smallest(beside, 0), (1.., 0)), "all plans without a tier are larger than the smallest");
    assert!(matches!(smallest(beside, u64::MAX), (1.., 1..)), "plans that fit are not left out");
}

/// Combinations of GPT-2 with 124 million parameters that were timed and laid out for a budget in MiB, and the plans found.
fn work_for_gpt2(tables: &ProgramTables, mib: u64) -> (usize, usize, usize) {
    let request = Request { global_batch: 1, ..asked(mib << 20, Some(1), None) };
    let of = MicroBatch { request: &request, rows: 1, tiled: false, tables, below: f64::INFINITY };
    let mut tried = Vec::new();
    offloaded(of, Scratch::Best, &mut tried).unwrap();
    let candidates = tables.candidates(Scratch::Best).unwrap();
    let found = candidates.found.take();
    let timed = found.values().filter(|found| found.seconds.is_some()).count();
    let laid_out = found.values().filter(|found| found.fails > ArenaBytes(0) || found.fits.is_some()).count();
    (timed, laid_out, tried.len())
}

#[test]
fn gpt2_is_planned_with_a_disk_after_a_few_layouts_and_refused_after_none() {
    let Preset { model, seq, .. } = Preset::from_name("gpt2").unwrap();
    let program = of_graph(model.training(1, seq).unwrap(), Some(link(1e9)), false);
    let tables = ProgramTables::new(program, ArenaBytes(u64::MAX), WorkCount::default()).unwrap();
    // The update of the tied table needs 589 MiB of it in the arena at once. Above that, plans of nearly the same time
    // are laid out.
    for (mib, fits, most) in [(64, false, 0), (400, false, 0), (580, false, 0), (640, true, 50)] {
        let (timed, laid_out, plans) = work_for_gpt2(&tables, mib);
        assert_eq!(plans > 0, fits, "{mib} MiB");
        assert!(timed <= most && laid_out <= most, "{mib} MiB: {timed} timed, {laid_out} laid out");
    }
}

#[test]
fn no_plan_takes_fewer_bytes_than_its_place_says() {
    for program in [
        program(2, Some(link(1e9)), false),
        program(2, Some(link(1e9)), true),
        gpt2(3000, 1, Some(link(1e9))),
    ] {
        let tables = ProgramTables::new(program, ArenaBytes(u64::MAX), WorkCount::default()).unwrap();
        let program = &tables.program;
        let order = Order::named(&program.train.graph, Strategy::Full);
        for place in &tables.candidates(Scratch::Best).unwrap().residencies {
            for limit in [0, 1 << 18, 1 << 22] {
                let tiered = Tiered { limit: Some(TransientBytes(limit)), away: place.away };
                let plan = assemble(program, &order, Strategy::Full, Scratch::Best, tiered).unwrap();
                let (takes, least) = (plan.arena_bytes, place.least_bytes());
                assert!(takes >= least, "{takes} bytes, at least {least} with {} away", place.away);
            }
        }
    }
}
