//! The feed-forward network as one op, all rows at once: how many make a tile does not bear on the result.
//!
//! Hidden values are rounded to the type of `x`, as if they had nodes of their own, so that a plan which works in tiles
//! rounds where any other plan does. Under f32, which f64 need not imitate, they are left alone.

use plimsoll_graph::op::{Activation, Mlp};
use plimsoll_graph::{Axes, DType, Op};

use super::Operands;
use super::array::Array;
use super::elementwise::{add, gelu, gelu_grad, swiglu, swiglu_grad};
use super::norms::sum;
use super::products::{linear, linear_grad_input, linear_grad_weight};

/// The results of an op of this family.
pub(super) fn eval(op: &Op, operands: &Operands) -> Vec<Array> {
    let x: Vec<&Array> = operands.arrays.iter().collect();
    let half = operands.tensors[0].ty.dtype == DType::Bf16;
    match op {
        Op::Mlp(form) => {
            let (weights, biases) = x[1..].split_at(form.products());
            vec![Network { form: *form, weights, biases, half }.forward(x[0])]
        }
        Op::MlpGrad { mlp: form, weights: any_weight, biases: any_bias } => {
            let (weights, biases) = x[2..].split_at(form.products());
            Network { form: *form, weights, biases, half }.backward(x[0], x[1], [*any_weight, *any_bias])
        }
        other => unreachable!("`{}` is of another family", other.name()),
    }
}

/// A network and its parameters: gate, up and down, or up and down.
struct Network<'a> {
    form: Mlp,
    weights: &'a [&'a Array],
    biases: &'a [&'a Array],
    /// Whether values between its products are bf16.
    half: bool,
}

impl Network<'_> {
    fn forward(&self, x: &Array) -> Array {
        self.layer(self.last(), &self.activated(&self.leading(x)))
    }

    /// `(dx[, dw₁ … dwₙ][, db₁ … dbₙ])`.
    fn backward(&self, x: &Array, dy: &Array, wanted: [bool; 2]) -> Vec<Array> {
        let leading = self.leading(x);
        let hidden = self.activated(&leading);
        let dhidden = self.send_back(self.last(), dy);
        let gradients = match self.form.activation {
            Activation::Swiglu => swiglu_grad(&leading[0], &leading[1], &dhidden).to_vec(),
            Activation::Gelu(form) => vec![gelu_grad(&leading[0], &dhidden, form)],
        };
        let mut gradients: Vec<Array> =
            gradients.into_iter().map(|gradient| self.rounded(gradient)).collect();
        let sent = gradients.iter().enumerate().map(|(index, gradient)| self.send_back(index, gradient));
        let dx = sent.reduce(|a, b| add(&a, &b)).unwrap_or_else(|| Array::zeros(x.shape));
        gradients.push(dy.clone());
        let mut results = vec![dx];
        if wanted[0] {
            let weight = |(index, dz)| {
                let x = if index == self.last() { &hidden } else { x };
                linear_grad_weight(x, dz, self.form.transposed)
            };
            results.extend(gradients.iter().enumerate().map(weight));
        }
        if wanted[1] {
            let rows = |dz: &Array| sum(dz, Axes::of(0..dz.shape.len() - 1));
            results.extend(gradients.iter().map(rows));
        }
        results
    }

    fn last(&self) -> usize {
        self.weights.len() - 1
    }

    fn layer(&self, index: usize, x: &Array) -> Array {
        self.rounded(linear(x, self.weights[index], self.biases.get(index).copied(), self.form.transposed))
    }

    fn send_back(&self, index: usize, dz: &Array) -> Array {
        self.rounded(linear_grad_input(self.weights[index], dz, self.form.transposed))
    }

    /// A value, rounded as if a node of its own had stored it.
    fn rounded(&self, value: Array) -> Array {
        if self.half { value.map(|x| f64::from(half::bf16::from_f32(x as f32))) } else { value }
    }

    fn leading(&self, x: &Array) -> Vec<Array> {
        (0..self.last()).map(|index| self.layer(index, x)).collect()
    }

    fn activated(&self, leading: &[Array]) -> Array {
        self.rounded(match self.form.activation {
            Activation::Swiglu => swiglu(&leading[0], &leading[1]),
            Activation::Gelu(form) => gelu(&leading[0], form),
        })
    }
}
