//! Lengths of the rows of frozen weights, computed after the weights are loaded or drawn.
//!
//! `DoRA` reads the squares of a weight's rows in every step, and a new adapter begins with their lengths; see
//! [`plimsoll_model::lora::AdapterKind`]. A weight in few bits is dequantised first: the lengths belong to the numbers that
//! products read.

use plimsoll_exec::Engine;
use plimsoll_model::lora::{Adapter, RowLengths};

use crate::error::TrainError;
use crate::files::QuantisedBase;
use crate::optimizer::low_name;

/// Numbers that are read at a time, unless a row is longer.
const PIECE: usize = 64 << 10;

/// Writes the squares of the rows of each adapter's weight; with `begin` also their lengths, as the trained ones.
///
/// # Errors
///
/// When the engine has no such state.
pub(super) fn write_row_lengths(
    engine: &mut Engine,
    adapters: &[Adapter],
    base: Option<&QuantisedBase>,
    begin: bool,
) -> Result<(), TrainError> {
    for adapter in adapters {
        let lengths = row_lengths(engine, adapter, base)?;
        engine.write_state(&adapter.squares(), 0, &lengths.squares().collect::<Vec<f32>>())?;
        if begin {
            let (magnitude, lengths) = (adapter.magnitude(), lengths.lengths().collect::<Vec<f32>>());
            let low = low_name(&magnitude);
            if engine.has_state(&low) {
                engine.write_state_halves([&magnitude, &low], 0, &lengths)?;
            } else {
                engine.write_state(&magnitude, 0, &lengths)?;
            }
        }
    }
    Ok(())
}

fn row_lengths(
    engine: &Engine,
    adapter: &Adapter,
    base: Option<&QuantisedBase>,
) -> Result<RowLengths, TrainError> {
    let weight = adapter.weight();
    let base = base.filter(|base| base.holds(&weight));
    // A quantised weight is stored as (out, in), whatever the shape of the unquantised one.
    let (mut lengths, [rows, columns]) = match base {
        Some(_) => (RowLengths::by_row(adapter.output), [adapter.output, adapter.input]),
        None => (RowLengths::new(adapter), adapter.stored_shape()),
    };
    let many = (PIECE / columns.max(1)).clamp(1, rows.max(1));
    let mut numbers = vec![0.0; many * columns];
    for first in (0..rows).step_by(many) {
        let numbers = &mut numbers[..many.min(rows - first) * columns];
        match base {
            Some(base) => base.read_rows(engine, &weight, columns, first, numbers)?,
            None => engine.read_state(&weight, first * columns, numbers)?,
        }
        lengths.add(first, numbers, columns);
    }
    Ok(lengths)
}
