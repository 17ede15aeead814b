//! Which slot goes first where the exact search may choose.
//!
//! A search that goes wrong early can be lost for hours, while another preference finds a layout within milliseconds,
//! and one cannot know beforehand which. So several are tried in turn (MiniMalloc's idea, and its letters: T for the
//! fullest moment of a lifetime, W for its width in time, A for area), and beside each a randomly perturbed copy, which
//! differs in every round.

use std::cmp::Reverse;

use super::sections::Sections;

/// How many preferences there are in each round.
pub(super) const PREFERENCES: usize = 10;

/// How far shaking moves a slot at most, in places.
const REACH: usize = 20;

/// Rank of each slot under one preference; `fullest` is [`Sections::fullest`]. The shaken ones differ from
/// round to round.
pub(super) fn ranks(sections: &Sections, fullest: &[u64], preference: usize, round: u32) -> Vec<u32> {
    let key = |slot: usize| {
        let sizes = [fullest[slot], sections.duration[slot], sections.bytes[slot]];
        let [fullest, width, bytes] = sizes.map(u128::from);
        let area = width * bytes;
        match preference % 5 {
            0 => [width, area, fullest],
            1 => [fullest, area, width],
            2 => [fullest, width, area],
            3 => [area, bytes, width],
            _ => [bytes, width, fullest],
        }
    };
    let mut order: Vec<usize> = (0..sections.len()).collect();
    order.sort_by_cached_key(|&slot| (Reverse(key(slot)), slot));
    if preference >= PREFERENCES / 2 {
        shake(&mut order, u64::from(round) * PREFERENCES as u64 + preference as u64);
    }
    let mut ranks = vec![0; order.len()];
    for (rank, slot) in order.into_iter().enumerate() {
        ranks[slot] = rank as u32;
    }
    ranks
}

fn shake(order: &mut [usize], seed: u64) {
    let mut numbers = PseudoRandom::new(seed);
    let mut keyed: Vec<(usize, usize)> =
        order.iter().enumerate().map(|(at, &slot)| (at + numbers.below(REACH), slot)).collect();
    keyed.sort_unstable();
    for (place, (_, slot)) in order.iter_mut().zip(keyed) {
        *place = slot;
    }
}

/// A fixed sequence of numbers without a visible pattern (a linear congruential generator with Knuth's
/// constants): variety without randomness, so that plans can be repeated.
pub(super) struct PseudoRandom {
    state: u64,
}

impl PseudoRandom {
    pub(super) fn new(seed: u64) -> PseudoRandom {
        let mut numbers = PseudoRandom { state: seed };
        numbers.below(1);
        numbers
    }

    /// The next number below `end`, which is not 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as usize % end
    }
}
