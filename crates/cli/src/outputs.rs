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
use plimsoll::training::files::create_folder;
use plimsoll::training::metrics::MetricsFile;
use plimsoll::training::tensorboard::EventFile;
use plimsoll::training::{Config, OutputConfig};

use crate::commands::report;
use crate::commands::train::Session;
use crate::exit::Failure;
use crate::json;

/// What there may be in the folder beside checkpoints, before the trained model.
const NAMES: [&str; 3] = ["metrics.jsonl", "report.html", "tensorboard"];

/// Whether a run writes something by this name before its first checkpoint.
pub(crate) fn is_ours(name: &str) -> bool {
    NAMES.contains(&name)
}

/// What a run writes besides what it shows.
pub(crate) struct Outputs<'a> {
    config: &'a OutputConfig,
    metrics: MetricsFile,
    events: Option<EventFile>,
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
    create_folder(folder).map_err(unwritable)?;
    let mut entries = fs::read_dir(folder).map_err(unwritable)?;
    if entries.next().is_some() && !resumes {
        return Err(TrainError::Config(format!(
            "--output-dir `{}` is not empty; name another folder, or go on with --resume latest",
            folder.display()
        ))
        .into());
    }
    let probe = folder.join(".tmp-probe");
    File::create(&probe).and_then(|_| fs::remove_file(&probe)).map_err(unwritable)?;
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
        let mut metrics =
            MetricsFile::open(&output.folder.join("metrics.jsonl"), session.trainer.run().steps())?;
        metrics.add(&start(config, session))?;
        let events = output.tensorboard.then(|| EventFile::create(&output.folder.join("tensorboard")));
        Ok(Some(Outputs { config: output, metrics, events: events.transpose()? }))
    }

    /// Those who write while the run goes on: the record of the run, and what it can do without.
    pub(crate) fn listeners(&mut self) -> (Option<&mut MetricsFile>, Option<&mut EventFile>) {
        (Some(&mut self.metrics), self.events.as_mut())
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
        "plan": json::plan(&session.summary),
    })
}

/// The file of metrics in a folder, or the file itself.
pub(crate) fn metrics_path(path: &Path) -> std::path::PathBuf {
    if path.is_dir() { path.join("metrics.jsonl") } else { path.to_owned() }
}
