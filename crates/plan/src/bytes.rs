//! Three counts of bytes that must not be confused: of the process, of the arena, and of the arena's transient part.
//!
//! ```text
//! process  | code, heap, buffers of files |            arena                     |
//! arena                                   | state |          transient           |
//! ```
//!
//! A user states the process's budget, a plan has an arena, and the planners of `optimum` know the transient part
//! alone. Each of the two boundaries is crossed here and nowhere else. Sizes of single things (a buffer, a node's
//! scratch, all that lies outside the arena) are plain numbers, since they cannot be confused. So are counts outside
//! the planner: in settings, in text and JSON, in what the system reports, and where the judge and a device take the
//! size of an arena.

use std::fmt;

/// Bytes of the whole process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessBytes(pub u64);

/// Bytes of the arena: state that stays, and the transient part behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ArenaBytes(pub u64);

/// Bytes of the arena behind the state that stays: activations, scratch, and state that is in for a stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransientBytes(pub u64);

impl ProcessBytes {
    /// The arena of a process that has `outside` bytes beside it; 0 if `outside` exceeds the process's bytes.
    pub fn arena(self, outside: u64) -> ArenaBytes {
        ArenaBytes(self.0.saturating_sub(outside))
    }
}

impl ArenaBytes {
    /// A budget that nothing exceeds.
    pub const MAX: ArenaBytes = ArenaBytes(u64::MAX);

    /// The process that has this arena and `outside` bytes beside it.
    pub fn process(self, outside: u64) -> ProcessBytes {
        ProcessBytes(self.0.saturating_add(outside))
    }

    /// The part behind `state` bytes of state; 0 if `state` exceeds the arena.
    pub fn transient(self, state: u64) -> TransientBytes {
        TransientBytes(self.0.saturating_sub(state))
    }
}

impl TransientBytes {
    /// A budget that nothing exceeds.
    pub const MAX: TransientBytes = TransientBytes(u64::MAX);

    /// The arena that has `state` bytes of state in front of this part.
    pub fn arena(self, state: u64) -> ArenaBytes {
        ArenaBytes(self.0.saturating_add(state))
    }
}

impl fmt::Display for ProcessBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ArenaBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for TransientBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back_is_the_same_where_it_fits_and_nothing_where_it_does_not() {
        let process = ProcessBytes(100);
        assert_eq!(process.arena(30), ArenaBytes(70));
        assert_eq!(process.arena(30).process(30), process);
        assert_eq!(ArenaBytes(70).transient(20).arena(20), ArenaBytes(70));
        assert_eq!(process.arena(101).transient(1), TransientBytes(0));
        assert_eq!(TransientBytes::MAX.arena(5), ArenaBytes::MAX);
    }
}
