//! Rates of the optimizers that people ask for by name, beside those of SGD and `AdamW`.

use super::{Moments, Stored};
use crate::{DType, Shape, Type};

/// Hyper-parameters of [`Op::Lion`](super::Op::Lion) that stay the same over a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lion {
    /// Share of the moment in the number whose sign is the step.
    pub beta1: f32,
    /// Decay rate of the moment.
    pub beta2: f32,
    /// Decoupled weight decay, per unit of learning rate.
    pub weight_decay: f32,
    /// How the state is kept.
    pub stored: Stored,
}

/// Hyper-parameters of [`Op::Adafactor`](super::Op::Adafactor) that stay the same over a run. Statistics are f32 whatever
/// `stored` says about moments: they are a row and a column of each matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adafactor {
    /// The statistics decay by `1 − stepᵈ`; this is `d`, below 0.
    pub decay_rate: f32,
    /// Added to squares of gradients.
    pub epsilon: f32,
    /// The largest root mean square of a step, before the learning rate.
    pub clip_threshold: f32,
    /// Decoupled weight decay, per unit of learning rate.
    pub weight_decay: f32,
    /// How the parameter is kept.
    pub stored: Stored,
}

impl Adafactor {
    /// Types of the ranges that an update writes: the parameter's, then the means of rows and of columns; for a vector
    /// the running mean of its squares instead.
    pub fn types(self, shape: Shape) -> Vec<Type> {
        let mut types = self.stored.types(shape, 0);
        match factors(shape) {
            Some(factors) => types.extend(factors.map(Type::f32)),
            None => types.push(Type::f32(shape)),
        }
        types
    }
}

/// Extents of the means over the last axis, and over the last but one.
fn factors(shape: Shape) -> Option<[Shape; 2]> {
    let last = shape.len().checked_sub(2)?;
    let without = |axis: usize| {
        let kept: Vec<usize> =
            (0..shape.len()).filter(|&other| other != axis).map(|axis| shape[axis]).collect();
        Shape::new(&kept)
    };
    Some([without(last + 1)?, without(last)?])
}

/// How gradients are scaled by [`Op::Apollo`](super::Op::Apollo).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ApolloScaling {
    /// One factor scales each channel, which is a line of the longer side.
    #[default]
    Channel,
    /// One factor scales the whole matrix.
    Tensor,
}

/// Hyper-parameters of [`Op::Apollo`](super::Op::Apollo) that stay the same over a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Apollo {
    /// Columns of the projection.
    pub rank: usize,
    /// Steps after which another projection is drawn.
    pub gap: usize,
    /// The step is multiplied by the root of this number.
    pub scale: f32,
    /// How many scaling factors a matrix has.
    pub scaling: ApolloScaling,
    /// Decay rate of the first moment.
    pub beta1: f32,
    /// Decay rate of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Decoupled weight decay, per unit of learning rate.
    pub weight_decay: f32,
    /// Hash of the parameter's name, from which projections are drawn.
    pub stream: u64,
    /// How the state is kept; moments are not in blocks.
    pub stored: Stored,
}

impl Apollo {
    /// The most by which the norm of a scaled gradient grows from step to step.
    pub const GROWTH: f32 = 1.01;
    /// Added to a norm that is a divisor.
    pub const LEAST_NORM: f32 = 1e-8;

    /// Types of the ranges that an update writes: the parameter's, two moments of `rank` numbers for each channel, and the
    /// norm of each matrix's scaled gradient.
    pub fn types(self, shape: Shape) -> Vec<Type> {
        let [matrices, _, longer] = Muon::extents(shape);
        let dtype = if self.stored.moments == Moments::Bf16 { DType::Bf16 } else { DType::F32 };
        let moment = Type { shape: [matrices * longer, self.rank].into(), dtype };
        let mut types = self.stored.types(shape, 0);
        types.extend([moment, moment, Type::f32([matrices])]);
        types
    }

    /// The same hyper-parameters with every stream of random numbers set to 0, so that parameters can be compared.
    #[must_use]
    pub fn without_stream(self) -> Apollo {
        Apollo { stream: 0, stored: self.stored.without_stream(), ..self }
    }

    /// Which projection `step` uses, counted from 0.
    pub fn projection(self, step: f32) -> u32 {
        (step.max(1.0) as usize - 1).checked_div(self.gap).unwrap_or(0) as u32
    }
}

/// Hyper-parameters of [`Op::Muon`](super::Op::Muon) that stay the same over a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Muon {
    /// Decay rate of the running mean of gradients.
    pub momentum: f32,
    /// Whether the step uses Nesterov momentum.
    pub nesterov: bool,
    /// Decoupled weight decay, per unit of learning rate.
    pub weight_decay: f32,
    /// How the state is kept.
    pub stored: Stored,
}

impl Muon {
    /// Rounds of the iteration that makes a matrix nearly orthogonal.
    pub const ROUNDS: usize = 5;
    /// Coefficients of each round: `X ← a·X + (b·A + c·A²)·X` with `A = X·Xᵀ`.
    pub const COEFFICIENTS: [f32; 3] = [3.4445, -4.775, 2.0315];
    /// The least norm that a matrix is divided by.
    pub const LEAST_NORM: f32 = 1e-7;

    /// Matrices of a parameter, and the shorter and the longer side of each.
    pub fn extents(shape: Shape) -> [usize; 3] {
        let [rows, columns] = [shape[shape.len() - 2], shape.columns()];
        [shape.elements() / (rows * columns).max(1), rows.min(columns), rows.max(columns)]
    }

    /// Factor of an orthogonal step: with it a step has the size that one of `AdamW` usually has (0.2 for each element),
    /// so that one learning rate serves both.
    pub fn step_size(shape: Shape) -> f32 {
        let [_, _, longer] = Muon::extents(shape);
        (0.2 * (longer as f64).sqrt()) as f32
    }
}
