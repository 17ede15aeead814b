//! The order in which an epoch visits its sequences, without a list of them.
//!
//! A Feistel network is a permutation of all numbers with an even number of bits, for any round function. To permute
//! `0..len`, the network covers the next such power of two and is applied again until the result falls below `len`. The
//! walk follows a cycle of the larger permutation, so it ends, and two starts cannot meet. The power is less than four
//! times `len`, so a walk takes fewer than four turns on average. Nothing is stored, where a list would take 4 or 8
//! bytes per sequence.
//!
//! This is a shuffle, not a uniform draw from all orders: very small sets reach only some of theirs.

use plimsoll_exec::random::{Stream, name_hash};

/// Eight rounds; four would make a strong round function look random, and small halves need more.
const ROUNDS: u32 = 8;

/// How an epoch is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Rows come in the order of the data, in every epoch. Used for evaluation.
    AsWritten,
    /// Shuffled anew in each epoch, by a function of this seed and the epoch.
    Shuffled {
        /// The run's seed.
        seed: u64,
    },
}

impl Order {
    /// The index, among `len` sequences, of the sequence at place `index` of `epoch`.
    pub fn sequence_at(self, epoch: u64, index: u64, len: u64) -> u64 {
        match self {
            Order::AsWritten => index,
            Order::Shuffled { seed } => Permutation::new(seed, epoch, len).at(index),
        }
    }
}

/// A permutation of `0..len` that is a function of a seed and an epoch.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    len: u64,
    half_bits: u32,
    stream: Stream,
}

impl Permutation {
    /// The permutation of `len` things that belongs to `seed` and `epoch`.
    pub fn new(seed: u64, epoch: u64, len: u64) -> Permutation {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        // A stream takes 32 bits as its step: the lower half of the epoch. The upper half goes into its name.
        let name = name_hash("data.order") ^ (epoch >> 32);
        Permutation { len, half_bits: bits.div_ceil(2).max(1), stream: Stream::new(seed, name, epoch as u32) }
    }

    /// The element at place `index`, which must be below `len`.
    pub fn at(&self, index: u64) -> u64 {
        assert!(index < self.len, "place {index} in a permutation of {}", self.len);
        let mut walk = self.network(index);
        while walk >= self.len {
            walk = self.network(walk);
        }
        walk
    }

    fn network(&self, input: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (input >> self.half_bits, input & mask);
        for round in 0..ROUNDS {
            // Halves have at most 32 bits, the width of an element.
            let mixed = u64::from(self.stream.bits(round, right as u32));
            (left, right) = (right, left ^ (mixed & mask));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_place_gets_another_sequence(seed: u64, epoch: u64, len in 1u64..5000) {
            let mut seen = vec![false; len as usize];
            let permutation = Permutation::new(seed, epoch, len);
            for index in 0..len {
                let at = permutation.at(index) as usize;
                prop_assert!(!std::mem::replace(&mut seen[at], true), "{at} came twice");
            }
        }

        #[test]
        fn the_largest_sets_stay_within_bounds(seed: u64, index in 0..u64::MAX) {
            let permutation = Permutation::new(seed, 0, u64::MAX);
            prop_assert!(permutation.at(index) < u64::MAX);
        }
    }

    #[test]
    fn seed_and_epoch_change_the_order_and_nothing_else_does() {
        let order =
            |seed, epoch| (0..100).map(|i| Permutation::new(seed, epoch, 100).at(i)).collect::<Vec<_>>();
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
        assert_ne!(order(1, 0), order(1, 1 << 32));
    }

    #[test]
    fn neighbours_do_not_stay_neighbours() {
        let permutation = Permutation::new(3, 0, 10_000);
        let together = (0..9_999).filter(|&i| permutation.at(i).abs_diff(permutation.at(i + 1)) == 1).count();
        // A random order has about 2 such pairs.
        assert!(together < 20, "{together}");
    }

    #[test]
    fn each_sequence_visits_each_quarter_of_the_epoch_equally_often() {
        let mut visits = [0u32; 4];
        for epoch in 0..4000 {
            let permutation = Permutation::new(9, epoch, 12);
            let place = (0..12).find(|&place| permutation.at(place) == 5).unwrap();
            visits[place as usize / 3] += 1;
        }
        // 1000 expected, standard deviation 27.
        assert!(visits.iter().all(|&count| count.abs_diff(1000) < 150), "{visits:?}");
    }

    #[test]
    fn as_written_is_as_written() {
        assert_eq!(Order::AsWritten.sequence_at(7, 3, 10), 3);
    }
}
