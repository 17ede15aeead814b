//! Logarithm, cosine and sine for drawing normal numbers, made of IEEE operations alone.
//!
//! The system's mathematical library differs from machine to machine in its last bits, and a GPU has another one; these
//! functions have the same bits everywhere, since they use nothing but f64 additions, products and quotients, none of
//! them fused. `cuda/kernels/draw.cu` repeats them operation by operation. They are within half a unit of f32's last
//! place, give or take 10⁻⁸ of it.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2, LN_2, SQRT_2};

/// `ln x` for `x` in 2⁻²⁴ … 1. With `x = m·2ᵉ` and `m` in √½ … √2: `ln x = e·ln 2 + 2·artanh t`, `t = (m − 1)/(m + 1)`.
#[inline(always)]
#[allow(clippy::inline_always, reason = "must be compiled with its caller's vector instructions")]
pub(crate) fn ln(x: f32) -> f32 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 23) as i32 - 127;
    let mut m = f64::from(f32::from_bits(bits & 0x007f_ffff | 0x3f80_0000));
    if m > SQRT_2 {
        m *= 0.5;
        exponent += 1;
    }
    let t = (m - 1.0) / (m + 1.0);
    let square = t * t;
    let mut series = 1.0 / 21.0;
    for odd in (1..=19).rev().step_by(2) {
        series = series * square + 1.0 / f64::from(odd);
    }
    (f64::from(exponent) * LN_2 + 2.0 * t * series) as f32
}

/// Cosine and sine of an angle in 0 … 2π, by their series for the angle less whole quarters of a turn.
#[inline(always)]
#[allow(clippy::inline_always, reason = "must be compiled with its caller's vector instructions")]
pub(crate) fn cos_sin(angle: f32) -> [f32; 2] {
    let angle = f64::from(angle);
    let quarter = (angle * FRAC_2_PI + 0.5) as i32;
    let x = angle - f64::from(quarter) * FRAC_PI_2;
    let square = x * x;
    let (mut sine, mut cosine) = (1.0, 1.0);
    for n in (2..=16).rev().step_by(2) {
        sine = 1.0 - sine * square * (1.0 / f64::from(n * (n + 1)));
    }
    for n in (1..=15).rev().step_by(2) {
        cosine = 1.0 - cosine * square * (1.0 / f64::from(n * (n + 1)));
    }
    sine *= x;
    let (at_cosine, at_sine) = if quarter & 1 == 1 { (sine, cosine) } else { (cosine, sine) };
    let signed = |x: f64, negative: bool| if negative { -x as f32 } else { x as f32 };
    [signed(at_cosine, (quarter + 1) & 2 != 0), signed(at_sine, quarter & 2 != 0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f32::consts::TAU;

    /// Fractions with 24 bits, as they are drawn: both ends and 20 000 between.
    fn fractions() -> impl Iterator<Item = f32> {
        let step = 16_777_216 / 20_000;
        (0..=20_000)
            .map(move |i| (i * step).min(16_777_215))
            .chain([1, 2, 16_777_215])
            .map(|k| k as f32 / 16_777_216.0)
    }

    #[test]
    fn functions_lie_within_half_a_place_of_the_exact_numbers() {
        let off = |found: f32, exact: f64| {
            let place = f64::from(f32::EPSILON) * exact.abs().max(f64::from(f32::MIN_POSITIVE));
            (f64::from(found) - exact).abs() / place
        };
        for u in fractions() {
            let x = 1.0 - u;
            assert!(off(ln(x), f64::from(x).ln()) < 0.500_001, "ln {x}");
            let angle = TAU * u;
            let [cosine, sine] = cos_sin(angle);
            let (exact_sine, exact_cosine) = f64::from(angle).sin_cos();
            // Near a zero, the rounding error of the quarter in f64 shows.
            assert!(off(cosine, exact_cosine) < 0.500_001 || exact_cosine.abs() < 1e-6, "cos {angle}");
            assert!(off(sine, exact_sine) < 0.500_001 || exact_sine.abs() < 1e-6, "sin {angle}");
        }
    }
}
