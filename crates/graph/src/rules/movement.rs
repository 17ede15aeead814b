//! Data movement: reshape, transpose, slice, pad, concat, cast, broadcast.

use super::{Cotangents, equal, no_derivative, no_types, operands};
use crate::graph::{Graph, Node};
use crate::tape::Tape;
use crate::{DType, GraphError, Op, Shape, Type, Value};

impl Graph {
    /// The same elements under another shape.
    #[track_caller]
    pub fn reshape(&mut self, x: Value, shape: impl Into<Shape>) -> Value {
        self.apply(Op::Reshape { shape: shape.into() }, &[x])
    }

    /// Axes reordered: axis `i` of the result is axis `permutation[i]` of `x`.
    #[track_caller]
    pub fn transpose(&mut self, x: Value, permutation: &[usize]) -> Value {
        self.apply(Op::Transpose { permutation: permutation.to_vec() }, &[x])
    }

    /// `len` indices of `axis` from `start` on.
    #[track_caller]
    pub fn slice(&mut self, x: Value, axis: usize, start: usize, len: usize) -> Value {
        self.apply(Op::Slice { axis, start, len }, &[x])
    }

    /// The parts joined along `axis`.
    #[track_caller]
    pub fn concat(&mut self, parts: &[Value], axis: usize) -> Value {
        self.apply(Op::Concat { axis }, parts)
    }

    /// `x` in another element type.
    #[track_caller]
    pub fn cast(&mut self, x: Value, to: DType) -> Value {
        self.apply(Op::Cast { to }, &[x])
    }
}

pub(super) fn types(op: &Op, inputs: &[Type]) -> Result<Vec<Type>, String> {
    if let Op::Concat { axis } = op {
        return concat(inputs, *axis);
    }
    let [x] = operands(inputs)?;
    let shape = match op {
        Op::Reshape { shape } => reshaped(x.shape, *shape)?,
        Op::Transpose { permutation } => transposed(x.shape, permutation)?,
        Op::Slice { axis, start, len } => {
            let extent = axis_extent(x.shape, *axis)?;
            if start + len > extent || *len == 0 {
                return Err(format!("{start}..{} is outside axis {axis} of {}", start + len, x.shape));
            }
            x.shape.with(*axis, *len)
        }
        Op::Pad { axis, start, len } => {
            let extent = axis_extent(x.shape, *axis)?;
            if start + extent > *len {
                return Err(format!("{} does not fit at {start} of {len} on axis {axis}", x.shape));
            }
            x.shape.with(*axis, *len)
        }
        Op::Cast { to } => return Ok(vec![Type { dtype: *to, ..x }]),
        Op::Broadcast { shape, axes } => {
            if shape.without(*axes) != x.shape {
                return Err(format!("{} is not {shape} without the broadcast axes", x.shape));
            }
            *shape
        }
        other => return no_types(other),
    };
    Ok(vec![Type { shape, ..x }])
}

pub(super) fn derivative(tape: &mut Tape, node: &Node, dys: Cotangents) -> Result<(), GraphError> {
    let Some(dy) = dys[0] else { return Ok(()) };
    let x = node.inputs[0];
    let shape = tape.graph.shape(x);
    let op = match &node.op {
        Op::Reshape { .. } => Op::Reshape { shape },
        Op::Transpose { permutation } => Op::Transpose { permutation: inverse(permutation) },
        Op::Slice { axis, start, .. } => Op::Pad { axis: *axis, start: *start, len: shape[*axis] },
        Op::Pad { axis, start, .. } => Op::Slice { axis: *axis, start: *start, len: shape[*axis] },
        Op::Cast { .. } => Op::Cast { to: tape.graph.ty(x).dtype },
        Op::Broadcast { axes, .. } => Op::Sum { axes: *axes },
        Op::Concat { axis } => {
            let mut start = 0;
            for &part in &node.inputs {
                let len = tape.graph.shape(part)[*axis];
                tape.emit(part, Op::Slice { axis: *axis, start, len }, &[dy]);
                start += len;
            }
            return Ok(());
        }
        other => return no_derivative(other),
    };
    tape.emit(x, op, &[dy]);
    Ok(())
}

fn inverse(permutation: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; permutation.len()];
    for (axis, &source) in permutation.iter().enumerate() {
        inverse[source] = axis;
    }
    inverse
}

fn reshaped(from: Shape, to: Shape) -> Result<Shape, String> {
    let (a, b) = (from.elements(), to.elements());
    if a == b { Ok(to) } else { Err(format!("{from} has {a} elements, {to} has {b}")) }
}

fn transposed(shape: Shape, permutation: &[usize]) -> Result<Shape, String> {
    let mut seen = permutation.to_vec();
    seen.sort_unstable();
    if seen.len() != shape.len() || seen.iter().enumerate().any(|(i, &axis)| i != axis) {
        return Err(format!("{permutation:?} is not a permutation of the axes of {shape}"));
    }
    let extents: Vec<usize> = permutation.iter().map(|&axis| shape[axis]).collect();
    Shape::new(&extents).ok_or_else(|| "too many axes".to_owned())
}

fn concat(inputs: &[Type], axis: usize) -> Result<Vec<Type>, String> {
    let first = *inputs.first().ok_or("takes at least 1 inputs, got 0")?;
    axis_extent(first.shape, axis)?;
    let mut total = 0;
    for input in inputs {
        let extent = axis_extent(input.shape, axis)?;
        equal(Type { shape: input.shape.with(axis, first.shape[axis]), ..*input }, first, "parts")?;
        total += extent;
    }
    Ok(vec![Type { shape: first.shape.with(axis, total), ..first }])
}

fn axis_extent(shape: Shape, axis: usize) -> Result<usize, String> {
    shape.get(axis).copied().ok_or_else(|| format!("{shape} has no axis {axis}"))
}
