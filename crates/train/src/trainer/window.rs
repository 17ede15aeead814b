//! The steps since the last record, as one record. A checkpoint between two records keeps the sums so far, so that the next
//! record of a resumed run covers the steps before the checkpoint too.

use super::records::StepRecord;
use crate::checkpoint::Unrecorded;

/// Steps since the last record.
#[derive(Clone, Copy, Default)]
pub(super) struct Window {
    last: Option<StepRecord>,
    steps: u64,
    loss: f64,
    tokens: u64,
    valid_tokens: u64,
    seconds: f64,
}

impl Window {
    /// Continues from the sums in a checkpoint.
    pub(super) fn of(kept: Option<Unrecorded>) -> Window {
        let Some(Unrecorded { steps, loss, tokens, valid_tokens, seconds }) = kept else {
            return Window::default();
        };
        Window { last: None, steps, loss, tokens, valid_tokens, seconds }
    }

    /// The sums that a checkpoint keeps.
    pub(super) fn kept(&self) -> Option<Unrecorded> {
        let &Window { steps, loss, tokens, valid_tokens, seconds, .. } = self;
        // A sum that JSON cannot hold is of a run that ends here.
        let holds = steps > 0 && loss.is_finite() && seconds.is_finite();
        holds.then_some(Unrecorded { steps, loss, tokens, valid_tokens, seconds })
    }

    pub(super) fn add(&mut self, record: &StepRecord) {
        self.last = Some(*record);
        self.steps += 1;
        self.loss += record.loss;
        self.tokens += record.tokens;
        self.valid_tokens += record.valid_tokens;
        self.seconds += record.tokens as f64 / record.tokens_per_second;
    }

    /// One record for all its steps, if there are any. A single step is its own record, bit for bit.
    pub(super) fn record(self) -> Option<StepRecord> {
        let last = self.last?;
        if self.steps == 1 {
            return Some(last);
        }
        Some(StepRecord {
            loss: self.loss / self.steps as f64,
            mean_over: self.steps,
            tokens: self.tokens,
            valid_tokens: self.valid_tokens,
            tokens_per_second: self.tokens as f64 / self.seconds,
            ..last
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_several_steps_is_their_mean() {
        let step = |step, loss, tokens_per_second| StepRecord {
            step,
            epoch: None,
            loss,
            mean_over: 1,
            grad_norm: loss,
            lr: 0.1,
            tokens: 100,
            valid_tokens: 90,
            tokens_per_second,
            memory_bytes: 5000,
            router_balance: None,
            router_z: None,
        };
        let mut window = Window::default();
        let (first, last) = (step(1, 2.0, 100.0), step(2, 1.0, 50.0));
        window.add(&first);
        window.add(&last);
        let record = window.record().unwrap();
        let expected = StepRecord {
            loss: 1.5,
            mean_over: 2,
            tokens: 200,
            valid_tokens: 180,
            tokens_per_second: 200.0 / 3.0,
            memory_bytes: 5000,
            router_balance: None,
            router_z: None,
            ..last
        };
        assert_eq!(record, expected);
    }
}
