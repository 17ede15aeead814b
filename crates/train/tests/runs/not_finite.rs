//! A loss or a gradient that is not finite is found before the update, which then changes nothing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_exec::Data;
use plimsoll_plan::Strategy;
use plimsoll_train::{Run, TrainError};

use crate::support::{Batch, Size, bert, gpt2, lasting_bits, options, start};

const SIZE: Size = Size { dropout: 0.1, ..Size::GOLDEN };

fn batch(step: usize) -> Batch {
    Batch::synthetic(4, SIZE.seq, SIZE.vocab, false, step)
}

fn trained(steps: usize) -> Run {
    let mut run = start(&gpt2(SIZE), SIZE.seq, &options(4, 2, Strategy::Full, 2));
    for step in 0..steps {
        batch(step).step(&mut run, 1e-2);
    }
    if steps > 0 {
        assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes);
    }
    run
}

/// The first micro-batch with a scale of its own.
fn scaled<'a>(batch: &'a Batch, scale: &'a [f32]) -> Vec<(&'static str, Data<'a>)> {
    let inputs = batch.micro_batches(2).next().unwrap();
    inputs.into_iter().chain([("scale", Data::F32(scale))]).collect()
}

#[test]
fn a_loss_that_is_not_finite_stops_the_step_and_changes_nothing() {
    let mut run = trained(2);
    let before = lasting_bits(&run);
    let inputs = batch(2);
    let mut step = run.begin(1e-2, inputs.valid() as u64);
    let good = inputs.backward(&mut step, 2);
    assert!(good.iter().all(|loss| loss.is_finite()));
    // A further micro-batch of the same step has a scale that no number survives.
    assert!(!step.backward(&scaled(&inputs, &[f32::INFINITY])).unwrap().is_finite());
    assert!(matches!(step.finish(), Err(TrainError::NotFinite { step: 3, what: "loss" })));
    assert_eq!(lasting_bits(&run), before);
}

#[test]
fn a_target_that_is_impossible_stops_the_step_although_other_gradients_are_finite() {
    let mut run = start(&bert(SIZE), SIZE.seq, &options(4, 2, Strategy::Full, 2));
    let name = "cls.predictions.bias";
    let mut bias = run.state(name).unwrap();
    bias[1..].fill(f32::NEG_INFINITY);
    run.set_state(name, &bias).unwrap();
    let before = lasting_bits(&run);
    let batch = Batch::synthetic(4, SIZE.seq, SIZE.vocab, true, 0);
    let mut step = run.begin(1e-2, batch.valid() as u64);
    batch.backward(&mut step, 2);
    assert!(matches!(step.finish(), Err(TrainError::NotFinite { step: 1, what: "loss" })));
    assert_eq!(lasting_bits(&run), before);
}

#[test]
fn a_gradient_that_is_not_finite_stops_the_step_and_changes_nothing() {
    for poison in [f32::NAN, f32::INFINITY, f32::MAX] {
        let mut run = trained(2);
        let before = lasting_bits(&run);
        let name = "transformer.h.1.ln_1.bias";
        let mut step = run.begin(1e-2, batch(2).valid() as u64);
        batch(2).backward(&mut step, 2);
        let mut gradient = step.gradient(name).unwrap();
        gradient[3] = poison;
        step.set_gradient(name, &gradient).unwrap();
        let error = step.finish().unwrap_err();
        assert!(matches!(error, TrainError::NotFinite { step: 3, what: "gradient norm" }), "{error}");
        assert!(error.to_string().contains('3'), "the sentence says the step: {error}");
        assert_eq!(lasting_bits(&run), before, "{poison}");
    }
}

#[test]
fn after_a_refused_step_training_goes_on_as_if_it_had_not_been() {
    let mut expected = trained(2);
    let mut run = trained(2);
    assert!(run.step(1e-2, &[scaled(&batch(9), &[f32::NAN])]).is_err());
    for run in [&mut expected, &mut run] {
        batch(2).step(run, 1e-2);
    }
    assert_eq!(lasting_bits(&run), lasting_bits(&expected));
}
