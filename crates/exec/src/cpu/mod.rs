//! The CPU device's fast kernels: one function per op, beside the size of the scratch it needs.
//!
//! Each is judged against the reference kernel of the same name. None allocates.

mod call;
mod exp;
mod pieces;
mod simd;

use plimsoll_graph::{Op, Type};
use plimsoll_plan::Workspace;

use crate::ExecError;
pub use call::{Call, Operand};

/// Runs one op.
///
/// # Errors
///
/// When the data is bad or there is no kernel for these element types.
pub fn run(call: &Call) -> Result<(), ExecError> {
    match call.op {
        op => Err(ExecError::Unsupported(format!("the CPU has no kernel for {}", op.name()))),
    }
}

/// Scratch memory of one op on a pool of `threads`.
pub fn workspace(op: &Op, _inputs: &[Type], _outputs: &[Type], _threads: usize) -> Workspace {
    match op {
        _ => Workspace::default(),
    }
}
