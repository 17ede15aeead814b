//! Errors of a head in place of its loss: targets that another word beats, or answers that hold such a target.
//!
//! Counts are whole numbers, so neither threads nor chunks change a bit of them.

use plimsoll_graph::op::Head;

use super::{Chunk, HeadCall};
use crate::ExecError;
use crate::cpu::Call;
use crate::cpu::simd::widest;

/// `(x, w, targets, scale[, b][, x₂, w₂]) → scale · errors`.
pub(super) fn head_errors(call: &Call, head: Head, answers: Option<usize>) -> Result<(), ExecError> {
    let mut of = HeadCall::new(call, head)?;
    let mut count = Count { answers, ignored: head.ignore_index, closed: 0.0, open: 0.0 };
    of.chunk_by_chunk(
        |_, logits, target| if target == head.ignore_index { 0.0 } else { beaten(logits, target as usize) },
        |of, Chunk { first, losses, .. }| {
            for (row, &error) in (first..).zip(losses) {
                count.add(row, of.targets[row], error);
            }
        },
    );
    *of.loss = (f64::from(of.scale) * (count.closed + f64::from(count.open))) as f32;
    Ok(())
}

/// Errors so far.
struct Count {
    /// Rows of a sequence, where answers are counted.
    answers: Option<usize>,
    ignored: i32,
    /// Errors of targets, and of answers that have ended.
    closed: f64,
    /// Errors of the answer that continues.
    open: f32,
}

impl Count {
    fn add(&mut self, row: usize, target: i32, error: f32) {
        let Some(length) = self.answers else {
            self.closed += f64::from(error);
            return;
        };
        if target == self.ignored || row.is_multiple_of(length) {
            self.closed += f64::from(std::mem::take(&mut self.open));
        }
        // A NaN stays in the count.
        if error.is_nan() || error > self.open {
            self.open = error;
        }
    }
}

widest! {
    /// 1 where another word is likelier than the target, 0 where none is, NaN where some logit is no number below infinity.
    fn beaten(row: &[f32], target: usize) -> f32 {
        let chosen = row[target];
        // All numbers are counted: a search that may end early looks at one number at a time, which is slower.
        let lost = row.iter().filter(|x| x.is_nan() || **x == f32::INFINITY).count();
        let before = row[..target].iter().filter(|x| **x >= chosen).count();
        let beaten = before + row[target..].iter().filter(|x| **x > chosen).count();
        match (lost > 0, beaten > 0) {
            (true, _) => f32::NAN,
            (false, true) => 1.0,
            (false, false) => 0.0,
        }
    }
}
