//! Schedules whose backward pass updates weights, which the judge must pass or refuse.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_graph::{Op, Phase, StateId, StateKind, gradient_name, interleave};
use plimsoll_plan::{Action, Fault, Plan, Program, Role, Schedule, Scratch, Strategy, plan, replay};

mod support;
use support::{STRATEGIES, program, residual_chain};

/// Layers whose every weight takes up its gradient inside the backward pass. The result of the node does not matter
/// here: it reads the gradient and writes the next version of the weight.
fn updated() -> Program {
    let mut graph = residual_chain(6);
    graph.set_phase(Phase::Update);
    let parameters: Vec<(StateId, StateId)> = (0..graph.states().len() as u32)
        .map(StateId)
        .filter_map(|id| Some((id, graph.state_named(&gradient_name(&graph.state(id).name))?)))
        .collect();
    for (parameter, gradient) in parameters {
        let update =
            graph.apply_all(Op::Accumulate { to: plimsoll_graph::DType::F32 }, &[graph.newest(gradient)]);
        graph.write_state(update, 0, parameter);
        graph.make_transient(gradient);
    }
    program(interleave(graph).unwrap(), 0)
}

fn fault(program: &Program, plan: &Plan, schedule: &Schedule) -> Option<Fault> {
    replay(&program.train.graph, schedule, Role::First.phases(), plan.arena_bytes.0)
        .err()
        .map(|error| error.fault)
}

#[test]
fn every_strategy_has_one_schedule_and_gradients_are_not_among_its_state() {
    let program = updated();
    for strategy in STRATEGIES {
        let plan = plan(&program, strategy, Scratch::Best).unwrap();
        assert_eq!(plan.schedules.keys().collect::<Vec<_>>(), [&Role::First], "{strategy}");
        assert!(plan.states.iter().all(|range| !range.name.starts_with("grad.")));
    }
}

#[test]
fn a_forward_node_that_runs_again_behind_the_update_of_its_weight_is_refused() {
    let program = updated();
    let plan = plan(&program, Strategy::Full, Scratch::Best).unwrap();
    let mut schedule = plan.schedules[&Role::First].clone();
    assert_eq!(fault(&program, &plan, &schedule), None);
    let again = schedule.actions[0].clone();
    schedule.actions.push(again);
    assert!(matches!(fault(&program, &plan, &schedule), Some(Fault::WrongVersion(_))));
}

#[test]
fn a_gradient_that_is_not_there_yet_is_neither_added_to_nor_read() {
    let program = updated();
    let graph = &program.train.graph;
    let plan = plan(&program, Strategy::None, Scratch::Best).unwrap();
    let schedule = &plan.schedules[&Role::First];
    let writes_gradient = |action: &Action| {
        let Action::Run { node, .. } = action else { return false };
        let mut states = graph.node(*node).outputs.iter().filter_map(|&value| graph.value(value).state);
        states.any(|(state, _)| graph.state(state).kind == StateKind::Transient)
    };
    let first = schedule.actions.iter().position(writes_gradient).unwrap();
    let mut adding = schedule.clone();
    if let Action::Run { accumulate, .. } = &mut adding.actions[first] {
        *accumulate = 1;
    }
    assert!(matches!(fault(&program, &plan, &adding), Some(Fault::WrongOperand(_))));
    let mut missing = schedule.clone();
    missing.actions.remove(first);
    assert!(matches!(fault(&program, &plan, &missing), Some(Fault::NotIntact(_))));
}
