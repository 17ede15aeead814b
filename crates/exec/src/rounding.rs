//! Two ways to keep an f32 weight in bf16 without losing the small steps of training.
//!
//! A step is often less than half of the distance between neighbouring bf16 numbers, so rounding to the nearest would
//! undo it every time. Stochastic rounding preserves it on average; keeping the lost half beside the number preserves
//! it exactly.

use half::bf16;

/// `x` rounded up or down, in proportion to its distance from either neighbour: with `bits` evenly drawn, the
/// mean is `x`. The upper half of `bits` is used.
#[inline(always)]
#[allow(clippy::inline_always, reason = "must be compiled with its caller's vector instructions")]
pub fn stochastic(x: f32, bits: u32) -> bf16 {
    let raised = x.to_bits().wrapping_add(bits >> 16) >> 16;
    // Rounding would turn an infinity or NaN into another kind of number.
    let kept = x.to_bits() >> 16 | u32::from(x.is_nan());
    bf16::from_bits(if x.is_finite() { raised } else { kept } as u16)
}

/// The bf16 nearest to `x`, and the number to add to its bits to get those of `x` again.
#[inline(always)]
#[allow(clippy::inline_always, reason = "must be compiled with its caller's vector instructions")]
pub fn split(x: f32) -> (bf16, i16) {
    let bits = x.to_bits();
    let upper = bits.wrapping_add(0x8000) >> 16;
    (bf16::from_bits(upper as u16), bits as u16 as i16)
}

/// The f32 that was [`split`].
#[inline(always)]
#[allow(clippy::inline_always, reason = "must be compiled with its caller's vector instructions")]
pub fn join(upper: bf16, lower: i16) -> f32 {
    let upper = u32::from(upper.to_bits()) << 16;
    f32::from_bits(upper.wrapping_add_signed(lower.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Stream;

    #[test]
    fn rounding_at_random_keeps_the_mean_and_never_goes_past_a_neighbour() {
        let stream = Stream::new(3, 5, 0);
        for x in [0.1f32, -0.1, 1.0 + 1.0 / 1024.0, -3.3e-5, 7.7e20] {
            let (below, above) = (f32::from_bits(x.to_bits() & 0xffff_0000), {
                f32::from_bits((x.to_bits() & 0xffff_0000) + 0x1_0000)
            });
            let draws: Vec<f32> = (0..40_000).map(|i| stochastic(x, stream.bits(0, i)).to_f32()).collect();
            assert!(draws.iter().all(|y| y.to_bits() == below.to_bits() || y.to_bits() == above.to_bits()));
            let mean = draws.iter().map(|&y| f64::from(y)).sum::<f64>() / draws.len() as f64;
            // One draw deviates by at most half the gap; the mean of 40 000 by 1/400 of it; four times that is allowed.
            let gap = f64::from((above - below).abs());
            assert!((mean - f64::from(x)).abs() < gap / 100.0, "{x}: {mean}");
        }
    }

    #[test]
    fn what_bf16_holds_is_not_rounded_and_what_is_not_finite_stays_so() {
        for x in [0.0f32, -0.0, 1.5, -2e30] {
            let x = bf16::from_f32(x);
            assert_eq!(stochastic(x.to_f32(), u32::MAX), x);
        }
        assert_eq!(stochastic(f32::INFINITY, u32::MAX), bf16::INFINITY);
        assert!(stochastic(f32::NAN, u32::MAX).is_nan());
    }

    #[test]
    fn split_and_joined_is_the_same_number_and_the_upper_half_is_the_nearest() {
        let stream = Stream::new(1, 2, 0);
        let numbers = (0..10_000).map(|i| 2.0 * stream.uniform(0, i) - 1.0);
        for x in numbers.chain([0.0, -0.0, 1e-40, f32::MAX, f32::MIN, f32::MIN_POSITIVE]) {
            let (upper, lower) = split(x);
            assert_eq!(join(upper, lower).to_bits(), x.to_bits());
            let nearest = bf16::from_f32(x).to_f32();
            assert!((upper.to_f32() - x).abs() <= (nearest - x).abs() || upper.is_infinite(), "{x}");
        }
        assert_eq!(join(bf16::from_f32(0.75), 0).to_bits(), 0.75f32.to_bits());
    }
}
