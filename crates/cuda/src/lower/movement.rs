//! Data movement as strided copies: axes that lie side by side on both ends become one, elements become as wide as
//! the innermost axis allows, and a copy of one run is a plain copy.

use plimsoll_exec::ExecError;
use plimsoll_graph::{Axes, MAX_RANK, Shape};

use super::launch::Arg;
use super::lowering::{Call, Lowering, Operand};
use super::place::Place;

/// Elements of one launch; more are cut along the outermost axis.
const MOST: usize = 1 << 30;

/// One axis of a copy: its extent, and how far apart neighbours lie on both ends, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    extent: usize,
    from: usize,
    to: usize,
}

/// A copy of elements of `bytes` bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Walk {
    axes: Vec<Axis>,
    bytes: usize,
    from: Place,
    to: Place,
}

pub(super) fn reshape(to: &mut Lowering, call: &Call) -> Result<(), ExecError> {
    let (x, y) = (call.inputs[0], call.outputs[0]);
    to.copy(x.place, y.place, x.ty.bytes() as u64);
    Ok(())
}

pub(super) fn transpose(to: &mut Lowering, call: &Call, permutation: &[usize]) -> Result<(), ExecError> {
    transposed(to, &call.inputs[0], &call.outputs[0], permutation);
    Ok(())
}

/// Copies `x` into `y`, whose axes are those of `x` in another order.
pub(super) fn transposed(to: &mut Lowering, x: &Operand, y: &Operand, permutation: &[usize]) {
    let (from, into) = (strides(x.shape()), strides(y.shape()));
    let axis = |(axis, &source): (usize, &usize)| Axis {
        extent: y.shape()[axis],
        from: from[source],
        to: into[axis],
    };
    let axes = permutation.iter().enumerate().map(axis).collect();
    copy(to, axes, x, x.place, y.place);
}

pub(super) fn slice(to: &mut Lowering, call: &Call, axis: usize, start: usize) -> Result<(), ExecError> {
    let (x, y) = (call.inputs[0], call.outputs[0]);
    let first = x.place.after((start * strides(x.shape())[axis] * x.ty.dtype.bytes()) as u64);
    copy(to, common(y.shape(), x.shape(), y.shape()), &x, first, y.place);
    Ok(())
}

pub(super) fn pad(to: &mut Lowering, call: &Call, axis: usize, start: usize) -> Result<(), ExecError> {
    let (x, y) = (call.inputs[0], call.outputs[0]);
    to.zero(&y);
    let first = y.place.after((start * strides(y.shape())[axis] * x.ty.dtype.bytes()) as u64);
    copy(to, common(x.shape(), x.shape(), y.shape()), &x, x.place, first);
    Ok(())
}

pub(super) fn concat(to: &mut Lowering, call: &Call, axis: usize) -> Result<(), ExecError> {
    let y = call.outputs[0];
    let mut start = 0;
    for x in call.inputs {
        let first = y.place.after((start * strides(y.shape())[axis] * x.ty.dtype.bytes()) as u64);
        copy(to, common(x.shape(), x.shape(), y.shape()), x, x.place, first);
        start += x.shape()[axis];
    }
    Ok(())
}

pub(super) fn broadcast(to: &mut Lowering, call: &Call, axes: Axes) -> Result<(), ExecError> {
    let (x, y) = (call.inputs[0], call.outputs[0]);
    let (from, into) = (strides(x.shape()), strides(y.shape()));
    let mut kept = from.iter();
    let walk = (0..y.shape().len())
        .map(|axis| {
            let from = if axes.contains(axis) { 0 } else { kept.next().copied().unwrap_or(0) };
            Axis { extent: y.shape()[axis], from, to: into[axis] }
        })
        .collect();
    copy(to, walk, &x, x.place, y.place);
    Ok(())
}

/// Axes of a block of `shape` inside two larger values.
fn common(shape: Shape, from: Shape, to: Shape) -> Vec<Axis> {
    let (from, to) = (strides(from), strides(to));
    (0..shape.len()).map(|axis| Axis { extent: shape[axis], from: from[axis], to: to[axis] }).collect()
}

/// Elements between neighbours on each axis of a value stored row by row.
fn strides(shape: Shape) -> Vec<usize> {
    (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect()
}

fn copy(to: &mut Lowering, axes: Vec<Axis>, like: &Operand, from: Place, into: Place) {
    if axes.iter().any(|axis| axis.extent == 0) {
        return;
    }
    let walk = Walk { axes: merged(axes), bytes: like.ty.dtype.bytes(), from, to: into };
    if let [] | [Axis { from: 1, to: 1, .. }] = walk.axes[..] {
        to.copy(walk.from, walk.to, (walk.count() * walk.bytes) as u64);
    } else if let Some([batch, rows, columns]) = walk.as_transpose() {
        let tiles = |extent: usize| extent.div_ceil(32) as u32;
        let args = vec![
            Arg::Pointer(walk.from),
            Arg::Pointer(walk.to),
            Arg::U32(rows as u32),
            Arg::U32(columns as u32),
        ];
        let grid = [tiles(columns), tiles(rows), batch as u32];
        to.launch_grid(format!("transpose_{}", walk.bytes), grid, [32, 8], 0, args);
    } else {
        walk.widened().launch(to);
    }
}

/// Axes without those of extent 1, neighbours joined if one continues the other on both sides.
fn merged(axes: Vec<Axis>) -> Vec<Axis> {
    let mut merged: Vec<Axis> = Vec::new();
    for axis in axes.into_iter().filter(|axis| axis.extent != 1) {
        match merged.last_mut() {
            Some(last) if last.from == axis.extent * axis.from && last.to == axis.extent * axis.to => {
                *last = Axis { extent: last.extent * axis.extent, ..axis };
            }
            _ => merged.push(axis),
        }
    }
    merged
}

impl Walk {
    fn count(&self) -> usize {
        self.axes.iter().map(|axis| axis.extent).product()
    }

    /// `(batch, rows, columns)` of the source if this turns matrices over.
    fn as_transpose(&self) -> Option<[usize; 3]> {
        let (batch, matrix) = match self.axes[..] {
            [outer, a, b] => (Some(outer), [a, b]),
            [a, b] => (None, [a, b]),
            _ => return None,
        };
        let [columns, rows] = matrix.map(|axis| axis.extent);
        let turned = matrix
            == [Axis { extent: columns, from: 1, to: rows }, Axis { extent: rows, from: columns, to: 1 }];
        let size = rows * columns;
        let apart = batch.is_none_or(|outer| outer.from == size && outer.to == size);
        let batch = batch.map_or(1, |outer| outer.extent);
        let fits = batch <= 65535 && rows.div_ceil(32) <= 65535 && matches!(self.bytes, 2 | 4);
        (turned && apart && fits).then_some([batch, rows, columns])
    }

    /// The same copy in elements of up to 16 bytes.
    fn widened(mut self) -> Walk {
        while self.bytes < 16 && self.can_double() {
            let inner = self.axes.len() - 1;
            self.bytes *= 2;
            self.axes[inner].extent /= 2;
            for axis in &mut self.axes[..inner] {
                axis.from /= 2;
                axis.to /= 2;
            }
        }
        self
    }

    fn can_double(&self) -> bool {
        let Some((inner, outer)) = self.axes.split_last() else { return false };
        let wide = 2 * self.bytes as u64;
        let even = |axis: &Axis| axis.from.is_multiple_of(2) && axis.to.is_multiple_of(2);
        (inner.from, inner.to) == (1, 1)
            && inner.extent.is_multiple_of(2)
            && outer.iter().all(even)
            && self.from.0.is_multiple_of(wide)
            && self.to.0.is_multiple_of(wide)
    }

    fn launch(&self, to: &mut Lowering) {
        if self.count() > MOST {
            self.halves().iter().for_each(|half| half.launch(to));
            return;
        }
        let padded = |number: fn(&Axis) -> Arg, missing: Arg| {
            let missing = std::iter::repeat_n(missing, MAX_RANK - self.axes.len());
            missing.chain(self.axes.iter().map(number)).collect::<Vec<Arg>>()
        };
        let fields = [
            padded(|axis| Arg::U32(axis.extent as u32), Arg::U32(1)),
            padded(|axis| Arg::I64(axis.from as i64), Arg::I64(0)),
            padded(|axis| Arg::I64(axis.to as i64), Arg::I64(0)),
        ];
        let args = vec![
            Arg::Pointer(self.from),
            Arg::Pointer(self.to),
            Arg::Struct(fields.concat()),
            Arg::U32(self.count() as u32),
        ];
        to.launch(format!("copy_strided_{}", self.bytes), self.count().div_ceil(256), 256, args);
    }

    /// The two halves of the outermost axis that can be cut.
    fn halves(&self) -> [Walk; 2] {
        let cut = self.axes.iter().position(|axis| axis.extent > 1).unwrap_or(0);
        let Axis { extent, from, to } = self.axes[cut];
        let (mut first, mut second) = (self.clone(), self.clone());
        first.axes[cut].extent = extent / 2;
        second.axes[cut].extent = extent - extent / 2;
        second.from = self.from.after((extent / 2 * from * self.bytes) as u64);
        second.to = self.to.after((extent / 2 * to * self.bytes) as u64);
        [first, second]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(axes: &[(usize, usize, usize)], bytes: usize) -> Walk {
        let axes = axes.iter().map(|&(extent, from, to)| Axis { extent, from, to }).collect();
        Walk { axes: merged(axes), bytes, from: Place(0), to: Place(0) }
    }

    #[test]
    fn axes_that_continue_each_other_become_one() {
        assert_eq!(walk(&[(2, 12, 12), (3, 4, 4), (4, 1, 1)], 4).axes.len(), 1);
        assert_eq!(walk(&[(2, 20, 12), (1, 7, 7), (3, 4, 4), (4, 1, 1)], 4).axes.len(), 2);
    }

    #[test]
    fn elements_widen_as_far_as_strides_and_places_allow() {
        assert_eq!(walk(&[(5, 64, 32), (32, 1, 1)], 2).widened().bytes, 16);
        assert_eq!(walk(&[(5, 12, 6), (6, 1, 1)], 4).widened().bytes, 8);
        assert_eq!(walk(&[(5, 7, 6), (6, 1, 1)], 4).widened().bytes, 4, "an odd stride");
        let odd = Walk { from: Place(4), ..walk(&[(5, 64, 32), (32, 1, 1)], 4) };
        assert_eq!(odd.widened().bytes, 4, "an odd place");
    }

    #[test]
    fn turned_matrices_are_recognised_and_nothing_else_is() {
        assert_eq!(walk(&[(7, 1, 5), (5, 7, 1)], 4).as_transpose(), Some([1, 5, 7]));
        assert_eq!(walk(&[(3, 35, 35), (7, 1, 5), (5, 7, 1)], 2).as_transpose(), Some([3, 5, 7]));
        assert_eq!(walk(&[(3, 40, 35), (7, 1, 5), (5, 7, 1)], 2).as_transpose(), None);
        assert_eq!(walk(&[(7, 8, 5), (5, 1, 1)], 4).as_transpose(), None);
    }

    #[test]
    fn halves_cover_the_whole() {
        let [first, second] = walk(&[(5, 12, 6), (6, 1, 1)], 4).halves();
        assert_eq!((first.count() + second.count(), second.from, second.to), (30, Place(96), Place(48)));
    }
}
