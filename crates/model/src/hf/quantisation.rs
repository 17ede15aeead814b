//! The `quantization_config` of a model whose weights bitsandbytes has quantised.

use plimsoll_graph::op::Quantised;

use super::ConfigError;
use super::keys::Keys;

const KEY: &str = "quantization_config";

/// The form of the linear layers' weights, if they are stored in few bits.
///
/// # Errors
///
/// When another library has quantised them, or in a form that is not read here.
pub(super) fn read(keys: &Keys) -> Result<Option<Quantised>, ConfigError> {
    let Some(quantised) = keys.object(KEY)? else { return Ok(None) };
    let (four, eight) = (quantised.flag("load_in_4bit", false)?, quantised.flag("load_in_8bit", false)?);
    // The first releases of transformers that saved such models knew no other method, and named none.
    let method = if four || eight { "bitsandbytes" } else { "" };
    quantised.one_of("quant_method", method, &["bitsandbytes"])?;
    if eight {
        return Ok(Some(Quantised::Int8));
    }
    quantised.must_be("load_in_4bit", true)?;
    quantised.one_of("bnb_4bit_quant_type", "fp4", &["nf4"])?;
    quantised.one_of("bnb_4bit_quant_storage", "uint8", &["uint8"])?;
    let double = quantised.flag("bnb_4bit_use_double_quant", false)?;
    Ok(Some(if double { Quantised::Nf4Double } else { Quantised::Nf4 }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn form(described: &Value) -> Result<Option<Quantised>, ConfigError> {
        let config = json!({ "quantization_config": described });
        read(&Keys::new(config.as_object().unwrap()))
    }

    #[test]
    fn a_description_without_a_method_is_that_of_bitsandbytes_if_it_names_bits() {
        assert_eq!(
            form(&json!({"load_in_8bit": true, "load_in_4bit": false})).unwrap(),
            Some(Quantised::Int8)
        );
        let four = json!({"load_in_4bit": true, "bnb_4bit_quant_type": "nf4"});
        assert_eq!(form(&four).unwrap(), Some(Quantised::Nf4));
        let why = form(&json!({"load_in_8bit": true, "quant_method": "gptq"})).unwrap_err().to_string();
        assert!(why.contains("`quantization_config.quant_method` is \"gptq\""), "{why}");
        assert!(form(&json!({"bits": 4})).is_err());
    }
}
