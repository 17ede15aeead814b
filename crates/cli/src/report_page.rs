//! The page of a run, made from its `metrics.jsonl` alone.
//!
//! A resumed run has several beginnings; of steps taken twice, the later ones count. An incomplete line that a dying
//! run left is ignored, but only at the end of the file.
//!
//! A run also writes its page while it is running. That page reloads itself, except for the last one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::{Value, json};

use plimsoll::TrainError;
use plimsoll::training::trainer::{EndRecord, EvaluationRecord, ExpertRecord, StepRecord};

use crate::exit::Failure;
use crate::page::{self, Plain};

/// The most points of a curve: twice as many as a screen has columns. More are never held, because a page is written
/// inside the budget of its run.
const POINTS: usize = 2000;

/// Seconds after which the page of a running run reloads itself.
const RENEWAL_SECONDS: u64 = 15;

/// Whether a page will be written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The run is still running and will write the page again.
    Running,
    /// The page will not be written again.
    Over,
}

/// Writes the page of the run whose metrics, or folder, is at `run`.
pub(crate) fn write(run: &Path, page: &Path, state: State) -> Result<(), Failure> {
    let metrics = metrics_path(run);
    let shown = metrics.display();
    let file = File::open(&metrics)
        .map_err(|error| TrainError::Config(format!("cannot read the metrics in `{shown}`: {error}")))?;
    let story =
        Story::read(BufReader::new(file)).map_err(|why| TrainError::Config(format!("`{shown}`{why}")))?;
    page::REPORT.write(page, &story.data(state), &story.plain(state))
}

/// Evaluations as rows of a table: perplexity of words, accuracy and F1 of classes.
fn evaluation_rows<'a>(records: impl Iterator<Item = &'a EvaluationRecord> + Clone) -> String {
    let classifies = records.clone().any(|record| record.eval_accuracy.is_some());
    let names: &[&str] = if classifies { &["accuracy", "macro F1"] } else { &["perplexity"] };
    let cells = |tag: &str, cells: &mut dyn Iterator<Item = String>| {
        let cells: Vec<String> = cells.map(|cell| format!("<{tag}>{cell}</{tag}>")).collect();
        format!("<tr>{}</tr>", cells.concat())
    };
    let number = |value: Option<f64>| match value.filter(|value| value.is_finite()) {
        Some(value) => format!("{value:.4}"),
        None => "not finite".to_owned(),
    };
    let mut rows: Vec<String> = Vec::new();
    for record in records {
        let of_classes = [
            record.eval_accuracy.map_or_else(|| "none".into(), |part| format!("{:.1} %", 100.0 * part)),
            number(record.eval_f1),
        ];
        let measured = if classifies { of_classes.to_vec() } else { vec![number(record.eval_perplexity)] };
        let shown = [record.step.to_string(), number(Some(record.eval_loss))];
        rows.push(cells("td", &mut shown.into_iter().chain(measured)));
    }
    if rows.is_empty() {
        return String::new();
    }
    let head = ["step", "loss"].iter().chain(names).map(|name| (*name).to_owned());
    cells("th", &mut { head }) + &rows.concat()
}

/// The file of metrics in a folder, or the file itself.
pub(crate) fn metrics_path(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("metrics.jsonl") } else { path.to_owned() }
}

/// The contents of a file of metrics.
#[derive(Default)]
struct Story {
    start: Value,
    steps: Curve,
    /// The last record, as it was written.
    last: Option<StepRecord>,
    /// The last load of experts.
    experts: Option<ExpertRecord>,
    evaluations: BTreeMap<u64, EvaluationRecord>,
    end: Option<EndRecord>,
}

impl Story {
    fn read(mut lines: impl BufRead) -> Result<Story, String> {
        let (mut story, mut line) = (Story::default(), Vec::new());
        for number in 1.. {
            line.clear();
            let read = lines.read_until(b'\n', &mut line);
            if read.map_err(|error| format!(" cannot be read: {error}"))? == 0 {
                break;
            }
            match story.hear(&line) {
                Err(_) if !line.ends_with(b"\n") => {}
                Err(why) => return Err(format!(", line {number}: {why}")),
                Ok(()) => {}
            }
        }
        if story.start.is_null() {
            return Err(" has no line with \"event\":\"start\"; it is no file that `plimsoll train --output-dir` wrote".into());
        }
        Ok(story)
    }

    fn hear(&mut self, line: &[u8]) -> Result<(), serde_json::Error> {
        let value: Value = serde_json::from_slice(line)?;
        match value.get("event").and_then(Value::as_str) {
            Some("start") => (self.start, self.end) = (value, None),
            Some("evaluation") => {
                let record = EvaluationRecord::deserialize(value)?;
                self.evaluations.insert(record.step, record);
            }
            Some("experts") => self.experts = Some(ExpertRecord::deserialize(value)?),
            Some("end") => self.end = Some(EndRecord::deserialize(value)?),
            // A later version may add other events.
            Some(_) => {}
            None => {
                let record = StepRecord::deserialize(value)?;
                self.last = Some(record);
                self.steps.add(record);
            }
        }
        Ok(())
    }

    /// The parts of the page that are there where scripts do not run.
    fn plain(&self, state: State) -> Plain {
        let seconds = RENEWAL_SECONDS;
        let renewal = match state {
            State::Running => {
                format!("<noscript><meta http-equiv=\"refresh\" content=\"{seconds}\"></noscript>")
            }
            State::Over => String::new(),
        };
        Plain { renewal, evaluations: evaluation_rows(self.evaluations.values()) }
    }

    /// The data that the page draws.
    fn data(&self, state: State) -> Value {
        let step = |record: &StepRecord| {
            let StepRecord { step, loss, lr, grad_norm, tokens_per_second, mean_over, .. } = record;
            let StepRecord { router_balance, router_z, .. } = record;
            json!([step, loss, lr, grad_norm, tokens_per_second, mean_over, router_balance, router_z])
        };
        let evaluation = |record: &EvaluationRecord| {
            json!({
                "step": record.step,
                "loss": record.eval_loss,
                "perplexity": record.eval_perplexity,
                "accuracy": record.eval_accuracy,
                "f1": record.eval_f1,
            })
        };
        let running = state == State::Running;
        json!({
            "start": self.start,
            "steps": self.steps.points().iter().map(step).collect::<Vec<_>>(),
            "last": self.last.as_ref().map(step),
            "experts": self.experts,
            "evaluations": self.evaluations.values().map(evaluation).collect::<Vec<_>>(),
            "end": self.end,
            "running": running,
            "written": running.then(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())),
        })
    }
}

/// Records as at most [`POINTS`] points. Neighbours that share a point are shown as if they had been logged as one record:
/// loss and speed are means over all their steps, other values come from the last of them.
#[derive(Default)]
struct Curve {
    /// Each point with its number of records.
    points: Vec<(StepRecord, u64)>,
    /// Records of a full point; 1 until there are too many, and then doubled.
    width: u64,
}

impl Curve {
    fn add(&mut self, record: StepRecord) {
        self.width = self.width.max(1);
        // A resumed run repeats steps, of which the later ones count.
        while self.points.last().is_some_and(|(last, _)| last.step >= record.step) {
            self.points.pop();
        }
        match self.points.last_mut() {
            Some((point, count)) if *count < self.width => {
                (*point, *count) = (merged(point, &record), *count + 1);
            }
            _ => self.points.push((record, 1)),
        }
        if self.points.len() > POINTS {
            self.width *= 2;
            let pairs = self.points.chunks(2);
            self.points = pairs
                .filter_map(|pair| pair.iter().copied().reduce(|(a, n), (b, m)| (merged(&a, &b), n + m)))
                .collect();
        }
    }

    fn points(&self) -> Vec<StepRecord> {
        self.points.iter().map(|(point, _)| *point).collect()
    }
}

/// Merges two records into one.
fn merged(before: &StepRecord, last: &StepRecord) -> StepRecord {
    let mean_over = before.mean_over + last.mean_over;
    let mean = |of: fn(&StepRecord) -> f64| {
        let part = |record: &StepRecord| of(record) * record.mean_over as f64;
        (part(before) + part(last)) / mean_over as f64
    };
    let (loss, tokens_per_second) = (mean(|record| record.loss), mean(|record| record.tokens_per_second));
    StepRecord { loss, tokens_per_second, mean_over, ..*last }
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
        let data = Story::read(text.as_bytes()).map(|story| story.data(State::Over)).unwrap();
        assert_eq!(
            data["steps"],
            json!([[1, 3.0, 0.1, 1.0, 5.0, 1, null, null], [2, 2.25, 0.1, 1.0, 5.0, 1, null, null]])
        );
        assert_eq!((&data["end"], &data["running"]), (&Value::Null, &json!(false)));
    }

    #[test]
    fn a_mixture_has_the_losses_of_its_routers_behind_the_other_numbers_of_a_step() {
        let routed = step(1, 3.0).replace("}\n", ",\"router_balance\":2.5,\"router_z\":0.25}\n");
        let text = ["{\"event\":\"start\"}\n", &routed].concat();
        let data = Story::read(text.as_bytes()).map(|story| story.data(State::Over)).unwrap();
        assert_eq!(data["steps"], json!([[1, 3.0, 0.1, 1.0, 5.0, 1, 2.5, 0.25]]));
    }

    #[test]
    fn a_broken_line_is_named_and_so_is_a_file_of_something_else() {
        let broken = format!("{{\"event\":\"start\"}}\nnonsense\n{}", step(1, 1.0));
        let fault = Story::read(broken.as_bytes()).err().unwrap();
        assert!(fault.starts_with(", line 2: expected"), "{fault}");
        let fault = Story::read(step(1, 1.0).as_bytes()).err().unwrap();
        assert!(fault.starts_with(" has no line with"), "{fault}");
    }

    #[test]
    fn long_runs_are_drawn_with_as_many_points_as_a_screen_can_show() {
        let record: StepRecord = serde_json::from_str(&step(1, 0.0)).unwrap();
        let mut curve = Curve::default();
        for step in 1..=5000 {
            curve.add(StepRecord { step, loss: step as f64, ..record });
        }
        let points = curve.points();
        assert_eq!(points.len(), 1250);
        assert_eq!((points[0].step, points[0].loss, points[0].mean_over), (4, 2.5, 4));
        assert_eq!(points.last().map(|last| (last.step, last.loss)), Some((5000, 4998.5)));
    }
}
