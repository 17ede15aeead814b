//! Optimizer updates, and the statistics of gradients that they need.

use plimsoll_graph::Op;
use plimsoll_graph::op::{AdamW, Sgd};

use super::array::{Array, dot};
use super::{Operands, Tensor, apollo, optimizers, probes, stored};

/// The results of an op of this family.
pub(super) fn eval(op: &Op, operands: &Operands) -> Vec<Array> {
    let scalar = |index| operands.scalar(index);
    match op {
        // The sum is made when the result is stored, since the output accumulates.
        Op::Accumulate { .. } => vec![operands.x(0).clone()],
        Op::SumSquares => vec![sum_squares(&operands.arrays)],
        Op::ClipScale { max_norm } => clip_scale(operands.arrays.iter().map(Array::only), *max_norm).into(),
        Op::Sgd(rates) => {
            sgd(*rates, operands.x(0), [1, 2].map(scalar), operands.integers(3), operands.outputs)
        }
        Op::AdamW(rates) => {
            adamw(*rates, operands.x(0), [1, 2, 3].map(scalar), operands.integers(4), operands.outputs)
        }
        Op::Lion(rates) => optimizers::lion(
            *rates,
            operands.x(0),
            [1, 2].map(scalar),
            operands.integers(3),
            operands.outputs,
        ),
        Op::Adafactor(rates) => {
            let scalars = [1, 2, 3].map(scalar);
            optimizers::adafactor(*rates, operands.x(0), scalars, operands.integers(4), operands.outputs)
        }
        Op::Muon(rates) => optimizers::muon(
            *rates,
            operands.x(0),
            [1, 2].map(scalar),
            operands.integers(3),
            operands.outputs,
        ),
        Op::Apollo(rates) => {
            let scalars = [1, 2, 3].map(scalar);
            apollo::apollo(*rates, operands.x(0), scalars, operands.integers(4), operands.outputs)
        }
        Op::Perturb { .. } | Op::PerturbRows { .. } | Op::ProbeStep(_) => probes::eval(op, operands),
        other => unreachable!("`{}` is of another family", other.name()),
    }
}

fn sum_squares(inputs: &[Array]) -> Array {
    Array::scalar(inputs.iter().map(|x| dot(&x.data, &x.data)).sum())
}

/// `(norm, scale)`.
fn clip_scale(sums_of_squares: impl Iterator<Item = f64>, max_norm: Option<f32>) -> [Array; 2] {
    let norm = sums_of_squares.sum::<f64>().sqrt();
    let limit = max_norm.map_or(1.0, |max| (f64::from(max) / (norm + 1e-6)).min(1.0));
    // Checked in the stored type: an overflow of f32 is as useless as an earlier one.
    let scale = if (norm as f32).is_finite() { limit } else { f64::NAN };
    [Array::scalar(norm), Array::scalar(scale)]
}

/// One step of the parameter in `ranges`; `scalars` are `lr` and `scale`.
fn sgd(rates: Sgd, grad: &Array, scalars: [f64; 2], rng: &[i32], ranges: &[Tensor]) -> Vec<Array> {
    let [lr, scale] = scalars;
    if !scale.is_finite() {
        return ranges.iter().map(Array::of).collect();
    }
    let (momentum, decay) = (f64::from(rates.momentum), f64::from(rates.weight_decay));
    let mut numbers = stored::read(rates.stored, ranges);
    for (i, grad) in grad.data.iter().enumerate() {
        let p = &mut numbers.parameter[i];
        let g = scale * grad + decay * *p;
        let direction = match numbers.moments.first_mut() {
            Some(m) => {
                m[i] = momentum * m[i] + g;
                if rates.nesterov { g + momentum * m[i] } else { m[i] }
            }
            None => g,
        };
        *p -= lr * direction;
    }
    stored::write(rates.stored, &numbers, rng, ranges)
}

/// One step of the parameter in `ranges`; `scalars` are `lr`, `step` and `scale`.
fn adamw(rates: AdamW, grad: &Array, scalars: [f64; 3], rng: &[i32], ranges: &[Tensor]) -> Vec<Array> {
    let [lr, step, scale] = scalars;
    if !scale.is_finite() {
        return ranges.iter().map(Array::of).collect();
    }
    let AdamW { beta1, beta2, epsilon, weight_decay, stored: kept } = rates;
    let (beta1, beta2) = (f64::from(beta1), f64::from(beta2));
    let (correction1, correction2) = (1.0 - beta1.powf(step), 1.0 - beta2.powf(step));
    let mut numbers = stored::read(kept, ranges);
    for (i, grad) in grad.data.iter().enumerate() {
        let g = scale * grad;
        let [m, v] = &mut numbers.moments[..] else { break };
        m[i] = beta1 * m[i] + (1.0 - beta1) * g;
        v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
        let (m_hat, v_hat) = (m[i] / correction1, v[i] / correction2);
        let p = &mut numbers.parameter[i];
        *p -= lr * (m_hat / (v_hat.sqrt() + f64::from(epsilon)) + f64::from(weight_decay) * *p);
    }
    stored::write(kept, &numbers, rng, ranges)
}
