//! The CPU device's fast kernels: one function per op, beside the size of the scratch it needs.
//!
//! Each is judged against the reference kernel of the same name. None allocates.

mod activation;
#[cfg(test)]
mod bench;
mod call;
mod conv;
mod device;
mod dropout;
mod elementwise;
mod exp;
mod head;
mod lanes;
mod linear;
mod matmul;
mod microkernel;
mod pack;
mod pieces;
mod simd;
mod split;
#[cfg(test)]
mod trial;

use plimsoll_graph::{Op, Type};
use plimsoll_plan::Workspace;

use crate::ExecError;
pub use call::{Call, Operand};
pub use device::CpuDevice;

/// Runs one op.
///
/// # Errors
///
/// When the data is bad or there is no kernel for these element types.
pub fn run(call: &Call) -> Result<(), ExecError> {
    match call.op {
        Op::Linear { transposed, .. } => linear::linear(call, *transposed),
        Op::LinearGradInput { transposed } => linear::linear_grad_input(call, *transposed),
        Op::LinearGradWeight { transposed } => linear::linear_grad_weight(call, *transposed),
        Op::Matmul { transpose_a, transpose_b } => linear::matmul(call, *transpose_a, *transpose_b),
        Op::Conv2d { conv, .. } => conv::conv2d(call, *conv),
        Op::Conv2dGradInput { conv, .. } => conv::conv2d_grad_input(call, *conv),
        Op::Conv2dGradWeight { conv, .. } => conv::conv2d_grad_weight(call, *conv),
        Op::HeadLoss(head) => head::head_loss(call, *head),
        Op::HeadLossGrad { head, weight, bias } => head::head_loss_grad(call, *head, *weight, *bias),
        Op::Add => elementwise::add(call),
        Op::Mul => elementwise::mul(call),
        Op::Scale { factor } => elementwise::scale(call, *factor),
        Op::Silu => elementwise::silu(call),
        Op::SiluGrad => elementwise::silu_grad(call),
        Op::Gelu(form) => elementwise::gelu(call, *form),
        Op::GeluGrad(form) => elementwise::gelu_grad(call, *form),
        Op::Swiglu => elementwise::swiglu(call),
        Op::SwigluGrad => elementwise::swiglu_grad(call),
        Op::Dropout { p, stream } => dropout::dropout(call, *p, *stream),
        Op::Accumulate => elementwise::accumulate(call),
        op => Err(ExecError::Unsupported(format!("the CPU has no kernel for {}", op.name()))),
    }
}

/// Scratch memory of one op on a pool of `threads`.
pub fn workspace(op: &Op, inputs: &[Type], outputs: &[Type], _threads: usize) -> Workspace {
    match op {
        Op::Linear { .. } => linear::linear_workspace(inputs, outputs),
        Op::LinearGradInput { .. } => linear::linear_grad_input_workspace(inputs, outputs),
        Op::LinearGradWeight { .. } => linear::linear_grad_weight_workspace(inputs, outputs),
        Op::Matmul { transpose_a, .. } => linear::matmul_workspace(inputs, outputs, *transpose_a),
        Op::Conv2d { conv, .. } => conv::conv2d_workspace(inputs, outputs, *conv),
        Op::Conv2dGradInput { conv, .. } => conv::conv2d_grad_input_workspace(inputs, outputs, *conv),
        Op::Conv2dGradWeight { conv, .. } => conv::conv2d_grad_weight_workspace(inputs, outputs, *conv),
        Op::HeadLoss(_) | Op::HeadLossGrad { .. } => head::head_workspace(inputs),
        _ => Workspace::default(),
    }
}
