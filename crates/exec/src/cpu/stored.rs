//! An optimizer's step over state of any element type: a block is widened to f32, updated, and stored again.
//!
//! ```text
//! gradient f32 | bf16 ──────────────┐
//! parameter f32 | bf16 | bf16 + i16 ┼─▶ f32 [256] ─▶ rule ─▶ f32 [256] ─▶ rounded as `Stored` says
//! moments f32 | bf16 | u8 + scales ─┘
//! ```
//!
//! The block is that of 8-bit moments, so one thread sees all numbers that share a scale, and results do not depend on
//! which thread. No f32 copy of more than a block exists.
#![allow(
    clippy::inline_always,
    reason = "inner loops must be compiled with their callers' vector instructions"
)]
#![allow(unsafe_code, reason = "element types are known by value, so operands are reached by address")]

use half::bf16;
use plimsoll_graph::op::{BLOCK, Moments, Stored, Weights};

use super::cast::{elements, load, store};
use super::lanes::{PIECE, Work, at_full_width};
use super::{Call, CpuOperand, pieces};
use crate::codes::{Codes, SIGNED, UNSIGNED};
use crate::random::Stream;
use crate::{init, rounding};

/// One step of one element with `M` moments.
pub(super) trait Rule<const M: usize>: Sync {
    /// The parameter and its moments after the step. Implementations must be `#[inline(always)]`.
    fn at(&self, grad: f32, parameter: f32, moments: [f32; M]) -> (f32, [f32; M]);
}

/// Applies `rule` to all elements of a call whose first input is the gradient, whose last is `rng` where rounding is
/// random, and whose outputs are those of [`Stored::types`].
pub(super) fn update<const M: usize>(call: &Call, stored: Stored, rule: &impl Rule<M>) {
    let grad = call.inputs[0];
    // SAFETY: `update_from` asks for elements inside the parameter, and the verifier has found the shapes equal; nobody
    // writes a gradient during its update.
    update_from(call, stored, rule, |at, numbers| unsafe { load(&grad, at, numbers) });
}

/// As [`update`], with numbers in place of the gradient that `direction` writes: elements `at …` of them. It is called
/// once for each block, whose start is a multiple of [`BLOCK`].
pub(super) fn update_from<const M: usize>(
    call: &Call,
    stored: Stored,
    rule: &impl Rule<M>,
    direction: impl Fn(usize, &mut [f32]) + Sync + Send,
) {
    let ranges = Ranges::<M>::new(call, stored);
    let len = call.outputs[0].ty.shape.elements();
    pieces::for_each(len.div_ceil(PIECE), |piece| {
        for at in (piece * PIECE..len.min((piece + 1) * PIECE)).step_by(BLOCK) {
            let mut block = Block { grad: [0.0; BLOCK], parameter: [0.0; BLOCK], moments: [[0.0; BLOCK]; M] };
            let len = BLOCK.min(len - at);
            // SAFETY: the block lies inside the operands, whose shapes the graph's verifier has found equal;
            // pieces are cut at multiples of a block, so no two threads meet in one.
            unsafe {
                direction(at, &mut block.grad[..len]);
                ranges.load(at, len, &mut block);
                at_full_width(Step { rule, block: &mut block });
                ranges.store(at, len, &block);
            }
        }
    });
}

/// The numbers of one block as f32, with zeros beyond the end.
struct Block<const M: usize> {
    grad: [f32; BLOCK],
    parameter: [f32; BLOCK],
    moments: [[f32; BLOCK]; M],
}

/// The rule on one block.
struct Step<'a, R, const M: usize> {
    rule: &'a R,
    block: &'a mut Block<M>,
}

impl<R: Rule<M>, const M: usize> Work for Step<'_, R, M> {
    type Output = ();

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "the lane indexes every operand")]
    fn run(self) {
        let Block { grad, parameter, moments } = self.block;
        for i in 0..BLOCK {
            let mut held = [0.0; M];
            for (held, moment) in held.iter_mut().zip(&*moments) {
                *held = moment[i];
            }
            let (stepped, held) = self.rule.at(grad[i], parameter[i], held);
            parameter[i] = stepped;
            for (held, moment) in held.into_iter().zip(&mut *moments) {
                moment[i] = held;
            }
        }
    }
}

/// The operands of an update.
struct Ranges<const M: usize> {
    parameter: Parameter,
    moments: [Moment; M],
}

#[derive(Clone, Copy)]
enum Parameter {
    Plain(CpuOperand),
    /// With the number of its first element in the whole parameter.
    Stochastic(CpuOperand, Stream, usize),
    Split {
        upper: CpuOperand,
        lower: CpuOperand,
    },
}

#[derive(Clone, Copy)]
enum Moment {
    Plain(CpuOperand),
    Blocks { codes: CpuOperand, scales: CpuOperand, table: &'static Codes, positive: bool },
}

impl<const M: usize> Ranges<M> {
    fn new(call: &Call, stored: Stored) -> Ranges<M> {
        let outputs = call.outputs;
        let (parameter, first) = match stored.weights {
            Weights::F32 => (Parameter::Plain(outputs[0]), 1),
            Weights::Stochastic { stream } | Weights::StochasticShard { stream } => {
                let rng = call.integers(call.inputs.len() - 1);
                let shard = matches!(stored.weights, Weights::StochasticShard { .. });
                let first = if shard { rng[3] as usize * outputs[0].ty.shape.elements() } else { 0 };
                (Parameter::Stochastic(outputs[0], Stream::of_input(rng, stream), first), 1)
            }
            Weights::Split => (Parameter::Split { upper: outputs[0], lower: outputs[1] }, 2),
        };
        let moments = std::array::from_fn(|index| match stored.moments {
            Moments::F32 | Moments::Bf16 => Moment::Plain(outputs[first + index]),
            Moments::Blocks => Moment::Blocks {
                codes: outputs[first + 2 * index],
                scales: outputs[first + 2 * index + 1],
                table: if index == 0 { &SIGNED } else { &UNSIGNED },
                positive: index == 1,
            },
        });
        Ranges { parameter, moments }
    }

    /// # Safety
    ///
    /// `at … at + len` lies inside the operands, begins a block, and no other thread writes there.
    unsafe fn load(&self, at: usize, len: usize, block: &mut Block<M>) {
        // SAFETY: the caller's promise.
        unsafe {
            self.parameter.load(at, &mut block.parameter[..len]);
            for (moment, numbers) in self.moments.iter().zip(&mut block.moments) {
                moment.load(at, &mut numbers[..len]);
            }
        }
    }

    /// # Safety
    ///
    /// As for [`load`](Self::load), and nothing else reads there.
    unsafe fn store(&self, at: usize, len: usize, block: &Block<M>) {
        // SAFETY: the caller's promise.
        unsafe {
            self.parameter.store(at, &block.parameter[..len]);
            for (moment, numbers) in self.moments.iter().zip(&block.moments) {
                moment.store(at, &numbers[..len]);
            }
        }
    }
}

impl Parameter {
    /// # Safety
    ///
    /// As for [`Ranges::load`].
    unsafe fn load(&self, at: usize, numbers: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Parameter::Plain(range) | Parameter::Stochastic(range, ..) => load(range, at, numbers),
                Parameter::Split { upper, lower } => {
                    let upper = elements::<bf16>(upper.pointer.add(2 * at), numbers.len());
                    let lower = elements::<i16>(lower.pointer.add(2 * at), numbers.len());
                    for (number, (&upper, &lower)) in numbers.iter_mut().zip(upper.iter().zip(&*lower)) {
                        *number = rounding::join(upper, lower);
                    }
                }
            }
        }
    }

    /// # Safety
    ///
    /// As for [`Ranges::store`].
    unsafe fn store(&self, at: usize, numbers: &[f32]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Parameter::Plain(range) => store(range, at, numbers),
                Parameter::Stochastic(range, stream, first) => {
                    let to = elements::<bf16>(range.pointer.add(2 * at), numbers.len());
                    round_at_random(stream, first + at, numbers, to);
                }
                Parameter::Split { upper, lower } => {
                    let upper = elements::<bf16>(upper.pointer.add(2 * at), numbers.len());
                    let lower = elements::<i16>(lower.pointer.add(2 * at), numbers.len());
                    for (&number, (upper, lower)) in numbers.iter().zip(upper.iter_mut().zip(&mut *lower)) {
                        (*upper, *lower) = rounding::split(number);
                    }
                }
            }
        }
    }
}

/// Rounds elements `at …` of a parameter to bf16.
fn round_at_random(stream: &Stream, at: usize, numbers: &[f32], to: &mut [bf16]) {
    // Shards of small tensors are divided to the element, and may begin amid four that are drawn together.
    let before = numbers.len().min(at.next_multiple_of(4) - at);
    for (index, (to, &number)) in (at..at + before).zip(to.iter_mut().zip(numbers)) {
        let (row, element) = init::place(index);
        *to = rounding::stochastic(number, stream.bits(row, element));
    }
    let (numbers, to) = (&numbers[before..], &mut to[before..]);
    at_full_width(RoundAtRandom { stream, at: at + before, numbers, to });
}

/// Elements `at …` of a parameter rounded to bf16, four to a draw; `at` is a multiple of four.
struct RoundAtRandom<'a> {
    stream: &'a Stream,
    at: usize,
    numbers: &'a [f32],
    to: &'a mut [bf16],
}

impl Work for RoundAtRandom<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (row, first) = init::place(self.at);
        let groups = self.numbers.chunks(4).zip(self.to.chunks_mut(4));
        for (group, (numbers, to)) in (first / 4..).zip(groups) {
            let bits = self.stream.quad(row, group);
            for ((to, &number), bits) in to.iter_mut().zip(numbers).zip(bits) {
                *to = rounding::stochastic(number, bits);
            }
        }
    }
}

impl Moment {
    /// # Safety
    ///
    /// As for [`Ranges::load`].
    unsafe fn load(&self, at: usize, numbers: &mut [f32]) {
        // SAFETY: the caller's promise; there is one scale for each block.
        unsafe {
            match self {
                Moment::Plain(range) => load(range, at, numbers),
                Moment::Blocks { codes, scales, table, .. } => {
                    let codes = elements::<u8>(codes.pointer.add(at), numbers.len());
                    let scale = elements::<f32>(scales.pointer.add(4 * (at / BLOCK)), 1)[0];
                    for (number, &code) in numbers.iter_mut().zip(&*codes) {
                        *number = table.numbers[usize::from(code)] * scale;
                    }
                }
            }
        }
    }

    /// # Safety
    ///
    /// As for [`Ranges::store`].
    unsafe fn store(&self, at: usize, numbers: &[f32]) {
        // SAFETY: the caller's promise; there is one scale for each block.
        unsafe {
            match self {
                Moment::Plain(range) => store(range, at, numbers),
                Moment::Blocks { codes, scales, table, positive } => {
                    let codes = elements::<u8>(codes.pointer.add(at), numbers.len());
                    let scale = &mut elements::<f32>(scales.pointer.add(4 * (at / BLOCK)), 1)[0];
                    *scale = numbers.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
                    let inverse = if *scale > 0.0 { 1.0 / f64::from(*scale) } else { 0.0 };
                    for (code, &number) in codes.iter_mut().zip(numbers) {
                        let x = (f64::from(number) * inverse) as f32;
                        *code = if *positive { table.nearest_positive(x) } else { table.nearest(x) };
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::trial::numbers;

    #[test]
    fn shards_are_rounded_as_in_the_whole_wherever_they_begin() {
        let stream = Stream::new(5, 6, 7);
        let all = numbers(1003, 1);
        let mut whole = vec![bf16::ZERO; all.len()];
        round_at_random(&stream, 0, &all, &mut whole);
        for len in [256, 334, 201, 5, 3] {
            let mut shards = vec![bf16::ZERO; all.len()];
            for (shard, (numbers, to)) in all.chunks(len).zip(shards.chunks_mut(len)).enumerate() {
                round_at_random(&stream, shard * len, numbers, to);
            }
            assert_eq!(shards, whole, "shards of {len} elements");
        }
        let mut other = vec![bf16::ZERO; all.len()];
        round_at_random(&stream, 4, &all, &mut other);
        assert_ne!(other, whole, "the place decides");
    }
}
