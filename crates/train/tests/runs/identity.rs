//! Choices of a plan change no bit: recompute, threads, places of buffers, the driver of the loop.
//!
//! Every run here takes five steps of two micro-batches each, so that gradients are replaced, added to and
//! applied, and is compared bit by bit: every loss, every gradient before every update, every norm, and the
//! final weights and moments. Every run also ends with the measured peak equal to the planned one and the bytes
//! behind the arena untouched.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use plimsoll_exec::Data;
use plimsoll_graph::{DType, Graph, GraphError, Init};
use plimsoll_model::Architecture;
use plimsoll_plan::{Purpose, Role, Scratch, Strategy, plan};
use plimsoll_train::data::{Batches, Rows, Sequence, Source, Synthetic};
use plimsoll_train::trainer::{Decay, Lr};
use plimsoll_train::{LanguageModel, Run, Trainer, plan_for};

use crate::support::{Batch, STRATEGIES, Size, bert, gpt2, llama, options, parameters, start};

const STEPS: usize = 5;
const ROWS: usize = 4;
const MICRO_BATCH: usize = 2;
/// Large enough that kernels split their work into several pieces.
const SIZE: Size = Size { vocab: 300, seq: 80, width: 64, layers: 4, ffn: 136, dropout: 0.1 };

/// All numbers of a run, as bits, by their names.
type Trace = BTreeMap<String, Vec<u32>>;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Runs five steps and writes down every number. `disturb` is called before each step.
fn trace(
    run: &mut Run,
    mut step_of: impl FnMut(&mut Run, usize) -> (Vec<f32>, f32),
    disturb: impl Fn(&mut Run),
) -> Trace {
    let mut trace = Trace::new();
    let names = parameters(run);
    for step in 0..STEPS {
        disturb(run);
        let (losses, norm) = step_of(run, step);
        trace.insert(format!("step {step}: losses"), bits(&losses));
        for name in &names {
            trace.insert(format!("step {step}: gradient of {name}"), bits(&run.gradient(name).unwrap()));
        }
        trace.insert(format!("step {step}: norm"), bits(&[norm]));
    }
    for name in &names {
        for state in [name.clone(), format!("m.{name}"), format!("v.{name}")] {
            trace.insert(format!("final {state}"), bits(&run.state(&state).unwrap()));
        }
    }
    check_arena(run);
    trace
}

fn check_arena(run: &Run) {
    assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes, "measured and planned peak");
    assert!(run.engine().device().guard_is_intact(), "bytes behind the arena");
}

#[track_caller]
fn assert_same(got: &Trace, expected: &Trace, what: &str) {
    assert_eq!(got.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{what}");
    for (name, bits) in expected {
        assert!(got[name] == *bits, "{what}: {name} differs");
    }
}

fn family_trace(
    model: &Architecture,
    strategy: Strategy,
    threads: usize,
    disturb: impl Fn(&mut Run),
) -> Trace {
    let documents = matches!(model, Architecture::Bert(_));
    let mut run = start(model, SIZE.seq, &options(ROWS, MICRO_BATCH, strategy, threads));
    let step = |run: &mut Run, step: usize| {
        Batch::synthetic(ROWS, SIZE.seq, SIZE.vocab, documents, step).step(run, 1e-2)
    };
    trace(&mut run, step, disturb)
}

fn check_family(model: &Architecture) {
    let expected = family_trace(model, Strategy::None, 1, |_| ());
    let numbers = expected.values().flatten().map(|&bits| f32::from_bits(bits));
    assert!(numbers.clone().all(f32::is_finite) && numbers.filter(|&x| x != 0.0).count() > 100_000);
    for strategy in STRATEGIES {
        for threads in [1, 2] {
            let got = family_trace(model, strategy, threads, |_| ());
            assert_same(&got, &expected, &format!("{strategy} on {threads} threads"));
        }
    }
}

#[test]
fn every_strategy_trains_a_llama_to_the_same_bits_on_any_number_of_threads() {
    check_family(&llama(SIZE));
}

#[test]
fn every_strategy_trains_a_gpt2_with_dropout_to_the_same_bits_on_any_number_of_threads() {
    check_family(&gpt2(SIZE));
}

#[test]
fn every_strategy_trains_a_bert_with_dropout_to_the_same_bits_on_any_number_of_threads() {
    check_family(&bert(SIZE));
}

#[test]
fn the_amount_of_scratch_changes_no_bit() {
    // Sequences long enough for the head to work in several chunks when it has little scratch.
    let size = Size { seq: 192, layers: 2, ..SIZE };
    let options = options(ROWS, MICRO_BATCH, Strategy::Full, 2);
    let model = LanguageModel { architecture: llama(size), seq_len: size.seq, generate: false, lora: None };
    let traced = |scratch: Scratch| {
        let device = plimsoll_devices::cpu(2).unwrap();
        let mut planned = plan_for(&model, &*device, &options).unwrap();
        planned.choice.plan = plan(&planned.choice.program, Strategy::Full, scratch).unwrap();
        let mut run = Run::start(device, planned, options.seed).unwrap();
        let step = |run: &mut Run, step: usize| {
            Batch::synthetic(ROWS, size.seq, size.vocab, false, step).step(run, 1e-2)
        };
        (trace(&mut run, step, poison), run.plan().arena_bytes.0)
    };
    let ((best, more), (least, less)) = (traced(Scratch::Best), traced(Scratch::Least));
    assert!(less < more, "there is a choice: {less} or {more} bytes");
    assert_same(&least, &best, "with the least scratch");
}

#[test]
fn strategies_really_recompute_something() {
    for strategy in STRATEGIES {
        let run = start(&gpt2(SIZE), SIZE.seq, &options(ROWS, MICRO_BATCH, strategy, 1));
        let actions = run.plan().schedules[&Role::First].actions.len();
        let none = start(&gpt2(SIZE), SIZE.seq, &options(ROWS, MICRO_BATCH, Strategy::None, 1));
        let baseline = none.plan().schedules[&Role::First].actions.len();
        // The families have no marks, so `manual` has nothing to drop; another test gives it some.
        let keeps_all = matches!(strategy, Strategy::None | Strategy::Manual);
        assert_eq!(actions == baseline, keeps_all, "{strategy}: {actions} actions, {baseline} without");
    }
}

/// Fills everything that a step must not rely on with bytes that are NaN: all that is not state, and the
/// gradients, which the first micro-batch replaces.
fn poison(run: &mut Run) {
    let persistent = run.plan().states.iter().map(|range| range.offset + range.bytes).max().unwrap();
    let gradients = run.plan().states.iter().filter(|range| range.purpose == Purpose::Gradients);
    let mut ranges: Vec<(u64, u64)> = gradients.map(|range| (range.offset, range.bytes)).collect();
    ranges.push((persistent, run.plan().arena_bytes.0 - persistent));
    let device = run.engine_mut().device_mut();
    for (offset, bytes) in ranges {
        assert!(bytes > 0);
        device.write(offset, &vec![0xff; bytes as usize]).unwrap();
    }
}

#[test]
fn a_poisoned_arena_changes_nothing() {
    for model in [llama(SIZE), gpt2(SIZE), bert(SIZE)] {
        let expected = family_trace(&model, Strategy::None, 2, |_| ());
        for strategy in [Strategy::None, Strategy::Full, Strategy::Minimal] {
            let got = family_trace(&model, strategy, 2, poison);
            assert_same(&got, &expected, &format!("{strategy} in a poisoned arena"));
        }
    }
}

/// Residual layers under nested `checkpoint` marks, with dropout inside them.
fn marked(rows: usize) -> Result<Graph, GraphError> {
    const WIDTH: usize = 24;
    let mut g = Graph::new();
    let mut x = g.input("x", [rows, WIDTH], DType::F32); // (N, C)
    let targets = g.input("targets", [rows], DType::I32); // (N)
    let scale = g.loss_scale(); // ()
    for layer in 0..3 {
        x = g.block(&format!("layer.{layer}"), |g| {
            let up = g.param("up", [2 * WIDTH, WIDTH], Init::Normal(0.2)); // (2C, C)
            let down = g.param("down", [WIDTH, 2 * WIDTH], Init::Normal(0.2)); // (C, 2C)
            g.checkpoint(|g| {
                let h = g.linear(x, up, None); // (N, 2C)
                let h = g.checkpoint(|g| {
                    let h = g.silu(h); // (N, 2C)
                    g.dropout(h, 0.2) // (N, 2C)
                });
                let h = g.linear(h, down, None); // (N, C)
                let h = g.silu(h); // (N, C)
                g.add(x, h) // (N, C)
            })
        });
    }
    let head = g.param("head", [10, WIDTH], Init::Normal(0.2)); // (V, C)
    let loss = g.head_loss(x, head, None, targets, scale, -100); // ()
    g.output("loss", loss);
    g.finish()
}

#[test]
fn nested_marks_of_the_user_change_no_bit() {
    let x: Vec<f32> = (0..ROWS * 24).map(|i| (i as f32 * 0.37).sin()).collect();
    let targets = [3, 1, -100, 7];
    let traced = |strategy: Strategy, threads: usize| {
        let mut run = Run::new(marked, &options(ROWS, MICRO_BATCH, strategy, threads)).unwrap();
        let step = |run: &mut Run, _: usize| {
            let mut step = run.begin(1e-2, 3);
            let micro_batch = |part: usize| {
                let rows = part * MICRO_BATCH..(part + 1) * MICRO_BATCH;
                let inputs = [
                    ("x", Data::F32(&x[rows.start * 24..rows.end * 24])),
                    ("targets", Data::I32(&targets[rows])),
                ];
                step.backward(&inputs).unwrap()
            };
            let losses = (0..ROWS / MICRO_BATCH).map(micro_batch).collect();
            (losses, step.finish().unwrap().grad_norm)
        };
        let trace = trace(&mut run, step, poison);
        (trace, run.plan().schedules[&Role::First].actions.len())
    };
    let (expected, baseline) = traced(Strategy::None, 1);
    for strategy in STRATEGIES {
        for threads in [1, 2] {
            let (got, actions) = traced(strategy, threads);
            assert_same(&got, &expected, &format!("{strategy} on {threads} threads"));
            assert!(strategy != Strategy::Manual || actions > baseline, "marks drop something");
        }
    }
}

#[test]
fn the_trainer_and_a_loop_of_ones_own_reach_the_same_bits() {
    let lr = Lr { peak: 1e-2, warmup_steps: 2, max_steps: STEPS as u64, decay: Decay::Cosine };
    let source = || Source::Synthetic(Synthetic::new(5, SIZE.vocab, SIZE.seq).unwrap());
    let batches = || Batches::new(source(), ROWS as u64, MICRO_BATCH);
    let begin = |strategy| start(&gpt2(SIZE), SIZE.seq, &options(ROWS, MICRO_BATCH, strategy, 2));

    let mut trainer = Trainer::new(begin(Strategy::Sqrt), batches(), lr);
    let records: Vec<_> = (0..STEPS).map(|_| trainer.step().unwrap()).collect();
    check_arena(trainer.run());

    let (mut run, mut batches) = (begin(Strategy::None), batches());
    let mut memory = Sequence::with_positions(MICRO_BATCH * SIZE.seq);
    for record in records {
        let group = batches.next_group().unwrap();
        let mut step = run.begin(lr.at(record.step) as f32, group.valid_tokens);
        let mut loss = 0.0;
        for which in 0..group.micro_batches {
            let Rows { tokens, targets, doc_start } = memory.rows();
            batches.read(&group, which, Rows { tokens, targets, doc_start }).unwrap();
            let inputs = [("tokens", Data::I32(&memory.tokens)), ("targets", Data::I32(&memory.targets))];
            loss += f64::from(step.backward(&inputs).unwrap());
        }
        let norm = step.finish().unwrap().grad_norm;
        assert_eq!(loss.to_bits(), record.loss.to_bits(), "loss of step {}", record.step);
        assert_eq!(f64::from(norm).to_bits(), record.grad_norm.to_bits(), "norm of step {}", record.step);
    }
    check_arena(&run);
    for name in parameters(&run) {
        let (mine, theirs) = (run.state(&name).unwrap(), trainer.run().state(&name).unwrap());
        assert!(bits(&mine) == bits(&theirs), "{name} differs");
    }
}

#[test]
fn one_flipped_bit_of_a_weight_is_seen_by_the_comparison() {
    let expected = family_trace(&llama(SIZE), Strategy::None, 1, |_| ());
    let got = family_trace(&llama(SIZE), Strategy::None, 1, |run| {
        let name = "model.layers.0.mlp.up_proj.weight";
        let mut weight = run.state(name).unwrap();
        weight[0] = f32::from_bits(weight[0].to_bits() ^ 1);
        run.set_state(name, &weight).unwrap();
    });
    assert!(got != expected);
}
