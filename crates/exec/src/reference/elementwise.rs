//! Elementwise functions and their derivatives.

use std::f64::consts::{PI, SQRT_2};

use plimsoll_graph::Op;
use plimsoll_graph::op::Gelu;

use super::Operands;
use super::array::Array;
use crate::random::{Stream, drop_threshold};

/// The results of an op of this family.
pub(super) fn eval(op: &Op, operands: &Operands) -> Vec<Array> {
    let x = |index| operands.x(index);
    vec![match op {
        Op::Add => add(x(0), x(1)),
        Op::Mul => mul(x(0), x(1)),
        Op::Scale { factor } => x(0).map(|x| f64::from(*factor) * x),
        Op::Silu => silu(x(0)),
        Op::SiluGrad => silu_grad(x(0), x(1)),
        Op::Gelu(form) => gelu(x(0), *form),
        Op::GeluGrad(form) => gelu_grad(x(0), x(1), *form),
        Op::Tanh => x(0).map(f64::tanh),
        Op::TanhGrad => tanh_grad(x(0), x(1)),
        Op::Sigmoid => x(0).map(sigmoid),
        Op::SigmoidGrad => sigmoid_grad(x(0), x(1)),
        Op::Swiglu => swiglu(x(0), x(1)),
        Op::SwigluGrad => return swiglu_grad(x(0), x(1), x(2)).into(),
        Op::Dropout { p, stream } => dropout(x(0), operands.integers(1), *p, *stream),
        Op::Jitter { noise, stream } => jitter(x(0), operands.integers(1), *noise, *stream),
        other => unreachable!("`{}` is of another family", other.name()),
    }]
}

pub(super) fn add(a: &Array, b: &Array) -> Array {
    with_suffix(a, b, |x, y| x + y)
}

fn mul(a: &Array, b: &Array) -> Array {
    with_suffix(a, b, |x, y| x * y)
}

fn silu(x: &Array) -> Array {
    x.map(|x| x * sigmoid(x))
}

fn silu_grad(x: &Array, dy: &Array) -> Array {
    with_suffix(x, dy, |x, dy| dy * silu_slope(x))
}

pub(super) fn gelu(x: &Array, form: Gelu) -> Array {
    x.map(|x| match form {
        Gelu::Tanh => 0.5 * x * (1.0 + tanh_argument(x).tanh()),
        Gelu::Erf => x * normal_below(x),
    })
}

pub(super) fn gelu_grad(x: &Array, dy: &Array, form: Gelu) -> Array {
    with_suffix(x, dy, |x, dy| dy * gelu_slope(x, form))
}

/// Computed from `y`, the result of the forward op, as is `tanh_grad`.
fn sigmoid_grad(y: &Array, dy: &Array) -> Array {
    with_suffix(y, dy, |y, dy| dy * y * (1.0 - y))
}

/// Computed from `y`, the result of the forward op.
fn tanh_grad(y: &Array, dy: &Array) -> Array {
    with_suffix(y, dy, |y, dy| dy * (1.0 - y * y))
}

pub(super) fn swiglu(gate: &Array, up: &Array) -> Array {
    with_suffix(gate, up, |g, u| g * sigmoid(g) * u)
}

/// `(dg, du)`.
pub(super) fn swiglu_grad(gate: &Array, up: &Array, dy: &Array) -> [Array; 2] {
    [mul(&silu_grad(gate, dy), up), mul(&silu(gate), dy)]
}

fn dropout(x: &Array, rng: &[i32], p: f32, stream: u64) -> Array {
    let (threshold, keep) = (drop_threshold(p), 1.0 / (1.0 - f64::from(p)));
    let masked = |x: f64, stream: Stream, row: u32, element: u32| {
        let kept = stream.bits(row, element) >= threshold;
        if kept { x * keep } else { 0.0 }
    };
    with_draws(x, rng, stream, masked)
}

fn jitter(x: &Array, rng: &[i32], noise: f32, stream: u64) -> Array {
    let noise = f64::from(noise);
    with_draws(x, rng, stream, |x, stream, row, element| {
        x * (1.0 - noise + 2.0 * noise * f64::from(stream.uniform(row, element)))
    })
}

/// `function` of each element, the random numbers and its place in them: the row of the global batch and the element
/// within the row. `rng` is `[seed low, seed high, step, first row]`.
fn with_draws(x: &Array, rng: &[i32], stream: u64, function: impl Fn(f64, Stream, u32, u32) -> f64) -> Array {
    let seed = u64::from(rng[0] as u32) | u64::from(rng[1] as u32) << 32;
    let stream = Stream::new(seed, stream, rng[2] as u32);
    let rows = x.shape.first().copied().unwrap_or(1);
    let width = x.shape.elements() / rows.max(1);
    let changed = |(flat, &x): (usize, &f64)| {
        let row = (rng[3] as u32).wrapping_add((flat / width) as u32);
        function(x, stream, row, (flat % width) as u32)
    };
    Array { shape: x.shape, data: x.data.iter().enumerate().map(changed).collect() }
}

/// `function` of each element of `a` and the element of `b` that suffix-broadcasting pairs it with.
fn with_suffix(a: &Array, b: &Array, function: impl Fn(f64, f64) -> f64) -> Array {
    let data = a.data.iter().zip(b.data.iter().cycle()).map(|(&x, &y)| function(x, y)).collect();
    Array { shape: a.shape, data }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu_slope(x: f64) -> f64 {
    sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x)))
}

fn tanh_argument(x: f64) -> f64 {
    (2.0 / PI).sqrt() * (x + 0.044_715 * x.powi(3))
}

fn gelu_slope(x: f64, form: Gelu) -> f64 {
    match form {
        Gelu::Tanh => {
            let t = tanh_argument(x).tanh();
            let inner = (2.0 / PI).sqrt() * (1.0 + 3.0 * 0.044_715 * x * x);
            0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner
        }
        Gelu::Erf => normal_below(x) + x * (-0.5 * x * x).exp() / (2.0 * PI).sqrt(),
    }
}

/// Probability that a standard normal number is below `x`.
fn normal_below(x: f64) -> f64 {
    0.5 * (1.0 + erf(x / SQRT_2))
}

/// `erf x = 2/√π · e^(−x²) · Σ 2ⁿ x²ⁿ⁺¹ / (1·3·…·(2n+1))`; all terms have one sign, so nothing cancels. From 6 on, erf
/// differs from 1 by less than the precision of `f64`.
pub(super) fn erf(x: f64) -> f64 {
    if x.is_nan() || x.abs() > 6.0 {
        return if x.is_nan() { x } else { x.signum() };
    }
    let (mut term, mut sum, mut odd) = (x, x, 1.0);
    while term.abs() > 1e-18 * sum.abs() {
        odd += 2.0;
        term *= 2.0 * x * x / odd;
        sum += term;
    }
    2.0 / PI.sqrt() * (-x * x).exp() * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_gives_the_tabulated_numbers() {
        let table = [(0.0, 0.0), (0.5, 0.520_499_877_813_046_5), (1.0, 0.842_700_792_949_714_9)];
        for (x, expected) in table.into_iter().chain([(3.0, 0.999_977_909_503_001_4), (7.0, 1.0)]) {
            assert!((erf(x) - expected).abs() < 1e-15, "erf({x}) = {}", erf(x));
            assert!((erf(-x) + expected).abs() < 1e-15, "erf(-{x}) = {}", erf(-x));
        }
    }

    #[test]
    fn a_row_keeps_its_mask_in_whatever_micro_batch_it_travels() {
        let rows = |first: i32, count: usize| {
            dropout(&Array::build([count, 5], |_| 1.0), &[1, 2, 3, first], 0.5, 9).data
        };
        let whole = rows(0, 4);
        assert_eq!(whole, [rows(0, 2), rows(2, 2)].concat());
        assert!(whole.contains(&0.0) && whole.contains(&2.0));
    }
}
