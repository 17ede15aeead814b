//! Copies of tokens sorted by expert, moved to their rows, and summed back.
//!
//! The sort counts, so it is linear, and one thread does it: it reads one integer per copy, where a product reads rows.
//! Movement is divided by rows of the result; one thread writes each row whole.
#![allow(
    clippy::inline_always,
    reason = "inner loops must be compiled with their callers' vector instructions"
)]

use half::bf16;
use plimsoll_graph::op::Sorting;
use plimsoll_graph::{DType, Op, Type};
use plimsoll_plan::Workspace;

use super::element::Element;
use super::lanes::{PIECE, Work, at_full_width};
use super::{Call, split};
use crate::ExecError;

/// Columns that a sum keeps in registers and caches while it goes over a token's rows.
const STRIP: usize = 256;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    let half = || call.precision().map(|dtype| dtype == DType::Bf16);
    let either = |narrow: fn(&Call) -> Result<(), ExecError>, wide: fn(&Call) -> Result<(), ExecError>| {
        half().and_then(|half| if half { narrow(call) } else { wide(call) })
    };
    Some(match call.op {
        Op::SortByExpert(sorting) => sort(call, *sorting),
        Op::Dispatch | Op::CombineGradRows => either(dispatch::<bf16>, dispatch::<f32>),
        Op::Combine { .. } => either(combine::<bf16>, combine::<f32>),
        Op::CombineGradWeights => either(grad_weights::<bf16>, grad_weights::<f32>),
        _ => return None,
    })
}

/// The scratch that an op of this file needs: copies that each expert has had of a sequence.
pub(super) fn workspace(op: &Op, _: &[Type], _: &[Type], _: usize) -> Option<Workspace> {
    let Op::SortByExpert(Sorting { experts, capacity: Some(_), .. }) = op else { return None };
    let bytes = 4 * *experts as u64;
    Some(Workspace { least: bytes, best: bytes })
}

/// `(indices[…,k]) → (places, slots, ranges)`.
fn sort(call: &Call, sorting: Sorting) -> Result<(), ExecError> {
    let (indices, shape) = (call.integers(0), call.inputs[0].ty.shape);
    let Sorting { experts, tile, capacity } = sorting;
    let known = |index: i32| usize::try_from(index).is_ok_and(|index| index < experts);
    if let Some(&index) = indices.iter().find(|&&index| !known(index)) {
        return Err(ExecError::Data(format!("expert {index} is outside the {experts} experts")));
    }
    let (places, ranges) = (call.output_integers(0), call.output_integers(2));
    ranges.fill(0);
    let sequence = (indices.len() / sorting.sequences(shape)).max(1);
    for (indices, places) in indices.chunks(sequence).zip(places.chunks_mut(sequence)) {
        match capacity {
            Some(most) => rank_within(indices, most, places, ranges, call.scratch()),
            None => rank(indices, places, ranges),
        }
    }
    let mut row = 0usize;
    for range in ranges.chunks_exact_mut(2) {
        range[0] = row as i32;
        row = (row + range[1] as usize).next_multiple_of(tile);
    }
    let slots = call.output_integers(1);
    slots.fill(-1);
    for (copy, (&index, place)) in indices.iter().zip(places).enumerate().filter(|(_, (_, p))| **p >= 0) {
        *place += ranges[2 * index as usize];
        slots[*place as usize] = copy as i32;
    }
    Ok(())
}

/// Numbers the copies of each expert, and counts them in the second column of `ranges`.
fn rank(indices: &[i32], places: &mut [i32], ranges: &mut [i32]) {
    for (&index, place) in indices.iter().zip(places) {
        let count = &mut ranges[2 * index as usize + 1];
        *place = *count;
        *count += 1;
    }
}

/// As [`rank`], of one sequence: copies of an expert beyond the first `most` are numbered −1. Counts in scratch are small
/// whole numbers, which floats hold.
fn rank_within(indices: &[i32], most: usize, places: &mut [i32], ranges: &mut [i32], counts: &mut [f32]) {
    counts.fill(0.0);
    for (&index, place) in indices.iter().zip(places) {
        let here = &mut counts[index as usize];
        if (*here as usize) < most {
            *here += 1.0;
            let count = &mut ranges[2 * index as usize + 1];
            *place = *count;
            *count += 1;
        } else {
            *place = -1;
        }
    }
}

/// `(x[…,C], slots[R], places[…,k][, weights[…,k]]) → y[R,C]`.
fn dispatch<E: Element>(call: &Call) -> Result<(), ExecError> {
    let (x, slots) = (call.elements::<E>(0), call.integers(1));
    let (width, copies) = (call.inputs[0].ty.shape.columns(), call.inputs[2].ty.shape.columns());
    let weights = (call.inputs.len() > 3).then(|| call.input(3));
    inside(slots, call.inputs[2].ty.shape.elements(), "copy")?;
    split::rows(slots.len(), per_piece(width), [call.output_as::<E>(0)], |range, [y]| {
        for (&slot, y) in slots[range].iter().zip(y.chunks_exact_mut(width)) {
            let Ok(slot) = usize::try_from(slot) else {
                y.fill(E::ZERO);
                continue;
            };
            let x = &x[slot / copies * width..][..width];
            match weights {
                Some(weights) => at_full_width(Scaled { weight: weights[slot], x, y }),
                None => y.copy_from_slice(x),
            }
        }
    });
    Ok(())
}

/// `(h[R,C], slots[R], places[…,k][, weights[…,k]]) → y[…,C]`. The terms of a sum are added in the order of copies.
fn combine<E: Element>(call: &Call) -> Result<(), ExecError> {
    let (h, places) = (call.elements::<E>(0), call.integers(2));
    let (width, copies) = (call.inputs[0].ty.shape.columns(), call.inputs[2].ty.shape.columns());
    let weights = (call.inputs.len() > 3).then(|| call.input(3));
    inside(places, call.inputs[0].ty.shape.rows(), "row")?;
    let rows = call.outputs[0].ty.shape.rows();
    split::rows(rows, per_piece(width * copies), [call.output_as::<E>(0)], |range, [y]| {
        for (token, y) in range.zip(y.chunks_exact_mut(width)) {
            let here = token * copies..(token + 1) * copies;
            let weights = weights.map(|weights| &weights[here.clone()]);
            at_full_width(Summed { h, width, places: &places[here], weights, y });
        }
    });
    Ok(())
}

/// `(h[R,C], dy[…,C], places[…,k]) → dweights[…,k]`.
fn grad_weights<E: Element>(call: &Call) -> Result<(), ExecError> {
    let (h, dy, places) = (call.elements::<E>(0), call.elements::<E>(1), call.integers(2));
    let (width, copies) = (call.inputs[0].ty.shape.columns(), call.inputs[2].ty.shape.columns());
    inside(places, call.inputs[0].ty.shape.rows(), "row")?;
    split::rows(places.len(), per_piece(width), [call.output(0)], |range, [dweights]| {
        for (copy, dweight) in range.zip(dweights) {
            *dweight = usize::try_from(places[copy]).map_or(0.0, |place| {
                let dy = &dy[copy / copies * width..][..width];
                at_full_width(Dot { a: &h[place * width..][..width], b: dy })
            });
        }
    });
    Ok(())
}

/// Rows of a piece of a matrix with `width` columns.
fn per_piece(width: usize) -> usize {
    PIECE.div_ceil(width.max(1))
}

/// Checks indices before anything is written; −1 stands for none.
fn inside(indices: &[i32], end: usize, what: &str) -> Result<(), ExecError> {
    let known = |index: i32| index == -1 || usize::try_from(index).is_ok_and(|index| index < end);
    match indices.iter().find(|&&index| !known(index)) {
        Some(index) => Err(ExecError::Data(format!("{what} {index} of a sort by expert is outside {end}"))),
        None => Ok(()),
    }
}

/// `y = weight·x`.
struct Scaled<'a, E> {
    weight: f32,
    x: &'a [E],
    y: &'a mut [E],
}

impl<E: Element> Work for Scaled<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (y, x) in self.y.iter_mut().zip(self.x) {
            *y = E::rounded(self.weight * x.wide());
        }
    }
}

/// `y = Σ weight·h[place]` over the copies that have a row.
struct Summed<'a, E> {
    h: &'a [E],
    width: usize,
    places: &'a [i32],
    weights: Option<&'a [f32]>,
    y: &'a mut [E],
}

impl<E: Element> Work for Summed<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (strip, y) in self.y.chunks_mut(STRIP).enumerate() {
            let mut sums = [0.0f32; STRIP];
            for (copy, &place) in self.places.iter().enumerate() {
                let Ok(place) = usize::try_from(place) else { continue };
                let h = &self.h[place * self.width + strip * STRIP..][..y.len()];
                let weight = self.weights.map_or(1.0, |weights| weights[copy]);
                for (sum, h) in sums.iter_mut().zip(h) {
                    *sum += weight * h.wide();
                }
            }
            for (y, sum) in y.iter_mut().zip(sums) {
                *y = E::rounded(sum);
            }
        }
    }
}

/// `Σ a·b`, in as many running sums as the widest vectors have numbers.
struct Dot<'a, E> {
    a: &'a [E],
    b: &'a [E],
}

impl<E: Element> Work for Dot<'_, E> {
    type Output = f32;

    #[inline(always)]
    fn run(self) -> f32 {
        const LANES: usize = 16;
        let mut sums = [0.0f32; LANES];
        let (a, b) = (self.a.chunks_exact(LANES), self.b.chunks_exact(LANES));
        let rest: f32 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a.wide() * b.wide()).sum();
        for (a, b) in a.zip(b) {
            for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
                *sum += a.wide() * b.wide();
            }
        }
        sums.iter().sum::<f32>() + rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::trial::{Trial, numbers};

    fn sorted(sorting: Sorting, shape: [usize; 3], indices: &[i32]) -> Vec<Vec<i32>> {
        let trial = Trial::new(Op::SortByExpert(sorting)).i32(shape, indices);
        trial
            .run_everywhere()
            .into_iter()
            .map(|out| out.iter().map(|x| x.to_bits() as i32).collect())
            .collect()
    }

    #[test]
    fn overflow_is_counted_sequence_by_sequence_as_in_the_switch_paper() {
        // Two sequences of five tokens, three experts, two rows for each: by hand, the third token of expert 1 of the
        // first sequence has no row, and so have the third and fourth of expert 0 of the second.
        let sorting = Sorting { experts: 3, tile: 1, capacity: Some(2) };
        let out = sorted(sorting, [2, 5, 1], &[1, 1, 0, 1, 2, 0, 0, 0, 2, 0]);
        assert_eq!(out[0], [3, 4, 0, -1, 5, 1, 2, -1, 6, -1]);
        assert_eq!(out[1], [2, 5, 6, 0, 1, 4, 8, -1, -1, -1]);
        assert_eq!(out[2], [0, 3, 3, 2, 5, 2]);
    }

    #[test]
    fn an_expert_begins_at_a_tile_whatever_the_others_have() {
        let sorting = Sorting { experts: 4, tile: 4, capacity: None };
        let out = sorted(sorting, [1, 3, 2], &[3, 0, 0, 3, 3, 1]);
        assert_eq!(out[0], [8, 0, 1, 9, 10, 4]);
        assert_eq!(out[2], [0, 2, 4, 1, 8, 0, 8, 3]);
        let error = Trial::new(Op::SortByExpert(sorting)).i32([1, 2], &[0, 4]).attempt();
        assert_eq!(error, Err(ExecError::Data("expert 4 is outside the 4 experts".into())));
    }

    #[test]
    fn a_copy_without_a_row_adds_nothing_and_gets_no_gradient() {
        let (h, places, slots) = (numbers(2 * 300, 1), [1, -1, 0, -1], [2, 0]);
        let weights = [0.5, f32::NAN, 2.0, f32::NAN];
        let combine = Trial::new(Op::Combine { weighted: true }).f32([2, 300], &h).i32([2], &slots);
        let y = combine.i32([2, 2], &places).f32([2, 2], &weights).run_everywhere().remove(0);
        for column in 0..300 {
            let expected = [0.5 * h[300 + column], 2.0 * h[column]];
            assert_eq!([y[column], y[300 + column]].map(f32::to_bits), expected.map(f32::to_bits));
        }
        let gradient = Trial::new(Op::CombineGradWeights).f32([2, 300], &h).f32([2, 300], &h);
        let dweights = gradient.i32([2, 2], &places).run_everywhere().remove(0);
        assert_eq!([dweights[1], dweights[3]].map(f32::to_bits), [0; 2]);
    }
}
