//! Rotary positions: pairs `(i, i + D/2)` of each head turned by an angle that grows with the position.
//!
//! The angle is formed in f64, where a product of two f32 is exact, and reduced to an eighth of a turn
//! before it becomes f32, so late positions are as exact as early ones. Sines serve all heads of a
//! position. May run in place.
#![allow(
    clippy::inline_always,
    reason = "inner loops must be compiled with their callers' vector instructions"
)]

use half::bf16;
use plimsoll_graph::{DType, Op};

use super::Call;
use super::element::Element;
use super::lanes::{PIECE, Work, at_full_width};
use super::split::{self, Overwritten};
use crate::ExecError;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    Some(match call.op {
        Op::Rope { inverse, positions } => rope(call, *inverse, *positions),
        _ => return None,
    })
}

/// Pairs whose sines are computed together.
const PAIRS: usize = 32;

fn rope(call: &Call, inverse: bool, positions: bool) -> Result<(), ExecError> {
    match call.precision()? {
        DType::Bf16 => turn_all::<bf16>(call, inverse, positions),
        _ => turn_all::<f32>(call, inverse, positions),
    }
    Ok(())
}

fn turn_all<E: Element>(call: &Call, inverse: bool, positions: bool) {
    let shape = call.inputs[0].ty.shape;
    let (length, heads, width) = (shape[1], shape[2], shape[3]);
    let (x, frequencies) = (Overwritten::<E>::input(call, 0), call.input(1));
    let positions = positions.then(|| call.integers(2));
    let tokens = shape[0] * length;
    let row = heads * width;
    split::rows(tokens, PIECE.div_ceil(row.max(1)), [call.output_as::<E>(0)], |range, [y]| {
        x.copy_to(range.start * row, y);
        for (token, y) in range.zip(y.chunks_exact_mut(row)) {
            let position = positions.map_or((token % length) as f64, |positions| positions[token].into());
            let position = if inverse { -position } else { position };
            at_full_width(Turn { y, width, frequencies, position });
        }
    });
}

/// All heads of one token.
struct Turn<'a, E> {
    y: &'a mut [E],
    width: usize,
    frequencies: &'a [f32],
    position: f64,
}

impl<E: Element> Work for Turn<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (chunk, frequencies) in self.frequencies.chunks(PAIRS).enumerate() {
            let (mut sin, mut cos) = ([0.0f32; PAIRS], [0.0f32; PAIRS]);
            for (i, &frequency) in frequencies.iter().enumerate() {
                [sin[i], cos[i]] = sin_cos(self.position * f64::from(frequency));
            }
            for head in self.y.chunks_exact_mut(self.width) {
                let (first, second) = head.split_at_mut(self.width / 2);
                let pairs = first[chunk * PAIRS..].iter_mut().zip(&mut second[chunk * PAIRS..]);
                for ((first, second), (sin, cos)) in pairs.zip(sin.iter().zip(&cos)) {
                    let (a, b) = (first.wide(), second.wide());
                    (*first, *second) = (E::rounded(a * cos - b * sin), E::rounded(b * cos + a * sin));
                }
            }
        }
    }
}

/// Sine and cosine. The angle is brought within `π/4` of a multiple of `π/2`, where short Taylor series
/// are exact to f32.
#[inline(always)]
fn sin_cos(angle: f64) -> [f32; 2] {
    // 1.5·2⁵²: adding it leaves the nearest integer in the low bits of the sum.
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    // The part of π/2 beyond f64; without it large angles would lose precision.
    const HALF_PI_LOW: f64 = 6.123_233_995_736_766e-17;
    let shifted = angle * std::f64::consts::FRAC_2_PI + SHIFT;
    let turns = shifted - SHIFT;
    let r = ((angle - turns * std::f64::consts::FRAC_PI_2) - turns * HALF_PI_LOW) as f32;
    let quarter = shifted.to_bits() as u32;

    let r2 = r * r;
    let sin = r + r * r2 * (-1.0 / 6.0 + r2 * (1.0 / 120.0 + r2 * (-1.0 / 5040.0 + r2 * (1.0 / 362_880.0))));
    let cos = 1.0
        + r2 * (-0.5
            + r2 * (1.0 / 24.0 + r2 * (-1.0 / 720.0 + r2 * (1.0 / 40_320.0 - r2 * (1.0 / 3_628_800.0)))));
    let (s, c) = if quarter & 1 == 0 { (sin, cos) } else { (cos, sin) };
    // Bit 1 of the quarter is the sign of the sine, that of the next quarter the sign of the cosine.
    let sign = |x: f32, quarter: u32| f32::from_bits(x.to_bits() ^ (quarter & 2) << 30);
    [sign(s, quarter), sign(c, quarter.wrapping_add(1))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::trial::{Trial, assert_near, numbers};

    #[test]
    fn sines_are_exact_at_all_angles_a_position_can_give() {
        for i in -40_000..40_000 {
            let angle = f64::from(i) * 3.271_829;
            let [sin, cos] = sin_cos(angle);
            assert!((f64::from(sin) - angle.sin()).abs() < 1e-7, "sin {angle}: {sin}");
            assert!((f64::from(cos) - angle.cos()).abs() < 1e-7, "cos {angle}: {cos}");
        }
    }

    #[test]
    fn pairs_turn_by_position_times_frequency_and_back() {
        let (b, t, h, d) = (2, 9, 3, 70);
        let (x, frequencies) = (numbers(b * t * h * d, 1), numbers(d / 2, 2));
        let positions: Vec<i32> = (0..b * t).map(|i| (i * 7 % 5000) as i32 - 3).collect();
        for given in [false, true] {
            let trial = |x: &[f32], inverse| {
                let trial = Trial::new(Op::Rope { inverse, positions: given }).f32([b, t, h, d], x);
                let trial = trial.f32([d / 2], &frequencies);
                if given { trial.i32([b, t], &positions) } else { trial }
            };
            let y = trial(&x, false).run();
            let mut expected = vec![0.0; x.len()];
            for (head, out) in expected.chunks_exact_mut(d).enumerate() {
                let token = head / h;
                let position = if given { f64::from(positions[token]) } else { (token % t) as f64 };
                for i in 0..d / 2 {
                    let (sin, cos) = (position * f64::from(frequencies[i])).sin_cos();
                    let (a, c) = (f64::from(x[head * d + i]), f64::from(x[head * d + i + d / 2]));
                    (out[i], out[i + d / 2]) = (a * cos - c * sin, c * cos + a * sin);
                }
            }
            assert_near(&y[0], &expected, 2e-7);
            assert_eq!(y, trial(&x, false).over(0, 0).threads(2).run());
            let back: Vec<f64> = x.iter().map(|&x| x.into()).collect();
            assert_near(&trial(&y[0], true).run()[0], &back, 4e-7);
        }
    }
}
