//! Copies a strip of a matrix of bf16 into the order in which `vdpbf16ps` reads it: two steps of depth in one word.
//!
//! ```text
//!  lines  0 ┌ a b c d e   depth →        packed, width 2:   ab fg  cd hi  e0 j0
//!         1 └ f g h i j
//! ```
//!
//! The earlier step is in the upper half of its word, because the instruction adds the product of the upper halves first: sums
//! then take the products in the order of depth, whatever the instructions. A last step without a partner is paired with zero.
//! Numbers lie as bf16, or as f32 that bf16 holds; of those the upper half is taken.
#![allow(
    clippy::inline_always,
    reason = "inner loops must be compiled with their callers' vector instructions"
)]
#![allow(unsafe_code, reason = "writes panels that threads fill side by side")]

use half::bf16;

use super::lanes::{Work, at_full_width};
use super::pack::{MOST_LINES, Numbers, View, transposed};

/// Steps of depth that are gathered before they are transposed. Paired, they fill a cache line.
const RUN: usize = 32;

/// Packs `lines` lines of `depth` numbers into `depth / 2` groups of `width` words, rounded up.
///
/// # Safety
///
/// `to` must have room for the groups and be written by this thread alone.
pub(super) unsafe fn pack_pairs(from: View, lines: usize, width: usize, depth: usize, to: *mut f32) {
    debug_assert!(lines <= width && lines > 0 && depth > 0);
    assert!((lines - 1) * from.line_stride + (depth - 1) * from.depth_stride < from.data.len());
    assert!(lines <= MOST_LINES && (from.line_stride == 1 || from.depth_stride == 1), "no strip of bf16");
    let View { data, line_stride, depth_stride } = from;
    let to = to.cast::<u32>();
    match data {
        Numbers::Bf16(data) => {
            at_full_width(Strip { data, line_stride, depth_stride, lines, width, depth, to });
        }
        Numbers::Rounded(data) => {
            at_full_width(Strip { data, line_stride, depth_stride, lines, width, depth, to });
        }
        Numbers::F32(_) => unreachable!("f32 has no pairs"),
    }
}

/// A number that bf16 holds.
trait Half: Copy {
    /// The bits of the number in the upper half of a word.
    fn upper(self) -> u32;
    /// The bits of the number in the lower half of a word.
    fn lower(self) -> u32;
    /// Eight neighbours as four words, each the float with the same bits. Neither this function nor its callers use
    /// closures: a closure that is not inlined is compiled without its caller's vector instructions.
    ///
    /// # Safety
    ///
    /// Eight numbers must be readable.
    unsafe fn words(from: *const Self) -> [f32; 4];
}

impl Half for bf16 {
    #[inline(always)]
    fn upper(self) -> u32 {
        self.lower() << 16
    }

    #[inline(always)]
    fn lower(self) -> u32 {
        u32::from(self.to_bits())
    }

    #[inline(always)]
    unsafe fn words(from: *const bf16) -> [f32; 4] {
        // SAFETY: the caller's promise; neighbours in memory are a word with the earlier one below.
        let neighbours = unsafe { from.cast::<[u32; 4]>().read_unaligned() };
        let mut words = [0.0; 4];
        for (word, pair) in words.iter_mut().zip(neighbours) {
            *word = f32::from_bits(u32::from_le(pair).rotate_left(16));
        }
        words
    }
}

impl Half for f32 {
    #[inline(always)]
    fn upper(self) -> u32 {
        self.to_bits() & 0xffff_0000
    }

    #[inline(always)]
    fn lower(self) -> u32 {
        self.to_bits() >> 16
    }

    #[inline(always)]
    unsafe fn words(from: *const f32) -> [f32; 4] {
        // SAFETY: the caller's promise.
        let neighbours = unsafe { from.cast::<[[f32; 2]; 4]>().read_unaligned() };
        let mut words = [0.0; 4];
        for (word, [first, second]) in words.iter_mut().zip(neighbours) {
            *word = f32::from_bits(first.upper() | second.lower());
        }
        words
    }
}

/// A strip to be packed. Every number that it names lies inside `data`, and `to` has room for its groups.
struct Strip<'a, H> {
    data: &'a [H],
    line_stride: usize,
    depth_stride: usize,
    lines: usize,
    width: usize,
    depth: usize,
    to: *mut u32,
}

impl<H: Half> Work for Strip<'_, H> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        // SAFETY: `pack_pairs` has bounded every read, and its caller has made room for the writes.
        unsafe {
            if self.line_stride == 1 {
                self.side_by_side();
            } else {
                self.transpose();
            }
            if self.lines < self.width {
                for group in 0..self.depth.div_ceil(2) {
                    let rest = self.to.add(group * self.width + self.lines);
                    std::slice::from_raw_parts_mut(rest, self.width - self.lines).fill(0);
                }
            }
        }
    }
}

impl<H: Half> Strip<'_, H> {
    /// Lines that lie side by side: each group is two rows of the matrix, merged. The usual widths are known sizes.
    #[inline(always)]
    unsafe fn side_by_side(&self) {
        // SAFETY: as for `run`.
        unsafe {
            match self.lines {
                12 => self.merge_rows(12),
                16 => self.merge_rows(16),
                32 => self.merge_rows(32),
                lines => self.merge_rows(lines),
            }
        }
    }

    #[inline(always)]
    unsafe fn merge_rows(&self, lines: usize) {
        // SAFETY: as for `run`.
        unsafe {
            let row = |step: usize| self.data.as_ptr().add(step * self.depth_stride);
            for group in 0..self.depth / 2 {
                let (first, second) = (row(2 * group), row(2 * group + 1));
                let to = self.to.add(group * self.width);
                for line in 0..lines {
                    *to.add(line) = (*first.add(line)).upper() | (*second.add(line)).lower();
                }
            }
            if self.depth % 2 == 1 {
                let to = self.to.add(self.depth / 2 * self.width);
                for line in 0..lines {
                    *to.add(line) = (*row(self.depth - 1).add(line)).upper();
                }
            }
        }
    }

    /// Lines whose numbers lie side by side. A run of depth is finished for all lines before the next begins, so that
    /// written cache lines stay in the first-level cache until they are full.
    #[inline(always)]
    unsafe fn transpose(&self) {
        let (whole, paired) = (self.lines - self.lines % 4, self.depth - self.depth % 8);
        // SAFETY: as for `run`.
        unsafe {
            for first in (0..paired).step_by(RUN) {
                for line in (0..whole).step_by(4) {
                    for step in (first..paired.min(first + RUN)).step_by(8) {
                        self.four_lines(line, step);
                    }
                }
            }
            for line in 0..self.lines {
                let from = if line < whole { paired } else { 0 };
                self.one_line(line, from);
            }
        }
    }

    /// Eight steps of four lines, transposed in registers.
    #[inline(always)]
    unsafe fn four_lines(&self, line: usize, step: usize) {
        // SAFETY: as for `run`; the steps and lines exist.
        unsafe {
            let from = self.data.as_ptr().add(line * self.line_stride + step);
            let mut rows = [[0.0; 4]; 4];
            for (line, row) in rows.iter_mut().enumerate() {
                *row = H::words(from.add(line * self.line_stride));
            }
            let to = self.to.add(step / 2 * self.width + line);
            for (group, column) in transposed(rows).into_iter().enumerate() {
                to.add(group * self.width).cast::<[f32; 4]>().write_unaligned(column);
            }
        }
    }

    /// The steps of a line from an even one on.
    #[inline(always)]
    unsafe fn one_line(&self, line: usize, from: usize) {
        let numbers = &self.data[line * self.line_stride..][from..self.depth];
        for (group, pair) in numbers.chunks(2).enumerate() {
            let word = pair[0].upper() | pair.get(1).map_or(0, |second| second.lower());
            // SAFETY: as for `run`.
            unsafe { *self.to.add((from / 2 + group) * self.width + line) = word };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_lands_in_its_group_with_the_earlier_step_above() {
        let halves: Vec<bf16> = (0..70 * 90).map(|i| bf16::from_bits(i as u16 + 1)).collect();
        let wide: Vec<f32> = halves.iter().map(|half| half.to_f32()).collect();
        for (line_stride, depth_stride) in [(90, 1), (1, 70)] {
            for (lines, width) in [(1, 4), (4, 4), (5, 8), (12, 12), (16, 16), (31, 32), (32, 32)] {
                for depth in [1, 2, 3, 7, 8, 9, 31, 32, 33, 70] {
                    let number = |line: usize, step: usize| {
                        if line >= lines || step >= depth {
                            return 0;
                        }
                        u32::from(halves[line * line_stride + step * depth_stride].to_bits())
                    };
                    for data in [Numbers::Bf16(&halves), Numbers::Rounded(&wide)] {
                        let mut packed = vec![f32::NAN; width * depth.div_ceil(2)];
                        let view = View::of(data, lines, depth, line_stride, depth_stride);
                        // SAFETY: the vector has exactly the room and belongs to this thread.
                        unsafe { pack_pairs(view, lines, width, depth, packed.as_mut_ptr()) };
                        for (at, word) in packed.iter().enumerate() {
                            let (line, step) = (at % width, at / width * 2);
                            let there = number(line, step) << 16 | number(line, step + 1);
                            assert_eq!(word.to_bits(), there, "line {line}, step {step} of {lines}x{depth}");
                        }
                    }
                }
            }
        }
    }
}
