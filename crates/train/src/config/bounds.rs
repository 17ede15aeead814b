//! Numbers that are counted, numbers as people write them, and the error of a setting that is out of bounds.

use crate::error::TrainError;

/// The most of anything that is counted: beyond it, sizes in bytes could overflow.
pub(super) const MOST: usize = 1 << 24;

/// Refuses a count of nothing, and one beyond [`MOST`].
pub(super) fn within(flag: &str, value: usize) -> Result<(), TrainError> {
    match value {
        0 => Err(mistake(format!("{flag} must be at least 1"))),
        1..=MOST => Ok(()),
        _ => Err(mistake(format!("{flag} must be at most {MOST}, got {value}"))),
    }
}

/// The shortest decimal number that is this one in single precision, as people would write it.
pub(super) fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// A setting that is wrong or contradicts another.
#[allow(clippy::needless_pass_by_value, reason = "it serves as `map_err(mistake)`")]
pub(super) fn mistake(why: impl ToString) -> TrainError {
    TrainError::Config(why.to_string())
}

/// Whether a file is seen as often as any other. Weights are typed, not computed.
#[allow(clippy::float_cmp, reason = "what is typed as 1 is 1")]
pub(super) fn is_one(weight: f64) -> bool {
    weight == 1.0
}
