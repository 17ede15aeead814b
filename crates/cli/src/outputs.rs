//! The folder of a run: `metrics.jsonl`, TensorBoard's event files, and a page.
//!
//! The first line of `metrics.jsonl` says what is run and how it was planned, so that the page can be made
//! from that file alone, also of a run that died. While the run goes on, the page is written again every now and then.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use plimsoll::TrainError;
use plimsoll::training::course::{Event, Listener};
use plimsoll::training::files::{check_writable, create_folder};
use plimsoll::training::metrics::MetricsFile;
use plimsoll::training::tensorboard::EventFile;
use plimsoll::training::{Config, OutputConfig};

use crate::commands::report::{self, State};
use crate::commands::train::Session;
use crate::exit::Failure;
use crate::{json, samples};

/// What there may be in the folder beside checkpoints, before the trained model.
const NAMES: [&str; 4] = ["metrics.jsonl", "metrics.jsonl.part", "report.html", "tensorboard"];

/// Whether a run writes something by this name before its first checkpoint.
pub(crate) fn is_ours(name: &str) -> bool {
    NAMES.contains(&name)
}

/// What a run writes besides what it shows.
pub(crate) struct Outputs<'a> {
    config: &'a OutputConfig,
    metrics: MetricsFile,
    events: Option<EventFile>,
    page: Option<LivePage<'a>>,
}

/// Refuses a folder that cannot be written to, or holds something already; before anything takes long. Says whether the
/// folder is new.
pub(crate) fn prepare(config: &OutputConfig, resumes: bool) -> Result<bool, Failure> {
    let folder = &config.folder;
    let unwritable = |error: io::Error| {
        let folder = folder.display();
        TrainError::Config(format!(
            "--output-dir `{folder}` cannot be written to ({error}); name another folder"
        ))
    };
    let is_new = !folder.exists();
    create_folder(folder).and_then(|()| check_writable(folder)).map_err(unwritable)?;
    let mut entries = fs::read_dir(folder).map_err(unwritable)?;
    if entries.next().is_some() && !resumes {
        return Err(TrainError::Config(format!(
            "--output-dir `{}` is not empty; name another folder, or go on with --resume latest",
            folder.display()
        ))
        .into());
    }
    Ok(is_new)
}

/// Removes halves of files that a killed run has left. The folder must be locked: a run that writes has them too.
pub(crate) fn clear_left_over(folder: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::Other(format!("cannot tidy `{}`: {error}", folder.display()));
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let half = name.to_str().and_then(|name| name.strip_suffix(".part"));
        let of =
            |whole: &str| half.is_some_and(|half| half == whole || half.starts_with(&format!("{whole}.")));
        if (of("report.html") || of("metrics.jsonl")) && entry.file_type().map_err(failed)?.is_file() {
            fs::remove_file(entry.path()).map_err(failed)?;
        }
    }
    Ok(())
}

impl<'a> Outputs<'a> {
    /// Opens the files and writes the first line.
    pub(crate) fn open(config: &'a Config, session: &Session) -> Result<Option<Outputs<'a>>, Failure> {
        let Some(output) = &config.output else { return Ok(None) };
        let after = session.trainer.run().steps();
        let mut metrics = MetricsFile::open(&output.folder.join("metrics.jsonl"), after)?;
        metrics.add(&start(config, session))?;
        let events = output.tensorboard.then(|| EventFile::create(&output.folder.join("tensorboard"), after));
        let page = output.html.then(|| LivePage::begin(output));
        Ok(Some(Outputs { config: output, metrics, events: events.transpose()?, page }))
    }

    /// Those who write while the run goes on: the record of the run, and what it can do without.
    pub(crate) fn listeners(
        &mut self,
    ) -> (Option<&mut MetricsFile>, Option<&mut EventFile>, Option<&mut LivePage<'a>>) {
        (Some(&mut self.metrics), self.events.as_mut(), self.page.as_mut())
    }

    /// Writes the page; returns its path if there is one.
    pub(crate) fn finish(&self) -> Result<Option<String>, Failure> {
        if !self.config.html {
            return Ok(None);
        }
        let page = self.config.folder.join("report.html");
        report::write(&self.config.folder, &page, State::Over)?;
        Ok(Some(page.display().to_string()))
    }
}

/// The page of a run that goes on. It is made from the file of metrics, so it comes after that in the order of listeners.
pub(crate) struct LivePage<'a> {
    config: &'a OutputConfig,
    begun: Instant,
    renewal: Renewal,
}

impl LivePage<'_> {
    /// Writes the first, so that there is one to open.
    fn begin(config: &OutputConfig) -> LivePage<'_> {
        let mut page = LivePage { config, begun: Instant::now(), renewal: Renewal::default() };
        page.write();
        page
    }

    fn write(&mut self) {
        let (folder, clock) = (&self.config.folder, Instant::now());
        // The page that counts is the last one, whose fault is told.
        let _ = report::write(folder, &folder.join("report.html"), State::Running);
        self.renewal.written(self.begun.elapsed(), clock.elapsed());
    }
}

impl Listener<Failure> for LivePage<'_> {
    fn hear(&mut self, event: &Event<'_>) -> Result<(), Failure> {
        if !matches!(event, Event::Step(_) | Event::End(_)) && self.renewal.is_due(self.begun.elapsed()) {
            self.write();
        }
        Ok(())
    }
}

/// When a page is written again: seldom enough to take no more than a fiftieth of the time.
#[derive(Default)]
struct Renewal {
    next: Duration,
}

impl Renewal {
    /// The least time between two pages.
    const LEAST: Duration = Duration::from_secs(10);

    fn is_due(&self, now: Duration) -> bool {
        now >= self.next
    }

    /// A page was written up to `now`, which took `took`.
    fn written(&mut self, now: Duration, took: Duration) {
        self.next = now + Renewal::LEAST.max(49 * took);
    }
}

/// What is run, how it was planned, and what the machine can do.
fn start(config: &Config, session: &Session) -> Value {
    json!({
        "event": "start",
        "time": SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()),
        "version": env!("CARGO_PKG_VERSION"),
        "model": config.name,
        "device": session.device_name,
        "steps": session.lr.max_steps,
        "seq_len": config.model.seq_len,
        "ceiling_tokens_per_second": session.ceiling,
        "settings": config.effective(),
        "samples": samples::json(&session.shown, &config.configuration.labels),
        "plan": json::plan(&session.summary),
    })
}

/// The file of metrics in a folder, or the file itself.
pub(crate) fn metrics_path(path: &Path) -> std::path::PathBuf {
    if path.is_dir() { path.join("metrics.jsonl") } else { path.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_renewed_every_ten_seconds_unless_that_took_more_than_a_fiftieth_of_the_time() {
        for (took, expected) in [(0.01, 10.0), (0.1, 10.0), (1.0, 50.0)] {
            let (mut renewal, took) = (Renewal::default(), Duration::from_secs_f64(took));
            assert!(renewal.is_due(Duration::ZERO), "the first is due at once");
            let written = Duration::from_secs(100) + took;
            renewal.written(written, took);
            let due = Duration::from_secs_f64(100.0 + expected).max(written + Renewal::LEAST);
            assert!(!renewal.is_due(due.saturating_sub(Duration::from_millis(1))) && renewal.is_due(due));
        }
    }
}
