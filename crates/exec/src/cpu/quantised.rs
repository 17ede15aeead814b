//! Weights in few bits, made whole right before they are read.
//!
//! A block of 4-bit codes has one scale, so its 16 numbers are multiplied and rounded once and then looked up. A piece is
//! 256 blocks, or rows of as many numbers; each number depends on its own code and scale alone.

use half::bf16;
use plimsoll_graph::op::{Dequantise, NF4_BLOCK, NF4_SECOND_BLOCK, Quantised};
use plimsoll_graph::{DType, Op};

use super::element::Element;
use super::lanes::PIECE;
use super::simd::widest;
use super::{Call, split};
use crate::ExecError;
use crate::quantised::{INT8_UNIT, NF4, decode_scale};

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    let Op::Dequantise(Dequantise { form, shape, to }) = *call.op else { return None };
    Some(match to {
        DType::F32 => {
            dequantise::<f32>(call, form, shape[0]);
            Ok(())
        }
        DType::Bf16 => {
            dequantise::<bf16>(call, form, shape[0]);
            Ok(())
        }
        other => Err(ExecError::Unsupported(format!("the CPU dequantises to f32 and bf16, not to {other}"))),
    })
}

fn dequantise<E: Element>(call: &Call, form: Quantised, rows: usize) {
    match form {
        Quantised::Nf4 => {
            let absmax = call.input(1);
            blocks::<E>(call, |block| absmax[block]);
        }
        Quantised::Nf4Double => {
            let (codes, second, offset) = (call.bytes(1), call.input(2), call.input(3)[0]);
            blocks::<E>(call, |block| decode_scale(codes[block], second[block / NF4_SECOND_BLOCK], offset));
        }
        Quantised::Int8 => {
            let (codes, absmax) = (call.bytes(0), call.input(1));
            let width = codes.len() / rows.max(1);
            split::rows(rows, PIECE.div_ceil(width.max(1)), [call.output_as::<E>(0)], |range, [numbers]| {
                for (row, numbers) in range.zip(numbers.chunks_exact_mut(width)) {
                    signed_bytes(&codes[row * width..][..width], absmax[row], numbers);
                }
            });
        }
    }
}

fn blocks<E: Element>(call: &Call, scale: impl Fn(usize) -> f32 + Sync + Send) {
    let codes = call.bytes(0);
    let count = 2 * codes.len() / NF4_BLOCK;
    split::rows(count, PIECE / NF4_BLOCK, [call.output_as::<E>(0)], |range, [numbers]| {
        for (block, numbers) in range.zip(numbers.chunks_exact_mut(NF4_BLOCK)) {
            let absmax = scale(block);
            let table = NF4.map(|number| E::rounded(number * absmax));
            let codes = &codes[block * NF4_BLOCK / 2..][..NF4_BLOCK / 2];
            for (pair, code) in numbers.chunks_exact_mut(2).zip(codes) {
                pair[0] = table[usize::from(code >> 4)];
                pair[1] = table[usize::from(code & 15)];
            }
        }
    });
}

widest! {
    fn signed_bytes<E: Element>(codes: &[u8], absmax: f32, numbers: &mut [E]) {
        for (number, &code) in numbers.iter_mut().zip(codes) {
            *number = E::rounded(f32::from(code as i8) * absmax * INT8_UNIT);
        }
    }
}
