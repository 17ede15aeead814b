//! Lending each piece of work the rows it writes, and each thread scratch of its own.
//!
//! The outputs of most kernels are matrices of which every piece owns some rows. All `unsafe` code that hands out those
//! rows is here, behind interfaces that cannot be misused.
#![allow(
    clippy::inline_always,
    reason = "inner loops must be compiled with their callers' vector instructions"
)]
#![allow(unsafe_code, reason = "lends disjoint parts of a slice to threads")]

use std::ops::Range;

use super::element::{self, Element};
use super::{Call, pieces};

/// A slice whose parts several threads write.
struct Shared<T> {
    pointer: *mut T,
    len: usize,
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: the functions below lend each element to one thread at a time.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn new(slice: &mut [T]) -> Self {
        Shared { pointer: slice.as_mut_ptr(), len: slice.len() }
    }

    /// # Safety
    ///
    /// No part that is alive overlaps `range`.
    unsafe fn part<'a>(self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a part lies outside its slice");
        // SAFETY: the range was checked; the caller keeps parts apart.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(range.start), range.len()) }
    }
}

/// Cuts `rows` rows into pieces of `per_piece` and runs `body` on each with the range of its rows and that
/// part of every output. Each output is a matrix of `rows` rows.
pub(super) fn rows<T: Copy + Send, const N: usize>(
    rows: usize,
    per_piece: usize,
    outputs: [&mut [T]; N],
    body: impl Fn(Range<usize>, [&mut [T]; N]) + Sync + Send,
) {
    let outputs = outputs.map(|output| (output.len() / rows.max(1), Shared::new(output)));
    pieces::for_each(rows.div_ceil(per_piece), |piece| {
        let range = piece * per_piece..rows.min((piece + 1) * per_piece);
        // SAFETY: the ranges of rows of different pieces do not overlap, and the slices are borrowed
        // mutably for as long as this function runs.
        let parts =
            outputs.map(|(width, output)| unsafe { output.part(range.start * width..range.end * width) });
        body(range, parts);
    });
}

/// As [`rows`], of one output and of the f32 statistics of its rows.
pub(super) fn rows_with_statistics<T: Copy + Send, const N: usize>(
    rows: usize,
    per_piece: usize,
    output: &mut [T],
    statistics: [&mut [f32]; N],
    body: impl Fn(Range<usize>, &mut [T], [&mut [f32]; N]) + Sync + Send,
) {
    let (width, output) = (output.len() / rows.max(1), Shared::new(output));
    let statistics = statistics.map(Shared::new);
    pieces::for_each(rows.div_ceil(per_piece), |piece| {
        let range = piece * per_piece..rows.min((piece + 1) * per_piece);
        // SAFETY: as for `rows`.
        let (part, statistics) = unsafe {
            (
                output.part(range.start * width..range.end * width),
                statistics.map(|one| one.part(range.clone())),
            )
        };
        body(range, part, statistics);
    });
}

/// As [`chunks`], of an output and of scratch.
pub(super) fn chunks_with_scratch<T: Send>(
    (output, output_len): (&mut [T], usize),
    (scratch, scratch_len): (&mut [f32], usize),
    body: impl Fn(usize, &mut [T], &mut [f32]) + Sync + Send,
) {
    let (output, scratch) = (Shared::new(output), Shared::new(scratch));
    let (output_len, scratch_len) = (output_len.max(1), scratch_len.max(1));
    let count = output.len.div_ceil(output_len);
    pieces::for_each(count, |piece| {
        // SAFETY: as for `chunks`; scratch that does not suffice for all pieces is refused by `part`.
        let (output, scratch) = unsafe {
            (
                output.part(piece * output_len..output.len.min((piece + 1) * output_len)),
                scratch.part(piece * scratch_len..scratch.len.min((piece + 1) * scratch_len)),
            )
        };
        body(piece, output, scratch);
    });
}

/// Cuts each slice into chunks of its given length, and runs `body` on the first chunks of all slices, on the second ones,
/// and so on. It ends with the slice that has the fewest chunks; last chunks may be shorter.
pub(super) fn chunks<T: Send, const N: usize>(
    slices: [(&mut [T], usize); N],
    body: impl Fn(usize, [&mut [T]; N]) + Sync + Send,
) {
    let slices = slices.map(|(slice, len)| (len.max(1), Shared::new(slice)));
    let count = slices.iter().map(|(len, slice)| slice.len.div_ceil(*len)).min().unwrap_or(0);
    pieces::for_each(count, |piece| {
        // SAFETY: chunks of different pieces do not overlap, and the slices are borrowed mutably for as long as
        // this function runs.
        let parts =
            slices.map(|(len, slice)| unsafe { slice.part(piece * len..slice.len.min((piece + 1) * len)) });
        body(piece, parts);
    });
}

/// Runs `body` for every piece with scratch of `len` elements that belongs to the thread.
pub(super) fn with_scratch<T: Copy + Send>(
    count: usize,
    scratch: &mut [T],
    len: usize,
    body: impl Fn(usize, &mut [T]) + Sync + Send,
) {
    let shared = Shared::new(scratch);
    pieces::for_each(count, |piece| {
        let start = pieces::thread() * len;
        // SAFETY: a thread runs one piece at a time, so its part is lent once at a time.
        let part = unsafe { shared.part(start..start + len) };
        body(piece, part);
    });
}

/// Some columns of a matrix, lent row by row.
pub(super) struct Columns<'a> {
    matrix: Shared<f32>,
    width: usize,
    range: Range<usize>,
    borrow: std::marker::PhantomData<&'a mut [f32]>,
}

impl Columns<'_> {
    /// The range of columns.
    pub(super) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// These columns of one row.
    #[inline(always)]
    pub(super) fn row(&mut self, row: usize) -> &mut [f32] {
        let start = row * self.width;
        // SAFETY: only this value lends these columns, and it is borrowed mutably as long as they are lent.
        unsafe { self.matrix.part(start + self.range.start..start + self.range.end) }
    }
}

/// Cuts a matrix of `width` columns into strips of `per_piece` columns and runs `body` on each.
pub(super) fn columns(
    matrix: &mut [f32],
    width: usize,
    per_piece: usize,
    body: impl Fn(Columns) + Sync + Send,
) {
    let matrix = Shared::new(matrix);
    pieces::for_each(width.div_ceil(per_piece), |piece| {
        let range = piece * per_piece..width.min((piece + 1) * per_piece);
        body(Columns { matrix, width, range, borrow: std::marker::PhantomData });
    });
}

/// An input whose bytes the output of the same call may occupy, row for row.
#[derive(Clone, Copy)]
pub(super) struct Overwritten<E> {
    pointer: *const E,
    len: usize,
}

// SAFETY: it is only read, and only by the thread that was lent the output in the same place.
unsafe impl<E> Send for Overwritten<E> {}
// SAFETY: as above.
unsafe impl<E> Sync for Overwritten<E> {}

impl<E: Element> Overwritten<E> {
    /// Input `index` of a call.
    pub(super) fn input(call: &Call, index: usize) -> Overwritten<E> {
        Overwritten { pointer: call.pointer(index), len: call.inputs[index].ty.shape.elements() }
    }

    /// Copies the elements from `start` on into `output`, which is either that place itself or overlaps
    /// the input nowhere.
    pub(super) fn copy_to(self, start: usize, output: &mut [E]) {
        assert!(start + output.len() <= self.len, "reads beyond the input");
        // SAFETY: the range was checked.
        let from = unsafe { self.pointer.add(start) };
        if !std::ptr::eq(from, output.as_ptr()) {
            // SAFETY: `replay` has proved that an output that is not the input itself does not overlap it.
            unsafe { output.as_mut_ptr().copy_from_nonoverlapping(from, output.len()) };
        }
    }

    /// The numbers from `start` on, into scratch.
    pub(super) fn widen_to(self, start: usize, numbers: &mut [f32]) {
        assert!(start + numbers.len() <= self.len, "reads beyond the input");
        // SAFETY: the range was checked; it is read before its place is written, and scratch overlaps no operand.
        let from = unsafe { std::slice::from_raw_parts(self.pointer.add(start), numbers.len()) };
        element::widen(from, numbers);
    }
}

/// An output of which pieces write interleaved parts, such as the heads of attention.
#[derive(Clone, Copy)]
pub(super) struct Lent<'a, E> {
    output: Shared<E>,
    borrow: std::marker::PhantomData<&'a mut [E]>,
}

impl<'a, E: Element> Lent<'a, E> {
    pub(super) fn new(output: &'a mut [E]) -> Lent<'a, E> {
        Lent { output: Shared::new(output), borrow: std::marker::PhantomData }
    }

    /// `len` elements from `start` on.
    ///
    /// # Safety
    ///
    /// No two pieces ask for the same element, and a piece drops one range before it asks for another that
    /// overlaps it.
    pub(super) unsafe fn range(self, start: usize, len: usize) -> &'a mut [E] {
        // SAFETY: the caller's promise.
        unsafe { self.output.part(start..start + len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Pool;

    #[test]
    fn chunks_lend_every_element_once_and_stop_with_the_shortest_slice() {
        Pool::new(3).unwrap().enter(|| {
            let (mut long, mut short) = (vec![0; 100], vec![0; 7]);
            chunks([(&mut long, 7), (&mut short, 1)], |piece, [long, short]| {
                long.iter_mut().chain(short).for_each(|x| *x += 1 + piece);
            });
            let expected: Vec<usize> = (0..100).map(|i| if i < 49 { 1 + i / 7 } else { 0 }).collect();
            assert_eq!((long, short), (expected, (1..=7).collect()));
            let mut uneven = vec![0; 10];
            chunks([(&mut uneven, 4)], |piece, [part]| part.fill(part.len() + 10 * piece));
            assert_eq!(uneven, [4, 4, 4, 4, 14, 14, 14, 14, 22, 22]);
        });
    }
}
