//! Better layouts by changing the order of placement, one slot at a time.
//!
//! ```text
//! order a, b, c                   order a, c, b
//!            ▓▓ c ▓▓                                    c reaches the peak, so it goes earlier; then all
//!      ▓▓▓▓ b ▓▓▓▓▓                ▓▓▓▓ b ▓▓▓▓▓         are placed again, each in the lowest gap
//! ▓▓ a ▓▓                     ▓▓ a ▓▓    ▓▓ c ▓▓
//! ```
//!
//! Method: place the slots of the given layout again, lowest first, which can only tighten it. Then move a slot that
//! reaches the peak to an earlier place in the order, and keep the new order unless it is worse. Moves that change
//! nothing are kept too: with them the search leaves a plateau. Searching over orders of lowest-gap placement is old in
//! packing (Jakobs, "On genetic algorithms for the packing of polygons", 1996) and is used in memory planners (TVM's
//! hill climb). Here time is fixed and only height is free, one order is improved instead of a population, and places
//! are drawn from a fixed sequence of numbers, so that the same slots give the same layout.
//!
//! Good at the last percent of training schedules, hopeless on perfect packings: those are for `exact`.

use std::cmp::Reverse;

use super::preference::PseudoRandom;
use super::sections::Sections;

/// How good a layout is: its peak, then how many slots reach it.
type Score = (u64, usize);

/// Improves `offsets` until the peak is at most `goal` or `operations` have been spent.
pub(super) fn improve(sections: &Sections, offsets: &[u64], goal: u64, operations: u64) -> Vec<u64> {
    let mut order: Vec<usize> = (0..sections.len()).collect();
    order.sort_by_key(|&slot| (offsets[slot], Reverse(sections.bytes[slot]), slot));
    let mut numbers = PseudoRandom::new(0);
    let mut placement = Placement::new(sections);
    let mut best = placement.run(&order);
    let mut score = score(sections, &best);
    while score.0 > goal && placement.operations < operations {
        let reaching: Vec<usize> =
            (0..order.len()).filter(|&at| top(sections, &best, order[at]) == score.0).collect();
        let from = reaching[numbers.below(reaching.len())];
        let to = numbers.below(from.max(1));
        order[to..=from].rotate_right(1);
        let tried = placement.run(&order);
        let tried_score = self::score(sections, &tried);
        if tried_score <= score {
            (best, score) = (tried, tried_score);
        } else {
            order[to..=from].rotate_left(1);
        }
    }
    best
}

fn top(sections: &Sections, offsets: &[u64], slot: usize) -> u64 {
    offsets[slot] + sections.bytes[slot]
}

fn score(sections: &Sections, offsets: &[u64]) -> Score {
    let tops = || (0..sections.len()).map(|slot| top(sections, offsets, slot));
    let peak = tops().max().unwrap_or(0);
    (peak, tops().filter(|&top| top == peak).count())
}

/// Places slots in a given order, each in the lowest gap.
struct Placement<'a> {
    sections: &'a Sections,
    /// Placed slots by offset: gaps are met from low to high without sorting.
    placed: Vec<(u64, usize)>,
    operations: u64,
}

impl<'a> Placement<'a> {
    fn new(sections: &'a Sections) -> Placement<'a> {
        Placement { sections, placed: Vec::with_capacity(sections.len()), operations: 0 }
    }

    fn run(&mut self, order: &[usize]) -> Vec<u64> {
        self.placed.clear();
        let mut offsets = vec![0; order.len()];
        for &slot in order {
            let offset = self.lowest_gap(slot);
            let at = self.placed.partition_point(|&other| other < (offset, slot));
            self.placed.insert(at, (offset, slot));
            self.operations += self.placed.len() as u64;
            offsets[slot] = offset;
        }
        offsets
    }

    fn lowest_gap(&self, slot: usize) -> u64 {
        let mut offset = 0;
        for &(from, other) in &self.placed {
            if self.sections.meet(slot, other) {
                if offset + self.sections.bytes[slot] <= from {
                    break;
                }
                offset = offset.max(from + self.sections.bytes[other]);
            }
        }
        offset
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{Cuts, overlap, peak, perfect_packing};
    use super::super::slot::Slot;
    use super::*;
    use proptest::prelude::*;

    /// Offsets in the order of `slots` after local search from a layout that shares nothing.
    fn improved(slots: &[Slot], goal: u64, operations: u64) -> Vec<u64> {
        let sections = Sections::new(slots);
        let stacked = sections.bytes.iter().scan(0, |top, bytes| {
            *top += bytes;
            Some(*top - bytes)
        });
        let found = improve(&sections, &stacked.collect::<Vec<u64>>(), goal, operations);
        let mut offsets = vec![0; slots.len()];
        for (&origin, offset) in sections.origin.iter().zip(found) {
            offsets[origin] = offset;
        }
        offsets
    }

    #[test]
    fn a_slot_at_the_peak_goes_earlier() {
        // The drawing above, with the slots in the order that does not work.
        let slots = [(0, 4, 1), (2, 8, 1), (6, 9, 1)].map(|(start, end, bytes)| Slot { start, end, bytes });
        let offsets = improved(&slots, 2, 1000);
        assert_eq!(overlap(&slots, &offsets), None);
        assert_eq!(peak(&slots, &offsets), 2);
    }

    proptest! {
        #[test]
        fn more_moves_never_give_a_larger_peak_or_an_overlap(seed in 0u64..1000, pieces in 2usize..40) {
            let slots = perfect_packing(seed, Cuts::Pinwheel, pieces, 50, 50);
            let mut before = u64::MAX;
            for operations in [0, 1000, 10_000, 100_000] {
                let offsets = improved(&slots, 50, operations);
                prop_assert_eq!(overlap(&slots, &offsets), None);
                let peak = peak(&slots, &offsets);
                prop_assert!(peak <= before && peak >= 50);
                before = peak;
            }
        }
    }
}
