//! The optimizers' rules, and the norm of the gradients.
#![allow(
    clippy::inline_always,
    reason = "inner loops must be compiled with their callers' vector instructions"
)]
#![allow(unsafe_code, reason = "gradients of any element type are reached by address")]

use plimsoll_graph::op::{AdamW, Lion, Sgd};
use plimsoll_graph::{DType, Op, Type};
use plimsoll_plan::Workspace;

use super::cast::{elements, load};
use super::lanes::PIECE;
use super::simd::widest;
use super::stored::{Rule, update};
use super::{Call, CpuOperand, reduce, split};
use crate::ExecError;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    match call.op {
        Op::SumSquares => sum_squares(call),
        Op::ClipScale { max_norm } => clip_scale(call, *max_norm),
        Op::Sgd(rates) => sgd(call, *rates),
        Op::AdamW(rates) => adamw(call, *rates),
        Op::Lion(rates) => lion(call, *rates),
        _ => return None,
    }
    Some(Ok(()))
}

/// The scratch that an op of this file needs.
pub(super) fn workspace(op: &Op, inputs: &[Type], _: &[Type], _: usize) -> Option<Workspace> {
    Some(match op {
        Op::SumSquares => sum_squares_workspace(inputs),
        _ => return None,
    })
}

fn sum_squares(call: &Call) {
    let scratch = call.scratch();
    let mut total = 0.0f64;
    for x in call.inputs {
        let len = x.ty.shape.elements();
        let partial = &mut scratch[..len.div_ceil(PIECE)];
        split::rows(partial.len(), 1, [&mut *partial], |range, [partial]| {
            let start = range.start * PIECE;
            partial[0] = squares_of(x, start, PIECE.min(len - start));
        });
        total += partial.iter().map(|&x| f64::from(x)).sum::<f64>();
    }
    call.output(0)[0] = total as f32;
}

/// `Σ x²` over elements `start … start + len`, widened a little at a time unless they are f32.
fn squares_of(x: &CpuOperand, start: usize, len: usize) -> f32 {
    const CHUNK: usize = 256;
    if x.ty.dtype == DType::F32 {
        // SAFETY: the range lies inside the operand, which nobody writes during this call.
        return squares(unsafe { elements(x.pointer.add(4 * start), len) });
    }
    let mut numbers = [0.0; CHUNK];
    let chunk = |at: usize| {
        let numbers = &mut numbers[..CHUNK.min(start + len - at)];
        // SAFETY: as above.
        unsafe { load(x, at, numbers) };
        f64::from(squares(numbers))
    };
    (start..start + len).step_by(CHUNK).map(chunk).sum::<f64>() as f32
}

/// One number for each piece of the largest input.
fn sum_squares_workspace(inputs: &[Type]) -> Workspace {
    let pieces = inputs.iter().map(|input| input.shape.elements().div_ceil(PIECE)).max();
    Workspace::exactly(4 * pieces.unwrap_or(0) as u64)
}

widest! {
    fn squares(x: &[f32]) -> f32 {
        reduce::dot(x, x)
    }
}

fn clip_scale(call: &Call, max_norm: Option<f32>) {
    let norm = (0..call.inputs.len()).map(|index| f64::from(call.input(index)[0])).sum::<f64>().sqrt();
    let limit = max_norm.map_or(1.0, |max| (f64::from(max) / (norm + 1e-6)).min(1.0));
    call.output(0)[0] = norm as f32;
    call.output(1)[0] = if (norm as f32).is_finite() { limit as f32 } else { f32::NAN };
}

/// Stochastic gradient descent, with all values that do not depend on the element.
pub(super) struct Descent {
    scale: f32,
    lr: f32,
    decay: f32,
    momentum: f32,
    /// Factors of the gradient and of the running sum in the step.
    ahead: [f32; 2],
}

impl Descent {
    /// Along a given direction: `p − lr·(direction + decay·p)`.
    pub(super) fn along(lr: f32, decay: f32) -> Descent {
        Descent { scale: 1.0, lr, decay, momentum: 0.0, ahead: [0.0, 1.0] }
    }
}

impl Rule<0> for Descent {
    #[inline(always)]
    fn at(&self, grad: f32, p: f32, []: [f32; 0]) -> (f32, [f32; 0]) {
        (p - self.lr * (self.scale * grad + self.decay * p), [])
    }
}

impl Rule<1> for Descent {
    #[inline(always)]
    fn at(&self, grad: f32, p: f32, [m]: [f32; 1]) -> (f32, [f32; 1]) {
        let g = self.scale * grad + self.decay * p;
        let m = self.momentum * m + g;
        (p - self.lr * (self.ahead[0] * g + self.ahead[1] * m), [m])
    }
}

fn sgd(call: &Call, rates: Sgd) {
    let [lr, scale] = [1, 2].map(|index| call.input(index)[0]);
    if !scale.is_finite() {
        return;
    }
    let Sgd { momentum, nesterov, weight_decay: decay, stored } = rates;
    let ahead = if nesterov { [1.0, momentum] } else { [0.0, 1.0] };
    let descent = Descent { scale, lr, decay, momentum, ahead };
    if rates.moments() == 0 {
        update::<0>(call, stored, &descent);
    } else {
        update::<1>(call, stored, &descent);
    }
}

/// `AdamW` with everything that does not depend on the element worked out beforehand.
struct Step {
    scale: f32,
    beta1: f32,
    beta2: f32,
    /// `1 − β`, rounded once.
    rest1: f32,
    rest2: f32,
    /// One over the bias corrections.
    unbias1: f32,
    unbias2: f32,
    epsilon: f32,
    decay: f32,
    lr: f32,
}

impl Step {
    /// In f64, because `1 − βᵗ` cancels for β near 1.
    fn new(rates: AdamW, lr: f32, step: f32, scale: f32) -> Step {
        let AdamW { beta1, beta2, epsilon, weight_decay, .. } = rates;
        let rest = |beta: f32| (1.0 - f64::from(beta)) as f32;
        let unbias = |beta: f32| (1.0 / (1.0 - f64::from(beta).powf(step.into()))) as f32;
        Step {
            scale,
            beta1,
            beta2,
            rest1: rest(beta1),
            rest2: rest(beta2),
            unbias1: unbias(beta1),
            unbias2: unbias(beta2),
            epsilon,
            decay: weight_decay,
            lr,
        }
    }
}

impl Rule<2> for Step {
    #[inline(always)]
    fn at(&self, grad: f32, p: f32, [m, v]: [f32; 2]) -> (f32, [f32; 2]) {
        let g = self.scale * grad;
        let m = self.beta1 * m + self.rest1 * g;
        let v = self.beta2 * v + self.rest2 * (g * g);
        let direction = m * self.unbias1 / ((v * self.unbias2).sqrt() + self.epsilon);
        (p - self.lr * (direction + self.decay * p), [m, v])
    }
}

fn adamw(call: &Call, rates: AdamW) {
    let [lr, step, scale] = [1, 2, 3].map(|index| call.input(index)[0]);
    if scale.is_finite() {
        update(call, rates.stored, &Step::new(rates, lr, step, scale));
    }
}

/// Lion with everything that does not depend on the element worked out beforehand.
struct Sign {
    scale: f32,
    /// `β` and `1 − β`, for the sign and for the moment.
    step: [f32; 2],
    moment: [f32; 2],
    decay: f32,
    lr: f32,
}

impl Rule<1> for Sign {
    #[inline(always)]
    fn at(&self, grad: f32, p: f32, [m]: [f32; 1]) -> (f32, [f32; 1]) {
        let g = self.scale * grad;
        let mixed = self.step[0] * m + self.step[1] * g;
        let sign = if mixed > 0.0 { 1.0 } else { 0.0 } - if mixed < 0.0 { 1.0 } else { 0.0 };
        (p - self.lr * (sign + self.decay * p), [self.moment[0] * m + self.moment[1] * g])
    }
}

fn lion(call: &Call, rates: Lion) {
    let [lr, scale] = [1, 2].map(|index| call.input(index)[0]);
    if !scale.is_finite() {
        return;
    }
    let both = |beta: f32| [beta, (1.0 - f64::from(beta)) as f32];
    let Lion { beta1, beta2, weight_decay: decay, stored } = rates;
    update::<1>(call, stored, &Sign { scale, step: both(beta1), moment: both(beta2), decay, lr });
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::op::{Moments, Stored, Weights};

    use super::*;
    use crate::cpu::trial::{Trial, assert_near, numbers};

    const STORED: Stored = Stored { weights: Weights::F32, moments: Moments::F32 };
    const RATES: AdamW = AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1, stored: STORED };

    #[test]
    fn squares_of_all_inputs_are_summed_with_the_same_bits_on_two_threads() {
        let (a, b) = (numbers(100_003, 1), numbers(5, 2));
        let trial = || Trial::new(Op::SumSquares).f32([100_003], &a).f32([], &b[..1]).f32([5], &b);
        let exact: f64 = a.iter().chain(&b[..1]).chain(&b).map(|&x| f64::from(x) * f64::from(x)).sum();
        let one = trial().run();
        assert_near(&one[0], &[exact], 2e-7);
        assert_eq!(one, trial().threads(2).run());
    }

    #[test]
    fn the_scale_brings_a_norm_to_its_limit_and_is_nan_when_the_norm_is_lost() {
        let clip = |max_norm, sum| {
            let results = Trial::new(Op::ClipScale { max_norm }).f32([], &[sum]).run();
            (results[0][0], results[1][0])
        };
        assert_eq!(clip(Some(1.0), 16.0), (4.0, (1.0 / (4.0 + 1e-6)) as f32));
        assert_eq!(clip(Some(1.0), 0.25), (0.5, 1.0));
        assert_eq!(clip(None, 16.0), (4.0, 1.0));
        assert!(clip(None, f32::INFINITY).1.is_nan() && clip(Some(1.0), f32::NAN).1.is_nan());
    }

    fn adamw(scale: f32, threads: usize) -> [Vec<Vec<f32>>; 2] {
        let n = 20_011;
        let state = [numbers(n, 2), numbers(n, 3), numbers(n, 4).iter().map(|v| v * v).collect()];
        let trial = Trial::new(Op::AdamW(RATES)).f32([n], &numbers(n, 1));
        let trial = trial.f32([], &[0.01]).f32([], &[3.0]).f32([], &[scale]);
        let trial = trial.onto(0, &state[0]).onto(1, &state[1]).onto(2, &state[2]);
        [state.into(), trial.threads(threads).run()]
    }

    #[test]
    fn a_step_follows_its_equation_with_the_same_bits_on_two_threads() {
        let [before, after] = adamw(0.5, 1);
        let mut expected = [const { Vec::new() }; 3];
        let (b1, b2) = (f64::from(RATES.beta1), f64::from(RATES.beta2));
        for (i, grad) in numbers(20_011, 1).into_iter().enumerate() {
            let [p, m, v] = [0, 1, 2].map(|k| f64::from(before[k][i]));
            let g = 0.5 * f64::from(grad);
            let (m, v) = (b1 * m + (1.0 - b1) * g, b2 * v + (1.0 - b2) * g * g);
            let (m_hat, v_hat) = (m / (1.0 - b1.powi(3)), v / (1.0 - b2.powi(3)));
            let direction =
                m_hat / (v_hat.sqrt() + f64::from(RATES.epsilon)) + f64::from(RATES.weight_decay) * p;
            expected[0].push(p - f64::from(0.01f32) * direction);
            expected[1].push(m);
            expected[2].push(v);
        }
        for (after, expected) in after.iter().zip(&expected) {
            assert_near(after, expected, 2e-7);
        }
        assert_eq!(after, adamw(0.5, 2)[1]);
    }

    #[test]
    fn nothing_changes_when_the_scale_is_not_finite() {
        let [before, after] = adamw(f32::NAN, 1);
        assert_eq!(before, after);
    }
}
