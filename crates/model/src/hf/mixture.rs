//! `config.json` of mixtures of experts: Mixtral, Qwen2-MoE, Qwen3-MoE and `OLMoE`.
//!
//! The balance of experts is minimised with the weight in the file, `router_aux_loss_coef`, whether or not the file
//! asks transformers for it with `output_router_logits`. Only Mixtral's files keep noise on the input of experts, because
//! transformers reads it there alone. Refused: clipped queries and keys, experts in no
//! layer, and routers that score otherwise than by a softmax.

use serde_json::{Value, json};

use super::ConfigError;
use super::decoder::{family, window_of_all_layers};
use super::keys::{Keys, decimal};
use crate::{Architecture, ExpertNames, Llama, Mixture, RouterLosses};

/// Weight of the balance where a file states none, as transformers assumes it.
const BALANCE: f64 = 0.001;
/// The default weight of the balance loss of `OLMoE`.
const OLMOE_BALANCE: f64 = 0.01;

/// More experts than any published layer has; the most known are 2,048 of a Switch Transformer.
const MOST_EXPERTS: usize = 4096;
/// More experts than any published model has in all its layers: Kimi K2 has 61 layers of 384.
const MOST_EXPERTS_OF_ALL_LAYERS: usize = 1 << 17;

pub(super) fn mixtral(keys: &Keys, notes: &mut Vec<String>) -> Result<Architecture, ConfigError> {
    let noise = keys.optional_number("router_jitter_noise")?.unwrap_or(0.0);
    if !(0.0..1.0).contains(&noise) {
        return Err(keys.wrong("router_jitter_noise", "a number from 0 to below 1"));
    }
    let model = family(keys, notes, keys.count("num_key_value_heads")?, None)?;
    let mixture = Mixture {
        ffn: model.ffn,
        normalised: true,
        names: ExpertNames::Mixtral,
        noise: noise as f32,
        ..mixture(keys, "num_local_experts", BALANCE)?
    };
    let window = keys.optional_count("sliding_window")?;
    Ok(Llama { window, mixture: Some(mixture), ..model }.into())
}

pub(super) fn qwen2(keys: &Keys, notes: &mut Vec<String>) -> Result<Architecture, ConfigError> {
    keys.must_be("qkv_bias", true)?;
    let model = family(keys, notes, keys.count("num_key_value_heads")?, None)?;
    let shared = Some(keys.count("shared_expert_intermediate_size")?);
    let mixture = Mixture { shared, ..qwen(keys, model.layers)? };
    let window = window_of_all_layers(keys, model.layers)?;
    Ok(Llama { window, qkv_bias: true, mixture: Some(mixture), ..model }.into())
}

pub(super) fn qwen3(keys: &Keys, notes: &mut Vec<String>) -> Result<Architecture, ConfigError> {
    keys.must_be("attention_bias", false)?;
    let model = family(keys, notes, keys.count("num_key_value_heads")?, None)?;
    let mixture = Some(qwen(keys, model.layers)?);
    let window = window_of_all_layers(keys, model.layers)?;
    Ok(Llama { window, qk_norm: true, mixture, ..model }.into())
}

pub(super) fn olmoe(keys: &Keys, notes: &mut Vec<String>) -> Result<Architecture, ConfigError> {
    keys.must_be("attention_bias", false)?;
    keys.must_be_absent("clip_qkv", "absent: clipped queries, keys and values are not supported")?;
    let key_heads = keys.optional_count("num_key_value_heads")?;
    let key_heads = key_heads.map_or_else(|| keys.count("num_attention_heads"), Ok)?;
    let model = family(keys, notes, key_heads, None)?;
    let normalised = keys.flag("norm_topk_prob", false)?;
    let mixture = Mixture { ffn: model.ffn, normalised, ..mixture(keys, "num_experts", OLMOE_BALANCE)? };
    Ok(Llama { whole_qk_norm: true, mixture: Some(mixture), ..model }.into())
}

/// The experts of both Qwens, which may be in some layers only.
fn qwen(keys: &Keys, layers: usize) -> Result<Mixture, ConfigError> {
    let mixture = Mixture {
        ffn: keys.count("moe_intermediate_size")?,
        normalised: keys.flag("norm_topk_prob", false)?,
        sparse_step: keys.optional_count("decoder_sparse_step")?.unwrap_or(1),
        dense_layers: dense_layers(keys, layers)?,
        ..mixture(keys, "num_experts", BALANCE)?
    };
    if !(0..layers).any(|layer| mixture.is_sparse(layer)) {
        return Err(keys.wrong("mlp_only_layers", "a list that leaves a layer with experts"));
    }
    Ok(mixture)
}

/// The layers without experts, which are looked through for each layer.
fn dense_layers(keys: &Keys, layers: usize) -> Result<Vec<usize>, ConfigError> {
    let dense = keys.numbers("mlp_only_layers")?;
    if dense.len() <= layers {
        return Ok(dense);
    }
    Err(keys.wrong("mlp_only_layers", &format!("a list of at most {layers} layers, as many as there are")))
}

/// The number of experts. Each is a named tensor in every layer, so the tensors of all layers are limited too.
fn experts(keys: &Keys, count: &str) -> Result<usize, ConfigError> {
    let other = if count == "num_experts" { "num_local_experts" } else { "num_experts" };
    let named = if keys.get(count).is_none() && keys.get(other).is_some() { other } else { count };
    let (experts, layers) = (keys.count(named)?, keys.layers("num_hidden_layers")?);
    if experts > MOST_EXPERTS {
        return Err(keys.wrong(named, &format!("a whole number from 1 to {MOST_EXPERTS}")));
    }
    if experts * layers > MOST_EXPERTS_OF_ALL_LAYERS {
        let most = MOST_EXPERTS_OF_ALL_LAYERS / layers;
        return Err(keys.wrong(named, &format!("at most {most} in each of {layers} layers")));
    }
    Ok(experts)
}

/// The numbers that all these mixtures state in their configuration. Files of some versions name the number of experts as another
/// family does.
fn mixture(keys: &Keys, count: &str, balance: f64) -> Result<Mixture, ConfigError> {
    // DeepSeek's routers score and choose in other ways too.
    keys.one_of("scoring_func", "softmax", &["softmax"])?;
    keys.one_of("topk_method", "greedy", &["greedy"])?;
    let experts = experts(keys, count)?;
    let chosen = keys.count("num_experts_per_tok")?;
    if chosen > experts {
        return Err(keys.wrong("num_experts_per_tok", &format!("at most `{count}`, which is {experts}")));
    }
    let balance = keys.optional_number("router_aux_loss_coef")?.unwrap_or(balance);
    if !(0.0..f64::INFINITY).contains(&balance) {
        return Err(keys.wrong("router_aux_loss_coef", "a number from 0 on"));
    }
    Ok(Mixture {
        experts,
        chosen,
        ffn: 1,
        normalised: false,
        shared: None,
        sparse_step: 1,
        dense_layers: Vec::new(),
        names: ExpertNames::Qwen,
        capacity: None,
        noise: 0.0,
        losses: RouterLosses::balanced(balance as f32),
    })
}

/// The class in the library transformers that computes the model, and its `model_type`.
pub(super) fn class(model: &Llama, mixture: &Mixture) -> Result<(&'static str, &'static str), ConfigError> {
    let Llama { qkv_bias, qk_norm, whole_qk_norm, .. } = *model;
    let everywhere = mixture.sparse_step == 1 && mixture.dense_layers.is_empty() && mixture.ffn == model.ffn;
    let square = model.head_width.is_none();
    match (qkv_bias, qk_norm, whole_qk_norm, mixture.names, mixture.shared) {
        (false, false, false, ExpertNames::Mixtral, None) if everywhere && mixture.normalised => {
            Ok(("MixtralForCausalLM", "mixtral"))
        }
        (_, _, _, ExpertNames::Mixtral, _) if !mixture.normalised => Err(ConfigError::Unwritable(
            "the weights of a Mixtral's experts add up to one, and a single expert is weighted by its probability here; \
             choose two experts or more for each token"
                .into(),
        )),
        (true, false, false, ExpertNames::Qwen, Some(_)) if square => {
            Ok(("Qwen2MoeForCausalLM", "qwen2_moe"))
        }
        (false, true, false, ExpertNames::Qwen, None) => Ok(("Qwen3MoeForCausalLM", "qwen3_moe")),
        (false, false, true, ExpertNames::Qwen, None) if everywhere && square && model.window.is_none() => {
            Ok(("OlmoeForCausalLM", "olmoe"))
        }
        _ => {
            let why = "its experts, biases and norms are not together those of Mixtral, Qwen2-MoE, Qwen3-MoE or OLMoE";
            Err(ConfigError::Unwritable(why.into()))
        }
    }
}

/// Writes the keys that mixtures have beside those of the family.
pub(super) fn write(model: &Llama, mixture: &Mixture) -> Value {
    let head_width = model.head_width.unwrap_or(model.width / model.heads.max(1));
    let mut own = match (mixture.names, model.whole_qk_norm) {
        (ExpertNames::Mixtral, _) => json!({
            "head_dim": model.head_width,
            "num_local_experts": mixture.experts,
            "router_jitter_noise": decimal(mixture.noise),
            "sliding_window": model.window,
        }),
        (ExpertNames::Qwen, true) => json!({
            "attention_bias": false,
            "clip_qkv": null,
            "norm_topk_prob": mixture.normalised,
            "num_experts": mixture.experts,
        }),
        (ExpertNames::Qwen, false) => json!({
            "decoder_sparse_step": mixture.sparse_step,
            "mlp_only_layers": mixture.dense_layers,
            "moe_intermediate_size": mixture.ffn,
            "norm_topk_prob": mixture.normalised,
            "num_experts": mixture.experts,
            "use_sliding_window": model.window.is_some(),
        }),
    };
    if let Value::Object(own) = &mut own {
        own.insert("num_experts_per_tok".into(), mixture.chosen.into());
        own.insert("output_router_logits".into(), false.into());
        own.insert("router_aux_loss_coef".into(), decimal(mixture.losses.balance));
        if let (ExpertNames::Qwen, Some(window)) = (mixture.names, model.window) {
            own.insert("max_window_layers".into(), 0.into());
            own.insert("sliding_window".into(), window.into());
        }
        if let Some(shared) = mixture.shared {
            own.insert("shared_expert_intermediate_size".into(), shared.into());
            own.insert("qkv_bias".into(), true.into());
        } else if model.qk_norm {
            // transformers 5 counts experts under the second name.
            own.insert("num_local_experts".into(), mixture.experts.into());
            own.insert("attention_bias".into(), false.into());
            own.insert("head_dim".into(), head_width.into());
        }
    }
    own
}
