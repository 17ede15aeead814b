//! Quantised weights: the types of their inputs and outputs. There is no derivative, since such weights are frozen.

use super::no_types;
use crate::op::Dequantise;
use crate::{DType, Op, Type};

pub(super) fn types(op: &Op, inputs: &[Type]) -> Result<Vec<Type>, String> {
    let Op::Dequantise(Dequantise { form, shape, to }) = op else { return no_types(op) };
    if let Some(why) = form.refuses(shape[1]) {
        return Err(format!("the weight {why}"));
    }
    if !matches!(to, DType::F32 | DType::Bf16) {
        return Err(format!("yields f32 or bf16, not {to}"));
    }
    let wanted: Vec<Type> = form.ranges(*shape).into_iter().map(|(_, ty)| ty).collect();
    if inputs != wanted {
        return Err(format!("takes {wanted:?}, got {inputs:?}"));
    }
    Ok(vec![Type { shape: (*shape).into(), dtype: *to }])
}
