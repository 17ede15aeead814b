//! What people see while a run goes on: a bar, or some twenty plain lines where none can be drawn.

use indicatif::{ProgressBar, ProgressStyle};

use plimsoll::training::course::{Event, Listener};
use plimsoll::training::memory;
use plimsoll::training::metrics::{EvaluationRecord, StepRecord};

use crate::commands::train::say;
use crate::exit::Failure;
use crate::table;

/// The bar of one run.
pub(crate) struct Progress {
    bar: ProgressBar,
    steps: u64,
    budget: u64,
    /// Tokens per second at which all time would go into matrix products.
    ceiling: f64,
    evaluated: String,
}

impl Progress {
    pub(crate) fn new(steps: u64, budget: u64, ceiling: f64) -> Progress {
        let style = ProgressStyle::with_template("{pos:>5}/{len} {bar:16} {msg}  eta {eta}");
        let bar = ProgressBar::new(steps);
        let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress { bar, steps, budget, ceiling, evaluated: String::new() }
    }

    /// Leaves the bar as it is, before an error is told.
    pub(crate) fn abandon(&self) {
        self.bar.abandon();
    }

    fn step(&mut self, record: &StepRecord) -> Result<(), Failure> {
        let used = memory::process().map_err(Failure::memory)?.peak;
        let state = format!(
            "{}  memory {} of {}{}",
            learning(record, self.ceiling),
            table::size(used),
            table::size(self.budget),
            self.evaluated
        );
        let every = (self.steps / 20).max(1);
        if self.bar.is_hidden() && (record.step.is_multiple_of(every) || record.step == 1) {
            say(&format!("step {:>5} of {}  {state}\n", record.step, self.steps))?;
        }
        self.bar.set_message(state);
        self.bar.set_position(record.step);
        Ok(())
    }

    fn evaluation(&mut self, record: &EvaluationRecord) -> Result<(), Failure> {
        self.evaluated = format!("  eval {:.3}", record.eval_loss);
        let best = if record.best { ", the best so far" } else { "" };
        let measure = match record.eval_accuracy {
            Some(accuracy) => format!("accuracy {:.1} %", 100.0 * accuracy),
            None => format!("perplexity {:.2}", record.eval_perplexity),
        };
        let line = format!(
            "step {:>5} of {}  validation loss {:.4}, {measure}{best}\n",
            record.step, self.steps, record.eval_loss
        );
        // Above the bar, where it stays.
        self.bar.suspend(|| say(&line))
    }
}

/// What a step says of learning and speed.
fn learning(record: &StepRecord, ceiling: f64) -> String {
    let epoch = record.epoch.map_or_else(String::new, |epoch| format!("epoch {epoch:.2}  "));
    format!(
        "{epoch}loss {:.3}  lr {:.1e}  norm {:.2}  {:.0} tokens/s, {:.0} % of matmul",
        record.loss,
        record.lr,
        record.grad_norm,
        record.tokens_per_second,
        100.0 * record.tokens_per_second / ceiling
    )
}

impl Listener<Failure> for Progress {
    fn hear(&mut self, event: &Event<'_>) -> Result<(), Failure> {
        match event {
            Event::Step(record) => self.step(record),
            Event::Log(_) | Event::Saving => Ok(()),
            Event::Evaluation(record) => self.evaluation(record),
            Event::Saved(folder) => self.bar.suspend(|| say(&format!("saved {}\n", folder.display()))),
            Event::Note(note) => self.bar.suspend(|| say(&format!("note: {note}\n"))),
            Event::End(_) => {
                self.bar.finish();
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_tells_how_far_how_good_and_how_fast() {
        let record = StepRecord {
            step: 7,
            epoch: Some(0.5),
            loss: 2.3456,
            grad_norm: 0.751,
            lr: 0.000_98,
            tokens: 1024,
            valid_tokens: 1024,
            tokens_per_second: 800.4,
        };
        let said = learning(&record, 2000.0);
        assert_eq!(said, "epoch 0.50  loss 2.346  lr 9.8e-4  norm 0.75  800 tokens/s, 40 % of matmul");
        assert!(learning(&StepRecord { epoch: None, ..record }, 2000.0).starts_with("loss 2.346"));
    }
}
