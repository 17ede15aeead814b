//! Cross-entropy, on its own and fused with the language-model head.

use plimsoll_graph::op::Head;
use plimsoll_graph::{Axes, Op};

use super::Operands;
use super::array::Array;
use super::norms::{softmax, sum};
use super::products::{linear, linear_grad_input, linear_grad_weight};
use crate::ExecError;

/// The results of an op of this family.
pub(super) fn eval(op: &Op, operands: &Operands) -> Result<Vec<Array>, ExecError> {
    let x = |index| operands.x(index);
    let targets = |index: usize, ignore_index: i32| Targets {
        ids: operands.integers(index),
        ignore_index,
        scale: operands.scalar(index + 1),
    };
    match op {
        Op::CrossEntropy { ignore_index } => Ok(vec![cross_entropy(x(0), targets(1, *ignore_index))?]),
        Op::CrossEntropyGrad { ignore_index } => {
            Ok(vec![cross_entropy_grad(x(0), targets(1, *ignore_index))?])
        }
        Op::HeadLoss(head) => {
            Ok(vec![cross_entropy(&Logits::of(*head, operands).all(), targets(2, head.ignore_index))?])
        }
        Op::HeadLossGrad { head, weight, bias } => {
            head_loss_grad(Logits::of(*head, operands), targets(2, head.ignore_index), [*weight, *bias])
        }
        Op::HeadErrors { head, answers } => {
            let logits = Logits::of(*head, operands).all();
            Ok(vec![head_errors(&logits, targets(2, head.ignore_index), *answers)?])
        }
        other => unreachable!("`{}` is of another family", other.name()),
    }
}

/// `scale` times the targets that are not the first of the largest logits, or the runs of targets that hold such a one.
fn head_errors(logits: &Array, targets: Targets, answers: Option<usize>) -> Result<Array, ExecError> {
    let words = targets.words(logits.shape.columns())?;
    let wrong: Vec<Option<f64>> =
        logits.rows().zip(words).map(|(row, word)| word.map(|word| wrong(row, word))).collect();
    let worse = |worst: f64, one: &f64| if one.is_nan() || *one > worst { *one } else { worst };
    let worst = |run: &[Option<f64>]| run.iter().flatten().fold(0.0, worse);
    let errors: f64 = match answers {
        None => wrong.iter().flatten().sum(),
        Some(length) => {
            let runs = wrong.chunks(length).flat_map(|sequence| sequence.split(Option::is_none));
            runs.map(worst).sum()
        }
    };
    Ok(Array::scalar(targets.scale * errors))
}

/// 1 where another word is likelier, 0 where none is, NaN where some logit is no number below infinity.
fn wrong(row: &[f64], word: usize) -> f64 {
    if row.iter().any(|x| x.is_nan() || *x == f64::INFINITY) {
        return f64::NAN;
    }
    let likelier = |(at, x): (usize, &f64)| *x > row[word] || at < word && *x >= row[word];
    f64::from(u8::from(row.iter().enumerate().any(likelier)))
}

/// The targets, and the factor of their loss.
#[derive(Clone, Copy)]
struct Targets<'a> {
    ids: &'a [i32],
    ignore_index: i32,
    scale: f64,
}

impl Targets<'_> {
    /// The word of each row, `None` where the row carries no loss.
    fn words(&self, vocabulary: usize) -> Result<Vec<Option<usize>>, ExecError> {
        let word = |&id: &i32| match usize::try_from(id) {
            _ if id == self.ignore_index => Ok(None),
            Ok(word) if word < vocabulary => Ok(Some(word)),
            _ => Err(ExecError::Data(format!("target {id} is outside the vocabulary of {vocabulary}"))),
        };
        self.ids.iter().map(word).collect()
    }
}

fn cross_entropy(logits: &Array, targets: Targets) -> Result<Array, ExecError> {
    let mut loss = 0.0;
    for (row, word) in logits.rows().zip(targets.words(logits.shape.columns())?) {
        if let Some(word) = word {
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let divisor: f64 = row.iter().map(|x| (x - max).exp()).sum();
            loss += max + divisor.ln() - row[word];
        }
    }
    Ok(Array::scalar(targets.scale * loss))
}

/// `scale · (softmax(logits) − [word = target])`, and 0 in rows without a loss. If the target's logit is not finite,
/// the loss is not finite either, and the gradient is NaN, so that no update follows.
fn cross_entropy_grad(logits: &Array, targets: Targets) -> Result<Array, ExecError> {
    let mut gradient = softmax(logits);
    for (index, word) in targets.words(logits.shape.columns())?.into_iter().enumerate() {
        let row = gradient.row_mut(&[index]);
        match word {
            Some(word) if !logits.row(&[index])[word].is_finite() => row[word] = f64::NAN,
            Some(word) => row[word] -= 1.0,
            None => row.fill(0.0),
        }
    }
    Ok(gradient.map(|x| targets.scale * x))
}

/// The parts of logits: `x·wᵀ + b`, and the second product.
#[derive(Clone, Copy)]
struct Logits<'a> {
    x: &'a Array,
    w: &'a Array,
    bias: Option<&'a Array>,
    second: Option<[&'a Array; 2]>,
}

impl<'a> Logits<'a> {
    fn of(head: Head, operands: &'a Operands) -> Logits<'a> {
        let at = head.second_at();
        Logits {
            x: operands.x(0),
            w: operands.x(1),
            bias: head.bias.then(|| operands.x(4)),
            second: head.second.then(|| [operands.x(at), operands.x(at + 1)]),
        }
    }

    fn all(&self) -> Array {
        let logits = linear(self.x, self.w, self.bias, false);
        match self.second {
            Some([x, w]) => linear(x, w, Some(&logits), false),
            None => logits,
        }
    }
}

/// `(loss, dx[, dx₂][, dw][, db])`.
fn head_loss_grad(of: Logits, targets: Targets, wanted: [bool; 2]) -> Result<Vec<Array>, ExecError> {
    let (logits, x) = (of.all(), of.x);
    let dlogits = cross_entropy_grad(&logits, targets)?;
    let mut results = vec![cross_entropy(&logits, targets)?, linear_grad_input(of.w, &dlogits, false)];
    if let Some([_, w]) = of.second {
        results.push(linear_grad_input(w, &dlogits, false));
    }
    if wanted[0] {
        results.push(linear_grad_weight(x, &dlogits, false));
    }
    if wanted[1] {
        results.push(sum(&dlogits, Axes::of([0])));
    }
    Ok(results)
}
