//! Weights in few bits, by definition: each step is rounded to f32, and the result to the type it is stored in.

use plimsoll_graph::Op;
use plimsoll_graph::op::{Dequantise, NF4_BLOCK, NF4_SECOND_BLOCK, Quantised};

use super::Operands;
use super::array::Array;
use crate::quantised::{INT8_UNIT, NF4, SCALES};

/// The results of an op of this family.
pub(super) fn eval(op: &Op, operands: &Operands) -> Vec<Array> {
    match op {
        Op::Dequantise(dequantise) => vec![weight(dequantise, operands)],
        other => unreachable!("`{}` is of another family", other.name()),
    }
}

fn weight(&Dequantise { form, shape: [rows, columns], .. }: &Dequantise, operands: &Operands) -> Array {
    let number = |input: usize, index: usize| operands.x(input).data[index] as f32;
    let byte = |input: usize, index: usize| operands.x(input).data[index] as u8;
    let nf4 = |index: usize, absmax: f32| {
        let byte = byte(0, index / 2);
        let code = if index.is_multiple_of(2) { byte >> 4 } else { byte & 15 };
        NF4[usize::from(code)] * absmax
    };
    let element = |index: usize| match form {
        Quantised::Nf4 => nf4(index, number(1, index / NF4_BLOCK)),
        Quantised::Nf4Double => {
            let block = index / NF4_BLOCK;
            let scaled = SCALES.numbers[usize::from(byte(1, block))] * number(2, block / NF4_SECOND_BLOCK);
            nf4(index, scaled + number(3, 0))
        }
        Quantised::Int8 => f32::from(byte(0, index) as i8) * number(1, index / columns) * INT8_UNIT,
    };
    let data = (0..rows * columns).map(|index| f64::from(element(index))).collect();
    Array { shape: [rows, columns].into(), data }
}
