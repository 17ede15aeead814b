//! Exchanges between ranks in schedules: where the planner puts them, and which mutations the judge refuses.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

#[path = "ranks/gathers.rs"]
mod gathers;
#[path = "ranks/shards.rs"]
mod shards;
#[path = "ranks/tiers.rs"]
mod tiers;

use plimsoll_graph::op::Collective;
use plimsoll_graph::{DType, Graph, Init, Op, Phase, StateId, StateKind};
use plimsoll_plan::{
    Action, Choice, Fault, Judged, NodeFacts, Plan, Program, Role, Schedule, Scratch, Strategy, exchanges,
    plan, replay, replay_ranks, traffic,
};

/// A chain whose gradients are summed over `ranks` ranks before their squares are.
fn graph(ranks: usize) -> Graph {
    let mut graph = support::residual_chain(2);
    let is_gradient = |id: &StateId, graph: &Graph| graph.state(*id).kind == StateKind::Gradient;
    let all = (0..graph.states().len() as u32).map(StateId);
    let gradients: Vec<StateId> = all.filter(|id| is_gradient(id, &graph)).collect();
    graph.set_phase(Phase::Update);
    for &gradient in &gradients {
        let own = graph.newest(gradient);
        let node = graph.apply_all(Op::Collective(Collective::AllReduce { ranks }), &[own]);
        graph.write_state(node, 0, gradient);
    }
    for (number, &gradient) in gradients.iter().enumerate() {
        let squares = graph.apply(Op::SumSquares, &[graph.newest(gradient)]);
        graph.output(&format!("squares.{number}"), squares);
    }
    graph.finish().unwrap()
}

fn program(ranks: usize) -> Program {
    support::program(graph(ranks), 0)
}

fn planned(program: &Program) -> Plan {
    plan(program, Strategy::None, Scratch::Best).unwrap()
}

fn choice(program: &Program) -> Choice {
    let (plan, program) = (planned(program), program.clone());
    Choice { plan, program, micro_batch: 4, accumulation: 1, lower_bound_seconds: None }
}

/// The fault of the plan whose update was altered.
fn fault(program: &Program, alter: impl Fn(&mut Schedule)) -> Option<Fault> {
    let plan = planned(program);
    let mut schedule = plan.schedules[&Role::Update].clone();
    alter(&mut schedule);
    replay(&program.train.graph, &schedule, Role::Update.phases(), plan.arena_bytes.0)
        .err()
        .map(|error| error.fault)
}

fn is_exchange(graph: &Graph, action: &Action) -> bool {
    matches!(action, Action::Run { node, .. } if graph.node(*node).op.collective().is_some())
}

/// Places of the actions that `wanted` accepts.
fn places(schedule: &Schedule, wanted: impl Fn(&Action) -> bool) -> Vec<usize> {
    (0..schedule.actions.len()).filter(|&at| wanted(&schedule.actions[at])).collect()
}

fn is_await(action: &Action) -> bool {
    matches!(action, Action::Await { .. })
}

#[test]
fn exchanges_begin_first_and_each_is_awaited_just_before_its_gradient_is_read() {
    let program = program(2);
    let plan = planned(&program);
    let schedule = &plan.schedules[&Role::Update];
    let graph = &program.train.graph;
    let kind = |action: &Action| match action {
        Action::Await { .. } => 'w',
        Action::Run { .. } if is_exchange(graph, action) => 'x',
        _ => 'r',
    };
    let text: String = schedule.actions.iter().map(kind).collect();
    assert_eq!(text, "xxxxwrwrwrwr");
    assert!(schedule.display(graph).to_string().contains("await all_reduce grad.layer.0.w1@2"));
}

#[test]
fn the_time_of_exchanges_counts_only_as_far_as_compute_does_not_cover_it() {
    let mut program = program(2);
    let seconds = |node: usize, of: f64, program: &mut Program| {
        program.train.facts.nodes[node] = NodeFacts { seconds: of, lean_seconds: of, ..NodeFacts::default() };
    };
    let nodes = program.train.graph.nodes().len();
    let updates = nodes - 8..nodes;
    // Four exchanges of three seconds, then four sums of two seconds: the lane is busy for 12 s, and one sum follows.
    for node in updates.clone() {
        seconds(node, if node < nodes - 4 { 3.0 } else { 2.0 }, &mut program);
    }
    assert!((planned(&program).update_seconds - 14.0).abs() < 1e-9);
    let told = traffic(&choice(&program)).unwrap();
    assert_eq!((told.ranks, told.seconds as u64, told.exposed_seconds as u64), (2, 12, 6));
    assert_eq!(told.wire_bytes, 4 * 16 * 16 * 4, "an all-reduce among two ranks sends each byte once");
    for node in updates {
        seconds(node, if node < nodes - 4 { 0.5 } else { 2.0 }, &mut program);
    }
    // The first exchange alone is not covered.
    assert!((planned(&program).update_seconds - 8.5).abs() < 1e-9);
}

#[test]
fn a_plan_with_exchanges_goes_through_a_file_unchanged() {
    let program = program(2);
    let choice = choice(&program);
    let text = choice.plan.schedules[&Role::Update].display(&program.train.graph).to_string();
    let file = plimsoll_plan::file::Saved::parse(&plimsoll_plan::file::write(
        &choice,
        plimsoll_plan::ProcessBytes(1 << 30),
    ))
    .unwrap();
    let after = file.for_program(program.clone()).unwrap();
    assert_eq!(after.plan.schedules[&Role::Update].display(&program.train.graph).to_string(), text);
}

#[test]
fn a_gradient_that_is_read_before_its_exchange_is_awaited_is_refused() {
    let program = program(2);
    let late = |schedule: &mut Schedule| {
        let first = places(schedule, is_await)[0];
        schedule.actions.swap(first, first + 1);
    };
    assert!(
        matches!(fault(&program, late), Some(Fault::Copy(why)) if why.contains("an exchange between ranks"))
    );
}

#[test]
fn an_exchange_that_nobody_awaits_or_that_is_awaited_out_of_turn_is_refused() {
    let program = program(2);
    let forgotten = |schedule: &mut Schedule| {
        let last = *places(schedule, is_await).last().unwrap();
        schedule.actions.remove(last);
    };
    assert!(matches!(fault(&program, forgotten), Some(Fault::Copy(why)) if why.contains("an exchange")));
    let moved_to_the_end = |schedule: &mut Schedule| {
        let first = places(schedule, is_await)[0];
        let action = schedule.actions.remove(first);
        schedule.actions.push(action);
    };
    assert!(fault(&program, moved_to_the_end).is_some());
    let swapped = |schedule: &mut Schedule| {
        let awaits = places(schedule, is_await);
        schedule.actions.swap(awaits[0], awaits[1]);
    };
    assert!(matches!(fault(&program, swapped), Some(Fault::Exchange(why)) if why.contains("out of turn")));
    let twice = |schedule: &mut Schedule| {
        let first = places(schedule, is_await)[0];
        let action = schedule.actions[first].clone();
        schedule.actions.push(action);
    };
    assert!(matches!(fault(&program, twice), Some(Fault::Exchange(_))));
}

#[test]
fn an_update_without_one_of_its_exchanges_or_with_one_twice_is_refused() {
    let program = program(2);
    let graph = &program.train.graph;
    let missing = |schedule: &mut Schedule| {
        let first = places(schedule, |action| is_exchange(graph, action))[0];
        let Action::Run { node, .. } = schedule.actions[first] else { return };
        schedule.actions.retain(|action| match action {
            Action::Await { node: other } | Action::Run { node: other, .. } => *other != node,
            _ => true,
        });
    };
    assert!(fault(&program, missing).is_some());
    let twice = |schedule: &mut Schedule| {
        let first = places(schedule, |action| is_exchange(graph, action))[0];
        let action = schedule.actions[first].clone();
        schedule.actions.insert(first + 1, action);
    };
    assert!(matches!(fault(&program, twice), Some(Fault::WrongVersion(_) | Fault::Copy(_))));
}

/// The first difference that the judge of all ranks finds, if the exchanges of rank 1 are altered.
fn differs(alter: impl Fn(&mut Schedule, &Graph)) -> Option<String> {
    let program = program(2);
    let graph = &program.train.graph;
    let plan = planned(&program);
    let schedule = &plan.schedules[&Role::Update];
    let mut other = schedule.clone();
    alter(&mut other, graph);
    let of = |schedule| [Judged { role: Role::Update, graph, schedule }];
    replay_ranks(&[&of(schedule), &of(&other)]).err().map(|error| error.to_string())
}

#[test]
fn ranks_with_equal_schedules_run_together() {
    assert_eq!(differs(|_, _| ()), None);
    let program = program(2);
    let plan = planned(&program);
    let found = exchanges(&program.train.graph, &plan.schedules[&Role::Update]);
    assert_eq!(found.len(), 4);
    assert_eq!(found[0].to_string(), "all_reduce of grad.layer.1.w2@1 f32[16,16]");
}

#[test]
fn an_exchange_that_one_rank_lacks_or_begins_in_another_order_is_refused() {
    let missing = differs(|schedule, graph| {
        let last = *places(schedule, |action| is_exchange(graph, action)).last().unwrap();
        schedule.actions.remove(last);
    });
    assert_eq!(
        missing.unwrap(),
        "rank 1, schedule `update`: exchange 3 is none, and rank 0 has all_reduce of grad.layer.0.w1@1 f32[16,16]"
    );
    let swapped = differs(|schedule, graph| {
        let exchanges = places(schedule, |action| is_exchange(graph, action));
        schedule.actions.swap(exchanges[0], exchanges[1]);
    });
    assert!(swapped.unwrap().contains("exchange 0 is all_reduce of grad.layer.1.w1@1"));
}

/// A single layer of eight columns, under the name of the last layer above.
fn narrow_graph() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", [4, 8], DType::F32);
    let w = g.param("layer.1.w2", [8, 8], Init::Normal(0.1));
    let y = g.linear(x, w, None);
    let loss = g.sum(y, &[0, 1]);
    g.output("loss", loss);
    let mut graph = support::trained(&g.finish().unwrap());
    graph.set_phase(Phase::Update);
    let gradient = graph.state_named("grad.layer.1.w2").unwrap();
    let sum = Op::Collective(Collective::AllReduce { ranks: 2 });
    let node = graph.apply_all(sum, &[graph.newest(gradient)]);
    graph.write_state(node, 0, gradient);
    graph.finish().unwrap()
}

/// The update of a plan, for the judge of all ranks.
fn of<'a>(program: &'a Program, plan: &'a Plan) -> [Judged<'a>; 1] {
    [Judged { role: Role::Update, graph: &program.train.graph, schedule: &plan.schedules[&Role::Update] }]
}

#[test]
fn an_exchange_of_another_size_or_for_another_number_of_ranks_is_refused() {
    let (two, three) = (program(2), program(3));
    let (first, other) = (planned(&two), planned(&three));
    let error = replay_ranks(&[&of(&two, &first), &of(&three, &other)]).unwrap_err();
    assert!(error.why.ends_with("expects 3 ranks, and there are 2"), "{error}");

    let narrow = support::program(narrow_graph(), 0);
    let small = planned(&narrow);
    let error = replay_ranks(&[&of(&two, &first), &of(&narrow, &small)]).unwrap_err();
    assert!(
        error.why.contains("f32[8,8], and rank 0 has all_reduce of grad.layer.1.w2@1 f32[16,16]"),
        "{error}"
    );
}
