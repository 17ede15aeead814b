//! The list of steps under construction, with a bump allocator over the op's scratch.

use plimsoll_exec::ExecError;
use plimsoll_graph::{DType, Op, Shape, Type};

use super::ALIGNMENT;
use super::launch::{Arg, Launch, StreamStep};
use super::library::Library;
use super::place::Place;

/// A value and where it lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Operand {
    /// First byte.
    pub place: Place,
    /// Shape and element type.
    pub ty: Type,
    /// For outputs: whether to add to the bytes that are there.
    pub accumulate: bool,
}

impl Operand {
    pub(super) fn shape(&self) -> Shape {
        self.ty.shape
    }

    pub(super) fn count(&self) -> usize {
        self.ty.shape.elements()
    }

    /// The address.
    pub(super) fn pointer(&self) -> Arg {
        Arg::Pointer(self.place)
    }

    /// The tag of the element type.
    pub(super) fn kind(&self) -> Arg {
        kind(self.ty.dtype)
    }

    /// Whether the kernel is to add to its output, as the argument that it takes.
    pub(super) fn adds(&self) -> Arg {
        Arg::I32(i32::from(self.accumulate))
    }
}

/// Choices that are made once for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that the logits of one chunk of a head may take, within the bounds of its rows.
    pub head_bytes: u64,
    /// The fewest rows of a chunk.
    pub head_rows: usize,
    /// Whether every sum has one order, so that runs agree bit for bit.
    pub deterministic: bool,
    /// How documents are passed to libraries.
    pub documents: DocumentForm,
    /// The number of this rank among several.
    pub rank: usize,
}

/// How attention by a library is kept inside documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DocumentForm {
    /// A mask of scores: any documents, at the price of whole rows.
    #[default]
    Masked,
    /// Every document is a sequence of its own, found by tables: the time of its own scores, and room for a fixed
    /// number of documents.
    Ragged,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            head_bytes: 256 << 20,
            head_rows: 256,
            deterministic: false,
            documents: DocumentForm::Masked,
            rank: 0,
        }
    }
}

/// One op with its operands.
pub(super) struct Call<'a> {
    pub(super) op: &'a Op,
    pub(super) inputs: &'a [Operand],
    pub(super) outputs: &'a [Operand],
}

/// Steps so far, and scratch in use.
pub(super) struct Lowering<'a> {
    pub(super) library: &'a dyn Library,
    pub(super) limits: Limits,
    pub(super) steps: Vec<StreamStep>,
    scratch: Place,
    used: u64,
    /// The most scratch that was ever in use.
    pub(super) most: u64,
}

impl<'a> Lowering<'a> {
    pub(super) fn new(library: &'a dyn Library, limits: Limits, scratch: Place) -> Lowering<'a> {
        Lowering { library, limits, steps: Vec::new(), scratch, used: 0, most: 0 }
    }

    /// Scratch of this many bytes, until [`release`](Self::release).
    pub(super) fn take(&mut self, bytes: u64) -> Place {
        let place = self.scratch.after(self.used);
        self.used = (self.used + bytes).next_multiple_of(ALIGNMENT);
        self.most = self.most.max(self.used);
        place
    }

    /// Scratch for a value.
    pub(super) fn value(&mut self, shape: impl Into<Shape>, dtype: DType) -> Operand {
        let ty = Type { shape: shape.into(), dtype };
        Operand { place: self.take(ty.bytes() as u64), ty, accumulate: false }
    }

    /// The bytes in use, to be handed to [`release`](Self::release).
    pub(super) fn mark(&self) -> u64 {
        self.used
    }

    /// Gives back all that was taken since the mark.
    pub(super) fn release(&mut self, mark: u64) {
        self.used = mark;
    }

    /// A launch over this many blocks of threads in one row.
    pub(super) fn launch(&mut self, kernel: impl Into<String>, blocks: usize, threads: u32, args: Vec<Arg>) {
        self.launch_grid(kernel, [blocks as u32, 1, 1], [threads, 1], 0, args);
    }

    pub(super) fn launch_grid(
        &mut self,
        kernel: impl Into<String>,
        grid: [u32; 3],
        block: [u32; 2],
        shared: u32,
        args: Vec<Arg>,
    ) {
        if !grid.contains(&0) {
            self.steps.push(StreamStep::Launch(Launch { kernel: kernel.into(), grid, block, shared, args }));
        }
    }

    /// A copy within the arena, if there is anything to move.
    pub(super) fn copy(&mut self, from: Place, to: Place, bytes: u64) {
        if from != to && bytes > 0 {
            self.steps.push(StreamStep::Copy { from, to, bytes });
        }
    }

    pub(super) fn zero(&mut self, to: &Operand) {
        if to.count() > 0 {
            self.steps.push(StreamStep::Zero { to: to.place, bytes: to.ty.bytes() as u64 });
        }
    }
}

/// Threads that share a row of this many packs of 16 bytes, at most `most`.
pub(super) fn threads_for(columns: usize, dtype: DType, most: u32) -> u32 {
    let packs = columns.div_ceil(lanes(dtype)) as u32;
    packs.next_multiple_of(32).clamp(32, most)
}

/// Elements in 16 bytes.
pub(super) fn lanes(dtype: DType) -> usize {
    16 / dtype.bytes()
}

/// The ending of a kernel's name for activations of this type.
pub(super) fn suffix(call: &Call, dtype: DType) -> Result<&'static str, ExecError> {
    match dtype {
        DType::F32 => Ok("f32"),
        DType::Bf16 => Ok("bf16"),
        other => Err(unsupported(call, &format!("has no CUDA kernel for {other}; cast to f32 or bf16"))),
    }
}

/// The tag of an element type, as kernels know it.
pub(crate) fn kind(dtype: DType) -> Arg {
    Arg::I32(match dtype {
        DType::F32 => 0,
        DType::Bf16 => 1,
        DType::F16 => 2,
        DType::I32 => 3,
        DType::I16 => 4,
        DType::U8 => 5,
    })
}

pub(super) fn i64(number: usize) -> Arg {
    Arg::I64(number as i64)
}

pub(super) fn i32(number: usize) -> Arg {
    Arg::I32(number as i32)
}

pub(super) fn unsupported(call: &Call, why: &str) -> ExecError {
    ExecError::Unsupported(format!("{} {why}", call.op.name()))
}
