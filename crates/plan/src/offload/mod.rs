//! Values and state on another tier: which of them wait there, and when they move.
//!
//! [`residency`] decides which state lives there, [`transfers`] which values wait there and when each transfer begins,
//! and [`candidates`] which combinations of the two and of recomputation are tried. `search` finds the fastest of them.

mod candidates;
mod residency;
mod transfers;

pub(crate) use candidates::{Candidates, Found, Limit, Ordered, Recomputation, ResidencyOption, streamed};
pub(crate) use residency::{Residency, persistent_bytes};
#[cfg(test)]
pub(crate) use residency::{StateOrder, rungs};
pub(crate) use transfers::Transfers;
