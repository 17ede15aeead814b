//! Shows the preparation of a job: a bar or occasional lines while data is tokenised, the micro-batch that the planner
//! tries, names of downloads. It also raises the guard while foreign files are read.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use plimsoll::training::data::{Progress, Task};
use plimsoll::training::job::{Stage, Watch};
use plimsoll::training::{Config, DataConfig, OpenedData};

use crate::exit::{self, Failure};
use crate::heartbeat::{self, Waiting};
use crate::say::say;
use crate::{guard, reexec, table};

/// How long tokenising may take before a line reports it; each further line waits twice as long, up to a minute.
const PATIENCE: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(55);

/// Shows the stages of a job.
#[derive(Default)]
pub(crate) struct Watching {
    tokenising: Option<Tokenising>,
    waiting: Option<Waiting>,
    /// The folder that the job has made.
    made: Arc<OnceLock<PathBuf>>,
}

impl Watching {
    /// Announces other work, once the work so far is over.
    fn wait(&mut self, begin: impl FnOnce() -> Waiting) {
        drop(self.waiting.take());
        self.waiting = Some(begin());
    }

    /// The folder that the job has made, if any: a program that ends before the first step removes it.
    pub(crate) fn made(&self) -> Arc<OnceLock<PathBuf>> {
        Arc::clone(&self.made)
    }
}

impl Watch for Watching {
    fn hear(&mut self, stage: Stage<'_>) {
        match stage {
            Stage::Adapter { name, base } => adapter(name, base),
            // A closed output has no waiting reader.
            Stage::Downloading { file, bytes } => {
                drop(say(&format!("downloading {file}, {}\n", table::size(bytes))));
            }
            Stage::Folder { path, new } => {
                if new {
                    let _ = self.made.set(path.to_owned());
                }
                exit::go_on_unheard();
            }
            Stage::Reading => guard::raise_again(),
            Stage::Tokenising(progress) => {
                self.tokenising.get_or_insert_with(Tokenising::new).show(progress);
            }
            Stage::Opening => self.wait(opening_the_device),
            Stage::Planning => self.wait(|| heartbeat::waiting_for("planning")),
            Stage::Considering { .. } => considering(&stage),
            Stage::Working => {
                (self.tokenising, self.waiting) = (None, None);
                guard::lower();
            }
        }
    }
}

/// Reports which model an adapter belongs to, once in the life of a run.
fn adapter(name: &str, base: &str) {
    static SAID: OnceLock<()> = OnceLock::new();
    if reexec::is_first() && SAID.set(()).is_ok() {
        drop(say(&format!("{name} is an adapter for {base}, which is the model\n")));
    }
}

/// The user waits for the device, whose times are measured at the first start on a machine.
pub(crate) fn opening_the_device() -> Waiting {
    heartbeat::waiting_for("opening the device")
}

/// Tells the heartbeat which program the planner is trying.
pub(crate) fn considering(stage: &Stage<'_>) {
    if let Stage::Considering { micro_batch, tiles } = stage {
        let tiles = if *tiles { ", with tiles" } else { "" };
        heartbeat::come_to(format!("planning, now micro-batches of {micro_batch}{tiles}"));
    }
}

/// A bar, or a line now and then where none can be drawn.
struct Tokenising {
    bar: ProgressBar,
    begun: Instant,
    patience: Duration,
}

impl Tokenising {
    fn new() -> Tokenising {
        let style =
            ProgressStyle::with_template("tokenising {msg} {bar:16} {bytes} of {total_bytes}  eta {eta}");
        let bar = ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Tokenising { bar, begun: Instant::now(), patience: PATIENCE }
    }

    fn show(&mut self, Progress { path, read, total }: Progress<'_>) {
        if !self.bar.is_hidden() {
            self.bar.set_message(path.display().to_string());
            self.bar.set_length(total);
            self.bar.set_position(read);
        } else if let Some(line) = line(path, read, total, self.begun.elapsed(), &mut self.patience) {
            // A closed output has no waiting reader.
            drop(say(&line));
        }
    }
}

impl Drop for Tokenising {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Opens the data of a run that is only planned, as a run would. If something was tokenised, the process starts anew.
pub(crate) fn open_data(config: &mut Config) -> Result<OpenedData, Failure> {
    let mut shown = None;
    let data = config.open_data(&mut |progress| shown.get_or_insert_with(Tokenising::new).show(progress))?;
    config.keeps_budget()?;
    if shown.take().is_some() {
        reexec::after_tokenising();
    }
    Ok(data)
}

/// Opens the data if the model depends on it: a classifier has as many labels as its data.
pub(crate) fn settle(config: &mut Config) -> Result<(), Failure> {
    let classifies = matches!(config.samples.task, Task::Classify { .. });
    if classifies && config.data != DataConfig::Synthetic {
        open_data(config)?;
    }
    Ok(())
}

/// A line for files that take long.
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
