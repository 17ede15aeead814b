//! State beside adapters that follows from the model's own weights, written once those are loaded or drawn.

use plimsoll_exec::Engine;
use plimsoll_graph::Graph;
use plimsoll_model::Lora;
use plimsoll_model::lora::AdapterKind;

use super::row_lengths::write_row_lengths;
use super::trained_tokens::move_rows;
use crate::error::TrainError;
use crate::files::QuantisedBase;

/// Writes the state beside adapters of the model whose forward graph without them is `forward`. With `begin` the adapter is
/// new, and parameters that begin with numbers of the model get them.
///
/// # Errors
///
/// When the engine has no such state.
pub(crate) fn prepare_adapters(
    engine: &mut Engine,
    lora: &Lora,
    forward: &Graph,
    base: Option<&QuantisedBase>,
    begin: bool,
) -> Result<(), TrainError> {
    move_rows(engine, &lora.token_adapters(forward)?, begin)?;
    match lora.kind {
        AdapterKind::Dora => write_row_lengths(engine, &lora.adapters(forward)?, base, begin),
        _ => Ok(()),
    }
}
