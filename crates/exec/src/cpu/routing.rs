//! Probabilities of experts with the logarithm of their divisor, and the choice of the largest.
//!
//! A row belongs to one thread, so every result has one order of operations. Rows are as wide as there are experts, tens
//! or hundreds of columns: the choice goes through them once and keeps the best so far in order.

use half::bf16;
use plimsoll_graph::{DType, Op};

use super::element::{self, Element};
use super::lanes::PIECE;
use super::softmax::{dot, softmax_in_place};
use super::{Call, split};
use crate::ExecError;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    Some(match call.op {
        Op::SoftmaxLse => softmax_lse(call),
        Op::SoftmaxLseGrad { softmax, lse } => {
            softmax_lse_grad(call, *softmax, *lse);
            Ok(())
        }
        Op::TopK { k, steered: false } => {
            let scores = call.input(0);
            top_k(call, *k, |at, _| scores[at])
        }
        Op::TopK { k, steered: true } => {
            let (p, bias) = (call.input(1), call.input(2));
            top_k(call, *k, |at, column| p[at] + bias[column])
        }
        Op::TopKGrad { columns } => top_k_grad(call, *columns),
        _ => return None,
    })
}

/// Rows of a piece of a matrix with `width` columns.
fn per_piece(width: usize) -> usize {
    PIECE.div_ceil(width.max(1))
}

fn softmax_lse(call: &Call) -> Result<(), ExecError> {
    match call.precision()? {
        DType::Bf16 => softmax_lse_of::<bf16>(call),
        _ => softmax_lse_of::<f32>(call),
    }
    Ok(())
}

fn softmax_lse_of<E: Element>(call: &Call) {
    let (x, shape) = (call.elements::<E>(0), call.inputs[0].ty.shape);
    let (rows, width) = (shape.rows(), shape.columns());
    let (p, lse) = (call.output(0), [call.output(1)]);
    split::rows_with_statistics(rows, per_piece(width), p, lse, |range, p, [lse]| {
        element::widen(&x[range.start * width..range.end * width], p);
        for (row, lse) in p.chunks_exact_mut(width).zip(lse) {
            // The factor is one over the divisor.
            let [max, factor] = softmax_in_place(row, 1.0);
            *lse = max - factor.ln();
        }
    });
}

fn softmax_lse_grad(call: &Call, softmax: bool, lse: bool) {
    let (p, shape) = (call.input(0), call.inputs[0].ty.shape);
    let dp = softmax.then(|| call.input(1));
    let dlse = lse.then(|| call.input(1 + usize::from(softmax)));
    let width = shape.columns();
    split::rows(shape.rows(), per_piece(width), [call.output(0)], |range, [dx]| {
        for (row, dx) in range.zip(dx.chunks_exact_mut(width)) {
            let here = row * width..(row + 1) * width;
            let (p, dlse) = (&p[here.clone()], dlse.map_or(0.0, |dlse| dlse[row]));
            match dp.map(|dp| &dp[here]) {
                Some(dp) => {
                    let shift = dlse - dot(p, dp);
                    for ((dx, p), dp) in dx.iter_mut().zip(p).zip(dp) {
                        *dx = p * (dp + shift);
                    }
                }
                None => {
                    for (dx, p) in dx.iter_mut().zip(p) {
                        *dx = p * dlse;
                    }
                }
            }
        }
    });
}

/// Chooses by `key`, which is given an element and its column.
fn top_k(call: &Call, k: usize, key: impl Fn(usize, usize) -> f32 + Sync) -> Result<(), ExecError> {
    let (scores, shape) = (call.input(0), call.inputs[0].ty.shape);
    let (rows, width) = (shape.rows(), shape.columns());
    if let Some(at) = (0..scores.len()).find(|&at| key(at, at % width).is_nan()) {
        let why = format!("the router's score of expert {} is not a number", at % width);
        return Err(ExecError::NotFinite(why));
    }
    split::rows(rows, per_piece(width), [call.output_integers(1)], |range, [indices]| {
        for (row, chosen) in range.zip(indices.chunks_exact_mut(k)) {
            choose(width, |column| key(row * width + column, column), chosen);
        }
    });
    let indices = &*call.output_integers(1);
    split::rows(rows, per_piece(k), [call.output(0)], |range, [weights]| {
        for (row, weights) in range.zip(weights.chunks_exact_mut(k)) {
            let chosen = &indices[row * k..(row + 1) * k];
            for (weight, &column) in weights.iter_mut().zip(chosen) {
                *weight = scores[row * width + column as usize];
            }
        }
    });
    Ok(())
}

/// The columns of the largest scores, as many as `chosen` holds, by falling score.
fn choose(columns: usize, key: impl Fn(usize) -> f32, chosen: &mut [i32]) {
    let mut filled = 0;
    for column in 0..columns {
        let score = key(column);
        // An equal score is placed after earlier ones, so the lower index wins.
        let place = chosen[..filled].partition_point(|&before| key(before as usize) >= score);
        if place < chosen.len() {
            filled = (filled + 1).min(chosen.len());
            chosen.copy_within(place..filled - 1, place + 1);
            chosen[place] = column as i32;
        }
    }
}

fn top_k_grad(call: &Call, columns: usize) -> Result<(), ExecError> {
    let (indices, dweights) = (call.integers(0), call.input(1));
    let (rows, k) = (call.inputs[1].ty.shape.rows(), call.inputs[1].ty.shape.columns());
    let known = |index: i32| usize::try_from(index).is_ok_and(|column| column < columns);
    if let Some(&index) = indices.iter().find(|&&index| !known(index)) {
        return Err(ExecError::Data(format!("expert {index} is outside the {columns} experts")));
    }
    split::rows(rows, per_piece(columns), [call.output(0)], |range, [dscores]| {
        for (row, dscores) in range.zip(dscores.chunks_exact_mut(columns)) {
            dscores.fill(0.0);
            let here = row * k..(row + 1) * k;
            for (&column, dweight) in indices[here.clone()].iter().zip(&dweights[here]) {
                dscores[column as usize] += dweight;
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::trial::Trial;

    #[test]
    fn equal_scores_are_taken_by_rising_index() {
        let chosen = |scores: &[f32]| {
            let mut chosen = [0; 3];
            choose(scores.len(), |column| scores[column], &mut chosen);
            chosen
        };
        assert_eq!(chosen(&[1.0, 2.0, 2.0, 1.0, 2.0, 0.0]), [1, 2, 4]);
        assert_eq!(chosen(&[-0.0, 0.0, -0.0, 0.0]), [0, 1, 2]);
        assert_eq!(chosen(&[f32::NEG_INFINITY, 3.0, f32::INFINITY, 4.0]), [2, 3, 1]);
    }

    #[test]
    fn a_score_that_is_no_number_is_refused_and_its_expert_named() {
        let scores = [0.0, 1.0, 2.0, 0.0, f32::NAN, 1.0];
        let op = Op::TopK { k: 1, steered: false };
        let error = Trial::new(op).f32([2, 3], &scores).attempt();
        assert_eq!(error, Err(ExecError::NotFinite("the router's score of expert 1 is not a number".into())));
    }
}
