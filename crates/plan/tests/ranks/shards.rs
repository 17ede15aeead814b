//! Exchanges of shards: where the planner puts them, how many may wait, and which mutations the judge refuses.

use plimsoll_graph::op::{Collective, Sgd, Stored};
use plimsoll_graph::{DType, Graph, Op, Phase, StateId, StateKind};
use plimsoll_plan::{Action, Fault, Judged, Program, Role, Schedule, exchanges, replay_ranks};

use super::{fault, is_await, is_exchange, of, places, planned, support};

const SGD: Sgd = Sgd {
    momentum: 0.0,
    nesterov: false,
    weight_decay: 0.0,
    stored: Stored { weights: plimsoll_graph::op::Weights::F32, moments: plimsoll_graph::op::Moments::F32 },
};

/// A chain of `layers` layers whose weights are updated in shards by `ranks` ranks.
fn graph(layers: usize, ranks: usize) -> Graph {
    let mut graph = support::residual_chain(layers);
    graph.set_phase(Phase::Update);
    let [lr, scale] = ["lr", "factor"].map(|name| graph.input(name, [], DType::F32));
    let parameters: Vec<(StateId, StateId)> = (0..graph.states().len() as u32)
        .map(StateId)
        .filter_map(|id| Some((id, graph.state_named(&format!("grad.{}", graph.state(id).name))?)))
        .collect();
    let scattered: Vec<_> = (parameters.iter())
        .map(|&(_, gradient)| {
            graph.apply(Op::Collective(Collective::ReduceScatter { ranks }), &[graph.newest(gradient)])
        })
        .collect();
    for (&(parameter, _), &shard) in parameters.iter().zip(&scattered) {
        let (name, ty) = (graph.state(parameter).name.clone(), graph.state(parameter).ty);
        let taken =
            graph.apply_all(Op::Collective(Collective::OwnShard { ranks }), &[graph.newest(parameter)]);
        graph.state_range(&format!("own.{name}"), graph.ty(shard), StateKind::Transient);
        let own = graph.state_named(&format!("own.{name}")).unwrap();
        graph.write_state(taken, 0, own);
        let update = graph.apply_all(Op::Sgd(SGD), &[shard, lr, scale]);
        graph.write_state(update, 0, own);
        let gather = Op::Collective(Collective::AllGather { ranks, whole: ty.shape });
        let node = graph.apply_all(gather, &[graph.newest(own)]);
        graph.write_state(node, 0, parameter);
    }
    graph.finish().unwrap()
}

fn program(ranks: usize) -> Program {
    support::program(graph(2, ranks), 0)
}

/// Kinds of the update's actions: scatter, own shard, gather, await, and other runs.
fn text(graph: &Graph, schedule: &Schedule) -> String {
    let kind = |action: &Action| match action {
        Action::Await { .. } => 'w',
        Action::Run { node, .. } => match graph.node(*node).op {
            Op::Collective(Collective::ReduceScatter { .. }) => 's',
            Op::Collective(Collective::OwnShard { .. }) => 'o',
            Op::Collective(Collective::AllGather { .. }) => 'g',
            _ => 'r',
        },
        _ => '?',
    };
    schedule.actions.iter().map(kind).collect()
}

#[test]
fn gathers_run_beside_the_next_updates_and_two_at_most_hold_their_shards() {
    let program = program(2);
    let plan = planned(&program);
    let update = text(&program.train.graph, &plan.schedules[&Role::Update]);
    assert_eq!(update, "ssssowrgowrgowrwwgorwgww");
    let deep = support::program(graph(6, 2), 0);
    let (few, many) = (planned(&program), planned(&deep));
    let shards = |plan: &plimsoll_plan::Plan, graph: &Graph| {
        let schedule = &plan.schedules[&Role::Update];
        let own = schedule.buffers.iter().filter(|buffer| {
            matches!(buffer.contents, plimsoll_plan::Contents::State(state)
                if graph.state(state).kind == StateKind::Transient)
        });
        let ends: Vec<(usize, usize)> = own.map(|buffer| (buffer.start, buffer.end)).collect();
        (0..schedule.actions.len())
            .map(|at| ends.iter().filter(|(start, end)| (start..end).contains(&&at)).count())
            .max()
    };
    assert_eq!(shards(&few, &program.train.graph), Some(3));
    assert_eq!(shards(&many, &deep.train.graph), Some(3), "more layers hold no more shards");
}

#[test]
fn shards_that_are_touched_while_they_are_exchanged_are_refused() {
    let program = program(2);
    let graph = &program.train.graph;
    let is = |kind: char, schedule: &Schedule| -> Vec<usize> {
        text(graph, schedule).chars().enumerate().filter(|(_, of)| *of == kind).map(|(at, _)| at).collect()
    };
    // An update that reads its shard before the scatter has ended.
    let early = |schedule: &mut Schedule| {
        let first = places(schedule, is_await)[0];
        schedule.actions.swap(first, first + 1);
    };
    assert!(matches!(fault(&program, early), Some(Fault::Copy(_))));
    // A second update that works on the bytes which the first gather still reads.
    let over = |schedule: &mut Schedule| {
        let own = is('o', schedule);
        let place = |schedule: &Schedule, at: usize| match &schedule.actions[at] {
            Action::Run { outputs, .. } => outputs[0],
            _ => panic!("a run"),
        };
        let (first, second) = (place(schedule, own[0]), place(schedule, own[1]));
        schedule.buffers[second.index()].offset = schedule.buffers[first.index()].offset;
    };
    assert!(matches!(fault(&program, over), Some(Fault::Copy(why)) if why.contains("an exchange")));
    // A shard that is taken after its weight was gathered, and a gather that comes before its update.
    let late = |schedule: &mut Schedule| {
        let (own, gather) = (is('o', schedule)[0], is('g', schedule)[0]);
        schedule.actions.swap(own, gather);
    };
    assert!(fault(&program, late).is_some());
    // An update without its gather leaves every rank with another weight.
    let missing = |schedule: &mut Schedule| {
        let gather = *is('g', schedule).last().unwrap();
        let Action::Run { node, .. } = schedule.actions[gather] else { return };
        schedule.actions.retain(|action| match action {
            Action::Await { node: other } | Action::Run { node: other, .. } => *other != node,
            _ => true,
        });
    };
    assert!(matches!(fault(&program, missing), Some(Fault::Executions(_))));
}

/// The first difference that the judge of all ranks finds, if the update of rank 1 is altered.
fn differs(alter: impl Fn(&mut Schedule, &Graph)) -> String {
    let program = program(2);
    let graph = &program.train.graph;
    let plan = planned(&program);
    let schedule = &plan.schedules[&Role::Update];
    let mut other = schedule.clone();
    alter(&mut other, graph);
    let of = |schedule| [Judged { role: Role::Update, graph, schedule }];
    replay_ranks(&[&of(schedule), &of(&other)]).unwrap_err().to_string()
}

#[test]
fn a_scatter_or_gather_that_one_rank_lacks_or_begins_in_another_order_is_refused() {
    let exchanges_of =
        |schedule: &Schedule, graph: &Graph| places(schedule, |action| is_exchange(graph, action));
    for which in [0, 4, 7] {
        let missing = differs(|schedule, graph| {
            schedule.actions.remove(exchanges_of(schedule, graph)[which]);
        });
        assert!(
            missing.starts_with(&format!("rank 1, schedule `update`: exchange {which} is ")),
            "{missing}"
        );
    }
    for (one, other, kind) in [(0, 1, "reduce_scatter"), (3, 4, "all_gather"), (6, 7, "all_gather")] {
        let swapped = differs(|schedule, graph| {
            let places = exchanges_of(schedule, graph);
            schedule.actions.swap(places[one], places[other]);
        });
        assert!(swapped.contains(&format!("exchange {one} is {kind} of ")), "{swapped}");
    }
}

#[test]
fn shards_of_another_size_or_for_another_number_of_ranks_are_refused() {
    let (two, three) = (program(2), program(3));
    let (first, other) = (planned(&two), planned(&three));
    let error = replay_ranks(&[&of(&two, &first), &of(&three, &other)]).unwrap_err();
    assert!(error.why.ends_with("expects 3 ranks, and there are 2"), "{error}");
    // Weights of 16·16 elements are 128 for each of two ranks, and 86 for each of three.
    let sizes = |program: &Program, plan: &plimsoll_plan::Plan| {
        let found = exchanges(&program.train.graph, &plan.schedules[&Role::Update]);
        found.last().map(|last| last.ty.shape.elements())
    };
    assert_eq!([sizes(&two, &first), sizes(&three, &other)], [Some(128), Some(86)]);
}
