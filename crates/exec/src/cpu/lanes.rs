//! The core of the elementwise kernels: one function of a few numbers, applied all along the operands.
//!
//! A kernel names its function as a type that implements [`Elementwise`]; the loop, the cut into pieces,
//! the choice of instruction set and the only `unsafe` code are here. Results may be written over inputs:
//! the loop reads a chunk of every input before it writes that chunk of any output, so an output that
//! occupies exactly the bytes of an input is harmless. Outputs that overlap an input in any other way
//! do not occur (`replay` has proved it).
#![allow(
    clippy::inline_always,
    reason = "inner loops must be compiled with their callers' vector instructions"
)]
#![allow(
    unsafe_code,
    reason = "elementwise kernels may write over their inputs, which slices cannot express"
)]

use plimsoll_graph::DType;

use super::{Call, pieces};
use crate::ExecError;

/// Elements one thread takes at a time: 64 KiB, which stays in the second-level cache.
pub(super) const PIECE: usize = 16 * 1024;

/// Elements read before any is written.
const LANES: usize = 64;

/// A function of `IN` numbers that gives `OUT` numbers.
pub(super) trait Elementwise<const IN: usize, const OUT: usize>: Sync {
    /// The function. Implementations must be `#[inline(always)]`, to be compiled with the vector
    /// instructions of the loop around them.
    fn at(&self, x: [f32; IN]) -> [f32; OUT];
}

/// Work to be compiled for each instruction set: the generic counterpart of [`widest!`](super::simd).
pub(super) trait Work {
    /// What it yields.
    type Output;
    /// Does it. Implementations must be `#[inline(always)]`.
    fn run(self) -> Self::Output;
}

/// Runs the copy of `work` compiled for the widest vectors the machine has.
pub(super) fn at_full_width<W: Work>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
        fn avx512<W: Work>(work: W) -> W::Output {
            work.run()
        }
        #[target_feature(enable = "avx2")]
        fn avx2<W: Work>(work: W) -> W::Output {
            work.run()
        }
        if super::simd::has_avx512() {
            // SAFETY: the processor was asked for exactly these features.
            return unsafe { avx512(work) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor was asked for this feature.
            return unsafe { avx2(work) };
        }
    }
    work.run()
}

/// Where the operands of an elementwise op begin.
#[derive(Clone, Copy)]
pub(super) struct Streams<const IN: usize, const OUT: usize> {
    /// What is read.
    pub(super) inputs: [*const f32; IN],
    /// What is written; each may equal one of `inputs`.
    pub(super) outputs: [*mut f32; OUT],
}

// SAFETY: the addresses lie in the arena, which outlives the call; pieces write disjoint elements.
unsafe impl<const IN: usize, const OUT: usize> Send for Streams<IN, OUT> {}
// SAFETY: as above.
unsafe impl<const IN: usize, const OUT: usize> Sync for Streams<IN, OUT> {}

impl<const IN: usize, const OUT: usize> Streams<IN, OUT> {
    /// The first `IN` inputs and `OUT` outputs of a call.
    ///
    /// # Errors
    ///
    /// When one of them does not hold f32.
    pub(super) fn of(call: &Call) -> Result<Self, ExecError> {
        want_f32(call)?;
        let inputs = std::array::from_fn(|i| call.pointer(i));
        let outputs = std::array::from_fn(|i| call.outputs[i].pointer.cast());
        Ok(Streams { inputs, outputs })
    }

    /// The same operands from element `start` on.
    ///
    /// # Safety
    ///
    /// `start` must not exceed the length of any operand.
    pub(super) unsafe fn from(self, start: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Streams { inputs: self.inputs.map(|p| p.add(start)), outputs: self.outputs.map(|p| p.add(start)) }
        }
    }

    /// Applies `map` to the first `len` elements.
    ///
    /// # Safety
    ///
    /// Every operand has `len` elements, and no other thread touches those of the outputs.
    pub(super) unsafe fn apply(self, map: &impl Elementwise<IN, OUT>, len: usize) {
        at_full_width(Segment { map, streams: self, len });
    }
}

/// The function of a call whose operands all have as many elements as its first output.
///
/// # Errors
///
/// When an operand does not hold f32.
pub(super) fn map<const IN: usize, const OUT: usize>(
    call: &Call,
    function: &impl Elementwise<IN, OUT>,
) -> Result<(), ExecError> {
    let streams = Streams::of(call)?;
    map_streams(streams, function, call.outputs[0].ty.shape.elements());
    Ok(())
}

/// Applies `function` to `len` elements of `streams`, a piece at a time.
pub(super) fn map_streams<const IN: usize, const OUT: usize>(
    streams: Streams<IN, OUT>,
    function: &impl Elementwise<IN, OUT>,
    len: usize,
) {
    pieces::for_each(len.div_ceil(PIECE), |piece| {
        let start = piece * PIECE;
        // SAFETY: the range lies inside the operands, whose shapes the graph's verifier has found equal;
        // pieces do not overlap.
        unsafe { streams.from(start).apply(function, PIECE.min(len - start)) }
    });
}

/// Refuses operands that are not f32; integer inputs (ids, random state) come after the floats and are
/// checked where they are read.
pub(super) fn want_f32(call: &Call) -> Result<(), ExecError> {
    let operands = call.inputs.iter().chain(call.outputs);
    match operands.map(|operand| operand.ty.dtype).find(|dtype| !matches!(dtype, DType::F32 | DType::I32)) {
        Some(dtype) => {
            Err(ExecError::Unsupported(format!("the CPU's {} works on f32, not {dtype}", call.op.name())))
        }
        None => Ok(()),
    }
}

struct Segment<'a, M, const IN: usize, const OUT: usize> {
    map: &'a M,
    streams: Streams<IN, OUT>,
    len: usize,
}

impl<M: Elementwise<IN, OUT>, const IN: usize, const OUT: usize> Work for Segment<'_, M, IN, OUT> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Streams { inputs, outputs } = self.streams;
        let mut x = [[0.0; LANES]; IN];
        let whole = self.len - self.len % LANES;
        for start in (0..whole).step_by(LANES) {
            for (x, input) in x.iter_mut().zip(inputs) {
                // SAFETY: `start + LANES ≤ len`, which `apply`'s caller vouched for; the chunk is copied
                // out, so nothing is borrowed while the outputs are written.
                *x = unsafe { input.add(start).cast::<[f32; LANES]>().read_unaligned() };
            }
            let y = each_lane(self.map, &x);
            for (y, output) in y.into_iter().zip(outputs) {
                // SAFETY: as above.
                unsafe { output.add(start).cast::<[f32; LANES]>().write_unaligned(y) };
            }
        }
        let rest = self.len - whole;
        if rest > 0 {
            for (x, input) in x.iter_mut().zip(inputs) {
                // SAFETY: `whole + rest = len`.
                unsafe { std::ptr::copy_nonoverlapping(input.add(whole), x.as_mut_ptr(), rest) };
            }
            let y = each_lane(self.map, &x);
            for (y, output) in y.iter().zip(outputs) {
                // SAFETY: as above.
                unsafe { std::ptr::copy_nonoverlapping(y.as_ptr(), output.add(whole), rest) };
            }
        }
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the lane indexes every operand")]
fn each_lane<M: Elementwise<IN, OUT>, const IN: usize, const OUT: usize>(
    map: &M,
    x: &[[f32; LANES]; IN],
) -> [[f32; LANES]; OUT] {
    let mut y = [[0.0; LANES]; OUT];
    for lane in 0..LANES {
        let mut one = [0.0; IN];
        for (one, x) in one.iter_mut().zip(x) {
            *one = x[lane];
        }
        let results = map.at(one);
        for (y, result) in y.iter_mut().zip(results) {
            y[lane] = result;
        }
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::activation::GeluErf;
    use crate::cpu::trial::numbers;

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let x = numbers(1003, 1);
        let (mut wide, mut narrow) = (vec![0.0; 1003], vec![0.0; 1003]);
        let segment = |y: &mut Vec<f32>| Segment {
            map: &GeluErf,
            streams: Streams { inputs: [x.as_ptr()], outputs: [y.as_mut_ptr()] },
            len: 1003,
        };
        at_full_width(segment(&mut wide));
        segment(&mut narrow).run();
        assert_eq!(wide, narrow);
    }
}
