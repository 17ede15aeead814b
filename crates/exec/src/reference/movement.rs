//! Data movement: no arithmetic, so every device must agree exactly.

use plimsoll_graph::{Axes, MAX_RANK, Op, Shape};

use super::Operands;
use super::array::Array;

/// The results of an op of this family.
pub(super) fn eval(op: &Op, operands: &Operands) -> Vec<Array> {
    let x = operands.x(0);
    vec![match op {
        Op::Reshape { shape } => reshape(x, *shape),
        Op::Transpose { permutation } => transpose(x, permutation),
        Op::Slice { axis, start, len } => slice(x, *axis, *start, *len),
        Op::Pad { axis, start, len } => pad(x, *axis, *start, *len),
        Op::Concat { axis } => concat(&operands.arrays, *axis),
        // Storing the result rounds it to the new type.
        Op::Cast { .. } => x.clone(),
        Op::Broadcast { shape, axes } => broadcast(x, *shape, *axes),
        other => unreachable!("`{}` is of another family", other.name()),
    }]
}

fn reshape(x: &Array, shape: Shape) -> Array {
    Array { shape, data: x.data.clone() }
}

fn transpose(x: &Array, permutation: &[usize]) -> Array {
    let mut shape = x.shape;
    for (axis, &source) in permutation.iter().enumerate() {
        shape = shape.with(axis, x.shape[source]);
    }
    Array::build(shape, |at| {
        let mut from = [0; MAX_RANK];
        for (axis, &source) in permutation.iter().enumerate() {
            from[source] = at[axis];
        }
        x.at(&from[..at.len()])
    })
}

fn slice(x: &Array, axis: usize, start: usize, len: usize) -> Array {
    Array::build(x.shape.with(axis, len), |at| x.at(&moved(at, axis, at[axis] + start)))
}

fn pad(x: &Array, axis: usize, start: usize, len: usize) -> Array {
    let inside = start..start + x.shape[axis];
    Array::build(x.shape.with(axis, len), |at| {
        if inside.contains(&at[axis]) { x.at(&moved(at, axis, at[axis] - start)) } else { 0.0 }
    })
}

fn concat(parts: &[Array], axis: usize) -> Array {
    let total = parts.iter().map(|part| part.shape[axis]).sum();
    Array::build(parts[0].shape.with(axis, total), |at| {
        let mut index = at[axis];
        let mut part = 0;
        while index >= parts[part].shape[axis] {
            index -= parts[part].shape[axis];
            part += 1;
        }
        parts[part].at(&moved(at, axis, index))
    })
}

fn broadcast(x: &Array, shape: Shape, axes: Axes) -> Array {
    Array::build(shape, |at| x.at(&kept(at, axes)))
}

/// `at` with another index on `axis`.
fn moved(at: &[usize], axis: usize, index: usize) -> Vec<usize> {
    let mut position = at.to_vec();
    position[axis] = index;
    position
}

/// `at` without the entries of `axes`.
pub(super) fn kept(at: &[usize], axes: Axes) -> Vec<usize> {
    at.iter().enumerate().filter(|(axis, _)| !axes.contains(*axis)).map(|(_, &index)| index).collect()
}
