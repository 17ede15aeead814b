//! Activations and their derivatives, as scalar functions in forms that vectorise.
//!
//! All of them rest on the exponential of a number that is not positive, so nothing overflows, and on
//! the two factors of the logistic function's derivative, so nothing cancels.
#![allow(
    clippy::inline_always,
    reason = "inner loops must be compiled with their callers' vector instructions"
)]

use plimsoll_graph::Op;
use plimsoll_graph::op::Gelu;

use super::Call;
use super::exp::exp;
use super::lanes::{Elementwise, map};
use crate::ExecError;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    Some(match call.op {
        Op::Silu => map(call, &Silu),
        Op::SiluGrad => map(call, &SiluGrad),
        Op::Gelu(Gelu::Tanh) => map(call, &GeluTanh),
        Op::Gelu(Gelu::Erf) => map(call, &GeluErf),
        Op::GeluGrad(Gelu::Tanh) => map(call, &GeluTanhGrad),
        Op::GeluGrad(Gelu::Erf) => map(call, &GeluErfGrad),
        Op::Tanh => map(call, &Tanh),
        Op::TanhGrad => map(call, &TanhGrad),
        Op::Sigmoid => map(call, &Sigmoid),
        Op::SigmoidGrad => map(call, &SigmoidGrad),
        Op::Swiglu => map(call, &Swiglu),
        Op::SwigluGrad => map(call, &SwigluGrad),
        _ => return None,
    })
}

/// The logistic function and its derivative at one point.
struct Logistic {
    value: f32,
    slope: f32,
}

#[inline(always)]
fn logistic(x: f32) -> Logistic {
    let e = exp(-x.abs());
    let d = 1.0 / (1.0 + e);
    Logistic { value: if x < 0.0 { e * d } else { d }, slope: e * d * d }
}

/// The standard normal distribution: its integral up to a point and its density there.
struct Normal {
    integral: f32,
    density: f32,
}

/// `Φ(−a)·exp(a²/2) = t·P(t)` with `t = 1/(1 + 0.35a)`: the left side is smooth, and the polynomial through
/// nine Chebyshev points of `0 ≤ a ≤ 14` is within 4·10⁻⁸ of it, relatively.
#[inline(always)]
fn normal(x: f32) -> Normal {
    const P: [f32; 9] = [
        0.139_618_71,
        0.139_912_3,
        0.119_444_92,
        0.107_114_59,
        -0.027_046_608,
        0.165_051,
        -0.260_961_23,
        0.146_545_83,
        -0.029_679_522,
    ];
    const ONE_OVER_ROOT_TWO_PI: f32 = 0.398_942_3;
    let e = exp(-0.5 * x * x);
    let t = 1.0 / (1.0 + 0.35 * x.abs());
    let mut sum = P[8];
    for index in (0..8).rev() {
        sum = sum * t + P[index];
    }
    let tail = e * t * sum;
    Normal { integral: if x < 0.0 { tail } else { 1.0 - tail }, density: ONE_OVER_ROOT_TWO_PI * e }
}

/// Near 0 an odd polynomial, where `1 − e^(−2x)` would cancel: least squares for `|x| ≤ 0.64`, within 10⁻⁸
/// of the function, relatively.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    const P: [f32; 5] = [-0.333_332_66, 0.133_310_19, -0.053_704_584, 0.020_524_73, -0.005_577_356_7];
    let u = x * x;
    let near = x + x * u * (P[0] + u * (P[1] + u * (P[2] + u * (P[3] + u * P[4]))));
    let e = exp(-2.0 * x.abs());
    let far = (1.0 - e) / (1.0 + e);
    let far = if x < 0.0 { -far } else { far };
    if x.abs() < 0.64 { near } else { far }
}

/// Twice the argument of the hyperbolic tangent in the tanh form of gelu: `½(1 + tanh(v/2)) = σ(v)`.
const TANH_SLOPE: f32 = 1.595_769;
const TANH_CUBIC: f32 = 0.044_715;

struct Silu;
struct SiluGrad;
pub(super) struct GeluTanh;
pub(super) struct GeluTanhGrad;
pub(super) struct GeluErf;
pub(super) struct GeluErfGrad;
struct Tanh;
struct TanhGrad;
struct Sigmoid;
struct SigmoidGrad;
pub(super) struct Swiglu;
pub(super) struct SwigluGrad;

impl Elementwise<1, 1> for Silu {
    #[inline(always)]
    fn at(&self, [x]: [f32; 1]) -> [f32; 1] {
        [x * logistic(x).value]
    }
}

impl Elementwise<2, 1> for SiluGrad {
    #[inline(always)]
    fn at(&self, [x, dy]: [f32; 2]) -> [f32; 1] {
        let s = logistic(x);
        [dy * (s.value + x * s.slope)]
    }
}

impl Elementwise<1, 1> for GeluTanh {
    #[inline(always)]
    fn at(&self, [x]: [f32; 1]) -> [f32; 1] {
        [x * logistic(TANH_SLOPE * (x + TANH_CUBIC * x * x * x)).value]
    }
}

impl Elementwise<2, 1> for GeluTanhGrad {
    #[inline(always)]
    fn at(&self, [x, dy]: [f32; 2]) -> [f32; 1] {
        let s = logistic(TANH_SLOPE * (x + TANH_CUBIC * x * x * x));
        let inner = TANH_SLOPE * (1.0 + 3.0 * TANH_CUBIC * x * x);
        [dy * (s.value + x * s.slope * inner)]
    }
}

impl Elementwise<1, 1> for GeluErf {
    #[inline(always)]
    fn at(&self, [x]: [f32; 1]) -> [f32; 1] {
        [x * normal(x).integral]
    }
}

impl Elementwise<2, 1> for GeluErfGrad {
    #[inline(always)]
    fn at(&self, [x, dy]: [f32; 2]) -> [f32; 1] {
        let n = normal(x);
        [dy * (n.integral + x * n.density)]
    }
}

impl Elementwise<1, 1> for Tanh {
    #[inline(always)]
    fn at(&self, [x]: [f32; 1]) -> [f32; 1] {
        [tanh(x)]
    }
}

impl Elementwise<2, 1> for TanhGrad {
    #[inline(always)]
    fn at(&self, [y, dy]: [f32; 2]) -> [f32; 1] {
        // Not 1 − y²: near ±1 the two factors lose nothing.
        [dy * (1.0 - y) * (1.0 + y)]
    }
}

impl Elementwise<1, 1> for Sigmoid {
    #[inline(always)]
    fn at(&self, [x]: [f32; 1]) -> [f32; 1] {
        [logistic(x).value]
    }
}

impl Elementwise<2, 1> for SigmoidGrad {
    #[inline(always)]
    fn at(&self, [y, dy]: [f32; 2]) -> [f32; 1] {
        [dy * y * (1.0 - y)]
    }
}

impl Elementwise<2, 1> for Swiglu {
    #[inline(always)]
    fn at(&self, [g, u]: [f32; 2]) -> [f32; 1] {
        [g * logistic(g).value * u]
    }
}

impl Elementwise<3, 2> for SwigluGrad {
    #[inline(always)]
    fn at(&self, [g, u, dy]: [f32; 3]) -> [f32; 2] {
        let s = logistic(g);
        [dy * u * (s.value + g * s.slope), dy * g * s.value]
    }
}
