//! The network in tiles against the single ops, bit for bit.

use plimsoll_graph::Op;

use super::*;
use crate::cpu::trial::{Trial, numbers};

const N: usize = 301;
const C: usize = 24;
const F: usize = 83;
/// Rows of tiles: two multiples of the 32 rows that column sums take at a time, and more rows than there are.
const TILES: [usize; 3] = [32, 96, 1000];

/// A network and its operands.
struct Sample {
    form: Mlp,
    x: Vec<f32>,
    dy: Vec<f32>,
    weights: Vec<Vec<f32>>,
    biases: Vec<Vec<f32>>,
}

impl Sample {
    fn new(activation: Activation, transposed: bool, bias: bool) -> Sample {
        let form = Mlp { activation, transposed, bias, rows: 1 };
        let products = form.products();
        let scaled = |count, seed| numbers(count, seed).iter().map(|x| 0.25 * x).collect();
        let columns = |index: usize| if index + 1 == products { C } else { F };
        Sample {
            form,
            x: scaled(N * C, 1),
            dy: scaled(N * C, 2),
            weights: (0..products).map(|index| scaled(C * F, 10 + index as u64)).collect(),
            biases: (0..products).map(|index| scaled(columns(index), 20 + index as u64)).collect(),
        }
    }

    fn shape(&self, index: usize) -> [usize; 2] {
        let last = index + 1 == self.weights.len();
        if last == self.form.transposed { [F, C] } else { [C, F] }
    }

    fn with_parameters(&self, mut trial: Trial) -> Trial {
        for (index, weight) in self.weights.iter().enumerate() {
            trial = trial.f32(self.shape(index), weight);
        }
        let biases = self.biases.iter().filter(|_| self.form.bias);
        biases.fold(trial, |trial, bias| trial.f32([bias.len()], bias))
    }

    fn linear(&self, index: usize, x: &[f32]) -> Vec<f32> {
        let Mlp { transposed, bias, .. } = self.form;
        let columns = x.len() / N;
        let trial = Trial::new(Op::Linear { transposed, bias }).f32([N, columns], x);
        let trial = trial.f32(self.shape(index), &self.weights[index]);
        let bias = self.form.bias.then_some(&self.biases[index]);
        one(bias.into_iter().fold(trial, |trial, bias| trial.f32([bias.len()], bias)))
    }

    fn leading(&self) -> Vec<Vec<f32>> {
        (0..self.weights.len() - 1).map(|index| self.linear(index, &self.x)).collect()
    }

    fn activated(&self) -> Vec<f32> {
        let op = match self.form.activation {
            Activation::Swiglu => Op::Swiglu,
            Activation::Gelu(form) => Op::Gelu(form),
        };
        one(self.leading().iter().fold(Trial::new(op), |trial, z| trial.f32([N, F], z)))
    }

    /// `(dx, dw₁ … dwₙ, db₁ … dbₙ)` by the single ops, added to `before`.
    fn gradients(&self, before: &[Option<Vec<f32>>]) -> Vec<Vec<f32>> {
        let transposed = self.form.transposed;
        let (last, h) = (self.weights.len() - 1, self.activated());
        let weight = |index: usize, x: &[f32], dz: &[f32]| {
            let trial = Trial::new(Op::LinearGradWeight { transposed }).f32([N, x.len() / N], x);
            one(onto(trial.f32([N, dz.len() / N], dz), before[1 + index].as_ref()))
        };
        let back = |index: usize, dz: &[f32]| {
            let trial = Trial::new(Op::LinearGradInput { transposed });
            one(trial.f32(self.shape(index), &self.weights[index]).f32([N, dz.len() / N], dz))
        };
        let op = match self.form.activation {
            Activation::Swiglu => Op::SwigluGrad,
            Activation::Gelu(form) => Op::GeluGrad(form),
        };
        let trial = self.leading().iter().fold(Trial::new(op), |trial, z| trial.f32([N, F], z));
        let dz = trial.f32([N, F], &back(last, &self.dy)).run();
        let dx = match &dz[..] {
            [gate, up] => one(Trial::new(Op::Add).f32([N, C], &back(1, up)).f32([N, C], &back(0, gate))),
            _ => back(0, &dz[0]),
        };
        let mut all = vec![dx];
        all.extend(dz.iter().enumerate().map(|(index, dz)| weight(index, &self.x, dz)));
        all.push(weight(last, &h, &self.dy));
        if self.form.bias {
            let axes = plimsoll_graph::Axes::of([0]);
            let sum = |(index, dz): (usize, &Vec<f32>)| {
                let trial = Trial::new(Op::Sum { axes }).f32([N, dz.len() / N], dz);
                one(onto(trial, before[2 + last + index].as_ref()))
            };
            all.extend(dz.iter().chain([&self.dy]).enumerate().map(sum));
        }
        all
    }
}

#[allow(clippy::needless_pass_by_value, reason = "a trial is made to be run")]
fn one(trial: Trial) -> Vec<f32> {
    trial.run().remove(0)
}

fn onto(trial: Trial, before: Option<&Vec<f32>>) -> Trial {
    before.into_iter().fold(trial, |trial, before| trial.onto(0, before))
}

fn samples() -> Vec<Sample> {
    vec![
        Sample::new(Activation::Swiglu, false, false),
        Sample::new(Activation::Swiglu, true, true),
        Sample::new(Activation::Gelu(Gelu::Tanh), true, true),
        Sample::new(Activation::Gelu(Gelu::Erf), false, true),
    ]
}

#[test]
fn a_tile_of_any_rows_gives_the_bits_of_the_single_ops() {
    for sample in samples() {
        let expected = sample.linear(sample.weights.len() - 1, &sample.activated());
        for rows in TILES.into_iter().chain([1, 7]) {
            let op = Op::Mlp(Mlp { rows, ..sample.form });
            let trial = || sample.with_parameters(Trial::new(op.clone()).f32([N, C], &sample.x));
            assert_eq!(trial().run_everywhere()[0], expected, "{op:?}");
            assert_eq!(trial().over(0, 0).run_everywhere()[0], expected, "{op:?} in place");
        }
    }
}

#[test]
fn gradients_of_all_tiles_together_have_the_bits_of_the_single_ops() {
    for sample in samples() {
        for rows in TILES {
            let op =
                Op::MlpGrad { mlp: Mlp { rows, ..sample.form }, weights: true, biases: sample.form.bias };
            let trial = || {
                let trial = Trial::new(op.clone()).f32([N, C], &sample.x).f32([N, C], &sample.dy);
                sample.with_parameters(trial)
            };
            let expected = sample.gradients(&vec![None; 7]);
            assert_eq!(trial().run_everywhere(), expected, "{op:?}");
            for input in [0, 1] {
                assert_eq!(trial().over(0, input).run_everywhere(), expected, "{op:?} over {input}");
            }
            let before: Vec<Option<Vec<f32>>> = (expected.iter().enumerate())
                .map(|(output, of)| (output > 0).then(|| numbers(of.len(), 40 + output as u64)))
                .chain(vec![None; 7 - expected.len()])
                .collect();
            let adding = before.iter().enumerate().fold(trial(), |trial, (output, before)| {
                before.iter().fold(trial, |trial, before| trial.onto(output, before))
            });
            assert_eq!(adding.run_everywhere(), sample.gradients(&before), "{op:?} adding");
        }
    }
}

#[test]
fn frozen_weights_cost_no_products_of_their_own() {
    let sample = Sample::new(Activation::Gelu(Gelu::Erf), false, true);
    let op = Op::MlpGrad { mlp: Mlp { rows: 64, ..sample.form }, weights: false, biases: true };
    let trial = Trial::new(op).f32([N, C], &sample.x).f32([N, C], &sample.dy);
    let all = sample.gradients(&vec![None; 7]);
    assert_eq!(sample.with_parameters(trial).run_everywhere(), [&all[..1], &all[3..]].concat());
}
