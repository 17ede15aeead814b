//! Ranges of bytes, each with a value, ordered by offset: the ranges that overlap a given one are found without looking
//! at all of them.
//!
//! Ranges may overlap. The search begins as far before a range as the longest range is long.

use std::collections::BTreeMap;

/// Ranges of bytes, each under a number of its own.
#[derive(Debug)]
pub(crate) struct Ranges<T> {
    /// By first byte and number: one past the last byte, and the value.
    by_start: BTreeMap<(u64, usize), (u64, T)>,
    longest: u64,
}

impl<T> Default for Ranges<T> {
    fn default() -> Ranges<T> {
        Ranges { by_start: BTreeMap::new(), longest: 0 }
    }
}

impl<T> Ranges<T> {
    /// Adds the bytes from `start` up to `end`.
    pub(crate) fn insert(&mut self, (start, end): (u64, u64), number: usize, known: T) {
        self.longest = self.longest.max(end.saturating_sub(start));
        self.by_start.insert((start, number), (end, known));
    }

    /// Takes a range out.
    pub(crate) fn remove(&mut self, start: u64, number: usize) -> Option<T> {
        self.by_start.remove(&(start, number)).map(|(_, known)| known)
    }

    /// The range of this first byte and number.
    pub(crate) fn get(&self, start: u64, number: usize) -> Option<&T> {
        self.by_start.get(&(start, number)).map(|(_, known)| known)
    }

    /// Ranges that share a byte with the one from `start` up to `end`, each with its first byte and number.
    pub(crate) fn meeting(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, usize, &T)> {
        let first = start.saturating_sub(self.longest);
        let near = self.by_start.range((first, 0)..(end.max(first), 0));
        near.filter(move |(_, (other_end, _))| *other_end > start)
            .map(|(&(other, number), (_, known))| (other, number, known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn those_that_meet_are_those_that_a_scan_finds(
            raw in prop::collection::vec((0u64..40, 0u64..9, any::<bool>()), 0..30),
            asked in (0u64..45, 0u64..12),
        ) {
            let mut ranges = Ranges::default();
            for (number, &(start, bytes, _)) in raw.iter().enumerate() {
                ranges.insert((start, start + bytes), number, ());
            }
            for (number, &(start, _, stays)) in raw.iter().enumerate() {
                if !stays {
                    prop_assert_eq!(ranges.remove(start, number), Some(()));
                }
            }
            let (from, to) = (asked.0, asked.0 + asked.1);
            let meets = |&(number, &(start, bytes, stays)): &(usize, &(u64, u64, bool))| {
                let _ = number;
                stays && start < to && from < start + bytes
            };
            let mut expected: Vec<usize> = raw.iter().enumerate().filter(meets).map(|(number, _)| number).collect();
            let mut found: Vec<usize> = ranges.meeting(from, to).map(|(_, number, ())| number).collect();
            expected.sort_unstable();
            found.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }
}
