//! The optimizer and what it needs to know of the gradients.

use plimsoll_graph::op::AdamW;

use super::array::{Array, dot};

pub(super) fn sum_squares(inputs: &[Array]) -> Array {
    Array::scalar(inputs.iter().map(|x| dot(&x.data, &x.data)).sum())
}

/// `(norm, scale)`.
pub(super) fn clip_scale(sums_of_squares: impl Iterator<Item = f64>, max_norm: Option<f32>) -> [Array; 2] {
    let norm = sums_of_squares.sum::<f64>().sqrt();
    let limit = max_norm.map_or(1.0, |max| (f64::from(max) / (norm + 1e-6)).min(1.0));
    // Judged as it will be stored: what overflows f32 is as useless as what overflowed before.
    let scale = if (norm as f32).is_finite() { limit } else { f64::NAN };
    [Array::scalar(norm), Array::scalar(scale)]
}

/// One step for `[p, m, v]`; `scalars` are `lr`, `step` and `scale`.
pub(super) fn adamw(rates: AdamW, grad: &Array, scalars: [f64; 3], state: [Array; 3]) -> [Array; 3] {
    let [lr, step, scale] = scalars;
    let [mut p, mut m, mut v] = state;
    if !scale.is_finite() {
        return [p, m, v];
    }
    let AdamW { beta1, beta2, epsilon, weight_decay } = rates;
    let (beta1, beta2) = (f64::from(beta1), f64::from(beta2));
    let (correction1, correction2) = (1.0 - beta1.powf(step), 1.0 - beta2.powf(step));
    for (i, grad) in grad.data.iter().enumerate() {
        let g = scale * grad;
        m.data[i] = beta1 * m.data[i] + (1.0 - beta1) * g;
        v.data[i] = beta2 * v.data[i] + (1.0 - beta2) * g * g;
        let (m_hat, v_hat) = (m.data[i] / correction1, v.data[i] / correction2);
        p.data[i] -= lr * (m_hat / (v_hat.sqrt() + f64::from(epsilon)) + f64::from(weight_decay) * p.data[i]);
    }
    [p, m, v]
}
