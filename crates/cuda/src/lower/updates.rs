//! The norm of the gradients and the optimizers' rules.

use plimsoll_exec::ExecError;
use plimsoll_graph::op::{AdamW, Lion, Moments, ProbeStep, Sgd, Stored, Weights};
use plimsoll_graph::{DType, Op, Type};

use super::launch::Arg;
use super::lowering::{Call, Lowering, Operand, i32, i64, unsupported};

/// Elements of one partial sum of squares.
const SQUARES: usize = 16_384;
/// Sums that one launch of `add_squares` takes.
const SUMS: usize = 64;
/// Elements of a block of threads of an update: eight to a thread.
const UPDATED: usize = 2048;

pub(super) fn sum_squares(to: &mut Lowering, call: &Call) -> Result<(), ExecError> {
    let pieces = |ty: &Type| ty.shape.elements().div_ceil(SQUARES);
    let count: usize = call.inputs.iter().map(|input| pieces(&input.ty)).sum();
    let partial = to.take(4 * count as u64);
    let mut first = 0;
    for x in call.inputs {
        let at = Arg::Pointer(partial.after(4 * first as u64));
        to.launch("sum_squares", pieces(&x.ty), 256, vec![x.pointer(), x.kind(), at, i64(x.count())]);
        first += pieces(&x.ty);
    }
    let args = vec![Arg::Pointer(partial), call.outputs[0].pointer(), i64(count)];
    to.launch("finish_squares", 1, 256, args);
    Ok(())
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

/// Whether a GPU computes the op.
pub(crate) fn has_kernel(op: &Op) -> bool {
    !matches!(op, Op::Adafactor(_) | Op::Muon(_))
}

/// Refuses an optimizer that has no kernel and names those that have one.
pub(super) fn refuse(call: &Call) -> Result<(), ExecError> {
    Err(unsupported(call, NO_KERNEL))
}

/// The end of that sentence.
const NO_KERNEL: &str = "has no CUDA kernel yet; take `--optim adamw_torch`, `adamw_8bit`, `sgd` or `lion_32bit`, \
                                    or train with `--device cpu`";

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
    // There is no gradient; the parameter stands for its extents.
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

/// The struct `Ranges` of `updates.cu`.
fn ranges(call: &Call, grad: &Operand, stored: Stored, moments: usize) -> Arg {
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
        Weights::F32 | Weights::Split => (Arg::Null, Arg::U64(0)),
    };
    let ([m, m_scale], [v, v_scale]) = (first, second);
    let count = i64(grad.count());
    Arg::Struct(vec![grad.pointer(), grad.kind(), parameter, lower, m, v, m_scale, v_scale, rng, name, count])
}

fn weights_name(stored: Stored) -> &'static str {
    match stored.weights {
        Weights::F32 => "f32",
        Weights::Stochastic { .. } => "stochastic",
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

#[cfg(test)]
mod tests {
    use plimsoll_exec::cases;

    use super::*;
    use crate::lower::{Limits, NoLibrary, needs};

    #[test]
    fn ops_without_a_kernel_are_refused_by_name_with_a_way_out_and_all_others_are_not() {
        for case in cases::all() {
            let inputs: Vec<_> = case.inputs.iter().map(|input| input.ty).collect();
            match needs(&case.op, &inputs, &case.output_types(), &NoLibrary, Limits::default()) {
                Ok(_) => assert!(has_kernel(&case.op), "{}", case.name),
                Err(error) => {
                    let told = format!("{} {NO_KERNEL}", case.op.name());
                    assert!(error.to_string().contains(&told), "{}: {error}", case.name);
                }
            }
        }
    }
}
