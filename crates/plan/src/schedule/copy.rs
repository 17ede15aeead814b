//! Transfers: two ends, and the lane between them.
//!
//! One end is a buffer of the arena; the other is a place in a tier, as long as the buffer. The bytes go from the
//! source to the destination. The lane is stated and not derived, because a device may have more than one link; the
//! judge refuses a lane that does not lead from the one end to the other.

use super::BufferId;
use crate::device::{Direction, Lane, Tier};

/// One end of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The bytes of a buffer, in the arena.
    Buffer(BufferId),
    /// A place in a tier, as large as the buffer at the other end.
    Tier {
        /// The tier.
        tier: Tier,
        /// First byte in the tier.
        offset: u64,
    },
}

/// One transfer between a buffer and a place in a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Where the bytes are.
    pub source: End,
    /// Where they go.
    pub destination: End,
    /// The queue that carries them.
    pub lane: Lane,
}

/// The ends of a transfer that has one in the arena and one in a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) buffer: BufferId,
    pub(crate) tier: Tier,
    pub(crate) offset: u64,
    pub(crate) direction: Direction,
}

impl Copy {
    /// The transfer between `buffer` and byte `offset` of `tier`, in the lane between the two.
    pub fn new(buffer: BufferId, tier: Tier, offset: u64, direction: Direction) -> Copy {
        let (here, there) = (End::Buffer(buffer), End::Tier { tier, offset });
        let (source, destination) = match direction {
            Direction::Out => (here, there),
            Direction::In => (there, here),
        };
        Copy { source, destination, lane: Lane::of(tier, direction) }
    }

    /// Its direction; `None` unless one end is in the arena and the other in a tier.
    pub fn direction(&self) -> Option<Direction> {
        self.ends().map(|ends| ends.direction)
    }

    /// The copy's end in the arena; `None` as for [`Copy::direction`].
    pub fn buffer(&self) -> Option<BufferId> {
        self.ends().map(|ends| ends.buffer)
    }

    /// Its end in a tier, with the first byte; `None` as for [`Copy::direction`].
    pub fn tier(&self) -> Option<(Tier, u64)> {
        self.ends().map(|ends| (ends.tier, ends.offset))
    }

    /// Both ends of the copy; `None` as for [`Copy::direction`].
    pub(crate) fn ends(&self) -> Option<Ends> {
        match (self.source, self.destination) {
            (End::Buffer(buffer), End::Tier { tier, offset }) => {
                Some(Ends { buffer, tier, offset, direction: Direction::Out })
            }
            (End::Tier { tier, offset }, End::Buffer(buffer)) => {
                Some(Ends { buffer, tier, offset, direction: Direction::In })
            }
            _ => None,
        }
    }
}
