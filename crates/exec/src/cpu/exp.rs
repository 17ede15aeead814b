//! The exponential function, written so that the compiler vectorises it.
//!
//! `exp(x) = 2ⁿ · exp(r)` with `n = round(x / ln 2)` and `|r| ≤ ½ ln 2`, where eight terms of the Taylor
//! series are enough (the ninth is below a tenth of an ulp). Branch-free, and no fused operations: the
//! result is the same on every instruction set. The error stays below 1.5 ulp over all floats;
//! denormal results, infinities and NaN come out as in `f32::exp`.

/// `exp(x)`. Loops over many numbers should call it inside [`widest!`](super::simd).
#[inline(always)]
#[allow(clippy::inline_always, reason = "must be compiled with its caller's vector instructions")]
#[allow(clippy::excessive_precision, reason = "the constants are the decimal values of exact floats")]
pub(super) fn exp(x: f32) -> f32 {
    // 1.5·2²³: adding it leaves the nearest integer in the low bits of the sum.
    const SHIFT: f32 = 12_582_912.0;
    // ln 2 in two parts; the first has 9 bits, so its product with an integer below 2¹⁵ is exact.
    const LN_2_HIGH: f32 = 0.693_359_375;
    const LN_2_LOW: f32 = -2.121_944_4e-4;

    // Comparisons instead of `clamp` or `max`: NaN must pass.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };

    let shifted = x * std::f32::consts::LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;

    let tail = 1.0 / 2.0
        + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0 + r * (1.0 / 5040.0)))));
    let series = 1.0 + (r + r * r * tail);

    // 2ⁿ in two factors: n reaches beyond the exponents of normal floats on both sides.
    let exponent = (shifted.to_bits() as i32).wrapping_sub(SHIFT.to_bits() as i32);
    let half = exponent >> 1;
    series * power_of_two(half) * power_of_two(exponent.wrapping_sub(half))
}

#[inline(always)]
#[allow(clippy::inline_always, reason = "must be compiled with its caller's vector instructions")]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits((exponent.wrapping_add(127) << 23) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::widest;

    /// Distance from the true value in units of the last place of the true value.
    fn ulps(x: f32) -> f64 {
        let exact = f64::from(x).exp();
        let rounded = exact as f32;
        let place = f64::from(rounded.next_up()) - f64::from(rounded);
        (f64::from(exp(x)) - exact).abs() / place
    }

    #[test]
    fn the_error_stays_below_one_and_a_half_ulp() {
        let worst = (0..4_000_000u32)
            .map(|i| -87.3 + i as f32 * (176.0 / 4_000_000.0))
            .map(|x| (ulps(x), x))
            .fold((0.0, 0.0), |worst, one| if one.0 > worst.0 { one } else { worst });
        assert!(worst.0 < 1.5, "{} ulp at {}", worst.0, worst.1);
        let small = (1..1_000_000u32).map(|i| ulps(-1e-6 * i as f32)).fold(0.0, f64::max);
        assert!(small < 1.5, "{small} ulp");
    }

    #[test]
    fn the_ends_are_those_of_the_standard_library() {
        for x in [
            f32::NEG_INFINITY,
            -1e30,
            -200.0,
            -104.0,
            -103.0,
            -90.0,
            -0.0,
            0.0,
            88.7,
            89.0,
            200.0,
            f32::INFINITY,
        ] {
            let (ours, theirs) = (exp(x), x.exp());
            let close = (f64::from(ours) - f64::from(theirs)).abs() <= f64::from(theirs) * 2e-7 + 2e-45;
            assert!(ours.to_bits() == theirs.to_bits() || close, "exp({x}) = {ours}, not {theirs}");
        }
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0.0_f32.to_bits());
        assert!(exp(f32::INFINITY).is_infinite() && exp(88.8).is_infinite());
    }

    widest! {
        fn exp_all(numbers: &mut [f32]) {
            for number in numbers {
                *number = exp(*number);
            }
        }
    }

    #[test]
    fn wide_vectors_and_single_numbers_agree_to_the_bit() {
        let numbers: Vec<f32> = (0..83).map(|i| (i as f32 - 45.0) * 2.37).collect();
        let mut many = numbers.clone();
        exp_all(&mut many);
        for (many, x) in many.into_iter().zip(numbers) {
            assert_eq!(many.to_bits(), exp(std::hint::black_box(x)).to_bits());
        }
    }
}
