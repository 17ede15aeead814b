//! What people see while data is tokenised: a bar, or a line now and then where none can be drawn.

use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use plimsoll::training::data::{Progress, Task};
use plimsoll::training::{Config, DataConfig, OpenedData};

use crate::commands::train::say;
use crate::exit::Failure;
use crate::table;

/// How long tokenising may take before a line says so; each further line waits twice as long.
const PATIENCE: Duration = Duration::from_secs(1);

/// Opens the data of a run, and shows how far it is where that takes long.
pub(crate) fn open_data(config: &mut Config) -> Result<OpenedData, Failure> {
    let style = ProgressStyle::with_template("tokenising {msg} {bar:16} {bytes} of {total_bytes}  eta {eta}");
    let bar = ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let (begun, mut patience, mut told) = (Instant::now(), PATIENCE, Ok(()));
    let data = config.open_data(&mut |Progress { path, read, total }| {
        if !bar.is_hidden() {
            bar.set_message(path.display().to_string());
            bar.set_length(total);
            bar.set_position(read);
        } else if let Some(line) = line(path, read, total, begun.elapsed(), &mut patience)
            && told.is_ok()
        {
            told = say(&line);
        }
    });
    bar.finish_and_clear();
    told?;
    Ok(data?)
}

/// Opens the data where it decides what the model is: a classifier has as many labels as its data.
pub(crate) fn settle(config: &mut Config) -> Result<(), Failure> {
    let classifies = matches!(config.samples.task, Task::Classify { .. });
    if classifies && config.data != DataConfig::Synthetic {
        open_data(config)?;
    }
    Ok(())
}

/// A line for files that are not done although somebody has waited.
fn line(path: &Path, read: u64, total: u64, waited: Duration, patience: &mut Duration) -> Option<String> {
    if read >= total || waited < *patience {
        return None;
    }
    *patience *= 2;
    let (path, percent) = (path.display(), 100 * read / total);
    Some(format!("tokenising {path}: {} of {}, {percent} %\n", table::size(read), table::size(total)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_late_and_ever_more_seldom() {
        let mut patience = PATIENCE;
        let mut at = |read: u64, seconds| {
            line(Path::new("d.jsonl"), read << 20, 8 << 20, Duration::from_secs(seconds), &mut patience)
        };
        assert_eq!(at(1, 0), None);
        assert_eq!(at(2, 1).as_deref(), Some("tokenising d.jsonl: 2.00 MiB of 8.00 MiB, 25 %\n"));
        assert_eq!(at(3, 1), None);
        assert!(at(4, 2).is_some() && at(5, 3).is_none());
        assert_eq!(at(8, 60), None, "done");
    }
}
