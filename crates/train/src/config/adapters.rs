//! Settings of new adapters, by the names they have in PEFT, and the same settings written down again.
//!
//! An existing adapter has its own settings. A name or pattern that matches nothing is refused here, since the user who
//! typed it can correct it; [`plimsoll_model::lora`] ignores such names, as PEFT does.

use plimsoll_graph::GraphError;
use plimsoll_model::lora::{
    AdapterKind, Excluded, FeedForward, Intrinsic, LayerChoice, NonLinearity, Pattern,
};
use plimsoll_model::lora::{TrainedTokens, VirtualTokens, is_expression};
use plimsoll_model::{Architecture, Lora, Targets};

use super::adapter_kind::{self, NewKind};
use super::bounds::{mistake, shortest, within};
use crate::error::TrainError;
use crate::settings::{Pairs, RawConfig};

/// The adapters that the settings ask for.
pub(super) fn new(raw: &RawConfig, architecture: &Architecture) -> Result<Option<Lora>, TrainError> {
    let Some(kind) = adapter_kind::of(raw)? else { return Ok(None) };
    let lora = match kind {
        NewKind::Lora(rank) => low_rank(raw, rank)?,
        NewKind::Ia3 => ia3(raw, architecture)?,
        NewKind::Bottleneck => bottleneck(raw, architecture)?,
        NewKind::Prompt(count) => prompt(count, architecture),
        NewKind::Prefix(count) => prefix(count, architecture),
        NewKind::Intrinsic(dimension) => intrinsic(raw, dimension),
    };
    let lora = Lora {
        excluded: excluded(raw.lora_exclude_modules.as_deref())?,
        modules_to_save: raw.modules_to_save.clone().unwrap_or_default(),
        ..lora
    };
    let forward = learned(raw, architecture)?.training(1, 1 + lora.added_positions())?;
    let lora = lora.with_stacked_targets(&forward)?;
    lora.check_names(&forward)?;
    lora.token_adapters(&forward)?;
    if !lora.kind.has_modules() {
        lora.adapt(&forward)?;
    }
    Ok(Some(lora.with_plain_targets(&forward)?))
}

/// Keys and values have fewer heads than queries in some models.
fn prefix(count: usize, architecture: &Architecture) -> Lora {
    let layers = architecture.layers();
    let (width, heads) = match architecture {
        Architecture::Llama(model) => {
            let head = model.head_width.unwrap_or(model.width / model.heads.max(1));
            (model.key_heads * head, model.key_heads)
        }
        Architecture::Gpt2(model) => (model.width, model.heads),
        Architecture::Bert(model) => (model.width, model.heads),
    };
    Lora { kind: AdapterKind::Prefix(VirtualTokens { count, width, layers, heads }), ..Lora::default() }
}

fn prompt(count: usize, architecture: &Architecture) -> Lora {
    let layers = architecture.layers();
    let (width, heads) = match architecture {
        Architecture::Llama(model) => (model.width, model.heads),
        Architecture::Gpt2(model) => (model.width, model.heads),
        Architecture::Bert(model) => (model.width, model.heads),
    };
    Lora { kind: AdapterKind::Prompt(VirtualTokens { count, width, layers, heads }), ..Lora::default() }
}

fn intrinsic(raw: &RawConfig, dimension: usize) -> Lora {
    let (per_layer, seed) = (raw.intrinsic_per_layer.unwrap_or(false), raw.seed.unwrap_or(0));
    Lora { kind: AdapterKind::Intrinsic(Intrinsic { dimension, per_layer, seed }), ..Lora::default() }
}

fn low_rank(raw: &RawConfig, rank: usize) -> Result<Lora, TrainError> {
    within("--lora-r", rank)?;
    let dropout = raw.lora_dropout.unwrap_or(0.0);
    if !(0.0..1.0).contains(&dropout) {
        return Err(mistake(format!("--lora-dropout must be at least 0 and below 1, got {dropout}")));
    }
    let lora = Lora {
        kind: if raw.use_dora == Some(true) { AdapterKind::Dora } else { AdapterKind::LowRank },
        rank,
        alpha: raw.lora_alpha.map_or(2.0 * rank as f32, |alpha| alpha as f32),
        dropout: dropout as f32,
        rslora: raw.use_rslora.unwrap_or(false),
        targets: match &raw.lora_target_modules {
            None if raw.lora_target_parameters.is_some() => Targets::Names(Vec::new()),
            words => targets(words.as_deref())?,
        },
        target_parameters: raw.lora_target_parameters.clone().unwrap_or_default(),
        layers: layers(raw)?,
        rank_pattern: pairs("--lora-rank-pattern", raw.lora_rank_pattern.as_ref(), |text| {
            text.parse().ok().filter(|&rank| rank > 0)
        })?,
        alpha_pattern: pairs("--lora-alpha-pattern", raw.lora_alpha_pattern.as_ref(), |text| {
            text.parse().ok().filter(|alpha: &f32| alpha.is_finite())
        })?,
        tokens: raw.trainable_token_indices.clone().map_or(TrainedTokens::None, TrainedTokens::Input),
        ..Lora::default()
    };
    for (_, rank) in &lora.rank_pattern {
        within("--lora-rank-pattern", *rank)?;
    }
    Ok(lora)
}

fn ia3(raw: &RawConfig, architecture: &Architecture) -> Result<Lora, TrainError> {
    let usual = adapter_kind::keys_values_and_networks(architecture);
    let feedforward = match &raw.feedforward_modules {
        None => FeedForward::Names(usual.feedforward),
        Some(words) => match written(words)? {
            Written::Expression(pattern) => FeedForward::Pattern(pattern),
            Written::Names(names) => FeedForward::Names(names),
        },
    };
    let targets = targets(Some(raw.lora_target_modules.as_deref().unwrap_or(&usual.targets)))?;
    Ok(Lora { kind: AdapterKind::Ia3(feedforward), targets, ..Lora::default() })
}

fn bottleneck(raw: &RawConfig, architecture: &Architecture) -> Result<Lora, TrainError> {
    let rank = raw.bottleneck_size.unwrap_or(adapter_kind::BOTTLENECK_SIZE);
    within("--bottleneck-size", rank)?;
    let between = raw.non_linearity.as_deref().map_or(Ok(NonLinearity::default()), str::parse);
    let kind = AdapterKind::Bottleneck(between.map_err(mistake)?);
    let usual = adapter_kind::last_products(architecture);
    let targets = targets(Some(raw.lora_target_modules.as_deref().unwrap_or(&usual)))?;
    Ok(Lora { kind, rank, alpha: 1.0, targets, ..Lora::default() })
}

/// The model with the head that it is going to have; how many labels that has makes no difference to names.
fn learned(raw: &RawConfig, architecture: &Architecture) -> Result<Architecture, GraphError> {
    match raw.task.as_deref() {
        Some("classify") if architecture.labels().is_none() => architecture.clone().with_labels(2),
        _ => Ok(architecture.clone()),
    }
}

/// Modules as the user wrote them: one expression, or several names. Names have no commas, so an expression that was
/// split at its commas can be put together again.
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
fn targets(words: Option<&[String]>) -> Result<Targets, TrainError> {
    match words {
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

/// If an adapter with settings of its own is given, refuses settings that are meant for new adapters.
pub(super) fn refuse_beside_adapter(raw: &RawConfig) -> Result<(), TrainError> {
    match adapter_kind::given(raw) {
        Some(flag) => Err(mistake(format!("--adapter has its own settings; leave out {flag}"))),
        None => Ok(()),
    }
}

/// The settings that make these adapters again.
pub(super) fn effective(lora: &Lora, raw: RawConfig) -> RawConfig {
    let raw = RawConfig {
        lora_target_modules: Some(target_words(&lora.targets)),
        lora_exclude_modules: list(match &lora.excluded {
            Excluded::Names(names) => names.clone(),
            Excluded::Pattern(pattern) => vec![pattern.text().to_owned()],
        }),
        modules_to_save: list(lora.modules_to_save.clone()),
        ..raw
    };
    match &lora.kind {
        AdapterKind::Prompt(vectors) | AdapterKind::Prefix(vectors) => RawConfig {
            peft_type: Some(lora.kind.peft_type().to_lowercase()),
            num_virtual_tokens: Some(vectors.count),
            lora_target_modules: None,
            ..raw
        },
        AdapterKind::Intrinsic(form) => RawConfig {
            intrinsic_dimension: Some(form.dimension),
            intrinsic_per_layer: Some(form.per_layer),
            lora_target_modules: None,
            ..raw
        },
        AdapterKind::LowRank | AdapterKind::Dora => effective_low_rank(lora, raw),
        AdapterKind::Ia3(feedforward) => RawConfig {
            peft_type: Some("ia3".to_owned()),
            feedforward_modules: Some(match feedforward {
                FeedForward::Names(names) => names.clone(),
                FeedForward::Pattern(pattern) => vec![pattern.text().to_owned()],
            }),
            ..raw
        },
        AdapterKind::Bottleneck(between) => RawConfig {
            peft_type: Some("bottleneck".to_owned()),
            bottleneck_size: Some(lora.rank),
            non_linearity: Some(between.name().to_owned()),
            ..raw
        },
    }
}

fn effective_low_rank(lora: &Lora, raw: RawConfig) -> RawConfig {
    let layers = lora.layers.as_ref();
    let patterns = |layers: &LayerChoice| layers.patterns.iter().map(|p| p.text().to_owned()).collect();
    let ranks = lora.rank_pattern.iter().map(|(pattern, rank)| format!("{}={rank}", pattern.text()));
    let alphas = lora.alpha_pattern.iter().map(|(pattern, alpha)| format!("{}={alpha}", pattern.text()));
    RawConfig {
        lora_r: Some(lora.rank),
        lora_alpha: Some(shortest(lora.alpha)),
        lora_dropout: Some(shortest(lora.dropout)),
        use_rslora: Some(lora.rslora),
        use_dora: (lora.kind == AdapterKind::Dora).then_some(true),
        lora_target_parameters: list(lora.target_parameters.clone()),
        lora_layers_to_transform: layers.map(|layers| layers.numbers.clone()),
        lora_layers_pattern: layers.map(patterns).and_then(list),
        lora_rank_pattern: list(ranks.collect()).map(Pairs),
        lora_alpha_pattern: list(alphas.collect()).map(Pairs),
        trainable_token_indices: match &lora.tokens {
            TrainedTokens::Input(rows) => Some(rows.clone()),
            TrainedTokens::None | TrainedTokens::Modules(_) => None,
        },
        ..raw
    }
}

fn list(names: Vec<String>) -> Option<Vec<String>> {
    Some(names).filter(|names| !names.is_empty())
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
    let low_rank = settings.peft_type.is_none() && settings.intrinsic_dimension.is_none();
    let seed = match &lora.kind {
        AdapterKind::Intrinsic(form) => Some(form.seed.to_string()),
        _ => None,
    };
    let of_low_rank = |value: String| low_rank.then_some(value);
    let facts = [
        ("peft_type", settings.peft_type.clone()),
        ("feedforward_modules", joined(settings.feedforward_modules)),
        ("bottleneck_size", settings.bottleneck_size.map(|size| size.to_string())),
        ("non_linearity", settings.non_linearity),
        ("num_virtual_tokens", settings.num_virtual_tokens.map(|count| count.to_string())),
        ("intrinsic_dimension", settings.intrinsic_dimension.map(|dimension| dimension.to_string())),
        ("intrinsic_per_layer", settings.intrinsic_per_layer.map(|own| own.to_string())),
        ("seed of the subspace", seed),
        ("lora_r", of_low_rank(lora.rank.to_string())),
        ("lora_alpha", of_low_rank(lora.alpha.to_string())),
        ("lora_dropout", of_low_rank(lora.dropout.to_string())),
        ("use_rslora", of_low_rank(lora.rslora.to_string())),
        ("use_dora", settings.use_dora.map(|dora| dora.to_string())),
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
