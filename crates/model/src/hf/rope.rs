//! Rotary frequencies in a `config.json`: `rope_parameters` of transformers 5, or the `rope_theta` and
//! `rope_scaling` of older versions. Where a file has both, transformers takes `rope_scaling` and nothing of the other,
//! its base included; so do we, and say so.
//!
//! Refused: scalings that depend on the current length or also scale attention (dynamic, yarn, longrope), and rotations
//! of a part of a head.

use serde_json::{Value, json};

use super::ConfigError;
use super::keys::Keys;
use crate::{Rope, Stretch};

/// The base where the configuration states none.
const BASE: f64 = 10_000.0;

pub(super) fn read(keys: &Keys, notes: &mut Vec<String>) -> Result<Rope, ConfigError> {
    let base = keys.positive("rope_theta", BASE)?;
    let stated = |key| Ok(keys.object(key)?.filter(|nested| !nested.is_empty()));
    let nested = match (stated("rope_scaling")?, stated("rope_parameters")?) {
        (None, None) => return Ok(Rope::plain(base)),
        (None, Some(nested)) | (Some(nested), None) => nested,
        (Some(scaling), Some(parameters)) => {
            let rope = of(&scaling, base)?;
            if of(&parameters, base).ok() != Some(rope) {
                let base = rope.base;
                notes.push(format!(
                    "`rope_scaling` and `rope_parameters` contradict each other; the first counts, with the base \
                     {base}, as in transformers"
                ));
            }
            return Ok(rope);
        }
    };
    of(&nested, base)
}

/// The rotation that `nested` states; its base is `base` if it states none.
fn of(nested: &Keys, base: f64) -> Result<Rope, ConfigError> {
    let base = nested.positive("rope_theta", base)?;
    if nested.optional_number("partial_rotary_factor")?.is_some_and(|share| share < 1.0) {
        return Err(nested.wrong("partial_rotary_factor", "1.0"));
    }
    // The oldest files say `type`.
    let key = if nested.mentions("rope_type") { "rope_type" } else { "type" };
    let stretch = match nested.text(key)?.unwrap_or("default") {
        "default" => None,
        "linear" => Some(Stretch::Linear { factor: factor(nested)? }),
        "llama3" => Some(llama3(nested)?),
        _ => return Err(nested.wrong(key, "default, linear or llama3")),
    };
    Ok(Rope { base, stretch })
}

fn llama3(keys: &Keys) -> Result<Stretch, ConfigError> {
    let (low, high) = (keys.number("low_freq_factor")?, keys.number("high_freq_factor")?);
    if low >= high {
        return Err(keys.wrong("high_freq_factor", "a number above `low_freq_factor`"));
    }
    let original = keys.count("original_max_position_embeddings")? as f64;
    Ok(Stretch::Llama3 { factor: factor(keys)?, low, high, original })
}

fn factor(keys: &Keys) -> Result<f64, ConfigError> {
    let factor = keys.number("factor")?;
    if factor >= 1.0 { Ok(factor) } else { Err(keys.wrong("factor", "a number from 1 on")) }
}

/// The value of `rope_parameters`.
pub(super) fn write(rope: &Rope) -> Value {
    let base = rope.base;
    match rope.stretch {
        None => json!({"rope_theta": base, "rope_type": "default"}),
        Some(Stretch::Linear { factor }) => {
            json!({"factor": factor, "rope_theta": base, "rope_type": "linear"})
        }
        Some(Stretch::Llama3 { factor, low, high, original }) => json!({
            "factor": factor,
            "high_freq_factor": high,
            "low_freq_factor": low,
            "original_max_position_embeddings": original as u64,
            "rope_theta": base,
            "rope_type": "llama3",
        }),
    }
}
