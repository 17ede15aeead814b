//! Training in a random subspace: against the plain model with the moved weights, byte by byte against its plan, and against
//! itself on other threads and under other plans.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_exec::Projection;
use plimsoll_graph::{Precision, StateKind};
use plimsoll_model::lora::{AdapterKind, Intrinsic};
use plimsoll_model::{Architecture, Lora};
use plimsoll_plan::Strategy;
use plimsoll_train::{FloatStorage, LanguageModel, Options, Run, StateStorage, WeightStorage};

use crate::support::{Batch, Size, families, gpt2, lasting_bits, options, start};

const SIZE: Size = Size { vocab: 130, seq: 24, width: 64, layers: 2, ffn: 136, dropout: 0.0 };
const F32: StateStorage =
    StateStorage { weights: WeightStorage::F32, gradients: FloatStorage::F32, moments: FloatStorage::F32 };

fn lora(dimension: usize, per_layer: bool) -> Lora {
    let kind = AdapterKind::Intrinsic(Intrinsic { dimension, per_layer, seed: 3 });
    Lora { kind, ..Lora::default() }
}

fn begin(architecture: &Architecture, lora: Lora, options: &Options) -> Run {
    let architecture = architecture.clone();
    let model = LanguageModel { architecture, seq_len: SIZE.seq, generate: false, lora: Some(lora) };
    Run::new(model, options).unwrap()
}

fn batch(documents: bool) -> Batch {
    Batch::synthetic(4, SIZE.seq, SIZE.vocab, documents, 0)
}

#[test]
fn a_moved_model_has_the_loss_of_the_plain_one_with_the_same_weights() {
    for (name, model) in families(SIZE) {
        let batch = batch(name == "bert");
        for per_layer in [false, true] {
            let (form, options) = (lora(500, per_layer), options(4, 2, Strategy::None, 1));
            let mut moved = begin(&model, form.clone(), &options);
            let coordinates = form.coordinates(&model.training(1, 1).unwrap()).unwrap();
            let mut plain = start(&model, SIZE.seq, &options);
            for of in coordinates.values() {
                let v: Vec<f32> = (0..of.count).map(|i| (i % 17) as f32 / 256.0 - 0.03).collect();
                moved.set_state(&of.name, &v).unwrap();
            }
            for (parameter, of) in &coordinates {
                let (v, mut weight) = (moved.state(&of.name).unwrap(), moved.state(parameter).unwrap());
                Projection::new(of.stream, of.count).add(&v, 0, &mut weight);
                plain.set_state(parameter, &weight).unwrap();
            }
            assert_eq!(batch.step(&mut moved, 0.0).0, batch.step(&mut plain, 0.0).0, "{name} {per_layer}");
        }
    }
}

#[test]
fn only_coordinates_have_gradients_and_moments_and_the_peak_is_the_planned_one() {
    let model = gpt2(SIZE);
    let mut run = begin(&model, lora(300, false), &options(4, 2, Strategy::Minimal, 1));
    let of =
        |kind: StateKind| -> usize { run.states_of(|known| known == kind).map(|(_, ty)| ty.bytes()).sum() };
    assert_eq!(of(StateKind::Parameter { trainable: true }), 4 * 300);
    assert_eq!(of(StateKind::Gradient), 4 * 300);
    assert_eq!(of(StateKind::Moment), 2 * 4 * 300);
    let (frozen, whole) = (of(StateKind::Parameter { trainable: false }), run.plan().arena_bytes);
    batch(false).step(&mut run, 1e-3);
    assert_eq!(run.engine().measured_peak(), whole);
    // Full training holds weights, gradients and two moments.
    let full = start(&model, SIZE.seq, &options(4, 2, Strategy::Minimal, 1)).plan().arena_bytes;
    assert!(full.0 - whole.0 > 2 * frozen as u64, "{whole} of {full}, weights {frozen}");
}

#[test]
fn losses_fall_and_neither_threads_nor_plans_change_a_bit() {
    let half = StateStorage { weights: WeightStorage::Bf16Master, ..F32 };
    for (storage, precision) in [(F32, Precision::F32), (half, Precision::F32), (half, Precision::Bf16)] {
        let train = |strategy, threads| {
            let options = Options { storage, precision, ..options(4, 2, strategy, threads) };
            let mut run = begin(&gpt2(SIZE), lora(2000, false), &options);
            let losses: Vec<f32> = (0..8).map(|_| batch(false).step(&mut run, 3e-3).0.iter().sum()).collect();
            assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes, "{strategy}");
            (losses, lasting_bits(&run))
        };
        let (losses, bits) = train(Strategy::None, 1);
        assert!(losses[7] < losses[0], "{storage:?} {precision}: {losses:?}");
        for (strategy, threads) in [(Strategy::Full, 2), (Strategy::Minimal, 1)] {
            let (other, same) = train(strategy, threads);
            assert_eq!(other, losses, "{storage:?} {precision} {strategy}");
            assert!(same == bits, "{storage:?} {precision} {strategy}");
        }
    }
}
