//! Lifetimes cut into sections: time reduced to the question which lifetimes overlap.
//!
//! ```text
//! time      0   3   4     7  9        sections    0    1
//! a         ├───────────┤             a           ■    ■     two slots meet exactly when
//! b         ├───┤                     b           ■          they share a section
//! c                 ├────────┤        c                ■
//! ```
//!
//! A section is a moment at which some slot has begun and the next event is the end of a slot. The slots alive between
//! two such moments are a subset of those alive at one of them, so nothing is lost, and times as large as nanoseconds
//! become a few hundred indices.

use std::ops::Range;

use super::range_max::RangeMax;
use super::slot::Slot;

/// Slots whose lifetimes are ranges of sections, sorted by where they begin.
#[derive(Clone, Debug)]
pub(super) struct Sections {
    /// Index of each slot in the original list.
    pub(super) origin: Vec<usize>,
    pub(super) bytes: Vec<u64>,
    /// First section of each slot. Never falls from one slot to the next.
    pub(super) first: Vec<usize>,
    /// One past the last section of each slot.
    pub(super) last: Vec<usize>,
    /// Length of each slot's lifetime in the caller's unit of time.
    pub(super) duration: Vec<u64>,
    /// The number of sections.
    pub(super) count: usize,
}

impl Sections {
    /// Cuts the lifetimes of `slots`. Slots that need no bytes, or live at no time, are left out: offset
    /// 0 does for them.
    pub(super) fn new(slots: &[Slot]) -> Sections {
        let needs_place = |&index: &usize| slots[index].bytes > 0 && slots[index].start < slots[index].end;
        let mut origin: Vec<usize> = (0..slots.len()).filter(needs_place).collect();
        origin.sort_by_key(|&index| (slots[index].start, slots[index].end, index));
        // Ends sort before beginnings at the same time, since lifetimes are half-open.
        let ends = origin.iter().enumerate().map(|(at, &index)| (slots[index].end, false, at));
        let begins = origin.iter().enumerate().map(|(at, &index)| (slots[index].start, true, at));
        let mut events: Vec<(usize, bool, usize)> = ends.chain(begins).collect();
        events.sort_unstable();
        let (mut first, mut last) = (vec![0; origin.len()], vec![0; origin.len()]);
        let (mut section, mut begun) = (0, false);
        for (_, begins, at) in events {
            if begins {
                first[at] = section;
                begun = true;
            } else {
                section += usize::from(begun);
                begun = false;
                last[at] = section;
            }
        }
        let bytes = origin.iter().map(|&index| slots[index].bytes).collect();
        let duration = origin.iter().map(|&index| (slots[index].end - slots[index].start) as u64).collect();
        Sections { origin, bytes, first, last, duration, count: section }
    }

    pub(super) fn len(&self) -> usize {
        self.origin.len()
    }

    /// Whether two slots are alive at one moment.
    pub(super) fn meet(&self, one: usize, other: usize) -> bool {
        self.first[one] < self.last[other] && self.first[other] < self.last[one]
    }

    /// Bytes alive at the fullest moment of each slot.
    pub(super) fn fullest(&self) -> Vec<u64> {
        let live = RangeMax::new(&self.live_bytes());
        let ranges = self.first.iter().zip(&self.last);
        ranges.map(|(&first, &last)| live.of(first, last)).collect()
    }

    fn live_bytes(&self) -> Vec<u64> {
        let (mut begun, mut ended) = (vec![0; self.count + 1], vec![0; self.count + 1]);
        for slot in 0..self.len() {
            begun[self.first[slot]] += self.bytes[slot];
            ended[self.last[slot]] += self.bytes[slot];
        }
        let running = begun.iter().zip(&ended).scan(0, |live, (begun, ended)| {
            *live = *live + begun - ended;
            Some(*live)
        });
        running.take(self.count).collect()
    }

    /// Splits the slots at every cut in time that no lifetime crosses. The parts can be solved alone.
    pub(super) fn parts(&self) -> Vec<Sections> {
        let lifetimes = self.first.iter().copied().zip(self.last.iter().copied());
        independent(lifetimes).into_iter().map(|range| self.part(range)).collect()
    }

    fn part(&self, range: Range<usize>) -> Sections {
        let start = self.first[range.start];
        let last: Vec<usize> = self.last[range.clone()].iter().map(|section| section - start).collect();
        Sections {
            origin: self.origin[range.clone()].to_vec(),
            bytes: self.bytes[range.clone()].to_vec(),
            first: self.first[range.clone()].iter().map(|section| section - start).collect(),
            duration: self.duration[range.clone()].to_vec(),
            count: last.iter().copied().max().unwrap_or(0),
            last,
        }
    }
}

/// The same slots with times numbered from 0 without gaps, so that arrays over time stay short.
pub(super) fn with_dense_times(slots: &[Slot]) -> Vec<Slot> {
    let mut times: Vec<usize> = slots.iter().flat_map(|slot| [slot.start, slot.end]).collect();
    times.sort_unstable();
    times.dedup();
    let dense = |time: usize| times.partition_point(|&earlier| earlier < time);
    let renumber = |slot: &Slot| Slot { start: dense(slot.start), end: dense(slot.end), bytes: slot.bytes };
    slots.iter().map(renumber).collect()
}

/// Ranges of a list of lifetimes, sorted by beginning, such that no lifetime reaches from one range into another.
pub(super) fn independent(lifetimes: impl Iterator<Item = (usize, usize)>) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut from, mut to, mut reach) = (0, 0, 0);
    for (first, last) in lifetimes {
        if to > from && first >= reach {
            ranges.push(from..to);
            from = to;
        }
        reach = reach.max(last);
        to += 1;
    }
    if from < to {
        ranges.push(from..to);
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sections_are_the_moments_at_which_most_slots_meet() {
        let slots = [(0, 7, 1), (0, 3, 1), (4, 9, 1)];
        let slots = slots.map(|(start, end, bytes)| Slot { start, end, bytes });
        let sections = Sections::new(&slots);
        assert_eq!(sections.count, 2);
        assert_eq!(sections.origin, [1, 0, 2]);
        assert_eq!((sections.first, sections.last), (vec![0, 0, 1], vec![1, 2, 2]));
    }

    proptest! {
        #[test]
        fn slots_meet_in_sections_exactly_when_they_meet_in_time(
            raw in prop::collection::vec((0usize..40, 1usize..20, 0u64..3), 0..40),
        ) {
            let slots: Vec<Slot> =
                raw.iter().map(|&(start, len, bytes)| Slot { start, end: start + len, bytes }).collect();
            let sections = Sections::new(&slots);
            prop_assert_eq!(sections.len(), slots.iter().filter(|slot| slot.bytes > 0).count());
            prop_assert!(sections.first.is_sorted());
            for one in 0..sections.len() {
                prop_assert!(sections.first[one] < sections.last[one]);
                for other in 0..sections.len() {
                    let (a, b) = (slots[sections.origin[one]], slots[sections.origin[other]]);
                    prop_assert_eq!(sections.meet(one, other), a.start < b.end && b.start < a.end);
                }
            }
            let live = sections.live_bytes().into_iter().max().unwrap_or(0);
            prop_assert_eq!(live, super::super::slot::bound(&slots));
        }

        #[test]
        fn parts_keep_every_slot_and_no_two_parts_meet(
            raw in prop::collection::vec((0usize..90, 1usize..6), 1..30),
        ) {
            let slots: Vec<Slot> =
                raw.iter().map(|&(start, len)| Slot { start, end: start + len, bytes: 1 }).collect();
            let parts = Sections::new(&slots).parts();
            prop_assert_eq!(parts.iter().map(Sections::len).sum::<usize>(), slots.len());
            for (index, part) in parts.iter().enumerate() {
                let end = part.origin.iter().map(|&slot| slots[slot].end).max();
                let next = parts.get(index + 1).and_then(|part| part.origin.iter().map(|&slot| slots[slot].start).min());
                prop_assert!(next.is_none_or(|start| end <= Some(start)));
                prop_assert_eq!(part.parts().len(), 1);
            }
        }
    }
}
