//! Places in the arena.

/// First byte of something, counted from the beginning of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(pub u64);

impl Place {
    /// The place this many bytes further on.
    #[must_use]
    pub fn after(self, bytes: u64) -> Place {
        Place(self.0 + bytes)
    }
}
