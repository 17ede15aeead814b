//! Loads of experts, and the losses of routers.
//!
//! Loads are cut by sequence and summed in the order of tokens; losses go over a few numbers for each sequence and expert,
//! on one thread and in f64.

use plimsoll_graph::Op;
use plimsoll_graph::op::Balance;

use super::lanes::PIECE;
use super::{Call, split};
use crate::ExecError;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    match call.op {
        Op::ExpertLoad { ignored } => return Some(load(call, *ignored)),
        Op::CountCopies { experts } => return Some(count(call, *experts)),
        Op::Steer { rate } => steer(call, *rate),
        Op::ExpertLoadGrad { ignored } => load_grad(call, *ignored),
        Op::BalanceLoss(balance) => loss(call, *balance),
        Op::BalanceLossGrad(balance) => loss_grad(call, *balance),
        Op::RouterZLoss { ignore_index } => z_loss(call, *ignore_index),
        Op::RouterZLossGrad { ignore_index } => z_loss_grad(call, *ignore_index),
        _ => return None,
    }
    Some(Ok(()))
}

/// `(p[B,T,E], indices[B,T,k], marks[B,T]) → (P[B,E], c[B,E])`.
fn load(call: &Call, ignored: i32) -> Result<(), ExecError> {
    let (p, indices, marks) = (call.input(0), call.integers(1), call.integers(2));
    let shape = call.inputs[0].ty.shape;
    let (rows, length, experts, chosen) = (shape[0], shape[1], shape[2], call.inputs[1].ty.shape[2]);
    let known = |index: i32| usize::try_from(index).is_ok_and(|index| index < experts);
    if let Some(&index) = indices.iter().find(|&&index| !known(index)) {
        return Err(outside(index, experts));
    }
    split::rows(rows, 1, [call.output(0), call.output(1)], |range, [sums, counts]| {
        sums.fill(0.0);
        counts.fill(0.0);
        let tokens = range.start * length..range.end * length;
        for token in tokens.filter(|&token| marks[token] != ignored) {
            for (sum, p) in sums.iter_mut().zip(&p[token * experts..(token + 1) * experts]) {
                *sum += p;
            }
            for &index in &indices[token * chosen..(token + 1) * chosen] {
                counts[index as usize] += 1.0;
            }
        }
    });
    Ok(())
}

/// `(indices[B,T,k], places[B,T,k], present[B,T]) → c[2,E]`.
fn count(call: &Call, experts: usize) -> Result<(), ExecError> {
    let (indices, places, present) = (call.integers(0), call.integers(1), call.integers(2));
    let chosen = call.inputs[0].ty.shape[2];
    call.output(0).fill(0.0);
    let (sent, placed) = call.output(0).split_at_mut(experts);
    let copies = indices.chunks_exact(chosen).zip(places.chunks_exact(chosen)).zip(present);
    for ((indices, places), &present) in copies {
        for (&index, &place) in indices.iter().zip(places) {
            let known = usize::try_from(index).ok().filter(|&expert| expert < experts);
            let expert = known.ok_or_else(|| outside(index, experts))?;
            sent[expert] += f32::from(present != 0);
            placed[expert] += f32::from(present != 0 && place >= 0);
        }
    }
    Ok(())
}

/// `(counts[…,E], scale[]) → bias[E]`. Sums of counts are integers, so the sign depends on no order.
fn steer(call: &Call, rate: f32) {
    let (counts, bias) = (call.input(0), call.output(0));
    if !call.input(1)[0].is_finite() {
        return;
    }
    let experts = bias.len();
    let total: i64 = counts.iter().map(|&count| count as i64).sum();
    for (expert, bias) in bias.iter_mut().enumerate() {
        let own: i64 = counts.iter().skip(expert).step_by(experts).map(|&count| count as i64).sum();
        *bias += rate * (total - own * experts as i64).signum() as f32;
    }
}

fn outside(index: i32, experts: usize) -> ExecError {
    ExecError::Data(format!("expert {index} is outside the {experts} experts"))
}

/// `(dP[B,E], marks[B,T]) → dp[B,T,E]`.
fn load_grad(call: &Call, ignored: i32) {
    let (dsums, marks) = (call.input(0), call.integers(1));
    let (experts, length) = (call.inputs[0].ty.shape[1], call.inputs[1].ty.shape[1]);
    split::rows(marks.len(), PIECE.div_ceil(experts), [call.output(0)], |range, [dp]| {
        for (token, dp) in range.zip(dp.chunks_exact_mut(experts)) {
            if marks[token] == ignored {
                dp.fill(0.0);
            } else {
                dp.copy_from_slice(&dsums[token / length * experts..][..experts]);
            }
        }
    });
}

/// The counts of some layers, the first of them input `first` and the others `step` inputs apart.
struct Counts<'a> {
    call: &'a Call<'a>,
    first: usize,
    step: usize,
    experts: usize,
    balance: Balance,
}

impl<'a> Counts<'a> {
    fn new(call: &'a Call, first: usize, step: usize, balance: Balance) -> Counts<'a> {
        Counts { call, first, step, experts: call.inputs[first].ty.shape[1], balance }
    }

    fn layers(&self) -> f64 {
        (self.first..self.call.inputs.len()).step_by(self.step).count() as f64
    }

    /// The sum over layers of one element, added in the order of layers.
    fn at(&self, element: usize) -> f64 {
        let layers = (self.first..self.call.inputs.len()).step_by(self.step);
        layers.map(|input| f64::from(self.call.input(input)[element])).sum()
    }

    /// Tokens of a sequence, times layers.
    fn tokens(&self, row: usize) -> f64 {
        let elements = row * self.experts..(row + 1) * self.experts;
        elements.map(|element| self.at(element)).sum::<f64>() / self.balance.chosen as f64
    }

    /// Calls `each` with every element and the derivative of the loss with respect to the element's probability. The
    /// derivative is not yet multiplied by the factor of the loss.
    fn for_each(&self, targets: &[i32], mut each: impl FnMut(usize, f64)) {
        let elements = self.call.inputs[self.first].ty.shape.elements();
        let (rows, experts) = (elements / self.experts, self.experts as f64);
        if self.balance.whole {
            let tokens: f64 = (0..rows).map(|row| self.tokens(row)).sum();
            let valid = targets.iter().filter(|&&target| target != self.balance.ignore_index).count() as f64;
            let factor = if tokens > 0.0 { valid * experts / (tokens * tokens) } else { 0.0 };
            for expert in 0..self.experts {
                let here = (0..rows).map(|row| row * self.experts + expert);
                let count: f64 = here.clone().map(|element| self.at(element)).sum();
                here.for_each(|element| each(element, factor * count));
            }
            return;
        }
        for row in 0..rows {
            let tokens = self.tokens(row);
            let factor = if tokens > 0.0 { experts / (self.layers() * tokens) } else { 0.0 };
            for element in row * self.experts..(row + 1) * self.experts {
                each(element, factor * self.at(element));
            }
        }
    }
}

/// `(scale[], targets[B,T], P₁, c₁ …) → loss`.
fn loss(call: &Call, balance: Balance) {
    let mut sum = 0.0;
    let layers = (2..call.inputs.len()).step_by(2);
    Counts::new(call, 3, 2, balance).for_each(call.integers(1), |element, derivative| {
        let p: f64 = layers.clone().map(|input| f64::from(call.input(input)[element])).sum();
        sum += derivative * p;
    });
    call.output(0)[0] = (f64::from(call.input(0)[0]) * sum) as f32;
}

/// `(dloss, scale, targets, c₁ …) → dP[B,E]`.
fn loss_grad(call: &Call, balance: Balance) {
    let factor = f64::from(call.input(0)[0]) * f64::from(call.input(1)[0]);
    let dsums = call.output(0);
    Counts::new(call, 3, 1, balance).for_each(call.integers(2), |element, derivative| {
        dsums[element] = (factor * derivative) as f32;
    });
}

/// `(scale[], targets, lse[N]) → loss`.
fn z_loss(call: &Call, ignored: i32) {
    let valid = call.integers(1).iter().zip(call.input(2)).filter(|(target, _)| **target != ignored);
    let squares: f64 = valid.map(|(_, &lse)| f64::from(lse) * f64::from(lse)).sum();
    call.output(0)[0] = (f64::from(call.input(0)[0]) * squares) as f32;
}

/// `(dloss, scale, targets, lse[N]) → dlse[N]`.
fn z_loss_grad(call: &Call, ignored: i32) {
    let factor = 2.0 * call.input(0)[0] * call.input(1)[0];
    let (targets, lse) = (call.integers(2), call.input(3));
    for ((dlse, lse), &target) in call.output(0).iter_mut().zip(lse).zip(targets) {
        *dlse = if target == ignored { 0.0 } else { factor * lse };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::trial::Trial;

    fn balance(whole: bool, counts: &[f32; 8]) -> f32 {
        // Two sequences of four tokens, four experts, one for each token; probabilities are certain of the choice.
        let op = Op::BalanceLoss(Balance { chosen: 1, whole, ignore_index: -100 });
        let trial = Trial::new(op).f32([], &[1.0 / 8.0]).i32([2, 4], &[1; 8]);
        trial.f32([2, 4], counts).f32([2, 4], counts).run_everywhere()[0][0]
    }

    #[test]
    fn an_even_load_costs_one_and_a_single_expert_as_many_as_there_are() {
        for whole in [false, true] {
            assert!((balance(whole, &[1.0; 8]) - 1.0).abs() < 1e-6);
            assert!((balance(whole, &[4.0, 0.0, 0.0, 0.0, 4.0, 0.0, 0.0, 0.0]) - 4.0).abs() < 1e-6);
        }
        // The load is even over the micro-batch and uneven in each sequence, so only the form that counts sequences costs
        // more.
        let split = [2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 2.0, 2.0];
        assert!((balance(true, &split) - 1.0).abs() < 1e-6);
        assert!((balance(false, &split) - 2.0).abs() < 1e-6);
    }
}
