//! A global batch gives the same gradient however it is divided into micro-batches.
//!
//! Rows count very different numbers of targets (15, 3, 9 and 1 of 16 in the golden batch), so dividing by the targets of a
//! micro-batch instead of those of the whole step gives another gradient; a test shows the size of that error. Only the
//! order of sums may differ, so the tolerance is a few times the rounding of fp32: with n ≤ 128 terms of similar size a sum
//! is good to about √n · 6e-8 of its terms, and terms may cancel.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the distances are what a reader wants to see")]

use plimsoll_exec::Data;
use plimsoll_model::Architecture;
use plimsoll_plan::Strategy;
use plimsoll_train::{Optimizer, OptimizerKind, Options, Run, Update};

use crate::support::{
    Batch, Golden, Size, absolute_distance, distance, families, lasting_bits, options, parameters, start,
    without_key_bias,
};

const ROWS: usize = 8;
const TOLERANCE: f32 = 3e-6;
/// Gradients of key biases are 0 but for rounding.
const KEY_BIAS: f32 = 1e-7;

/// Loss and gradients of one step.
struct Step {
    loss: f32,
    gradients: Vec<(String, Vec<f32>)>,
}

impl Step {
    fn new(run: &Run, losses: &[f32]) -> Step {
        let gradients = parameters(run).into_iter().map(|name| {
            let gradient = run.gradient(&name).unwrap();
            (name, gradient)
        });
        Step { loss: losses.iter().sum(), gradients: gradients.collect() }
    }

    /// The largest distance of any gradient from the one in `expected`.
    fn distance(&self, expected: impl Fn(&str) -> Vec<f32>) -> f32 {
        let mut worst: f32 = 0.0;
        for (name, got) in &self.gradients {
            let (got, got_keys) = without_key_bias(name, got);
            let (wanted, wanted_keys) = without_key_bias(name, &expected(name));
            let keys = absolute_distance(&got_keys, &wanted_keys);
            assert!(keys <= KEY_BIAS, "{name}: key biases are {keys} apart");
            let apart = distance(&got, &wanted);
            assert!(!apart.is_nan(), "{name} is not a number");
            worst = worst.max(apart);
        }
        worst
    }

    fn gradient(&self, name: &str) -> Vec<f32> {
        self.gradients.iter().find(|(known, _)| known == name).unwrap().1.clone()
    }
}

/// One step of `batch` in `accumulation` micro-batches.
fn step(model: &Architecture, golden: &Golden, batch: &Batch, accumulation: usize) -> Step {
    let options = options(ROWS, ROWS / accumulation, Strategy::None, 2);
    let mut run = start(model, Size::GOLDEN.seq, &options);
    golden.load_weights(&mut run);
    assert_eq!(run.accumulation(), accumulation);
    // A first step at rate 0 fills the gradients, so that the second shows them replaced, not added to.
    batch.step(&mut run, 0.0);
    let (losses, _) = batch.step(&mut run, 1e-3);
    assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes);
    Step::new(&run, &losses)
}

#[test]
fn one_two_four_or_eight_micro_batches_give_the_gradient_of_pytorch() {
    for (name, model) in families(Size::GOLDEN) {
        let golden = Golden::read(name);
        // The golden batch twice: eight rows whose mean is the golden one.
        let batch = golden.batch().repeated(2);
        assert_eq!(batch.rows(), ROWS);
        for accumulation in [1, 2, 4, 8] {
            let step = step(&model, &golden, &batch, accumulation);
            let loss = distance(&[step.loss], &golden.floats("loss"));
            let apart = step.distance(|parameter| golden.floats(&format!("grad.{parameter}")));
            println!("{name} × {accumulation}: loss {loss:.1e}, gradients {apart:.1e}");
            assert!(loss <= TOLERANCE, "{name} × {accumulation}: loss {loss}");
            assert!(apart <= TOLERANCE, "{name} × {accumulation}: gradients {apart}");
        }
    }
}

#[test]
fn with_dropout_every_division_draws_the_same_masks() {
    let size = Size { dropout: 0.3, ..Size::GOLDEN };
    for (name, model) in families(size).into_iter().skip(1) {
        let golden = Golden::read(name);
        let batch = golden.batch().repeated(2);
        let whole = step(&model, &golden, &batch, 1);
        let plain = whole.distance(|parameter| golden.floats(&format!("grad.{parameter}")));
        assert!(plain > 0.1, "{name}: dropout does something, {plain}");
        for accumulation in [2, 4, 8] {
            let step = step(&model, &golden, &batch, accumulation);
            let loss = distance(&[step.loss], &[whole.loss]);
            let apart = step.distance(|parameter| whole.gradient(parameter));
            println!("{name} × {accumulation}: loss {loss:.1e}, gradients {apart:.1e}");
            assert!(loss <= TOLERANCE, "{name} × {accumulation}: loss {loss}");
            assert!(apart <= TOLERANCE, "{name} × {accumulation}: gradients {apart}");
        }
    }
}

#[test]
fn rows_of_a_global_batch_have_masks_of_their_own() {
    let (name, model) = &families(Size { dropout: 0.3, ..Size::GOLDEN })[1];
    let golden = Golden::read(name);
    let mut run = start(model, Size::GOLDEN.seq, &options(ROWS, 4, Strategy::None, 1));
    golden.load_weights(&mut run);
    // Both halves hold the same rows, so only their masks can tell them apart.
    let (losses, _) = golden.batch().repeated(2).step(&mut run, 0.0);
    assert!((losses[0] - losses[1]).abs() > 1e-3 * losses[0], "{losses:?}");
}

#[test]
fn a_mean_of_means_would_be_seen() {
    let (name, model) = &families(Size::GOLDEN)[0];
    let golden = Golden::read(name);
    let batch = golden.batch();
    let mut run = start(model, batch.seq, &options(4, 1, Strategy::None, 1));
    golden.load_weights(&mut run);
    let (mut losses, mut step) = (Vec::new(), run.begin(0.0, 1));
    for row in 0..4 {
        let part = row * batch.seq..(row + 1) * batch.seq;
        let targets = &batch.targets[part.clone()];
        let valid = targets.iter().filter(|&&target| target >= 0).count();
        let inputs = [
            ("tokens", Data::I32(&batch.tokens[part])),
            ("targets", Data::I32(targets)),
            ("scale", Data::F32(&[1.0 / (4 * valid) as f32])),
        ];
        losses.push(step.backward(&inputs).unwrap());
    }
    step.finish().unwrap();
    let step = Step::new(&run, &losses);
    assert!(step.distance(|parameter| golden.floats(&format!("grad.{parameter}"))) > 0.1);
}

#[test]
fn a_step_begun_with_another_number_of_targets_is_refused_with_its_line_and_changes_nothing() {
    let golden = Golden::read("llama");
    let (_, model) = &families(Size::GOLDEN)[0];
    let (batch, few) = (golden.batch(), golden.batch().valid() as u64 - 1);
    let mezo = Optimizer::of(OptimizerKind::Mezo);
    for optimizer in [Optimizer::default(), mezo] {
        let mut run = start(model, batch.seq, &Options { optimizer, ..options(4, 2, Strategy::None, 1) });
        let before = lasting_bits(&run);
        let line = line!() + 1;
        let mut step = run.begin(1e-2, few + 2);
        batch.backward(&mut step, 2);
        let error = step.finish().unwrap_err().to_string();
        let (at, numbers) = (
            format!("accumulation.rs:{line}: "),
            format!(
                "begun with {} targets that carry a loss, and its micro-batches have {}",
                few + 2,
                few + 1
            ),
        );
        assert!(error.contains(&at) && error.contains(&numbers), "{error}");
        let mut step = run.begin(1e-2, few);
        let refused: Vec<bool> = batch.micro_batches(2).map(|inputs| step.queue(&inputs).is_err()).collect();
        assert_eq!(refused, [false, true], "one too many is seen before it is run");
        drop(step);
        assert!(lasting_bits(&run) == before && run.is_whole());
    }
}

#[test]
fn an_update_inside_the_backward_pass_is_refused_before_it_with_another_number_of_targets() {
    let (_, model) = &families(Size::GOLDEN)[0];
    let batch = Golden::read("llama").batch();
    let optimizer = Optimizer { max_grad_norm: None, ..Optimizer::default() };
    let asked = Options { optimizer, update: Update::InBackward, ..options(4, 4, Strategy::None, 1) };
    let mut run = start(model, batch.seq, &asked);
    let before = lasting_bits(&run);
    let inputs = batch.micro_batches(4).next().unwrap();
    for targets in [batch.valid() - 1, batch.valid() + 1] {
        assert!(run.begin(1e-2, targets as u64).queue(&inputs).is_err(), "{targets}");
    }
    assert!(lasting_bits(&run) == before && run.is_whole());
    batch.step(&mut run, 1e-2);
    assert!(lasting_bits(&run) != before);
}
