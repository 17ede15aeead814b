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

use half::bf16;
use plimsoll_graph::DType;

use super::element::Element;
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
    /// The result of the work.
    type Output;
    /// Does the work. Implementations must be `#[inline(always)]`.
    fn run(self) -> Self::Output;
}

/// Runs the copy of `work` compiled for the widest vectors of the pool's instructions.
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
        let instructions = super::pool::instructions();
        if instructions >= super::Instructions::Avx512 {
            // SAFETY: the path has these features, and a pool takes only paths that the processor has.
            return unsafe { avx512(work) };
        }
        if instructions >= super::Instructions::Avx2 {
            // SAFETY: as above.
            return unsafe { avx2(work) };
        }
    }
    work.run()
}

/// Where the operands of an elementwise op begin; all are of one type.
#[derive(Clone, Copy)]
pub(super) struct Streams<const IN: usize, const OUT: usize, E = f32> {
    /// Operands that are read.
    pub(super) inputs: [*const E; IN],
    /// Operands that are written; each may equal one of `inputs`.
    pub(super) outputs: [*mut E; OUT],
}

// SAFETY: the addresses lie in the arena, which outlives the call; pieces write disjoint elements.
unsafe impl<const IN: usize, const OUT: usize, E> Send for Streams<IN, OUT, E> {}
// SAFETY: as above.
unsafe impl<const IN: usize, const OUT: usize, E> Sync for Streams<IN, OUT, E> {}

impl<const IN: usize, const OUT: usize, E: Element> Streams<IN, OUT, E> {
    /// The first `IN` inputs and `OUT` outputs of a call whose values between nodes are of type `E`.
    pub(super) fn of(call: &Call) -> Self {
        let inputs = std::array::from_fn(|i| call.pointer(i));
        let outputs = std::array::from_fn(|i| call.output_as::<E>(i).as_mut_ptr());
        Streams { inputs, outputs }
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
/// When an operand is neither f32 nor bf16.
pub(super) fn map<const IN: usize, const OUT: usize>(
    call: &Call,
    function: &impl Elementwise<IN, OUT>,
) -> Result<(), ExecError> {
    let len = call.outputs[0].ty.shape.elements();
    match call.precision()? {
        DType::Bf16 => map_streams(Streams::<IN, OUT, bf16>::of(call), function, len),
        _ => map_streams(Streams::<IN, OUT, f32>::of(call), function, len),
    }
    Ok(())
}

/// Applies `function` to `len` elements of `streams`, a piece at a time.
pub(super) fn map_streams<const IN: usize, const OUT: usize, E: Element>(
    streams: Streams<IN, OUT, E>,
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

struct Segment<'a, M, const IN: usize, const OUT: usize, E> {
    map: &'a M,
    streams: Streams<IN, OUT, E>,
    len: usize,
}

impl<M: Elementwise<IN, OUT>, const IN: usize, const OUT: usize, E: Element> Work
    for Segment<'_, M, IN, OUT, E>
{
    type Output = ();

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "constant bounds become whole vectors")]
    fn run(self) {
        let Streams { inputs, outputs } = self.streams;
        let mut x = [[0.0; LANES]; IN];
        let whole = self.len - self.len % LANES;
        for start in (0..whole).step_by(LANES) {
            for (x, input) in x.iter_mut().zip(inputs) {
                // SAFETY: `start + LANES ≤ len`, which `apply`'s caller vouched for; the chunk is copied
                // out, so nothing is borrowed while the outputs are written.
                let chunk = unsafe { input.add(start).cast::<[E; LANES]>().read_unaligned() };
                for lane in 0..LANES {
                    x[lane] = chunk[lane].wide();
                }
            }
            let y = each_lane(self.map, &x);
            for (y, output) in y.into_iter().zip(outputs) {
                let mut chunk = [E::ZERO; LANES];
                for lane in 0..LANES {
                    chunk[lane] = E::rounded(y[lane]);
                }
                // SAFETY: as above.
                unsafe { output.add(start).cast::<[E; LANES]>().write_unaligned(chunk) };
            }
        }
        let rest = self.len - whole;
        if rest > 0 {
            for (x, input) in x.iter_mut().zip(inputs) {
                for (lane, x) in x.iter_mut().enumerate().take(rest) {
                    // SAFETY: `whole + rest = len`.
                    *x = unsafe { input.add(whole + lane).read_unaligned() }.wide();
                }
            }
            let y = each_lane(self.map, &x);
            for (y, output) in y.iter().zip(outputs) {
                for (lane, &y) in y.iter().enumerate().take(rest) {
                    // SAFETY: as above.
                    unsafe { output.add(whole + lane).write_unaligned(E::rounded(y)) };
                }
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
