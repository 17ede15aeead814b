//! `plimsoll plan --max`: the most that fits, by planning it.
//!
//! Sizes double until one does not fit, then the gap is halved. The answer is a plan that was made; the next
//! larger size was tried and does not fit.

use serde_json::{Value, json};

use plimsoll::planning::{Facts, largest};
use plimsoll::training::budget::Budget;
use plimsoll::training::{Config, LanguageModel, RawConfig};
use plimsoll::{Graph, TrainError};

use crate::args::{PlanArgs, What};
use crate::exit::Failure;
use crate::summary::questions;

/// Nobody asks for more, and beyond it sizes in bytes could overflow.
const MOST: usize = 1 << 24;

/// The most of something that fits.
pub(crate) struct Answer {
    /// What was asked for.
    pub(crate) what: What,
    /// The most of it.
    pub(crate) value: usize,
    /// The settings of that plan.
    pub(crate) config: Config,
}

impl Answer {
    /// In words.
    pub(crate) fn sentence(&self, budget: &str) -> String {
        let (what, value) = (self.what.name(), self.value);
        if value == MOST {
            return format!("{what} {value} fits in {budget}; more was not tried\n");
        }
        format!("most that fits in {budget}: {what} {value} ({} does not fit)\n", value + 1)
    }

    /// As JSON, with the arena of its plan.
    pub(crate) fn json(&self, planned_peak_bytes: u64) -> Value {
        json!({
            "what": self.what.name(), "value": self.value, "planned_peak_bytes": planned_peak_bytes,
        })
    }
}

/// Finds the most of `what` that fits.
pub(crate) fn find(
    args: &PlanArgs,
    what: What,
    facts: &dyn Fn(&Graph) -> Facts,
    budget: Budget,
) -> Result<Answer, Failure> {
    let raw = open(args, what)?;
    let found = largest(most(&raw, what)?, |value| {
        let config = with(&raw, what, value)?;
        let two_passes = config.options.in_two_passes().map(|options| Config { options, ..config.clone() });
        for config in [Some(config), two_passes].into_iter().flatten() {
            let mut questions = questions(&config, facts, budget);
            if questions.searcher.fits(questions.request).map_err(|error| questions.failure(error))? {
                drop(questions);
                return Ok(Some(config));
            }
        }
        Ok::<_, Failure>(None)
    })?;
    match found {
        Some((value, config)) => Ok(Answer { what, value, config }),
        // Not even 1 fits; planning that says what would.
        None => Ok(Answer { what, value: 1, config: with(&raw, what, 1)? }),
    }
}

/// The largest value that means anything: an adapter of more rows than its layer has is a layer of its own.
fn most(raw: &RawConfig, what: What) -> Result<usize, Failure> {
    if what != What::LoraRank {
        return Ok(MOST);
    }
    let LanguageModel { architecture, lora, .. } = with(raw, what, 1)?.model;
    let adapters = lora.unwrap_or_default().adapters(&architecture.training(1, 1)?)?;
    Ok(adapters.iter().map(|adapter| adapter.input.min(adapter.output)).max().unwrap_or(1))
}

/// The settings without what is asked for, which must not be fixed.
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
