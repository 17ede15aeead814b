//! Defaults for a model with existing weights: those of Hugging Face's trainer for fine-tuning, and a folder for the
//! result, which must not be lost. A model from scratch gets the defaults in `rules`.

use std::path::{Path, PathBuf};

use plimsoll_model::Lora;
use plimsoll_model::lora::AdapterKind;

use super::{DataConfig, Origin};
use crate::settings::RawConfig;

/// The defaults of transformers' `TrainingArguments`.
const LEARNING_RATE: f64 = 5e-5;
const EPOCHS: f64 = 3.0;
const BETA2: f64 = 0.999;
/// As in PEFT's guides: adapters begin at nothing and have further to go.
const ADAPTER_LEARNING_RATE: f64 = 2e-4;
/// As in PEFT's examples: a factor for each column has few numbers, and each moves little.
const FACTOR_LEARNING_RATE: f64 = 8e-3;
/// Likewise, for vectors before a text.
const VECTOR_LEARNING_RATE: f64 = 3e-2;

/// Each coordinate moves many weights at once, and the steps of few coordinates must add up.
const SUBSPACE_LEARNING_RATE: f64 = 1e-3;

/// The settings with the defaults that depend on the model filled in.
pub(super) fn filled(raw: &RawConfig, origin: &Origin, lora: Option<&Lora>, data: &DataConfig) -> RawConfig {
    let mut raw = raw.clone();
    if let Some(rate) = raw.optim.as_deref().and_then(rate_without_gradients) {
        raw.learning_rate.get_or_insert(rate);
    }
    let Origin::Pretrained(model) = origin else { return raw };
    raw.learning_rate.get_or_insert(match lora.map(|lora| &lora.kind) {
        None => LEARNING_RATE,
        Some(AdapterKind::Ia3(_)) => FACTOR_LEARNING_RATE,
        Some(AdapterKind::Prompt(_) | AdapterKind::Prefix(_)) => VECTOR_LEARNING_RATE,
        Some(AdapterKind::Intrinsic(_)) => SUBSPACE_LEARNING_RATE,
        Some(_) => ADAPTER_LEARNING_RATE,
    });
    raw.lr_scheduler_type.get_or_insert_with(|| "linear".to_owned());
    raw.adam_beta2.get_or_insert(BETA2);
    raw.weight_decay.get_or_insert(0.0);
    if raw.warmup_ratio.is_none() {
        raw.warmup_steps.get_or_insert(0);
    }
    // Synthetic data has no end, and a model trained on it is not worth keeping.
    if *data != DataConfig::Synthetic {
        if raw.max_steps.is_none() {
            raw.num_train_epochs.get_or_insert(EPOCHS);
        }
        raw.output_dir.get_or_insert_with(|| Path::new("plimsoll-out").join(short_name(&model.folder)));
    }
    raw
}

/// Default peaks of the learning rate of methods without gradients, also for models that begin from scratch. These methods
/// need rates of their own: a slope along one direction is as large as the norm of a whole gradient, and steps that follow
/// ranks of losses do not depend on the size of the losses.
fn rate_without_gradients(optim: &str) -> Option<f64> {
    match optim {
        "mezo" => Some(1e-6),
        "es" => Some(1e-3),
        _ => None,
    }
}

/// The last part of a model's path, or of the hub id that a path in the hub's cache was made from.
fn short_name(folder: &Path) -> PathBuf {
    let id = folder.components().find_map(|part| part.as_os_str().to_str()?.strip_prefix("models--"));
    let of_id = id.and_then(|id| id.rsplit("--").next()).map(PathBuf::from);
    let whole = || folder.canonicalize().ok()?.file_name().map(PathBuf::from);
    of_id.or_else(whole).unwrap_or_else(|| "model".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_named_by_its_folder_or_its_hub_id() {
        let cached = Path::new("/hub/models--Qwen--Qwen3-0.6B/snapshots/0123abcd");
        assert_eq!(short_name(cached), Path::new("Qwen3-0.6B"));
        assert_eq!(short_name(Path::new("src/../src/config/")), Path::new("config"));
        assert_eq!(short_name(Path::new("/no/such")), Path::new("model"));
    }
}
