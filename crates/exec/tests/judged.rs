//! Safe code cannot make a device touch bytes against the rules, neither by a plan for another device, nor by an unjudged
//! schedule, nor by bytes of a transfer under way.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_exec::{CpuDevice, Device, Engine};
use plimsoll_graph::{DType, Graph, Init, differentiate};
use plimsoll_plan::{
    Action, BufferId, Choice, Contents, Costed, Facts, Judged, Plan, Program, Role, Schedule, Scratch, Space,
    Strategy, Workspace, plan, runnable,
};

#[path = "support/streaming.rs"]
mod streaming;
use streaming::disk::device;
use streaming::{WIDTH, pass, streaming};

/// A product, whose kernel needs scratch, and a sum of an odd number of elements.
fn graph() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", [37, 33], DType::F32); // (N, C)
    let w = g.param("w", [19, 33], Init::Normal(0.1)); // (D, C)
    let y = g.linear(x, w, None); // (N, D)
    let y = g.silu(y); // (N, D)
    let loss = g.sum(y, &[0, 1]); // ()
    g.output("loss", loss);
    let forward = g.finish().unwrap();
    differentiate(&forward, loss).unwrap()
}

/// The program with facts of a device that does not exist.
fn program(alter: impl Fn(&mut Facts)) -> Program {
    let graph = graph();
    let mut facts = CpuDevice::new(1).unwrap().facts(&graph);
    alter(&mut facts);
    Program { train: Costed { graph, facts }, evaluate: None, generate: None }
}

/// The error of an engine for a plan that was made with those facts.
fn refusal(alter: impl Fn(&mut Facts)) -> String {
    let program = program(alter);
    let plan = plan(&program, Strategy::None, Scratch::Least).unwrap();
    let device = Box::new(CpuDevice::new(1).unwrap());
    Engine::prepare(device, &program, &plan).map(drop).unwrap_err().to_string()
}

#[test]
fn a_plan_with_less_alignment_or_scratch_than_the_device_wants_does_not_run() {
    let error = refusal(|facts| facts.alignment = 1);
    assert!(error.contains("planned for another device") && error.contains("multiples of 64"), "{error}");
    let error = refusal(|facts| {
        facts.nodes.iter_mut().for_each(|node| node.workspace = Workspace::default());
    });
    assert!(error.contains("gets 0 bytes of scratch and needs "), "{error}");
    let own = program(|_| ());
    let plan = plan(&own, Strategy::None, Scratch::Least).unwrap();
    Engine::prepare(Box::new(CpuDevice::new(1).unwrap()), &own, &plan).unwrap();
}

/// The first schedule after an alteration, through the judge and then to a device.
fn prepared(alter: impl Fn(&mut Schedule)) -> Result<(), String> {
    let program = program(|_| ());
    let plan = plan(&program, Strategy::None, Scratch::Best).unwrap();
    let mut schedule = plan.schedules[&Role::First].clone();
    alter(&mut schedule);
    let arena = plan.arena_bytes.0 + 64;
    let judged = [Judged { role: Role::First, graph: &program.train.graph, schedule: &schedule }];
    let judged = runnable(&judged, arena).map_err(|(_, error)| format!("the judge: {error}"))?;
    let mut device = CpuDevice::new(1).unwrap();
    device.reserve(Space { arena, ..Space::default() }).unwrap();
    device.prepare(&judged[0]).map(drop).map_err(|error| format!("the device: {error}"))
}

/// The row of the scratch that a run has.
fn scratch(schedule: &Schedule) -> usize {
    schedule.buffers.iter().position(|buffer| buffer.contents == Contents::Scratch).unwrap()
}

#[test]
fn a_schedule_reaches_a_device_through_the_judge_alone() {
    prepared(|_| ()).unwrap();
    let shifted = prepared(|schedule| schedule.buffers.iter_mut().for_each(|buffer| buffer.offset += 1));
    assert!(shifted.clone().unwrap_err().starts_with("the device: "), "{shifted:?}");
    let lean = prepared(|schedule| {
        let row = scratch(schedule);
        schedule.buffers[row].bytes = 64;
    });
    assert!(lean.clone().unwrap_err().starts_with("the device: "), "{lean:?}");
    let covering = prepared(|schedule| {
        let (row, weight) = (scratch(schedule), schedule.buffers[0].offset);
        schedule.buffers[row].offset = weight;
    });
    assert!(covering.clone().unwrap_err().starts_with("the judge: "), "{covering:?}");
    let beyond = prepared(|schedule| {
        let row = scratch(schedule);
        schedule.buffers[row].offset = 1 << 40;
    });
    assert!(beyond.clone().unwrap_err().starts_with("the judge: "), "{beyond:?}");
}

/// The bytes of the arena from which an update sends state out and does not wait.
fn left_open(schedule: &Schedule) -> Vec<(u64, u64)> {
    let waited = |copy: usize| schedule.actions.contains(&Action::Wait { copy });
    let open = schedule.copies.iter().enumerate().filter(|(copy, _)| !waited(*copy));
    let buffers = open.filter_map(|(_, copy)| copy.buffer()).map(|id: BufferId| schedule.buffer(id));
    buffers.map(|buffer| (buffer.offset, buffer.bytes)).collect()
}

#[test]
fn an_input_written_where_a_transfer_is_under_way_waits_for_it() {
    let choice = streaming();
    let open = left_open(&choice.plan.schedules[&Role::Update]);
    let moment = |disturb: bool| {
        let mut engine = Engine::new(Box::new(device()), &choice.program, &choice.plan, 1).unwrap();
        for role in [Role::First, Role::Update] {
            pass(&mut engine, role).unwrap();
        }
        for &(offset, bytes) in open.iter().filter(|_| disturb) {
            engine.device_mut().write_input(offset, &vec![0xff; bytes as usize]).unwrap();
        }
        let mut values = ["m", "v"].map(|_| vec![0.0; WIDTH * WIDTH]);
        for (name, values) in ["m", "v"].into_iter().zip(&mut values) {
            engine.read_state(name, 0, values).unwrap();
        }
        values.concat().into_iter().map(f32::to_bits).collect::<Vec<u32>>()
    };
    let expected = moment(false);
    for _ in 0..20 {
        assert!(moment(true) == expected, "the disk got what was written as an input");
    }
}

/// The plan, whose first schedule also starts every transfer by which the update begins, and the bytes into which these go.
fn fetching_ahead(choice: &Choice) -> (Plan, Vec<(u64, u64)>) {
    let mut draft = choice.plan.to_draft();
    let update = draft.schedules[&Role::Update].clone();
    let begins = update.actions.iter().take_while(|action| !matches!(action, Action::Run { .. }));
    let started = begins.filter_map(|action| match action {
        Action::Start { copy } => Some(*copy),
        _ => None,
    });
    let started: Vec<usize> = started.collect();
    let ahead = started.iter().map(|&copy| Action::StartNext { role: Role::Update, copy });
    draft.schedules.get_mut(&Role::First).unwrap().actions.extend(ahead);
    let buffers = started.iter().map(|&copy| update.buffer(update.copies[copy].buffer().unwrap()));
    let places = buffers.map(|buffer| (buffer.offset, buffer.bytes)).collect();
    (draft.judge(&choice.program).unwrap(), places)
}

#[test]
fn an_output_read_where_a_transfer_is_under_way_waits_for_it() {
    let choice = streaming();
    let (plan, ahead) = fetching_ahead(&choice);
    assert!(!ahead.is_empty(), "the update begins with no transfer");
    let landed = |wait: bool| {
        let mut engine = Engine::new(Box::new(device()), &choice.program, &plan, 1).unwrap();
        for role in [Role::First, Role::Update, Role::First] {
            pass(&mut engine, role).unwrap();
        }
        if wait {
            engine.settle().unwrap();
        }
        let read = |&(offset, bytes): &(u64, u64)| {
            let mut values = vec![0; bytes as usize];
            engine.device().read_output(offset, &mut values).unwrap();
            values
        };
        ahead.iter().flat_map(read).collect::<Vec<u8>>()
    };
    let expected = landed(true);
    for _ in 0..20 {
        assert!(landed(false) == expected, "an output was read before its bytes were there");
    }
}
