//! Which data a run sees, and opening it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::thread;

use plimsoll_model::Architecture;
use plimsoll_plan::ProcessBytes;

use super::bounds::{is_one, mistake};
use super::{Config, Origin, Target};
use crate::data::Validation as Apart;
use crate::data::{
    Counts, DataSpec, Dataset, Order, Part, Progress, RowLayout, Shown, Source, Synthetic, Task, Text,
    Tokenizer,
};
use crate::data::{holds_samples, shown};
use crate::error::TrainError;
use crate::memory;
use crate::memory::Budget;
use crate::optimizer::Fitness;
use crate::settings::RawConfig;

/// Where sequences come from.
#[derive(Clone, Debug, PartialEq)]
pub enum DataConfig {
    /// Text files, one token per byte, cut into rows where they lie.
    Text(PathBuf),
    /// Samples in files, through a tokenizer.
    Files(Vec<Part>),
    /// A seeded Markov source.
    Synthetic,
}

/// How samples become rows.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleConfig {
    /// The task.
    pub task: Task,
    /// How documents lie in rows.
    pub layout: RowLayout,
    /// Whether samples that cannot be used are counted instead of refused.
    pub skip_bad_lines: bool,
    /// Number of samples that are shown before a run, with their learned parts marked.
    pub shown: usize,
    /// The folder for tokenised data; one of the system's for temporary files when not stated.
    pub cache: Option<PathBuf>,
}

/// Data that is open.
#[derive(Debug)]
pub struct OpenedData {
    /// The data to train on.
    pub train: Source,
    /// The data to evaluate on.
    pub validation: Option<Source>,
    /// Number of samples that were skipped, and the fault of the first of them.
    pub skipped: Option<(u64, String)>,
    /// Samples, or row-long parts of them, that were left out because nothing in them is learned.
    pub untaught: u64,
    /// Learned tokens that begin in a prompt and reach into its answer.
    pub seams: u64,
    /// Samples with a label that the task does not read.
    pub unread_labels: u64,
    /// Amount of training data, if samples are counted.
    pub counts: Option<Counts>,
    /// The first samples, as many as requested.
    pub shown: Vec<Shown>,
}

/// The data that `--data` and `--synthetic` name, for a model that has a tokenizer or not.
pub(super) fn data(raw: &RawConfig, tokenizer: bool) -> Result<DataConfig, TrainError> {
    match (&raw.data, raw.synthetic) {
        (Some(_), Some(true)) => Err(mistake("give either --data or --synthetic, not both")),
        (None, Some(false)) => {
            Err(mistake("without --data only made-up data is left: leave out --synthetic false"))
        }
        (Some(paths), _) => files("--data", paths, tokenizer),
        (None, _) => Ok(DataConfig::Synthetic),
    }
}

/// A single text without a tokenizer is read byte by byte from where it lies; everything else is tokenised.
pub(super) fn files(flag: &str, paths: &[String], tokenizer: bool) -> Result<DataConfig, TrainError> {
    let parts = paths.iter().map(|path| part(flag, path)).collect::<Result<Vec<Part>, TrainError>>()?;
    match &parts[..] {
        [] => Err(mistake(format!("{flag} names no file"))),
        [one] if !tokenizer && is_one(one.weight) && !holds_samples(&one.path) => {
            Ok(DataConfig::Text(one.path.clone()))
        }
        _ => Ok(DataConfig::Files(parts)),
    }
}

/// `PATH` or `PATH@WEIGHT`. If a file with the `@` in its name exists, that file is meant.
fn part(flag: &str, text: &str) -> Result<Part, TrainError> {
    let whole = PathBuf::from(text);
    match text.rsplit_once('@') {
        Some((path, weight)) if !whole.exists() => match weight.parse::<f64>() {
            Ok(weight) if weight > 0.0 && weight.is_finite() => Ok(Part { path: path.into(), weight }),
            _ => Err(mistake(format!("{flag} {text}: how often a file is seen must be a number above 0"))),
        },
        _ => Ok(Part { path: whole, weight: 1.0 }),
    }
}

/// The task, as the user states it or as the model was made for it.
pub(super) fn samples(raw: &RawConfig, architecture: &Architecture) -> Result<SampleConfig, TrainError> {
    let bert = matches!(architecture, Architecture::Bert(_));
    let classify = || Task::Classify { labels: Vec::new() };
    let natural = match architecture.labels() {
        Some(_) => "classify",
        None if bert => "masked",
        None => "causal",
    };
    let task = match raw.task.as_deref().unwrap_or(natural) {
        "causal" if !bert => Task::Causal,
        "masked" if bert => Task::Masked,
        "classify" if bert => classify(),
        known @ ("causal" | "masked" | "classify") => {
            let can = if bert { "masked and classify" } else { "causal" };
            return Err(mistake(format!("this model cannot learn the task {known}; it can {can}")));
        }
        other => {
            return Err(mistake(format!(
                "there is no task `{other}`; known are causal, masked and classify"
            )));
        }
    };
    let packed = raw.packing.unwrap_or(true) && task == Task::Causal;
    Ok(SampleConfig {
        task,
        layout: if packed { RowLayout::Packed } else { RowLayout::Padded },
        skip_bad_lines: raw.skip_bad_lines.unwrap_or(false),
        shown: usize::try_from(raw.show_samples.unwrap_or(0)).unwrap_or(usize::MAX),
        cache: raw.data_cache.clone(),
    })
}

/// Names of labels that a person gave; transformers' placeholders are no names.
fn given_names(labels: &[String]) -> Vec<String> {
    let unnamed = labels.iter().enumerate().all(|(number, name)| *name == format!("LABEL_{number}"));
    if unnamed { Vec::new() } else { labels.to_vec() }
}

impl Config {
    /// Opens the data, and takes from it what the model must know: the number of classes and their names.
    ///
    /// # Errors
    ///
    /// When it is missing, broken or too short, or does not go with the model.
    pub fn open_data(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<OpenedData, TrainError> {
        let DataConfig::Files(parts) = &self.data else { return self.open_plain() };
        let tokenizer = self.open_tokenizer()?;
        let budget = Budget::resolve(self.stated_here())?;
        budget.keeps(ProcessBytes(memory::process()?.resident))?;
        let validation = match &self.evaluation {
            None => Apart::None,
            Some(evaluation) => match (&evaluation.data, evaluation.share) {
                (_, Some(share)) => Apart::Share(share),
                (Some(DataConfig::Files(parts)), None) => Apart::Files(parts.clone()),
                _ => Apart::None,
            },
        };
        let task = match &self.samples.task {
            Task::Classify { .. } => Task::Classify { labels: given_names(&self.configuration.labels) },
            other => other.clone(),
        };
        let spec = DataSpec {
            parts: parts.clone(),
            validation,
            task,
            layout: self.samples.layout,
            seq_len: self.model.seq_len,
            vocabulary: self.model.architecture.vocab(),
            seed: self.options.seed,
            skip_bad_lines: self.samples.skip_bad_lines,
            cache: match &self.samples.cache {
                Some(folder) => folder.clone(),
                None => temporary_cache(&std::env::temp_dir())?,
            },
            threads: match self.options.threads {
                0 => thread::available_parallelism().map_or(1, usize::from),
                stated => stated,
            },
            classes: self.made_for(),
            memory: budget.total.0,
        };
        let dataset = Dataset::open(&spec, &tokenizer, progress)?;
        if !dataset.prompts && self.options.optimizer.fitness == Fitness::ExactMatch {
            return Err(no_answers());
        }
        self.settle(dataset.classes.max(dataset.labels.len()), &dataset.labels)?;
        let skipped = dataset.first_skipped.map(|first| (dataset.skipped, first));
        let mut train = Source::Corpus(dataset.train);
        Ok(OpenedData {
            shown: shown(&mut train, &tokenizer, &spec.task, self.samples.shown)?,
            counts: Some(dataset.counts),
            train,
            validation: dataset.validation.map(Source::Corpus),
            skipped,
            untaught: dataset.untaught,
            seams: dataset.seams,
            unread_labels: dataset.unread_labels,
        })
    }

    /// Refuses to continue if reading the model's files and the data has already exceeded the budget.
    ///
    /// # Errors
    ///
    /// The error names a budget that is large enough.
    pub fn keeps_budget(&self) -> Result<(), TrainError> {
        Ok(Budget::resolve(self.stated_here())?.keeps(ProcessBytes(memory::process()?.peak))?)
    }

    /// The budget that the user stated, if it is one for this process. With another device it is a budget for the
    /// memory of that device.
    fn stated_here(&self) -> Option<u64> {
        self.options.memory.filter(|_| self.target == Target::Cpu)
    }

    /// Takes from `opened`, which has read the same data, what the model must know: the number of classes and their
    /// names.
    ///
    /// # Errors
    ///
    /// When the model was made for fewer classes.
    pub fn settle_like(&mut self, opened: &Config) -> Result<(), TrainError> {
        match opened.model.architecture.labels() {
            Some(classes) => self.settle(classes, &opened.configuration.labels),
            None => Ok(()),
        }
    }

    /// The head of a classifier has as many labels as the data.
    fn settle(&mut self, classes: usize, labels: &[String]) -> Result<(), TrainError> {
        if !matches!(self.samples.task, Task::Classify { .. }) {
            return Ok(());
        }
        match self.model.architecture.labels() {
            Some(known) if known >= classes => {}
            Some(known) if self.made_for().is_some() => {
                return Err(mistake(format!(
                    "the data has {classes} classes and the model was made for {known}; name --task classify with a model without labels, or mend the data"
                )));
            }
            _ => {
                let architecture = self.model.architecture.clone().with_labels(classes.max(2))?;
                self.configuration.architecture = architecture.clone();
                self.model.architecture = architecture;
            }
        }
        // A new head that is neither trained nor written would keep its random weights; PEFT saves it too.
        if let (Some(lora), Origin::Pretrained(base)) = (&mut self.model.lora, &self.origin)
            && self.adapter.is_none()
            && base.configuration.architecture.labels().is_none()
        {
            for head in ["classifier", "pooler"].map(str::to_owned) {
                if !lora.modules_to_save.contains(&head) {
                    lora.modules_to_save.push(head);
                }
            }
        }
        if given_names(&self.configuration.labels).is_empty() && !labels.is_empty() {
            self.configuration.labels = labels.to_vec();
        }
        Ok(())
    }

    /// Classes that the weights to begin with were made for.
    fn made_for(&self) -> Option<usize> {
        let adapted = || self.adapter.as_ref().and(self.model.architecture.labels());
        match &self.origin {
            Origin::Pretrained(base) => base.configuration.architecture.labels().or_else(adapted),
            Origin::Scratch => adapted(),
        }
    }

    fn open_plain(&self) -> Result<OpenedData, TrainError> {
        if matches!(self.model.architecture, Architecture::Bert(_)) {
            // A model that reads in both directions sees the next word, so it would learn to copy it.
            return Err(mistake(
                "BERT learns from masked words or labels: give --data with a text or .jsonl, and --tokenizer where the model has none",
            ));
        }
        let mut train = self.open_one(&self.data, Order::Shuffled { seed: self.options.seed })?;
        // Made-up ids are no text.
        let is_text = matches!(train, Source::Text(_));
        let most = if is_text { self.samples.shown } else { 0 };
        let shown = shown(&mut train, &Tokenizer::bytes(), &Task::Causal, most)?;
        let validation = self.evaluation.as_ref().and_then(|evaluation| evaluation.data.as_ref());
        let validation = validation.map(|data| self.open_one(data, Order::AsWritten)).transpose()?;
        Ok(OpenedData {
            train,
            validation,
            skipped: None,
            untaught: 0,
            seams: 0,
            unread_labels: 0,
            counts: None,
            shown,
        })
    }

    fn open_one(&self, data: &DataConfig, order: Order) -> Result<Source, TrainError> {
        let (seed, vocab, seq_len) = (self.options.seed, self.model.architecture.vocab(), self.model.seq_len);
        match data {
            DataConfig::Text(path) => Ok(Source::Text(Text::open(path, seq_len, vocab, order)?)),
            DataConfig::Synthetic => Ok(Source::Synthetic(Synthetic::new(seed, vocab, seq_len)?)),
            DataConfig::Files(_) => {
                Err(mistake("validation samples go with training samples; give both as .jsonl or .parquet"))
            }
        }
    }
}

/// The refusal to count right answers where there are only texts.
pub(super) fn no_answers() -> TrainError {
    mistake(
        "--es-fitness exact-match compares answers, and a text has none; give --data with prompts or conversations, or take \
         --es-fitness accuracy",
    )
}

/// A folder for tokenised data in the system's temporary folder, used if no other is stated. It must belong to this
/// user alone: its files are trusted when their checksums hold.
fn temporary_cache(temporary: &Path) -> Result<PathBuf, TrainError> {
    let unusable = |path: &Path, why: &str| {
        mistake(format!("{} {why}; state a folder for tokenised data as data_cache", path.display()))
    };
    // On Linux, a process owns its own folder in `/proc`.
    let user = fs::metadata("/proc/self").map_or(0, |own| own.uid());
    let path = temporary.join(format!("plimsoll-data-{user}"));
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(fault) if fault.kind() != io::ErrorKind::AlreadyExists => {
            return Err(unusable(&path, &format!("cannot be made ({fault})")));
        }
        _ => {}
    }
    let own = fs::symlink_metadata(&path)
        .is_ok_and(|found| found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0);
    if own { Ok(path) } else { Err(unusable(&path, "is not a folder that only you can write to")) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn tokenised_data_of_others_is_not_believed() {
        let folder = Scratch::new();
        let cache = temporary_cache(folder.path()).unwrap();
        assert_eq!(temporary_cache(folder.path()).unwrap(), cache, "the second time");
        fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).unwrap();
        let why = temporary_cache(folder.path()).unwrap_err().to_string();
        assert!(why.contains("is not a folder that only you can write to; state a folder"), "{why}");
        fs::rename(&cache, folder.path().join("moved")).unwrap();
        symlink("moved", &cache).unwrap();
        assert!(temporary_cache(folder.path()).is_err());
    }
}
