//! Changing the element type, rounding to nearest even.
//!
//! By way of f32, as any device does whose arithmetic is f32: an i32 beyond 2²⁴ that becomes a half is
//! rounded twice. A cast to the same type is a copy.
#![allow(unsafe_code, reason = "element types are known by value, so operands are reached by address")]

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use plimsoll_graph::{DType, Op};

use super::lanes::PIECE;
use super::{Call, CpuOperand, movement, pieces};
use crate::ExecError;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    Some(match call.op {
        Op::Cast { .. } => cast(call),
        _ => return None,
    })
}

fn cast(call: &Call) -> Result<(), ExecError> {
    let (x, y) = (call.inputs[0], call.outputs[0]);
    let len = x.ty.shape.elements();
    if x.ty.dtype == y.ty.dtype {
        return movement::reshape(call);
    }
    pieces::for_each(len.div_ceil(PIECE), |piece| {
        let start = piece * PIECE;
        cast_piece(&x, &y, start, PIECE.min(len - start));
    });
    Ok(())
}

fn cast_piece(x: &CpuOperand, y: &CpuOperand, start: usize, len: usize) {
    const CHUNK: usize = 256;
    let mut numbers = [0.0f32; CHUNK];
    for at in (start..start + len).step_by(CHUNK) {
        let numbers = &mut numbers[..CHUNK.min(start + len - at)];
        // SAFETY: the chunk lies inside both operands, which have as many elements as each other and do
        // not overlap; pieces do not overlap.
        unsafe {
            load(x, at, numbers);
            store(y, at, numbers);
        }
    }
}

/// Adds to a sum of another element type, or begins it where nothing has been added yet; each sum is rounded once.
pub(super) fn accumulate(call: &Call) {
    const CHUNK: usize = 256;
    let (x, sum) = (call.inputs[0], call.outputs[0]);
    let len = x.ty.shape.elements();
    pieces::for_each(len.div_ceil(PIECE), |piece| {
        let (mut numbers, mut sums) = ([0.0f32; CHUNK], [0.0f32; CHUNK]);
        for at in (piece * PIECE..len.min((piece + 1) * PIECE)).step_by(CHUNK) {
            let count = CHUNK.min(len - at);
            let (numbers, sums) = (&mut numbers[..count], &mut sums[..count]);
            // SAFETY: the chunk lies inside both operands, which do not overlap; nor do pieces.
            unsafe {
                load(&x, at, numbers);
                if sum.accumulate {
                    load(&sum, at, sums);
                    numbers.iter_mut().zip(sums).for_each(|(number, sum)| *number += *sum);
                }
                store(&sum, at, numbers);
            }
        }
    });
}

/// Elements `at …` of an operand of any type, as f32.
///
/// # Safety
///
/// As many elements as `numbers` lie there and no other thread writes them.
pub(super) unsafe fn load(x: &CpuOperand, at: usize, numbers: &mut [f32]) {
    /// Integers become floats one by one.
    fn each<T: Copy>(from: &[T], numbers: &mut [f32], float: impl Fn(T) -> f32) {
        for (number, &x) in numbers.iter_mut().zip(from) {
            *number = float(x);
        }
    }
    let len = numbers.len();
    // SAFETY: the caller's promise.
    unsafe {
        let from = x.pointer.add(at * x.ty.dtype.bytes());
        match x.ty.dtype {
            DType::F32 => numbers.copy_from_slice(elements(from, len)),
            DType::Bf16 => elements::<bf16>(from, len).convert_to_f32_slice(numbers),
            DType::F16 => elements::<f16>(from, len).convert_to_f32_slice(numbers),
            DType::I32 => each(elements::<i32>(from, len), numbers, |x| x as f32),
            DType::I16 => each(elements::<i16>(from, len), numbers, f32::from),
            DType::U8 => each(elements::<u8>(from, len), numbers, f32::from),
        }
    }
}

/// Writes f32 numbers to elements `at …` of an operand of any type, rounded to nearest even.
///
/// # Safety
///
/// As many elements as `numbers` lie there and nothing else uses them.
pub(super) unsafe fn store(y: &CpuOperand, at: usize, numbers: &[f32]) {
    fn each<T>(to: &mut [T], numbers: &[f32], element: impl Fn(f32) -> T) {
        for (y, &number) in to.iter_mut().zip(numbers) {
            *y = element(number.round_ties_even());
        }
    }
    let len = numbers.len();
    // SAFETY: the caller's promise.
    unsafe {
        let to = y.pointer.add(at * y.ty.dtype.bytes());
        match y.ty.dtype {
            DType::F32 => elements(to, len).copy_from_slice(numbers),
            DType::Bf16 => elements::<bf16>(to, len).convert_from_f32_slice(numbers),
            DType::F16 => elements::<f16>(to, len).convert_from_f32_slice(numbers),
            DType::I32 => each(elements::<i32>(to, len), numbers, |x| x as i32),
            DType::I16 => each(elements::<i16>(to, len), numbers, |x| x as i16),
            DType::U8 => each(elements::<u8>(to, len), numbers, |x| x as u8),
        }
    }
}

/// # Safety
///
/// `len` elements of `T` lie at `pointer` and nothing else uses them.
pub(super) unsafe fn elements<'a, T>(pointer: *mut u8, len: usize) -> &'a mut [T] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(pointer.cast(), len) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::trial::numbers;
    use crate::cpu::{ScratchMemory, run};

    /// `x` cast to `to` and back, by way of two calls on raw memory.
    fn there_and_back(x: &[f32], to: DType) -> Vec<f32> {
        let ty = |dtype| plimsoll_graph::Type { shape: [x.len()].into(), dtype };
        let operand = |data: &mut [f32], dtype| CpuOperand {
            pointer: data.as_mut_ptr().cast(),
            ty: ty(dtype),
            accumulate: false,
        };
        let (mut start, mut middle, mut end) = (x.to_vec(), vec![0.0; x.len()], vec![0.0; x.len()]);
        let (start, middle) = (operand(&mut start, DType::F32), operand(&mut middle, to));
        let end_operand = operand(&mut end, DType::F32);
        for (from, into) in [(start, middle), (middle, end_operand)] {
            let op = Op::Cast { to: into.ty.dtype };
            let call = Call { op: &op, inputs: &[from], outputs: &[into], workspace: ScratchMemory::NONE };
            // SAFETY: both operands are whole vectors that live here.
            unsafe { run(&call) }.unwrap();
        }
        end
    }

    #[test]
    fn casts_round_to_the_nearest_even() {
        let x: Vec<f32> = numbers(20_001, 1).iter().map(|x| 100.0 * x).chain([2.5, 3.5, -0.5]).collect();
        let expect = |f: &dyn Fn(f32) -> f32| x.iter().map(|&x| f(x)).collect::<Vec<f32>>();
        assert_eq!(there_and_back(&x, DType::Bf16), expect(&|x| bf16::from_f32(x).to_f32()));
        assert_eq!(there_and_back(&x, DType::F16), expect(&|x| f16::from_f32(x).to_f32()));
        assert_eq!(there_and_back(&x, DType::I32), expect(&|x| x.round_ties_even()));
        assert_eq!(there_and_back(&x, DType::F32), x);
    }
}
