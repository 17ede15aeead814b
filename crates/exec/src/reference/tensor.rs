//! Owned values: a type and its elements.
//!
//! Only the judge and the tests use these; the engine works on places in an arena.

use half::{bf16, f16};
use plimsoll_graph::{DType, Shape, Type};

/// The elements of a tensor, row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorData {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// Brain floats.
    Bf16(Vec<bf16>),
    /// Half-precision floats.
    F16(Vec<f16>),
    /// Integers.
    I32(Vec<i32>),
    /// Short integers.
    I16(Vec<i16>),
    /// Codes.
    U8(Vec<u8>),
}

/// A value with its elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Shape and element type.
    pub ty: Type,
    /// As many elements of that type as the shape holds.
    pub data: TensorData,
}

impl Tensor {
    /// A tensor of zeros.
    pub fn zeros(ty: Type) -> Tensor {
        Tensor::from_numbers(ty, &vec![0.0; ty.shape.elements()])
    }

    /// A tensor whose elements are `numbers`, rounded to nearest even.
    pub fn from_numbers(ty: Type, numbers: &[f64]) -> Tensor {
        assert_eq!(ty.shape.elements(), numbers.len(), "elements of {ty}");
        // Halves are rounded by way of f32, as on any device with f32 arithmetic.
        let data = match ty.dtype {
            DType::F32 => TensorData::F32(numbers.iter().map(|&x| x as f32).collect()),
            DType::Bf16 => TensorData::Bf16(numbers.iter().map(|&x| bf16::from_f32(x as f32)).collect()),
            DType::F16 => TensorData::F16(numbers.iter().map(|&x| f16::from_f32(x as f32)).collect()),
            DType::I32 => TensorData::I32(numbers.iter().map(|&x| x.round_ties_even() as i32).collect()),
            DType::I16 => TensorData::I16(numbers.iter().map(|&x| x.round_ties_even() as i16).collect()),
            DType::U8 => TensorData::U8(numbers.iter().map(|&x| x.round_ties_even() as u8).collect()),
        };
        Tensor { ty, data }
    }

    /// A tensor of 32-bit floats.
    pub fn f32(shape: impl Into<Shape>, elements: Vec<f32>) -> Tensor {
        let ty = Type::f32(shape);
        assert_eq!(ty.shape.elements(), elements.len(), "elements of {ty}");
        Tensor { ty, data: TensorData::F32(elements) }
    }

    /// A tensor of integers.
    pub fn i32(shape: impl Into<Shape>, elements: Vec<i32>) -> Tensor {
        let ty = Type::i32(shape);
        assert_eq!(ty.shape.elements(), elements.len(), "elements of {ty}");
        Tensor { ty, data: TensorData::I32(elements) }
    }

    /// A scalar.
    pub fn scalar(number: f32) -> Tensor {
        Tensor::f32([], vec![number])
    }

    /// The elements as `f64`, which holds every element type exactly.
    pub fn numbers(&self) -> Vec<f64> {
        match &self.data {
            TensorData::F32(elements) => elements.iter().map(|&x| f64::from(x)).collect(),
            TensorData::Bf16(elements) => elements.iter().map(|&x| f64::from(x)).collect(),
            TensorData::F16(elements) => elements.iter().map(|&x| f64::from(x)).collect(),
            TensorData::I32(elements) => elements.iter().map(|&x| f64::from(x)).collect(),
            TensorData::I16(elements) => elements.iter().map(|&x| f64::from(x)).collect(),
            TensorData::U8(elements) => elements.iter().map(|&x| f64::from(x)).collect(),
        }
    }

    /// The elements, if they are 32-bit floats.
    pub fn as_f32(&self) -> Option<&[f32]> {
        match &self.data {
            TensorData::F32(elements) => Some(elements),
            _ => None,
        }
    }

    /// The elements, if they are integers.
    pub fn as_i32(&self) -> Option<&[i32]> {
        match &self.data {
            TensorData::I32(elements) => Some(elements),
            _ => None,
        }
    }

    /// The elements as little-endian bytes, as a device holds them.
    pub fn to_bytes(&self) -> Vec<u8> {
        match &self.data {
            TensorData::F32(elements) => elements.iter().flat_map(|x| x.to_le_bytes()).collect(),
            TensorData::Bf16(elements) => elements.iter().flat_map(|x| x.to_le_bytes()).collect(),
            TensorData::F16(elements) => elements.iter().flat_map(|x| x.to_le_bytes()).collect(),
            TensorData::I32(elements) => elements.iter().flat_map(|x| x.to_le_bytes()).collect(),
            TensorData::I16(elements) => elements.iter().flat_map(|x| x.to_le_bytes()).collect(),
            TensorData::U8(elements) => elements.clone(),
        }
    }

    /// A tensor from the bytes a device holds.
    pub fn from_bytes(ty: Type, bytes: &[u8]) -> Tensor {
        assert_eq!(ty.bytes(), bytes.len(), "bytes of {ty}");
        let (pairs, _) = bytes.as_chunks::<2>();
        let (quads, _) = bytes.as_chunks::<4>();
        let data = match ty.dtype {
            DType::F32 => TensorData::F32(quads.iter().map(|&b| f32::from_le_bytes(b)).collect()),
            DType::Bf16 => TensorData::Bf16(pairs.iter().map(|&b| bf16::from_le_bytes(b)).collect()),
            DType::F16 => TensorData::F16(pairs.iter().map(|&b| f16::from_le_bytes(b)).collect()),
            DType::I32 => TensorData::I32(quads.iter().map(|&b| i32::from_le_bytes(b)).collect()),
            DType::I16 => TensorData::I16(pairs.iter().map(|&b| i16::from_le_bytes(b)).collect()),
            DType::U8 => TensorData::U8(bytes.to_vec()),
        };
        Tensor { ty, data }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_back_change_nothing() {
        for dtype in [DType::F32, DType::Bf16, DType::F16, DType::I32, DType::I16, DType::U8] {
            let ty = Type { shape: Shape::from([2, 2]), dtype };
            let tensor = Tensor::from_numbers(ty, &[1.5, -2.0, 1e30, -0.0]);
            assert_eq!(Tensor::from_bytes(ty, &tensor.to_bytes()), tensor);
        }
    }

    #[test]
    fn rounding_goes_to_the_even_neighbour() {
        let round =
            |dtype, x: f64| Tensor::from_numbers(Type { shape: Shape::SCALAR, dtype }, &[x]).numbers()[0];
        // bf16 has 8 bits of mantissa: 1 + 2⁻⁸ lies midway between 1 and 1 + 2⁻⁷.
        assert!((round(DType::Bf16, 1.0 + 2f64.powi(-8)) - 1.0).abs() < 1e-12);
        assert!((round(DType::Bf16, 1.0 + 3.0 * 2f64.powi(-8)) - (1.0 + 2f64.powi(-6))).abs() < 1e-12);
        assert!((round(DType::I32, 2.5) - 2.0).abs() < 1e-12);
    }
}
