//! Softmax over the last axis, its gradient, and the cross-entropy of rows of logits.
//!
//! Rows are copied into the output first and processed there, so that the output may overlap the input. A row without a
//! loss (its target is `ignore_index`) contributes nothing and has a zero gradient.
#![allow(
    clippy::inline_always,
    reason = "inner loops must be compiled with their callers' vector instructions"
)]
#![allow(unsafe_code, reason = "softmax's gradient may write over either of its inputs")]

use half::bf16;
use plimsoll_graph::{DType, Op, Type};
use plimsoll_plan::Workspace;

use super::element::Element;
use super::exp::exp;
use super::lanes::{Elementwise, PIECE, Streams};
use super::simd::widest;
use super::split::{self, Overwritten};
use super::{Call, pieces, reduce};
use crate::ExecError;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    let known = matches!(
        call.op,
        Op::Softmax | Op::SoftmaxGrad | Op::CrossEntropy { .. } | Op::CrossEntropyGrad { .. }
    );
    known.then(|| match call.precision()? {
        DType::Bf16 => run_as::<bf16>(call),
        _ => run_as::<f32>(call),
    })
}

/// Runs an op of this file whose values between nodes are of type `E`.
fn run_as<E: Element>(call: &Call) -> Result<(), ExecError> {
    match call.op {
        Op::CrossEntropy { ignore_index } => return cross_entropy::<E>(call, *ignore_index),
        Op::CrossEntropyGrad { ignore_index } => return cross_entropy_grad::<E>(call, *ignore_index),
        Op::Softmax => softmax::<E>(call),
        _ => softmax_grad(call, Streams::<2, 1, E>::of(call)),
    }
    Ok(())
}

/// The scratch that an op of this file needs.
pub(super) fn workspace(op: &Op, inputs: &[Type], _: &[Type], _: usize) -> Option<Workspace> {
    Some(match op {
        Op::CrossEntropy { .. } => cross_entropy_workspace(inputs),
        _ => return None,
    })
}

/// Rows of a piece of a matrix with `width` columns.
fn per_piece(width: usize) -> usize {
    PIECE.div_ceil(width.max(1))
}

fn softmax<E: Element>(call: &Call) {
    let (x, shape) = (Overwritten::<E>::input(call, 0), call.inputs[0].ty.shape);
    let width = shape.columns();
    split::rows(shape.rows(), per_piece(width), [call.output_as::<E>(0)], |range, [y]| {
        x.copy_to(range.start * width, y);
        y.chunks_exact_mut(width).for_each(|row| {
            softmax_in_place(row, 1.0);
        });
    });
}

widest! {
    /// `factor · softmax(row)`; returns the largest element and the factor of the exponentials. Exponentials are stored
    /// in the row if it holds f32, and are otherwise computed twice.
    pub(super) fn softmax_in_place<E: Element>(row: &mut [E], factor: f32) -> [f32; 2] {
        let max = reduce::max(row);
        if E::WHOLE {
            for x in row.iter_mut() {
                *x = E::rounded(exp(x.wide() - max));
            }
        }
        let factor = factor / if E::WHOLE { reduce::sum(row) } else { reduce::sum_exp(row, max) };
        for x in row.iter_mut() {
            let term = if E::WHOLE { x.wide() } else { exp(x.wide() - max) };
            *x = E::rounded(term * factor);
        }
        [max, factor]
    }
}

/// `y·(dy − mean)`.
struct Centred {
    mean: f32,
}

impl Elementwise<2, 1> for Centred {
    #[inline(always)]
    fn at(&self, [y, dy]: [f32; 2]) -> [f32; 1] {
        [y * (dy - self.mean)]
    }
}

fn softmax_grad<E: Element>(call: &Call, streams: Streams<2, 1, E>) {
    let shape = call.inputs[0].ty.shape;
    let (rows, width) = (shape.rows(), shape.columns());
    let together = per_piece(width);
    pieces::for_each(rows.div_ceil(together), |piece| {
        for row in piece * together..rows.min((piece + 1) * together) {
            // SAFETY: the row lies inside the operands, which have one shape; the inputs are borrowed only
            // until the mean is known, and written to afterwards; rows do not overlap.
            unsafe {
                let here = streams.from(row * width);
                let [y, dy] = here.inputs.map(|input| std::slice::from_raw_parts(input, width));
                let mean = dot(y, dy);
                here.apply(&Centred { mean }, width);
            }
        }
    });
}

widest! {
    pub(super) fn dot<E: Element>(a: &[E], b: &[E]) -> f32 {
        reduce::dot(a, b)
    }
}

fn cross_entropy<E: Element>(call: &Call, ignore_index: i32) -> Result<(), ExecError> {
    let (logits, targets, scale) = (call.elements::<E>(0), call.integers(1), call.input(2)[0]);
    let width = call.inputs[0].ty.shape[1];
    check(targets, width, ignore_index)?;
    let losses = &mut call.scratch()[..targets.len()];
    split::rows(targets.len(), per_piece(width), [&mut *losses], |range, [losses]| {
        for (row, loss) in range.zip(losses) {
            let target = targets[row];
            let logits = &logits[row * width..(row + 1) * width];
            *loss = if target == ignore_index { 0.0 } else { row_loss(logits, target as usize) };
        }
    });
    // In f64, since a batch has thousands of rows and people read the loss.
    let total: f64 = losses.iter().map(|&loss| f64::from(loss)).sum();
    call.output(0)[0] = (f64::from(scale) * total) as f32;
    Ok(())
}

fn cross_entropy_workspace(inputs: &[Type]) -> Workspace {
    Workspace::exactly(inputs[1].bytes() as u64)
}

widest! {
    fn row_loss<E: Element>(logits: &[E], target: usize) -> f32 {
        let max = reduce::max(logits);
        (max - logits[target].wide()) + reduce::sum_exp(logits, max).ln()
    }
}

fn cross_entropy_grad<E: Element>(call: &Call, ignore_index: i32) -> Result<(), ExecError> {
    let (logits, targets, scale) = (Overwritten::<E>::input(call, 0), call.integers(1), call.input(2)[0]);
    let width = call.inputs[0].ty.shape[1];
    check(targets, width, ignore_index)?;
    split::rows(targets.len(), per_piece(width), [call.output_as::<E>(0)], |range, [gradient]| {
        for (row, gradient) in range.zip(gradient.chunks_exact_mut(width)) {
            if targets[row] == ignore_index {
                gradient.fill(E::ZERO);
                continue;
            }
            logits.copy_to(row * width, gradient);
            let target = targets[row] as usize;
            let logit = gradient[target].wide();
            let [max, factor] = softmax_in_place(gradient, scale);
            let of_target = exp(logit - max) * factor - scale;
            gradient[target] = E::rounded(if logit.is_finite() { of_target } else { f32::NAN });
        }
    });
    Ok(())
}

/// Checks the targets before anything is written.
fn check(targets: &[i32], words: usize, ignore_index: i32) -> Result<(), ExecError> {
    let known = |&&target: &&i32| {
        target == ignore_index || usize::try_from(target).is_ok_and(|target| target < words)
    };
    match targets.iter().find(|target| !known(target)) {
        Some(target) => Err(ExecError::Data(format!("target {target} is outside the vocabulary of {words}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::trial::{Trial, assert_near, numbers};

    const ROWS: usize = 70;
    const WIDTH: usize = 1501;

    fn logits() -> Vec<f32> {
        numbers(ROWS * WIDTH, 1).iter().map(|x| 4.0 * x).collect()
    }

    /// Softmax and the logarithm of its divisor, by definition.
    fn exact(row: &[f32]) -> (Vec<f64>, f64) {
        let divisor: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        (row.iter().map(|&x| f64::from(x).exp() / divisor).collect(), divisor.ln())
    }

    #[test]
    fn softmax_and_its_gradient_follow_their_equations_in_place_and_on_two_threads() {
        let (x, dy) = (logits(), numbers(ROWS * WIDTH, 2));
        let forward = || Trial::new(Op::Softmax).f32([ROWS, WIDTH], &x);
        let y = forward().run();
        assert_eq!(y, forward().over(0, 0).threads(2).run());
        let expected: Vec<f64> = x.chunks(WIDTH).flat_map(|row| exact(row).0).collect();
        assert_near(&y[0], &expected, 1e-6);

        let grad = || Trial::new(Op::SoftmaxGrad).f32([ROWS, WIDTH], &y[0]).f32([ROWS, WIDTH], &dy);
        let dx: Vec<f64> = y[0]
            .chunks(WIDTH)
            .zip(dy.chunks(WIDTH))
            .flat_map(|(y, dy)| {
                let mean: f64 = y.iter().zip(dy).map(|(&y, &dy)| f64::from(y) * f64::from(dy)).sum();
                y.iter().zip(dy).map(move |(&y, &dy)| f64::from(y) * (f64::from(dy) - mean))
            })
            .collect();
        let plain = grad().run();
        assert_near(&plain[0], &dx, 1e-6);
        assert_eq!(plain, grad().threads(2).run());
        assert_eq!(plain, grad().over(0, 0).run());
        assert_eq!(plain, grad().over(0, 1).run());
    }

    #[test]
    fn cross_entropy_leaves_out_ignored_rows_forward_and_backward() {
        let x = logits();
        let targets: Vec<i32> =
            (0..ROWS).map(|row| if row % 5 == 0 { -100 } else { (row * 97 % WIDTH) as i32 }).collect();
        let trial = |op| Trial::new(op).f32([ROWS, WIDTH], &x).i32([ROWS], &targets).f32([], &[0.25]);
        let (mut loss, mut gradient) = (0.0, Vec::new());
        for (row, &target) in x.chunks(WIDTH).zip(&targets) {
            if target < 0 {
                gradient.extend(vec![0.0; WIDTH]);
                continue;
            }
            let (mut p, divisor) = exact(row);
            loss += 0.25 * (divisor - f64::from(row[target as usize]));
            p[target as usize] -= 1.0;
            gradient.extend(p.iter().map(|p| 0.25 * p));
        }
        let forward = trial(Op::CrossEntropy { ignore_index: -100 }).run();
        assert_near(&forward[0], &[loss], 2e-7);
        assert_eq!(forward, trial(Op::CrossEntropy { ignore_index: -100 }).threads(2).run());
        let backward = trial(Op::CrossEntropyGrad { ignore_index: -100 }).run();
        assert_near(&backward[0], &gradient, 1e-6);
        assert_eq!(backward, trial(Op::CrossEntropyGrad { ignore_index: -100 }).over(0, 0).threads(2).run());
    }

    #[test]
    fn a_loss_that_is_not_finite_has_a_gradient_that_is_none() {
        let impossible = [0.5, f32::NEG_INFINITY, 1.0];
        let trial = |op| Trial::new(op).f32([1, 3], &impossible).i32([1], &[1]).f32([], &[1.0]);
        assert_eq!(trial(Op::CrossEntropy { ignore_index: -100 }).run()[0], [f32::INFINITY]);
        let gradient = &trial(Op::CrossEntropyGrad { ignore_index: -100 }).run()[0];
        assert!(gradient[1].is_nan() && gradient[0].is_finite() && gradient[2].is_finite(), "{gradient:?}");
    }

    #[test]
    fn a_target_outside_the_vocabulary_is_named() {
        let trial = Trial::new(Op::CrossEntropy { ignore_index: -100 });
        let error = trial.f32([1, 3], &[0.0; 3]).i32([1], &[3]).f32([], &[1.0]).attempt();
        assert_eq!(error, Err(ExecError::Data("target 3 is outside the vocabulary of 3".into())));
    }
}
