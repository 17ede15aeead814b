//! The head against its definition, in any number of chunks.

use super::*;
use crate::cpu::trial::{Trial, numbers};

const IGNORED: i32 = -100;

/// A call with more rows than the smallest workspace takes at once.
struct Sample {
    n: usize,
    c: usize,
    v: usize,
    op: Op,
    x: Vec<f32>,
    w: Vec<f32>,
    bias: Option<Vec<f32>>,
    targets: Vec<i32>,
}

impl Sample {
    fn new(gradient: bool, bias: bool) -> Sample {
        let (n, c, v) = (301, 24, 83);
        let head = Head { ignore_index: IGNORED, bias, second: false };
        let op = if gradient { Op::HeadLossGrad { head, weight: true, bias } } else { Op::HeadLoss(head) };
        let target = |row: usize| if row % 7 == 3 { IGNORED } else { (row * 31 % v) as i32 };
        let scaled = |count, seed, factor: f32| numbers(count, seed).iter().map(|x| factor * x).collect();
        Sample {
            n,
            c,
            v,
            op,
            x: scaled(n * c, 1, 2.0),
            w: scaled(v * c, 2, 0.25),
            bias: bias.then(|| scaled(v, 3, 0.25)),
            targets: (0..n).map(target).collect(),
        }
    }

    fn trial(&self) -> Trial {
        let (n, c, v) = (self.n, self.c, self.v);
        let trial = Trial::new(self.op.clone()).f32([n, c], &self.x).f32([v, c], &self.w);
        let trial = trial.i32([n], &self.targets).f32([], &[0.25]);
        match &self.bias {
            Some(bias) => trial.f32([v], bias),
            None => trial,
        }
    }

    /// Loss and dlogits in double precision.
    fn expected(&self) -> (f64, Vec<f64>) {
        let (x, w) = (&self.x, &self.w);
        let (c, v) = (self.c, self.v);
        let (mut loss, mut dlogits) = (0.0, vec![0.0; self.n * v]);
        for row in 0..self.n {
            if self.targets[row] == IGNORED {
                continue;
            }
            let logit = |word: usize| {
                let start = self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[word]));
                (0..c).fold(start, |sum, i| sum + f64::from(x[row * c + i]) * f64::from(w[word * c + i]))
            };
            let logits: Vec<f64> = (0..v).map(logit).collect();
            let sum: f64 = logits.iter().map(|z| z.exp()).sum();
            let target = self.targets[row] as usize;
            loss += 0.25 * (sum.ln() - logits[target]);
            for word in 0..v {
                let hit = if word == target { 1.0 } else { 0.0 };
                dlogits[row * v + word] = 0.25 * (logits[word].exp() / sum - hit);
            }
        }
        (loss, dlogits)
    }
}

fn close(got: &[f32], want: impl IntoIterator<Item = f64>, what: &str) {
    for (at, (&got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(got) - want).abs();
        assert!(error <= 1e-5 * (1.0 + want.abs()), "{what}[{at}]: {got}, not {want}");
    }
}

#[test]
fn the_loss_is_that_of_the_whole_logits() {
    for bias in [false, true] {
        let sample = Sample::new(false, bias);
        close(&sample.trial().run_everywhere()[0], [sample.expected().0], "loss");
    }
}

#[test]
fn the_gradients_replace_or_add() {
    for (bias, accumulate) in [(true, false), (true, true), (false, true)] {
        let sample = Sample::new(true, bias);
        let (n, c, v) = (sample.n, sample.c, sample.v);
        let (x, w) = (&sample.x, &sample.w);
        let begin = [numbers(v * c, 8), numbers(v, 9)];
        let mut trial = sample.trial();
        if accumulate {
            trial = trial.onto(2, &begin[0]);
            if bias {
                trial = trial.onto(3, &begin[1]);
            }
        }
        let (loss, dlogits) = sample.expected();
        let got = trial.run_everywhere();
        let before = |output: usize, at: usize| {
            if accumulate { f64::from(begin[output - 2][at]) } else { 0.0 }
        };
        close(&got[0], [loss], "loss");
        let dx = |row: usize, i: usize| -> f64 {
            (0..v).map(|word| dlogits[row * v + word] * f64::from(w[word * c + i])).sum()
        };
        close(&got[1], (0..n * c).map(|at| dx(at / c, at % c)), "dx");
        let dw = |word: usize, i: usize| -> f64 {
            (0..n).map(|row| dlogits[row * v + word] * f64::from(x[row * c + i])).sum()
        };
        close(&got[2], (0..v * c).map(|at| before(2, at) + dw(at / c, at % c)), "dw");
        if bias {
            let db = |word: usize| -> f64 { (0..n).map(|row| dlogits[row * v + word]).sum() };
            close(&got[3], (0..v).map(|word| before(3, word) + db(word)), "db");
        }
    }
}

#[test]
fn a_target_outside_the_vocabulary_is_named() {
    for id in [83, -1, i32::MIN] {
        let mut sample = Sample::new(true, false);
        sample.targets[200] = id;
        let error = sample.trial().attempt().unwrap_err();
        assert_eq!(error, ExecError::Data(format!("target {id} is outside the vocabulary of 83")));
    }
}
