//! How values between nodes are stored: f32, or bf16 that is widened as it is read and rounded as it is written.
//!
//! Kernels are written once over [`Element`] and compiled for both types. Arithmetic and sums are f32 either way; a
//! stored value is rounded once, to nearest even. For f32 both conversions do nothing, so its code is the same as if it
//! were written for f32 alone.
#![allow(
    clippy::inline_always,
    reason = "inner loops must be compiled with their callers' vector instructions"
)]

use half::bf16;
use plimsoll_graph::DType;

use super::simd::widest;

/// A stored number.
pub(super) trait Element: Copy + Send + Sync + 'static {
    /// The element type in a graph.
    const DTYPE: DType;
    /// Whether it holds every f32, so that intermediate results may be stored in its place.
    const WHOLE: bool;
    /// Zero.
    const ZERO: Self;

    /// The number.
    fn wide(self) -> f32;
    /// The nearest element, the even one of two.
    fn rounded(x: f32) -> Self;
    /// The elements as numbers, where they are stored as f32.
    fn as_wide(elements: &[Self]) -> Option<&[f32]>;
    /// The same, to be written.
    fn as_wide_mut(elements: &mut [Self]) -> Option<&mut [f32]>;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
    const WHOLE: bool = true;
    const ZERO: f32 = 0.0;

    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }

    #[inline(always)]
    fn rounded(x: f32) -> f32 {
        x
    }

    fn as_wide(elements: &[f32]) -> Option<&[f32]> {
        Some(elements)
    }

    fn as_wide_mut(elements: &mut [f32]) -> Option<&mut [f32]> {
        Some(elements)
    }
}

impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;
    const WHOLE: bool = false;
    const ZERO: bf16 = bf16::ZERO;

    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn rounded(x: f32) -> bf16 {
        let bits = x.to_bits();
        // Half of the last place, less one if the place is even; a carry into the exponent gives the right result.
        let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        let quiet = bits >> 16 | 0x40;
        bf16::from_bits(if bits << 1 > 0xff00_0000 { quiet } else { nearest } as u16)
    }

    fn as_wide(_: &[bf16]) -> Option<&[f32]> {
        None
    }

    fn as_wide_mut(_: &mut [bf16]) -> Option<&mut [f32]> {
        None
    }
}

widest! {
    /// The numbers of `from`.
    pub(super) fn widen<E: Element>(from: &[E], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.wide();
        }
    }
}

widest! {
    /// Lines of `width` numbers that lie `stride` apart, one behind the other.
    pub(super) fn widen_lines<E: Element>(from: &[E], stride: usize, width: usize, to: &mut [f32]) {
        for (row, to) in to.chunks_exact_mut(width).enumerate() {
            for (to, from) in to.iter_mut().zip(&from[row * stride..][..width]) {
                *to = from.wide();
            }
        }
    }
}

/// `count` rows of `width` numbers, `stride` apart, and how far apart they are now: where they lie if they are f32, else
/// widened into `room`.
pub(super) fn rows<'a, E: Element>(
    from: &'a [E],
    stride: usize,
    width: usize,
    count: usize,
    room: &'a mut [f32],
) -> (&'a [f32], usize) {
    if let Some(rows) = E::as_wide(from) {
        return (rows, stride);
    }
    widen_lines(from, stride, width, &mut room[..count * width]);
    (room, width)
}

widest! {
    /// The elements nearest to `from`.
    pub(super) fn round<E: Element>(from: &[f32], to: &mut [E]) {
        for (to, &from) in to.iter_mut().zip(from) {
            *to = E::rounded(from);
        }
    }
}

widest! {
    /// The elements nearest to the sums of `from` and `to`.
    pub(super) fn add_rounded<E: Element>(from: &[f32], to: &mut [E]) {
        for (to, &from) in to.iter_mut().zip(from) {
            *to = E::rounded(from + to.wide());
        }
    }
}

widest! {
    /// Rounds numbers as if one node had stored them as bf16 and another had read them.
    pub(super) fn round_in_place(numbers: &mut [f32]) {
        for number in numbers {
            *number = bf16::rounded(*number).wide();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_and_widening_are_those_of_the_library_for_every_upper_half() {
        // Under Miri, which is some thousand times slower, the test takes every 257th number.
        for upper in (0..=u16::MAX).step_by(if cfg!(miri) { 257 } else { 1 }) {
            let half = bf16::from_bits(upper);
            assert!(half.wide().to_bits() == half.to_f32().to_bits() || half.is_nan());
            for lower in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(u32::from(upper) << 16 | lower);
                let (ours, theirs) = (bf16::rounded(x), bf16::from_f32(x));
                assert!(
                    ours == theirs && ours.is_sign_negative() == theirs.is_sign_negative() || x.is_nan(),
                    "{x:e}"
                );
                assert_eq!(ours.is_nan(), x.is_nan(), "{x:e}");
            }
        }
    }
}
