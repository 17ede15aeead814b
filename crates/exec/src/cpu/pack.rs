//! Copies a strip of a matrix into the order in which the innermost loop reads it.
//!
//! ```text
//!  lines  0 ┌ a b c …   depth →          packed, width 4:   a e i m  b f j n  c g k o …
//!         1 │ e f g …
//!         2 │ i j k …                    Lines that do not exist are zeros.
//!         3 └ m n o …
//! ```
//!
//! A *line* is a row of the left operand or a column of the right one. Transposed operands differ only in their strides
//! here, so all products share one innermost loop. bf16 numbers are widened here, unless the innermost loop multiplies
//! them as they are: then `pairs` packs them.
#![allow(unsafe_code, reason = "writes panels that threads fill side by side")]

use half::bf16;

use super::element::widen_lines;
use super::microkernel::{MOST_COLUMNS, MOST_ROWS};

/// The most lines of a strip.
pub(super) const MOST_LINES: usize = if MOST_COLUMNS > MOST_ROWS { MOST_COLUMNS } else { MOST_ROWS };

/// Numbers as they are stored.
#[derive(Clone, Copy)]
pub(super) enum Numbers<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    /// Numbers that bf16 holds, as f32 in scratch.
    Rounded(&'a [f32]),
}

impl<'a> Numbers<'a> {
    /// Scratch whose numbers were rounded to bf16, or not.
    pub(super) fn in_scratch(data: &'a [f32], rounded: bool) -> Self {
        if rounded { Numbers::Rounded(data) } else { Numbers::F32(data) }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Numbers::F32(data) | Numbers::Rounded(data) => data.len(),
            Numbers::Bf16(data) => data.len(),
        }
    }

    pub(super) fn from(self, skipped: usize) -> Self {
        match self {
            Numbers::F32(data) => Numbers::F32(&data[skipped..]),
            Numbers::Bf16(data) => Numbers::Bf16(&data[skipped..]),
            Numbers::Rounded(data) => Numbers::Rounded(&data[skipped..]),
        }
    }
}

/// A matrix inside a slice.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) data: Numbers<'a>,
    pub(super) line_stride: usize,
    pub(super) depth_stride: usize,
}

impl<'a> View<'a> {
    /// `lines × depth` numbers of `data`, at these distances from each other.
    pub(super) fn new(
        data: &'a [f32],
        lines: usize,
        depth: usize,
        line_stride: usize,
        depth_stride: usize,
    ) -> View<'a> {
        View::of(Numbers::F32(data), lines, depth, line_stride, depth_stride)
    }

    /// The same for numbers of any type; those of bf16 lie side by side along one of the axes.
    pub(super) fn of(
        data: Numbers<'a>,
        lines: usize,
        depth: usize,
        line_stride: usize,
        depth_stride: usize,
    ) -> View<'a> {
        let extent = lines.saturating_sub(1) * line_stride + depth.saturating_sub(1) * depth_stride;
        assert!(lines == 0 || depth == 0 || extent < data.len(), "a view outside its data");
        View { data, line_stride, depth_stride }
    }

    /// The same matrix from `line` and `depth` on.
    pub(super) fn from(self, line: usize, depth: usize) -> View<'a> {
        let skipped = line * self.line_stride + depth * self.depth_stride;
        View { data: self.data.from(skipped), ..self }
    }

    /// Whether bf16 holds every number.
    pub(super) fn is_half(&self) -> bool {
        !matches!(self.data, Numbers::F32(_))
    }
}

/// Packs `lines` lines of `depth` numbers into `depth` groups of `width`.
///
/// # Safety
///
/// `to` must have room for `width · depth` numbers and be written by this thread alone.
pub(super) unsafe fn pack(from: View, lines: usize, width: usize, depth: usize, to: *mut f32) {
    debug_assert!(lines <= width && lines > 0 && depth > 0);
    assert!((lines - 1) * from.line_stride + (depth - 1) * from.depth_stride < from.data.len());
    let View { line_stride, depth_stride, .. } = from;
    // SAFETY: the assertion bounds every read; the caller has made room for the writes.
    unsafe {
        match from.data {
            Numbers::F32(data) | Numbers::Rounded(data) => {
                pack_floats(Floats { data, line_stride, depth_stride }, lines, width, depth, to);
            }
            Numbers::Bf16(data) => {
                pack_halves(Halves { data, line_stride, depth_stride }, lines, width, depth, to);
            }
        }
    }
}

/// A [`View`] of bf16.
#[derive(Clone, Copy)]
struct Halves<'a> {
    data: &'a [bf16],
    line_stride: usize,
    depth_stride: usize,
}

/// Widens a run of depth at a time into a buffer on the stack, in the order in which it lies, and packs that.
unsafe fn pack_halves(from: Halves, lines: usize, width: usize, depth: usize, to: *mut f32) {
    const RUN: usize = 64;
    let Halves { data, line_stride, depth_stride } = from;
    let mut wide = [0.0; MOST_LINES * RUN];
    for first in (0..depth).step_by(RUN) {
        let run = RUN.min(depth - first);
        let widened = if line_stride == 1 {
            widen_lines(&data[first * depth_stride..], depth_stride, lines, &mut wide[..lines * run]);
            Floats { data: &wide, line_stride: 1, depth_stride: lines }
        } else {
            assert_eq!(depth_stride, 1, "a weight lies along one of its axes");
            widen_lines(&data[first..], line_stride, run, &mut wide[..lines * run]);
            Floats { data: &wide, line_stride: run, depth_stride: 1 }
        };
        // SAFETY: the buffer holds the run, and the run is a part of what the caller has made room for.
        unsafe { pack_floats(widened, lines, width, run, to.add(first * width)) };
    }
}

/// A [`View`] of f32.
#[derive(Clone, Copy)]
struct Floats<'a> {
    data: &'a [f32],
    line_stride: usize,
    depth_stride: usize,
}

/// As [`pack`].
unsafe fn pack_floats(from: Floats, lines: usize, width: usize, depth: usize, to: *mut f32) {
    let whole = lines - lines % 4;
    // SAFETY: `pack` has bounded every read; its caller has made room for the writes.
    unsafe {
        if from.line_stride == 1 {
            pack_contiguous_lines(from, lines, width, depth, to);
        } else if from.depth_stride == 1 {
            pack_by_fours(from, whole, width, depth, to);
            pack_one_by_one(from, whole..lines, width, depth, to);
        } else {
            pack_one_by_one(from, 0..lines, width, depth, to);
        }
        if lines < width {
            for step in 0..depth {
                std::slice::from_raw_parts_mut(to.add(step * width + lines), width - lines).fill(0.0);
            }
        }
    }
}

/// The numbers of a group already lie side by side, so groups are copied. A copy of a constant length is faster, so
/// the usual lengths are written out.
unsafe fn pack_contiguous_lines(from: Floats, lines: usize, width: usize, depth: usize, to: *mut f32) {
    // SAFETY: promised by the caller of `pack`.
    unsafe {
        match lines {
            4 => copy_groups(from, 4, width, depth, to),
            8 => copy_groups(from, 8, width, depth, to),
            12 => copy_groups(from, 12, width, depth, to),
            16 => copy_groups(from, 16, width, depth, to),
            24 => copy_groups(from, 24, width, depth, to),
            32 => copy_groups(from, 32, width, depth, to),
            _ => copy_groups(from, lines, width, depth, to),
        }
    }
}

#[inline(always)]
#[allow(clippy::inline_always, reason = "a constant size becomes a few vector moves")]
unsafe fn copy_groups(from: Floats, lines: usize, width: usize, depth: usize, to: *mut f32) {
    let start = from.data.as_ptr();
    for step in 0..depth {
        // SAFETY: `pack` asserted that the last number of the last group lies inside the data and the caller
        // of `pack` made room for all groups.
        unsafe {
            std::ptr::copy_nonoverlapping(start.add(step * from.depth_stride), to.add(step * width), lines);
        }
    }
}

unsafe fn pack_one_by_one(
    from: Floats,
    lines: std::ops::Range<usize>,
    width: usize,
    depth: usize,
    to: *mut f32,
) {
    for line in lines {
        for step in 0..depth {
            let number = from.data[line * from.line_stride + step * from.depth_stride];
            // SAFETY: as above.
            unsafe { *to.add(step * width + line) = number }
        }
    }
}

/// Lines whose numbers lie side by side. A run of depth is finished for all lines before the next begins, so that
/// written cache lines stay in the first-level cache until they are full.
unsafe fn pack_by_fours(from: Floats, lines: usize, width: usize, depth: usize, to: *mut f32) {
    const RUN: usize = 64;
    for first in (0..depth).step_by(RUN) {
        for line in (0..lines).step_by(4) {
            let run = RUN.min(depth - first);
            // SAFETY: the run is a part of what `pack` checked.
            unsafe {
                let start = from.data.as_ptr().add(line * from.line_stride + first);
                pack_four(start, from.line_stride, width, run, to.add(first * width + line));
            }
        }
    }
}

/// Four lines whose numbers lie side by side, transposed four by four in registers.
unsafe fn pack_four(from: *const f32, stride: usize, width: usize, depth: usize, to: *mut f32) {
    let whole = depth - depth % 4;
    // SAFETY: reads stay below `3·stride + depth`, writes below `width·depth`: both checked by `pack`.
    unsafe {
        for step in (0..whole).step_by(4) {
            let at = from.add(step);
            let rows = [0, 1, 2, 3].map(|line| at.add(line * stride).cast::<[f32; 4]>().read_unaligned());
            for (i, column) in transposed(rows).into_iter().enumerate() {
                to.add((step + i) * width).cast::<[f32; 4]>().write_unaligned(column);
            }
        }
        for step in whole..depth {
            for line in 0..4 {
                *to.add(step * width + line) = *from.add(line * stride + step);
            }
        }
    }
}

#[inline(always)]
#[allow(clippy::inline_always, reason = "the arrays must stay in registers")]
pub(super) fn transposed(rows: [[f32; 4]; 4]) -> [[f32; 4]; 4] {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128, _MM_TRANSPOSE4_PS};
        // SAFETY: four floats are four floats, as an array or as a vector; every x86-64 has SSE.
        unsafe {
            let [mut a, mut b, mut c, mut d] = std::mem::transmute::<[[f32; 4]; 4], [__m128; 4]>(rows);
            _MM_TRANSPOSE4_PS(&mut a, &mut b, &mut c, &mut d);
            std::mem::transmute::<[__m128; 4], [[f32; 4]; 4]>([a, b, c, d])
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::array::from_fn(|i| std::array::from_fn(|j| rows[j][i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_packed_like_the_floats_they_stand_for() {
        let (rows, columns) = (32, 150);
        let halves: Vec<bf16> = (0..rows * columns).map(|i| bf16::from_f32((i as f32).sin())).collect();
        let floats: Vec<f32> = halves.iter().map(|half| half.to_f32()).collect();
        for (line_stride, depth_stride) in [(columns, 1), (1, rows)] {
            for (lines, depth) in [(1, 1), (5, 63), (8, 64), (12, 65), (16, 129), (32, 150)] {
                let packed = |data: Numbers| {
                    let mut packed = vec![-1.0; 32 * depth];
                    let view = View::of(data, lines, depth, line_stride, depth_stride);
                    // SAFETY: the vector has exactly the room and belongs to this thread.
                    unsafe { pack(view, lines, 32, depth, packed.as_mut_ptr()) };
                    packed
                };
                assert_eq!(packed(Numbers::Bf16(&halves)), packed(Numbers::F32(&floats)), "{lines}x{depth}");
            }
        }
    }

    #[test]
    fn every_number_lands_in_its_group_whatever_the_strides() {
        let (rows, columns) = (37, 29);
        let data: Vec<f32> = (0..rows * columns * 2).map(|i| i as f32).collect();
        for (line_stride, depth_stride) in [(columns, 1), (1, columns), (2 * columns, 2)] {
            for lines in [1, 3, 4, 7, 12, 13, 16] {
                for depth in [1, 2, 4, 5, 11, 16] {
                    let width = 16;
                    let mut packed = vec![-1.0; width * depth];
                    let view = View::new(&data, lines, depth, line_stride, depth_stride);
                    // SAFETY: the vector has exactly the room and belongs to this thread.
                    unsafe { pack(view, lines, width, depth, packed.as_mut_ptr()) };
                    for (at, &number) in packed.iter().enumerate() {
                        let (step, line) = (at / width, at % width);
                        let there =
                            if line < lines { data[line * line_stride + step * depth_stride] } else { 0.0 };
                        assert!(
                            number.to_bits() == there.to_bits(),
                            "line {line}, step {step} of {lines}x{depth}"
                        );
                    }
                }
            }
        }
    }
}
