//! The feed-forward network as one op, all rows at once: how many make a tile does not bear on the result.

use plimsoll_graph::Axes;
use plimsoll_graph::op::{Activation, Mlp};

use super::array::Array;
use super::elementwise::{add, gelu, gelu_grad, swiglu, swiglu_grad};
use super::movement::sum;
use super::products::{linear, linear_grad_input, linear_grad_weight};

/// A network and its parameters: gate, up and down, or up and down.
pub(super) struct Network<'a> {
    pub(super) form: Mlp,
    pub(super) weights: &'a [&'a Array],
    pub(super) biases: &'a [&'a Array],
}

impl Network<'_> {
    pub(super) fn forward(&self, x: &Array) -> Array {
        self.layer(self.last(), &self.activated(&self.leading(x)))
    }

    /// `(dx[, dw₁ … dwₙ][, db₁ … dbₙ])`.
    pub(super) fn backward(&self, x: &Array, dy: &Array, wanted: [bool; 2]) -> Vec<Array> {
        let leading = self.leading(x);
        let hidden = self.activated(&leading);
        let dhidden = self.send_back(self.last(), dy);
        let mut gradients = match self.form.activation {
            Activation::Swiglu => swiglu_grad(&leading[0], &leading[1], &dhidden).to_vec(),
            Activation::Gelu(form) => vec![gelu_grad(&leading[0], &dhidden, form)],
        };
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
        linear(x, self.weights[index], self.biases.get(index).copied(), self.form.transposed)
    }

    fn send_back(&self, index: usize, dz: &Array) -> Array {
        linear_grad_input(self.weights[index], dz, self.form.transposed)
    }

    fn leading(&self, x: &Array) -> Vec<Array> {
        (0..self.last()).map(|index| self.layer(index, x)).collect()
    }

    fn activated(&self, leading: &[Array]) -> Array {
        match self.form.activation {
            Activation::Swiglu => swiglu(&leading[0], &leading[1]),
            Activation::Gelu(form) => gelu(&leading[0], form),
        }
    }
}
