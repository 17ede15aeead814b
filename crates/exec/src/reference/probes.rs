//! Parameters as probes read them, and the step that follows from the probes' losses.

use plimsoll_graph::Op;
use plimsoll_graph::op::ProbeStep;

use super::array::Array;
use super::{Operands, Tensor, stored};
use crate::init;
use crate::random::Stream;

/// The results of an op of probes.
pub(super) fn eval(op: &Op, operands: &Operands) -> Vec<Array> {
    match op {
        Op::Perturb { stream } => vec![perturb(*stream, operands)],
        Op::PerturbRows { stream } => vec![perturb_rows(*stream, operands)],
        Op::ProbeStep(step) => {
            let losses: Vec<f32> = operands.x(2).data.iter().map(|&loss| loss as f32).collect();
            let (lr, probe) = (operands.scalar(0), operands.integers(1));
            probe_step(*step, &losses, lr, [probe, operands.integers(3)], operands.outputs)
        }
        other => unreachable!("`{}` is of another family", other.name()),
    }
}

fn perturb(stream: u64, operands: &Operands) -> Array {
    let (w, probe, size) = (operands.x(0), operands.integers(1), operands.scalar(2));
    let z = direction(probe, stream, probe[3] as u32, w.data.len());
    let data = w.data.iter().zip(z).map(|(w, z)| w + size * z).collect();
    Array { shape: w.shape, data }
}

fn perturb_rows(stream: u64, operands: &Operands) -> Array {
    let (y, ids, probe) = (operands.x(0), operands.integers(1), operands.integers(2));
    let (size, columns) = (operands.scalar(3), y.shape.columns());
    let stream = Stream::of_probe(probe, stream, probe[3] as u32);
    let mut data = y.data.clone();
    for (row, &id) in data.chunks_mut(columns).zip(ids) {
        let mut z = vec![0.0; columns];
        init::normal(&stream, 1.0, id as usize * columns, &mut z);
        row.iter_mut().zip(z).for_each(|(y, z)| *y += size * f64::from(z));
    }
    Array { shape: y.shape, data }
}

fn probe_step(
    step: ProbeStep,
    losses: &[f32],
    lr: f64,
    [probe, rng]: [&[i32]; 2],
    ranges: &[Tensor],
) -> Vec<Array> {
    let mut factors = vec![0.0; losses.len() / 2];
    if !step.estimate.factors(losses, &mut factors) {
        return ranges.iter().map(Array::of).collect();
    }
    let mut numbers = stored::read(step.stored, ranges);
    let mut slope = vec![0.0; numbers.parameter.len()];
    for (number, factor) in (0u32..).zip(factors) {
        let z = direction(probe, step.stream, number, slope.len());
        slope.iter_mut().zip(z).for_each(|(slope, z)| *slope += f64::from(factor) * z);
    }
    for (p, slope) in numbers.parameter.iter_mut().zip(slope) {
        *p -= lr * (slope + f64::from(step.weight_decay) * *p);
    }
    stored::write(step.stored, &numbers, rng, ranges)
}

/// The first `count` numbers of a direction.
fn direction(probe: &[i32], stream: u64, number: u32, count: usize) -> impl Iterator<Item = f64> {
    let mut z = vec![0.0; count];
    init::normal(&Stream::of_probe(probe, stream, number), 1.0, 0, &mut z);
    z.into_iter().map(f64::from)
}
