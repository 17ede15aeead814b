//! A rank whose disk fails in the middle of a step: the other rank, which has no disk, ends with an error that names it. The limit on
//! file sizes is the failure, and it holds for the process, so this test has a file of its own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use plimsoll_exec::{Communicator, CpuDevice, Data, Device, Engine, thread_ranks};
use plimsoll_graph::op::Collective;
use plimsoll_graph::{DType, Graph, Init, Op, Phase, StateId, StateKind, differentiate};
use plimsoll_plan::{
    Action, ArenaBytes, Choice, Costed, Judged, Program, Request, Role, Searcher, replay_ranks, search,
};

#[path = "support/disk.rs"]
mod disk;
use disk::{device, limit_files};

const ROWS: usize = 64;
const WIDTH: usize = 96;

/// Products whose gradients are summed over two ranks.
fn program(device: &CpuDevice) -> Program {
    let mut g = Graph::new();
    let mut x = g.input("x", [ROWS, WIDTH], DType::F32); // (N, C)
    for layer in 0..6 {
        x = g.block(&format!("layer.{layer}"), |g| {
            let w = g.param("w", [WIDTH, WIDTH], Init::Normal(0.1)); // (C, C)
            let h = g.linear(x, w, None); // (N, C)
            g.silu(h)
        });
    }
    let loss = g.sum(x, &[0, 1]); // ()
    g.output("loss", loss);
    let mut graph = differentiate(&g.finish().unwrap(), loss).unwrap();
    let states = (0..graph.states().len() as u32).map(StateId);
    let gradients: Vec<StateId> = states.filter(|&id| graph.state(id).kind == StateKind::Gradient).collect();
    graph.set_phase(Phase::Update);
    for (number, gradient) in gradients.into_iter().enumerate() {
        let sum = Op::Collective(Collective::AllReduce { ranks: 2 });
        let node = graph.apply_all(sum, &[graph.newest(gradient)]);
        graph.write_state(node, 0, gradient);
        let squares = graph.apply(Op::SumSquares, &[graph.newest(gradient)]);
        graph.output(&format!("squares.{number}"), squares);
    }
    let graph = graph.finish().unwrap();
    Program { train: Costed { facts: device.facts(&graph), graph }, evaluate: None, generate: None }
}

/// The plan in the smallest arena, or in any.
fn choice(device: &CpuDevice, smallest: bool) -> Choice {
    let request = |budget| Request { global_batch: 1, micro_batch: None, strategy: None, budget, slack: 0.0 };
    let least = || Searcher::once(|_: usize| Ok(program(device))).smallest(request(ArenaBytes(0))).unwrap();
    let budget = if smallest { least().arena_bytes } else { ArenaBytes(1 << 40) };
    search(request(budget), |_| Ok(program(device))).unwrap()
}

/// A step of one rank.
fn step(engine: &mut Engine) -> Result<Vec<u32>, String> {
    let x: Vec<f32> = (0..ROWS * WIDTH).map(|i| (i as f32 * 0.37).sin()).collect();
    let ran = engine.run(Role::First, &[("x", Data::F32(&x))]);
    let ran = ran.and_then(|()| engine.run(Role::Update, &[]));
    let squares = |number: usize| engine.scalar(Role::Update, &format!("squares.{number}")).map(f32::to_bits);
    ran.and_then(|()| (0..6).map(squares).collect()).map_err(|error| error.to_string())
}

#[test]
fn the_other_rank_ends_with_an_error_that_names_the_one_whose_disk_failed() {
    let plain = CpuDevice::new(1).unwrap();
    let choices = [choice(&plain, false), choice(&device(), true)];
    let copies = |choice: &Choice| choice.plan.schedules.values().map(|of| of.copies.len()).sum::<usize>();
    assert!(copies(&choices[0]) == 0 && copies(&choices[1]) > 0);
    let exchanged = |choice: &Choice| {
        let update = &choice.plan.schedules[&Role::Update];
        update.actions.iter().any(|action| matches!(action, Action::Start { .. }))
    };
    assert!(exchanged(&choices[1]), "gradients come in to be exchanged");
    // The ranks move different bytes and exchange alike.
    let judged = choices.each_ref().map(|choice| {
        let schedule = &choice.plan.schedules[&Role::Update];
        [Judged { role: Role::Update, graph: &choice.program.train.graph, schedule }]
    });
    assert_eq!(replay_ranks(&[&judged[0], &judged[1]]), Ok(()));
    let world = thread_ranks(2, Duration::from_mins(1)).unwrap();
    let devices = [plain, device()];
    let meet = Barrier::new(3);
    let run = |mut device: CpuDevice, choice: &Choice, end: Arc<dyn Communicator>| {
        device.join(end).unwrap();
        let mut engine = Engine::new(Box::new(device), &choice.program, &choice.plan, 1).unwrap();
        let whole = step(&mut engine);
        meet.wait();
        meet.wait();
        (whole.unwrap(), step(&mut engine).unwrap_err())
    };
    let run = &run;
    let ended: Vec<(Vec<u32>, String)> = thread::scope(|scope| {
        let ranks = devices.into_iter().zip(&choices).zip(world);
        let ranks: Vec<_> =
            ranks.map(|((device, choice), end)| scope.spawn(move || run(device, choice, end))).collect();
        meet.wait();
        limit_files(4096);
        meet.wait();
        let ended = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        limit_files(libc::RLIM_INFINITY);
        ended
    });
    let (first, second) = (&ended[0], &ended[1]);
    assert_eq!(first.0, second.0, "both have the sums, one of them beside its disk");
    assert!(second.1.starts_with("cannot write to the offload file: "), "{}", second.1);
    assert_eq!(first.1, format!("rank 1 ended: {}", second.1));
}
