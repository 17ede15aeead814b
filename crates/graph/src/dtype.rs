//! Element types.

use std::fmt;

/// How one element of a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// 32-bit float.
    F32,
    /// 16-bit float with the exponent range of `f32`.
    Bf16,
    /// IEEE half precision.
    F16,
    /// 32-bit signed integer: token ids, positions, counters.
    I32,
    /// 16-bit signed integer: the lower halves of f32 weights whose upper halves are bf16.
    I16,
    /// 8-bit code: an entry of a table of 256 numbers.
    U8,
}

impl DType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::Bf16 | DType::F16 | DType::I16 => 2,
            DType::U8 => 1,
        }
    }

    /// Whether values of this type can carry a gradient.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::Bf16 | DType::F16)
    }

    /// The name used in text forms.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
            DType::I32 => "i32",
            DType::I16 => "i16",
            DType::U8 => "u8",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
