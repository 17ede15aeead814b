//! A program of one weight whose moments live on a disk: its update leaves their transfers open.

use plimsoll_exec::{Data, Device, Engine};
use plimsoll_graph::op::{AdamW, Moments, Stored, Weights};
use plimsoll_graph::{DType, Graph, Init, Op, Phase, StateKind, differentiate, gradient_name};
use plimsoll_plan::{Action, ArenaBytes, Choice, Costed, Program, Request, Role, Schedule, search};

#[path = "disk.rs"]
pub(crate) mod disk;
use disk::device;

pub(crate) const ROWS: usize = 256;
pub(crate) const WIDTH: usize = 96;

fn forward() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", [ROWS, WIDTH], DType::F32); // (N, C)
    let w = g.param("w", [WIDTH, WIDTH], Init::Normal(0.1)); // (C, C)
    let h = g.linear(x, w, None); // (N, C)
    let y = g.silu(h);
    let loss = g.sum(y, &[0, 1]); // ()
    g.output("loss", loss);
    g.finish().unwrap()
}

/// The training graph, with two moments.
fn training() -> Graph {
    let forward = forward();
    let mut g = differentiate(&forward, forward.output_named("loss").unwrap()).unwrap();
    g.set_phase(Phase::Update);
    let [lr, step, scale] = ["lr", "step", "scale"].map(|name| g.input(name, [], DType::F32));
    let gradient = g.state_named(&gradient_name("w")).unwrap();
    let stored = Stored { weights: Weights::F32, moments: Moments::F32 };
    let op = AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.0, stored };
    let update = g.apply_all(Op::AdamW(op), &[g.newest(gradient), lr, step, scale]);
    g.write_state(update, 0, g.state_named("w").unwrap());
    for (output, name) in [(1, "m"), (2, "v")] {
        g.state_range(name, g.ty(g.node(update).outputs[output]), StateKind::Moment);
        g.write_state(update, output, g.state_named(name).unwrap());
    }
    g.finish().unwrap()
}

fn program() -> Program {
    let costed = |graph: Graph| Costed { facts: device().facts(&graph), graph };
    Program { train: costed(training()), evaluate: Some(costed(forward())), generate: None }
}

/// Transfers of a schedule that it does not wait for itself.
pub(crate) fn left_open(schedule: &Schedule) -> usize {
    let count = |is: fn(&Action) -> bool| schedule.actions.iter().filter(|action| is(action)).count();
    let started = count(|action| matches!(action, Action::Start { .. }));
    started - count(|action| matches!(action, Action::Wait { .. }))
}

/// A plan whose moments, and nothing else, are on the disk.
pub(crate) fn streaming() -> Choice {
    let request = |budget| Request {
        global_batch: 1,
        micro_batch: None,
        strategy: None,
        budget: ArenaBytes(budget),
        slack: 0.0,
    };
    let most = search(request(u64::MAX), |_| Ok(program())).unwrap().plan.arena_bytes.0;
    let moment = (WIDTH * WIDTH * 4) as u64;
    let choice = search(request(most - 2 * moment), |_| Ok(program())).unwrap();
    let away = choice.plan.states.iter().filter(|range| range.tier.is_some());
    assert_eq!(away.map(|range| range.name.as_str()).collect::<Vec<_>>(), ["m", "v"]);
    assert!(left_open(&choice.plan.schedules[&Role::Update]) > 0, "the update waits for its transfers");
    choice
}

/// Runs a schedule and names the one that follows, whose transfers may then begin early: an update follows the first
/// micro-batch, and the first micro-batch follows an update.
pub(crate) fn pass(engine: &mut Engine, role: Role) -> Result<(), plimsoll_exec::ExecError> {
    let x: Vec<f32> = (0..ROWS * WIDTH).map(|i| (i as f32 * 0.37).sin()).collect();
    let batch = [("x", Data::F32(&x))];
    let rates = [("lr", Data::F32(&[0.1])), ("step", Data::F32(&[1.0])), ("scale", Data::F32(&[1.0]))];
    match role {
        Role::Update => engine.run_before(role, &rates, Some(Role::First)),
        Role::First => engine.run_before(role, &batch, Some(Role::Update)),
        _ => engine.run(role, &batch),
    }
}
