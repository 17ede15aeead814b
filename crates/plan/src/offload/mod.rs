//! Values and state on another tier: which of them wait there, and when they move.
//!
//! [`residency`] says which state lives there, [`transfers`] which values wait there and when each move begins, and
//! [`candidates`] which combinations of the two and of recomputation are on offer. The fastest of them is found in `search`.

mod candidates;
mod residency;
mod transfers;

pub(crate) use candidates::{Candidates, Found, Limit, Ordered, Recomputation, ResidencyOption, streamed};
#[cfg(test)]
pub(crate) use residency::rungs;
pub(crate) use residency::{Residency, persistent_bytes};
pub(crate) use transfers::Transfers;
