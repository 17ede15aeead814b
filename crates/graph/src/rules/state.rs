//! Ops on state: sums of gradients, their norm, and the optimizers' updates. None has a derivative.

use super::{equal, float, no_types, operands};
use crate::op::Stored;
use crate::{Op, Type};

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
