//! A fused head with other losses beside it, on layers that route: gradients are those of the whole sum, parts are read one
//! by one, and no plan, thread or division into micro-batches changes a bit more than it may.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use plimsoll_exec::Data;
use plimsoll_exec::reference::{Tensor, init, interpret};
use plimsoll_graph::{
    Axes, DType, Graph, GraphError, Init, Op, Phase, Precision, Type, Value, differentiate,
};
use plimsoll_plan::{ArenaBytes, Choice, Request, Role, Strategy, search};
use plimsoll_train::{Optimizer, Options, Run, Update, program};

use crate::arena::{InArena, assert_planned_peak, device, exactly, start};
use crate::support::lasting_bits;

const ROWS: usize = 4;
const SEQ: usize = 12;
const WIDTH: usize = 16;
const EXPERTS: usize = 8;
const LAYERS: usize = 4;
const VOCAB: usize = 40;
const BALANCE: f32 = 0.02;
const Z: f32 = 0.01;

/// One layer: a network scaled by the scores of the two best experts, and the losses of its router. A balance is counted
/// over one sequence, so that micro-batches add up.
fn layer(g: &mut Graph, x: Value, rows: usize, scale: Value) -> Value {
    let tokens = rows * SEQ;
    let norm = g.param("norm", [WIDTH], Init::Fill(1.0)); // (C)
    let y = g.rms_norm(x, norm, 1e-6); // (N, C)
    let router = g.param("router", [EXPERTS, WIDTH], Init::Normal(0.8)); // (E, C)
    let logits = g.linear(y, router, None); // (N, E)
    let [p, lse] = g.softmax_lse(logits); // (N, E), (N)
    let [weights, _] = g.top_k(p, 2); // (N, k)
    let gate = g.sum(weights, &[1]); // (N)
    let spread = Op::Broadcast { shape: [tokens, WIDTH].into(), axes: Axes::of([1]) };
    let gate = g.apply(spread, &[gate]); // (N, C)
    let up = g.param("up", [2 * WIDTH, WIDTH], Init::Normal(0.3)); // (F, C)
    let down = g.param("down", [WIDTH, 2 * WIDTH], Init::Normal(0.3)); // (C, F)
    let h = g.linear(y, up, None); // (N, F)
    let h = g.silu(h); // (N, F)
    let h = g.linear(h, down, None); // (N, C)
    let h = g.mul(h, gate); // (N, C)
    let by_sequence = g.reshape(p, [rows, SEQ, EXPERTS]); // (B, T, E)
    let load = g.sum(by_sequence, &[1]); // (B, E)
    for (name, value, axes, weight) in [("balance", load, &[0, 1][..], BALANCE), ("z", lse, &[0], Z)] {
        let squares = g.mul(value, value);
        let total = g.sum(squares, axes); // ()
        let loss = g.mul(total, scale); // ()
        g.add_loss(name, loss, weight);
    }
    g.add(x, h) // (N, C)
}

fn model(rows: usize) -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let ids = g.input("ids", [rows * SEQ], DType::I32); // (N)
    let targets = g.input("targets", [rows * SEQ], DType::I32); // (N)
    let scale = g.loss_scale(); // ()
    let table = g.param("table", [VOCAB, WIDTH], Init::Normal(0.5)); // (V, C)
    let mut x = g.embedding(table, ids); // (N, C)
    for index in 0..LAYERS {
        x = g.block(&format!("layer.{index}"), |g| layer(g, x, rows, scale));
    }
    let norm = g.param("norm", [WIDTH], Init::Fill(1.0)); // (C)
    let x = g.rms_norm(x, norm, 1e-6); // (N, C)
    let head = g.param("head", [VOCAB, WIDTH], Init::Normal(0.3)); // (V, C)
    let loss = g.head_loss(x, head, None, targets, scale, -100); // ()
    g.output("loss", loss);
    g.finish()
}

/// Ids and targets of the whole batch; every seventh target carries no loss.
fn batch() -> [Vec<i32>; 2] {
    let ids = (0..ROWS * SEQ).map(|at| ((at * 7919 + 13) % 37) as i32).collect();
    let targets = (0..ROWS * SEQ).map(|at| if at % 7 == 3 { -100 } else { ((at * 104_729) % 39) as i32 });
    [ids, targets.collect()]
}

fn options(micro_batch: usize, threads: usize, update: Update, precision: Precision) -> Options {
    let optimizer = Optimizer { max_grad_norm: None, ..Optimizer::default() };
    let micro_batch = Some(micro_batch);
    Options { global_batch: ROWS, micro_batch, update, optimizer, threads, precision, ..Options::default() }
}

fn planned(options: &Options, strategy: Option<Strategy>, budget: u64) -> Choice {
    let device = device(options.threads, None);
    let (global_batch, micro_batch) = (options.global_batch, options.micro_batch);
    let request = Request { global_batch, micro_batch, strategy, budget: ArenaBytes(budget), slack: 0.0 };
    search(request, |rows| program(&model, &*device, options, rows)).unwrap()
}

/// One step; its loss, its parts, and the gradients where they outlive the backward pass.
struct Stepped {
    loss: f32,
    added: BTreeMap<String, f32>,
    gradients: BTreeMap<String, Vec<f32>>,
}

fn step(run: &mut Run, lr: f32) -> Stepped {
    let [ids, targets] = batch();
    let tokens = ROWS * SEQ / run.accumulation();
    let parts = ids.chunks(tokens).zip(targets.chunks(tokens));
    let batches: Vec<_> =
        parts.map(|(ids, targets)| [("ids", Data::I32(ids)), ("targets", Data::I32(targets))]).collect();
    let loss = run.step(lr, &batches).unwrap().loss;
    let added = run.added_losses().map(|(name, sum)| (name.to_owned(), sum)).collect();
    let names: Vec<String> =
        run.states().filter_map(|(name, _)| name.strip_prefix("grad.").map(str::to_owned)).collect();
    let gradients =
        names.into_iter().filter_map(|name| Some((name.clone(), run.gradient(&name).ok()?))).collect();
    Stepped { loss, added, gradients }
}

/// Two steps by a plan; all losses and the final weights, as bits.
fn trace(choice: Choice, threads: usize) -> Vec<u32> {
    let mut run = start(threads, exactly(choice));
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let Stepped { loss, added, .. } = step(&mut run, 1e-2);
        numbers.push(loss);
        numbers.extend(added.values());
    }
    assert_planned_peak(&run);
    numbers.into_iter().map(f32::to_bits).chain(lasting_bits(&run)).collect()
}

#[test]
fn the_head_is_one_node_and_its_layers_are_a_chain() {
    let forward = model(ROWS).unwrap();
    let graph = differentiate(&forward, forward.output_named("loss").unwrap()).unwrap();
    let count = |name: &str| graph.nodes().iter().filter(|node| node.op.name() == name).count();
    assert_eq!([count("head_loss"), count("head_loss_grad")], [0, 1]);
    let turn = graph.nodes().iter().find(|node| node.phase == Phase::Backward).unwrap();
    assert_eq!(turn.op.name(), "head_loss_grad", "the backward pass begins with it");
}

#[test]
fn every_plan_and_number_of_threads_gives_the_same_bits_and_the_choice_is_made_once() {
    for precision in [Precision::F32, Precision::Bf16] {
        let separate = |threads| options(2, threads, Update::Separate, precision);
        let expected = trace(planned(&separate(1), Some(Strategy::None), u64::MAX), 1);
        let [least, most] = {
            let case = InArena { model, options: separate(2), micro_batch: 2 };
            [case.smallest(None), case.plan(None, u64::MAX).unwrap().plan.arena_bytes.0]
        };
        assert!(least < most);
        let named = [Strategy::None, Strategy::Selective, Strategy::Full, Strategy::Sqrt, Strategy::Minimal];
        let named = named.into_iter().map(|strategy| (Some(strategy), u64::MAX));
        let auto =
            [least, least + (most - least) / 8, least + (most - least) / 3, u64::midpoint(least, most), most];
        for (strategy, budget) in named.chain(auto.map(|budget| (None, budget))) {
            for threads in [1, 2] {
                let choice = planned(&separate(threads), strategy, budget);
                let graph = &choice.program.train.graph;
                let runs = choice.plan.schedules[&Role::First].executions(graph);
                for (node, times) in graph.nodes().iter().zip(&runs) {
                    assert!(*times <= 1 || !node.op.is_once(), "{} runs {times} times", node.op.name());
                }
                assert!(choice.plan.arena_bytes.0 <= budget);
                assert!(
                    trace(choice, threads) == expected,
                    "{strategy:?} in {budget} bytes, {threads} threads"
                );
            }
        }
    }
}

#[test]
fn updates_inside_the_backward_pass_give_the_bits_of_those_behind_it() {
    let plan = |update| planned(&options(ROWS, 2, update, Precision::F32), None, u64::MAX);
    let expected = trace(plan(Update::Separate), 2);
    assert!(trace(plan(Update::InBackward), 2) == expected);
}

#[test]
fn micro_batches_add_up_to_the_losses_and_gradients_of_the_whole() {
    let one = |micro_batch| {
        let options = options(micro_batch, 2, Update::Separate, Precision::F32);
        let mut run = start(2, exactly(planned(&options, None, u64::MAX)));
        assert_eq!(run.accumulation(), ROWS / micro_batch);
        step(&mut run, 0.0)
    };
    let whole = one(ROWS);
    assert_eq!(whole.added.len(), 2 * LAYERS);
    let near = |a: f32, b: f32| (a - b).abs() <= 3e-6 * a.abs().max(1.0);
    for micro_batch in [1, 2] {
        let parts = one(micro_batch);
        assert!(near(whole.loss, parts.loss));
        for (name, value) in &whole.added {
            assert!(near(*value, parts.added[name]), "{name}: {value} and {}", parts.added[name]);
        }
        for (name, gradient) in &whole.gradients {
            let largest = gradient.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            let apart =
                gradient.iter().zip(&parts.gradients[name]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart <= 3e-6 * largest, "{name}: {apart} of {largest}");
        }
    }
}

/// The derivative of `loss + Σ weight · part` in one direction, by the gradients of a run and by differences of the
/// reference's forward pass. A direction of unit length and a step of 0.01 leave every choice as it is here; f32 losses
/// then give a quotient that is good to 10⁻⁵.
#[test]
fn gradients_are_those_of_the_weighted_sum() {
    const STEP: f64 = 1e-2;
    let forward = model(ROWS).unwrap();
    let [ids, targets] = batch();
    let valid = targets.iter().filter(|&&target| target != -100).count();
    let inputs: BTreeMap<String, Tensor> = [
        ("ids", Tensor::i32([ROWS * SEQ], ids)),
        ("targets", Tensor::i32([ROWS * SEQ], targets)),
        ("scale", Tensor::scalar(1.0 / valid as f32)),
    ]
    .map(|(name, tensor)| (name.to_owned(), tensor))
    .into();
    let direction: BTreeMap<String, Vec<f64>> = {
        let numbers = |name: &str, count: usize| -> Vec<f64> {
            (0..count).map(|at| ((at * 31 + name.len() * 17 + 7) % 19) as f64 - 9.0).collect()
        };
        let mut all: BTreeMap<String, Vec<f64>> = (forward.states().iter())
            .map(|state| (state.name.clone(), numbers(&state.name, state.ty.shape.elements())))
            .collect();
        let length = all.values().flatten().map(|x| x * x).sum::<f64>().sqrt();
        all.values_mut().flatten().for_each(|x| *x /= length);
        all
    };
    let total = |t: f64| {
        let moved = |name: &str, ty: Type, tensor: Tensor| {
            let numbers = tensor.numbers().into_iter().zip(&direction[name]).map(|(x, d)| x + t * d);
            Tensor::from_numbers(ty, &numbers.collect::<Vec<_>>())
        };
        let states = forward.states().iter();
        let mut states: BTreeMap<String, Tensor> =
            states.map(|s| (s.name.clone(), moved(&s.name, s.ty, init(s, 7)))).collect();
        let outputs = interpret(&forward, &inputs, &mut states, Phase::Forward, true).unwrap();
        let added = forward.added_losses().iter();
        let added: f64 = added.map(|a| f64::from(a.weight) * outputs[&a.name].numbers()[0]).sum();
        outputs["loss"].numbers()[0] + added
    };
    let difference =
        (8.0 * (total(STEP) - total(-STEP)) - (total(2.0 * STEP) - total(-2.0 * STEP))) / (12.0 * STEP);
    let options = options(2, 2, Update::Separate, Precision::F32);
    let mut run = start(2, exactly(planned(&options, Some(Strategy::Full), u64::MAX)));
    let stepped = step(&mut run, 0.0);
    let dot = |name: &String, d: &Vec<f64>| -> f64 {
        stepped.gradients[name].iter().zip(d).map(|(g, d)| f64::from(*g) * d).sum()
    };
    let analytic: f64 = direction.iter().map(|(name, d)| dot(name, d)).sum();
    let length = stepped.gradients.values().flatten().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
    assert!((analytic - difference).abs() <= 1e-4 * length, "{analytic} is not {difference}, of {length}");
    // The routers' share is not lost in the whole.
    let router: f64 = stepped.gradients["layer.0.router"].iter().map(|g| f64::from(*g).powi(2)).sum();
    assert!(router.sqrt() > 1e-2 * length, "{router}");
}
