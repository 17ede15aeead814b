//! What people see while data is tokenised: a bar, or a line now and then where none can be drawn.
//!
//! A process that has tokenised holds more than one that found the ids in the cache: pages of code, and memory that the
//! allocator keeps. Its plan would be another, and with it the last bits of what is trained. So it begins anew.

use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use plimsoll::training::data::{Progress, Task};
use plimsoll::training::{Config, DataConfig, OpenedData};

use crate::commands::train::say;
use crate::exit::Failure;
use crate::{again, table};

/// How long tokenising may take before a line says so; each further line waits twice as long, up to a minute.
const PATIENCE: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(55);

/// Set in a process that was begun anew, so that it is not done again.
const TOKENISED: &str = "PLIMSOLL_TOKENISED";

/// Opens the data of a run, and shows how far it is where that takes long. Where something was tokenised, the process
/// starts again with the same arguments, and finds it done: nothing may have been written before that a second start
/// would stumble over.
pub(crate) fn open_data(config: &mut Config) -> Result<OpenedData, Failure> {
    let (data, tokenised) = open_showing(config)?;
    config.keeps_budget()?;
    if tokenised && again::noted(TOKENISED).is_none() {
        // Where that cannot be, the run goes on as it is: it keeps its budget, and may be planned differently the next
        // time.
        again::begin(TOKENISED, OsStr::new("1"));
    }
    Ok(data)
}

/// The data, and whether any of it was tokenised.
fn open_showing(config: &mut Config) -> Result<(OpenedData, bool), Failure> {
    let style = ProgressStyle::with_template("tokenising {msg} {bar:16} {bytes} of {total_bytes}  eta {eta}");
    let bar = ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let (begun, mut patience, mut told, mut tokenised) = (Instant::now(), PATIENCE, Ok(()), false);
    let data = config.open_data(&mut |Progress { path, read, total }| {
        tokenised = true;
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
    Ok((data?, tokenised))
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
    *patience = waited + LONGEST.min(*patience);
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
        let told: Vec<u64> = (4..1000).filter(|&second| at(5, second).is_some()).collect();
        assert_eq!(told[..5], [4, 8, 16, 32, 64]);
        assert!(told.windows(2).all(|pair| pair[1] - pair[0] <= 60), "{told:?}");
    }
}
