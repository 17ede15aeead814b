//! Weights in few bits: from numbers to codes and scales, and back.
//!
//! Tables and arithmetic are those of the library bitsandbytes, each step rounded to f32, so that codes and numbers
//! equal its own bit for bit. Its second level of scales is an exception: its CPU kernel looks codes up in a coarse
//! table, and near the middle between two entries it may take the farther one. Here the nearest is taken.
//!
//! Loading quantises; `dequantise` on a device reads. Absent on purpose: files, and the choice of weights.

use std::sync::LazyLock;

use plimsoll_graph::op::{NF4_BLOCK, NF4_SECOND_BLOCK};

use crate::codes::{COUNT, Codes};

/// The 16 numbers of a 4-bit code: quantiles of a normal distribution, scaled to −1 … 1, with an exact zero.
pub const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Factor of a signed byte, beside its row's scale: 1/127.
pub const INT8_UNIT: f32 = 1.0 / 127.0;

/// Halfway between each 4-bit number and the next.
static NF4_MIDDLES: LazyLock<[f32; 15]> =
    LazyLock::new(|| std::array::from_fn(|code| f32::midpoint(NF4[code], NF4[code + 1])));

/// The 256 numbers of a scale in eight bits. They are those of [`SIGNED`](crate::codes::SIGNED) except for rounding:
/// the library computes boundaries in f32, from whichever end is nearer.
pub static SCALES: LazyLock<Codes> = LazyLock::new(|| Codes::of(&scale_numbers()));

fn scale_numbers() -> [f32; COUNT] {
    let mut numbers = [0.0; COUNT];
    numbers[1] = 1.0;
    let mut filled = 2;
    for (decade, unit) in [1e-6f32, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0].into_iter().enumerate() {
        let parts = 1usize << decade;
        let step = (1.0 - 0.1f32) / parts as f32;
        let boundary = |part: usize| {
            let from_start = part < parts.div_ceil(2);
            if from_start {
                step.mul_add(part as f32, 0.1)
            } else {
                (-step).mul_add((parts - part) as f32, 1.0)
            }
        };
        for part in 0..parts {
            let number = unit * (f32::midpoint(boundary(part), boundary(part + 1)));
            numbers[filled..filled + 2].copy_from_slice(&[number, -number]);
            filled += 2;
        }
    }
    numbers.sort_unstable_by(f32::total_cmp);
    numbers
}

/// The factor that brings a block whose largest magnitude is `absmax` into −1 … 1. A block of zeros has none of its own.
fn inverse(absmax: f32) -> f32 {
    1.0 / absmax.max(1e-38)
}

fn largest(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0.0, |largest, number| number.abs().max(largest))
}

/// 4-bit codes and scales of `numbers`, which are whole blocks: two codes in a byte, a scale for each block.
pub fn encode_nf4(numbers: &[f32], codes: &mut [u8], absmax: &mut [f32]) {
    let middles = &*NF4_MIDDLES;
    let blocks = numbers.chunks_exact(NF4_BLOCK).zip(codes.chunks_exact_mut(NF4_BLOCK / 2));
    for ((numbers, codes), absmax) in blocks.zip(absmax) {
        *absmax = largest(numbers);
        let inverse = inverse(*absmax);
        let code = |number: f32| {
            let scaled = (number * inverse).clamp(-1.0, 1.0);
            middles.iter().filter(|&&middle| scaled > middle).count() as u8
        };
        for (byte, pair) in codes.iter_mut().zip(numbers.chunks_exact(2)) {
            *byte = code(pair[0]) << 4 | code(pair[1]);
        }
    }
}

/// Eight-bit codes of the scales of one weight, and a scale for each [`NF4_SECOND_BLOCK`] of them; returns the offset
/// that was subtracted first.
pub fn encode_scales(absmax: &[f32], codes: &mut [u8], second: &mut [f32]) -> f32 {
    let sum: f64 = absmax.iter().map(|&absmax| f64::from(absmax)).sum();
    let offset = (sum / absmax.len().max(1) as f64) as f32;
    let blocks = absmax.chunks(NF4_SECOND_BLOCK).zip(codes.chunks_mut(NF4_SECOND_BLOCK));
    for ((absmax, codes), second) in blocks.zip(second) {
        *second = absmax.iter().fold(0.0, |largest, absmax| (absmax - offset).abs().max(largest));
        let inverse = inverse(*second);
        for (code, absmax) in codes.iter_mut().zip(absmax) {
            *code = SCALES.nearest((absmax - offset) * inverse);
        }
    }
    offset
}

/// The scale that an eight-bit code of a block with the scale `second` stands for.
#[inline]
pub fn decode_scale(code: u8, second: f32, offset: f32) -> f32 {
    SCALES.numbers[usize::from(code)] * second + offset
}

/// Signed bytes of a row, as they lie in memory; returns the row's scale. A row of zeros has zeros.
pub fn encode_int8(row: &[f32], codes: &mut [u8]) -> f32 {
    let absmax = largest(row);
    // In two steps, as PyTorch divides a number by a tensor.
    let factor = if absmax > 0.0 { (1.0 / absmax) * 127.0 } else { 0.0 };
    for (code, number) in codes.iter_mut().zip(row) {
        *code = (number * factor).round_ties_even() as i8 as u8;
    }
    absmax
}

/// Numbers of whole blocks of 4-bit codes, whose scales are `absmax`.
pub fn decode_nf4(codes: &[u8], absmax: impl IntoIterator<Item = f32>, numbers: &mut [f32]) {
    let blocks = codes.chunks_exact(NF4_BLOCK / 2).zip(numbers.chunks_exact_mut(NF4_BLOCK));
    for ((codes, numbers), absmax) in blocks.zip(absmax) {
        let scaled = NF4.map(|number| number * absmax);
        for (pair, code) in numbers.chunks_exact_mut(2).zip(codes) {
            pair[0] = scaled[usize::from(code >> 4)];
            pair[1] = scaled[usize::from(code & 15)];
        }
    }
}

/// Numbers of a row of signed bytes with the scale `absmax`.
pub fn decode_int8(codes: &[u8], absmax: f32, numbers: &mut [f32]) {
    for (number, &code) in numbers.iter_mut().zip(codes) {
        *number = f32::from(code as i8) * absmax * INT8_UNIT;
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "the very numbers are meant")]
mod tests {
    use super::*;

    #[test]
    fn zeros_come_back_as_zeros_in_every_form() {
        let (mut codes, mut absmax, mut back) = ([0; 32], [9.0], [9.0; 64]);
        encode_nf4(&[0.0; 64], &mut codes, &mut absmax);
        decode_nf4(&codes, absmax, &mut back);
        assert_eq!((codes, absmax, back), ([0x77; 32], [0.0], [0.0; 64]));
        let mut bytes = [9; 64];
        let absmax = encode_int8(&[0.0; 64], &mut bytes);
        decode_int8(&bytes, absmax, &mut back);
        assert_eq!((bytes, absmax, back), ([0; 64], 0.0, [0.0; 64]));
    }

    #[test]
    fn numbers_of_the_table_keep_their_codes_and_the_largest_its_value() {
        let numbers: Vec<f32> = (0..64).map(|index| 0.3 * NF4[index % 16]).collect();
        let (mut codes, mut absmax, mut back) = ([0; 32], [0.0], [0.0; 64]);
        encode_nf4(&numbers, &mut codes, &mut absmax);
        decode_nf4(&codes, absmax, &mut back);
        assert_eq!(&codes[..8], [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
        assert_eq!((absmax, back.to_vec()), ([0.3], numbers));
    }

    #[test]
    fn scales_in_eight_bits_are_off_by_a_hundredth_of_their_spread_at_most() {
        let absmax: Vec<f32> = (0..700).map(|index| 0.1 + 0.05 * (index as f32 * 0.37).sin()).collect();
        let (mut codes, mut second) = (vec![0; 700], [0.0; 3]);
        let offset = encode_scales(&absmax, &mut codes, &mut second);
        for (index, (absmax, code)) in absmax.iter().zip(&codes).enumerate() {
            let back = decode_scale(*code, second[index / NF4_SECOND_BLOCK], offset);
            assert!((back - absmax).abs() <= 0.008 * 0.1, "{absmax} became {back}");
        }
    }

    #[test]
    fn bytes_reach_127_on_both_sides_and_round_to_even() {
        let mut codes = [0; 5];
        let absmax = encode_int8(&[-2.0, 2.0, 1.0 / 127.0, 3.0 / 127.0, -0.01], &mut codes);
        assert_eq!((absmax, codes.map(|code| code as i8)), (2.0, [-127, 127, 0, 2, -1]));
    }
}
