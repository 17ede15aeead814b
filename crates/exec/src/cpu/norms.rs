//! Layer norm and root-mean-square norm over the last axis, with their gradients.
//!
//! With `n` the normalised row and `g = w·dy`, the gradient of the input is
//! `rstd·(g − mean(g) − n·mean(g·n))`, without the middle term for the root-mean-square norm; that of
//! the weight is the column sum of `n·dy`. The gradient of a layer norm's bias is an ordinary sum.
#![allow(
    clippy::inline_always,
    reason = "inner loops must be compiled with their callers' vector instructions"
)]

use half::bf16;
use plimsoll_graph::{DType, Op};

use super::element::Element;
use super::lanes::PIECE;
use super::simd::widest;
use super::sums::{ColumnTerms, columns};
use super::{Call, reduce, split};
use crate::ExecError;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    let known = matches!(
        call.op,
        Op::LayerNorm { .. }
            | Op::LayerNormGradInput
            | Op::LayerNormGradWeight
            | Op::RmsNorm { .. }
            | Op::RmsNormGradInput
            | Op::RmsNormGradWeight
    );
    if let Op::InverseNorm { scale } = call.op {
        inverse_norm(call, *scale);
        return Some(Ok(()));
    }
    known.then(|| {
        match call.precision()? {
            DType::Bf16 => run_as::<bf16>(call),
            _ => run_as::<f32>(call),
        }
        Ok(())
    })
}

/// Runs an op of this file whose values between nodes are of type `E`.
fn run_as<E: Element>(call: &Call) {
    match call.op {
        Op::LayerNorm { epsilon } => layer_norm::<E>(call, *epsilon),
        Op::RmsNorm { epsilon } => rms_norm::<E>(call, *epsilon),
        Op::LayerNormGradInput => {
            let [w, mean, rstd] = [1, 2, 3].map(|index| call.input(index));
            grad_input(
                Rows::<E> { x: call.elements(0), mean: Some(mean), rstd, dy: call.elements(4) },
                w,
                call,
            );
        }
        Op::RmsNormGradInput => {
            let [w, rstd] = [1, 2].map(|index| call.input(index));
            grad_input(Rows::<E> { x: call.elements(0), mean: None, rstd, dy: call.elements(3) }, w, call);
        }
        Op::LayerNormGradWeight => {
            let [mean, rstd] = [1, 2].map(|index| call.input(index));
            grad_weight(
                Rows::<E> { x: call.elements(0), mean: Some(mean), rstd, dy: call.elements(3) },
                call,
            );
        }
        _ => {
            let rstd = call.input(1);
            grad_weight(Rows::<E> { x: call.elements(0), mean: None, rstd, dy: call.elements(2) }, call);
        }
    }
}

/// Rows of a piece of a matrix with `width` columns.
fn per_piece(width: usize) -> usize {
    PIECE.div_ceil(width.max(1))
}

fn layer_norm<E: Element>(call: &Call, epsilon: f32) {
    let (x, w, b) = (call.elements::<E>(0), call.input(1), call.input(2));
    let (rows, statistics) = (call.inputs[0].ty.shape.rows(), [call.output(1), call.output(2)]);
    let y = call.output_as::<E>(0);
    split::rows_with_statistics(rows, per_piece(w.len()), y, statistics, |range, y, [mean, rstd]| {
        layer_norm_rows(&x[range.start * w.len()..range.end * w.len()], [w, b], epsilon, y, mean, rstd);
    });
}

widest! {
    fn layer_norm_rows<E: Element>(
        x: &[E], parameters: [&[f32]; 2], epsilon: f32, y: &mut [E], mean: &mut [f32], rstd: &mut [f32],
    ) {
        let ([w, b], width) = (parameters, parameters[0].len());
        let rows = x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(mean).zip(rstd);
        for (((x, y), mean), rstd) in rows {
            *mean = reduce::sum(x) / width as f32;
            *rstd = 1.0 / (reduce::squares_around(x, *mean) / width as f32 + epsilon).sqrt();
            for (y, ((x, w), b)) in y.iter_mut().zip(x.iter().zip(w).zip(b)) {
                *y = E::rounded(w * ((x.wide() - *mean) * *rstd) + b);
            }
        }
    }
}

fn rms_norm<E: Element>(call: &Call, epsilon: f32) {
    let (x, w, rows) = (call.elements::<E>(0), call.input(1), call.inputs[0].ty.shape.rows());
    let (y, statistics) = (call.output_as::<E>(0), [call.output(1)]);
    split::rows_with_statistics(rows, per_piece(w.len()), y, statistics, |range, y, [rstd]| {
        rms_norm_rows(&x[range.start * w.len()..range.end * w.len()], w, epsilon, y, rstd);
    });
}

widest! {
    fn rms_norm_rows<E: Element>(x: &[E], w: &[f32], epsilon: f32, y: &mut [E], rstd: &mut [f32]) {
        let width = w.len();
        for ((x, y), rstd) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(rstd) {
            *rstd = 1.0 / (reduce::dot(x, x) / width as f32 + epsilon).sqrt();
            for (y, (x, w)) in y.iter_mut().zip(x.iter().zip(w)) {
                *y = E::rounded(w * (x.wide() * *rstd));
            }
        }
    }
}

/// Operands of a norm's gradients. Without `mean` it is the root-mean-square norm.
#[derive(Clone, Copy)]
struct Rows<'a, E> {
    x: &'a [E],
    mean: Option<&'a [f32]>,
    rstd: &'a [f32],
    dy: &'a [E],
}

impl<E: Element> ColumnTerms for Rows<'_, E> {
    #[inline(always)]
    fn add(&self, row: usize, start: usize, sums: &mut [f32]) {
        let at = row * (self.x.len() / self.rstd.len()) + start;
        let (x, dy) = (&self.x[at..][..sums.len()], &self.dy[at..][..sums.len()]);
        let (mean, rstd) = (self.mean.map_or(0.0, |mean| mean[row]), self.rstd[row]);
        for (sum, (x, dy)) in sums.iter_mut().zip(x.iter().zip(dy)) {
            *sum += (x.wide() - mean) * rstd * dy.wide();
        }
    }
}

/// One thread sums a row whole, in the order of the rank.
fn inverse_norm(call: &Call, scale: f32) {
    let [squares, products, b, gram] = [0, 1, 2, 3].map(|index| call.input(index));
    let shape = call.inputs[2].ty.shape;
    let (out, rank) = (shape[0], shape[1]);
    split::rows(out, per_piece(rank * rank), [call.output(0)], |range, [inverse]| {
        for (row, inverse) in range.zip(inverse) {
            let b = &b[row * rank..][..rank];
            let mut sum = 0.0;
            for (k, factor) in b.iter().enumerate() {
                let product: f32 = gram[k * rank..][..rank].iter().zip(b).map(|(g, b)| g * b).sum();
                sum += factor * (2.0 * products[k * out + row] + scale * product);
            }
            *inverse = 1.0 / (squares[row] + scale * sum).sqrt();
        }
    });
}

/// The sum over rows, f32 or bf16.
fn grad_weight<E: Element>(rows: Rows<E>, call: &Call) {
    match call.outputs[0].ty.dtype {
        DType::Bf16 => columns(rows.rstd.len(), &rows, call.output_as::<bf16>(0), call.outputs[0].accumulate),
        _ => columns(rows.rstd.len(), &rows, call.output(0), call.outputs[0].accumulate),
    }
}

fn grad_input<E: Element>(rows: Rows<E>, w: &[f32], call: &Call) {
    split::rows(rows.rstd.len(), per_piece(w.len()), [call.output_as::<E>(0)], |range, [dx]| {
        for (row, dx) in range.zip(dx.chunks_exact_mut(w.len())) {
            let at = row * w.len();
            let (x, dy) = (&rows.x[at..at + w.len()], &rows.dy[at..at + w.len()]);
            match rows.mean {
                Some(mean) => layer_norm_grad_row(x, w, dy, mean[row], rows.rstd[row], dx),
                None => rms_norm_grad_row(x, w, dy, rows.rstd[row], dx),
            }
        }
    });
}

widest! {
    fn layer_norm_grad_row<E: Element>(x: &[E], w: &[f32], dy: &[E], mean: f32, rstd: f32, dx: &mut [E]) {
        let width = x.len() as f32;
        let mean_g = reduce::dot(w, dy) / width;
        let mean_gn = rstd * reduce::dot_around(x, mean, w, dy) / width;
        for ((dx, x), (w, dy)) in dx.iter_mut().zip(x).zip(w.iter().zip(dy)) {
            *dx = E::rounded(rstd * (w * dy.wide() - mean_g - (x.wide() - mean) * rstd * mean_gn));
        }
    }
}

widest! {
    fn rms_norm_grad_row<E: Element>(x: &[E], w: &[f32], dy: &[E], rstd: f32, dx: &mut [E]) {
        let mean_gn = rstd * reduce::dot_around(x, 0.0, w, dy) / x.len() as f32;
        for ((dx, x), (w, dy)) in dx.iter_mut().zip(x).zip(w.iter().zip(dy)) {
            *dx = E::rounded(rstd * (w * dy.wide() - x.wide() * rstd * mean_gn));
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Op;

    use crate::cpu::trial::{Trial, assert_near, numbers};

    const ROWS: usize = 301;
    const WIDTH: usize = 77;

    /// Normalised rows and `1/σ`, by definition.
    fn normal(x: &[f32], centred: bool) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        let (mut n, mut means, mut rstds) = (Vec::new(), Vec::new(), Vec::new());
        for row in x.chunks(WIDTH) {
            let row: Vec<f64> = row.iter().map(|&x| x.into()).collect();
            let mean = if centred { row.iter().sum::<f64>() / WIDTH as f64 } else { 0.0 };
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / WIDTH as f64;
            let rstd = 1.0 / (variance + f64::from(1e-5f32)).sqrt();
            n.extend(row.iter().map(|x| (x - mean) * rstd));
            means.push(mean);
            rstds.push(rstd);
        }
        (n, means, rstds)
    }

    fn f32s(x: &[f64]) -> Vec<f32> {
        x.iter().map(|&x| x as f32).collect()
    }

    fn check(centred: bool) {
        let shape = [7, 43, WIDTH];
        let x: Vec<f32> = numbers(ROWS * WIDTH, 1).iter().map(|x| x + 1.5).collect();
        let (w, b, dy) = (numbers(WIDTH, 2), numbers(WIDTH, 3), numbers(ROWS * WIDTH, 4));
        let (n, mean, rstd) = normal(&x, centred);
        let at = |row: usize, c: usize| row * WIDTH + c;

        let forward = || {
            let op = if centred { Op::LayerNorm { epsilon: 1e-5 } } else { Op::RmsNorm { epsilon: 1e-5 } };
            let trial = Trial::new(op).f32(shape, &x).f32([WIDTH], &w);
            if centred { trial.f32([WIDTH], &b) } else { trial }
        };
        let results = forward().run();
        let y: Vec<f64> = n
            .iter()
            .enumerate()
            .map(|(i, n)| n * f64::from(w[i % WIDTH]) + if centred { f64::from(b[i % WIDTH]) } else { 0.0 })
            .collect();
        assert_near(&results[0], &y, 3e-7);
        assert_near(&results[results.len() - 1], &rstd, 3e-7);
        assert_eq!(results, forward().threads(2).run());

        let statistics = |trial: Trial| {
            let trial = if centred { trial.f32([ROWS], &f32s(&mean)) } else { trial };
            trial.f32([ROWS], &f32s(&rstd)).f32(shape, &dy)
        };
        let op = || if centred { Op::LayerNormGradInput } else { Op::RmsNormGradInput };
        let grad = || statistics(Trial::new(op()).f32(shape, &x).f32([WIDTH], &w));
        let mut dx = vec![0.0; ROWS * WIDTH];
        for row in 0..ROWS {
            let g: Vec<f64> = (0..WIDTH).map(|c| f64::from(w[c]) * f64::from(dy[at(row, c)])).collect();
            let mean_g = if centred { g.iter().sum::<f64>() / WIDTH as f64 } else { 0.0 };
            let mean_gn = (0..WIDTH).map(|c| g[c] * n[at(row, c)]).sum::<f64>() / WIDTH as f64;
            for c in 0..WIDTH {
                dx[at(row, c)] = rstd[row] * (g[c] - mean_g - n[at(row, c)] * mean_gn);
            }
        }
        assert_near(&grad().run()[0], &dx, 5e-7);
        assert_eq!(grad().run(), grad().threads(2).run());

        let op = || if centred { Op::LayerNormGradWeight } else { Op::RmsNormGradWeight };
        let grad = || statistics(Trial::new(op()).f32(shape, &x));
        let dw: Vec<f64> =
            (0..WIDTH).map(|c| (0..ROWS).map(|r| n[at(r, c)] * f64::from(dy[at(r, c)])).sum()).collect();
        assert_near(&grad().run()[0], &dw, 1e-6);
        let onto: Vec<f64> = dw.iter().zip(&w).map(|(dw, &w)| dw + f64::from(w)).collect();
        assert_near(&grad().onto(0, &w).threads(2).run()[0], &onto, 1e-6);
    }

    #[test]
    fn the_layer_norm_and_its_gradients_follow_their_equations() {
        check(true);
    }

    #[test]
    fn the_root_mean_square_norm_and_its_gradients_follow_their_equations() {
        check(false);
    }
}
