//! Elementwise functions, casts, dropout, jitter and sums of state.

use plimsoll_exec::ExecError;
use plimsoll_exec::random::drop_threshold;
use plimsoll_graph::op::Gelu;
use plimsoll_graph::{DType, Op};

use super::launch::Arg;
use super::lowering::{Call, Lowering, i64, lanes, suffix};

/// Threads of a block of kernels that know no rows.
const THREADS: u32 = 256;

pub(super) fn elementwise(to: &mut Lowering, call: &Call) -> Result<(), ExecError> {
    let (x, y) = (call.inputs[0], call.outputs[0]);
    let kernel = format!("{}_{}", kernel_of(call.op), suffix(call, x.ty.dtype)?);
    let operands = call.inputs.iter().chain(call.outputs);
    let mut args: Vec<Arg> = operands.map(super::Operand::pointer).collect();
    args.push(i64(y.count()));
    match call.op {
        Op::Scale { factor } => args.push(Arg::F32(*factor)),
        Op::SwigluGrad => {}
        _ if call.inputs.len() == 2 => args.push(i64(call.inputs[1].count())),
        _ => {}
    }
    to.launch(kernel, blocks(y.count(), lanes(x.ty.dtype)), THREADS, args);
    Ok(())
}

fn kernel_of(op: &Op) -> &'static str {
    match op {
        Op::Gelu(Gelu::Tanh) => "gelu_tanh",
        Op::Gelu(Gelu::Erf) => "gelu_erf",
        Op::GeluGrad(Gelu::Tanh) => "gelu_tanh_grad",
        Op::GeluGrad(Gelu::Erf) => "gelu_erf_grad",
        other => other.name(),
    }
}

/// Blocks of threads that take `each` elements apiece.
pub(super) fn blocks(count: usize, each: usize) -> usize {
    count.div_ceil(each * THREADS as usize)
}

pub(super) fn cast(to: &mut Lowering, call: &Call) -> Result<(), ExecError> {
    let (x, y) = (call.inputs[0], call.outputs[0]);
    let count = i64(x.count());
    match (x.ty.dtype, y.ty.dtype) {
        (from, into) if from == into => to.copy(x.place, y.place, x.ty.bytes() as u64),
        (from @ (DType::F32 | DType::Bf16), into @ (DType::F32 | DType::Bf16)) => {
            let args = vec![x.pointer(), y.pointer(), count];
            to.launch(format!("cast_{from}_{into}"), blocks(x.count(), 8), THREADS, args);
        }
        _ => {
            let args = vec![x.pointer(), x.kind(), y.pointer(), y.kind(), count];
            to.launch("cast_any", blocks(x.count(), 1), THREADS, args);
        }
    }
    Ok(())
}

pub(super) fn accumulate(to: &mut Lowering, call: &Call) -> Result<(), ExecError> {
    let (x, sum) = (call.inputs[0], call.outputs[0]);
    let args = vec![x.pointer(), x.kind(), sum.pointer(), sum.kind(), i64(x.count()), sum.adds()];
    to.launch("accumulate_any", blocks(x.count(), 1), THREADS, args);
    Ok(())
}

pub(super) fn dropout(to: &mut Lowering, call: &Call, p: f32, stream: u64) -> Result<(), ExecError> {
    let keep = (1.0 / (1.0 - f64::from(p))) as f32;
    with_draws(to, call, "dropout", stream, [Arg::U32(drop_threshold(p)), Arg::F32(keep)])
}

pub(super) fn jitter(to: &mut Lowering, call: &Call, noise: f32, stream: u64) -> Result<(), ExecError> {
    with_draws(to, call, "jitter", stream, [Arg::F32(1.0 - noise), Arg::F32(2.0 * noise)])
}

/// A thread draws four numbers by row and place within the row.
fn with_draws(
    to: &mut Lowering,
    call: &Call,
    kernel: &str,
    stream: u64,
    parameters: [Arg; 2],
) -> Result<(), ExecError> {
    let (x, rng, y) = (call.inputs[0], call.inputs[1], call.outputs[0]);
    let rows = x.shape().first().copied().unwrap_or(1);
    let columns = x.count() / rows.max(1);
    let places = [x.pointer(), rng.pointer(), y.pointer(), i64(rows), i64(columns), Arg::U64(stream)];
    let args = places.into_iter().chain(parameters).collect();
    let kernel = format!("{kernel}_{}", suffix(call, x.ty.dtype)?);
    to.launch(kernel, blocks(rows * columns.div_ceil(4), 1), THREADS, args);
    Ok(())
}
