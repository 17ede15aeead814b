//! `config.json` of GPT-2.
//!
//! Refused: a feed-forward network of another width than four times the model's, other activations than the
//! tanh form of gelu, a head of its own, and attention scaled by layer.

use serde_json::{Value, json};

use super::ConfigError;
use super::keys::{Keys, decimal};
use crate::{Architecture, Gpt2};

pub(super) fn read(keys: &Keys, notes: &mut Vec<String>) -> Result<Architecture, ConfigError> {
    keys.one_of("activation_function", "gelu_new", &["gelu_new", "gelu_pytorch_tanh"])?;
    keys.must_be("scale_attn_weights", true)?;
    keys.must_be("scale_attn_by_inverse_layer_idx", false)?;
    keys.must_be("add_cross_attention", false)?;
    keys.must_be("tie_word_embeddings", true)?;
    let width = keys.count("n_embd")?;
    if keys.optional_count("n_inner")?.is_some_and(|inner| inner != 4 * width) {
        return Err(keys.wrong("n_inner", &format!("null or {}, four times `n_embd`", 4 * width)));
    }
    let dropout = keys.probability("resid_pdrop", 0.1)?;
    if keys.probability("embd_pdrop", 0.1)?.to_bits() != dropout.to_bits() {
        return Err(keys.wrong("embd_pdrop", &format!("{dropout}, the same as `resid_pdrop`")));
    }
    if keys.probability("attn_pdrop", 0.1)? > 0.0 {
        notes.push("`attn_pdrop` is not applied: attention weights never exist as a matrix".into());
    }
    Ok(Architecture::Gpt2(Gpt2 {
        vocab: keys.count("vocab_size")?,
        positions: keys.count("n_positions")?,
        width,
        layers: keys.layers("n_layer")?,
        heads: keys.divisor("n_head", "n_embd", width)?,
        norm_epsilon: keys.positive("layer_norm_epsilon", 1e-5)? as f32,
        dropout,
        documents: false,
    }))
}

pub(super) fn write(model: &Gpt2) -> Value {
    json!({
        "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.0,
        "embd_pdrop": decimal(model.dropout),
        "initializer_range": 0.02,
        "layer_norm_epsilon": decimal(model.norm_epsilon),
        "model_type": "gpt2",
        "n_embd": model.width,
        "n_head": model.heads,
        "n_inner": null,
        "n_layer": model.layers,
        "n_positions": model.positions,
        "resid_pdrop": decimal(model.dropout),
        "tie_word_embeddings": true,
        "vocab_size": model.vocab,
    })
}
