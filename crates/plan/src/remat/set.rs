//! A small set of node numbers as `W` machine words.
//!
//! States of the search are compared, hashed and copied by the million; a fixed width keeps them in
//! registers. Graphs beyond the widest set the planner is built for are refused in `solve`.

/// The largest number of elements that a set can hold.
pub(crate) const MOST: usize = 64 * 32;

/// Runs `$body` with `$width` words for sets of `$count` numbers, which are at most [`MOST`].
macro_rules! sized {
    ($count:expr, $width:ident => $body:expr) => {
        match $count {
            0..=64 => {
                const $width: usize = 1;
                $body
            }
            65..=128 => {
                const $width: usize = 2;
                $body
            }
            129..=256 => {
                const $width: usize = 4;
                $body
            }
            257..=512 => {
                const $width: usize = 8;
                $body
            }
            _ => {
                const $width: usize = 32;
                $body
            }
        }
    };
}
pub(crate) use sized;

/// A set of numbers below `64 · W`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Set<const W: usize>([u64; W]);

impl<const W: usize> Set<W> {
    pub(crate) const EMPTY: Set<W> = Set([0; W]);

    pub(crate) fn contains(&self, item: usize) -> bool {
        self.0[item / 64] >> (item % 64) & 1 == 1
    }

    pub(crate) fn insert(&mut self, item: usize) {
        self.0[item / 64] |= 1 << (item % 64);
    }

    pub(crate) fn remove(&mut self, item: usize) {
        self.0[item / 64] &= !(1 << (item % 64));
    }

    pub(crate) fn with(mut self, item: usize) -> Set<W> {
        self.insert(item);
        self
    }

    pub(crate) fn without(mut self, item: usize) -> Set<W> {
        self.remove(item);
        self
    }

    pub(crate) fn union(&self, other: &Set<W>) -> Set<W> {
        Set(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    pub(crate) fn intersection(&self, other: &Set<W>) -> Set<W> {
        Set(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    pub(crate) fn minus(&self, other: &Set<W>) -> Set<W> {
        Set(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    pub(crate) fn is_subset(&self, other: &Set<W>) -> bool {
        self.minus(other).is_empty()
    }

    /// The lowest item.
    pub(crate) fn first(&self) -> Option<usize> {
        let word = self.0.iter().position(|&word| word != 0)?;
        Some(64 * word + self.0[word].trailing_zeros() as usize)
    }

    /// The items, lowest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + use<W> {
        let mut rest = *self;
        std::iter::from_fn(move || {
            let item = rest.first()?;
            rest.remove(item);
            Some(item)
        })
    }
}

impl<const W: usize> FromIterator<usize> for Set<W> {
    fn from_iter<I: IntoIterator<Item = usize>>(items: I) -> Set<W> {
        items.into_iter().fold(Set::EMPTY, Set::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_back_in_order_across_words() {
        let set: Set<3> = [190, 3, 64, 63].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [3, 63, 64, 190]);
        assert!(set.without(3).is_subset(&set) && !set.is_subset(&set.without(190)));
    }
}
