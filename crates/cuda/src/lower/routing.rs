//! Probabilities of experts with the logarithm of their divisor, and the choice of the largest.

use plimsoll_exec::ExecError;
use plimsoll_graph::DType;

use super::launch::{Arg, Check};
use super::lowering::{Call, Lowering, Operand, i32, i64, suffix, threads_for};

pub(super) fn softmax_lse(to: &mut Lowering, call: &Call) -> Result<(), ExecError> {
    let x = &call.inputs[0];
    let columns = x.shape().columns();
    let operands = call.inputs.iter().chain(call.outputs).map(Operand::pointer);
    let args = operands.chain([i64(columns)]).collect();
    let kernel = format!("softmax_lse_{}", suffix(call, x.ty.dtype)?);
    to.launch(kernel, x.shape().rows(), threads_for(columns, DType::U8, 512), args);
    Ok(())
}

pub(super) fn softmax_lse_grad(
    to: &mut Lowering,
    call: &Call,
    softmax: bool,
    lse: bool,
) -> Result<(), ExecError> {
    let p = &call.inputs[0];
    let columns = p.shape().columns();
    let pointer = |there: bool, index: usize| if there { call.inputs[index].pointer() } else { Arg::Null };
    let (dp, dlse) = (pointer(softmax, 1), pointer(lse, 1 + usize::from(softmax)));
    let args = vec![p.pointer(), dp, dlse, call.outputs[0].pointer(), i64(columns)];
    to.launch("softmax_lse_grad", p.shape().rows(), threads_for(columns, DType::U8, 512), args);
    Ok(())
}

/// `(scores[…,E][, p[…,E], bias[E]]) → (weights[…,k], indices[…,k])`.
pub(super) fn top_k(to: &mut Lowering, call: &Call, k: usize, steered: bool) -> Result<(), ExecError> {
    let scores = &call.inputs[0];
    let operands = call.inputs.iter().chain(call.outputs).map(Operand::pointer);
    let form = [i64(scores.shape().columns()), i32(k), Arg::Check(Check::Score { block: String::new() })];
    let kernel = if steered { "steered_top_k" } else { "top_k" };
    to.launch(kernel, scores.shape().rows(), 32, operands.chain(form).collect());
    Ok(())
}

pub(super) fn top_k_grad(to: &mut Lowering, call: &Call, experts: usize) -> Result<(), ExecError> {
    let (indices, dweights) = (&call.inputs[0], &call.inputs[1]);
    let (rows, k) = (dweights.shape().rows(), dweights.shape().columns());
    let check = Arg::Check(Check::Expert { experts });
    let operands = [indices, dweights, &call.outputs[0]].map(Operand::pointer).into_iter();
    let args = operands.chain([i64(experts), i32(k), check]).collect();
    to.launch("top_k_grad", rows, (experts.next_multiple_of(32) as u32).clamp(32, 256), args);
    Ok(())
}
