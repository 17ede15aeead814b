//! Normalisation and reductions: sums, softmax, layer norm and RMS norm.

use super::{Cotangents, equal, float, no_derivative, no_types, operands, vector};
use crate::graph::{Graph, Node};
use crate::tape::Tape;
use crate::{Axes, GraphError, Op, Type, Value};

impl Graph {
    /// Sum over `axes`, which disappear.
    #[track_caller]
    pub fn sum(&mut self, x: Value, axes: &[usize]) -> Value {
        self.apply(Op::Sum { axes: Axes::of(axes.iter().copied()) }, &[x])
    }

    /// Mean over `axes`, which disappear.
    #[track_caller]
    pub fn mean(&mut self, x: Value, axes: &[usize]) -> Value {
        let shape = self.shape(x);
        let count: usize = axes.iter().filter_map(|&axis| shape.get(axis)).product();
        let sum = self.sum(x, axes);
        self.scale(sum, 1.0 / count as f32)
    }

    /// Softmax over the last axis.
    #[track_caller]
    pub fn softmax(&mut self, x: Value) -> Value {
        self.apply(Op::Softmax, &[x])
    }

    /// Layer normalisation over the last axis.
    #[track_caller]
    pub fn layer_norm(&mut self, x: Value, weight: Value, bias: Value, epsilon: f32) -> Value {
        self.apply(Op::LayerNorm { epsilon }, &[x, weight, bias])
    }

    /// Root-mean-square normalisation over the last axis.
    #[track_caller]
    pub fn rms_norm(&mut self, x: Value, weight: Value, epsilon: f32) -> Value {
        self.apply(Op::RmsNorm { epsilon }, &[x, weight])
    }

    /// `1/‖w + scale·b·a‖` of each row, from the squares of the rows of `w (out, in)`, `a·wᵀ`, `b (out, r)` and `a·aᵀ`. The
    /// derivative reads it as a constant.
    #[track_caller]
    pub fn inverse_norm(&mut self, [squares, products, b, gram]: [Value; 4], scale: f32) -> Value {
        self.apply(Op::InverseNorm { scale }, &[squares, products, b, gram])
    }
}

pub(super) fn types(op: &Op, inputs: &[Type]) -> Result<Vec<Type>, String> {
    match op {
        Op::Sum { axes } => {
            let [x] = operands(inputs)?;
            float(x)?;
            if axes.iter().any(|axis| axis >= x.shape.len()) {
                return Err(format!("{} has no such axis to sum over", x.shape));
            }
            Ok(vec![Type { shape: x.shape.without(*axes), ..x }])
        }
        Op::Softmax => {
            let [x] = operands(inputs)?;
            float(x).map(|()| vec![x])
        }
        Op::SoftmaxGrad => {
            let [y, dy] = operands(inputs)?;
            equal(y, dy, "first and second input").map(|()| vec![y])
        }
        Op::LayerNorm { .. } => {
            let [x, weight, bias] = operands(inputs)?;
            vector(weight, x.shape.columns(), "weight")?;
            vector(bias, x.shape.columns(), "bias")?;
            Ok(vec![x, statistics(x), statistics(x)])
        }
        Op::LayerNormGradInput => {
            let [x, _, mean, rstd, dy] = operands(inputs)?;
            norm_gradient(x, &[mean, rstd], dy).map(|()| vec![x])
        }
        Op::LayerNormGradWeight => {
            let [x, mean, rstd, dy] = operands(inputs)?;
            norm_gradient(x, &[mean, rstd], dy).map(|()| vec![row(x)])
        }
        Op::RmsNorm { .. } => {
            let [x, weight] = operands(inputs)?;
            vector(weight, x.shape.columns(), "weight")?;
            Ok(vec![x, statistics(x)])
        }
        Op::RmsNormGradInput => {
            let [x, _, rstd, dy] = operands(inputs)?;
            norm_gradient(x, &[rstd], dy).map(|()| vec![x])
        }
        Op::RmsNormGradWeight => {
            let [x, rstd, dy] = operands(inputs)?;
            norm_gradient(x, &[rstd], dy).map(|()| vec![row(x)])
        }
        Op::InverseNorm { .. } => {
            let [squares, products, b, gram] = operands(inputs)?;
            let &[out, rank] = &b.shape[..] else {
                return Err(format!("`b` must be a matrix, got {}", b.shape));
            };
            equal(squares, Type::f32([out]), "squares")?;
            equal(products, Type::f32([rank, out]), "products")?;
            equal(b, Type::f32([out, rank]), "b")?;
            equal(gram, Type::f32([rank, rank]), "gram")?;
            Ok(vec![squares])
        }
        other => no_types(other),
    }
}

pub(super) fn derivative(tape: &mut Tape, node: &Node, dys: Cotangents) -> Result<(), GraphError> {
    let Some(dy) = dys[0] else { return Ok(()) };
    let (inputs, outputs, x) = (&node.inputs, &node.outputs, node.inputs[0]);
    match &node.op {
        Op::Sum { axes } => {
            tape.emit(x, Op::Broadcast { shape: tape.graph.shape(x), axes: *axes }, &[dy]);
        }
        Op::Softmax => tape.emit(x, Op::SoftmaxGrad, &[outputs[0], dy]),
        Op::LayerNorm { .. } => {
            tape.emit(inputs[1], Op::LayerNormGradWeight, &[x, outputs[1], outputs[2], dy]);
            tape.emit_summed(inputs[2], dy);
            tape.emit(x, Op::LayerNormGradInput, &[x, inputs[1], outputs[1], outputs[2], dy]);
        }
        Op::RmsNorm { .. } => {
            tape.emit(inputs[1], Op::RmsNormGradWeight, &[x, outputs[1], dy]);
            tape.emit(x, Op::RmsNormGradInput, &[x, inputs[1], outputs[1], dy]);
        }
        other => return no_derivative(other),
    }
    Ok(())
}

/// Checks the statistics and the gradient of a norm of `x`.
fn norm_gradient(x: Type, statistics: &[Type], dy: Type) -> Result<(), String> {
    for one in statistics {
        vector(*one, x.shape.rows(), "statistics")?;
    }
    equal(x, dy, "input and gradient")
}

/// The type of one number per row.
fn statistics(x: Type) -> Type {
    Type::f32([x.shape.rows()])
}

/// The type of one number per column.
fn row(x: Type) -> Type {
    Type { shape: [x.shape.columns()].into(), ..x }
}
