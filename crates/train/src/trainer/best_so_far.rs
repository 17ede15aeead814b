//! The best evaluation of a run, and whether it still gets better.

use super::records::EvaluationRecord;
use crate::checkpoint::{Best, EvaluationState};

/// When to give up on a run that no longer gets better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EarlyStopping {
    /// Evaluations in a row without a better loss.
    pub patience: u64,
    /// By how much a loss must be better to count.
    pub threshold: f64,
}

/// The best evaluation so far, and how many came after it.
#[derive(Default)]
pub(super) struct BestSoFar {
    pub(super) best: Option<Best>,
    /// The loss to beat before patience runs out: that of the last evaluation that improved enough.
    mark: Option<f64>,
    waited: u64,
    /// The last evaluation.
    last: Option<f64>,
    /// Whether one was due and put off.
    pub(super) owes_evaluation: bool,
}

impl BestSoFar {
    /// Continues from the measurements of a checkpoint.
    pub(super) fn of(kept: &EvaluationState) -> BestSoFar {
        BestSoFar {
            best: kept.best,
            mark: kept.mark,
            waited: kept.without_gain,
            last: kept.metric,
            owes_evaluation: kept.owes_evaluation,
        }
    }

    pub(super) fn best_step(&self) -> Option<u64> {
        self.best.map(|best| best.step)
    }

    /// The evaluations as a checkpoint keeps them, without the steps that are in no record yet.
    pub(super) fn kept(&self, loss: Option<f64>) -> EvaluationState {
        EvaluationState {
            loss,
            metric: self.last,
            best: self.best,
            mark: self.mark,
            without_gain: self.waited,
            owes_evaluation: self.owes_evaluation,
            surpasses: None,
            unrecorded: None,
        }
    }

    /// Counts a record, and returns whether it is the best so far.
    pub(super) fn judge(
        &mut self,
        record: EvaluationRecord,
        stopping: Option<EarlyStopping>,
    ) -> EvaluationRecord {
        let threshold = stopping.map_or(0.0, |stopping| stopping.threshold);
        self.last = Some(record.eval_loss);
        self.owes_evaluation = false;
        // A loss that is not a number is never better, not even than none: nothing could undercut it.
        let better = |than: Option<f64>| {
            record.eval_loss.is_finite() && than.is_none_or(|than| record.eval_loss < than)
        };
        let best = better(self.best.map(|best| best.metric));
        if better(self.mark.map(|mark| mark - threshold)) {
            self.mark = Some(record.eval_loss);
            self.waited = 0;
        } else {
            self.waited += 1;
        }
        if best {
            self.best = Some(Best { step: record.step, metric: record.eval_loss });
        }
        EvaluationRecord { best, ..record }
    }

    pub(super) fn exhausted(&self, stopping: Option<EarlyStopping>) -> bool {
        stopping.is_some_and(|stopping| self.waited >= stopping.patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluated(step: u64, eval_loss: f64) -> EvaluationRecord {
        EvaluationRecord {
            step,
            eval_loss,
            eval_perplexity: None,
            eval_accuracy: None,
            eval_f1: None,
            valid_tokens: 1,
            seconds: 1.0,
            best: false,
        }
    }

    #[test]
    fn patience_counts_evaluations_that_are_not_better_by_the_threshold() {
        let stopping = Some(EarlyStopping { patience: 2, threshold: 0.1 });
        let mut progress = BestSoFar::default();
        // 1.95 is the best so far, but not by enough to restart the wait.
        let said: Vec<(bool, bool)> = [2.0, 1.95, 1.7, 1.75, 1.65]
            .iter()
            .zip(1..)
            .map(|(&loss, step)| {
                (progress.judge(evaluated(step, loss), stopping).best, progress.exhausted(stopping))
            })
            .collect();
        assert_eq!(said, [(true, false), (true, false), (true, false), (false, false), (true, true)]);
        assert_eq!(progress.best_step(), Some(5));
    }

    #[test]
    fn without_patience_nothing_is_exhausted_and_the_first_of_equals_is_best() {
        let mut progress = BestSoFar::default();
        let best: Vec<bool> =
            [2.0, 1.0, 1.0, 3.0].iter().map(|&loss| progress.judge(evaluated(1, loss), None).best).collect();
        assert_eq!(best, [true, true, false, false]);
        assert!(!progress.exhausted(None));
    }

    #[test]
    fn a_loss_that_is_not_a_number_is_never_the_best_and_the_first_number_after_it_is() {
        let stopping = Some(EarlyStopping { patience: 2, threshold: 0.0 });
        let mut progress = BestSoFar::default();
        let mut judged = |step, loss| {
            let best = progress.judge(evaluated(step, loss), stopping).best;
            (best, progress.best_step(), progress.exhausted(stopping))
        };
        assert_eq!(judged(1, f64::NAN), (false, None, false));
        assert_eq!(judged(2, 3.0), (true, Some(2), false));
        assert_eq!(judged(3, f64::NAN), (false, Some(2), false));
        assert_eq!(judged(4, f64::INFINITY), (false, Some(2), true));
    }
}
