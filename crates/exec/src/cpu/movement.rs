//! Data movement: transposing, cutting, padding, joining, repeating.
//!
//! Runs of bytes or whole elements are moved without being interpreted, so one kernel serves every element type.
//! Results overlap no input here, except for `reshape`, which is the input under another shape and is copied only if a
//! caller gave it a place of its own.
#![allow(clippy::unnecessary_wraps, reason = "all kernels have one signature")]
#![allow(unsafe_code, reason = "moves elements between strided places of the arena by address")]

use plimsoll_graph::{Axes, Op};

use super::lanes::PIECE;
use super::sums::Walk;
use super::{Call, CpuOperand, pieces};
use crate::ExecError;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    Some(match call.op {
        Op::Reshape { .. } => reshape(call),
        Op::Transpose { permutation } => transpose(call, permutation),
        Op::Slice { axis, start, len } => slice(call, *axis, *start, *len),
        Op::Pad { axis, start, len } => pad(call, *axis, *start, *len),
        Op::Concat { axis } => concat(call, *axis),
        Op::Broadcast { axes, .. } => broadcast(call, *axes),
        _ => return None,
    })
}

/// Side of the squares in which a transposition proceeds: a cache line of f32.
const SQUARE: usize = 16;

/// Bytes one thread moves at a time.
const PIECE_BYTES: usize = 4 * PIECE;

/// Runs of bytes of one length, at regular distances in the source and in the destination.
#[derive(Clone, Copy)]
struct Runs {
    from: *const u8,
    from_stride: usize,
    to: *mut u8,
    to_stride: usize,
    count: usize,
    bytes: usize,
}

// SAFETY: the addresses lie in the arena, which outlives the call; pieces write disjoint bytes.
unsafe impl Send for Runs {}
// SAFETY: as above.
unsafe impl Sync for Runs {}

impl Runs {
    /// Copies them all, or writes zeros where there is nothing to copy `from`.
    fn move_all(self) {
        if self.bytes == 0 {
            return;
        }
        let (parts, together) = (self.bytes.div_ceil(PIECE_BYTES), PIECE_BYTES.div_ceil(self.bytes));
        let total = self.count * parts;
        pieces::for_each(total.div_ceil(together), |piece| {
            for part in piece * together..total.min((piece + 1) * together) {
                self.move_part(part / parts, part % parts * PIECE_BYTES);
            }
        });
    }

    fn move_part(&self, run: usize, start: usize) {
        let len = PIECE_BYTES.min(self.bytes - start);
        // SAFETY: the run lies inside both operands, as their shapes say, and the operands do not overlap;
        // no other part covers these bytes.
        unsafe {
            let to = self.to.add(run * self.to_stride + start);
            if self.from.is_null() {
                to.write_bytes(0, len);
            } else {
                to.copy_from_nonoverlapping(self.from.add(run * self.from_stride + start), len);
            }
        }
    }
}

/// Rows of an operand cut at `axis`: how many there are, and the bytes of one index of `axis`.
fn cut(operand: &CpuOperand, axis: usize) -> (usize, usize) {
    let shape = operand.ty.shape;
    let inner: usize = shape[axis + 1..].iter().product();
    (shape[..axis].iter().product(), inner * operand.ty.dtype.bytes())
}

pub(super) fn reshape(call: &Call) -> Result<(), ExecError> {
    let (from, to, bytes) = (call.inputs[0].pointer, call.outputs[0].pointer, call.inputs[0].ty.bytes());
    if from != to {
        Runs { from, from_stride: 0, to, to_stride: 0, count: 1, bytes }.move_all();
    }
    Ok(())
}

fn slice(call: &Call, axis: usize, start: usize, len: usize) -> Result<(), ExecError> {
    let (x, y) = (&call.inputs[0], &call.outputs[0]);
    let (count, unit) = cut(x, axis);
    Runs {
        // SAFETY: the graph's checker found `start + len` inside the axis.
        from: unsafe { x.pointer.add(start * unit) },
        from_stride: x.ty.shape[axis] * unit,
        to: y.pointer,
        to_stride: len * unit,
        count,
        bytes: len * unit,
    }
    .move_all();
    Ok(())
}

fn pad(call: &Call, axis: usize, start: usize, len: usize) -> Result<(), ExecError> {
    let (x, y) = (&call.inputs[0], &call.outputs[0]);
    let (count, unit) = cut(x, axis);
    let extent = x.ty.shape[axis];
    let part = |from: *const u8, at: usize, extent: usize| Runs {
        from,
        from_stride: extent * unit,
        // SAFETY: `at` is at most the extent of the result along the axis.
        to: unsafe { y.pointer.add(at * unit) },
        to_stride: len * unit,
        count,
        bytes: extent * unit,
    };
    part(std::ptr::null(), 0, start).move_all();
    part(x.pointer, start, extent).move_all();
    part(std::ptr::null(), start + extent, len - start - extent).move_all();
    Ok(())
}

fn concat(call: &Call, axis: usize) -> Result<(), ExecError> {
    let y = &call.outputs[0];
    let (count, unit) = cut(y, axis);
    let mut at = 0;
    for x in call.inputs {
        let bytes = x.ty.shape[axis] * unit;
        Runs {
            from: x.pointer,
            from_stride: bytes,
            // SAFETY: the parts before this one end here, and the graph's checker made the result as long
            // as all parts together.
            to: unsafe { y.pointer.add(at) },
            to_stride: y.ty.shape[axis] * unit,
            count,
            bytes,
        }
        .move_all();
        at += bytes;
    }
    Ok(())
}

/// An operand whose elements threads move one by one.
#[derive(Clone, Copy)]
struct Elements<T> {
    from: *const T,
    to: *mut T,
}

// SAFETY: the addresses lie in the arena, which outlives the call; pieces write disjoint elements.
unsafe impl<T> Send for Elements<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Elements<T> {}

fn transpose(call: &Call, permutation: &[usize]) -> Result<(), ExecError> {
    match call.inputs[0].ty.dtype.bytes() {
        1 => transpose_elements::<u8>(call, permutation),
        2 => transpose_elements::<u16>(call, permutation),
        _ => transpose_elements::<u32>(call, permutation),
    }
    Ok(())
}

/// Two axes matter: the innermost of the input and the innermost of the result. For each combination of
/// the others, the matrix they span is transposed in squares (or copied, when they are the same axis).
fn transpose_elements<T: Copy>(call: &Call, permutation: &[usize]) {
    let (x, y) = (&call.inputs[0], &call.outputs[0]);
    let (from_shape, to_shape) = (x.ty.shape, y.ty.shape);
    let Some(last) = permutation.len().checked_sub(1) else {
        return Runs {
            from: x.pointer,
            from_stride: 0,
            to: y.pointer,
            to_stride: 0,
            count: 1,
            bytes: size_of::<T>(),
        }
        .move_all();
    };
    let mut from_stride = [1; plimsoll_graph::MAX_RANK];
    let mut to_stride = [1; plimsoll_graph::MAX_RANK];
    for axis in (0..last).rev() {
        from_stride[axis] = from_stride[axis + 1] * from_shape[axis + 1];
        to_stride[axis] = to_stride[axis + 1] * to_shape[axis + 1];
    }
    // `rows` is the axis of the result along which the input is contiguous.
    let rows = permutation.iter().position(|&source| source == last).unwrap_or(last);
    let (mut from_walk, mut to_walk) = (Walk::new(), Walk::new());
    for axis in (0..last).rev().filter(|&axis| axis != rows) {
        from_walk.push(to_shape[axis], from_stride[permutation[axis]]);
        to_walk.push(to_shape[axis], to_stride[axis]);
    }
    let matrix = Matrix {
        rows: if rows == last { 1 } else { to_shape[rows] },
        columns: to_shape[last],
        from_column: from_stride[permutation[last]],
        to_row: to_stride[rows],
    };
    let places = Elements::<T> { from: x.pointer.cast(), to: y.pointer.cast() };
    let bands = matrix.rows.div_ceil(SQUARE);
    pieces::for_each(from_walk.count * bands, |piece| {
        // The closure must capture the whole struct, which threads may share, and not its addresses, which they may not.
        let places = &places;
        let (index, band) = (piece / bands, piece % bands);
        let (from, to) = (from_walk.offset(index), to_walk.offset(index));
        // SAFETY: the offsets are those of elements of the operands; bands do not overlap.
        unsafe {
            matrix.band(Elements { from: places.from.add(from), to: places.to.add(to) }, band * SQUARE);
        };
    });
}

/// A matrix to be transposed: rows are contiguous in the result, columns in the input.
struct Matrix {
    rows: usize,
    columns: usize,
    from_column: usize,
    to_row: usize,
}

impl Matrix {
    /// # Safety
    ///
    /// `at` must be the first element of such a matrix on both sides.
    unsafe fn band<T: Copy>(&self, at: Elements<T>, first: usize) {
        let rows = SQUARE.min(self.rows - first);
        for start in (0..self.columns).step_by(SQUARE) {
            let columns = SQUARE.min(self.columns - start);
            // SAFETY: the square lies inside the matrix.
            unsafe {
                let from = at.from.add(first + start * self.from_column);
                let to = at.to.add(first * self.to_row + start);
                if rows == SQUARE && columns == SQUARE {
                    self.square(Elements { from, to });
                } else {
                    self.corner(Elements { from, to }, rows, columns);
                }
            }
        }
    }

    /// By way of a local square, so that both sides are touched a whole cache line at a time.
    unsafe fn square<T: Copy>(&self, at: Elements<T>) {
        // SAFETY: the caller knows that a whole square lies here.
        unsafe {
            let lines: [[T; SQUARE]; SQUARE] = std::array::from_fn(|column| {
                at.from.add(column * self.from_column).cast::<[T; SQUARE]>().read()
            });
            #[allow(clippy::needless_range_loop, reason = "the row indexes every line")]
            for row in 0..SQUARE {
                let line: [T; SQUARE] = std::array::from_fn(|column| lines[column][row]);
                at.to.add(row * self.to_row).cast::<[T; SQUARE]>().write(line);
            }
        }
    }

    unsafe fn corner<T: Copy>(&self, at: Elements<T>, rows: usize, columns: usize) {
        for row in 0..rows {
            for column in 0..columns {
                // SAFETY: the caller knows that so many rows and columns lie here.
                unsafe {
                    let x = at.from.add(row + column * self.from_column).read();
                    at.to.add(row * self.to_row + column).write(x);
                }
            }
        }
    }
}

fn broadcast(call: &Call, axes: Axes) -> Result<(), ExecError> {
    match call.inputs[0].ty.dtype.bytes() {
        1 => broadcast_elements::<u8>(call, axes),
        2 => broadcast_elements::<u16>(call, axes),
        _ => broadcast_elements::<u32>(call, axes),
    }
    Ok(())
}

/// The innermost axes are either all repeated or all kept: a run of one element, or a run of the input.
fn broadcast_elements<T: Copy>(call: &Call, axes: Axes) {
    let shape = call.outputs[0].ty.shape;
    let repeated = !shape.is_empty() && axes.contains(shape.len() - 1);
    let alike = (0..shape.len()).rev().take_while(|&axis| axes.contains(axis) == repeated).count();
    let (outer, inner) = shape.split_at(shape.len() - alike);
    let run: usize = inner.iter().product();
    let mut walk = Walk::new();
    let mut stride = if repeated { 1 } else { run };
    for (axis, &extent) in outer.iter().enumerate().rev() {
        walk.push(extent, if axes.contains(axis) { 0 } else { stride });
        stride *= if axes.contains(axis) { 1 } else { extent };
    }
    let places = Elements::<T> { from: call.inputs[0].pointer.cast(), to: call.outputs[0].pointer.cast() };
    let together = PIECE.div_ceil(run.max(1));
    pieces::for_each(walk.count.div_ceil(together), |piece| {
        let places = &places;
        for index in piece * together..walk.count.min((piece + 1) * together) {
            // SAFETY: the walk covers the leading axes of the result, of which each combination is one run;
            // its offsets lie inside the input, which the result does not overlap.
            unsafe {
                let (from, to) = (places.from.add(walk.offset(index)), places.to.add(index * run));
                if repeated {
                    std::slice::from_raw_parts_mut(to, run).fill(from.read());
                } else {
                    to.copy_from_nonoverlapping(from, run);
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::{Op, Shape};

    use super::*;
    use crate::cpu::trial::Trial;

    /// Elements of `shape` in order, each as `f` of its indices.
    fn build(shape: Shape, f: impl Fn(&[usize]) -> f32) -> Vec<f32> {
        (0..shape.elements())
            .map(|mut flat| {
                let mut at = [0; plimsoll_graph::MAX_RANK];
                for axis in (0..shape.len()).rev() {
                    at[axis] = flat % shape[axis];
                    flat /= shape[axis];
                }
                f(&at[..shape.len()])
            })
            .collect()
    }

    /// A number that tells all indices apart.
    fn mark(at: &[usize]) -> f32 {
        at.iter().fold(0.0, |mark, &index| mark * 97.0 + index as f32)
    }

    fn check(op: Op, shape: impl Into<Shape>, result: impl Into<Shape>, f: impl Fn(&[usize]) -> f32) {
        let (shape, name) = (shape.into(), format!("{op:?}"));
        let trial = Trial::new(op).f32(shape, &build(shape, mark)).threads(2);
        assert_eq!(trial.run()[0], build(result.into(), f), "{name} of {shape}");
    }

    #[test]
    fn a_reshape_keeps_the_order_of_its_elements() {
        check(Op::Reshape { shape: [6, 7].into() }, [42], [6, 7], |at| (at[0] * 7 + at[1]) as f32);
    }

    #[test]
    fn axes_change_places() {
        let op = |permutation: &[usize]| Op::Transpose { permutation: permutation.to_vec() };
        check(op(&[1, 0]), [67, 45], [45, 67], |at| mark(&[at[1], at[0]]));
        check(op(&[0, 2, 1]), [3, 40, 5], [3, 5, 40], |at| mark(&[at[0], at[2], at[1]]));
        check(op(&[1, 0, 2]), [3, 4, 5], [4, 3, 5], |at| mark(&[at[1], at[0], at[2]]));
        check(op(&[2, 0, 3, 1]), [2, 3, 4, 5], [4, 2, 5, 3], |at| mark(&[at[1], at[3], at[0], at[2]]));
        check(op(&[0, 1]), [3, 4], [3, 4], mark);
        check(op(&[]), [], [], mark);
    }

    #[test]
    fn slices_pads_and_joins_put_every_element_where_it_belongs() {
        for (axis, from, to) in
            [(0, [9, 4, 5], [3, 4, 5]), (1, [2, 9, 5], [2, 3, 5]), (2, [2, 4, 9], [2, 4, 3])]
        {
            let moved = |at: &[usize], by: isize| {
                let mut at = at.to_vec();
                at[axis] = at[axis].wrapping_add_signed(by);
                mark(&at)
            };
            check(Op::Slice { axis, start: 4, len: 3 }, from, to, |at| moved(at, 4));
            check(Op::Pad { axis, start: 4, len: 9 }, to, from, |at| {
                if (4..7).contains(&at[axis]) { moved(at, -4) } else { 0.0 }
            });
            let (x, y) = (build(from.into(), mark), build(to.into(), mark));
            let joined = Trial::new(Op::Concat { axis }).f32(from, &x).f32(to, &y).run();
            let whole = Shape::from(from).with(axis, 12);
            let expected = build(whole, |at| if at[axis] < 9 { mark(at) } else { moved(at, -9) });
            assert_eq!(joined[0], expected, "axis {axis}");
        }
    }

    #[test]
    fn missing_axes_are_filled_with_copies() {
        let op = |shape: Shape, axes: &[usize]| Op::Broadcast { shape, axes: Axes::of(axes.iter().copied()) };
        check(op([3, 4].into(), &[0]), [4], [3, 4], |at| mark(&at[1..]));
        check(op([3, 4].into(), &[1]), [3], [3, 4], |at| mark(&at[..1]));
        check(op([3, 4].into(), &[0, 1]), [], [3, 4], |_| 0.0);
        check(op([2, 3, 4, 5].into(), &[0, 2]), [3, 5], [2, 3, 4, 5], |at| mark(&[at[1], at[3]]));
        check(op([2, 3, 4, 5].into(), &[1, 3]), [2, 4], [2, 3, 4, 5], |at| mark(&[at[0], at[2]]));
        check(op([2, 2].into(), &[]), [2, 2], [2, 2], mark);
    }
}
