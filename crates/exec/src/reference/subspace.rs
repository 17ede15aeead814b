//! Parameters that move in a random subspace, element by element.

use plimsoll_graph::Op;

use super::Operands;
use super::array::Array;
use crate::subspace::Projection;

/// The results of an op of this family.
pub(super) fn eval(op: &Op, operands: &Operands) -> Vec<Array> {
    match op {
        Op::Subspace { stream } => vec![moved(*stream, operands.x(0), operands.x(1))],
        Op::SubspaceGrad { stream, dimension } => vec![gradient(*stream, *dimension, operands.x(0))],
        other => unreachable!("`{}` is of another family", other.name()),
    }
}

fn sign(projection: &Projection, element: usize) -> f64 {
    if projection.is_negative(element) { -1.0 } else { 1.0 }
}

fn moved(stream: u64, w: &Array, v: &Array) -> Array {
    let projection = Projection::new(stream, v.data.len());
    let by = |element| sign(&projection, element) * v.data[projection.coordinate(element)];
    let data = w.data.iter().enumerate().map(|(element, w)| w + by(element)).collect();
    Array { shape: w.shape, data }
}

fn gradient(stream: u64, dimension: usize, dw: &Array) -> Array {
    let projection = Projection::new(stream, dimension);
    let mut data = vec![0.0; dimension];
    for (element, dw) in dw.data.iter().enumerate() {
        data[projection.coordinate(element)] += sign(&projection, element) * dw;
    }
    Array { shape: [dimension].into(), data }
}
