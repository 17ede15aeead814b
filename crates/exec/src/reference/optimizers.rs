//! Optimizers that people ask for by name: Lion, Adafactor and Muon.

use plimsoll_graph::op::{Adafactor, Lion, Muon};

use super::array::Array;
use super::{Tensor, stored};

/// One step of the parameter in `ranges`; `scalars` are `lr` and `scale`.
pub(super) fn lion(
    rates: Lion,
    grad: &Array,
    scalars: [f64; 2],
    rng: &[i32],
    ranges: &[Tensor],
) -> Vec<Array> {
    let [lr, scale] = scalars;
    if !scale.is_finite() {
        return unchanged(ranges);
    }
    let [beta1, beta2, decay] = [rates.beta1, rates.beta2, rates.weight_decay].map(f64::from);
    let mut numbers = stored::read(rates.stored, ranges);
    for (i, grad) in grad.data.iter().enumerate() {
        let (g, m, p) = (scale * grad, &mut numbers.moments[0][i], &mut numbers.parameter[i]);
        let mixed = beta1 * *m + (1.0 - beta1) * g;
        let sign = if mixed == 0.0 { 0.0 } else { mixed.signum() };
        *p -= lr * (sign + decay * *p);
        *m = beta2 * *m + (1.0 - beta2) * g;
    }
    stored::write(rates.stored, &numbers, rng, ranges)
}

/// One step of the parameter in `ranges`; `scalars` are `lr`, `step` and `scale`.
pub(super) fn adafactor(
    rates: Adafactor,
    grad: &Array,
    scalars: [f64; 3],
    rng: &[i32],
    ranges: &[Tensor],
) -> Vec<Array> {
    let [lr, step, scale] = scalars;
    if !scale.is_finite() {
        return unchanged(ranges);
    }
    let beta = 1.0 - step.powf(f64::from(rates.decay_rate));
    let first = rates.stored.types(grad.shape, 0).len();
    let (kept, statistics) = ranges.split_at(first);
    let mut statistics: Vec<Vec<f64>> = statistics.iter().map(Tensor::numbers).collect();
    let g: Vec<f64> = grad.data.iter().map(|grad| scale * grad).collect();
    let squares: Vec<f64> = g.iter().map(|g| g * g + f64::from(rates.epsilon)).collect();
    let columns = grad.shape.columns();
    let rows = if grad.shape.len() < 2 { 1 } else { grad.shape[grad.shape.len() - 2] };
    let move_on = |mean: &mut f64, now: f64| *mean = beta * *mean + (1.0 - beta) * now;
    let mut u = g.clone();
    if let [of_rows, of_columns] = &mut statistics[..] {
        for (row, mean) in of_rows.iter_mut().enumerate() {
            let all = &squares[row * columns..(row + 1) * columns];
            move_on(mean, all.iter().sum::<f64>() / columns as f64);
        }
        for (at, mean) in of_columns.iter_mut().enumerate() {
            let (matrix, column) = (at / columns, at % columns);
            let all = (0..rows).map(|row| squares[(matrix * rows + row) * columns + column]);
            move_on(mean, all.sum::<f64>() / rows as f64);
        }
        for (at, u) in u.iter_mut().enumerate() {
            let (row, matrix) = (at / columns, at / columns / rows);
            let centre = of_rows[matrix * rows..(matrix + 1) * rows].iter().sum::<f64>() / rows as f64;
            *u /= (of_rows[row] / centre).sqrt() * of_columns[matrix * columns + at % columns].sqrt();
        }
    } else {
        for ((mean, square), u) in statistics[0].iter_mut().zip(squares).zip(&mut u) {
            move_on(mean, square);
            *u /= mean.sqrt();
        }
    }
    let root = (u.iter().map(|u| u * u).sum::<f64>() / u.len() as f64).sqrt();
    let clip = (root / f64::from(rates.clip_threshold)).max(1.0);
    let mut numbers = stored::read(rates.stored, kept);
    for (p, u) in numbers.parameter.iter_mut().zip(u) {
        *p -= lr * (u / clip + f64::from(rates.weight_decay) * *p);
    }
    let mut written = stored::write(rates.stored, &numbers, rng, kept);
    let of_statistics = statistics.into_iter().zip(&ranges[first..]);
    written.extend(of_statistics.map(|(data, range)| Array { shape: range.ty.shape, data }));
    written
}

/// One step of the parameter in `ranges`; `scalars` are `lr` and `scale`.
pub(super) fn muon(
    rates: Muon,
    grad: &Array,
    scalars: [f64; 2],
    rng: &[i32],
    ranges: &[Tensor],
) -> Vec<Array> {
    let [lr, scale] = scalars;
    if !scale.is_finite() {
        return unchanged(ranges);
    }
    let (rate, decay) = (f64::from(rates.momentum), f64::from(rates.weight_decay));
    let mut numbers = stored::read(rates.stored, ranges);
    let mut directions = Vec::new();
    for (grad, m) in grad.data.iter().zip(&mut numbers.moments[0]) {
        let g = (1.0 - rate) * scale * grad;
        *m = rate * *m + g;
        directions.push(if rates.nesterov { rate * *m + g } else { *m });
    }
    let (rows, columns) = (grad.shape[grad.shape.len() - 2], grad.shape.columns());
    let steps: Vec<f64> =
        directions.chunks(rows * columns).flat_map(|x| orthogonal(x, [rows, columns])).collect();
    for (p, step) in numbers.parameter.iter_mut().zip(steps) {
        *p -= lr * (f64::from(Muon::step_size(grad.shape)) * step + decay * *p);
    }
    stored::write(rates.stored, &numbers, rng, ranges)
}

/// Newton and Schulz's iteration of a matrix.
fn orthogonal(x: &[f64], [rows, columns]: [usize; 2]) -> Vec<f64> {
    if rows > columns {
        let turned = orthogonal(&transposed(x, [rows, columns]), [columns, rows]);
        return transposed(&turned, [columns, rows]);
    }
    let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt().max(f64::from(Muon::LEAST_NORM));
    let mut x: Vec<f64> = x.iter().map(|x| x / norm).collect();
    let [first, second, third] = Muon::COEFFICIENTS.map(f64::from);
    for _ in 0..Muon::ROUNDS {
        let a = product(&x, &transposed(&x, [rows, columns]), [rows, columns, rows]);
        let square = product(&a, &a, [rows, rows, rows]);
        let b: Vec<f64> = a.iter().zip(square).map(|(a, square)| second * a + third * square).collect();
        let added = product(&b, &x, [rows, rows, columns]);
        x = x.iter().zip(added).map(|(x, added)| first * x + added).collect();
    }
    x
}

fn transposed(x: &[f64], [rows, columns]: [usize; 2]) -> Vec<f64> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| x[row * columns + column])).collect()
}

/// `(m, k) · (k, n)`.
fn product(a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
    let at = |i: usize, j: usize| (0..k).map(|p| a[i * k + p] * b[p * n + j]).sum();
    (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).map(|(i, j)| at(i, j)).collect()
}

fn unchanged(ranges: &[Tensor]) -> Vec<Array> {
    ranges.iter().map(Array::of).collect()
}
