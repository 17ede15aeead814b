//! Layer norm and root-mean-square norm over the last axis, with their gradients.
//!
//! With `n` the normalised row and `g = w·dy`, the gradient of the input is
//! `rstd·(g − mean(g) − n·mean(g·n))`, without the middle term for the root-mean-square norm; that of
//! the weight is the column sum of `n·dy`. The gradient of a layer norm's bias is an ordinary sum.
#![allow(
    clippy::inline_always,
    reason = "inner loops must be compiled with their callers' vector instructions"
)]

use plimsoll_graph::Op;

use super::lanes::{PIECE, want_f32};
use super::simd::widest;
use super::sums::{ColumnTerms, columns};
use super::{Call, reduce, split};
use crate::ExecError;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    Some(match call.op {
        Op::LayerNorm { epsilon } => layer_norm(call, *epsilon),
        Op::LayerNormGradInput => layer_norm_grad_input(call),
        Op::LayerNormGradWeight => layer_norm_grad_weight(call),
        Op::RmsNorm { epsilon } => rms_norm(call, *epsilon),
        Op::RmsNormGradInput => rms_norm_grad_input(call),
        Op::RmsNormGradWeight => rms_norm_grad_weight(call),
        _ => return None,
    })
}

/// Rows of a piece of a matrix with `width` columns.
fn per_piece(width: usize) -> usize {
    PIECE.div_ceil(width.max(1))
}

fn layer_norm(call: &Call, epsilon: f32) -> Result<(), ExecError> {
    want_f32(call)?;
    let shape = call.inputs[0].ty.shape;
    let (x, w, b) = (call.input(0), call.input(1), call.input(2));
    let outputs = [call.output(0), call.output(1), call.output(2)];
    split::rows(shape.rows(), per_piece(w.len()), outputs, |range, [y, mean, rstd]| {
        layer_norm_rows(&x[range.start * w.len()..range.end * w.len()], w, b, epsilon, y, mean, rstd);
    });
    Ok(())
}

widest! {
    #[allow(clippy::too_many_arguments, reason = "three operands and three results")]
    fn layer_norm_rows(
        x: &[f32], w: &[f32], b: &[f32], epsilon: f32, y: &mut [f32], mean: &mut [f32], rstd: &mut [f32],
    ) {
        let width = w.len();
        let rows = x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(mean).zip(rstd);
        for (((x, y), mean), rstd) in rows {
            *mean = reduce::sum(x) / width as f32;
            *rstd = 1.0 / (reduce::squares_around(x, *mean) / width as f32 + epsilon).sqrt();
            for (y, ((x, w), b)) in y.iter_mut().zip(x.iter().zip(w).zip(b)) {
                *y = w * ((x - *mean) * *rstd) + b;
            }
        }
    }
}

fn rms_norm(call: &Call, epsilon: f32) -> Result<(), ExecError> {
    want_f32(call)?;
    let shape = call.inputs[0].ty.shape;
    let (x, w) = (call.input(0), call.input(1));
    split::rows(shape.rows(), per_piece(w.len()), [call.output(0), call.output(1)], |range, [y, rstd]| {
        rms_norm_rows(&x[range.start * w.len()..range.end * w.len()], w, epsilon, y, rstd);
    });
    Ok(())
}

widest! {
    fn rms_norm_rows(x: &[f32], w: &[f32], epsilon: f32, y: &mut [f32], rstd: &mut [f32]) {
        let width = w.len();
        for ((x, y), rstd) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(rstd) {
            *rstd = 1.0 / (reduce::dot(x, x) / width as f32 + epsilon).sqrt();
            for (y, (x, w)) in y.iter_mut().zip(x.iter().zip(w)) {
                *y = w * (x * *rstd);
            }
        }
    }
}

fn layer_norm_grad_input(call: &Call) -> Result<(), ExecError> {
    want_f32(call)?;
    let [x, w, mean, rstd, dy] = [0, 1, 2, 3, 4].map(|index| call.input(index));
    grad_input(Rows { x, mean: Some(mean), rstd, dy }, w, call.output(0));
    Ok(())
}

fn rms_norm_grad_input(call: &Call) -> Result<(), ExecError> {
    want_f32(call)?;
    let [x, w, rstd, dy] = [0, 1, 2, 3].map(|index| call.input(index));
    grad_input(Rows { x, mean: None, rstd, dy }, w, call.output(0));
    Ok(())
}

fn layer_norm_grad_weight(call: &Call) -> Result<(), ExecError> {
    want_f32(call)?;
    let [x, mean, rstd, dy] = [0, 1, 2, 3].map(|index| call.input(index));
    columns(rstd.len(), &Rows { x, mean: Some(mean), rstd, dy }, call.output(0), call.outputs[0].accumulate);
    Ok(())
}

fn rms_norm_grad_weight(call: &Call) -> Result<(), ExecError> {
    want_f32(call)?;
    let [x, rstd, dy] = [0, 1, 2].map(|index| call.input(index));
    columns(rstd.len(), &Rows { x, mean: None, rstd, dy }, call.output(0), call.outputs[0].accumulate);
    Ok(())
}

/// What a norm's gradients read. Without `mean` it is the root-mean-square norm.
#[derive(Clone, Copy)]
struct Rows<'a> {
    x: &'a [f32],
    mean: Option<&'a [f32]>,
    rstd: &'a [f32],
    dy: &'a [f32],
}

impl ColumnTerms for Rows<'_> {
    #[inline(always)]
    fn add(&self, row: usize, start: usize, sums: &mut [f32]) {
        let at = row * (self.x.len() / self.rstd.len()) + start;
        let (x, dy) = (&self.x[at..][..sums.len()], &self.dy[at..][..sums.len()]);
        let (mean, rstd) = (self.mean.map_or(0.0, |mean| mean[row]), self.rstd[row]);
        for (sum, (x, dy)) in sums.iter_mut().zip(x.iter().zip(dy)) {
            *sum += (x - mean) * rstd * dy;
        }
    }
}

fn grad_input(rows: Rows, w: &[f32], dx: &mut [f32]) {
    split::rows(rows.rstd.len(), per_piece(w.len()), [dx], |range, [dx]| {
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
    fn layer_norm_grad_row(x: &[f32], w: &[f32], dy: &[f32], mean: f32, rstd: f32, dx: &mut [f32]) {
        // `dx` holds g until its two means are known.
        for (g, (w, dy)) in dx.iter_mut().zip(w.iter().zip(dy)) {
            *g = w * dy;
        }
        let width = x.len() as f32;
        let mean_g = reduce::sum(dx) / width;
        let mean_gn = rstd * reduce::dot_around(x, mean, dx) / width;
        for (dx, x) in dx.iter_mut().zip(x) {
            *dx = rstd * (*dx - mean_g - (x - mean) * rstd * mean_gn);
        }
    }
}

widest! {
    fn rms_norm_grad_row(x: &[f32], w: &[f32], dy: &[f32], rstd: f32, dx: &mut [f32]) {
        for (g, (w, dy)) in dx.iter_mut().zip(w.iter().zip(dy)) {
            *g = w * dy;
        }
        let mean_gn = rstd * reduce::dot(x, dx) / x.len() as f32;
        for (dx, x) in dx.iter_mut().zip(x) {
            *dx = rstd * (*dx - x * rstd * mean_gn);
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
