//! The range of a divided state that one rank keeps, among the elements of the whole.

use std::ops::Range;

use plimsoll_graph::{State, Type};

/// The elements of a divided state that one rank keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) whole: Type,
    pub(crate) first: usize,
    pub(crate) count: usize,
}

impl Share {
    /// The range of a state that `rank` keeps; none where every rank has all of it.
    pub(crate) fn of(state: &State, rank: usize) -> Option<Share> {
        let (whole, shard) = (state.whole?, state.ty.shape.elements());
        let elements = whole.shape.elements();
        let first = (rank * shard).min(elements);
        Some(Share { whole, first, count: shard.min(elements - first) })
    }

    /// The elements that this rank keeps among `count` elements from `first` on, by their place in the whole.
    pub(crate) fn common(&self, first: usize, count: usize) -> Range<usize> {
        let end = first + count;
        let begin = self.first.clamp(first, end);
        begin..(self.first + self.count).clamp(begin, end)
    }
}
