//! What waits on another tier, and when it moves.
//!
//! [`residency`] says which state lives there, [`transfers`] which values wait there and when each move begins, and
//! [`candidates`] which combinations of the two and of recomputing are on offer. The fastest of them is found in `search`.

mod candidates;
mod residency;
mod transfers;

pub(crate) use candidates::{Found, Limit, Offers, Ordered, Place, Source, streamed};
#[cfg(test)]
pub(crate) use residency::rungs;
pub(crate) use residency::{Placement, persistent_bytes};
pub(crate) use transfers::Spiller;
