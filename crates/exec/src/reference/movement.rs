//! Data movement: no arithmetic, so every device must agree exactly.

use plimsoll_graph::{Axes, MAX_RANK, Shape};

use super::array::{Array, positions};

pub(super) fn reshape(x: &Array, shape: Shape) -> Array {
    Array { shape, data: x.data.clone() }
}

pub(super) fn transpose(x: &Array, permutation: &[usize]) -> Array {
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

pub(super) fn slice(x: &Array, axis: usize, start: usize, len: usize) -> Array {
    Array::build(x.shape.with(axis, len), |at| x.at(&moved(at, axis, at[axis] + start)))
}

pub(super) fn pad(x: &Array, axis: usize, start: usize, len: usize) -> Array {
    let inside = start..start + x.shape[axis];
    Array::build(x.shape.with(axis, len), |at| {
        if inside.contains(&at[axis]) { x.at(&moved(at, axis, at[axis] - start)) } else { 0.0 }
    })
}

pub(super) fn concat(parts: &[Array], axis: usize) -> Array {
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

pub(super) fn broadcast(x: &Array, shape: Shape, axes: Axes) -> Array {
    Array::build(shape, |at| x.at(&kept(at, axes)))
}

/// Adds up the elements that agree on all axes but `axes`.
pub(super) fn sum(x: &Array, axes: Axes) -> Array {
    let mut total = Array::zeros(x.shape.without(axes));
    for (at, element) in positions(x.shape).zip(&x.data) {
        total.add_at(&kept(&at, axes), *element);
    }
    total
}

/// `at` with another index on `axis`.
fn moved(at: &[usize], axis: usize, index: usize) -> Vec<usize> {
    let mut position = at.to_vec();
    position[axis] = index;
    position
}

/// `at` without the entries of `axes`.
fn kept(at: &[usize], axes: Axes) -> Vec<usize> {
    at.iter().enumerate().filter(|(axis, _)| !axes.contains(*axis)).map(|(_, &index)| index).collect()
}
