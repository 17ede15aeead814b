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
    quantised.one_of("quant_method", "", &["bitsandbytes"])?;
    if quantised.flag("load_in_8bit", false)? {
        return Ok(Some(Quantised::Int8));
    }
    quantised.must_be("load_in_4bit", true)?;
    quantised.one_of("bnb_4bit_quant_type", "fp4", &["nf4"])?;
    quantised.one_of("bnb_4bit_quant_storage", "uint8", &["uint8"])?;
    let double = quantised.flag("bnb_4bit_use_double_quant", false)?;
    Ok(Some(if double { Quantised::Nf4Double } else { Quantised::Nf4 }))
}
