//! Layers that own their parameters' names and shapes, chained so that a block reads like its paper:
//!
//! ```
//! use plimsoll_graph::op::Gelu;
//! use plimsoll_graph::{DType, Graph, Visible};
//!
//! let mut g = Graph::new();
//! let tokens = g.input("tokens", [2, 16], DType::I32); // (B, T)
//! let targets = g.input("targets", [2 * 16], DType::I32); // (B·T)
//! let mut x = g.chain(tokens).embedding("words", 100, 32).value(); // (B, T, C)
//! for layer in 0..4 {
//!     x = g.block(&format!("layers.{layer}"), |g| {
//!         let x = g.residual(x, |x| x.rms_norm("norm").attention("attention", 4, Visible::CAUSAL));
//!         g.residual(x, |x| x.rms_norm("mlp_norm").linear("up", 128).gelu(Gelu::Tanh).linear("down", 32))
//!     });
//! }
//! let loss = g.chain(x).rms_norm("norm").head_loss("head", 100, targets);
//! g.output("loss", loss);
//! assert_eq!(g.finish()?.states()[1].name, "layers.0.norm.weight");
//! # Ok::<(), plimsoll_graph::GraphError>(())
//! ```
//!
//! A layer reads the width of its input from the graph, and draws weights with variance 1 ÷ input width, so that the
//! magnitude of activations is preserved. Models with published names and shapes declare their parameters themselves.

use crate::graph::{Graph, Init};
use crate::op::Gelu;
use crate::{Shape, Value, Visible};

/// Targets that carry no loss, as PyTorch numbers them.
pub const IGNORED_TARGET: i32 = -100;

/// Added to the mean square or the variance of a norm.
const EPSILON: f32 = 1e-6;

/// A value and the graph it is in, to apply one layer after another.
#[derive(Debug)]
#[must_use = "its value is what the layers made"]
pub struct Chain<'g> {
    graph: &'g mut Graph,
    x: Value,
}

impl Graph {
    /// Begins a chain of layers at `x`.
    pub fn chain(&mut self, x: Value) -> Chain<'_> {
        Chain { graph: self, x }
    }

    /// `x + body(x)`.
    #[track_caller]
    pub fn residual(&mut self, x: Value, body: impl for<'g> FnOnce(Chain<'g>) -> Chain<'g>) -> Value {
        let update = body(self.chain(x)).value();
        self.add(x, update)
    }
}

impl Chain<'_> {
    /// The result of the last layer.
    pub fn value(self) -> Value {
        self.x
    }

    /// `x·wᵀ` with the weight `name.weight (out, in)`.
    #[track_caller]
    pub fn linear(mut self, name: &str, out: usize) -> Self {
        let weight = self.weight(name, out);
        let x = self.graph.linear(self.x, weight, None);
        Chain { x, ..self }
    }

    /// `x·wᵀ + b` with the weight `name.weight (out, in)` and the bias `name.bias (out)`.
    #[track_caller]
    pub fn linear_with_bias(mut self, name: &str, out: usize) -> Self {
        let weight = self.weight(name, out);
        let bias = self.graph.param(&format!("{name}.bias"), [out], Init::Fill(0.0));
        let x = self.graph.linear(self.x, weight, Some(bias));
        Chain { x, ..self }
    }

    /// Rows of the table `name.weight (words, width)`, chosen by the ids that the chain holds.
    #[track_caller]
    pub fn embedding(self, name: &str, words: usize, width: usize) -> Self {
        let table = self.graph.param(&format!("{name}.weight"), [words, width], Init::Normal(0.02));
        let x = self.graph.embedding(table, self.x);
        Chain { x, ..self }
    }

    /// Adds the row `name.weight (T, C)` of its position to each vector of `x (B, T, C)`.
    #[track_caller]
    pub fn learned_positions(self, name: &str) -> Self {
        let shape = self.graph.shape(self.x);
        let &[_, length, width] = &shape[..] else {
            let why = format!("wants an input of [sequences, positions, width], got {shape}");
            self.graph.fail("positions", why);
            return self;
        };
        let table = self.graph.param(&format!("{name}.weight"), [length, width], Init::Normal(0.02));
        self.plus(table)
    }

    /// Root-mean-square normalisation over the last axis, times `name.weight`.
    #[track_caller]
    pub fn rms_norm(self, name: &str) -> Self {
        let width = self.width();
        let weight = self.graph.param(&format!("{name}.weight"), [width], Init::Fill(1.0));
        let x = self.graph.rms_norm(self.x, weight, EPSILON);
        Chain { x, ..self }
    }

    /// Layer normalisation over the last axis, times `name.weight`, plus `name.bias`.
    #[track_caller]
    pub fn layer_norm(self, name: &str) -> Self {
        let width = self.width();
        let weight = self.graph.param(&format!("{name}.weight"), [width], Init::Fill(1.0));
        let bias = self.graph.param(&format!("{name}.bias"), [width], Init::Fill(0.0));
        let x = self.graph.layer_norm(self.x, weight, bias, EPSILON);
        Chain { x, ..self }
    }

    /// Self-attention of `x (B, T, C)` in `heads` heads: projections `name.q`, `name.k` and `name.v`, attention, and the
    /// projection `name.out`.
    #[track_caller]
    pub fn attention(self, name: &str, heads: usize, visible: Visible) -> Self {
        let shape = self.graph.shape(self.x);
        let &[batch, length, width] = &shape[..] else {
            self.graph
                .fail("attention", format!("wants an input of [sequences, positions, width], got {shape}"));
            return self;
        };
        if heads == 0 || width % heads != 0 {
            self.graph.fail("attention", format!("a width of {width} does not divide into {heads} heads"));
            return self;
        }
        let mut projected = [self.x; 3];
        for (value, part) in projected.iter_mut().zip(["q", "k", "v"]) {
            let y = self.graph.chain(self.x).linear(&format!("{name}.{part}"), width).value(); // (B, T, C)
            *value = self.graph.reshape(y, [batch, length, heads, width / heads]); // (B, T, H, D)
        }
        let [q, k, v] = projected;
        let mixed = self.graph.attention(q, k, v, visible); // (B, T, H, D)
        let x = self.graph.reshape(mixed, shape); // (B, T, C)
        Chain { x, ..self }.linear(&format!("{name}.out"), width)
    }

    /// `x · σ(x)`.
    #[track_caller]
    pub fn silu(self) -> Self {
        let x = self.graph.silu(self.x);
        Chain { x, ..self }
    }

    /// Gaussian error linear unit.
    #[track_caller]
    pub fn gelu(self, form: Gelu) -> Self {
        let x = self.graph.gelu(self.x, form);
        Chain { x, ..self }
    }

    /// Hyperbolic tangent.
    #[track_caller]
    pub fn tanh(self) -> Self {
        let x = self.graph.tanh(self.x);
        Chain { x, ..self }
    }

    /// Zeroes elements with probability `p` and scales the rest.
    #[track_caller]
    pub fn dropout(self, p: f32) -> Self {
        let x = self.graph.dropout(self.x, p);
        Chain { x, ..self }
    }

    /// The sum with another value, whose shape is a suffix of the shape of this one.
    #[track_caller]
    pub fn plus(self, other: Value) -> Self {
        let x = self.graph.add(self.x, other);
        Chain { x, ..self }
    }

    /// The same elements under another shape.
    #[track_caller]
    pub fn reshape(self, shape: impl Into<Shape>) -> Self {
        let x = self.graph.reshape(self.x, shape);
        Chain { x, ..self }
    }

    /// A classifier over `classes` classes with the weight `name.weight`, and its mean cross entropy with `targets`,
    /// one per row. The logits never exist as a whole. Targets of [`IGNORED_TARGET`] carry no loss.
    #[track_caller]
    pub fn head_loss(mut self, name: &str, classes: usize, targets: Value) -> Value {
        let weight = self.weight(name, classes);
        self.tied_head_loss(weight, targets)
    }

    /// As [`head_loss`](Self::head_loss) with a weight `(classes, width)` that another layer has too.
    #[track_caller]
    pub fn tied_head_loss(self, weight: Value, targets: Value) -> Value {
        let shape = self.graph.shape(self.x);
        let rows = self.graph.reshape(self.x, [shape.rows(), shape.columns()]); // (N, C)
        let scale = self.graph.loss_scale();
        self.graph.head_loss(rows, weight, None, targets, scale, IGNORED_TARGET)
    }

    #[track_caller]
    fn weight(&mut self, name: &str, out: usize) -> Value {
        let width = self.width();
        let spread = 1.0 / (width.max(1) as f32).sqrt();
        self.graph.param(&format!("{name}.weight"), [out, width], Init::Normal(spread))
    }

    fn width(&self) -> usize {
        self.graph.shape(self.x).columns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn a_mistake_inside_a_layer_names_the_line_that_called_it() {
        let mut g = Graph::new();
        let x = g.input("x", [2, 6, 10], DType::F32);
        let line = line!() + 1;
        g.residual(x, |x| x.rms_norm("norm").attention("attention", 4, Visible::ALL));
        let error = g.finish().unwrap_err();
        assert_eq!(error.why, "a width of 10 does not divide into 4 heads");
        assert!(error.at.unwrap().ends_with(&format!("layers.rs:{line}")));
    }

    #[test]
    fn layers_of_one_block_carry_its_name() {
        let mut g = Graph::new();
        let x = g.input("x", [3, 4], DType::F32);
        g.block("b", |g| g.chain(x).linear_with_bias("up", 8).tanh().layer_norm("norm").value());
        let names: Vec<&str> = g.states().iter().map(|state| state.name.as_str()).collect();
        assert_eq!(names, ["b.up.weight", "b.up.bias", "b.norm.weight", "b.norm.bias"]);
    }
}
