//! Every kernel, compiled for the host, judged by the conformance cases; and a model that trains with them, timed action by
//! action.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fetched;
#[path = "../../model/tests/support/families.rs"]
mod models;
mod prototypes;
mod support;

use std::sync::Arc;
use std::time::Duration;

use models::{Size, llama};
use plimsoll_cuda::lower::{DocumentForm, Limits};
use plimsoll_cuda::{faulty_cases, half_cases};
use plimsoll_devices::cpu;
use plimsoll_exec::cases::{self, Case};
use plimsoll_exec::conformance::judge;
use plimsoll_exec::{Communicator, Data, Device, Engine, thread_ranks};
use plimsoll_graph::op::Collective;
use plimsoll_graph::{DType, Graph, Op, differentiate};
use plimsoll_plan::{Action, Costed, Program, Role, Scratch, Strategy, plan};
use support::{HostDevice, host_kernels};

/// Limits that cut a head of a few rows into chunks.
const SMALL: Limits =
    Limits { head_bytes: 0, head_rows: 40, deterministic: true, documents: DocumentForm::Masked, rank: 0 };

fn faults(limits: Limits, cases: &[Case]) -> Vec<String> {
    let Some(kernels) = host_kernels() else { return Vec::new() };
    let mut device = HostDevice::new(kernels, limits);
    cases.iter().filter_map(|case| judge(&mut device, case, Scratch::Best).err()).collect()
}

#[test]
fn every_case_holds_with_kernels_built_for_the_host() {
    let faults = faults(Limits::default(), &cases::all());
    assert!(faults.is_empty(), "{}:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn a_head_in_chunks_of_forty_rows_gives_the_same_loss_gradients_and_errors() {
    let faults = faults(SMALL, &heads());
    assert!(faults.is_empty(), "{}:\n{}", faults.len(), faults.join("\n"));
}

fn heads() -> Vec<Case> {
    cases::all().into_iter().filter(|case| case.op.name().starts_with("head_")).collect()
}

#[test]
fn every_case_holds_with_activations_in_bf16() {
    let cases = half_cases();
    assert!(cases.len() > 300, "{} cases", cases.len());
    let faults = faults(Limits::default(), &cases);
    assert!(faults.is_empty(), "{}:\n{}", faults.len(), faults.join("\n"));
}

/// Elements of the exchanged value: shards of two ranks have elements past the end.
const NUMBERS: usize = 5000;

/// Every exchange, one beside work that has nothing to do with it.
fn exchanges(ranks: usize) -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", [50, 100], DType::F32); // (N, C)
    let own = g.apply(Op::Collective(Collective::OwnShard { ranks }), &[x]); // (shard)
    let scattered = g.apply(Op::Collective(Collective::ReduceScatter { ranks }), &[x]); // (shard)
    let beside = g.apply(Op::Silu, &[x]); // (N, C)
    let whole = g.shape(x);
    let gathered = g.apply(Op::Collective(Collective::AllGather { ranks, whole }), &[scattered]); // (N, C)
    let summed = g.apply(Op::Collective(Collective::AllReduce { ranks }), &[beside]); // (N, C)
    let all = [("own", own), ("scattered", scattered), ("gathered", gathered), ("summed", summed)];
    for (name, value) in all {
        g.output(name, value);
    }
    g.finish().unwrap()
}

/// The outputs of every rank, each on a device of its own, as bits.
fn exchanged(ranks: usize, device: impl Fn() -> Box<dyn Device> + Sync) -> Vec<Vec<u32>> {
    let run = |end: Arc<dyn Communicator>| {
        let mut device = device();
        device.join(Arc::clone(&end)).unwrap();
        let graph = exchanges(ranks);
        let facts = device.facts(&graph);
        let program = Program { train: Costed { graph, facts }, evaluate: None, generate: None };
        let plan = plan(&program, Strategy::None, Scratch::Best).unwrap();
        let mut engine = Engine::new(device, &program, &plan, 1).unwrap();
        let x: Vec<f32> = (0..NUMBERS).map(|at| ((at + 7 * end.rank()) as f32).sin()).collect();
        // Twice, because the second run finds the numbers of the first.
        for _ in 0..2 {
            engine.run(Role::Further, &[("x", Data::F32(&x))]).unwrap();
        }
        let mut bits = Vec::new();
        for name in ["own", "scattered", "gathered", "summed"] {
            let elements = engine.output_type(Role::Further, name).unwrap().shape.elements();
            let mut found = vec![f32::NAN; elements];
            engine.output(Role::Further, name, &mut found).unwrap();
            bits.extend(found.iter().map(|number| number.to_bits()));
        }
        bits
    };
    let (ends, run) = (thread_ranks(ranks, Duration::from_mins(1)).unwrap(), &run);
    std::thread::scope(|scope| {
        let threads: Vec<_> = ends.into_iter().map(|end| scope.spawn(move || run(end))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn ranks_exchange_by_lowered_steps_what_they_exchange_on_the_cpu() {
    let Some(kernels) = host_kernels() else { return };
    for ranks in [1, 2, 3] {
        let found = exchanged(ranks, || Box::new(HostDevice::new(kernels, Limits::default())));
        let expected = exchanged(ranks, || cpu(1).unwrap());
        // The two compute exponentials by kernels of their own.
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            let [found, expected] = [found, expected].map(|bits| f32::from_bits(*bits));
            assert!((found - expected).abs() <= 1e-6, "{found} and {expected} on {ranks} ranks");
        }
        assert_eq!(found.concat().len(), expected.concat().len());
    }
}

#[test]
fn an_id_outside_its_table_is_told_when_results_are_read_in_the_words_of_the_cpu() {
    let Some(kernels) = host_kernels() else { return };
    let (mut host, mut cpu) = (HostDevice::new(kernels, Limits::default()), cpu(1).unwrap());
    for case in faulty_cases() {
        let expected = judge(&mut *cpu, &case, Scratch::Best).unwrap_err();
        let told = ["is outside the", "is not a number"];
        assert!(told.iter().any(|part| expected.contains(part)), "{expected}");
        assert_eq!(judge(&mut host, &case, Scratch::Best).unwrap_err(), expected);
    }
    // Reports are cleared.
    let good = cases::all().into_iter().find(|case| case.op.name() == "embedding").unwrap();
    assert!(judge(&mut host, &good, Scratch::Best).is_ok());
}

#[test]
fn a_schedule_that_is_run_action_by_action_gives_each_its_time_and_computes_the_same_bits() {
    let Some(kernels) = host_kernels() else { return };
    let (size, rows) = (Size::GOLDEN, 2);
    let forward = llama(size).training(rows, size.seq).unwrap();
    let graph = differentiate(&forward, forward.output_named("loss").unwrap()).unwrap();
    let device = || HostDevice::new(kernels, Limits::default());
    let facts = device().facts(&graph);
    let program = Program { train: Costed { graph, facts }, evaluate: None, generate: None };
    let plan = plan(&program, Strategy::Full, Scratch::Best).unwrap();
    let words: Vec<i32> = (0..(rows * size.seq) as i32).map(|at| at * 7 % size.vocab as i32).collect();
    let inputs =
        [("tokens", Data::I32(&words)), ("targets", Data::I32(&words)), ("scale", Data::F32(&[0.1]))];
    let trained = |timed: usize| {
        let mut engine = Engine::new(Box::new(device()), &program, &plan, 5).unwrap();
        engine.time_some_runs(1, timed);
        for role in [Role::First, Role::Further, Role::Further, Role::Further] {
            engine.run(role, &inputs).unwrap();
        }
        let mut gradient = vec![0.0; size.vocab * size.width];
        engine.read_state("grad.lm_head.weight", 0, &mut gradient).unwrap();
        (gradient.into_iter().map(f32::to_bits).collect::<Vec<_>>(), engine)
    };
    let [(expected, plain), (bits, engine)] = [0, 2].map(trained);
    assert_eq!(bits, expected);
    let times = |engine: &Engine, role| {
        let actions = engine.action_seconds(role).unwrap().iter().zip(&plan.schedules[&role].actions);
        let runs = actions.filter(|(_, action)| matches!(action, Action::Run { .. }));
        runs.map(|(seconds, _)| seconds.len()).collect::<Vec<_>>()
    };
    // The first run of a schedule is not timed.
    for (role, runs) in [(Role::First, 0), (Role::Further, 2)] {
        assert!(
            times(&engine, role).iter().all(|timed| *timed == runs),
            "{role:?}: {:?}",
            times(&engine, role)
        );
        assert_eq!((engine.timed_runs(role).unwrap(), plain.timed_runs(role).unwrap()), (runs, 0));
    }
}
