//! A value that leaves for the disk after the forward pass and comes back before the backward pass, in a
//! schedule written by hand, changes no bit of the gradient.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_exec::{CpuDevice, Data, Device, Engine, ExecError};
use plimsoll_graph::{DType, Graph, Init, Phase, Value, differentiate};
use plimsoll_plan::{
    Action, Buffer, BufferId, Contents, Copy, Costed, Direction, Plan, Program, Role, Schedule, Scratch,
    Strategy, Tier, plan,
};

const ROWS: usize = 64;
const WIDTH: usize = 96;

fn program(device: &CpuDevice) -> Program {
    let mut g = Graph::new();
    let mut x = g.input("x", [ROWS, WIDTH], DType::F32);
    for layer in 0..3 {
        x = g.block(&format!("layer.{layer}"), |g| {
            let w = g.param("w", [WIDTH, WIDTH], Init::Normal(0.1));
            let h = g.linear(x, w, None);
            g.silu(h)
        });
    }
    let loss = g.sum(x, &[0, 1]);
    g.output("loss", loss);
    let graph = differentiate(&g.finish().unwrap(), loss).unwrap();
    let facts = device.facts(&graph);
    Program { train: Costed { graph, facts }, evaluate: None, generate: None }
}

/// The first product: written early, read again late in the backward pass.
fn offloaded(graph: &Graph) -> Value {
    graph.nodes()[0].outputs[0]
}

/// Sends `value` out when its last forward reader is done, and brings it back into bytes of its own just
/// before its backward readers.
fn with_offload(graph: &Graph, schedule: &Schedule, value: Value, fresh: u64) -> Schedule {
    let mut schedule = schedule.clone();
    let old = schedule.buffers.iter().position(|b| b.contents == Contents::Value(value)).unwrap();
    let old = BufferId(old as u32);
    let new = BufferId(schedule.buffers.len() as u32);
    let copied = Buffer { offset: fresh, ..*schedule.buffer(old) };
    schedule.buffers.push(copied);
    let copy = |buffer, direction| Copy::new(buffer, Tier::Disk, 4096, direction);
    schedule.copies = vec![copy(old, Direction::Out), copy(new, Direction::In)];
    let mut actions = Vec::new();
    let (mut sent, mut back) = (false, false);
    for mut action in schedule.actions {
        let Action::Run { node, inputs, .. } = &mut action else { unreachable!() };
        let backward = graph.node(*node).phase == Phase::Backward;
        if backward && !sent {
            actions.extend([Action::Start { copy: 0 }, Action::Wait { copy: 0 }, Action::Start { copy: 1 }]);
            sent = true;
        }
        for id in inputs.iter_mut().filter(|id| backward && **id == old) {
            *id = new;
            if !back {
                actions.push(Action::Wait { copy: 1 });
                back = true;
            }
        }
        actions.push(action);
    }
    assert!(sent && back);
    Schedule { actions, ..schedule }
}

fn gradients(engine: &mut Engine) -> Vec<u32> {
    let x: Vec<f32> = (0..ROWS * WIDTH).map(|i| (i as f32 * 0.37).sin()).collect();
    engine.run(Role::First, &[("x", Data::F32(&x))]).unwrap();
    let mut all = Vec::new();
    for layer in 0..3 {
        let mut gradient = vec![0.0; WIDTH * WIDTH];
        engine.read_state(&format!("grad.layer.{layer}.w"), 0, &mut gradient).unwrap();
        all.extend(gradient.iter().map(|x| x.to_bits()));
    }
    all
}

fn offloading_plan(program: &Program, plain: &Plan) -> Plan {
    let graph = &program.train.graph;
    let value = offloaded(graph);
    let mut draft = plain.to_draft();
    draft.arena_bytes.0 += graph.ty(value).bytes() as u64;
    for schedule in draft.schedules.values_mut() {
        *schedule = with_offload(graph, schedule, value, plain.arena_bytes.0);
    }
    draft.judge(program).unwrap()
}

#[test]
fn what_went_to_disk_and_back_is_the_same_to_the_bit() {
    let device = CpuDevice::new(2).unwrap();
    let program = program(&device);
    let plain = plan(&program, Strategy::None, Scratch::Best).unwrap();
    let offloading = offloading_plan(&program, &plain);
    let mut kept = Engine::new(Box::new(device), &program, &plain, 1).unwrap();
    let device = CpuDevice::new(2).unwrap().with_offload_folder(std::env::temp_dir());
    let mut sent = Engine::new(Box::new(device), &program, &offloading, 1).unwrap();
    for _ in 0..3 {
        assert_eq!(gradients(&mut sent), gradients(&mut kept));
    }
    assert_eq!(sent.measured_peak(), offloading.arena_bytes);
}

#[test]
fn a_schedule_that_offloads_needs_a_folder() {
    let device = CpuDevice::new(1).unwrap();
    let program = program(&device);
    let plain = plan(&program, Strategy::None, Scratch::Best).unwrap();
    let plan = offloading_plan(&program, &plain);
    let error = Engine::new(Box::new(device), &program, &plan, 1).unwrap_err();
    assert_eq!(error, ExecError::Unsupported("no folder was named to offload to".into()));
}
