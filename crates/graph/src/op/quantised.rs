//! How a frozen weight is quantised: the ranges of state that hold it, and their types.
//!
//! The forms are those of the library bitsandbytes, so that its files and ours hold the same bytes. A weight lies
//! `(out, in)`, whichever way its model stores it.

use std::fmt;

use crate::{DType, Shape, Type};

/// Numbers of a weight that share a scale in the 4-bit forms.
pub const NF4_BLOCK: usize = 64;
/// Scales that share a second scale in [`Quantised::Nf4Double`].
pub const NF4_SECOND_BLOCK: usize = 256;

/// The form of a quantised weight (Dettmers et al. 2022 and 2023).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantised {
    /// `w = table[code] · absmax`: codes of four bits, two in a byte with the first in the upper half. They stand for
    /// 16 numbers that are equally likely in normal data, with an f32 scale for each [`NF4_BLOCK`] numbers of a row.
    Nf4,
    /// As [`Quantised::Nf4`], with scales of eight bits: `absmax = map[code] · second + offset`, an f32 `second` for each
    /// [`NF4_SECOND_BLOCK`] of them and one offset for the weight.
    Nf4Double,
    /// `w = code · absmax · (1/127)`: a signed byte for each number, and an f32 scale for each row.
    Int8,
}

impl Quantised {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Quantised::Nf4 => "nf4",
            Quantised::Nf4Double => "nf4, scales in 8 bits",
            Quantised::Int8 => "int8",
        }
    }

    /// The ranges that hold a weight of `rows · columns` numbers: the suffix of the weight's name, and the type.
    pub fn ranges(self, [rows, columns]: [usize; 2]) -> Vec<(&'static str, Type)> {
        let bytes = |shape: Shape| Type { shape, dtype: DType::U8 };
        let blocks = rows * columns / NF4_BLOCK;
        match self {
            Quantised::Nf4 => {
                vec![("", bytes([rows, columns / 2].into())), (".absmax", Type::f32([blocks]))]
            }
            Quantised::Nf4Double => vec![
                ("", bytes([rows, columns / 2].into())),
                (".absmax", bytes([blocks].into())),
                (".nested_absmax", Type::f32([blocks.div_ceil(NF4_SECOND_BLOCK)])),
                (".nested_offset", Type::f32([1])),
            ],
            Quantised::Int8 => vec![("", bytes([rows, columns].into())), (".SCB", Type::f32([rows]))],
        }
    }

    /// Why a weight with this many columns cannot be kept in this form, if it cannot.
    pub fn refuses(self, columns: usize) -> Option<String> {
        let whole = self == Quantised::Int8 || columns.is_multiple_of(NF4_BLOCK);
        (!whole).then(|| format!("has {columns} columns, and a block of 4-bit codes holds {NF4_BLOCK}"))
    }
}

impl fmt::Display for Quantised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The form that [`Op::Dequantise`](super::Op::Dequantise) reads, and the type that it yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dequantise {
    /// The form.
    pub form: Quantised,
    /// Rows and columns of the weight.
    pub shape: [usize; 2],
    /// Element type of the result: f32 or bf16.
    pub to: DType,
}
