//! `plimsoll plan --max`: the largest value that fits, found by planning.
//!
//! Sizes double until one does not fit, then the gap is halved. The answer is a plan that was made; the next
//! larger size was tried and does not fit, or means nothing.

use serde_json::{Value, json};

use plimsoll::TrainError;
use plimsoll::planning::{ArenaBytes, largest};
use plimsoll::training::job::DeviceFacts;
use plimsoll::training::memory::Budget;
use plimsoll::training::{Config, LanguageModel, RawConfig, fits_within};

use crate::args::{PlanArgs, What};
use crate::exit::Failure;

/// How the memory is divided: a larger model has a larger plan, which takes room too.
pub(crate) type BudgetOf<'a> = &'a dyn Fn(&Config) -> Result<Budget, TrainError>;

/// The most of something that fits.
pub(crate) struct Answer {
    /// The requested quantity.
    what: What,
    /// The largest value that fits, or 1 if not even 1 fits.
    value: usize,
    /// The largest value to try.
    most: usize,
    /// The settings with `value`.
    pub(crate) config: Config,
}

impl Answer {
    /// The answer in words.
    pub(crate) fn sentence(&self, budget: &str) -> String {
        let (what, value) = (self.what.name(), self.value);
        if value < self.most {
            return format!("most that fits in {budget}: {what} {value} ({} does not fit)\n", value + 1);
        }
        let why = match self.what {
            What::SeqLen if self.most < Config::MOST => "the model reads no longer sequence",
            What::LoraRank => "no layer that is adapted has a higher rank",
            _ => "more was not tried",
        };
        format!("{what} {value} fits in {budget}; {why}\n")
    }

    /// As JSON, with the arena of its plan.
    pub(crate) fn json(&self, planned_peak: ArenaBytes) -> Value {
        json!({
            "what": self.what.name(),
            "value": self.value,
            "most": self.most,
            "planned_peak_bytes": planned_peak.0,
        })
    }
}

/// Finds the largest `what` that fits; `opened` are the settings as stated, after reading the data.
pub(crate) fn find(
    args: &PlanArgs,
    what: What,
    opened: &Config,
    facts: DeviceFacts<'_>,
    budget: BudgetOf<'_>,
) -> Result<Answer, Failure> {
    let raw = open(args, what)?;
    let with = |value: usize| {
        let mut config = with(&raw, what, value)?;
        config.settle_like(opened)?;
        Ok::<_, Failure>(config)
    };
    let most = most(&raw, what, with(1)?)?;
    let found = largest(most, |value| {
        let config = with(value)?;
        let fits = fits_within(&config.model, facts, &config.options, &budget(&config)?)?;
        Ok::<_, Failure>(fits.then_some(config))
    })?;
    match found {
        Some((value, config)) => Ok(Answer { what, value, most, config }),
        // Not even 1 fits; the error of planning it names settings that would.
        None => Ok(Answer { what, value: 1, most, config: with(1)? }),
    }
}

/// The largest value to try. A model has so many positions, and an adapter whose rank is that of its layer can become
/// any layer. `smallest` are the settings with the smallest value.
fn most(raw: &RawConfig, what: What, smallest: Config) -> Result<usize, Failure> {
    let LanguageModel { architecture, lora, .. } = smallest.model;
    Ok(match what {
        What::SeqLen => architecture.positions().unwrap_or(Config::MOST).min(Config::MOST),
        What::MicroBatch => Config::MOST / raw.gradient_accumulation_steps.unwrap_or(1),
        What::Layers => Config::MOST,
        What::LoraRank => {
            let (lora, forward) = (lora.unwrap_or_default(), architecture.training(1, 1)?);
            let (adapters, experts) = (lora.adapters(&forward)?, lora.expert_adapters(&forward)?);
            let modules = adapters.iter().map(|adapter| adapter.input.min(adapter.output));
            let experts = experts.iter().map(|adapter| adapter.input.min(adapter.output));
            modules.chain(experts).max().unwrap_or(1)
        }
    })
}

/// The settings without the requested quantity, which must not be fixed.
fn open(args: &PlanArgs, what: What) -> Result<RawConfig, Failure> {
    let raw = args.settings.raw()?;
    let fixed = match what {
        What::SeqLen => raw.seq_len.map(|_| "--seq-len"),
        What::MicroBatch => (raw.micro_batch.map(|_| "--micro-batch"))
            .or(raw.per_device_train_batch_size.map(|_| "--per-device-train-batch-size"))
            .or(raw.global_batch.map(|_| "--global-batch")),
        What::Layers => raw.layers.map(|_| "--layers"),
        What::LoraRank => raw.lora_r.map(|_| "--lora-r").or(raw.adapter.as_ref().map(|_| "--adapter")),
    };
    match fixed {
        Some(flag) => Err(TrainError::Config(format!(
            "--max {} asks for the largest that fits, so {flag} cannot be fixed; leave it out",
            what.name()
        ))
        .into()),
        None => Ok(raw),
    }
}

/// The settings with `value` of `what`.
fn with(raw: &RawConfig, what: What, value: usize) -> Result<Config, Failure> {
    let mut raw = raw.clone();
    match what {
        What::SeqLen => raw.seq_len = Some(value),
        What::MicroBatch => {
            raw.micro_batch = Some(value);
            raw.gradient_accumulation_steps = Some(raw.gradient_accumulation_steps.unwrap_or(1));
        }
        What::Layers => raw.layers = Some(value),
        What::LoraRank => raw.lora_r = Some(value),
    }
    Ok(Config::check(&raw)?)
}
