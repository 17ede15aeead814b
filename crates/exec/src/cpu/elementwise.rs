//! Elementwise ops: sums, products, and the addition of a gradient to its sum.
//!
//! Each kernel names a function of a few numbers; [`lanes`](super::lanes) runs it along the operands, in
//! place where the layout says so. Memory bandwidth is the limit. Activations and dropout have
//! files of their own.
#![allow(
    clippy::inline_always,
    reason = "inner loops must be compiled with their callers' vector instructions"
)]
#![allow(unsafe_code, reason = "a broadcast operand starts again at every row")]

use half::bf16;
use plimsoll_graph::{DType, Op};

use super::cast;
use super::element::Element;
use super::lanes::{self, Elementwise, PIECE, Streams, map};
use super::{Call, pieces};
use crate::ExecError;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    Some(match call.op {
        Op::Add => add(call),
        Op::Mul => mul(call),
        Op::Scale { factor } => scale(call, *factor),
        Op::Accumulate { .. } => {
            accumulate(call);
            Ok(())
        }
        _ => return None,
    })
}

struct Sum;
struct Product;
struct Plus(f32);
struct Times(f32);
struct Copied;

impl Elementwise<2, 1> for Sum {
    #[inline(always)]
    fn at(&self, [a, b]: [f32; 2]) -> [f32; 1] {
        [a + b]
    }
}

impl Elementwise<2, 1> for Product {
    #[inline(always)]
    fn at(&self, [a, b]: [f32; 2]) -> [f32; 1] {
        [a * b]
    }
}

impl Elementwise<1, 1> for Plus {
    #[inline(always)]
    fn at(&self, [x]: [f32; 1]) -> [f32; 1] {
        [x + self.0]
    }
}

impl Elementwise<1, 1> for Times {
    #[inline(always)]
    fn at(&self, [x]: [f32; 1]) -> [f32; 1] {
        [x * self.0]
    }
}

impl Elementwise<1, 1> for Copied {
    #[inline(always)]
    fn at(&self, x: [f32; 1]) -> [f32; 1] {
        x
    }
}

fn add(call: &Call) -> Result<(), ExecError> {
    with_suffix(call, &Sum, Plus)
}

fn mul(call: &Call) -> Result<(), ExecError> {
    with_suffix(call, &Product, Times)
}

fn scale(call: &Call, factor: f32) -> Result<(), ExecError> {
    map(call, &Times(factor))
}

/// `sum += x`.
pub(super) fn add_to(sum: &mut [f32], x: &[f32]) {
    assert_eq!(sum.len(), x.len(), "what is added has another length");
    let sum = sum.as_mut_ptr();
    lanes::map_streams(Streams { inputs: [sum.cast_const(), x.as_ptr()], outputs: [sum] }, &Sum, x.len());
}

/// Adds to the sum, or begins it where nothing has been added yet.
fn accumulate(call: &Call) {
    if call.inputs[0].ty.dtype != DType::F32 || call.outputs[0].ty.dtype != DType::F32 {
        return cast::accumulate(call);
    }
    let Streams { inputs: [x], outputs } = Streams::<1, 1>::of(call);
    let len = call.outputs[0].ty.shape.elements();
    if call.outputs[0].accumulate {
        lanes::map_streams(Streams { inputs: [outputs[0].cast_const(), x], outputs }, &Sum, len);
    } else {
        lanes::map_streams(Streams { inputs: [x], outputs }, &Copied, len);
    }
}

/// A function of `a` and of `b`, whose shape is a suffix of that of `a`; `with_one` is the same function
/// with the second number fixed.
fn with_suffix<One: Elementwise<1, 1>>(
    call: &Call,
    function: &impl Elementwise<2, 1>,
    with_one: impl Fn(f32) -> One,
) -> Result<(), ExecError> {
    match call.precision()? {
        DType::Bf16 => along_suffix(call, Streams::<2, 1, bf16>::of(call), function, with_one),
        _ => along_suffix(call, Streams::<2, 1, f32>::of(call), function, with_one),
    }
    Ok(())
}

fn along_suffix<One: Elementwise<1, 1>, E: Element>(
    call: &Call,
    streams: Streams<2, 1, E>,
    function: &impl Elementwise<2, 1>,
    with_one: impl Fn(f32) -> One,
) {
    let (len, period) = (call.inputs[0].ty.shape.elements(), call.inputs[1].ty.shape.elements());
    if len == period {
        return lanes::map_streams(streams, function, len);
    }
    let Streams { inputs: [a, b], outputs } = streams;
    if period == 1 {
        // SAFETY: `b` is one number, and no output overlaps it: their sizes differ.
        let b = unsafe { b.read() }.wide();
        return lanes::map_streams(Streams { inputs: [a], outputs }, &with_one(b), len);
    }
    pieces::for_each(len.div_ceil(PIECE), |piece| {
        let end = len.min((piece + 1) * PIECE);
        let mut start = piece * PIECE;
        while start < end {
            let within = start % period;
            let run = (period - within).min(end - start);
            // SAFETY: `start + run ≤ len` and `within + run ≤ period`; pieces do not overlap.
            unsafe {
                let here = streams.from(start);
                let b = streams.from(within).inputs[1];
                Streams { inputs: [here.inputs[0], b], ..here }.apply(function, run);
            }
            start += run;
        }
    });
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::op::Gelu;

    use super::*;
    use crate::cpu::trial::{Trial, assert_near, numbers};

    /// Values of a function of two numbers at `x` and `y`.
    fn expect(x: &[f32], y: &[f32], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
        x.iter().zip(y).map(|(&x, &y)| f(x.into(), y.into())).collect()
    }

    /// Numbers that reach far in both directions from zero.
    fn wide(count: usize) -> Vec<f32> {
        numbers(count, 5).iter().map(|x| x * x * x * 2.0).collect()
    }

    fn sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    /// Slope of `f` at `x`.
    fn slope(f: impl Fn(f64) -> f64, x: f64) -> f64 {
        (f(x + 1e-5) - f(x - 1e-5)) / 2e-5
    }

    /// `½(1 + erf(x/√2))` by its series, or by the continued fraction of its tail.
    fn normal_integral(x: f64) -> f64 {
        let density = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
        if x.abs() > 3.0 {
            let fraction = (1..200).rev().fold(x.abs(), |below, n| x.abs() + f64::from(n) / below);
            return if x > 0.0 { 1.0 - density / fraction } else { density / fraction };
        }
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= x * x / f64::from(2 * n + 1);
            sum += term;
        }
        0.5 + density * sum
    }

    fn gelu_exact(form: Gelu, x: f64) -> f64 {
        match form {
            Gelu::Tanh => 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x * x * x)).tanh()),
            Gelu::Erf => x * normal_integral(x),
        }
    }

    #[test]
    fn activations_follow_their_equations() {
        let (x, dy) = (wide(1003), numbers(1003, 6));
        let check = |op: Op, f: &dyn Fn(f64) -> f64| {
            let y = Trial::new(op).f32([1003], &x).run();
            assert_near(&y[0], &expect(&x, &dy, |x, _| f(x)), 2e-7);
        };
        let check_gradient = |op: Op, f: &dyn Fn(f64) -> f64| {
            let dx = Trial::new(op).f32([1003], &x).f32([1003], &dy).run();
            assert_near(&dx[0], &expect(&x, &dy, |x, dy| dy * slope(f, x)), 3e-7);
        };
        check(Op::Silu, &|x| x * sigmoid(x));
        check_gradient(Op::SiluGrad, &|x| x * sigmoid(x));
        for form in [Gelu::Tanh, Gelu::Erf] {
            check(Op::Gelu(form), &|x| gelu_exact(form, x));
            check_gradient(Op::GeluGrad(form), &|x| gelu_exact(form, x));
        }
    }

    #[test]
    fn the_hyperbolic_tangent_is_exact_to_a_few_ulp_from_the_smallest_number_to_one() {
        let x: Vec<f32> = (0..4000).map(|i| 20.0 * (-0.01 * i as f32).exp() * [1.0, -1.0][i % 2]).collect();
        let y = Trial::new(Op::Tanh).f32([4000], &x).run();
        for (&x, &y) in x.iter().zip(&y[0]) {
            let exact = f64::from(x).tanh();
            assert!((f64::from(y) / exact - 1.0).abs() < 3e-7, "tanh({x}) is {exact}, not {y}");
        }
        let dy = numbers(4000, 6);
        let dx = Trial::new(Op::TanhGrad).f32([4000], &y[0]).f32([4000], &dy).run();
        assert_near(&dx[0], &expect(&x, &dy, |x, dy| dy * slope(f64::tanh, x)), 3e-7);
    }

    #[test]
    fn swiglu_and_its_gradient_follow_their_equations() {
        let (g, u, dy) = (wide(70), numbers(70, 7), numbers(70, 8));
        let y = Trial::new(Op::Swiglu).f32([7, 10], &g).f32([7, 10], &u).run();
        let silu = |x: f64| x * sigmoid(x);
        assert_near(&y[0], &expect(&g, &u, |g, u| silu(g) * u), 2e-7);
        let grads = Trial::new(Op::SwigluGrad).f32([70], &g).f32([70], &u).f32([70], &dy).run();
        let du = expect(&g, &dy, |g, dy| dy * silu(g));
        let dg: Vec<f64> = expect(&g, &dy, |g, dy| dy * slope(silu, g))
            .iter()
            .zip(&u)
            .map(|(d, &u)| d * f64::from(u))
            .collect();
        assert_near(&grads[0], &dg, 3e-7);
        assert_near(&grads[1], &du, 3e-7);
    }

    #[test]
    fn a_suffix_is_repeated_along_the_leading_axes() {
        let a = numbers(3 * 5 * 7000, 1);
        for suffix in [vec![3, 5, 7000], vec![5, 7000], vec![7000], vec![]] {
            let shape = plimsoll_graph::Shape::new(&suffix).unwrap();
            let b = numbers(shape.elements(), 2);
            let repeated: Vec<f32> = b.iter().copied().cycle().take(a.len()).collect();
            let sum = Trial::new(Op::Add).f32([3, 5, 7000], &a).f32(shape, &b).threads(2).run();
            assert_near(&sum[0], &expect(&a, &repeated, |a, b| a + b), 1e-7);
            let product = Trial::new(Op::Mul).f32([3, 5, 7000], &a).f32(shape, &b).over(0, 0).run();
            assert_near(&product[0], &expect(&a, &repeated, |a, b| a * b), 1e-7);
        }
    }

    #[test]
    fn in_place_and_on_two_threads_the_bits_are_the_same() {
        let shape = [5, 7001];
        let (a, b, c) = (wide(5 * 7001), numbers(5 * 7001, 2), numbers(5 * 7001, 3));
        let ops = [
            Op::Add,
            Op::Scale { factor: 0.3 },
            Op::Silu,
            Op::SiluGrad,
            Op::Gelu(Gelu::Erf),
            Op::GeluGrad(Gelu::Tanh),
            Op::Tanh,
            Op::TanhGrad,
            Op::Sigmoid,
            Op::SigmoidGrad,
            Op::Swiglu,
            Op::SwigluGrad,
        ];
        for op in ops {
            let inputs = match op {
                Op::Scale { .. } | Op::Silu | Op::Gelu(_) | Op::Tanh | Op::Sigmoid => 1,
                Op::SwigluGrad => 3,
                _ => 2,
            };
            let trial = || {
                let data = [&a, &b, &c];
                data[..inputs].iter().fold(Trial::new(op.clone()), |trial, x| trial.f32(shape, x))
            };
            let plain = trial().run();
            assert_eq!(plain, trial().threads(2).run(), "{}", op.name());
            for output in 0..plain.len() {
                for &input in op.may_overwrite(output) {
                    assert_eq!(plain, trial().over(output, input).run(), "{} over {input}", op.name());
                }
            }
        }
        let grad = || Trial::new(Op::SwigluGrad).f32(shape, &a).f32(shape, &b).f32(shape, &c);
        assert_eq!(grad().run(), grad().over(0, 2).over(1, 1).run());
    }

    #[test]
    fn a_gradient_begins_its_sum_or_is_added_to_it() {
        let (x, sum) = (numbers(33, 1), numbers(33, 2));
        assert_eq!(Trial::new(Op::Accumulate { to: plimsoll_graph::DType::F32 }).f32([33], &x).run()[0], x);
        let added =
            Trial::new(Op::Accumulate { to: plimsoll_graph::DType::F32 }).f32([33], &x).onto(0, &sum).run();
        assert_near(&added[0], &expect(&x, &sum, |x, s| x + s), 1e-7);
    }
}
