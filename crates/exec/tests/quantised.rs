//! Codes, scales and numbers against bitsandbytes', which `reference/quantised.py` wrote down.
#![allow(clippy::unwrap_used, reason = "a test may end where it finds a fault")]

use plimsoll_exec::quantised::{
    SCALES, decode_int8, decode_nf4, decode_scale, encode_int8, encode_nf4, encode_scales,
};
use plimsoll_exec::reference::{Tensor, apply};
use plimsoll_graph::op::{Dequantise, NF4_SECOND_BLOCK, Quantised};
use plimsoll_graph::{DType, Op, Type};

#[path = "support/golden.rs"]
mod golden;

const ROWS: usize = 48;
const COLUMNS: usize = 384;
const COUNT: usize = ROWS * COLUMNS;

/// The tensor of that name.
fn golden(name: &str) -> Tensor {
    golden::tensors("quantised/codes").remove(name).unwrap()
}

fn floats(name: &str) -> Vec<f32> {
    golden(name).numbers().iter().map(|&number| number as f32).collect()
}

fn bytes(name: &str) -> Vec<u8> {
    golden(name).numbers().iter().map(|&number| number as u8).collect()
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// Asserts that numbers are the same. Zeros of either sign count as equal.
fn assert_same(actual: &[f32], expected: &[f32], what: &str) {
    let other = |(a, b): &(&f32, &f32)| (*a + 0.0).to_bits() != (*b + 0.0).to_bits();
    let first = actual.iter().zip(expected).enumerate().find(|(_, pair)| other(pair));
    assert_eq!((first, actual.len()), (None, expected.len()), "{what}: the first that differs");
}

#[test]
fn four_bit_codes_scales_and_numbers_are_those_of_bitsandbytes_to_the_bit() {
    let weight = floats("weight");
    let (mut codes, mut absmax) = (vec![0; COUNT / 2], vec![0.0; COUNT / 64]);
    encode_nf4(&weight, &mut codes, &mut absmax);
    let other = codes.iter().zip(bytes("nf4")).position(|(ours, theirs)| *ours != theirs);
    assert_eq!(other, None, "the first code that differs");
    assert_same(&absmax, &floats("nf4.absmax"), "scales");
    let mut numbers = vec![0.0; COUNT];
    decode_nf4(&codes, absmax, &mut numbers);
    assert_same(&numbers, &floats("nf4.f32"), "numbers");
}

#[test]
fn the_table_of_scales_is_that_of_bitsandbytes_to_the_bit() {
    assert_eq!(bits(&SCALES.numbers), bits(&floats("double.map")));
}

/// bitsandbytes adds up the mean in an order of its own, and its CPU kernel takes the farther of two entries next to the
/// middle between them: there, and only there, a code may differ by one.
#[test]
fn scales_in_eight_bits_are_those_of_bitsandbytes_where_its_rounding_is_defined() {
    let absmax = floats("nf4.absmax");
    let (mut codes, mut second) = (vec![0; absmax.len()], vec![0.0; absmax.len().div_ceil(NF4_SECOND_BLOCK)]);
    let offset = encode_scales(&absmax, &mut codes, &mut second);
    let known = floats("double.nested_offset")[0];
    assert!((offset - known).abs() <= 2.0 * f32::EPSILON * known, "{offset} {known}");
    for (ours, theirs) in second.iter().zip(floats("double.nested_absmax")) {
        assert!((ours - theirs).abs() <= 2.0 * f32::EPSILON * (theirs + known), "{ours} {theirs}");
    }
    let table = &SCALES.numbers;
    let mut near = 0;
    for (index, (&ours, theirs)) in codes.iter().zip(bytes("double.absmax")).enumerate() {
        if ours == theirs {
            continue;
        }
        let scaled = (absmax[index] - offset) / second[index / NF4_SECOND_BLOCK];
        let middle = f32::midpoint(table[usize::from(ours)], table[usize::from(theirs)]);
        assert!(ours.abs_diff(theirs) == 1 && (scaled - middle).abs() < 2e-6, "{index}: {ours} {theirs}");
        near += 1;
    }
    assert!(near <= codes.len() / 100, "{near} of {} lie next to a middle", codes.len());
}

#[test]
fn numbers_behind_two_levels_of_scales_are_those_of_bitsandbytes_to_the_bit() {
    let (codes, second) = (bytes("double.absmax"), floats("double.nested_absmax"));
    let offset = floats("double.nested_offset")[0];
    let scales = codes.iter().enumerate();
    let scales = scales.map(|(index, &code)| decode_scale(code, second[index / NF4_SECOND_BLOCK], offset));
    let mut numbers = vec![0.0; COUNT];
    decode_nf4(&bytes("nf4"), scales, &mut numbers);
    assert_same(&numbers, &floats("double.f32"), "numbers");
}

#[test]
fn bytes_their_scales_and_numbers_are_those_of_bitsandbytes_to_the_bit() {
    let weight = floats("weight");
    let (mut codes, mut numbers, mut scales) = (vec![0; COUNT], vec![0.0; COUNT], Vec::new());
    let rows = weight.chunks(COLUMNS).zip(codes.chunks_mut(COLUMNS)).zip(numbers.chunks_mut(COLUMNS));
    for ((row, codes), numbers) in rows {
        let absmax = encode_int8(row, codes);
        decode_int8(codes, absmax, numbers);
        scales.push(absmax);
    }
    let other = codes.iter().zip(bytes("int8")).position(|(ours, theirs)| *ours != theirs);
    assert_eq!(other, None, "the first code that differs");
    assert_same(&scales, &floats("int8.SCB"), "scales");
    assert_same(&numbers, &floats("int8.f32"), "numbers");
}

/// Every device is held to the reference kernel by the conformance cases, and the reference kernel to bitsandbytes here.
#[test]
fn the_reference_kernel_yields_the_numbers_of_bitsandbytes() {
    let shape = [ROWS, COLUMNS];
    let flat = |name: &str, ty: Type| Tensor::from_numbers(ty, &golden(name).numbers());
    for (form, to, names, expected) in [
        (Quantised::Nf4, DType::F32, &["nf4", "nf4.absmax"][..], "nf4.f32"),
        (Quantised::Nf4Double, DType::F32, &DOUBLE, "double.f32"),
        (Quantised::Nf4Double, DType::Bf16, &DOUBLE, "double.bf16"),
        (Quantised::Int8, DType::F32, &["int8", "int8.SCB"], "int8.f32"),
    ] {
        let ranges = form.ranges(shape);
        let inputs: Vec<Tensor> = names.iter().zip(ranges).map(|(name, (_, ty))| flat(name, ty)).collect();
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let result = apply(&Op::Dequantise(Dequantise { form, shape, to }), &inputs).unwrap();
        assert_eq!(result[0].ty, golden(expected).ty);
        let result: Vec<f32> = result[0].numbers().iter().map(|&number| number as f32).collect();
        assert_same(&result, &floats(expected), expected);
    }
}

const DOUBLE: [&str; 4] = ["nf4", "double.absmax", "double.nested_absmax", "double.nested_offset"];
