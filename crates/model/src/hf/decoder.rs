//! Keys of `config.json` that Llama, its relatives and the mixtures of experts among them share.

use serde_json::Value;

use super::keys::Keys;
use super::{ConfigError, rope};
use crate::Llama;

/// Keys that all of them have under the same names. Heads without a stated width are `usual` wide, or divide the
/// model's width.
pub(super) fn family(
    keys: &Keys,
    notes: &mut Vec<String>,
    key_heads: usize,
    usual: Option<usize>,
) -> Result<Llama, ConfigError> {
    keys.one_of("hidden_act", "silu", &["silu"])?;
    if keys.probability("attention_dropout", 0.0)? > 0.0 {
        notes.push("`attention_dropout` is not applied: attention weights never exist as a matrix".into());
    }
    let (width, heads) = (keys.count("hidden_size")?, keys.count("num_attention_heads")?);
    let stated = keys.optional_count("head_dim")?.or(usual);
    if stated.is_none() {
        keys.divisor("num_attention_heads", "hidden_size", width)?;
    }
    if !stated.unwrap_or(width / heads).is_multiple_of(2) {
        // Rotary positions turn pairs of numbers.
        return Err(match stated {
            Some(_) => keys.wrong("head_dim", "an even number"),
            None => keys.wrong("num_attention_heads", "a number that leaves heads of an even width"),
        });
    }
    if !heads.is_multiple_of(key_heads) {
        let wanted = format!("a divisor of `num_attention_heads`, which is {heads}");
        return Err(keys.wrong("num_key_value_heads", &wanted));
    }
    let derived = |head_width: &usize| head_width * heads == width;
    Ok(Llama {
        vocab: keys.count("vocab_size")?,
        width,
        layers: keys.layers("num_hidden_layers")?,
        heads,
        key_heads,
        head_width: stated.filter(|stated| !derived(stated)),
        ffn: keys.count("intermediate_size")?,
        norm_epsilon: keys.positive("rms_norm_eps", 1e-6)? as f32,
        rope: rope::read(keys, notes)?,
        window: None,
        positions: keys.optional_count("max_position_embeddings")?,
        tie_embeddings: keys.flag("tie_word_embeddings", false)?,
        qkv_bias: false,
        qk_norm: false,
        whole_qk_norm: false,
        mixture: None,
        documents: false,
    })
}

/// The window of a Qwen. Newer files list the kind of each layer, older ones state the first layer with a window.
pub(super) fn window_of_all_layers(keys: &Keys, layers: usize) -> Result<Option<usize>, ConfigError> {
    if !keys.flag("use_sliding_window", false)? {
        return Ok(None);
    }
    let Some(window) = keys.optional_count("sliding_window")? else { return Ok(None) };
    let kinds = keys.texts("layer_types")?;
    let full = if kinds.is_empty() {
        keys.get("max_window_layers")
            .and_then(Value::as_u64)
            .map_or(layers, |first| layers.min(first as usize))
    } else {
        kinds.iter().filter(|kind| **kind != "sliding_attention").count()
    };
    match full {
        0 => Ok(Some(window)),
        _ if full >= layers => Ok(None),
        _ => Err(keys.wrong("use_sliding_window", "true with a window in all layers, or false")),
    }
}
