//! Parameters that move in a random subspace, and the gradient of their coordinates.
//!
//! The gradient is summed in parts: each part of the blocks has sums of its own in scratch, and these are added in their
//! order. The number of parts follows from shapes alone.
#![allow(unsafe_code, reason = "parameters and gradients of any element type are reached by address")]

use plimsoll_graph::{Op, Type};
use plimsoll_plan::Workspace;

use super::cast::{load, store};
use super::lanes::PIECE;
use super::{Call, pieces, split};
use crate::ExecError;
use crate::subspace::Projection;

/// Numbers that are widened at a time.
const CHUNK: usize = 256;
/// The most parts of a sum.
const PARTS: usize = 16;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    match call.op {
        Op::Subspace { stream } => moved(call, *stream),
        Op::SubspaceGrad { stream, dimension } => {
            gradient(call, Projection::new(*stream, *dimension), *dimension);
        }
        _ => return None,
    }
    Some(Ok(()))
}

/// The scratch that an op of this file needs: the sums of each part.
pub(super) fn workspace(op: &Op, inputs: &[Type], _: &[Type], _: usize) -> Option<Workspace> {
    let Op::SubspaceGrad { dimension, .. } = op else { return None };
    let (parts, _) = parts(inputs[0].shape.elements(), *dimension);
    Some(Workspace::exactly(4 * (parts * dimension) as u64))
}

/// The number of parts in which the sum over `elements` is taken, and the elements of each: whole blocks of
/// `dimension` elements.
fn parts(elements: usize, dimension: usize) -> (usize, usize) {
    let blocks = elements.div_ceil(dimension.max(1));
    let each = blocks.div_ceil(PARTS).max(1);
    (blocks.div_ceil(each), each * dimension)
}

fn moved(call: &Call, stream: u64) {
    let (w, to, coordinates) = (call.inputs[0], call.outputs[0], call.input(1));
    let projection = Projection::new(stream, coordinates.len());
    let len = w.ty.shape.elements();
    pieces::for_each(len.div_ceil(PIECE), |piece| {
        let mut numbers = [0.0; CHUNK];
        for at in (piece * PIECE..len.min((piece + 1) * PIECE)).step_by(CHUNK) {
            let numbers = &mut numbers[..CHUNK.min(len - at)];
            // SAFETY: the chunk lies inside both operands, which have one shape; pieces do not overlap.
            unsafe { load(&w, at, numbers) };
            projection.add(coordinates, at, numbers);
            // SAFETY: as above.
            unsafe { store(&to, at, numbers) };
        }
    });
}

fn gradient(call: &Call, projection: Projection, dimension: usize) {
    let (dw, len) = (call.inputs[0], call.inputs[0].ty.shape.elements());
    let (parts, each) = parts(len, dimension);
    let sums = &mut call.scratch()[..parts * dimension];
    split::rows(parts, 1, [&mut *sums], |range, [sums]| {
        sums.fill(0.0);
        let mut numbers = [0.0; CHUNK];
        let end = len.min((range.start + 1) * each);
        for at in (range.start * each..end).step_by(CHUNK) {
            let numbers = &mut numbers[..CHUNK.min(end - at)];
            // SAFETY: the chunk lies inside the gradient, which nobody writes meanwhile.
            unsafe { load(&dw, at, numbers) };
            projection.gather(at, numbers, sums);
        }
    });
    let (adds, sums) = (call.outputs[0].accumulate, &*sums);
    split::rows(dimension, PIECE, [call.output(0)], |range, [total]| {
        if !adds {
            total.fill(0.0);
        }
        for part in sums.chunks(dimension) {
            total.iter_mut().zip(&part[range.clone()]).for_each(|(total, sum)| *total += sum);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::trial::{Trial, numbers};

    #[test]
    fn sums_have_the_same_bits_on_any_number_of_threads_and_the_projection_is_the_transpose_of_the_move() {
        for dimension in [3, 500, 20_000] {
            let (dw, v) = (numbers(60 * 211, 1), numbers(dimension, 2));
            let of_sums = Trial::new(Op::SubspaceGrad { stream: 9, dimension }).f32([60, 211], &dw);
            let gathered = of_sums.run_everywhere().remove(0);
            let moving = Trial::new(Op::Subspace { stream: 9 }).f32([60, 211], &vec![0.0; 60 * 211]);
            let moved = moving.f32([dimension], &v).run_everywhere().remove(0);
            let dot = |a: &[f32], b: &[f32]| -> f64 {
                a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
            };
            let [there, back] = [dot(&moved, &dw), dot(&v, &gathered)];
            assert!((there - back).abs() < 1e-4 * dot(&dw, &dw).sqrt() * dot(&v, &v).sqrt(), "{dimension}");
        }
    }
}
