//! `plimsoll report`: the page of a run, made from its `metrics.jsonl` alone.
//!
//! A run that was resumed has several beginnings; steps it took twice count as they were taken last. A line
//! that a run did not finish writing before it died is passed over, but only at the end of the file.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use plimsoll::TrainError;
use plimsoll::training::metrics::{EndRecord, EvaluationRecord, StepRecord};

use crate::args::ReportArgs;
use crate::commands::train::say;
use crate::exit::Failure;
use crate::outputs::metrics_path;
use crate::page;

/// The most points of a curve: twice as many as a screen has columns.
const POINTS: usize = 2000;

pub(crate) fn run(args: &ReportArgs) -> Result<(), Failure> {
    let metrics = metrics_path(&args.run);
    let path = args.html.clone().unwrap_or_else(|| metrics.with_file_name("report.html"));
    write(&metrics, &path)?;
    say(&format!("the report is in {}\n", path.display()))
}

/// Writes the page of the run whose metrics, or folder, is at `run`.
pub(crate) fn write(run: &Path, page: &Path) -> Result<(), Failure> {
    let metrics = metrics_path(run);
    let shown = metrics.display();
    let text = std::fs::read_to_string(&metrics)
        .map_err(|error| TrainError::Config(format!("cannot read the metrics in `{shown}`: {error}")))?;
    let story = Story::read(&text).map_err(|why| TrainError::Config(format!("`{shown}`{why}")))?;
    page::REPORT.write(page, &story.data())
}

/// What a file of metrics tells.
#[derive(Default)]
struct Story {
    start: Value,
    steps: BTreeMap<u64, StepRecord>,
    evaluations: BTreeMap<u64, EvaluationRecord>,
    end: Option<EndRecord>,
}

impl Story {
    fn read(text: &str) -> Result<Story, String> {
        let mut story = Story::default();
        let mut lines = text.lines().zip(1..).peekable();
        while let Some((line, number)) = lines.next() {
            let cut_off = lines.peek().is_none() && !text.ends_with('\n');
            match story.hear(line) {
                Err(_) if cut_off => {}
                Err(why) => return Err(format!(", line {number}: {why}")),
                Ok(()) => {}
            }
        }
        if story.start.is_null() {
            return Err(" has no line with \"event\":\"start\"; it is no file that `plimsoll train --output-dir` wrote".into());
        }
        Ok(story)
    }

    fn hear(&mut self, line: &str) -> Result<(), serde_json::Error> {
        let value: Value = serde_json::from_str(line)?;
        match value.get("event").and_then(Value::as_str) {
            Some("start") => (self.start, self.end) = (value, None),
            Some("evaluation") => {
                let record = EvaluationRecord::deserialize(value)?;
                self.evaluations.insert(record.step, record);
            }
            Some("end") => self.end = Some(EndRecord::deserialize(value)?),
            // What a later version may add.
            Some(_) => {}
            None => {
                let record = StepRecord::deserialize(value)?;
                self.steps.insert(record.step, record);
            }
        }
        Ok(())
    }

    /// What the page draws.
    fn data(&self) -> Value {
        let step = |record: &StepRecord| {
            let StepRecord { step, loss, lr, grad_norm, tokens_per_second, .. } = record;
            json!([step, loss, lr, grad_norm, tokens_per_second])
        };
        let evaluation =
            |record: &EvaluationRecord| json!([record.step, record.eval_loss, record.eval_perplexity]);
        json!({
            "start": self.start,
            "steps": thinned(&self.steps).iter().map(step).collect::<Vec<_>>(),
            "evaluations": self.evaluations.values().map(evaluation).collect::<Vec<_>>(),
            "end": self.end,
        })
    }
}

/// At most [`POINTS`] records: the means of neighbours, at the step of the last.
fn thinned(steps: &BTreeMap<u64, StepRecord>) -> Vec<StepRecord> {
    let all: Vec<StepRecord> = steps.values().copied().collect();
    let group = all.len().div_ceil(POINTS).max(1);
    let mean = |records: &[StepRecord], value: fn(&StepRecord) -> f64| {
        records.iter().map(value).sum::<f64>() / records.len() as f64
    };
    let point = |records: &[StepRecord]| {
        records.last().map(|last| StepRecord {
            loss: mean(records, |record| record.loss),
            grad_norm: mean(records, |record| record.grad_norm),
            tokens_per_second: mean(records, |record| record.tokens_per_second),
            ..*last
        })
    };
    all.chunks(group).filter_map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64, loss: f64) -> String {
        format!(
            "{{\"step\":{step},\"loss\":{loss},\"grad_norm\":1.0,\"lr\":0.1,\"tokens\":8,\"valid_tokens\":8,\"tokens_per_second\":5.0}}\n"
        )
    }

    #[test]
    fn a_resumed_run_is_told_once_and_a_line_cut_off_at_the_end_is_passed_over() {
        let start = "{\"event\":\"start\",\"model\":\"tiny\"}\n";
        let text = [start, &step(1, 3.0), &step(2, 2.5), start, &step(2, 2.25), "{\"step\":3,\"lo"].concat();
        let data = Story::read(&text).map(|story| story.data()).unwrap();
        assert_eq!(data["steps"], json!([[1, 3.0, 0.1, 1.0, 5.0], [2, 2.25, 0.1, 1.0, 5.0]]));
        assert_eq!(data["end"], Value::Null);
    }

    #[test]
    fn a_broken_line_is_named_and_so_is_a_file_of_something_else() {
        let broken = format!("{{\"event\":\"start\"}}\nnonsense\n{}", step(1, 1.0));
        let fault = Story::read(&broken).err().unwrap();
        assert!(fault.starts_with(", line 2: expected"), "{fault}");
        let fault = Story::read(&step(1, 1.0)).err().unwrap();
        assert!(fault.starts_with(" has no line with"), "{fault}");
    }

    #[test]
    fn long_runs_are_drawn_with_as_many_points_as_a_screen_can_show() {
        let record: StepRecord = serde_json::from_str(&step(1, 0.0)).unwrap();
        let steps = (1..=5000).map(|step| (step, StepRecord { step, loss: step as f64, ..record })).collect();
        let points = thinned(&steps);
        assert_eq!(points.len(), 1667);
        assert_eq!((points[0].step, points[0].loss), (3, 2.0));
    }
}
