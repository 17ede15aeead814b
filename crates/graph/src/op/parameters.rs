//! Parameters of ops: formulas, masks, shapes of heads and networks, and how an optimizer keeps its state.

use crate::{DType, Shape, Type};

/// Which formula stands for the Gaussian error linear unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    /// `½x(1 + tanh(√(2/π)(x + 0.044715x³)))`, as in GPT-2.
    Tanh,
    /// `½x(1 + erf(x/√2))`, as in BERT.
    Erf,
}

/// Which positions a query may see. Position `s` is visible from `t` when all of these hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mask {
    /// `s ≤ t`.
    pub causal: bool,
    /// `|t − s| < window`.
    pub window: Option<usize>,
    /// `doc_start[s] = doc_start[t]`: the i32 input `doc_start[B,T]` gives the first position of the
    /// document each position belongs to.
    pub documents: bool,
}

/// How an optimizer keeps a parameter between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Weights {
    /// f32.
    #[default]
    F32,
    /// bf16, rounded up or down at random so that the mean is the exact result. The random bits are a
    /// function of the input `rng`, `stream` and the element.
    Stochastic {
        /// Hash of the parameter's name.
        stream: u64,
    },
    /// The same for a shard of a parameter, which is rounded as it would be in the whole: `rng[3]` is the number of the
    /// shard, and shards are equally long.
    StochasticShard {
        /// Hash of the parameter's name.
        stream: u64,
    },
    /// bf16 for all readers, and beside it, for the optimizer alone, the i16 that completes it to f32: the bits of the
    /// f32 are those of the bf16, shifted up by sixteen places, plus the i16. So the master copy costs two bytes
    /// instead of four. For weights just loaded from bf16 it is all zeros.
    Split,
}

/// How an optimizer keeps a moment between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Moments {
    /// f32.
    #[default]
    F32,
    /// bf16, rounded to nearest even.
    Bf16,
    /// One u8 code per element and, for each [`BLOCK`] of them, the largest magnitude as f32 (Dettmers et
    /// al., 2022). A code names one of 256 numbers between −1 and 1, dense around zero. A second moment
    /// that is not zero is never stored as zero, since the next step would divide by ε alone.
    Blocks,
}

/// Elements that share a largest magnitude in [`Moments::Blocks`].
pub const BLOCK: usize = 256;

/// Element types of the state that an optimizer updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Stored {
    /// The parameter.
    pub weights: Weights,
    /// The moments.
    pub moments: Moments,
}

impl Stored {
    /// The same with the stream of random rounding set to 0, so that parameters can be compared.
    #[must_use]
    pub fn without_stream(self) -> Stored {
        match self.weights {
            Weights::Stochastic { .. } => Stored { weights: Weights::Stochastic { stream: 0 }, ..self },
            Weights::StochasticShard { .. } => {
                Stored { weights: Weights::StochasticShard { stream: 0 }, ..self }
            }
            Weights::F32 | Weights::Split => self,
        }
    }

    /// The same for a shard of the parameter.
    #[must_use]
    pub fn of_shard(self) -> Stored {
        match self.weights {
            Weights::Stochastic { stream } => Stored { weights: Weights::StochasticShard { stream }, ..self },
            _ => self,
        }
    }

    /// Types of the ranges that an update of a parameter of this shape writes, in order: the parameter, its lower
    /// halves if split, and one or two ranges for each of `moments` moments.
    pub fn types(self, shape: Shape, moments: usize) -> Vec<Type> {
        let ty = |dtype| Type { shape, dtype };
        let mut types = match self.weights {
            Weights::F32 => vec![ty(DType::F32)],
            Weights::Stochastic { .. } | Weights::StochasticShard { .. } => vec![ty(DType::Bf16)],
            Weights::Split => vec![ty(DType::Bf16), ty(DType::I16)],
        };
        let moment = match self.moments {
            Moments::F32 => vec![ty(DType::F32)],
            Moments::Bf16 => vec![ty(DType::Bf16)],
            Moments::Blocks => vec![ty(DType::U8), Type::f32([shape.elements().div_ceil(BLOCK)])],
        };
        (0..moments).for_each(|_| types.extend(&moment));
        types
    }

    /// Whether the update draws random numbers.
    pub fn is_random(self) -> bool {
        matches!(self.weights, Weights::Stochastic { .. } | Weights::StochasticShard { .. })
    }
}

/// Hyper-parameters of [`Op::Sgd`](super::Op::Sgd) that stay the same over a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Decay rate of the running sum of gradients; without it, at 0, there is no such sum.
    pub momentum: f32,
    /// Whether the step uses Nesterov momentum.
    pub nesterov: bool,
    /// Added to the gradient, times the parameter.
    pub weight_decay: f32,
    /// How the state is kept.
    pub stored: Stored,
}

impl Sgd {
    /// Ranges of running sums: one or none.
    pub fn moments(self) -> usize {
        usize::from(self.momentum > 0.0)
    }
}

/// Hyper-parameters of [`Op::AdamW`](super::Op::AdamW) that stay the same over a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Decay rate of the first moment.
    pub beta1: f32,
    /// Decay rate of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Decoupled weight decay, per unit of learning rate.
    pub weight_decay: f32,
    /// How the state is kept.
    pub stored: Stored,
}

/// Shape of the fused language-model head: which optional operands it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Targets with this id carry no loss.
    pub ignore_index: i32,
    /// Whether there is a bias `[V]`.
    pub bias: bool,
    /// Whether a second product with few columns is added to the logits: an adapter's addition to the head's weight.
    pub second: bool,
}

impl Head {
    /// Where the operands of the second product begin.
    pub fn second_at(&self) -> usize {
        4 + usize::from(self.bias)
    }

    /// For each output of the gradient except the loss, the input it belongs to: `x`, `x₂`, then `w` and `b` if wanted.
    pub fn gradients(&self, weight: bool, bias: bool) -> Vec<usize> {
        let all = [(0, true), (self.second_at(), self.second), (1, weight), (4, bias)];
        all.into_iter().filter(|(_, wanted)| *wanted).map(|(input, _)| input).collect()
    }
}

/// The activation between the products of a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `silu(gate) · up`, of two products.
    Swiglu,
    /// `gelu(up)`, of one.
    Gelu(Gelu),
}

/// Form of a feed-forward network that is worked on in tiles of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mlp {
    /// The activation between the products.
    pub activation: Activation,
    /// Whether weights are stored `(in, out)`.
    pub transposed: bool,
    /// Whether every product has a bias.
    pub bias: bool,
    /// Rows of a tile; the last one may have fewer.
    pub rows: usize,
}

impl Mlp {
    /// Number of products: gate, up and down, or up and down.
    pub fn products(self) -> usize {
        match self.activation {
            Activation::Swiglu => 3,
            Activation::Gelu(_) => 2,
        }
    }

    /// Weights and biases together.
    pub(crate) fn parameters(self) -> usize {
        self.products() * (1 + usize::from(self.bias))
    }
}

/// Stride and zero padding of a two-dimensional convolution, the same on both axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv {
    /// Step of the window.
    pub stride: usize,
    /// Zeros around the image.
    pub padding: usize,
}
