//! The CPU device's fast kernels: one function per op, beside the size of the scratch it needs.
//!
//! Each is judged against the reference kernel of the same name. None allocates.

mod activation;
mod call;
mod dropout;
mod elementwise;
mod exp;
mod lanes;
mod norms;
mod pieces;
mod reduce;
mod simd;
mod split;
mod sums;
#[cfg(test)]
mod trial;

use plimsoll_graph::{Op, Type};
use plimsoll_plan::Workspace;

use crate::ExecError;
pub use call::{Call, Operand};

/// Runs one op.
///
/// # Errors
///
/// When the data is bad or there is no kernel for these element types.
pub fn run(call: &Call) -> Result<(), ExecError> {
    match call.op {
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
        Op::Sum { axes } => sums::sum(call, *axes),
        Op::LayerNorm { epsilon } => norms::layer_norm(call, *epsilon),
        Op::LayerNormGradInput => norms::layer_norm_grad_input(call),
        Op::LayerNormGradWeight => norms::layer_norm_grad_weight(call),
        Op::RmsNorm { epsilon } => norms::rms_norm(call, *epsilon),
        Op::RmsNormGradInput => norms::rms_norm_grad_input(call),
        Op::RmsNormGradWeight => norms::rms_norm_grad_weight(call),
        Op::Accumulate => elementwise::accumulate(call),
        op => Err(ExecError::Unsupported(format!("the CPU has no kernel for {}", op.name()))),
    }
}

/// Scratch memory of one op on a pool of `threads`.
pub fn workspace(op: &Op, inputs: &[Type], _outputs: &[Type], _threads: usize) -> Workspace {
    match op {
        Op::Sum { .. } => sums::sum_workspace(op, inputs),
        _ => Workspace::default(),
    }
}
