//! A loss or a gradient that is not finite is found before the update, which then changes nothing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_plan::{Purpose, Strategy};
use plimsoll_train::{Run, TrainError};

mod support;
use support::{Batch, Size, gpt2, options, start};

const SIZE: Size = Size { dropout: 0.1, ..Size::GOLDEN };

fn batch(step: usize) -> Batch {
    Batch::synthetic(4, SIZE.seq, SIZE.vocab, false, step)
}

fn trained(steps: usize) -> Run {
    let mut run = start(&gpt2(SIZE), SIZE.seq, &options(4, 2, Strategy::Full, 2));
    for step in 0..steps {
        batch(step).backward(&mut run);
        run.step(1e-2).unwrap();
    }
    if steps > 0 {
        assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes);
    }
    run
}

/// Weights and moments, as bits.
fn snapshot(run: &Run) -> Vec<u32> {
    let lasting = run.plan().states.iter().filter(|range| range.purpose != Purpose::Gradients);
    lasting.flat_map(|range| run.state(&range.name).unwrap()).map(f32::to_bits).collect()
}

#[test]
fn a_loss_that_is_not_finite_stops_the_step_and_changes_nothing() {
    let mut run = trained(2);
    let before = snapshot(&run);
    let mut inputs = batch(2);
    let good = inputs.backward(&mut run);
    assert!(good.iter().all(|loss| loss.is_finite()));
    // A second micro-batch of the same step has a scale that no number survives.
    inputs.targets.truncate(2 * SIZE.seq);
    inputs.tokens.truncate(2 * SIZE.seq);
    let part = inputs.micro_batches(2, &[f32::INFINITY]).next().unwrap();
    assert!(!run.backward(&part).unwrap().is_finite());
    assert!(matches!(run.step(1e-2), Err(TrainError::NotFinite { step: 3, what: "loss" })));
    assert_eq!(snapshot(&run), before);
}

#[test]
fn a_gradient_that_is_not_finite_stops_the_step_and_changes_nothing() {
    for poison in [f32::NAN, f32::INFINITY, f32::MAX] {
        let mut run = trained(2);
        let before = snapshot(&run);
        batch(2).backward(&mut run);
        let name = "grad.transformer.h.1.ln_1.bias";
        let mut gradient = run.state(name).unwrap();
        gradient[3] = poison;
        run.set_state(name, &gradient).unwrap();
        let error = run.step(1e-2).unwrap_err();
        assert!(matches!(error, TrainError::NotFinite { step: 3, what: "gradient norm" }), "{error}");
        assert!(error.to_string().contains('3'), "the sentence says the step: {error}");
        assert_eq!(snapshot(&run), before, "{poison}");
    }
}

#[test]
fn after_a_refused_step_training_goes_on_as_if_it_had_not_been() {
    let mut expected = trained(2);
    let mut run = trained(2);
    let spoiled = batch(9);
    let part = spoiled.micro_batches(2, &[f32::NAN]).next().unwrap();
    run.backward(&part).unwrap();
    assert!(run.step(1e-2).is_err());
    for run in [&mut expected, &mut run] {
        batch(2).backward(run);
        run.step(1e-2).unwrap();
    }
    assert_eq!(snapshot(&run), snapshot(&expected));
}
