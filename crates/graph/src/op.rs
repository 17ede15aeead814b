//! The operations: one documented variant each, with its equation.
//!
//! Conventions. `N` is the number of rows of a value seen as a matrix (every axis but the last),
//! `B` sequences of `T` positions, `H` query heads and `K` key heads of width `D`, `V` words.
//! Weights are `(out, in)` as Hugging Face stores them. Optional inputs come last and are announced
//! by a flag of the variant. An op is data: the reference kernel of the same name in `exec` defines its result, and
//! the file of its [`Family`] in `rules` its types and its derivative.
//!
//! Absent on purpose: devices, tensor data, and anything a plan decides (recompute, place). Where a plan works on
//! rows in tiles, a pass has put ops there that do.

mod balance;
mod collective;
mod experts;
mod optimizers;
mod parameters;
mod probes;
mod quantised;

pub use balance::Balance;
pub use collective::{Collective, SHARD_UNIT, SMALL_TENSOR, shard_elements};
pub use experts::Sorting;
pub use optimizers::{Adafactor, Apollo, ApolloScaling, Lion, Muon};
pub use parameters::{Activation, AdamW, BLOCK, Conv, Gelu, Head, Mask, Mlp, Moments, Sgd, Stored, Weights};
pub use probes::{Estimate, ProbeStep};
pub use quantised::{Dequantise, NF4_BLOCK, NF4_SECOND_BLOCK, Quantised};

use crate::{Axes, DType, Shape};

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    // ---- data movement -------------------------------------------------------------------------
    /// `(x) → y` with the same elements in another shape. Costs nothing: `y` is `x`'s bytes.
    Reshape {
        /// The new extents.
        shape: Shape,
    },
    /// `(x) → y`, `y` axis `i` is `x` axis `permutation[i]`.
    Transpose {
        /// Source axis of each result axis.
        permutation: Vec<usize>,
    },
    /// `(x) → x[.., start..start+len, ..]` along `axis`.
    Slice {
        /// The axis cut.
        axis: usize,
        /// First index taken.
        start: usize,
        /// Number of indices taken.
        len: usize,
    },
    /// `(x) → y`, zeros except for `y[.., start..start+|x|, ..] = x`. Transposes [`Op::Slice`].
    Pad {
        /// The axis widened.
        axis: usize,
        /// Where `x` begins in the result.
        start: usize,
        /// Extent of the result along `axis`.
        len: usize,
    },
    /// `(x₁ … xₙ) → [x₁; …; xₙ]` along `axis`.
    Concat {
        /// The axis joined.
        axis: usize,
    },
    /// `(x) → x` in another element type, rounded to nearest even.
    Cast {
        /// The new element type.
        to: DType,
    },
    /// `(x) → y` of shape `shape`, constant along `axes`, which `x` lacks. Transposes [`Op::Sum`].
    Broadcast {
        /// Shape of the result.
        shape: Shape,
        /// Axes of the result that `x` lacks.
        axes: Axes,
    },

    // ---- elementwise ---------------------------------------------------------------------------
    /// `(a, b) → a + b`; the shape of `b` is a suffix of the shape of `a`.
    Add,
    /// `(a, b) → a · b`; the shape of `b` is a suffix of the shape of `a`.
    Mul,
    /// `(x) → factor · x`.
    Scale {
        /// The constant.
        factor: f32,
    },
    /// `(x) → x · σ(x)`.
    Silu,
    /// `(x, dy) → dx` of [`Op::Silu`].
    SiluGrad,
    /// `(x) → gelu(x)`.
    Gelu(Gelu),
    /// `(x, dy) → dx` of [`Op::Gelu`].
    GeluGrad(Gelu),
    /// `(x) → tanh(x)`.
    Tanh,
    /// `(y, dy) → dy·(1 − y²)` of [`Op::Tanh`], from its result.
    TanhGrad,
    /// `(x) → σ(x) = 1/(1 + e⁻ˣ)`.
    Sigmoid,
    /// `(y, dy) → dy·y·(1 − y)` of [`Op::Sigmoid`], from its result.
    SigmoidGrad,
    /// `(g, u) → silu(g) · u`.
    Swiglu,
    /// `(g, u, dy) → (dg, du)` of [`Op::Swiglu`].
    SwigluGrad,
    /// `(x, rng) → x · m / (1 − p)`, `m` 0 with probability `p` and else 1. The mask is a function of
    /// `rng` = i32 `[seed low, seed high, step, first row]`, `stream`, the row of the *global* batch
    /// (axis 0 of `x` plus first row) and the element within the row; so the op is its own transpose,
    /// and recompute and accumulation see the same mask.
    Dropout {
        /// Probability of a zero.
        p: f32,
        /// Hash of the stable name of the node that first used the mask.
        stream: u64,
    },
    /// `(x, rng) → x · u`, `u` drawn evenly from `1 − noise` to `1 + noise` for each element, by the same rule as the
    /// mask of [`Op::Dropout`]; so it is its own transpose too.
    Jitter {
        /// The largest distance of a factor from 1.
        noise: f32,
        /// Hash of the stable name of the node that first used the factors.
        stream: u64,
    },

    // ---- matrix products -----------------------------------------------------------------------
    /// `(x, w[, b]) → x·wᵀ + b` with `w (out, in)`, or `x·w + b` with `w (in, out)` when `transposed`; `b` is
    /// `[out]`, or has the shape of the result, which may then take its place.
    Linear {
        /// Whether the weight is stored `(in, out)`, as GPT-2 does.
        transposed: bool,
        /// Whether there is a bias.
        bias: bool,
    },
    /// `(w, dy) → dx` of [`Op::Linear`].
    LinearGradInput {
        /// As in the forward op.
        transposed: bool,
    },
    /// `(x, dy) → dw` of [`Op::Linear`].
    LinearGradWeight {
        /// As in the forward op.
        transposed: bool,
    },
    /// `(a, b) → a·b` over the last two axes; the leading axes are equal.
    Matmul {
        /// Use `aᵀ`.
        transpose_a: bool,
        /// Use `bᵀ`.
        transpose_b: bool,
    },
    /// `(x[B,C,Y,X], w[O,C,h,w][, b[O]]) → [B,O,Y',X']`, cross-correlation.
    Conv2d {
        /// Stride and padding.
        conv: Conv,
        /// Whether there is a bias.
        bias: bool,
    },
    /// `(w, dy) → dx` of [`Op::Conv2d`].
    Conv2dGradInput {
        /// As in the forward op.
        conv: Conv,
        /// Extents `[Y, X]` of the image.
        image: [usize; 2],
    },
    /// `(x, dy) → dw` of [`Op::Conv2d`].
    Conv2dGradWeight {
        /// As in the forward op.
        conv: Conv,
        /// Extents `[h, w]` of the window.
        window: [usize; 2],
    },

    // ---- normalisation and reductions ----------------------------------------------------------
    /// `(x) → y` summed over `axes`, which disappear.
    Sum {
        /// The axes summed over.
        axes: Axes,
    },
    /// `(x) → exp(x − max) / Σ exp(x − max)` over the last axis.
    Softmax,
    /// `(y, dy) → y·(dy − Σ dy·y)` of [`Op::Softmax`].
    SoftmaxGrad,
    /// `(x, w, b) → (w·(x − mean)·rstd + b, mean[N], rstd[N])` over the last axis.
    LayerNorm {
        /// Added to the variance.
        epsilon: f32,
    },
    /// `(x, w, mean, rstd, dy) → dx` of [`Op::LayerNorm`].
    LayerNormGradInput,
    /// `(x, mean, rstd, dy) → dw` of [`Op::LayerNorm`].
    LayerNormGradWeight,
    /// `(x, w) → (w·x·rstd, rstd[N])`, `rstd = 1/√(mean(x²) + ε)` over the last axis.
    RmsNorm {
        /// Added to the mean square.
        epsilon: f32,
    },
    /// `(x, w, rstd, dy) → dx` of [`Op::RmsNorm`].
    RmsNormGradInput,
    /// `(x, rstd, dy) → dw` of [`Op::RmsNorm`].
    RmsNormGradWeight,
    /// `(c[out], p[r,out], b[out,r], g[r,r]) → 1/‖wᵢ + s·bᵢ·a‖` of each row `i` of a weight `w (out, in)` and a product
    /// `b·a`, of which it reads `c = ‖wᵢ‖²`, `p = a·wᵀ` and `g = a·aᵀ`: the root is that of
    /// `c + s·Σₖ bₖ·(2pₖ + s·Σₗ gₖₗ·bₗ)`, and the sum of weight and product never exists. The derivative reads the result
    /// as a constant.
    InverseNorm {
        /// The factor `s` of the product.
        scale: f32,
    },

    // ---- transformers --------------------------------------------------------------------------
    /// `(table[V,C], ids[…]) → table[ids]` of shape `[…,C]`.
    Embedding,
    /// `(ids[…], dy[…,C]) → dtable[V,C]` of [`Op::Embedding`].
    EmbeddingGrad {
        /// Rows `V` of the table.
        rows: usize,
    },
    /// `(x[B,T,H,D], frequencies[D/2][, positions[B,T]]) → y`: pair `(i, i + D/2)` of each head is
    /// rotated by `position · frequencies[i]`, or by its negative when `inverse` (the transpose).
    Rope {
        /// Rotate backwards.
        inverse: bool,
        /// Whether positions are given; else position `t` is `t`.
        positions: bool,
    },
    /// `(q[B,T,H,D], k[B,T,K,D], v[B,T,K,D][, doc_start[B,T]]) → (o[B,T,H,D], lse[B,H,T])`:
    /// `o = softmax(scale·q·kᵀ + mask)·v`, query head `h` reading key head `h·K/H`; `lse` is the
    /// logarithm of the softmax's divisor. The `T×T` matrix never exists.
    Attention {
        /// Which positions are visible.
        mask: Mask,
        /// Multiplies the scores.
        scale: f32,
    },
    /// `(q, k, v, o, lse, do[, doc_start]) → (dq, dk, dv)` of [`Op::Attention`].
    AttentionGrad {
        /// As in the forward op.
        mask: Mask,
        /// As in the forward op.
        scale: f32,
    },

    /// `(x[…,C], w₁ … wₙ[, b₁ … bₙ]) → y[…,C']`: all linear layers but the last on `x`, the activation of their
    /// results, and the last linear layer of that. Hidden values exist a tile of rows at a time.
    Mlp(Mlp),
    /// `(x, dy, w₁ … wₙ[, b₁ … bₙ]) → (dx[, dw₁ … dwₙ][, db₁ … dbₙ])` of [`Op::Mlp`], which recomputes hidden values,
    /// tile by tile.
    MlpGrad {
        /// As in the forward op.
        mlp: Mlp,
        /// Whether the gradients `dw` of the weights are wanted.
        weights: bool,
        /// Whether the gradients `db` of the biases are wanted.
        biases: bool,
    },

    // ---- routing -------------------------------------------------------------------------------
    // Routers stay f32 under every precision: rounding would make different scores equal.
    /// `(x) → (p, lse[N])`: `p` is the softmax of `x` over the last axis and `lse` the logarithm of its divisor
    /// `Σ exp(x)`, both f32.
    SoftmaxLse,
    /// `(p[, dp][, dlse]) → dx = p·(dp − Σ dp·p + dlse)` of [`Op::SoftmaxLse`].
    SoftmaxLseGrad {
        /// Whether `p` has a cotangent.
        softmax: bool,
        /// Whether `lse` has one.
        lse: bool,
    },
    /// `(scores[…,E][, p[…,E], bias[E]]) → (weights[…,k], indices[…,k])`: the columns of the `k` largest scores of each row, or
    /// of the `k` largest `p + bias`, and their scores. The largest comes first, and of equals the one with the lower index.
    /// It never runs twice: the routing of a micro-batch is kept.
    TopK {
        /// How many experts are chosen.
        k: usize,
        /// Whether the choice is by `p + bias`. Only the scores have a derivative.
        steered: bool,
    },
    /// `(indices[…,k], dweights[…,k]) → dscores[…,E]` of [`Op::TopK`]: zeros except for the chosen columns.
    TopKGrad {
        /// Columns `E` of the scores.
        columns: usize,
    },

    // ---- experts -------------------------------------------------------------------------------
    // A token is copied once for each of the `k` experts it goes to. Copies lie in `R` rows, sorted by expert, and
    // `R` follows from shapes alone. Copy `c` belongs to token `c / k`.
    /// `(indices[…,k]) → (places[…,k], slots[R], ranges[E,2])`: the row of each copy, −1 for one beyond its expert's
    /// capacity; the copy in each row, −1 for padding; and of each expert its first row and its number of copies.
    /// Copies of one expert keep their order.
    SortByExpert(Sorting),
    /// `(x[…,C], slots[R], places[…,k]) → y[R,C]`: each row is its token's row of `x`, and zeros are padding.
    Dispatch,
    /// `(h[R,C], slots[R], places[…,k][, weights[…,k]]) → y[…,C]`: the sum of a token's rows, each times its weight.
    /// Copies without a row add nothing.
    Combine {
        /// Whether there are weights; else each is 1.
        weighted: bool,
    },
    /// `(dy, slots, places, weights) → dh` of [`Op::Combine`] with weights.
    CombineGradRows,
    /// `(h, dy, places) → dweights[…,k]` of [`Op::Combine`], f32.
    CombineGradWeights,
    /// `(x[R,in], w[E,out,in], ranges[E,2]) → y[R,out]`: each expert's rows times its own weight, `x·wᵀ`. Rows of
    /// no expert are zeros and cost nothing.
    GroupedLinear,
    /// `(w, dy, ranges) → dx` of [`Op::GroupedLinear`].
    GroupedLinearGradInput,
    /// `(x, dy, ranges) → dw` of [`Op::GroupedLinear`].
    GroupedLinearGradWeight,

    // ---- balance of experts --------------------------------------------------------------------
    /// `(p[B,T,E], indices[B,T,k], marks[B,T]) → (P[B,E], c[B,E])`: for each sequence and expert the sum of the
    /// probabilities and the number of tokens sent there, over tokens whose mark is not `ignored`. Marks are the targets of
    /// tokens, or tell tokens from padding.
    ExpertLoad {
        /// Tokens with this mark are left out.
        ignored: i32,
    },
    /// `(indices[B,T,k], places[B,T,k], present[B,T]) → c[2,E]`: for each expert the number of copies sent there, and of those
    /// that have a row. Tokens that are not `present` (0) are padding, and are not counted.
    CountCopies {
        /// Number of experts, `E`.
        experts: usize,
    },
    /// `(counts[…,E], scale[]) → bias[E]`, in place (Wang et al. 2024): `bias += rate · sign(mean − c)`, where `c` is the sum of
    /// an expert's counts and `mean` that over all experts. Counts are whole numbers below 2²⁴, so the sign is exact.
    /// Nothing changes when `scale` is not finite.
    Steer {
        /// How far a bias moves in one step.
        rate: f32,
    },
    /// `(dP[B,E], marks[B,T]) → dp[B,T,E]` of [`Op::ExpertLoad`].
    ExpertLoadGrad {
        /// As in the forward op.
        ignored: i32,
    },
    /// `(scale[], targets[B,T], P₁, c₁ … P_L, c_L) → loss`. With `P`, `c` the sums over layers and `n = Σₑ c / k` the tokens
    /// of a sequence times `L`: `scale · Σ (n/L) · E·Σₑ (c/n)·(P/n)` over sequences. Where the whole micro-batch is one
    /// group, `P`, `c` and `n` are sums over its sequences too, and the factor is `scale` times its valid targets.
    BalanceLoss(Balance),
    /// `(dloss, scale, targets, c₁ … c_L) → dP[B,E]` of [`Op::BalanceLoss`], the same for every layer.
    BalanceLossGrad(Balance),
    /// `(scale[], targets, lse[N]) → scale · Σ lse²` over the tokens whose target is not `ignore_index`.
    RouterZLoss {
        /// Targets with this id carry no loss.
        ignore_index: i32,
    },
    /// `(dloss, scale, targets, lse) → dlse` of [`Op::RouterZLoss`].
    RouterZLossGrad {
        /// As in the forward op.
        ignore_index: i32,
    },

    // ---- quantised weights ---------------------------------------------------------------------
    /// `(codes[, scales …]) → w` of the shape and element type that [`Dequantise`] names: a frozen weight as its reader
    /// wants it, from the ranges that [`Quantised`] lists. Each product and sum is rounded to f32, the result once more.
    Dequantise(Dequantise),

    // ---- losses --------------------------------------------------------------------------------
    /// `(logits[N,V], targets[N], scale[]) → scale · Σ −log softmax(logits)[target]` over the targets
    /// that are not `ignore_index`.
    CrossEntropy {
        /// Targets with this id carry no loss.
        ignore_index: i32,
    },
    /// `(logits, targets, scale) → dlogits` of [`Op::CrossEntropy`].
    CrossEntropyGrad {
        /// As in the forward op.
        ignore_index: i32,
    },
    /// `(x[N,C], w[V,C], targets[N], scale[][, b[V]][, x₂[N,R], w₂[V,R]]) → loss`: [`Op::CrossEntropy`] of the logits
    /// `x·wᵀ + b + x₂·w₂ᵀ`, which exist a chunk of rows at a time.
    HeadLoss(Head),
    /// `(x, w, targets, scale[, b][, x₂, w₂]) → (loss, dx[, dx₂][, dw][, db])`: [`Op::HeadLoss`] forward and backward at
    /// once, chunk by chunk. It is the turning point of a training schedule and never runs twice. `w₂` is not trained.
    HeadLossGrad {
        /// As in the forward op.
        head: Head,
        /// Whether `dw` is wanted.
        weight: bool,
        /// Whether `db` is wanted.
        bias: bool,
    },
    /// `(x, w, targets, scale[, b][, x₂, w₂]) → scale · errors` of the logits of [`Op::HeadLoss`]: targets that are not the
    /// first of the largest logits of their row, or answers that hold such a target. A row whose logits are not all numbers
    /// below ∞ makes the result NaN.
    HeadErrors {
        /// As in [`Op::HeadLoss`]; ignored targets are no errors.
        head: Head,
        /// Rows of a sequence, where answers are counted: an answer is a run of targets of one sequence that are not ignored.
        answers: Option<usize>,
    },

    // ---- state ---------------------------------------------------------------------------------
    /// `(x) → s += x`, the sum rounded to the element type of `s`.
    Accumulate {
        /// Element type of `s`.
        to: DType,
    },
    /// `(x₁ … xₙ) → Σ Σ xᵢ²`.
    SumSquares,
    /// `(s₁ … sₙ) → (norm, scale)` with `norm = √Σsᵢ` of sums of squares, added in their order and in f64:
    /// `scale = min(1, max_norm / (norm + 10⁻⁶))`, 1 without a limit, and NaN when the norm is not finite, so that the update changes nothing.
    ClipScale {
        /// The largest norm allowed, if any.
        max_norm: Option<f32>,
    },
    /// `(grad, lr[], scale[][, rng]) → (p[, m])`, in place, each kept as [`Stored`] says:
    /// `g = scale·grad + decay·p; m = μm + g; p −= lr·m`, or `lr·(g + μm)` with Nesterov's step, or
    /// `lr·g` without momentum. Nothing changes when `scale` is not finite.
    Sgd(Sgd),
    /// `(grad, lr[], step[], scale[][, rng]) → (p, m, v)`, in place, each kept as [`Stored`] says:
    /// `g = scale·grad; m = β₁m + (1−β₁)g; v = β₂v + (1−β₂)g²;`
    /// `p −= lr·(m̂/(√v̂ + ε) + decay·p)` with `m̂, v̂` corrected for the bias of step `step ≥ 1`.
    /// Nothing changes when `scale` is not finite.
    AdamW(AdamW),
    /// `(grad, lr[], scale[][, rng]) → (p, m)`, in place, each kept as [`Stored`] says (Chen et al., 2023):
    /// `g = scale·grad; p −= lr·(sign(β₁m + (1−β₁)g) + decay·p); m = β₂m + (1−β₂)g`.
    /// Nothing changes when `scale` is not finite.
    Lion(Lion),
    /// `(grad, lr[], step[], scale[][, rng]) → (p, r, c)` or, of a vector, `→ (p, v)`, in place (Shazeer and Stern, 2018,
    /// without relative steps and without scaling by the parameter): `g = scale·grad; β = 1 − stepᵈ;` `r` and `c` are
    /// running means, at rate `β`, of `g² + ε` over the columns and over the rows; `u = g·√(mean(r)/(r·c))`, or `g/√v`;
    /// `p −= lr·(u/max(1, rms(u)/clip) + decay·p)`. Nothing changes when `scale` is not finite.
    Adafactor(Adafactor),
    /// `(grad, lr[], scale[][, rng]) → (p, m)` of matrices, in place, each kept as [`Stored`] says (Jordan, 2024):
    /// `g = scale·grad; m = μm + (1−μ)g; u = m`, or `μm + (1−μ)g` once more with Nesterov's step;
    /// `X = u/‖u‖`, then [`Muon::ROUNDS`] times `A = X·Xᵀ; X = aX + (bA + cA²)·X`, which makes it nearly orthogonal;
    /// `p −= lr·(0.2·√(longer side)·X + decay·p)`. Nothing changes when `scale` is not finite.
    Muon(Muon),
    /// `(grad, lr[], step[], scale[], rng[4]) → (p, m, v, n)` of matrices, in place (Zhu et al., 2024): `g = scale·grad`; `P` is
    /// a matrix of normal numbers over `√rank`, drawn anew every `gap` steps from the seed and the parameter's name; `R` has a
    /// line for each line of the longer side (channel), `g·Pᵀ` or `gᵀ·Pᵀ`. `m` and `v` are moments of `R` as of `AdamW`, `R̃ =
    /// m/(√v + ε)`; `s = ‖R̃‖/(‖R‖ + 10⁻⁸)` of each channel or of the whole; `u = s·g`, divided by `max(‖u‖/n, 1.01)/1.01`
    /// where `n`, the norm of the step before, is not 0; `n = ‖u‖`; `p ← (1 − lr·decay)·(p − lr·√scale·√(1−β₂ᵗ)/(1−β₁ᵗ)·u)`.
    /// Nothing changes when `scale[]` is not finite.
    Apollo(Apollo),

    // ---- a random subspace: weights as a function of few numbers ----------------------------------
    // Element `e` of a parameter belongs to coordinate `(e mod d + turn) mod d`, with a sign of its own. The turn is a random
    // number of the block `e / d`, so no block has two elements of one coordinate.
    /// `(w, v[d]) → w + P·v`: a parameter moved along coordinates.
    Subspace {
        /// Hash of the seed and of the parameter's name, from which turns and signs are drawn.
        stream: u64,
    },
    /// `(dw) → dv[d] = Pᵀ·dw` of [`Op::Subspace`].
    SubspaceGrad {
        /// As in the forward op.
        stream: u64,
        /// Number of coordinates.
        dimension: usize,
    },

    // ---- probes: losses beside the weights, in place of gradients ------------------------------
    // A probe is the i32 `[seed low, seed high, step, direction]`; with a name and an element it gives a normal number.
    /// `(w, probe[4], size[]) → w + size·z`: a parameter as one probe reads it.
    Perturb {
        /// Hash of the parameter's name.
        stream: u64,
    },
    /// `(y[…,C], ids[…], probe[4], size[]) → y + size·z[ids]`: [`Op::Perturb`] of the rows that an embedding has taken from
    /// its table, whose other rows nobody reads.
    PerturbRows {
        /// Hash of the table's name.
        stream: u64,
    },
    /// `(lr[], probe[4], losses[n,2][, rng]) → p`, in place, kept as [`Stored`] says: `p −= lr·(Σ factor_d·z_d + decay·p)`
    /// over the directions `d`, with the [factors](Estimate::factors) that follow from the losses of their probes. Nothing
    /// changes where there are none.
    ProbeStep(ProbeStep),

    // ---- ranks ---------------------------------------------------------------------------------
    /// An exchange between the ranks of a run, or a rank's own shard: see [`Collective`].
    Collective(Collective),
}

/// A group of ops that share files at every stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Elements are moved, copied or rounded.
    Movement,
    /// Each element of the result depends on the same element of the operands.
    Elementwise,
    /// Linear layers, batched products and convolutions.
    Products,
    /// Sums, softmax and norms.
    Norms,
    /// Embeddings, rotary positions and attention.
    Transformer,
    /// Feed-forward networks in tiles of rows.
    Network,
    /// Scores of experts and the choice among them.
    Routing,
    /// Copies of tokens sorted by expert, and products with each expert's weight.
    Experts,
    /// Losses of routers.
    Balance,
    /// Frozen weights in few bits.
    Quantised,
    /// Parameters that move in a random subspace.
    Subspace,
    /// Losses and the fused head.
    Losses,
    /// Gradient sums, their norm, the optimizers' updates, and parameters as probes read them.
    State,
    /// Exchanges between ranks.
    Ranks,
}

impl Op {
    /// The name used in text forms, in tables and by conformance cases.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Reshape { .. } => "reshape",
            Op::Transpose { .. } => "transpose",
            Op::Slice { .. } => "slice",
            Op::Pad { .. } => "pad",
            Op::Concat { .. } => "concat",
            Op::Cast { .. } => "cast",
            Op::Broadcast { .. } => "broadcast",
            Op::Add => "add",
            Op::Mul => "mul",
            Op::Scale { .. } => "scale",
            Op::Silu => "silu",
            Op::SiluGrad => "silu_grad",
            Op::Gelu(_) => "gelu",
            Op::GeluGrad(_) => "gelu_grad",
            Op::Tanh => "tanh",
            Op::TanhGrad => "tanh_grad",
            Op::Sigmoid => "sigmoid",
            Op::SigmoidGrad => "sigmoid_grad",
            Op::Swiglu => "swiglu",
            Op::SwigluGrad => "swiglu_grad",
            Op::Dropout { .. } => "dropout",
            Op::Jitter { .. } => "jitter",
            Op::Linear { .. } => "linear",
            Op::LinearGradInput { .. } => "linear_grad_input",
            Op::LinearGradWeight { .. } => "linear_grad_weight",
            Op::Matmul { .. } => "matmul",
            Op::Conv2d { .. } => "conv2d",
            Op::Conv2dGradInput { .. } => "conv2d_grad_input",
            Op::Conv2dGradWeight { .. } => "conv2d_grad_weight",
            Op::Sum { .. } => "sum",
            Op::Softmax => "softmax",
            Op::SoftmaxGrad => "softmax_grad",
            Op::LayerNorm { .. } => "layer_norm",
            Op::LayerNormGradInput => "layer_norm_grad_input",
            Op::LayerNormGradWeight => "layer_norm_grad_weight",
            Op::RmsNorm { .. } => "rms_norm",
            Op::RmsNormGradInput => "rms_norm_grad_input",
            Op::RmsNormGradWeight => "rms_norm_grad_weight",
            Op::InverseNorm { .. } => "inverse_norm",
            Op::Embedding => "embedding",
            Op::EmbeddingGrad { .. } => "embedding_grad",
            Op::Rope { .. } => "rope",
            Op::Attention { .. } => "attention",
            Op::AttentionGrad { .. } => "attention_grad",
            Op::Mlp(_) => "mlp",
            Op::MlpGrad { .. } => "mlp_grad",
            Op::SoftmaxLse => "softmax_lse",
            Op::SoftmaxLseGrad { .. } => "softmax_lse_grad",
            Op::TopK { .. } => "top_k",
            Op::TopKGrad { .. } => "top_k_grad",
            Op::SortByExpert(_) => "sort_by_expert",
            Op::Dispatch => "dispatch",
            Op::Combine { .. } => "combine",
            Op::CombineGradRows => "combine_grad_rows",
            Op::CombineGradWeights => "combine_grad_weights",
            Op::GroupedLinear => "grouped_linear",
            Op::GroupedLinearGradInput => "grouped_linear_grad_input",
            Op::GroupedLinearGradWeight => "grouped_linear_grad_weight",
            Op::ExpertLoad { .. } => "expert_load",
            Op::CountCopies { .. } => "count_copies",
            Op::Steer { .. } => "steer",
            Op::ExpertLoadGrad { .. } => "expert_load_grad",
            Op::BalanceLoss(_) => "balance_loss",
            Op::BalanceLossGrad(_) => "balance_loss_grad",
            Op::RouterZLoss { .. } => "router_z_loss",
            Op::RouterZLossGrad { .. } => "router_z_loss_grad",
            Op::Dequantise(_) => "dequantise",
            Op::CrossEntropy { .. } => "cross_entropy",
            Op::CrossEntropyGrad { .. } => "cross_entropy_grad",
            Op::HeadLoss(_) => "head_loss",
            Op::HeadLossGrad { .. } => "head_loss_grad",
            Op::HeadErrors { .. } => "head_errors",
            Op::Accumulate { .. } => "accumulate",
            Op::SumSquares => "sum_squares",
            Op::ClipScale { .. } => "clip_scale",
            Op::Sgd(_) => "sgd",
            Op::AdamW(_) => "adamw",
            Op::Collective(collective) => collective.name(),
            Op::Lion(_) => "lion",
            Op::Adafactor(_) => "adafactor",
            Op::Muon(_) => "muon",
            Op::Apollo(_) => "apollo",
            Op::Subspace { .. } => "subspace",
            Op::SubspaceGrad { .. } => "subspace_grad",
            Op::Perturb { .. } => "perturb",
            Op::PerturbRows { .. } => "perturb_rows",
            Op::ProbeStep(_) => "probe_step",
        }
    }

    /// The family: ops that are called, checked, differentiated and computed in the same files.
    pub fn family(&self) -> Family {
        match self {
            Op::Reshape { .. }
            | Op::Transpose { .. }
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::Concat { .. }
            | Op::Cast { .. }
            | Op::Broadcast { .. } => Family::Movement,
            Op::Add
            | Op::Mul
            | Op::Scale { .. }
            | Op::Silu
            | Op::SiluGrad
            | Op::Gelu(_)
            | Op::GeluGrad(_)
            | Op::Tanh
            | Op::TanhGrad
            | Op::Sigmoid
            | Op::SigmoidGrad
            | Op::Swiglu
            | Op::SwigluGrad
            | Op::Dropout { .. }
            | Op::Jitter { .. } => Family::Elementwise,
            Op::Linear { .. }
            | Op::LinearGradInput { .. }
            | Op::LinearGradWeight { .. }
            | Op::Matmul { .. }
            | Op::Conv2d { .. }
            | Op::Conv2dGradInput { .. }
            | Op::Conv2dGradWeight { .. } => Family::Products,
            Op::Sum { .. }
            | Op::Softmax
            | Op::SoftmaxGrad
            | Op::LayerNorm { .. }
            | Op::LayerNormGradInput
            | Op::LayerNormGradWeight
            | Op::RmsNorm { .. }
            | Op::RmsNormGradInput
            | Op::RmsNormGradWeight
            | Op::InverseNorm { .. } => Family::Norms,
            Op::Embedding
            | Op::EmbeddingGrad { .. }
            | Op::Rope { .. }
            | Op::Attention { .. }
            | Op::AttentionGrad { .. } => Family::Transformer,
            Op::Mlp(_) | Op::MlpGrad { .. } => Family::Network,
            Op::SoftmaxLse | Op::SoftmaxLseGrad { .. } | Op::TopK { .. } | Op::TopKGrad { .. } => {
                Family::Routing
            }
            Op::SortByExpert(_)
            | Op::Dispatch
            | Op::Combine { .. }
            | Op::CombineGradRows
            | Op::CombineGradWeights
            | Op::GroupedLinear
            | Op::GroupedLinearGradInput
            | Op::GroupedLinearGradWeight => Family::Experts,
            Op::ExpertLoad { .. }
            | Op::CountCopies { .. }
            | Op::Steer { .. }
            | Op::ExpertLoadGrad { .. }
            | Op::BalanceLoss(_)
            | Op::BalanceLossGrad(_)
            | Op::RouterZLoss { .. }
            | Op::RouterZLossGrad { .. } => Family::Balance,
            Op::Dequantise(_) => Family::Quantised,
            Op::Subspace { .. } | Op::SubspaceGrad { .. } => Family::Subspace,
            Op::CrossEntropy { .. }
            | Op::CrossEntropyGrad { .. }
            | Op::HeadLoss(_)
            | Op::HeadLossGrad { .. }
            | Op::HeadErrors { .. } => Family::Losses,
            Op::Accumulate { .. }
            | Op::SumSquares
            | Op::ClipScale { .. }
            | Op::Sgd(_)
            | Op::AdamW(_)
            | Op::Lion(_)
            | Op::Adafactor(_)
            | Op::Muon(_)
            | Op::Apollo(_)
            | Op::Perturb { .. }
            | Op::PerturbRows { .. }
            | Op::ProbeStep(_) => Family::State,
            Op::Collective(_) => Family::Ranks,
        }
    }

    /// Inputs whose bytes output `output` may take over, when the input dies at this node and both
    /// have the same size. A kernel reads each element of such an input before it writes that place.
    pub fn may_overwrite(&self, output: usize) -> &'static [usize] {
        match (self, output) {
            (Op::Add | Op::Mul | Op::Swiglu | Op::MlpGrad { .. }, 0) => &[0, 1],
            (
                Op::Scale { .. }
                | Op::Silu
                | Op::Gelu(_)
                | Op::Tanh
                | Op::Sigmoid
                | Op::Dropout { .. }
                | Op::Jitter { .. }
                | Op::Softmax
                | Op::Rope { .. }
                | Op::Mlp(_)
                | Op::CrossEntropyGrad { .. }
                | Op::Collective(Collective::AllReduce { .. })
                | Op::PerturbRows { .. },
                0,
            ) => &[0],
            (Op::SiluGrad | Op::GeluGrad(_) | Op::TanhGrad | Op::SigmoidGrad | Op::SoftmaxGrad, 0) => &[1, 0],
            (Op::SwigluGrad, 0) => &[0, 2],
            (Op::SwigluGrad, 1) => &[1, 2],
            (Op::Linear { bias: true, .. }, 0) => &[2],
            _ => &[],
        }
    }

    /// Whether output `output` can be added to the contents of its place, which is how weight gradients are summed in
    /// place.
    pub fn can_accumulate(&self, output: usize) -> bool {
        match self {
            Op::LinearGradWeight { .. }
            | Op::Conv2dGradWeight { .. }
            | Op::Sum { .. }
            | Op::LayerNormGradWeight
            | Op::RmsNormGradWeight
            | Op::EmbeddingGrad { .. }
            | Op::SubspaceGrad { .. }
            | Op::GroupedLinearGradWeight
            | Op::Accumulate { .. } => output == 0,
            Op::MlpGrad { .. } => output >= 1,
            Op::HeadLossGrad { head, .. } => output >= 2 + usize::from(head.second),
            _ => false,
        }
    }

    /// Whether output `output` is stored as f32 or bf16 as the graph declares, whatever the operands are: sums of
    /// gradients, rows of a table, and moved parameters.
    pub fn stores_either(&self, output: usize) -> bool {
        self.can_accumulate(output) || matches!(self, Op::Embedding | Op::Subspace { .. })
    }

    /// Whether output `output` may be a sum in bf16 that the op itself adds to: its own sum is f32 and whole before it is
    /// rounded. An op that goes over rows in several passes would round once a pass.
    pub fn sums_in_half(&self, output: usize) -> bool {
        let whole = matches!(
            self,
            Op::LinearGradWeight { .. }
                | Op::GroupedLinearGradWeight
                | Op::Sum { .. }
                | Op::LayerNormGradWeight
                | Op::RmsNormGradWeight
        );
        whole && output == 0
    }

    /// Whether the result is `x`'s bytes under another shape.
    pub fn is_view(&self) -> bool {
        matches!(self, Op::Reshape { .. })
    }

    /// Whether the node must never run a second time in one micro-batch, whatever the plan. A weight may be gathered again:
    /// all ranks do so at the same place.
    pub fn is_once(&self) -> bool {
        let gathers = matches!(self, Op::Collective(Collective::AllGather { .. }));
        let once = matches!(
            self,
            Op::TopK { .. }
                | Op::HeadLossGrad { .. }
                | Op::Accumulate { .. }
                | Op::SumSquares
                | Op::ClipScale { .. }
                | Op::Collective(_)
        );
        (once && !gathers) || self.updates()
    }

    /// Whether the loss may depend on a parameter through output `output`. Statistics beside a result have no derivative
    /// of their own: the rule of the result accounts for them.
    pub fn is_differentiable(&self, output: usize) -> bool {
        !self.detaches() && (output == 0 || matches!(self, Op::SoftmaxLse))
    }

    /// Whether the derivative reads the result as a constant, though it depends on parameters.
    pub fn detaches(&self) -> bool {
        matches!(self, Op::InverseNorm { .. })
    }

    /// The exchange between ranks, if the op is one.
    pub fn collective(&self) -> Option<Collective> {
        match self {
            Op::Collective(Collective::OwnShard { .. }) => None,
            Op::Collective(collective) => Some(*collective),
            _ => None,
        }
    }

    /// The same op with every stream of random numbers set to 0. Which numbers an op draws bears neither on its time nor on
    /// a plan, so ops are compared without.
    #[must_use]
    pub fn without_stream(&self) -> Op {
        let mut op = self.clone();
        match &mut op {
            Op::Dropout { stream, .. }
            | Op::Jitter { stream, .. }
            | Op::Subspace { stream }
            | Op::SubspaceGrad { stream, .. }
            | Op::Perturb { stream }
            | Op::PerturbRows { stream } => *stream = 0,
            Op::Sgd(Sgd { stored, .. })
            | Op::AdamW(AdamW { stored, .. })
            | Op::Lion(Lion { stored, .. })
            | Op::Adafactor(Adafactor { stored, .. })
            | Op::Muon(Muon { stored, .. }) => *stored = stored.without_stream(),
            Op::Apollo(apollo) => *apollo = apollo.without_stream(),
            Op::ProbeStep(step) => *step = step.without_stream(),
            _ => {}
        }
        op
    }

    /// Whether the op reads its outputs before it writes them, as an optimizer does with its state.
    pub fn updates(&self) -> bool {
        matches!(
            self,
            Op::Sgd(_)
                | Op::AdamW(_)
                | Op::Lion(_)
                | Op::Adafactor(_)
                | Op::Muon(_)
                | Op::Apollo(_)
                | Op::ProbeStep(_)
                | Op::Steer { .. }
        )
    }

    /// Whether input `input` may be stored as bf16 where the op's arithmetic is f32: a weight that kernels
    /// read in pieces, each of which is widened as it is read.
    pub fn reads_half(&self, input: usize) -> bool {
        match self {
            Op::Linear { .. }
            | Op::GroupedLinear
            | Op::HeadLoss(_)
            | Op::HeadLossGrad { .. }
            | Op::HeadErrors { .. } => input == 1,
            Op::LinearGradInput { .. } | Op::GroupedLinearGradInput | Op::Embedding | Op::Subspace { .. } => {
                input == 0
            }
            Op::Mlp(mlp) => (1..=mlp.products()).contains(&input),
            Op::MlpGrad { mlp, .. } => (2..2 + mlp.products()).contains(&input),
            _ => false,
        }
    }

    /// Whether float input `input` is f32 under every precision: statistics, scales and frequencies, and small weights
    /// whose rounding would cost more accuracy than their bytes are worth. The bias of a linear layer may also be a
    /// value of the result's shape, which is not meant here.
    pub fn reads_whole(&self, input: usize) -> bool {
        match self {
            Op::LayerNorm { .. } | Op::LayerNormGradWeight | Op::RmsNormGradInput => (1..=2).contains(&input),
            Op::LayerNormGradInput => (1..=3).contains(&input),
            Op::RmsNorm { .. } | Op::RmsNormGradWeight | Op::Rope { .. } | Op::Subspace { .. } => input == 1,
            Op::Conv2d { .. } => input >= 1,
            Op::Conv2dGradInput { .. } => input == 0,
            Op::AttentionGrad { .. } => input == 4,
            Op::SoftmaxLseGrad { .. } | Op::TopK { .. } | Op::TopKGrad { .. } | Op::SortByExpert(_) => true,
            _ if self.family() == Family::Balance => true,
            Op::Dequantise(_) | Op::InverseNorm { .. } => true,
            Op::Combine { .. } | Op::CombineGradRows => input == 3,
            Op::Mlp(mlp) => input > mlp.products(),
            Op::MlpGrad { mlp, .. } => input >= 2 + mlp.products(),
            Op::Linear { .. } | Op::CrossEntropy { .. } | Op::CrossEntropyGrad { .. } => input == 2,
            Op::HeadLoss(head) | Op::HeadLossGrad { head, .. } | Op::HeadErrors { head, .. } => {
                input == 3 || head.bias && input == 4 || head.second && input == head.second_at() + 1
            }
            _ => false,
        }
    }

    /// Whether the result is so costly that `selective` recompute keeps it.
    pub fn is_matmul(&self) -> bool {
        matches!(
            self,
            Op::Linear { .. }
                | Op::Matmul { .. }
                | Op::Conv2d { .. }
                | Op::Attention { .. }
                | Op::Mlp(_)
                | Op::GroupedLinear
                | Op::HeadLoss(_)
                | Op::HeadErrors { .. }
        )
    }
}
