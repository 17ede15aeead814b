//! Programs of ranks that offload: every placement passes the judge and keeps its limit, and the search finds plans.

use plimsoll_graph::divide;
use plimsoll_graph::op::Collective;

use super::*;
use crate::layout::live_in_runs;
use crate::schedule::Action;

/// What is divided, in the numbering of `ZeRO`.
const STAGES: [usize; 3] = [0, 1, 3];

/// Rate of the link between ranks, in bytes a second.
const WIRE: f64 = 2e9;

const RANKS: usize = 2;

/// Sums gradients over ranks, and appends an update of whole parameters, or of shards of them.
fn with_exchanged_update(mut graph: Graph, stage: usize) -> Graph {
    let parameters: Vec<(StateId, StateId)> = (0..graph.states().len() as u32)
        .map(StateId)
        .filter_map(|id| Some((id, graph.state_named(&gradient_name(&graph.state(id).name))?)))
        .collect();
    graph.set_phase(Phase::Update);
    if stage == 0 {
        for &(_, gradient) in &parameters {
            let sum = Op::Collective(Collective::AllReduce { ranks: RANKS });
            let node = graph.apply_all(sum, &[graph.newest(gradient)]);
            graph.write_state(node, 0, gradient);
        }
        return with_update(graph, false);
    }
    let [lr, step, scale] = ["lr", "step", "scale_of_update"].map(|name| graph.input(name, [], DType::F32));
    for (parameter, gradient) in parameters {
        let scatter = Op::Collective(Collective::ReduceScatter { ranks: RANKS });
        let shard = graph.apply(scatter, &[graph.newest(gradient)]);
        let (name, whole) = (graph.state(parameter).name.clone(), graph.state(parameter).ty);
        let own = if stage == 3 { parameter } else { own_shard(&mut graph, parameter, shard) };
        let stored = Stored { weights: Weights::F32, moments: Moments::F32 };
        let op = AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.0, stored };
        let update = graph.apply_all(Op::AdamW(op), &[shard, lr, step, scale]);
        graph.write_state(update, 0, own);
        for (output, moment) in [(1, "m"), (2, "v")] {
            let name = format!("{moment}.{name}");
            graph.state_range(&name, graph.ty(shard), StateKind::Moment);
            let state = graph.state_named(&name).unwrap();
            graph.write_state(update, output, state);
        }
        if stage < 3 {
            let gather = Collective::AllGather { ranks: RANKS, whole: whole.shape };
            let node = graph.apply_all(Op::Collective(gather), &[graph.newest(own)]);
            graph.write_state(node, 0, parameter);
        }
    }
    graph.finish().unwrap()
}

/// A copy of this rank's part of a parameter, as large as `shard`.
fn own_shard(graph: &mut Graph, parameter: StateId, shard: plimsoll_graph::Value) -> StateId {
    let taken =
        graph.apply_all(Op::Collective(Collective::OwnShard { ranks: RANKS }), &[graph.newest(parameter)]);
    let name = format!("own.{}", graph.state(parameter).name);
    graph.state_range(&name, graph.ty(shard), StateKind::Transient);
    let own = graph.state_named(&name).unwrap();
    graph.write_state(taken, 0, own);
    own
}

fn timed(graph: Graph, link: Option<Link>) -> Costed {
    let mut part = costed(graph, link);
    for (node, facts) in part.graph.nodes().iter().zip(&mut part.facts.nodes) {
        if let Some(collective) = node.op.collective() {
            let seconds = collective.wire_bytes(part.graph.ty(node.inputs[0])) as f64 / WIRE;
            (facts.seconds, facts.lean_seconds) = (seconds, seconds);
        }
    }
    part
}

/// `tiny` on two ranks, at a stage.
fn ranked(stage: usize, rows: usize, link: Option<Link>) -> Program {
    let preset = Preset::from_name("tiny").unwrap();
    let forward = preset.model.training(rows, preset.seq).unwrap();
    let loss = forward.output_named("loss").unwrap();
    let graph = fuse(differentiate(&forward, loss).unwrap()).unwrap();
    let divided = |graph: Graph| if stage == 3 { divide(graph, RANKS).unwrap() } else { graph };
    let evaluate = Some(timed(divided(forward), link));
    let train = timed(with_exchanged_update(divided(graph), stage), link);
    Program { train, evaluate, generate: None }
}

/// Time of all exchanges of an order.
fn wire_seconds(part: &Costed, sequence: &Sequence) -> f64 {
    let (_, exchanges) = live_in_runs(&part.graph, &part.facts, Scratch::Best, sequence);
    exchanges.iter().map(|exchange| exchange.seconds).sum()
}

#[test]
fn every_placement_of_a_rank_passes_the_judge_and_keeps_its_limit() {
    for stage in STAGES {
        let program = ranked(stage, 2, Some(link(1e9)));
        let Costed { graph, facts } = &program.train;
        for strategy in [Strategy::None, Strategy::Full] {
            let order = Order::named(graph, strategy);
            for bytes in rungs(&StateOrder::new(&program).unwrap(), false).into_iter().rev().step_by(3) {
                let residency = Residency::new(&program, bytes).unwrap();
                for runs in [micro_batch(graph, &order), update(graph)] {
                    let sequence = residency.stream(graph, runs);
                    let transfers = Transfers::new(graph, facts, Scratch::Best, &sequence).unwrap();
                    let (least, most) = (transfers.least_bytes(), transfers.most_bytes());
                    for share in [0, 4, 10] {
                        let limit = least + (most - least) * share / 10;
                        let about = format!("stage {stage}, {strategy}, {bytes} away, {limit}");
                        let seconds = transfers.seconds_within(limit).unwrap();
                        assert!(seconds >= transfers.lower_bound(limit) * (1.0 - 1e-12), "{about}");
                        let spilled = transfers.within(limit, &sequence).unwrap();
                        let slots = slots_of(graph, facts, Scratch::Best, &spilled);
                        let alive = live_bytes(&slots).into_iter().max().unwrap();
                        assert!(alive <= limit, "{about}: {alive} bytes");
                    }
                }
                for share in [0, 10] {
                    let sequence = residency.stream(graph, micro_batch(graph, &order));
                    let transfers = Transfers::new(graph, facts, Scratch::Best, &sequence).unwrap();
                    let limit = transfers.least_bytes() * (10 + share) / 10;
                    let tiered = Tiered { limit: Some(TransientBytes(limit)), away: bytes };
                    // The judge checks the plan inside `assemble`.
                    let plan = assemble(&program, &order, strategy, Scratch::Best, tiered).unwrap();
                    let seconds = transfers.seconds_within(limit).unwrap();
                    let free = state_seconds(&program.train, &transfers.within(limit, &sequence).unwrap())
                        + wire_seconds(&program.train, &sequence);
                    let saved = seconds - plan.micro_batch_seconds;
                    assert!((-1e-9..=free).contains(&saved), "stage {stage}, {strategy}: {saved} of {free}");
                    assert!(gone(&plan) >= bytes, "{} of {bytes} bytes are away", gone(&plan));
                }
            }
        }
    }
}

#[test]
fn a_rank_that_offloads_trains_in_less_memory_and_is_never_slower_with_more() {
    for stage in STAGES {
        let find = |link: Option<Link>, budget: u64| {
            search(pinned(budget), |rows| Ok(ranked(stage, rows, link))).map(|choice| choice.plan)
        };
        let most = find(None, u64::MAX).unwrap().arena_bytes.0;
        let link = Some(link(4e9));
        let mut searcher = Searcher::once(|rows: usize| Ok(ranked(stage, rows, link)));
        let least = searcher.smallest(pinned(0)).unwrap().arena_bytes.0;
        let mut alone = Searcher::once(|rows: usize| Ok(ranked(stage, rows, None)));
        let resident = alone.smallest(pinned(0)).unwrap().arena_bytes.0;
        assert!(least < resident / 2, "stage {stage}: {least} of {resident}");
        let mut before = f64::INFINITY;
        for index in 0..5 {
            let budget = least + (most - least) * index / 4;
            let plan = find(link, budget).unwrap();
            assert!(plan.arena_bytes.0 <= budget);
            // Transfers that cross into the next schedule save time beyond what the search compares.
            let seconds = plan.step_seconds(2);
            assert!(seconds <= before * 1.05, "stage {stage}, {index}: {seconds} after {before}");
            before = before.min(seconds);
            let starts = plan.schedules.values().flat_map(|schedule| &schedule.actions);
            let starts = starts.filter(|action| matches!(action, Action::Start { .. })).count();
            assert_eq!(starts > 0, index < 4, "stage {stage}, {index}: {starts} transfers");
        }
    }
}
