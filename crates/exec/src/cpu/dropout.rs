//! Dropout and jitter: random bits drawn where they are used, sixteen groups of four elements at a time.
//!
//! The bits of an element depend on the row of the global batch and the element within the row, never on the piece or
//! the thread that draws it. May run in place.
#![allow(
    clippy::inline_always,
    reason = "inner loops must be compiled with their callers' vector instructions"
)]
#![allow(unsafe_code, reason = "may write over its input, which slices cannot express")]

use half::bf16;
use plimsoll_graph::{DType, Op};

use super::element::Element;
use super::lanes::{PIECE, Streams, Work, at_full_width};
use super::{Call, pieces};
use crate::ExecError;
use crate::random::{Stream, drop_threshold, unit};

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    Some(match call.op {
        Op::Dropout { p, stream } => random(call, Mask::of(*p), *stream),
        Op::Jitter { noise, stream } => random(call, Scatter::of(*noise), *stream),
        _ => return None,
    })
}

/// Elements read before any is written; a multiple of four, since one draw serves four elements.
const CHUNK: usize = 64;

/// A change of an element by 32 random bits.
trait Change: Copy + Sync {
    fn apply(self, x: f32, bits: u32) -> f32;
}

/// Some elements become zero, and the others are scaled.
#[derive(Clone, Copy)]
struct Mask {
    threshold: u32,
    factor: f32,
}

impl Mask {
    fn of(p: f32) -> Mask {
        Mask { threshold: drop_threshold(p), factor: (1.0 / (1.0 - f64::from(p))) as f32 }
    }
}

impl Change for Mask {
    #[inline(always)]
    fn apply(self, x: f32, bits: u32) -> f32 {
        if bits < self.threshold { 0.0 } else { x * self.factor }
    }
}

/// Every element is multiplied by a number near 1.
#[derive(Clone, Copy)]
struct Scatter {
    least: f32,
    span: f32,
}

impl Scatter {
    fn of(noise: f32) -> Scatter {
        Scatter { least: 1.0 - noise, span: 2.0 * noise }
    }
}

impl Change for Scatter {
    #[inline(always)]
    fn apply(self, x: f32, bits: u32) -> f32 {
        x * (self.least + self.span * unit(bits))
    }
}

fn random(call: &Call, change: impl Change, stream: u64) -> Result<(), ExecError> {
    match call.precision()? {
        DType::Bf16 => change_all(call, Streams::<1, 1, bf16>::of(call), change, stream),
        _ => change_all(call, Streams::<1, 1, f32>::of(call), change, stream),
    }
    Ok(())
}

fn change_all<E: Element>(call: &Call, place: Streams<1, 1, E>, change: impl Change, stream: u64) {
    let rng = call.integers(1);
    let (stream, first_row) = (Stream::of_input(rng, stream), rng[3] as u32);

    let shape = call.inputs[0].ty.shape;
    let rows = shape.first().copied().unwrap_or(1);
    let columns = shape.elements() / rows.max(1);
    let per_row = columns.div_ceil(PIECE);
    // Short rows are taken together, so that a piece is worth handing to a thread.
    let together = if per_row > 1 { 1 } else { PIECE.div_ceil(columns.max(1)) };
    pieces::for_each((rows * per_row).div_ceil(together), |piece| {
        for part in piece * together..(rows * per_row).min((piece + 1) * together) {
            let (row, start) = (part / per_row, part % per_row * PIECE);
            // SAFETY: the place lies inside row `row`; parts do not overlap.
            let place = unsafe { place.from(row * columns + start) };
            let len = PIECE.min(columns - start);
            let row = first_row.wrapping_add(row as u32);
            at_full_width(Part { place, len, stream, row, group: start / 4, change });
        }
    });
}

/// Consecutive elements of one row.
struct Part<E, C> {
    place: Streams<1, 1, E>,
    len: usize,
    stream: Stream,
    row: u32,
    /// Which group of four the first element begins.
    group: usize,
    change: C,
}

impl<E: Element, C: Change> Work for Part<E, C> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Streams { inputs: [x], outputs: [y] } = self.place;
        let mut chunk = [0.0; CHUNK];
        for start in (0..self.len).step_by(CHUNK) {
            let count = CHUNK.min(self.len - start);
            for (lane, number) in chunk.iter_mut().enumerate().take(count) {
                // SAFETY: `start + count ≤ len`, the length of the part; the chunk is copied out, so nothing
                // is borrowed while it is written back.
                *number = unsafe { x.add(start + lane).read() }.wide();
            }
            self.change(&mut chunk, (self.group + start / 4) as u32);
            for (lane, &number) in chunk.iter().enumerate().take(count) {
                // SAFETY: as above.
                unsafe { y.add(start + lane).write(E::rounded(number)) };
            }
        }
    }
}

impl<E, C: Change> Part<E, C> {
    #[inline(always)]
    fn change(&self, chunk: &mut [f32; CHUNK], first_group: u32) {
        let (groups, _) = chunk.as_chunks_mut::<4>();
        for (offset, group) in (0u32..).zip(groups) {
            let bits = self.stream.quad(self.row, first_group + offset);
            for (x, bits) in group.iter_mut().zip(bits) {
                *x = self.change.apply(*x, bits);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::trial::{Trial, numbers};

    const OP: Op = Op::Dropout { p: 0.3, stream: 11 };

    #[test]
    fn the_mask_is_that_of_the_global_row_and_element() {
        let x = numbers(5 * 77, 1);
        let y = Trial::new(OP).f32([5, 7, 11], &x).i32([4], &[3, -1, 9, 40]).run().remove(0);
        let stream = Stream::new(3 | 0xffff_ffff << 32, 11, 9);
        for (flat, (x, y)) in x.iter().zip(y).enumerate() {
            let kept = stream.bits(40 + (flat / 77) as u32, (flat % 77) as u32) >= drop_threshold(0.3);
            let expected = if kept { f64::from(*x) / (1.0 - f64::from(0.3f32)) } else { 0.0 };
            assert!((f64::from(y) - expected).abs() < 1e-6, "element {flat}: {y}, not {expected}");
        }
    }

    #[test]
    fn a_factor_of_a_jitter_is_that_of_the_global_row_and_element() {
        let (x, noise) = (numbers(5 * 77, 1), 0.2);
        let op = Op::Jitter { noise, stream: 11 };
        let y = Trial::new(op).f32([5, 7, 11], &x).i32([4], &[3, -1, 9, 40]).run().remove(0);
        let stream = Stream::new(3 | 0xffff_ffff << 32, 11, 9);
        for (flat, (x, y)) in x.iter().zip(y).enumerate() {
            let drawn = stream.uniform(40 + (flat / 77) as u32, (flat % 77) as u32);
            let expected = x * (1.0 - noise + 2.0 * noise * drawn);
            assert!((y - expected).abs() < 1e-6, "element {flat}: {y}, not {expected}");
        }
    }

    #[test]
    fn in_place_and_on_two_threads_the_bits_are_the_same() {
        let x = numbers(3 * 20_001, 2);
        for op in [OP, Op::Jitter { noise: 0.1, stream: 11 }] {
            let trial = || Trial::new(op.clone()).f32([3, 20_001], &x).i32([4], &[1, 2, 3, 4]);
            let plain = trial().run();
            assert_eq!(plain, trial().over(0, 0).run());
            assert_eq!(plain, trial().threads(2).run());
        }
    }
}
