//! A device that works late is judged by the conformance cases and trains a model beside the CPU.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "late/device.rs"]
mod device;
use device::Late;
use plimsoll_devices::{cpu, threads};
use plimsoll_exec::conformance::{DrawnCase, judge};
use plimsoll_exec::{Data, Device, Engine, ExecError, cases};
use plimsoll_graph::{DType, Graph, GraphError, Init, differentiate};
use plimsoll_plan::{Costed, Plan, Program, Role, Scratch, Strategy, plan};

/// A late device over a number of threads.
fn late(threads: usize) -> Late {
    Late::new(cpu(threads).unwrap())
}

#[test]
fn a_device_that_works_late_passes_all_conformance_cases() {
    let mut devices = [1, 2].map(late);
    let ways = [(0, Scratch::Best), (1, Scratch::Best), (0, Scratch::Least)];
    let mut faults = Vec::new();
    for case in &cases::all() {
        let drawn = DrawnCase::new(case).unwrap();
        for (device, scratch) in ways {
            let fault = drawn.judge(&mut devices[device], scratch).err();
            faults.extend(fault.map(|why| format!("{} threads, {scratch:?}: {why}", device + 1)));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

const ROWS: usize = 6;
const WIDTH: usize = 8;

/// Two layers, a head and its loss.
fn model() -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let x = g.input("x", [ROWS, WIDTH], DType::F32); // (N, C)
    let targets = g.input("targets", [ROWS], DType::I32); // (N)
    let scale = g.loss_scale(); // ()
    let mut h = x;
    for layer in 0..2 {
        let w = g.param(&format!("layer.{layer}"), [WIDTH, WIDTH], Init::Normal(0.3)); // (C, C)
        let y = g.linear(h, w, None); // (N, C)
        h = g.silu(y); // (N, C)
    }
    let head = g.param("head", [5, WIDTH], Init::Normal(0.3)); // (V, C)
    let loss = g.head_loss(h, head, None, targets, scale, -100); // ()
    g.output("loss", loss);
    let forward = g.finish()?;
    differentiate(&forward, loss)
}

/// The loss and all gradients after a micro-batch that replaces them and one that adds to them.
fn trained(device: Box<dyn Device>, program: &Program, plan: &Plan) -> Result<Vec<u32>, ExecError> {
    let mut engine = Engine::new(device, program, plan, 3)?;
    let x: Vec<f32> = (0..ROWS * WIDTH).map(|i| (i as f32).sin()).collect();
    for (role, targets) in [(Role::First, [0, 1, 2, 3, 4, 0]), (Role::Further, [1, 1, 2, -100, 3, 0])] {
        let inputs = [("x", Data::F32(&x)), ("targets", Data::I32(&targets)), ("scale", Data::F32(&[0.2]))];
        engine.run(role, &inputs)?;
        engine.observe(role, "loss")?;
    }
    let mut bits: Vec<u32> = engine.observed()?.map(f32::to_bits).collect();
    assert_eq!(bits.len(), 2, "one loss of each micro-batch");
    assert_eq!(bits[1], engine.scalar(Role::Further, "loss")?.to_bits());
    let states: Vec<(String, usize)> =
        engine.states().map(|(name, ty)| (name.to_owned(), ty.shape.elements())).collect();
    for (name, elements) in states {
        let mut values = vec![0.0; elements];
        engine.read_state(&name, 0, &mut values)?;
        bits.extend(values.iter().map(|value| value.to_bits()));
    }
    assert_eq!(engine.measured_peak(), plan.arena_bytes);
    Ok(bits)
}

#[test]
fn a_device_that_works_late_computes_the_same_bits_under_every_strategy() {
    let graph = model().unwrap();
    let device = cpu(2).unwrap();
    let facts = device.facts(&graph);
    let program = Program { train: Costed { graph, facts }, evaluate: None, generate: None };
    for strategy in [Strategy::None, Strategy::Full, Strategy::Minimal] {
        let plan = plan(&program, strategy, Scratch::Best).unwrap();
        let expected = trained(cpu(2).unwrap(), &program, &plan).unwrap();
        assert_eq!(trained(Box::new(late(threads(0))), &program, &plan).unwrap(), expected, "{strategy}");
    }
}

#[test]
fn a_fault_of_the_data_is_told_when_results_are_read() {
    let embedding = cases::all().into_iter().find(|case| case.op.name() == "embedding").unwrap();
    let mut faulty = embedding.clone();
    faulty.inputs[1].fill = cases::Fill::Number(1234.0);
    let mut late = late(1);
    let said = judge(&mut late, &faulty, Scratch::Best).unwrap_err();
    assert_eq!(said, judge(&mut *cpu(1).unwrap(), &faulty, Scratch::Best).unwrap_err());
    assert!(judge(&mut late, &embedding, Scratch::Best).is_ok(), "the fault is over");
}
