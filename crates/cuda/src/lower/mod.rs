//! From actions to launches: the work of a GPU as plain data.
//!
//! [`lower`] turns one op on operands with places into [`StreamStep`]s. [`needs`] is the same walk without places,
//! which records how much scratch it would take, so the two cannot disagree. Everything that could affect the bits of a
//! result (chunks, tiles, partial sums) follows from shapes here, never from the free memory.
//!
//! Absent on purpose: addresses, streams and every call of a driver. This module needs no GPU to be tested.
#![allow(clippy::unnecessary_wraps, reason = "all lowerings have one signature")]

mod apollo;
mod attention;
mod balance;
mod conv;
mod elementwise;
mod embedding;
mod exchange;
mod experts;
mod footprint;
mod grouped;
mod launch;
mod library;
mod losses;
mod lowering;
mod matrices;
mod mlp;
mod movement;
mod norms;
mod place;
mod probes;
mod product;
mod quantised;
mod routing;
mod schedule;
mod subspace;
mod sums;
mod updates;

use plimsoll_exec::ExecError;
use plimsoll_graph::{Op, Type};

pub use footprint::{Access, Touch, check, touches};
pub use launch::{Arg, Check, Launch, StreamStep};
pub use library::{
    Addend, Attention, AttentionShape, AttentionTensor, Library, NoLibrary, Product, RankExchange, Signature,
};
pub(crate) use lowering::kind;
use lowering::{Call, Lowering};
pub use lowering::{DocumentForm, Limits, Operand};
pub use place::Place;
pub use schedule::LoweredSchedule;

/// Bytes that offsets in scratch are multiples of, and that kernels and libraries expect of every operand.
pub const ALIGNMENT: u64 = 256;

/// One op and where its operands lie.
#[derive(Clone, Debug)]
pub struct PlacedOp<'a> {
    /// The op.
    pub op: &'a Op,
    /// The op's inputs.
    pub inputs: &'a [Operand],
    /// The op's outputs.
    pub outputs: &'a [Operand],
    /// First byte of the op's scratch.
    pub scratch: Place,
}

/// The steps of one op.
///
/// # Errors
///
/// When there is no kernel for these element types or sizes.
pub fn lower(work: &PlacedOp, library: &dyn Library, limits: Limits) -> Result<Vec<StreamStep>, ExecError> {
    let mut lowering = Lowering::new(library, limits, work.scratch);
    emit(&mut lowering, &Call { op: work.op, inputs: work.inputs, outputs: work.outputs })?;
    Ok(lowering.steps)
}

/// Scratch and steps of one op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Bytes of scratch.
    pub scratch: u64,
    /// Steps that a stream is given.
    pub steps: usize,
}

/// Scratch and steps of one op, found without places.
///
/// # Errors
///
/// As for [`lower`].
pub fn needs(
    op: &Op,
    inputs: &[Type],
    outputs: &[Type],
    library: &dyn Library,
    limits: Limits,
) -> Result<Needs, ExecError> {
    let nowhere = |&ty: &Type| Operand { place: Place(0), ty, accumulate: false };
    let (inputs, outputs): (Vec<_>, Vec<_>) =
        (inputs.iter().map(nowhere).collect(), outputs.iter().map(nowhere).collect());
    let form = |documents| {
        let mut lowering = Lowering::new(library, Limits { documents, ..limits }, Place(0));
        emit(&mut lowering, &Call { op, inputs: &inputs, outputs: &outputs })?;
        Ok(Needs { scratch: lowering.most, steps: lowering.steps.len() })
    };
    let masked = form(DocumentForm::Masked)?;
    if !matches!(op, Op::Attention { .. } | Op::AttentionGrad { .. }) {
        return Ok(masked);
    }
    // Which of the two forms runs is decided by the data of each micro-batch.
    let ragged = form(DocumentForm::Ragged)?;
    Ok(Needs { scratch: masked.scratch.max(ragged.scratch), steps: masked.steps.max(ragged.steps) })
}

/// One arm per op, in the order of `op.rs`.
fn emit(to: &mut Lowering, call: &Call) -> Result<(), ExecError> {
    match call.op {
        Op::Reshape { .. } => movement::reshape(to, call),
        Op::Transpose { permutation } => movement::transpose(to, call, permutation),
        Op::Slice { axis, start, .. } => movement::slice(to, call, *axis, *start),
        Op::Pad { axis, start, .. } => movement::pad(to, call, *axis, *start),
        Op::Concat { axis } => movement::concat(to, call, *axis),
        Op::Cast { .. } => elementwise::cast(to, call),
        Op::Broadcast { axes, .. } => movement::broadcast(to, call, *axes),
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
        | Op::SwigluGrad => elementwise::elementwise(to, call),
        Op::Dropout { p, stream } => elementwise::dropout(to, call, *p, *stream),
        Op::Jitter { noise, stream } => elementwise::jitter(to, call, *noise, *stream),
        Op::Linear { transposed, bias } => product::linear(to, call, *transposed, *bias),
        Op::LinearGradInput { transposed } => product::linear_grad_input(to, call, *transposed),
        Op::LinearGradWeight { transposed } => product::linear_grad_weight(to, call, *transposed),
        Op::Matmul { transpose_a, transpose_b } => product::matmul(to, call, *transpose_a, *transpose_b),
        Op::Conv2d { conv, bias } => conv::conv2d(to, call, *conv, *bias),
        Op::Conv2dGradInput { conv, .. } => conv::conv2d_grad_input(to, call, *conv),
        Op::Conv2dGradWeight { conv, .. } => conv::conv2d_grad_weight(to, call, *conv),
        Op::Sum { axes } => sums::sum(to, call, *axes),
        Op::Softmax | Op::SoftmaxGrad => losses::softmax(to, call),
        Op::LayerNorm { epsilon } => norms::layer_norm(to, call, *epsilon),
        Op::RmsNorm { epsilon } => norms::rms_norm(to, call, *epsilon),
        Op::LayerNormGradInput | Op::RmsNormGradInput => norms::grad_input(to, call),
        Op::LayerNormGradWeight | Op::RmsNormGradWeight => norms::grad_weight(to, call),
        Op::InverseNorm { scale } => norms::inverse_norm(to, call, *scale),
        Op::Embedding => embedding::embedding(to, call),
        Op::EmbeddingGrad { rows } => embedding::embedding_grad(to, call, *rows),
        Op::Rope { inverse, positions } => attention::rope(to, call, *inverse, *positions),
        Op::Attention { mask, scale } => attention::attention(to, call, *mask, *scale),
        Op::AttentionGrad { mask, scale } => attention::attention_grad(to, call, *mask, *scale),
        Op::Mlp(form) => mlp::mlp(to, call, *form),
        Op::MlpGrad { mlp: form, weights, biases } => mlp::mlp_grad(to, call, *form, *weights, *biases),
        Op::SoftmaxLse => routing::softmax_lse(to, call),
        Op::SoftmaxLseGrad { softmax, lse } => routing::softmax_lse_grad(to, call, *softmax, *lse),
        Op::TopK { k, steered } => routing::top_k(to, call, *k, *steered),
        Op::TopKGrad { columns } => routing::top_k_grad(to, call, *columns),
        Op::SortByExpert(sorting) => experts::sort(to, call, *sorting),
        Op::Dispatch | Op::CombineGradRows => experts::dispatch(to, call),
        Op::Combine { .. } => experts::combine(to, call),
        Op::CombineGradWeights => experts::combine_grad_weights(to, call),
        Op::GroupedLinear => grouped::linear(to, call),
        Op::GroupedLinearGradInput => grouped::linear_grad_input(to, call),
        Op::GroupedLinearGradWeight => grouped::linear_grad_weight(to, call),
        Op::ExpertLoad { ignored } => balance::load(to, call, *ignored),
        Op::CountCopies { experts } => balance::count(to, call, *experts),
        Op::Steer { rate } => balance::steer(to, call, *rate),
        Op::ExpertLoadGrad { ignored } => balance::load_grad(to, call, *ignored),
        Op::BalanceLoss(balance) => balance::loss(to, call, *balance),
        Op::BalanceLossGrad(balance) => balance::loss_grad(to, call, *balance),
        Op::RouterZLoss { ignore_index } => balance::z_loss(to, call, *ignore_index),
        Op::RouterZLossGrad { ignore_index } => balance::z_loss_grad(to, call, *ignore_index),
        Op::Subspace { stream } => subspace::subspace(to, call, *stream),
        Op::SubspaceGrad { stream, dimension } => subspace::subspace_grad(to, call, *stream, *dimension),
        Op::Dequantise(of) => quantised::dequantise(to, call, *of),
        Op::CrossEntropy { ignore_index } => losses::cross_entropy(to, call, *ignore_index),
        Op::CrossEntropyGrad { ignore_index } => losses::cross_entropy_grad(to, call, *ignore_index),
        Op::HeadLoss(head) => losses::head_loss(to, call, *head),
        Op::HeadLossGrad { head, weight, bias } => losses::head_loss_grad(to, call, *head, *weight, *bias),
        Op::HeadErrors { head, answers } => losses::head_errors(to, call, *head, *answers),
        Op::Accumulate { .. } => elementwise::accumulate(to, call),
        Op::SumSquares => updates::sum_squares(to, call),
        Op::ClipScale { max_norm } => updates::clip_scale(to, call, *max_norm),
        Op::Sgd(rates) => updates::sgd(to, call, *rates),
        Op::AdamW(rates) => updates::adamw(to, call, *rates),
        Op::Collective(collective) => {
            exchange::exchange(to, call, *collective);
            Ok(())
        }
        Op::Lion(rates) => updates::lion(to, call, *rates),
        Op::Adafactor(rates) => matrices::adafactor(to, call, *rates),
        Op::Muon(rates) => matrices::muon(to, call, *rates),
        Op::Apollo(rates) => apollo::apollo(to, call, *rates),
        Op::Perturb { stream } => probes::perturb(to, call, *stream),
        Op::PerturbRows { stream } => probes::perturb_rows(to, call, *stream),
        Op::ProbeStep(step) => updates::probe_step(to, call, *step),
    }
}
