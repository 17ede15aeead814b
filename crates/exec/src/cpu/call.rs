//! One kernel call: an op with its operands, as places in the arena.
//!
//! Operands are lent as slices. `replay` has proved that the bytes of an output overlap no other operand of the same
//! action, except if the op allows an output to take over a dying input ([`Op::may_overwrite`]); kernels of those ops
//! read such inputs through [`Call::pointer`] and never as a slice.
#![allow(unsafe_code, reason = "this module lends slices of the arena to kernels")]

use plimsoll_graph::{DType, Op, Type};

use super::element::Element;
use super::pack::Numbers;
use crate::ExecError;

/// A place in the arena seen as a value.
#[derive(Clone, Copy, Debug)]
pub struct CpuOperand {
    /// First byte.
    pub pointer: *mut u8,
    /// Shape and element type.
    pub ty: Type,
    /// For an output: whether the result is added to its contents instead of replacing them.
    pub accumulate: bool,
}

// SAFETY: an operand is an address inside the arena, which outlives every call; kernels split what they
// write between threads so that no two threads touch the same element.
unsafe impl Send for CpuOperand {}
// SAFETY: as above.
unsafe impl Sync for CpuOperand {}

/// Memory that a kernel may use as it likes during one call; contents are undefined before and after.
#[derive(Clone, Copy, Debug)]
pub struct ScratchMemory {
    /// First byte, aligned for floats.
    pub pointer: *mut u8,
    /// The number of bytes.
    pub bytes: usize,
}

impl ScratchMemory {
    /// The scratch of kernels that need none.
    pub const NONE: ScratchMemory =
        ScratchMemory { pointer: std::ptr::dangling_mut::<f32>().cast(), bytes: 0 };
}

// SAFETY: as for operands: an address inside the arena, whose parts kernels share out between threads.
unsafe impl Send for ScratchMemory {}
// SAFETY: as above.
unsafe impl Sync for ScratchMemory {}

/// An op with its operands.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The op.
    pub op: &'a Op,
    /// Inputs.
    pub inputs: &'a [CpuOperand],
    /// Outputs. State that is updated in place appears here only.
    pub outputs: &'a [CpuOperand],
    /// Scratch of at least the bytes that the device asked for.
    pub workspace: ScratchMemory,
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

    /// Input `index` as bytes.
    pub(super) fn bytes(&self, index: usize) -> &[u8] {
        self.slice(&self.inputs[index], DType::U8)
    }

    /// Input `index`, a value between nodes, as it is stored.
    pub(super) fn elements<E: Element>(&self, index: usize) -> &[E] {
        self.slice(&self.inputs[index], E::DTYPE)
    }

    /// Input `index`, a weight or a value between nodes, as it is stored.
    pub(super) fn numbers(&self, index: usize) -> Numbers<'_> {
        match self.inputs[index].ty.dtype {
            DType::Bf16 => Numbers::Bf16(self.slice(&self.inputs[index], DType::Bf16)),
            _ => Numbers::F32(self.input(index)),
        }
    }

    /// Output `index` as floats. Each output may be borrowed once at a time.
    #[allow(clippy::mut_from_ref, reason = "the borrow is of the arena, not of the call; see SAFETY")]
    pub(super) fn output(&self, index: usize) -> &mut [f32] {
        self.output_as(index)
    }

    /// Output `index` as it is stored. Each output may be borrowed once at a time.
    #[allow(clippy::mut_from_ref, reason = "the borrow is of the arena, not of the call; see SAFETY")]
    pub(super) fn output_as<E: Element>(&self, index: usize) -> &mut [E] {
        let operand = &self.outputs[index];
        assert_eq!(operand.ty.dtype, E::DTYPE, "output {index} of {}", self.op.name());
        // SAFETY: the range lies inside the arena and is aligned (the layout rounds offsets up to the
        // device's alignment); `replay` proved that it overlaps no other operand but inputs that the op
        // may overwrite, which kernels do not borrow; a kernel ends one borrow of an output before the next.
        unsafe { std::slice::from_raw_parts_mut(operand.pointer.cast(), operand.ty.shape.elements()) }
    }

    /// Output `index` as integers. Each output may be borrowed once at a time.
    #[allow(clippy::mut_from_ref, reason = "the borrow is of the arena, not of the call; see SAFETY")]
    pub(super) fn output_integers(&self, index: usize) -> &mut [i32] {
        let operand = &self.outputs[index];
        assert_eq!(operand.ty.dtype, DType::I32, "output {index} of {}", self.op.name());
        // SAFETY: as for outputs of floats.
        unsafe { std::slice::from_raw_parts_mut(operand.pointer.cast(), operand.ty.shape.elements()) }
    }

    /// Address of input `index`, for ops that may write over it.
    pub(super) fn pointer<E: Element>(&self, index: usize) -> *const E {
        assert_eq!(self.inputs[index].ty.dtype, E::DTYPE, "input {index} of {}", self.op.name());
        self.inputs[index].pointer.cast()
    }

    /// The type of the values between nodes that the op reads, f32 or bf16.
    ///
    /// # Errors
    ///
    /// When an operand has a type that the CPU's kernels have no code for.
    pub(super) fn precision(&self) -> Result<DType, ExecError> {
        let refused = |dtype: DType| {
            ExecError::Unsupported(format!("the CPU has no {dtype} kernel for {}", self.op.name()))
        };
        let either = |dtype: DType| matches!(dtype, DType::F32 | DType::Bf16);
        let mut between = None;
        for (index, operand) in self.inputs.iter().enumerate().filter(|(_, x)| x.ty.dtype != DType::I32) {
            let dtype = operand.ty.dtype;
            let whole = self.op.reads_whole(index) && !self.is_added(index);
            let other = between.is_some_and(|between| between != dtype);
            if !either(dtype)
                || !self.op.reads_half(index) && (whole && dtype != DType::F32 || !whole && other)
            {
                return Err(refused(dtype));
            }
            if !whole && !self.op.reads_half(index) {
                between = Some(dtype);
            }
        }
        for (index, output) in self.outputs.iter().enumerate() {
            let sum = self.op.can_accumulate(index) && !self.op.sums_in_half(index);
            if !either(output.ty.dtype) || sum && output.ty.dtype != DType::F32 {
                return Err(refused(output.ty.dtype));
            }
        }
        Ok(between.unwrap_or(DType::F32))
    }

    /// Whether input `index` is a value of the result's shape that a linear layer adds.
    fn is_added(&self, index: usize) -> bool {
        let shape = self.inputs[index].ty.shape;
        matches!(self.op, Op::Linear { .. })
            && index == 2
            && shape.len() > 1
            && shape == self.outputs[0].ty.shape
    }

    /// The scratch memory as floats.
    #[allow(clippy::mut_from_ref, reason = "the borrow is of the arena, not of the call; see SAFETY")]
    pub(super) fn scratch(&self) -> &mut [f32] {
        let ScratchMemory { pointer, bytes } = self.workspace;
        // SAFETY: as for outputs; the workspace is a buffer of its own for the length of the action.
        unsafe { std::slice::from_raw_parts_mut(pointer.cast(), bytes / 4) }
    }

    fn slice<T>(&self, operand: &CpuOperand, dtype: DType) -> &[T] {
        assert_eq!(operand.ty.dtype, dtype, "an input of {}", self.op.name());
        // SAFETY: the range lies inside the arena, is aligned and was written by an earlier action;
        // nothing writes it during this one (see the module's documentation).
        unsafe { std::slice::from_raw_parts(operand.pointer.cast(), operand.ty.shape.elements()) }
    }
}
