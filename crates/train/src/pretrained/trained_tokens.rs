//! Moves the rows of trained tokens out of their tables, once weights are loaded or drawn.
//!
//! The graph reads a table whose rows of trained tokens are zero and adds the trained rows; see
//! [`plimsoll_model::lora::TokenAdapter`]. A new adapter begins with the original rows of the table.

use plimsoll_exec::Engine;
use plimsoll_model::lora::TokenAdapter;

use crate::error::TrainError;
use crate::optimizer::low_name;

/// Sets the rows of trained tokens to zero in their tables. With `begin` the old rows become the trained ones; otherwise
/// the trained ones were loaded.
///
/// # Errors
///
/// When the engine has no such state.
pub(super) fn move_rows(engine: &mut Engine, tables: &[TokenAdapter], begin: bool) -> Result<(), TrainError> {
    for table in tables {
        let (weight, trained, width) = (table.weight(), table.parameter(), table.width);
        let mut numbers = vec![0.0; width];
        for (place, row) in table.rows.iter().enumerate() {
            if begin {
                engine.read_state(&weight, row * width, &mut numbers)?;
                write(engine, &trained, place * width, &numbers)?;
            }
            numbers.fill(0.0);
            write(engine, &weight, row * width, &numbers)?;
        }
    }
    Ok(())
}

/// Writes to a parameter, and to both halves if it has a master copy.
fn write(engine: &mut Engine, parameter: &str, first: usize, numbers: &[f32]) -> Result<(), TrainError> {
    let low = low_name(parameter);
    if engine.has_state(&low) {
        engine.write_state_halves([parameter, &low], first, numbers)?;
    } else {
        engine.write_state(parameter, first, numbers)?;
    }
    Ok(())
}
