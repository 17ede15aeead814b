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
#![allow(clippy::inline_always, reason = "a few vector moves, which a call would outweigh")]
#![allow(unsafe_code, reason = "writes panels that threads fill side by side")]

use half::bf16;

use super::element::Element;
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
                pack_stored(Stored { data, line_stride, depth_stride }, lines, width, depth, to);
            }
            Numbers::Bf16(data) => {
                pack_stored(Stored { data, line_stride, depth_stride }, lines, width, depth, to);
            }
        }
    }
}

/// A stored number that is widened on its way through a register.
trait Packed: Element {
    /// Four neighbours.
    ///
    /// # Safety
    ///
    /// They must be readable.
    unsafe fn four(from: *const Self) -> [f32; 4];

    /// Writes `count` neighbours.
    ///
    /// # Safety
    ///
    /// They must be readable, and as many numbers writable elsewhere.
    unsafe fn copy(from: *const Self, to: *mut f32, count: usize);
}

impl Packed for f32 {
    #[inline(always)]
    unsafe fn four(from: *const f32) -> [f32; 4] {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[f32; 4]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn copy(from: *const f32, to: *mut f32, count: usize) {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, count) }
    }
}

impl Packed for bf16 {
    /// Written with vectors: the compiler takes the four one by one otherwise.
    #[inline(always)]
    unsafe fn four(from: *const bf16) -> [f32; 4] {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__m128i, _mm_cvtsi64_si128, _mm_setzero_si128, _mm_unpacklo_epi16};
            // SAFETY: the caller's promise; every x86-64 has SSE2, and four words are four floats. A number is the upper half
            // of its word.
            unsafe {
                let halves = _mm_cvtsi64_si128(from.cast::<i64>().read_unaligned());
                std::mem::transmute::<__m128i, [f32; 4]>(_mm_unpacklo_epi16(_mm_setzero_si128(), halves))
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: the caller's promise.
        unsafe {
            from.cast::<[bf16; 4]>().read_unaligned().map(Element::wide)
        }
    }

    #[inline(always)]
    unsafe fn copy(from: *const bf16, to: *mut f32, count: usize) {
        let whole = count - count % 4;
        // SAFETY: the caller's promise, for each four and for each of the rest.
        unsafe {
            for at in (0..whole).step_by(4) {
                to.add(at).cast::<[f32; 4]>().write_unaligned(Self::four(from.add(at)));
            }
            for at in whole..count {
                *to.add(at) = (*from.add(at)).wide();
            }
        }
    }
}

/// A [`View`] of numbers of one type.
#[derive(Clone, Copy)]
struct Stored<'a, E> {
    data: &'a [E],
    line_stride: usize,
    depth_stride: usize,
}

/// As [`pack`]. A bf16 number is widened on its way from one register to the next, so it costs no pass of its own.
unsafe fn pack_stored<E: Packed>(from: Stored<E>, lines: usize, width: usize, depth: usize, to: *mut f32) {
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
unsafe fn pack_contiguous_lines<E: Packed>(
    from: Stored<E>,
    lines: usize,
    width: usize,
    depth: usize,
    to: *mut f32,
) {
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
unsafe fn copy_groups<E: Packed>(from: Stored<E>, lines: usize, width: usize, depth: usize, to: *mut f32) {
    let start = from.data.as_ptr();
    for step in 0..depth {
        // SAFETY: `pack` asserted that the last number of the last group lies inside the data and the caller
        // of `pack` made room for all groups.
        unsafe {
            E::copy(start.add(step * from.depth_stride), to.add(step * width), lines);
        }
    }
}

unsafe fn pack_one_by_one<E: Packed>(
    from: Stored<E>,
    lines: std::ops::Range<usize>,
    width: usize,
    depth: usize,
    to: *mut f32,
) {
    for line in lines {
        for step in 0..depth {
            let number = from.data[line * from.line_stride + step * from.depth_stride].wide();
            // SAFETY: as above.
            unsafe { *to.add(step * width + line) = number }
        }
    }
}

/// Lines whose numbers lie side by side. A run of depth is finished for all lines before the next begins, so that
/// written cache lines stay in the first-level cache until they are full.
unsafe fn pack_by_fours<E: Packed>(from: Stored<E>, lines: usize, width: usize, depth: usize, to: *mut f32) {
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
unsafe fn pack_four<E: Packed>(from: *const E, stride: usize, width: usize, depth: usize, to: *mut f32) {
    let whole = depth - depth % 4;
    // SAFETY: reads stay below `3·stride + depth`, writes below `width·depth`: both checked by `pack`.
    unsafe {
        for step in (0..whole).step_by(4) {
            let at = from.add(step);
            // Not by `map`, whose closure is a call for some types: the rows then pass through memory.
            let rows = [
                E::four(at),
                E::four(at.add(stride)),
                E::four(at.add(2 * stride)),
                E::four(at.add(3 * stride)),
            ];
            for (i, column) in transposed(rows).into_iter().enumerate() {
                to.add((step + i) * width).cast::<[f32; 4]>().write_unaligned(column);
            }
        }
        for step in whole..depth {
            for line in 0..4 {
                *to.add(step * width + line) = (*from.add(line * stride + step)).wide();
            }
        }
    }
}

#[inline(always)]
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
