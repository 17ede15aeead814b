//! The norm of the gradients and the optimizers' rules.

use plimsoll_exec::ExecError;
use plimsoll_graph::DType;
use plimsoll_graph::op::{AdamW, Lion, Moments, ProbeStep, Sgd, Stored, Weights};

use super::launch::Arg;
use super::lowering::{Call, Lowering, Operand, i32, i64, kind, unsupported};
use super::place::Place;

/// Elements of one partial sum of squares.
const SQUARES: usize = 16_384;
/// Sums that one launch of `add_squares` takes.
const SUMS: usize = 64;
/// Elements of a block of threads of an update: eight to a thread.
pub(super) const UPDATED: usize = 2048;

pub(super) fn sum_squares(to: &mut Lowering, call: &Call) -> Result<(), ExecError> {
    let inputs: Vec<_> = call.inputs.iter().map(|x| (x.place, x.ty.dtype, x.count())).collect();
    squares_into(to, &inputs, call.outputs[0].pointer());
    Ok(())
}

/// The sum of the squares of all values, each a place, a type and a number of elements; an f32 in scratch.
pub(super) fn squares_of(to: &mut Lowering, inputs: &[(Place, DType, usize)]) -> Place {
    let sum = to.take(4);
    squares_into(to, inputs, Arg::Pointer(sum));
    sum
}

fn squares_into(to: &mut Lowering, inputs: &[(Place, DType, usize)], sum: Arg) {
    let pieces = |count: usize| count.div_ceil(SQUARES);
    let all: usize = inputs.iter().map(|&(_, _, count)| pieces(count)).sum();
    let partial = to.take(4 * all as u64);
    let mut first = 0;
    for &(place, dtype, count) in inputs {
        let at = Arg::Pointer(partial.after(4 * first as u64));
        to.launch("sum_squares", pieces(count), 256, vec![Arg::Pointer(place), kind(dtype), at, i64(count)]);
        first += pieces(count);
    }
    to.launch("finish_squares", 1, 256, vec![Arg::Pointer(partial), sum, i64(all)]);
}

pub(super) fn clip_scale(to: &mut Lowering, call: &Call, max_norm: Option<f32>) -> Result<(), ExecError> {
    let total = Arg::Pointer(to.take(8));
    for (index, sums) in call.inputs.chunks(SUMS).enumerate() {
        let missing = std::iter::repeat_n(Arg::Null, SUMS - sums.len());
        let pointers = sums.iter().map(Operand::pointer).chain(missing).collect();
        let begin = Arg::I32(i32::from(index == 0));
        let args = vec![Arg::Struct(pointers), Arg::I32(sums.len() as i32), total.clone(), begin];
        to.launch("add_squares", 1, 32, args);
    }
    let [norm, scale] = [0, 1].map(|index| call.outputs[index].pointer());
    to.launch("clip_scale", 1, 32, vec![total, norm, scale, Arg::F32(max_norm.unwrap_or(0.0))]);
    Ok(())
}

pub(super) fn sgd(to: &mut Lowering, call: &Call, rates: Sgd) -> Result<(), ExecError> {
    let Sgd { momentum, nesterov, weight_decay, stored } = rates;
    let ahead = if nesterov { [1.0, momentum] } else { [0.0, 1.0] };
    let rule = [weight_decay, momentum, ahead[0], ahead[1]].map(Arg::F32).to_vec();
    update(to, call, (stored, rates.moments()), 2, rule)
}

pub(super) fn adamw(to: &mut Lowering, call: &Call, rates: AdamW) -> Result<(), ExecError> {
    let AdamW { beta1, beta2, epsilon, weight_decay, stored } = rates;
    let rest = |beta: f32| (1.0 - f64::from(beta)) as f32;
    let rule = [beta1, beta2, rest(beta1), rest(beta2), epsilon, weight_decay].map(Arg::F32).to_vec();
    update(to, call, (stored, 2), 3, rule)
}

pub(super) fn lion(to: &mut Lowering, call: &Call, rates: Lion) -> Result<(), ExecError> {
    let Lion { beta1, beta2, weight_decay, stored } = rates;
    let rest = |beta: f32| (1.0 - f64::from(beta)) as f32;
    let rule = [beta1, rest(beta1), beta2, rest(beta2), weight_decay].map(Arg::F32).to_vec();
    update(to, call, (stored, 1), 2, rule)
}

/// One step of a parameter with its moments: the gradient, `scalars` numbers, and random bits where they are drawn.
fn update(
    to: &mut Lowering,
    call: &Call,
    (stored, moments): (Stored, usize),
    scalars: usize,
    rule: Vec<Arg>,
) -> Result<(), ExecError> {
    let grad = &call.inputs[0];
    if !matches!(grad.ty.dtype, DType::F32 | DType::Bf16) {
        return Err(unsupported(call, &format!("has no CUDA kernel for gradients in {}", grad.ty.dtype)));
    }
    if matches!(stored.weights, Weights::StochasticShard { .. }) {
        return Err(unsupported(call, "has no CUDA kernel for shards of weights in bf16 alone"));
    }
    let mut args = vec![ranges(call, grad, stored, moments)];
    args.extend(call.inputs[1..=scalars].iter().map(Operand::pointer));
    args.push(Arg::Struct(rule));
    let kernel = format!("{}_{}_{}", call.op.name(), weights_name(stored), moments_name(stored, moments));
    to.launch(kernel, grad.count().div_ceil(UPDATED), 256, args);
    Ok(())
}

/// One step of a parameter from the losses of probes: their factors first, then the parameter.
pub(super) fn probe_step(to: &mut Lowering, call: &Call, step: ProbeStep) -> Result<(), ExecError> {
    let [lr, probe, losses] = [0, 1, 2].map(|index| call.inputs[index]);
    let directions = losses.count() / 2;
    let factors = Arg::Pointer(to.take(4 * directions as u64));
    let ProbeStep { estimate, stored, stream, weight_decay, .. } = step;
    let form = [i32(directions), Arg::F32(estimate.size), Arg::I32(i32::from(estimate.ranked))];
    let args = [losses.pointer(), factors.clone()].into_iter().chain(form).collect();
    to.launch("probe_factors", 1, 256, args);
    // The op has no gradient, so the parameter itself gives the extents.
    let parameter = &call.outputs[0];
    let args = vec![
        ranges(call, parameter, stored, 0),
        lr.pointer(),
        probe.pointer(),
        factors,
        i32(directions),
        Arg::U64(stream),
        Arg::F32(weight_decay),
    ];
    let kernel = format!("probe_step_{}", weights_name(stored));
    to.launch(kernel, parameter.count().div_ceil(UPDATED), 256, args);
    Ok(())
}

/// The struct `Ranges` of `stored.cuh`.
pub(super) fn ranges(call: &Call, grad: &Operand, stored: Stored, moments: usize) -> Arg {
    let mut outputs = call.outputs.iter().map(Operand::pointer);
    let mut next = |there: bool| there.then(|| outputs.next()).flatten().unwrap_or(Arg::Null);
    let (parameter, lower) = (next(true), next(stored.weights == Weights::Split));
    let blocks = stored.moments == Moments::Blocks;
    let [first, second] = [0, 1].map(|index| {
        let there = index < moments;
        [next(there), next(there && blocks)]
    });
    let (rng, name) = match stored.weights {
        Weights::Stochastic { stream } => {
            (call.inputs.last().map_or(Arg::Null, Operand::pointer), Arg::U64(stream))
        }
        Weights::F32 | Weights::Split | Weights::StochasticShard { .. } => (Arg::Null, Arg::U64(0)),
    };
    let ([m, m_scale], [v, v_scale]) = (first, second);
    let count = i64(grad.count());
    Arg::Struct(vec![grad.pointer(), grad.kind(), parameter, lower, m, v, m_scale, v_scale, rng, name, count])
}

pub(super) fn weights_name(stored: Stored) -> &'static str {
    match stored.weights {
        Weights::F32 => "f32",
        Weights::Stochastic { .. } | Weights::StochasticShard { .. } => "stochastic",
        Weights::Split => "split",
    }
}

fn moments_name(stored: Stored, moments: usize) -> &'static str {
    match stored.moments {
        _ if moments == 0 => "none",
        Moments::F32 => "f32",
        Moments::Bf16 => "bf16",
        Moments::Blocks => "blocks",
    }
}
