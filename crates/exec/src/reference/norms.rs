//! Sums, softmax and the norms, the latter over the last axis.
//!
//! The gradients take the statistics as they were stored, as any kernel must.

use plimsoll_graph::{Axes, Op};

use super::Operands;
use super::array::{Array, dot, positions};
use super::movement::kept;

/// The results of an op of this family.
pub(super) fn eval(op: &Op, operands: &Operands) -> Vec<Array> {
    let x = |index| operands.x(index);
    vec![match op {
        Op::Sum { axes } => sum(x(0), *axes),
        Op::Softmax => softmax(x(0)),
        Op::SoftmaxGrad => softmax_grad(x(0), x(1)),
        Op::LayerNorm { epsilon } => return layer_norm(x(0), x(1), x(2), *epsilon).into(),
        Op::LayerNormGradInput => layer_norm_grad_input(x(0), x(1), x(2), x(3), x(4)),
        Op::LayerNormGradWeight => layer_norm_grad_weight(x(0), x(1), x(2), x(3)),
        Op::RmsNorm { epsilon } => return rms_norm(x(0), x(1), *epsilon).into(),
        Op::RmsNormGradInput => rms_norm_grad_input(x(0), x(1), x(2), x(3)),
        Op::RmsNormGradWeight => rms_norm_grad_weight(x(0), x(1), x(2)),
        Op::InverseNorm { scale } => inverse_norm(x(0), x(1), x(2), x(3), f64::from(*scale)),
        other => unreachable!("`{}` is of another family", other.name()),
    }]
}

/// Adds up the elements that agree on all axes but `axes`.
pub(super) fn sum(x: &Array, axes: Axes) -> Array {
    let mut total = Array::zeros(x.shape.without(axes));
    for (at, element) in positions(x.shape).zip(&x.data) {
        total.add_at(&kept(&at, axes), *element);
    }
    total
}

pub(super) fn softmax(x: &Array) -> Array {
    over_rows(x, |row| {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let powers: Vec<f64> = row.iter().map(|x| (x - max).exp()).collect();
        let divisor: f64 = powers.iter().sum();
        powers.iter().map(|power| power / divisor).collect()
    })
}

fn softmax_grad(y: &Array, dy: &Array) -> Array {
    let mut gradients = dy.rows();
    over_rows(y, |y| {
        let dy = gradients.next().unwrap_or_default();
        let mean = dot(y, dy);
        y.iter().zip(dy).map(|(y, dy)| y * (dy - mean)).collect()
    })
}

/// `(y, mean, rstd)`.
fn layer_norm(x: &Array, w: &Array, b: &Array, epsilon: f32) -> [Array; 3] {
    let mean = per_row(x, mean_of);
    let rstd = per_row(x, |row| {
        let mean = mean_of(row);
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / row.len() as f64;
        1.0 / (variance + f64::from(epsilon)).sqrt()
    });
    let normal = normalised(x, Some(&mean), &rstd);
    let y = over_rows(&normal, |row| (0..row.len()).map(|c| w.data[c] * row[c] + b.data[c]).collect());
    [y, mean, rstd]
}

/// With `n` the normalised row and `g = w·dy`: `dx = rstd · (g − mean(g) − n·mean(g·n))`.
fn layer_norm_grad_input(x: &Array, w: &Array, mean: &Array, rstd: &Array, dy: &Array) -> Array {
    let normal = normalised(x, Some(mean), rstd);
    grad_input(&normal, w, rstd, dy, mean_of)
}

fn layer_norm_grad_weight(x: &Array, mean: &Array, rstd: &Array, dy: &Array) -> Array {
    grad_weight(&normalised(x, Some(mean), rstd), dy)
}

/// `(y, rstd)`.
fn rms_norm(x: &Array, w: &Array, epsilon: f32) -> [Array; 2] {
    let rstd = per_row(x, |row| 1.0 / (dot(row, row) / row.len() as f64 + f64::from(epsilon)).sqrt());
    let normal = normalised(x, None, &rstd);
    let y = over_rows(&normal, |row| row.iter().zip(&w.data).map(|(x, w)| w * x).collect());
    [y, rstd]
}

/// As for the layer norm, without the mean: `dx = rstd · (g − n·mean(g·n))`.
fn rms_norm_grad_input(x: &Array, w: &Array, rstd: &Array, dy: &Array) -> Array {
    grad_input(&normalised(x, None, rstd), w, rstd, dy, |_| 0.0)
}

/// `1/√(c + s·Σₖ bₖ·(2pₖ + s·Σₗ gₖₗ·bₗ))` of each row.
fn inverse_norm(squares: &Array, products: &Array, b: &Array, gram: &Array, s: f64) -> Array {
    let (out, rank) = (b.shape[0], b.shape[1]);
    let mut inverse = Array::zeros(squares.shape);
    for row in 0..out {
        let b = &b.data[row * rank..][..rank];
        let moved =
            |k: usize| 2.0 * products.data[k * out + row] + s * dot(&gram.data[k * rank..][..rank], b);
        let sum: f64 = (0..rank).map(|k| b[k] * moved(k)).sum();
        inverse.data[row] = 1.0 / (squares.data[row] + s * sum).sqrt();
    }
    inverse
}

fn rms_norm_grad_weight(x: &Array, rstd: &Array, dy: &Array) -> Array {
    grad_weight(&normalised(x, None, rstd), dy)
}

fn grad_input(normal: &Array, w: &Array, rstd: &Array, dy: &Array, centre: impl Fn(&[f64]) -> f64) -> Array {
    let mut gradients = dy.rows().zip(&rstd.data);
    over_rows(normal, |n| {
        let (dy, rstd) = gradients.next().unwrap_or((&[], &0.0));
        let g: Vec<f64> = dy.iter().zip(&w.data).map(|(dy, w)| dy * w).collect();
        let (shift, slope) = (centre(&g), dot(&g, n) / n.len() as f64);
        g.iter().zip(n).map(|(g, n)| rstd * (g - shift - n * slope)).collect()
    })
}

fn grad_weight(normal: &Array, dy: &Array) -> Array {
    let mut dw = Array::zeros([normal.shape.columns()]);
    for (n, dy) in normal.rows().zip(dy.rows()) {
        for (slot, (n, dy)) in dw.data.iter_mut().zip(n.iter().zip(dy)) {
            *slot += n * dy;
        }
    }
    dw
}

/// `(x − mean) · rstd`, each row with its own numbers; a missing mean is 0.
fn normalised(x: &Array, mean: Option<&Array>, rstd: &Array) -> Array {
    let mut index = 0;
    over_rows(x, |row| {
        let (mean, rstd) = (mean.map_or(0.0, |mean| mean.data[index]), rstd.data[index]);
        index += 1;
        row.iter().map(|x| (x - mean) * rstd).collect()
    })
}

fn mean_of(row: &[f64]) -> f64 {
    row.iter().sum::<f64>() / row.len() as f64
}

/// One number per row.
fn per_row(x: &Array, number: impl FnMut(&[f64]) -> f64) -> Array {
    Array { shape: [x.shape.rows()].into(), data: x.rows().map(number).collect() }
}

/// A row of the same length for each row.
fn over_rows(x: &Array, row: impl FnMut(&[f64]) -> Vec<f64>) -> Array {
    Array { shape: x.shape, data: x.rows().flat_map(row).collect() }
}
