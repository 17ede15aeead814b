//! The folder of a run: `metrics.jsonl`, TensorBoard's event files, and a page at the end.
//!
//! The first line of `metrics.jsonl` says what is run and how it was planned, so that the page can be made
//! from that file alone, also of a run that died or still goes on.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use plimsoll::TrainError;
use plimsoll::training::course::Listener;
use plimsoll::training::metrics::MetricsFile;
use plimsoll::training::tensorboard::EventFile;
use plimsoll::training::{Config, OutputConfig};

use crate::commands::report;
use crate::commands::train::Session;
use crate::exit::Failure;
use crate::{json, samples};

/// What there may be in the folder beside checkpoints, before the trained model.
pub(crate) const NAMES: [&str; 4] = ["metrics.jsonl", "metrics.jsonl.part", "report.html", "tensorboard"];

/// What a run writes besides what it shows.
pub(crate) struct Outputs<'a> {
    config: &'a OutputConfig,
    metrics: MetricsFile,
    events: Option<EventFile>,
}

/// Refuses a folder that cannot be written to, or holds something already; before anything takes long.
pub(crate) fn prepare(config: &OutputConfig, resumes: bool) -> Result<(), Failure> {
    let folder = &config.folder;
    let unwritable = |error: io::Error| {
        let folder = folder.display();
        TrainError::Config(format!(
            "--output-dir `{folder}` cannot be written to ({error}); name another folder"
        ))
    };
    fs::create_dir_all(folder).map_err(unwritable)?;
    let mut entries = fs::read_dir(folder).map_err(unwritable)?;
    if entries.next().is_some() && !resumes {
        return Err(TrainError::Config(format!(
            "--output-dir `{}` is not empty; name another folder, or go on with --resume latest",
            folder.display()
        ))
        .into());
    }
    let probe = folder.join(".tmp-probe");
    Ok(File::create(&probe).and_then(|_| fs::remove_file(&probe)).map_err(unwritable)?)
}

impl<'a> Outputs<'a> {
    /// Opens the files and writes the first line.
    pub(crate) fn open(config: &'a Config, session: &Session) -> Result<Option<Outputs<'a>>, Failure> {
        let Some(output) = &config.output else { return Ok(None) };
        let mut metrics =
            MetricsFile::open(&output.folder.join("metrics.jsonl"), session.trainer.run().steps())?;
        metrics.add(&start(config, session))?;
        let events = output.tensorboard.then(|| EventFile::create(&output.folder.join("tensorboard")));
        Ok(Some(Outputs { config: output, metrics, events: events.transpose()? }))
    }

    /// Those who write while the run goes on.
    pub(crate) fn listeners(&mut self) -> Vec<&mut dyn Listener<Failure>> {
        let mut listeners: Vec<&mut dyn Listener<Failure>> = vec![&mut self.metrics];
        if let Some(events) = &mut self.events {
            listeners.push(events);
        }
        listeners
    }

    /// Writes the page; returns its path if there is one.
    pub(crate) fn finish(&self) -> Result<Option<String>, Failure> {
        if !self.config.html {
            return Ok(None);
        }
        let page = self.config.folder.join("report.html");
        report::write(&self.config.folder, &page)?;
        Ok(Some(page.display().to_string()))
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
