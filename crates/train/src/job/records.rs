//! Records in the folder of a run: `metrics.jsonl` and TensorBoard's event files.
//!
//! The first line of `metrics.jsonl` holds the settings and the plan, so that a page can be made from that file alone,
//! even for a run that died.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::config::OutputConfig;
use crate::data::Shown;
use crate::error::TrainError;
use crate::trainer::EventFile;
use crate::trainer::MetricsFile;
use crate::trainer::{Event, Listener};

/// Files with the records of a run.
#[derive(Debug)]
pub(super) struct Records {
    metrics: MetricsFile,
    events: Option<Events>,
}

/// TensorBoard's file, which a run can do without.
#[derive(Debug)]
struct Events(EventFile);

impl<E: From<TrainError>> Listener<E> for Events {
    fn hear(&mut self, event: &Event<'_>) -> Result<(), E> {
        self.0.hear(event)
    }

    fn dispensable(&self) -> Option<&'static str> {
        Some("TensorBoard's file")
    }
}

impl Records {
    /// Opens the files of a run that has taken `after` steps, and writes the first line.
    pub(super) fn open(output: &OutputConfig, after: u64, start: &Value) -> Result<Records, TrainError> {
        let mut metrics = MetricsFile::open(&output.folder.join("metrics.jsonl"), after)?;
        metrics.add(start)?;
        let events = output.tensorboard.then(|| EventFile::create(&output.folder.join("tensorboard"), after));
        Ok(Records { metrics, events: events.transpose()?.map(Events) })
    }

    /// The files as listeners of the run.
    pub(super) fn listeners<E: From<TrainError> + 'static>(
        &mut self,
    ) -> impl Iterator<Item = &mut dyn Listener<E>> {
        let metrics: &mut dyn Listener<E> = &mut self.metrics;
        let events = self.events.as_mut().map(|events| events as &mut dyn Listener<E>);
        [Some(metrics), events].into_iter().flatten()
    }
}

/// The time of day, in seconds since 1970.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Samples as the first line has them.
pub(super) fn samples(samples: &[Shown], labels: &[String]) -> Value {
    let sample = |sample: &Shown| {
        let parts: Vec<Value> = sample.parts.iter().map(|part| json!([part.text, part.learned])).collect();
        json!({ "row": sample.row, "parts": parts, "class": class_of(sample, labels) })
    };
    samples.iter().map(sample).collect()
}

/// The class of a sample with its name among `labels`, where it has one.
pub fn class_of(sample: &Shown, labels: &[String]) -> Option<String> {
    let class = sample.class?;
    let name = usize::try_from(class).ok().and_then(|class| labels.get(class));
    Some(name.map_or_else(|| format!("class {class}"), |name| format!("class {class}, {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::ShownPart;

    #[test]
    fn a_sample_of_the_first_line_has_its_parts_and_its_class_by_name() {
        let parts = vec![ShownPart { text: "hi".into(), learned: true }];
        let shown = Shown { row: 3, parts, class: Some(1), ..Shown::default() };
        let named = samples(std::slice::from_ref(&shown), &["no".into(), "yes".into()]);
        assert_eq!(named, json!([{ "row": 3, "parts": [["hi", true]], "class": "class 1, yes" }]));
        assert_eq!(samples(&[shown], &[])[0]["class"], "class 1");
    }
}
