//! Progress of a run for people: a bar in a terminal, and lines that stay.
//!
//! A line stands for a record and shows the same numbers as the files. With `--logging-steps` each record gets one, in
//! a terminal too. Otherwise every step is a record: a bar shows the last one, and without a bar some twenty get a
//! line. Lines that only report progress come from [`heartbeat`].

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use plimsoll::planning::ProcessBytes;
use plimsoll::training::Config;
use plimsoll::training::trainer::{EvaluationRecord, StepRecord};
use plimsoll::training::trainer::{Event, Listener};

use crate::exit::{self, Failure};
use crate::say::say;
use crate::{heartbeat, table};

/// Number of lines of a run without `--logging-steps`.
const LINES: u64 = 20;

/// Which records get a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShownRecords {
    /// Every record.
    All,
    /// About twenty records, and none if a bar is drawn.
    Some,
}

impl ShownRecords {
    /// A user who states `--logging-steps` wants to see them.
    pub(crate) fn of(config: &Config) -> ShownRecords {
        if config.logging_steps.is_some() { ShownRecords::All } else { ShownRecords::Some }
    }
}

/// The steps of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    /// Steps taken before, if the run is resumed.
    pub(crate) before: u64,
    /// The last.
    pub(crate) end: u64,
    /// Which records get a line.
    pub(crate) shown: ShownRecords,
}

impl Steps {
    /// Whether the record of `step` gets a line, where a bar is drawn or not.
    fn shows(&self, step: u64, bar: bool) -> bool {
        let every = (self.end / LINES).max(1);
        let some = step.is_multiple_of(every) || step == self.before + 1 || step == self.end;
        self.shown == ShownRecords::All || (!bar && some)
    }

    /// Progress of a run after `step`; `taken` is the time since its first step.
    fn said(&self, step: u64, taken: Duration) -> String {
        let (done, left) = (step.saturating_sub(self.before), self.end.saturating_sub(step));
        let left = match done {
            0 => String::new(),
            _ => format!(", about {} left", table::duration(taken.as_secs_f64() / done as f64 * left as f64)),
        };
        format!("{step} of {} steps are done{left}", self.end)
    }
}

/// The bar of one run.
pub(crate) struct Progress {
    bar: ProgressBar,
    steps: Steps,
    begun: Instant,
    /// Bytes that the run may hold.
    budget: ProcessBytes,
    /// Tokens per second if all time went into matrix products.
    ceiling: f64,
    /// The last evaluation, shown by the bar alone: a permanent line shows only the figures of its own step.
    evaluated: String,
}

impl Progress {
    pub(crate) fn new(steps: Steps, budget: ProcessBytes, ceiling: f64) -> Progress {
        let style = ProgressStyle::with_template("{pos:>5}/{len} {bar:16} {msg}  eta {eta}");
        let bar = ProgressBar::new(steps.end);
        let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        heartbeat::at_length(steps.said(steps.before, Duration::ZERO));
        Progress { bar, steps, begun: Instant::now(), budget, ceiling, evaluated: String::new() }
    }

    /// Leaves the bar as it is, before an error is printed.
    pub(crate) fn abandon(&self) {
        self.bar.abandon();
    }

    fn step(&mut self, record: &StepRecord) {
        self.bar.set_position(record.step);
        heartbeat::come_to(self.steps.said(record.step, self.begun.elapsed()));
    }

    fn log(&mut self, record: &StepRecord) -> Result<(), Failure> {
        let state = format!(
            "{}  memory {} of {}",
            learning(record, self.ceiling),
            table::size(record.memory_bytes),
            table::size(self.budget.0)
        );
        if self.steps.shows(record.step, !self.bar.is_hidden()) {
            let line = format!("step {:>5} of {}  {state}\n", record.step, self.steps.end);
            self.bar.suspend(|| say(&line))?;
        }
        self.bar.set_message(state + &self.evaluated);
        Ok(())
    }

    fn evaluation(&mut self, record: &EvaluationRecord) -> Result<(), Failure> {
        self.evaluated = format!("  eval {:.4}", record.eval_loss);
        let best = if record.best { ", the best so far" } else { "" };
        let line = format!("step {:>5} of {}  {}{best}\n", record.step, self.steps.end, evaluated(record));
        // The line is printed above the bar, where it stays.
        self.bar.suspend(|| say(&line))
    }
}

/// Learning and speed, as a record has them.
fn learning(record: &StepRecord, ceiling: f64) -> String {
    let epoch = record.epoch.map_or_else(String::new, |epoch| format!("epoch {epoch:.2}  "));
    let mean =
        if record.mean_over == 1 { String::new() } else { format!(" (mean of {} steps)", record.mean_over) };
    format!(
        "{epoch}loss {:.4}{mean}  lr {:.1e}  norm {:.2}  {:.0} tokens/s, {:.0} % of matmul",
        record.loss,
        record.lr,
        record.grad_norm,
        record.tokens_per_second,
        100.0 * record.tokens_per_second / ceiling
    )
}

/// The result of an evaluation: perplexity for words, the share that is right for classes.
fn evaluated(record: &EvaluationRecord) -> String {
    let perplexity = record.eval_perplexity.map(|perplexity| format!(", perplexity {perplexity:.2}"));
    let accuracy = record.eval_accuracy.map(|accuracy| format!(", accuracy {:.1} %", 100.0 * accuracy));
    let f1 = record.eval_f1.map(|f1| format!(", macro F1 {f1:.3}"));
    let measures: String = [perplexity, accuracy, f1].into_iter().flatten().collect();
    format!("validation loss {:.4}{measures}", record.eval_loss)
}

impl Listener<Failure> for Progress {
    fn hear(&mut self, event: &Event<'_>) -> Result<(), Failure> {
        match event {
            Event::Step(record) => {
                self.step(record);
                Ok(())
            }
            Event::Log(record) => self.log(record),
            Event::Saving | Event::Experts(_) => Ok(()),
            Event::Evaluation(record) => self.evaluation(record),
            Event::Saved(folder) => self.bar.suspend(|| say(&format!("saved {}\n", folder.display()))),
            Event::Note(note) => self.bar.suspend(|| say(&format!("note: {note}\n"))),
            Event::End(_) => {
                self.bar.finish();
                Ok(())
            }
        }
    }

    fn dispensable(&self) -> Option<&'static str> {
        exit::goes_on_unheard().then_some("progress")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_tells_how_far_how_good_and_how_fast_and_whether_it_is_a_mean() {
        let record = StepRecord {
            step: 7,
            epoch: Some(0.5),
            loss: 2.34567,
            mean_over: 1,
            grad_norm: 0.751,
            lr: 0.000_98,
            tokens: 1024,
            valid_tokens: 1024,
            tokens_per_second: 800.4,
            memory_bytes: 5000,
            router_balance: None,
            router_z: None,
        };
        let said = learning(&record, 2000.0);
        assert_eq!(said, "epoch 0.50  loss 2.3457  lr 9.8e-4  norm 0.75  800 tokens/s, 40 % of matmul");
        let of_several = learning(&StepRecord { epoch: None, mean_over: 10, ..record }, 2000.0);
        assert!(of_several.starts_with("loss 2.3457 (mean of 10 steps)  lr"), "{of_several}");
    }

    #[test]
    fn an_evaluation_of_classes_tells_accuracy_and_f1_and_no_perplexity() {
        let words = EvaluationRecord {
            step: 4,
            eval_loss: 0.5,
            eval_perplexity: Some(1.648),
            eval_accuracy: None,
            eval_f1: None,
            valid_tokens: 8,
            seconds: 0.25,
            best: true,
        };
        assert_eq!(evaluated(&words), "validation loss 0.5000, perplexity 1.65");
        let classes = EvaluationRecord {
            eval_perplexity: None,
            eval_accuracy: Some(0.75),
            eval_f1: Some(0.7333),
            ..words
        };
        assert_eq!(evaluated(&classes), "validation loss 0.5000, accuracy 75.0 %, macro F1 0.733");
    }

    #[test]
    fn every_record_gets_a_line_where_its_distance_was_stated_and_some_twenty_otherwise() {
        let shown = |shown, bar| {
            let steps = Steps { before: 0, end: 1000, shown };
            (1..=1000).filter(|&step| steps.shows(step, bar)).count()
        };
        assert_eq!((shown(ShownRecords::All, false), shown(ShownRecords::All, true)), (1000, 1000));
        assert_eq!((shown(ShownRecords::Some, false), shown(ShownRecords::Some, true)), (21, 0));
    }

    #[test]
    fn how_far_a_run_is_counts_from_where_it_went_on() {
        let steps = Steps { before: 100, end: 200, shown: ShownRecords::Some };
        assert_eq!(steps.said(100, Duration::ZERO), "100 of 200 steps are done");
        assert_eq!(
            steps.said(120, Duration::from_secs(40)),
            "120 of 200 steps are done, about 2 min 40 s left"
        );
    }
}
