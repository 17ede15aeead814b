//! Elementwise ops: sums, products, activations, dropout and jitter.

use super::{Cotangents, equal, float, no_derivative, no_types, operands};
use crate::graph::{Graph, Node};
use crate::op::Gelu;
use crate::tape::Tape;
use crate::{DType, GraphError, Op, Type, Value};

impl Graph {
    /// `a + b`; the shape of `b` is a suffix of the shape of `a`.
    #[track_caller]
    pub fn add(&mut self, a: Value, b: Value) -> Value {
        self.apply(Op::Add, &[a, b])
    }

    /// `a · b`; the shape of `b` is a suffix of the shape of `a`.
    #[track_caller]
    pub fn mul(&mut self, a: Value, b: Value) -> Value {
        self.apply(Op::Mul, &[a, b])
    }

    /// `factor · x`.
    #[track_caller]
    pub fn scale(&mut self, x: Value, factor: f32) -> Value {
        self.apply(Op::Scale { factor }, &[x])
    }

    /// `x · σ(x)`.
    #[track_caller]
    pub fn silu(&mut self, x: Value) -> Value {
        self.apply(Op::Silu, &[x])
    }

    /// Gaussian error linear unit.
    #[track_caller]
    pub fn gelu(&mut self, x: Value, form: Gelu) -> Value {
        self.apply(Op::Gelu(form), &[x])
    }

    /// Hyperbolic tangent.
    #[track_caller]
    pub fn tanh(&mut self, x: Value) -> Value {
        self.apply(Op::Tanh, &[x])
    }

    /// The logistic function, `1/(1 + e⁻ˣ)`.
    #[track_caller]
    pub fn sigmoid(&mut self, x: Value) -> Value {
        self.apply(Op::Sigmoid, &[x])
    }

    /// `silu(gate) · up`.
    #[track_caller]
    pub fn swiglu(&mut self, gate: Value, up: Value) -> Value {
        self.apply(Op::Swiglu, &[gate, up])
    }

    /// Zeroes elements with probability `p` and scales the rest; `x` itself when `p` is 0.
    ///
    /// Adds the graph input `rng`: see [`Op::Dropout`].
    #[track_caller]
    pub fn dropout(&mut self, x: Value, p: f32) -> Value {
        if p == 0.0 {
            return x;
        }
        if !(0.0..1.0).contains(&p) {
            self.fail("dropout", format!("the probability must be in 0..1, got {p}"));
        }
        let rng = self.input("rng", [4], DType::I32);
        let stream = self.stable_stream("dropout");
        self.apply(Op::Dropout { p, stream }, &[x, rng])
    }

    /// Multiplies each element by a number drawn evenly from `1 − noise` to `1 + noise`; `x` itself when `noise` is 0.
    ///
    /// Adds the graph input `rng`: see [`Op::Jitter`].
    #[track_caller]
    pub fn jitter(&mut self, x: Value, noise: f32) -> Value {
        if noise == 0.0 {
            return x;
        }
        if !(0.0..1.0).contains(&noise) {
            self.fail("jitter", format!("the noise must be in 0..1, got {noise}"));
        }
        let rng = self.input("rng", [4], DType::I32);
        let stream = self.stable_stream("jitter");
        self.apply(Op::Jitter { noise, stream }, &[x, rng])
    }
}

pub(super) fn types(op: &Op, inputs: &[Type]) -> Result<Vec<Type>, String> {
    match op {
        Op::Add | Op::Mul => {
            let [a, b] = operands(inputs)?;
            float(a)?;
            if b.dtype != a.dtype || !a.shape.ends_with_shape(&b.shape) {
                return Err(format!(
                    "{b} and {a} do not go together; the second shape must be a suffix of the first"
                ));
            }
            Ok(vec![a])
        }
        Op::Scale { .. } | Op::Silu | Op::Gelu(_) | Op::Tanh | Op::Sigmoid => {
            let [x] = operands(inputs)?;
            float(x).map(|()| vec![x])
        }
        Op::SiluGrad | Op::GeluGrad(_) | Op::TanhGrad | Op::SigmoidGrad | Op::Swiglu => {
            let [x, other] = operands(inputs)?;
            equal(x, other, "first and second input").map(|()| vec![x])
        }
        Op::SwigluGrad => {
            let [gate, up, dy] = operands(inputs)?;
            equal(gate, up, "gate and up")?;
            equal(gate, dy, "gate and gradient")?;
            Ok(vec![gate, gate])
        }
        Op::Dropout { .. } | Op::Jitter { .. } => {
            let [x, rng] = operands(inputs)?;
            float(x)?;
            equal(rng, Type::i32([4]), "rng")?;
            Ok(vec![x])
        }
        other => no_types(other),
    }
}

pub(super) fn derivative(tape: &mut Tape, node: &Node, dys: Cotangents) -> Result<(), GraphError> {
    let Some(dy) = dys[0] else { return Ok(()) };
    let (inputs, x) = (&node.inputs, node.inputs[0]);
    match &node.op {
        Op::Add => {
            tape.emit_summed(inputs[1], dy);
            tape.share(x, dy);
        }
        Op::Mul => {
            if tape.needs(inputs[1]) {
                let product = tape.graph.mul(dy, x);
                tape.emit_summed(inputs[1], product);
            }
            tape.emit(x, Op::Mul, &[dy, inputs[1]]);
        }
        Op::Scale { factor } => tape.emit(x, Op::Scale { factor: *factor }, &[dy]),
        Op::Silu => tape.emit(x, Op::SiluGrad, &[x, dy]),
        Op::Gelu(form) => tape.emit(x, Op::GeluGrad(*form), &[x, dy]),
        Op::Tanh => tape.emit(x, Op::TanhGrad, &[node.outputs[0], dy]),
        Op::Sigmoid => tape.emit(x, Op::SigmoidGrad, &[node.outputs[0], dy]),
        Op::Swiglu => {
            let gradient = tape.graph.apply_all(Op::SwigluGrad, &[x, inputs[1], dy]);
            tape.give(x, gradient, 0);
            tape.give(inputs[1], gradient, 1);
        }
        Op::Dropout { .. } | Op::Jitter { .. } => tape.emit(x, node.op.clone(), &[dy, inputs[1]]),
        other => return no_derivative(other),
    }
    Ok(())
}
