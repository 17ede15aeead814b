//! Probabilities of experts with the logarithm of their divisor, and the choice of the largest.

use plimsoll_graph::Op;

use super::Operands;
use super::array::{Array, dot};
use crate::ExecError;

/// The results of an op of this family.
pub(super) fn eval(op: &Op, operands: &Operands) -> Result<Vec<Array>, ExecError> {
    let x = |index| operands.x(index);
    match op {
        Op::SoftmaxLse => Ok(softmax_lse(x(0)).into()),
        Op::SoftmaxLseGrad { softmax, lse } => {
            let dp = softmax.then(|| x(1));
            let dlse = lse.then(|| x(1 + usize::from(*softmax)));
            Ok(vec![softmax_lse_grad(x(0), dp, dlse)])
        }
        Op::TopK { k, steered: false } => Ok(top_k(x(0), x(0), *k)?.into()),
        Op::TopK { k, steered: true } => Ok(top_k(x(0), &biased(x(1), x(2)), *k)?.into()),
        Op::TopKGrad { columns } => Ok(vec![top_k_grad(operands.integers(0), x(1), *columns)?]),
        other => unreachable!("`{}` is of another family", other.name()),
    }
}

/// `(p, lse)`.
fn softmax_lse(x: &Array) -> [Array; 2] {
    let (mut p, mut lse) = (x.clone(), Array::zeros([x.shape.rows()]));
    let rows = p.data.chunks_exact_mut(x.shape.columns());
    for (row, lse) in rows.zip(&mut lse.data) {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let divisor: f64 = row.iter().map(|x| (x - max).exp()).sum();
        *lse = max + divisor.ln();
        for x in row {
            *x = (*x - max).exp() / divisor;
        }
    }
    [p, lse]
}

/// `p·(dp − Σ dp·p + dlse)`, a cotangent that is missing being 0.
fn softmax_lse_grad(p: &Array, dp: Option<&Array>, dlse: Option<&Array>) -> Array {
    let columns = p.shape.columns();
    let mut dx = Array::zeros(p.shape);
    for (row, dx) in dx.data.chunks_exact_mut(columns).enumerate() {
        let p = &p.data[row * columns..][..columns];
        let dp = dp.map(|dp| &dp.data[row * columns..][..columns]);
        let shift = dlse.map_or(0.0, |dlse| dlse.data[row]) - dp.map_or(0.0, |dp| dot(dp, p));
        for (column, dx) in dx.iter_mut().enumerate() {
            *dx = p[column] * (dp.map_or(0.0, |dp| dp[column]) + shift);
        }
    }
    dx
}

/// Probabilities with a bias for each column. The sum is rounded as it is compared.
fn biased(p: &Array, bias: &Array) -> Array {
    let columns = p.shape.columns();
    let sums = p.data.iter().enumerate().map(|(at, p)| (*p as f32 + bias.data[at % columns] as f32).into());
    Array { shape: p.shape, data: sums.collect() }
}

/// `(weights, indices)`: columns by falling `key`, and of equal ones by rising index, with their scores.
fn top_k(scores: &Array, key: &Array, k: usize) -> Result<[Array; 2], ExecError> {
    if let Some(at) = key.data.iter().position(|score| score.is_nan()) {
        return Err(not_a_score(at % scores.shape.columns()));
    }
    let shape = scores.shape.with(scores.shape.len() - 1, k);
    let (mut weights, mut indices) = (Vec::new(), Vec::new());
    for (row, key) in scores.rows().zip(key.rows()) {
        let mut order: Vec<usize> = (0..row.len()).collect();
        // Stable, so that equal scores keep their order; zeros of both signs are equal.
        order.sort_by(|&a, &b| key[b].partial_cmp(&key[a]).unwrap_or(std::cmp::Ordering::Equal));
        weights.extend(order[..k].iter().map(|&column| row[column]));
        indices.extend(order[..k].iter().map(|&column| column as f64));
    }
    Ok([weights, indices].map(|data| Array { shape, data }))
}

/// Adds each gradient to the column it came from.
fn top_k_grad(indices: &[i32], dweights: &Array, columns: usize) -> Result<Array, ExecError> {
    let k = dweights.shape.columns();
    let mut dscores = Array::zeros(dweights.shape.with(dweights.shape.len() - 1, columns));
    for (at, (&index, &dweight)) in indices.iter().zip(&dweights.data).enumerate() {
        let column = usize::try_from(index).ok().filter(|&column| column < columns);
        let column = column.ok_or_else(|| outside_experts(index, columns))?;
        dscores.data[at / k * columns + column] += dweight;
    }
    Ok(dscores)
}

/// The error for a score that is not a number.
fn not_a_score(expert: usize) -> ExecError {
    ExecError::NotFinite(format!("the router's score of expert {expert} is not a number"))
}

/// The error for an index that belongs to no expert.
fn outside_experts(index: i32, experts: usize) -> ExecError {
    ExecError::Data(format!("expert {index} is outside the {experts} experts"))
}
