//! Values and state on another tier: which of them wait there, and when they move.
//!
//! [`residency`] decides which state lives there, [`transfers`] which values wait there and when each transfer begins,
//! and [`candidates`] which combinations of the two and of recomputation are tried. `search` finds the fastest of them.

mod candidates;
mod residency;
mod transfers;
mod updates;

pub(crate) use candidates::{Candidates, Found, Limit, Ordered, Recomputation, ResidencyOption};
#[cfg(test)]
pub(crate) use residency::rungs;
pub(crate) use residency::{Residency, StateOrder, persistent_bytes};
#[cfg(test)]
pub(crate) use transfers::ResidentRuns;
pub(crate) use transfers::Transfers;
pub(crate) use updates::KnownUpdates;
