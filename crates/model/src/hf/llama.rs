//! `config.json` of Llama and its relatives: Mistral's window, Qwen2's biases, Qwen3's norms.
//!
//! Refused: biases other than Qwen2's, activations other than `silu`, and windows in some layers only.

use serde_json::{Value, json};

use super::decoder::{family, window_of_all_layers};
use super::keys::{Keys, decimal};
use super::{ConfigError, mixture, rope};
use crate::{Architecture, Llama};

/// Positions of a model that states none: transformers' default for a Llama.
const POSITIONS: usize = 2048;

pub(super) fn llama(keys: &Keys, notes: &mut Vec<String>) -> Result<Architecture, ConfigError> {
    keys.must_be("attention_bias", false)?;
    keys.must_be("mlp_bias", false)?;
    // The first Llama has as many key heads as heads, and its files do not mention them.
    let key_heads =
        keys.optional_count("num_key_value_heads")?.map_or_else(|| keys.count("num_attention_heads"), Ok)?;
    Ok(family(keys, notes, key_heads, None)?.into())
}

pub(super) fn mistral(keys: &Keys, notes: &mut Vec<String>) -> Result<Architecture, ConfigError> {
    let window =
        if keys.mentions("sliding_window") { keys.optional_count("sliding_window")? } else { Some(4096) };
    Ok(Llama { window, ..family(keys, notes, keys.count("num_key_value_heads")?, None)? }.into())
}

pub(super) fn qwen2(keys: &Keys, notes: &mut Vec<String>) -> Result<Architecture, ConfigError> {
    let model = family(keys, notes, keys.count("num_key_value_heads")?, None)?;
    Ok(Llama { window: window_of_all_layers(keys, model.layers)?, qkv_bias: true, ..model }.into())
}

pub(super) fn qwen3(keys: &Keys, notes: &mut Vec<String>) -> Result<Architecture, ConfigError> {
    keys.must_be("attention_bias", false)?;
    let model = family(keys, notes, keys.count("num_key_value_heads")?, Some(128))?;
    Ok(Llama { window: window_of_all_layers(keys, model.layers)?, qk_norm: true, ..model }.into())
}

pub(super) fn write(model: &Llama) -> Result<Value, ConfigError> {
    let (class, kind) = match &model.mixture {
        Some(mixture) => mixture::class(model, mixture)?,
        None => class_of(model)?,
    };
    let head_width = model.head_width.unwrap_or(model.width / model.heads.max(1));
    if kind == "qwen2" && model.head_width.is_some() {
        let why = format!("heads of width {head_width} beside a width of {}, with biases", model.width);
        return Err(ConfigError::Unwritable(why));
    }
    let mut config = json!({
        "architectures": [class],
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": model.width,
        "initializer_range": 0.02,
        "intermediate_size": model.ffn,
        "max_position_embeddings": model.positions.unwrap_or(POSITIONS),
        "model_type": kind,
        "num_attention_heads": model.heads,
        "num_hidden_layers": model.layers,
        "num_key_value_heads": model.key_heads,
        "rms_norm_eps": decimal(model.norm_epsilon),
        "rope_parameters": rope::write(&model.rope),
        "tie_word_embeddings": model.tie_embeddings,
        "vocab_size": model.vocab,
    });
    let own = match &model.mixture {
        Some(mixture) => mixture::write(model, mixture),
        None => own_keys(model, kind, head_width),
    };
    if let (Value::Object(config), Value::Object(own)) = (&mut config, own) {
        config.extend(own);
    }
    Ok(config)
}

/// The class of transformers that computes a model without experts, and its type.
fn class_of(model: &Llama) -> Result<(&'static str, &'static str), ConfigError> {
    if model.whole_qk_norm {
        let why = "queries and keys are normed over all heads, as in OLMoE, without experts";
        return Err(ConfigError::Unwritable(why.into()));
    }
    Ok(match (model.qkv_bias, model.qk_norm, model.window) {
        (true, true, _) => {
            let why = "queries and keys have both biases, as in Qwen2, and norms, as in Qwen3";
            return Err(ConfigError::Unwritable(why.into()));
        }
        (true, false, _) => ("Qwen2ForCausalLM", "qwen2"),
        (false, true, _) => ("Qwen3ForCausalLM", "qwen3"),
        (false, false, Some(_)) => ("MistralForCausalLM", "mistral"),
        (false, false, None) => ("LlamaForCausalLM", "llama"),
    })
}

/// Keys that not all of the family have.
fn own_keys(model: &Llama, kind: &str, head_width: usize) -> Value {
    let layer = if model.window.is_some() { "sliding_attention" } else { "full_attention" };
    let mut own = match kind {
        "llama" => json!({"attention_bias": false, "head_dim": head_width, "mlp_bias": false}),
        "mistral" => json!({"head_dim": head_width, "sliding_window": model.window}),
        _ => json!({
            "layer_types": vec![layer; model.layers],
            "sliding_window": model.window,
            "use_sliding_window": model.window.is_some(),
        }),
    };
    if let Value::Object(own) = &mut own {
        if model.window.is_some() && kind != "mistral" {
            own.insert("max_window_layers".into(), 0.into());
        }
        if kind == "qwen3" {
            own.insert("attention_bias".into(), false.into());
            own.insert("head_dim".into(), head_width.into());
        }
    }
    own
}
