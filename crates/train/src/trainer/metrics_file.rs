//! `metrics.jsonl`: the records of a run in a file, a line each.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::events::{Event, Listener};
use super::records::write_line;
use crate::error::TrainError;
use crate::files::{open_file, sync_folder};

/// The file `metrics.jsonl` of a run: every record is one line, written at once, so that a run which dies leaves all
/// its records.
#[derive(Debug)]
pub struct MetricsFile {
    path: PathBuf,
    file: File,
}

impl MetricsFile {
    /// Opens the file for more lines, after step `after`. Earlier lines up to there stay. Lines beyond the last
    /// checkpoint are removed, since those steps are repeated, and so is a line that was cut off.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn open(path: &Path, after: u64) -> Result<MetricsFile, TrainError> {
        let unwritable = |error: io::Error| TrainError::output(path, &error);
        let sibling = path.with_extension("jsonl.part");
        if path.exists() {
            // Left by a run that was killed here, or planted by someone: a link would redirect the copy.
            let _ = std::fs::remove_file(&sibling);
            copy_until(path, after, &sibling)
                .and_then(|()| std::fs::rename(&sibling, path))
                .map_err(unwritable)?;
        }
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(unwritable)?;
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            sync_folder(folder)?;
        }
        Ok(MetricsFile { file, path: path.to_owned() })
    }

    /// Adds a line.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn add(&mut self, record: &impl Serialize) -> Result<(), TrainError> {
        let mut line = Vec::new();
        write_line(&mut line, record)
            .and_then(|()| self.file.write_all(&line))
            .map_err(|error| TrainError::output(&self.path, &error))
    }

    /// Syncs all lines to disk, so that a checkpoint never has more steps than this file.
    fn sync(&self) -> Result<(), TrainError> {
        self.file.sync_data().map_err(|error| TrainError::output(&self.path, &error))
    }
}

/// Copies the lines up to step `after`, one at a time: the file of a long run is larger than a small budget.
fn copy_until(from: &Path, after: u64, to: &Path) -> io::Result<()> {
    /// All that decides whether a line stays.
    #[derive(Deserialize)]
    struct Place {
        event: Option<String>,
        step: Option<u64>,
    }
    let mut out = BufWriter::new(File::create_new(to)?);
    let (mut lines, mut line) = (BufReader::new(open_file(from)?), Vec::new());
    while lines.read_until(b'\n', &mut line)? > 0 {
        let stays = serde_json::from_slice(&line).is_ok_and(|place: Place| {
            place.event.as_deref() != Some("end") && place.step.is_none_or(|step| step <= after)
        });
        if stays {
            out.write_all(line.trim_ascii_end())?;
            out.write_all(b"\n")?;
        }
        line.clear();
    }
    out.flush()?;
    out.get_ref().sync_data()
}

impl<E: From<TrainError>> Listener<E> for MetricsFile {
    fn hear(&mut self, event: &Event<'_>) -> Result<(), E> {
        match event {
            Event::Step(_) | Event::Saved(_) | Event::Note(_) => {}
            Event::Saving => self.sync()?,
            Event::Log(record) => self.add(record)?,
            Event::Experts(record) => self.add(record)?,
            Event::Evaluation(record) => self.add(record)?,
            Event::End(record) => self.add(record)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use crate::trainer::StepRecord;

    fn record(step: u64, loss: f64) -> StepRecord {
        StepRecord {
            step,
            epoch: None,
            loss,
            mean_over: 1,
            grad_norm: 0.75,
            lr: 0.001,
            tokens: 4096,
            valid_tokens: 4090,
            tokens_per_second: 812.5,
            memory_bytes: 5000,
            router_balance: None,
            router_z: None,
        }
    }

    fn line(step: u64, loss: f64) -> String {
        let mut out = Vec::new();
        write_line(&mut out, &record(step, loss)).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_file_goes_on_after_a_step_without_what_came_later_and_without_half_a_line() {
        let folder = Scratch::new();
        let step = |step| line(step, 2.5);
        let start = "{\"event\":\"start\",\"model\":\"tiny\"}\n";
        let text =
            [start, &step(1), &step(2), &step(3), "{\"event\":\"end\"}\n", "{\"step\":4,\"lo"].concat();
        let path = folder.write("metrics.jsonl", text);
        MetricsFile::open(&path, 2).unwrap().add(&record(3, 1.0)).unwrap();
        let third = line(3, 1.0);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), [start, &step(1), &step(2), &third].concat());
    }
}
