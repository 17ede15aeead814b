//! Three tiny models against PyTorch: loss, every gradient, and ten steps of `AdamW`.
//!
//! The golden numbers are fp32 themselves: in float64 the same ten steps differ from them by up to 5e-7 in
//! losses and norms, 7e-7 in gradients and 6e-6 in final weights (`reference/models.py`). Another order of
//! sums is another fp32 run, as far from the truth as that one, so the tolerances here are a few times those.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the distances are what a reader wants to see")]

use plimsoll_plan::Strategy;
use plimsoll_train::Run;

use crate::support::{
    Golden, Size, absolute_distance, distance, families, options, parameters, start, without_key_bias,
};

const LOSS: f32 = 2e-6;
const GRADIENT: f32 = 3e-6;
/// All elements but a few agree to 3e-6. Where a gradient is some millionth of its neighbours', as one element
/// of BERT's is, `AdamW` divides it by itself, and the difference of two roundings becomes 2.5e-5 of a weight.
const WEIGHT: f32 = 5e-5;
/// Key biases have no gradient but rounding, which `AdamW` turns into steps of the size of the learning rate.
const KEY_BIAS_GRADIENT: f32 = 1e-7;
const KEY_BIAS_WEIGHT: f32 = 10.0 * LR;
const LR: f32 = 1e-3;
const STEPS: usize = 10;

fn each_model(mut check: impl FnMut(&str, &Golden, Run)) {
    for (name, model) in families(Size::GOLDEN) {
        let golden = Golden::read(name);
        let rows = golden.batch().rows();
        let mut run = start(&model, Size::GOLDEN.seq, &options(rows, rows, Strategy::None, 2));
        golden.load_weights(&mut run);
        check(name, &golden, run);
    }
}

/// The largest distance over all parameters; those of key biases are checked against `key_bias` instead.
fn worst(
    golden: &Golden,
    prefix: &str,
    names: &[String],
    key_bias: f32,
    values: impl Fn(&str) -> Vec<f32>,
) -> (f32, String) {
    let mut worst = (0.0, String::new());
    for name in names {
        let (got, got_keys) = without_key_bias(name, &values(name));
        let (expected, expected_keys) = without_key_bias(name, &golden.floats(&format!("{prefix}.{name}")));
        let keys = absolute_distance(&got_keys, &expected_keys);
        assert!(keys <= key_bias, "{prefix}.{name}: key biases are {keys} apart");
        let apart = distance(&got, &expected);
        assert!(!apart.is_nan(), "{prefix}.{name} is not a number");
        if apart > worst.0 {
            worst = (apart, name.clone());
        }
    }
    worst
}

#[test]
fn loss_and_every_gradient_are_those_of_pytorch() {
    each_model(|name, golden, mut run| {
        let (loss, _) = golden.batch().step(&mut run, 0.0);
        let apart = distance(&loss, &golden.floats("loss"));
        let names = parameters(&run);
        let (gradient, at) =
            worst(golden, "grad", &names, KEY_BIAS_GRADIENT, |name| run.gradient(name).unwrap());
        println!("{name}: loss {apart:.1e}, gradients {gradient:.1e} ({at}), {} of them", names.len());
        assert!(apart <= LOSS, "{name}: loss {apart}");
        assert!(gradient <= GRADIENT, "{name}: {at} {gradient}");
    });
}

#[test]
fn ten_steps_of_adamw_are_those_of_pytorch() {
    each_model(|name, golden, mut run| {
        let batch = golden.batch();
        let (mut losses, mut norms) = (Vec::new(), Vec::new());
        for _ in 0..STEPS {
            let (loss, norm) = batch.step(&mut run, LR);
            losses.extend(loss);
            norms.push(norm);
        }
        let loss = distance(&losses, &golden.floats("losses"));
        let norm = distance(&norms, &golden.floats("grad_norms"));
        let names = parameters(&run);
        let (weight, at) = worst(golden, "final", &names, KEY_BIAS_WEIGHT, |name| run.state(name).unwrap());
        println!("{name}: losses {loss:.1e}, norms {norm:.1e}, final weights {weight:.1e} ({at})");
        assert!(losses[STEPS - 1] < losses[0], "{name} learns");
        assert!(loss <= LOSS, "{name}: losses {loss}");
        assert!(norm <= LOSS, "{name}: norms {norm}");
        assert!(weight <= WEIGHT, "{name}: {at} {weight}");
        assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes);
    });
}
