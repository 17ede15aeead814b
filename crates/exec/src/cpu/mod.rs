//! The CPU device's fast kernels: one function per op, beside the size of the scratch it needs.
//!
//! Each is judged against the reference kernel of the same name. None allocates.

mod activation;
mod attention;
mod attention_grad;
mod blocks;
mod call;
mod cast;
mod conv;
mod device;
mod disk;
mod disk_ranges;
mod disk_speed;
mod dropout;
mod elementwise;
mod embedding;
mod exp;
mod head;
mod lanes;
mod linear;
mod matmul;
mod microkernel;
mod mlp;
mod movement;
mod norms;
mod pack;
mod pieces;
mod pool;
mod reduce;
mod room;
mod rope;
mod simd;
mod softmax;
mod split;
mod stored;
mod sums;
mod tile;
#[cfg(test)]
mod trial;
mod updates;
mod visibility;

use plimsoll_graph::{Op, Type};
use plimsoll_plan::Workspace;

use crate::ExecError;
pub use call::{Call, Operand, Scratch};
pub use device::CpuDevice;
pub use disk::{BLOCK, DiskTier, OUTSIDE_BYTES};
pub use disk_speed::{DiskSpeed, disk_room, measure_disk};
pub use pool::Pool;
pub use room::free_disk_bytes;

/// Runs one op.
///
/// # Errors
///
/// When the data is bad or there is no kernel for these element types.
///
/// # Safety
///
/// Every operand and the workspace are aligned, valid for their whole length for as long as the call runs,
/// and touched by nobody else meanwhile; inputs are initialised; the bytes of an output overlap those of no
/// other operand, except that they may be exactly those of an input which the op may overwrite.
#[allow(unsafe_code, reason = "kernels trust their operands; see Safety")]
pub unsafe fn run(call: &Call) -> Result<(), ExecError> {
    match call.op {
        Op::Reshape { .. } => movement::reshape(call),
        Op::Transpose { permutation } => movement::transpose(call, permutation),
        Op::Slice { axis, start, len } => movement::slice(call, *axis, *start, *len),
        Op::Pad { axis, start, len } => movement::pad(call, *axis, *start, *len),
        Op::Concat { axis } => movement::concat(call, *axis),
        Op::Cast { .. } => cast::cast(call),
        Op::Broadcast { axes, .. } => movement::broadcast(call, *axes),
        Op::Add => elementwise::add(call),
        Op::Mul => elementwise::mul(call),
        Op::Scale { factor } => elementwise::scale(call, *factor),
        Op::Silu => elementwise::silu(call),
        Op::SiluGrad => elementwise::silu_grad(call),
        Op::Gelu(form) => elementwise::gelu(call, *form),
        Op::GeluGrad(form) => elementwise::gelu_grad(call, *form),
        Op::Tanh => elementwise::tanh(call),
        Op::TanhGrad => elementwise::tanh_grad(call),
        Op::Swiglu => elementwise::swiglu(call),
        Op::SwigluGrad => elementwise::swiglu_grad(call),
        Op::Dropout { p, stream } => dropout::dropout(call, *p, *stream),
        Op::Linear { transposed, .. } => linear::linear(call, *transposed),
        Op::LinearGradInput { transposed } => linear::linear_grad_input(call, *transposed),
        Op::LinearGradWeight { transposed } => linear::linear_grad_weight(call, *transposed),
        Op::Matmul { transpose_a, transpose_b } => linear::matmul(call, *transpose_a, *transpose_b),
        Op::Conv2d { conv, .. } => conv::conv2d(call, *conv),
        Op::Conv2dGradInput { conv, .. } => conv::conv2d_grad_input(call, *conv),
        Op::Conv2dGradWeight { conv, .. } => conv::conv2d_grad_weight(call, *conv),
        Op::Sum { axes } => sums::sum(call, *axes),
        Op::Softmax => softmax::softmax(call),
        Op::SoftmaxGrad => softmax::softmax_grad(call),
        Op::LayerNorm { epsilon } => norms::layer_norm(call, *epsilon),
        Op::LayerNormGradInput => norms::layer_norm_grad_input(call),
        Op::LayerNormGradWeight => norms::layer_norm_grad_weight(call),
        Op::RmsNorm { epsilon } => norms::rms_norm(call, *epsilon),
        Op::RmsNormGradInput => norms::rms_norm_grad_input(call),
        Op::RmsNormGradWeight => norms::rms_norm_grad_weight(call),
        Op::Embedding => embedding::embedding(call),
        Op::EmbeddingGrad { .. } => embedding::embedding_grad(call),
        Op::Rope { inverse, positions } => rope::rope(call, *inverse, *positions),
        Op::Attention { mask, scale } => attention::attention(call, *mask, *scale),
        Op::AttentionGrad { mask, scale } => attention_grad::attention_grad(call, *mask, *scale),
        Op::Mlp(form) => mlp::mlp(call, *form),
        Op::MlpGrad { mlp: form, weights, biases } => mlp::mlp_grad(call, *form, *weights, *biases),
        Op::CrossEntropy { ignore_index } => softmax::cross_entropy(call, *ignore_index),
        Op::CrossEntropyGrad { ignore_index } => softmax::cross_entropy_grad(call, *ignore_index),
        Op::HeadLoss(head) => head::head_loss(call, *head),
        Op::HeadLossGrad { head, weight, bias } => head::head_loss_grad(call, *head, *weight, *bias),
        Op::Accumulate { .. } => elementwise::accumulate(call),
        Op::SumSquares => {
            updates::sum_squares(call);
            Ok(())
        }
        Op::ClipScale { max_norm } => updates::clip_scale(call, *max_norm),
        Op::Sgd(rates) => {
            updates::sgd(call, *rates);
            Ok(())
        }
        Op::AdamW(rates) => {
            updates::adamw(call, *rates);
            Ok(())
        }
    }
}

/// Scratch memory of one op on a pool of `threads`. Ops that are not listed need none.
pub fn workspace(op: &Op, inputs: &[Type], outputs: &[Type], threads: usize) -> Workspace {
    match op {
        Op::Linear { .. } => linear::linear_workspace(inputs, outputs),
        Op::LinearGradInput { .. } => linear::linear_grad_input_workspace(inputs, outputs),
        Op::LinearGradWeight { .. } => linear::linear_grad_weight_workspace(inputs, outputs),
        Op::Matmul { transpose_a, .. } => linear::matmul_workspace(inputs, outputs, threads, *transpose_a),
        Op::Conv2d { conv, .. } => conv::conv2d_workspace(inputs, outputs, *conv),
        Op::Conv2dGradInput { conv, .. } => conv::conv2d_grad_input_workspace(inputs, outputs, *conv),
        Op::Conv2dGradWeight { conv, .. } => conv::conv2d_grad_weight_workspace(inputs, outputs, *conv),
        Op::Sum { .. } => sums::sum_workspace(op, inputs),
        Op::Attention { .. } => attention::attention_workspace(inputs, threads),
        Op::AttentionGrad { .. } => attention_grad::attention_grad_workspace(inputs, threads),
        Op::Mlp(form) => mlp::mlp_workspace(*form, inputs),
        Op::MlpGrad { mlp: form, .. } => mlp::mlp_grad_workspace(*form, inputs),
        Op::CrossEntropy { .. } => softmax::cross_entropy_workspace(inputs),
        Op::HeadLoss(_) | Op::HeadLossGrad { .. } => head::head_workspace(inputs),
        Op::SumSquares => updates::sum_squares_workspace(inputs),
        _ => Workspace::default(),
    }
}
