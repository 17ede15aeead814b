//! Loads of experts, and the losses of routers.

use plimsoll_graph::Op;
use plimsoll_graph::op::Balance;

use super::Operands;
use super::array::{Array, add_scaled};
use crate::ExecError;

/// The results of an op of this family.
pub(super) fn eval(op: &Op, operands: &Operands) -> Result<Vec<Array>, ExecError> {
    let (x, integers) = (|index| operands.x(index), |index| operands.integers(index));
    let rest = |first: usize, step: usize| operands.arrays[first..].iter().step_by(step).collect::<Vec<_>>();
    Ok(match op {
        Op::ExpertLoad { ignored } => load(x(0), integers(1), integers(2), *ignored)?.into(),
        Op::CountCopies { experts } => vec![count(*experts, integers(0), integers(1), integers(2))?],
        Op::Steer { rate } => {
            vec![steered(*rate, x(0), operands.scalar(1), &Array::of(&operands.outputs[0]))]
        }
        Op::ExpertLoadGrad { ignored } => vec![load_grad(x(0), x(1), *ignored)],
        Op::BalanceLoss(balance) => {
            let gradient = gradient(*balance, x(0).only(), x(1), &rest(3, 2));
            let products = rest(2, 2).into_iter().map(|p| super::array::dot(&p.data, &gradient.data));
            vec![Array::scalar(products.sum())]
        }
        Op::BalanceLossGrad(balance) => {
            vec![gradient(*balance, x(0).only() * x(1).only(), x(2), &rest(3, 1))]
        }
        Op::RouterZLoss { ignore_index } => {
            let squares = counted(x(1), *ignore_index).zip(&x(2).data);
            vec![Array::scalar(x(0).only() * squares.map(|(valid, z)| valid * z * z).sum::<f64>())]
        }
        Op::RouterZLossGrad { ignore_index } => {
            let factor = 2.0 * x(0).only() * x(1).only();
            let data = counted(x(2), *ignore_index).zip(&x(3).data);
            vec![Array { shape: x(3).shape, data: data.map(|(valid, z)| factor * valid * z).collect() }]
        }
        other => unreachable!("`{}` is of another family", other.name()),
    })
}

/// 1 for each mark that is not `ignored`, else 0.
fn counted(marks: &Array, ignored: i32) -> impl Iterator<Item = f64> {
    let is_ignored = move |mark: f64| (mark - f64::from(ignored)).abs() < 0.5;
    marks.data.iter().map(move |&mark| if is_ignored(mark) { 0.0 } else { 1.0 })
}

/// `(P, c)`.
fn load(p: &Array, indices: &[i32], marks: &[i32], ignored: i32) -> Result<[Array; 2], ExecError> {
    let (rows, length, experts) = (p.shape[0], p.shape[1], p.shape[2]);
    let chosen = indices.len() / marks.len().max(1);
    let [mut sums, mut counts] = [(); 2].map(|()| Array::zeros([rows, experts]));
    for token in (0..marks.len()).filter(|&token| marks[token] != ignored) {
        let row = token / length;
        add_scaled(sums.row_mut(&[row]), 1.0, p.row(&[row, token % length]));
        for &index in &indices[token * chosen..(token + 1) * chosen] {
            counts.add_at(&[row, expert(index, experts)?], 1.0);
        }
    }
    Ok([sums, counts])
}

/// The number of an expert that an index names.
fn expert(index: i32, experts: usize) -> Result<usize, ExecError> {
    let known = usize::try_from(index).ok().filter(|&expert| expert < experts);
    known.ok_or_else(|| ExecError::Data(format!("expert {index} is outside the {experts} experts")))
}

/// Copies of present tokens that are sent to each expert, and those that have a row.
fn count(experts: usize, indices: &[i32], places: &[i32], present: &[i32]) -> Result<Array, ExecError> {
    let chosen = indices.len() / present.len().max(1);
    let mut counts = Array::zeros([2, experts]);
    for (copy, (&index, &place)) in indices.iter().zip(places).enumerate() {
        let here = if present[copy / chosen] == 0 { 0.0 } else { 1.0 };
        let expert = expert(index, experts)?;
        counts.add_at(&[0, expert], here);
        counts.add_at(&[1, expert], if place < 0 { 0.0 } else { here });
    }
    Ok(counts)
}

/// Biases after a step; the distance moved is rounded to f32 like the sum.
fn steered(rate: f32, counts: &Array, scale: f64, before: &Array) -> Array {
    if !scale.is_finite() {
        return before.clone();
    }
    let experts = before.data.len();
    let of = |expert: usize| counts.data.iter().skip(expert).step_by(experts).sum::<f64>();
    let mean = (0..experts).map(of).sum::<f64>() / experts as f64;
    Array::build(before.shape, |at| {
        let above = mean - of(at[0]);
        let sign = if above == 0.0 { 0.0 } else { above.signum() };
        before.at(at) + f64::from(rate) * sign
    })
}

fn load_grad(dp: &Array, marks: &Array, ignored: i32) -> Array {
    let (rows, length, experts) = (dp.shape[0], marks.shape[1], dp.shape[1]);
    let valid: Vec<f64> = counted(marks, ignored).collect();
    Array::build([rows, length, experts], |at| valid[at[0] * length + at[1]] * dp.at(&[at[0], at[2]]))
}

/// The derivative of the loss with respect to the probabilities of any layer, times `factor`. The loss is linear in them.
fn gradient(balance: Balance, factor: f64, targets: &Array, counts: &[&Array]) -> Array {
    let shape = counts[0].shape;
    let (experts, layers) = (shape[1] as f64, counts.len() as f64);
    let mut sums = Array::zeros(shape);
    for counts in counts {
        add_scaled(&mut sums.data, 1.0, &counts.data);
    }
    if balance.whole {
        let total: Vec<f64> =
            (0..shape[1]).map(|expert| (0..shape[0]).map(|row| sums.at(&[row, expert])).sum()).collect();
        let tokens = total.iter().sum::<f64>() / balance.chosen as f64;
        let valid: f64 = counted(targets, balance.ignore_index).sum();
        let each = |at: &[usize]| factor * valid * experts * total[at[1]] / (tokens * tokens);
        return Array::build(shape, |at| if tokens > 0.0 { each(at) } else { 0.0 });
    }
    Array::build(shape, |at| {
        let tokens = sums.row(&at[..1]).iter().sum::<f64>() / balance.chosen as f64;
        if tokens > 0.0 { factor * experts * sums.at(at) / (layers * tokens) } else { 0.0 }
    })
}
