//! The kind of new adapters, the settings that belong to each, and the modules that each has by default.

use plimsoll_model::{Architecture, Llama, Mixture};

use super::bounds::{mistake, within};
use crate::error::TrainError;
use crate::settings::RawConfig;

/// Inner columns of a bottleneck where the user names none; the size that Houlsby et al. report for GLUE.
pub(super) const BOTTLENECK_SIZE: usize = 64;

/// The kinds that have trained vectors.
const VECTORS: &str = "prompt_tuning or prefix_tuning";

/// The kind that moves all weights in a random subspace.
const INTRINSIC: &str = "intrinsic";

/// The kind of new adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NewKind {
    /// `LoRA` of this rank.
    Lora(usize),
    Ia3,
    Bottleneck,
    /// This many trained vectors.
    Prompt(usize),
    /// This many trained keys and values in each layer.
    Prefix(usize),
    /// A random subspace of this dimension.
    Intrinsic(usize),
}

/// Settings that belong to one kind: its flag and whether it is given. The first list is that of `LoRA`.
fn own(raw: &RawConfig) -> [(&'static str, Vec<(&'static str, bool)>); 5] {
    let lora = vec![
        ("--lora-r", raw.lora_r.is_some()),
        ("--lora-alpha", raw.lora_alpha.is_some()),
        ("--lora-dropout", raw.lora_dropout.is_some()),
        ("--use-rslora", raw.use_rslora.is_some()),
        ("--use-dora", raw.use_dora.is_some()),
        ("--lora-target-parameters", raw.lora_target_parameters.is_some()),
        ("--lora-layers-to-transform", raw.lora_layers_to_transform.is_some()),
        ("--lora-layers-pattern", raw.lora_layers_pattern.is_some()),
        ("--lora-rank-pattern", raw.lora_rank_pattern.is_some()),
        ("--lora-alpha-pattern", raw.lora_alpha_pattern.is_some()),
        ("--trainable-token-indices", raw.trainable_token_indices.is_some()),
    ];
    let bottleneck = vec![
        ("--bottleneck-size", raw.bottleneck_size.is_some()),
        ("--non-linearity", raw.non_linearity.is_some()),
    ];
    let ia3 = vec![("--feedforward-modules", raw.feedforward_modules.is_some())];
    let prompt = vec![("--num-virtual-tokens", raw.num_virtual_tokens.is_some())];
    let intrinsic = vec![
        ("--intrinsic-dimension", raw.intrinsic_dimension.is_some()),
        ("--intrinsic-per-layer", raw.intrinsic_per_layer.is_some()),
    ];
    [("lora", lora), ("ia3", ia3), ("bottleneck", bottleneck), (VECTORS, prompt), (INTRINSIC, intrinsic)]
}

/// Settings of all kinds.
fn shared(raw: &RawConfig) -> [(&'static str, bool); 3] {
    [
        ("--lora-target-modules", raw.lora_target_modules.is_some()),
        ("--lora-exclude-modules", raw.lora_exclude_modules.is_some()),
        ("--modules-to-save", raw.modules_to_save.is_some()),
    ]
}

/// A setting of new adapters that is given.
pub(super) fn given(raw: &RawConfig) -> Option<&'static str> {
    let kind = [("--peft-type", raw.peft_type.is_some())];
    let own = own(raw).into_iter().flat_map(|(_, flags)| flags);
    let mut all = kind.into_iter().chain(own).chain(shared(raw));
    all.find(|(_, given)| *given).map(|(flag, _)| flag)
}

/// The kind that the settings ask for, if they ask for adapters.
pub(super) fn of(raw: &RawConfig) -> Result<Option<NewKind>, TrainError> {
    let name = raw.peft_type.as_deref().map(str::to_lowercase);
    let named = name.as_deref().or(raw.lora_r.map(|_| "lora"));
    let Some(name) = named.or(raw.intrinsic_dimension.map(|_| INTRINSIC)) else {
        return match without_kind(raw) {
            Some(why) => Err(mistake(why)),
            None => Ok(None),
        };
    };
    let kind = match (name, raw.lora_r) {
        ("lora", Some(rank)) => NewKind::Lora(rank),
        ("lora", None) => return Err(mistake("--peft-type lora needs --lora-r, the rank of adapters")),
        ("ia3", _) => NewKind::Ia3,
        ("bottleneck", _) => NewKind::Bottleneck,
        ("prompt_tuning", _) => NewKind::Prompt(virtual_tokens(raw, name)?),
        ("prefix_tuning", _) => NewKind::Prefix(virtual_tokens(raw, name)?),
        (INTRINSIC, _) => NewKind::Intrinsic(dimension(raw)?),
        (other, _) => {
            let why =
                format!("--peft-type must be lora, ia3, bottleneck, intrinsic, {VECTORS}, got `{other}`");
            return Err(mistake(why));
        }
    };
    for (other, flags) in own(raw).into_iter().filter(|(other, _)| !other.contains(name)) {
        if let Some((flag, _)) = flags.iter().find(|(_, given)| *given) {
            return Err(mistake(format!("{flag} is for --peft-type {other}; leave it out of {name}")));
        }
    }
    Ok(Some(kind))
}

/// The dimension of a random subspace.
fn dimension(raw: &RawConfig) -> Result<usize, TrainError> {
    let mut of_modules = shared(raw).into_iter().filter(|(flag, _)| *flag != "--modules-to-save");
    if let Some((flag, _)) = of_modules.find(|(_, given)| *given) {
        return Err(mistake(format!("{flag} is for adapters of modules; leave it out of a random subspace")));
    }
    match raw.intrinsic_dimension {
        Some(0) => Err(mistake("--intrinsic-dimension must be at least 1, got 0")),
        Some(dimension) => Ok(dimension),
        None => Err(mistake("--peft-type intrinsic needs --intrinsic-dimension, such as 1000")),
    }
}

/// The number of trained vectors, for a kind that changes no module.
fn virtual_tokens(raw: &RawConfig, kind: &str) -> Result<usize, TrainError> {
    if let Some((flag, _)) = shared(raw).into_iter().find(|(_, given)| *given) {
        return Err(mistake(format!("{flag} is for adapters of modules; leave it out of {kind}")));
    }
    let Some(count) = raw.num_virtual_tokens else {
        return Err(mistake(format!("--peft-type {kind} needs --num-virtual-tokens, such as 20")));
    };
    within("--num-virtual-tokens", count)?;
    Ok(count)
}

/// Why a setting of adapters cannot be used where no kind of them is named.
fn without_kind(raw: &RawConfig) -> Option<String> {
    for (kind, flags) in own(raw) {
        let needed = if kind == "lora" {
            "--lora-r, the rank of adapters".into()
        } else {
            format!("--peft-type {kind}")
        };
        if let Some((flag, _)) = flags.iter().find(|(_, given)| *given) {
            return Some(format!("{flag} needs {needed}"));
        }
    }
    let (flag, _) = shared(raw).into_iter().find(|(_, given)| *given)?;
    Some(format!("{flag} needs --lora-r, the rank of adapters"))
}

/// Modules of IA³ by default.
pub(super) struct Scaled {
    pub(super) targets: Vec<String>,
    pub(super) feedforward: Vec<String>,
}

/// Keys, values and the last product of feed-forward networks, as in the paper.
pub(super) fn keys_values_and_networks(architecture: &Architecture) -> Scaled {
    let (keys_values, network): (&[&str], _) = match architecture {
        Architecture::Gpt2(_) => (&["c_attn"], Some("mlp.c_proj")),
        Architecture::Bert(_) => (&["key", "value"], Some("output.dense")),
        Architecture::Llama(model) => (&["k_proj", "v_proj"], dense_network(model)),
    };
    let targets = keys_values.iter().copied().chain(network).map(str::to_owned).collect();
    Scaled { targets, feedforward: network.into_iter().map(str::to_owned).collect() }
}

/// The last product of feed-forward networks that serve every token, if there are any: experts are no modules.
fn dense_network(model: &Llama) -> Option<&'static str> {
    let everywhere = |mixture: &Mixture| (0..model.layers).all(|layer| mixture.is_sparse(layer));
    let only_experts = |mixture: &Mixture| mixture.shared.is_none() && everywhere(mixture);
    (!model.mixture.as_ref().is_some_and(only_experts)).then_some("down_proj")
}

/// The last products of attention and of the feed-forward network, behind which the paper has its adapters.
pub(super) fn last_products(architecture: &Architecture) -> Vec<String> {
    let (attention, network) = match architecture {
        Architecture::Gpt2(_) => ("c_proj", None),
        Architecture::Bert(_) => ("output.dense", None),
        Architecture::Llama(model) => ("o_proj", dense_network(model)),
    };
    [attention].into_iter().chain(network).map(str::to_owned).collect()
}
