//! The CPU device's fast kernels.

mod call;

pub use call::{Call, Operand};
