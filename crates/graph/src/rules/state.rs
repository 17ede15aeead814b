//! Ops on state: sums of gradients, their norm, the optimizers' updates, and perturbed parameters. None has a derivative.

use super::{equal, float, integers, no_types, operands};
use crate::op::{Apollo, Moments, Muon, ProbeStep, Stored, Weights};
use crate::{DType, Op, Type};

pub(super) fn types(op: &Op, inputs: &[Type]) -> Result<Vec<Type>, String> {
    match op {
        Op::Accumulate { to } => {
            let [x] = operands(inputs)?;
            float(x).map(|()| vec![Type { dtype: *to, ..x }])
        }
        Op::SumSquares if !inputs.is_empty() => Ok(vec![Type::f32([])]),
        Op::ClipScale { .. } if !inputs.is_empty() => {
            for sum in inputs {
                equal(*sum, Type::f32([]), "sum of squares")?;
            }
            Ok(vec![Type::f32([]), Type::f32([])])
        }
        Op::SumSquares | Op::ClipScale { .. } => Err("takes at least 1 inputs, got 0".into()),
        Op::Sgd(sgd) => update(inputs, 2, sgd.stored, sgd.moments()),
        Op::AdamW(adamw) => update(inputs, 3, adamw.stored, 2),
        Op::Lion(lion) => update(inputs, 2, lion.stored, 1),
        Op::Adafactor(rates) => {
            update(inputs, 3, rates.stored, 0)?;
            Ok(rates.types(inputs[0].shape))
        }
        Op::Muon(_) if inputs.first().is_some_and(|gradient| gradient.shape.len() < 2) => {
            Err(format!("wants a matrix, got {}", inputs[0]))
        }
        Op::Muon(muon) => update(inputs, 2, muon.stored, 1),
        Op::Apollo(rates) => apollo(*rates, inputs),
        Op::Perturb { .. } => {
            let [w, probe, size] = operands(inputs)?;
            float(w)?;
            drawn(probe, size).map(|()| vec![w])
        }
        Op::PerturbRows { .. } => {
            let [y, ids, probe, size] = operands(inputs)?;
            float(y)?;
            integers(ids, "ids")?;
            if y.shape.rows() != ids.shape.elements() {
                return Err(format!("{y} has not one row for each of {ids}"));
            }
            drawn(probe, size).map(|()| vec![y])
        }
        Op::ProbeStep(step) => probe_step(*step, inputs),
        other => no_types(other),
    }
}

/// Checks a gradient, its `scalars` and the input that random numbers are drawn from.
fn update(inputs: &[Type], scalars: usize, stored: Stored, moments: usize) -> Result<Vec<Type>, String> {
    let wanted = 1 + scalars + usize::from(stored.is_random());
    if inputs.len() != wanted {
        return Err(format!("takes {wanted} inputs, got {}", inputs.len()));
    }
    float(inputs[0])?;
    for scalar in &inputs[1..=scalars] {
        equal(*scalar, Type::f32([]), "learning rate, step and scale")?;
    }
    if let Some(rng) = inputs.get(scalars + 1) {
        equal(*rng, Type::i32([4]), "rng")?;
    }
    Ok(stored.types(inputs[0].shape, moments))
}

/// Checks the operands of an update that always draws random numbers.
fn apollo(rates: Apollo, inputs: &[Type]) -> Result<Vec<Type>, String> {
    let [grad, scalars @ .., rng] = inputs else { return Err("takes 5 inputs, got 0".into()) };
    if scalars.len() != 3 {
        return Err(format!("takes 5 inputs, got {}", inputs.len()));
    }
    if grad.shape.len() < 2 {
        return Err(format!("wants a matrix, got {grad}"));
    }
    if rates.stored.moments == Moments::Blocks {
        return Err("has no form with moments of 8 bits".into());
    }
    let plain = Stored { weights: Weights::F32, ..rates.stored };
    update(&inputs[..4], 3, plain, 0)?;
    equal(*rng, Type::i32([4]), "rng")?;
    Ok(rates.types(grad.shape))
}

/// Checks the inputs of a probe: its random numbers, and its distance from the weights.
fn drawn(probe: Type, size: Type) -> Result<(), String> {
    equal(probe, Type::i32([4]), "probe")?;
    equal(size, Type::f32([]), "size")
}

fn probe_step(step: ProbeStep, inputs: &[Type]) -> Result<Vec<Type>, String> {
    let wanted = 3 + usize::from(step.stored.is_random());
    if inputs.len() != wanted {
        return Err(format!("takes {wanted} inputs, got {}", inputs.len()));
    }
    drawn(inputs[1], inputs[0])?;
    if !matches!(inputs[2].shape[..], [_, 2]) || inputs[2].dtype != DType::F32 {
        return Err(format!("losses must be f32[n,2], got {}", inputs[2]));
    }
    inputs.get(3).map_or(Ok(()), |rng| equal(*rng, Type::i32([4]), "rng"))?;
    Ok(step.types())
}

/// Work of products: a projection, or the iteration that makes a step orthogonal, with two products of the whole matrix and
/// one of its square in each round.
pub(super) fn flops(op: &Op, inputs: &[Type]) -> f64 {
    match op {
        Op::Muon(_) => {
            let [matrices, shorter, longer] = Muon::extents(inputs[0].shape).map(|extent| extent as f64);
            let round = 2.0 * (2.0 * shorter * shorter * longer + shorter * shorter * shorter);
            Muon::ROUNDS as f64 * matrices * round
        }
        // The projection.
        Op::Apollo(rates) => 2.0 * inputs[0].shape.elements() as f64 * rates.rank as f64,
        _ => 0.0,
    }
}
