//! Settings of new adapters, by the names they have in PEFT, and the same settings written down again.
//!
//! An existing adapter has its own settings. A name or pattern that matches nothing is refused here, since the user who
//! typed it can correct it; [`plimsoll_model::lora`] ignores such names, as PEFT does.

use plimsoll_graph::GraphError;
use plimsoll_model::lora::{Excluded, LayerChoice, Pattern, TrainedTokens, is_expression};
use plimsoll_model::{Architecture, Lora, Targets};

use super::bounds::{mistake, shortest, within};
use crate::error::TrainError;
use crate::settings::{Pairs, RawConfig};

/// The adapters that the settings ask for.
pub(super) fn new(raw: &RawConfig, architecture: &Architecture) -> Result<Option<Lora>, TrainError> {
    let Some(rank) = raw.lora_r else {
        return match beside_rank(raw) {
            Some(flag) => Err(mistake(format!("{flag} needs --lora-r, the rank of adapters"))),
            None => Ok(None),
        };
    };
    within("--lora-r", rank)?;
    let dropout = raw.lora_dropout.unwrap_or(0.0);
    if !(0.0..1.0).contains(&dropout) {
        return Err(mistake(format!("--lora-dropout must be at least 0 and below 1, got {dropout}")));
    }
    let lora = Lora {
        rank,
        alpha: raw.lora_alpha.map_or(2.0 * rank as f32, |alpha| alpha as f32),
        dropout: dropout as f32,
        rslora: raw.use_rslora.unwrap_or(false),
        targets: targets(raw)?,
        target_parameters: raw.lora_target_parameters.clone().unwrap_or_default(),
        excluded: excluded(raw.lora_exclude_modules.as_deref())?,
        layers: layers(raw)?,
        rank_pattern: pairs("--lora-rank-pattern", raw.lora_rank_pattern.as_ref(), |text| {
            text.parse().ok().filter(|&rank| rank > 0)
        })?,
        alpha_pattern: pairs("--lora-alpha-pattern", raw.lora_alpha_pattern.as_ref(), |text| {
            text.parse().ok().filter(|alpha: &f32| alpha.is_finite())
        })?,
        modules_to_save: raw.modules_to_save.clone().unwrap_or_default(),
        tokens: raw.trainable_token_indices.clone().map_or(TrainedTokens::None, TrainedTokens::Input),
    };
    for (_, rank) in &lora.rank_pattern {
        within("--lora-rank-pattern", *rank)?;
    }
    let forward = learned(raw, architecture)?.training(1, 1)?;
    let lora = lora.with_stacked_targets(&forward)?;
    lora.check_names(&forward)?;
    lora.token_adapters(&forward)?;
    Ok(Some(lora.with_plain_targets(&forward)?))
}

/// The model with the head that it is going to have; how many labels that has makes no difference to names.
fn learned(raw: &RawConfig, architecture: &Architecture) -> Result<Architecture, GraphError> {
    match raw.task.as_deref() {
        Some("classify") if architecture.labels().is_none() => architecture.clone().with_labels(2),
        _ => Ok(architecture.clone()),
    }
}

/// One expression, or several names. Names have no commas, so pieces with one between them are one expression again.
enum Written {
    Expression(Pattern),
    Names(Vec<String>),
}

fn written(words: &[String]) -> Result<Written, GraphError> {
    if words.iter().any(|word| is_expression(word)) {
        return Pattern::whole(&words.join(",")).map(Written::Expression);
    }
    Ok(Written::Names(words.to_vec()))
}

/// Where only parameters are named, no module is meant.
fn targets(raw: &RawConfig) -> Result<Targets, TrainError> {
    match raw.lora_target_modules.as_deref() {
        None if raw.lora_target_parameters.is_some() => Ok(Targets::Names(Vec::new())),
        None => Ok(Targets::AllLinear),
        Some([one]) if one.eq_ignore_ascii_case("all-linear") => Ok(Targets::AllLinear),
        Some(words) => Ok(match written(words)? {
            Written::Expression(pattern) => Targets::Pattern(pattern),
            Written::Names(names) => Targets::Names(names),
        }),
    }
}

fn excluded(words: Option<&[String]>) -> Result<Excluded, TrainError> {
    Ok(match written(words.unwrap_or_default())? {
        Written::Expression(pattern) => Excluded::Pattern(pattern),
        Written::Names(names) => Excluded::Names(names),
    })
}

fn layers(raw: &RawConfig) -> Result<Option<LayerChoice>, TrainError> {
    let patterns = raw.lora_layers_pattern.as_deref().unwrap_or_default();
    let Some(numbers) = raw.lora_layers_to_transform.clone() else {
        return match patterns {
            [] => Ok(None),
            _ => {
                Err(mistake("--lora-layers-pattern needs --lora-layers-to-transform, the numbers of layers"))
            }
        };
    };
    if numbers.is_empty() {
        return Err(mistake("--lora-layers-to-transform names no layer; leave it out for all of them"));
    }
    let patterns = patterns.iter().map(|text| Pattern::before_layer(text)).collect::<Result<_, _>>()?;
    Ok(Some(LayerChoice { numbers, patterns }))
}

fn pairs<T>(
    flag: &str,
    pairs: Option<&Pairs>,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Vec<(Pattern, T)>, TrainError> {
    let one = |text: &String| {
        let pair = text.rsplit_once('=').and_then(|(pattern, value)| Some((pattern, read(value.trim())?)));
        let Some((pattern, value)) = pair else {
            return Err(mistake(format!("{flag} wants PATTERN=NUMBER, such as q_proj=16, got `{text}`")));
        };
        Ok((Pattern::ending(pattern.trim())?, value))
    };
    pairs.map(|pairs| pairs.0.as_slice()).unwrap_or_default().iter().map(one).collect()
}

/// A setting of adapters beside their rank.
fn beside_rank(raw: &RawConfig) -> Option<&'static str> {
    let given = [
        ("--lora-alpha", raw.lora_alpha.is_some()),
        ("--lora-dropout", raw.lora_dropout.is_some()),
        ("--use-rslora", raw.use_rslora.is_some()),
        ("--lora-target-modules", raw.lora_target_modules.is_some()),
        ("--lora-target-parameters", raw.lora_target_parameters.is_some()),
        ("--lora-exclude-modules", raw.lora_exclude_modules.is_some()),
        ("--lora-layers-to-transform", raw.lora_layers_to_transform.is_some()),
        ("--lora-layers-pattern", raw.lora_layers_pattern.is_some()),
        ("--lora-rank-pattern", raw.lora_rank_pattern.is_some()),
        ("--lora-alpha-pattern", raw.lora_alpha_pattern.is_some()),
        ("--modules-to-save", raw.modules_to_save.is_some()),
        ("--trainable-token-indices", raw.trainable_token_indices.is_some()),
    ];
    given.iter().find(|(_, given)| *given).map(|(flag, _)| *flag)
}

/// Refuses settings of new adapters where one is given that has its own.
pub(super) fn refuse_beside_adapter(raw: &RawConfig) -> Result<(), TrainError> {
    match raw.lora_r.map(|_| "--lora-r").or(beside_rank(raw)) {
        Some(flag) => Err(mistake(format!("--adapter has its own settings; leave out {flag}"))),
        None => Ok(()),
    }
}

/// The settings that make these adapters again.
pub(super) fn effective(lora: &Lora, raw: RawConfig) -> RawConfig {
    let list = |names: Vec<String>| Some(names).filter(|names| !names.is_empty());
    let layers = lora.layers.as_ref();
    let patterns = |layers: &LayerChoice| layers.patterns.iter().map(|p| p.text().to_owned()).collect();
    let ranks = lora.rank_pattern.iter().map(|(pattern, rank)| format!("{}={rank}", pattern.text()));
    let alphas = lora.alpha_pattern.iter().map(|(pattern, alpha)| format!("{}={alpha}", pattern.text()));
    RawConfig {
        lora_r: Some(lora.rank),
        lora_alpha: Some(shortest(lora.alpha)),
        lora_dropout: Some(shortest(lora.dropout)),
        use_rslora: Some(lora.rslora),
        lora_target_modules: list(target_words(&lora.targets)),
        lora_target_parameters: list(lora.target_parameters.clone()),
        lora_exclude_modules: list(match &lora.excluded {
            Excluded::Names(names) => names.clone(),
            Excluded::Pattern(pattern) => vec![pattern.text().to_owned()],
        }),
        lora_layers_to_transform: layers.map(|layers| layers.numbers.clone()),
        lora_layers_pattern: layers.map(patterns).and_then(list),
        lora_rank_pattern: list(ranks.collect()).map(Pairs),
        lora_alpha_pattern: list(alphas.collect()).map(Pairs),
        modules_to_save: list(lora.modules_to_save.clone()),
        trainable_token_indices: match &lora.tokens {
            TrainedTokens::Input(rows) => Some(rows.clone()),
            TrainedTokens::None | TrainedTokens::Modules(_) => None,
        },
        ..raw
    }
}

fn target_words(targets: &Targets) -> Vec<String> {
    match targets {
        Targets::AllLinear => vec!["all-linear".to_owned()],
        Targets::Names(names) => names.clone(),
        Targets::Pattern(pattern) => vec![pattern.text().to_owned()],
    }
}

/// Settings of adapters in a checkpoint. Rare ones are absent where they are not given.
pub(super) fn facts(lora: &Lora) -> Vec<(String, String)> {
    let settings = effective(lora, RawConfig::default());
    let joined = |words: Option<Vec<String>>| words.map(|words| words.join(","));
    let numbers = settings.lora_layers_to_transform.map(|numbers| format!("{numbers:?}"));
    let facts = [
        ("lora_r", Some(lora.rank.to_string())),
        ("lora_alpha", Some(lora.alpha.to_string())),
        ("lora_dropout", Some(lora.dropout.to_string())),
        ("use_rslora", Some(lora.rslora.to_string())),
        ("lora_target_modules", joined(settings.lora_target_modules)),
        ("lora_target_parameters", joined(settings.lora_target_parameters)),
        ("lora_exclude_modules", joined(settings.lora_exclude_modules)),
        ("lora_layers_to_transform", numbers),
        ("lora_layers_pattern", joined(settings.lora_layers_pattern)),
        ("lora_rank_pattern", joined(settings.lora_rank_pattern.map(|pairs| pairs.0))),
        ("lora_alpha_pattern", joined(settings.lora_alpha_pattern.map(|pairs| pairs.0))),
        ("modules_to_save", Some(lora.modules_to_save.join(","))),
        (
            "trainable_token_indices",
            Some(&lora.tokens)
                .filter(|tokens| **tokens != TrainedTokens::None)
                .map(|tokens| format!("{tokens:?}")),
        ),
    ];
    facts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}
