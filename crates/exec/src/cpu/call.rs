//! One kernel call: an op with its operands, as places in the arena.
//!
//! Operands are lent as slices. `replay` has proved that the bytes of an output overlap no other operand
//! of the same action, except where the op says an output may take over a dying input
//! ([`Op::may_overwrite`]); kernels of those ops read such inputs through [`Call::pointer`] and never as
//! a slice.
#![allow(unsafe_code, reason = "this module lends slices of the arena to kernels")]

use half::bf16;
use plimsoll_graph::{DType, Op, Type};

use super::pack::Numbers;

/// A place in the arena seen as a value.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// First byte.
    pub pointer: *mut u8,
    /// Shape and element type.
    pub ty: Type,
    /// For an output: whether the result is added to what is there, instead of replacing it.
    pub accumulate: bool,
}

// SAFETY: an operand is an address inside the arena, which outlives every call; kernels split what they
// write between threads so that no two threads touch the same element.
unsafe impl Send for Operand {}
// SAFETY: as above.
unsafe impl Sync for Operand {}

/// Memory that a kernel may use as it likes during one call; contents are undefined before and after.
#[derive(Clone, Copy, Debug)]
pub struct Scratch {
    /// First byte, aligned for floats.
    pub pointer: *mut u8,
    /// How many bytes.
    pub bytes: usize,
}

impl Scratch {
    /// For kernels that need none.
    pub const NONE: Scratch = Scratch { pointer: std::ptr::dangling_mut::<f32>().cast(), bytes: 0 };
}

// SAFETY: as for operands: an address inside the arena, whose parts kernels share out between threads.
unsafe impl Send for Scratch {}
// SAFETY: as above.
unsafe impl Sync for Scratch {}

/// An op with its operands.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// What to compute.
    pub op: &'a Op,
    /// What to read.
    pub inputs: &'a [Operand],
    /// What to write. State that is updated in place appears here only.
    pub outputs: &'a [Operand],
    /// At least the bytes the device asked for.
    pub workspace: Scratch,
}

impl Call<'_> {
    /// Input `index` as floats. Not for inputs that an output of this op may overwrite.
    pub(super) fn input(&self, index: usize) -> &[f32] {
        self.slice(&self.inputs[index], DType::F32)
    }

    /// Input `index` as integers.
    pub(super) fn integers(&self, index: usize) -> &[i32] {
        self.slice(&self.inputs[index], DType::I32)
    }

    /// Input `index`, a weight, as it is stored.
    pub(super) fn weight(&self, index: usize) -> Numbers<'_> {
        match self.inputs[index].ty.dtype {
            DType::Bf16 => Numbers::Bf16(self.slice(&self.inputs[index], DType::Bf16)),
            _ => Numbers::F32(self.input(index)),
        }
    }

    /// Output `index` as floats. Each output may be borrowed once at a time.
    #[allow(clippy::mut_from_ref, reason = "the borrow is of the arena, not of the call; see SAFETY")]
    pub(super) fn output(&self, index: usize) -> &mut [f32] {
        let operand = &self.outputs[index];
        assert_eq!(operand.ty.dtype, DType::F32, "output {index} of {}", self.op.name());
        // SAFETY: the range lies inside the arena and is aligned (the layout rounds offsets up to the
        // device's alignment); `replay` proved that it overlaps no other operand but inputs that the op
        // may overwrite, which kernels do not borrow; a kernel ends one borrow of an output before the next.
        unsafe { std::slice::from_raw_parts_mut(operand.pointer.cast(), operand.ty.shape.elements()) }
    }

    /// Output `index` as bf16. Each output may be borrowed once at a time.
    #[allow(clippy::mut_from_ref, reason = "the borrow is of the arena, not of the call; see SAFETY")]
    pub(super) fn half_output(&self, index: usize) -> &mut [bf16] {
        let operand = &self.outputs[index];
        assert_eq!(operand.ty.dtype, DType::Bf16, "output {index} of {}", self.op.name());
        // SAFETY: as for `output`.
        unsafe { std::slice::from_raw_parts_mut(operand.pointer.cast(), operand.ty.shape.elements()) }
    }

    /// Address of input `index`, for ops that may write over it.
    pub(super) fn pointer(&self, index: usize) -> *const f32 {
        assert_eq!(self.inputs[index].ty.dtype, DType::F32, "input {index} of {}", self.op.name());
        self.inputs[index].pointer.cast()
    }

    /// The scratch memory as floats.
    #[allow(clippy::mut_from_ref, reason = "the borrow is of the arena, not of the call; see SAFETY")]
    pub(super) fn scratch(&self) -> &mut [f32] {
        let Scratch { pointer, bytes } = self.workspace;
        // SAFETY: as for outputs; the workspace is a buffer of its own for the length of the action.
        unsafe { std::slice::from_raw_parts_mut(pointer.cast(), bytes / 4) }
    }

    fn slice<T>(&self, operand: &Operand, dtype: DType) -> &[T] {
        assert_eq!(operand.ty.dtype, dtype, "an input of {}", self.op.name());
        // SAFETY: the range lies inside the arena, is aligned and was written by an earlier action;
        // nothing writes it during this one (see the module's documentation).
        unsafe { std::slice::from_raw_parts(operand.pointer.cast(), operand.ty.shape.elements()) }
    }
}
