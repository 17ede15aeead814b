//! A search that finds a layout inside a capacity or proves that there is none.
//!
//! Slots fall. In any layout each one can be pushed down until it rests on the ground or on another, so
//! only such layouts are tried, and each of them once: its slots are placed from low to high, ties in a
//! fixed preference.
//!
//! ```text
//! capacity ┌────────────────────┐   p and q are placed. a, b and c are open, each drawn at its lowest
//!          │     ╶────b────╴    │   place: the ground, or the top of what is placed below it. The turn is
//!          │ ▓▓▓▓▓▓▓▓           │   a's. When every layout with a on the ground has failed, a is passed
//!          │ ▓▓ p ▓▓▓    ╶─c──╴ │   over: it must come to rest on b, the one open slot that it meets, so
//!          │ ▓▓▓▓▓▓▓▓    ▓▓ q ▓ │   its lowest place rises. If the top of a would be below c, c cannot
//!          └─────────╶a─╴───────┘   be next without it: a could still fall.
//! ```
//!
//! Method, after MiniMalloc (Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine
//! Learning", ASPLOS 2023): depth first over canonical layouts. An open slot is not placed next if its offset would be
//! above the top that another open slot would have (dominance). When no open lifetime crosses a cut in time, the two
//! sides are searched alone, which also settles slots that nothing rests on any more. Where we differ:
//!
//! - A branch is cut by more than floor + total of a section. In each section the open slots must be
//!   stacked below the capacity, none lower than its lowest place. Stacking them in the order of those
//!   places is the best any section can do (one machine, jobs with release times); if that is too high,
//!   the branch is dead.
//! - A slot that was skipped counts: its lowest place is the lowest top among open slots that it meets.
//! - Slots with equal lifetime and size are interchangeable and keep one order.
//! - Sections are only the moments at which most slots meet.
//!
//! State is changed in place and undone from a trail. Effort is counted in operations, so that the same
//! effort gives the same layout on every machine. Absent: learning from conflicts, and a table of failed
//! states (tried: half the steps at best, and a proof would rest on hashes).

use std::cmp::Reverse;
use std::ops::Range;

use super::sections::{Sections, independent};

/// Operations charged for every slot that a decision examines, beside the sections it examines.
const OPERATIONS_PER_SLOT: u64 = 10;

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A layout was found.
    Found,
    /// No layout fits.
    Impossible,
    /// Unknown: the operations ran out.
    Unfinished,
}

/// A place in the order of all placements: offset, then preference.
type Turn = (u64, u32);

/// Searches for offsets of `sections` below `capacity`, lower `rank` first among equal offsets. The operations it uses
/// are subtracted from `operations`.
pub(super) fn search(
    sections: &Sections,
    capacity: u64,
    rank: &[u32],
    operations: &mut u64,
) -> (Outcome, Vec<u64>) {
    let slots = sections.len();
    let mut search = Search {
        sections,
        capacity,
        rank,
        twin: twins(sections, rank),
        lowest: vec![0; slots],
        open: vec![true; slots],
        trail: Vec::new(),
        stacked: Vec::with_capacity(slots),
        height: vec![0; sections.count],
        operations: *operations,
    };
    let outcome = search.run();
    *operations = search.operations;
    (outcome, search.lowest)
}

/// For each slot the one of equal lifetime and size that must be placed before it.
fn twins(sections: &Sections, rank: &[u32]) -> Vec<Option<usize>> {
    let kind = |slot: usize| (sections.first[slot], sections.last[slot], sections.bytes[slot]);
    let mut order: Vec<usize> = (0..sections.len()).collect();
    order.sort_by_key(|&slot| (kind(slot), rank[slot]));
    let mut twin = vec![None; sections.len()];
    for pair in order.windows(2) {
        if kind(pair[0]) == kind(pair[1]) {
            twin[pair[1]] = Some(pair[0]);
        }
    }
    twin
}

struct Search<'a> {
    sections: &'a Sections,
    capacity: u64,
    rank: &'a [u32],
    twin: Vec<Option<usize>>,
    /// For each open slot, the top of the slots placed below it; for each placed slot, its offset.
    lowest: Vec<u64>,
    open: Vec<bool>,
    /// Old values of `lowest`, to undo their raising.
    trail: Vec<(usize, u64)>,
    /// Open slots by the lowest place they can still have.
    stacked: Vec<(u64, usize)>,
    /// Top of the stack in each section.
    height: Vec<u64>,
    operations: u64,
}

/// One decision: which of some open slots is placed next. All lists of slots lie in one shared vector, each after the
/// list it was made from.
struct Choice {
    /// The slots to choose from.
    slots: Range<usize>,
    /// Turns before this one are over.
    earliest: Turn,
    /// Lengths of the trail and of the lists before anything was placed.
    trail: usize,
    lists: usize,
    /// The rest after the placement: lists that no lifetime connects, still to be placed.
    parts: Vec<Range<usize>>,
}

/// The outcome of an attempt to decide anew.
enum Advance {
    Placed,
    Exhausted,
    Unfinished,
}

impl Search<'_> {
    /// Depth first. The stack of choices is explicit, since it grows as deep as there are slots.
    fn run(&mut self) -> Outcome {
        let mut lists: Vec<u32> = (0..self.sections.len() as u32).collect();
        let parts = self.parts(&lists, 0);
        let mut choices = vec![Choice { slots: 0..0, earliest: (0, 0), trail: 0, lists: lists.len(), parts }];
        while let Some(choice) = choices.last_mut() {
            let Some(slots) = choice.parts.pop() else {
                // All is placed. The decisions stay on the trail, for the choice below to undo.
                lists.truncate(choice.lists);
                choices.pop();
                continue;
            };
            let (earliest, trail, lists_before) = (choice.earliest, self.trail.len(), lists.len());
            choices.push(Choice { slots, earliest, trail, lists: lists_before, parts: Vec::new() });
            loop {
                let Some(choice) = choices.last_mut() else {
                    return Outcome::Impossible;
                };
                match self.advance(choice, &mut lists) {
                    Advance::Placed => break,
                    Advance::Exhausted => choices.pop(),
                    Advance::Unfinished => return Outcome::Unfinished,
                };
            }
        }
        Outcome::Found
    }

    /// Undoes the last placement of a choice, if there was one, and makes the next.
    fn advance(&mut self, choice: &mut Choice, lists: &mut Vec<u32>) -> Advance {
        if self.operations == 0 {
            return Advance::Unfinished;
        }
        self.operations = self.operations.saturating_sub(OPERATIONS_PER_SLOT * choice.slots.len() as u64);
        lists.truncate(choice.lists);
        let slots = &lists[choice.slots.clone()];
        self.undo(choice.trail, slots);
        if slots.is_empty() || !self.may_fit(slots, choice.earliest) {
            return Advance::Exhausted;
        }
        let Some(next) = self.next(slots, choice.earliest) else {
            return Advance::Exhausted;
        };
        choice.earliest = (self.lowest[next], self.rank[next] + 1);
        self.place(next, slots);
        for at in choice.slots.clone() {
            if lists[at] as usize != next {
                lists.push(lists[at]);
            }
        }
        choice.parts = self.parts(&lists[choice.lists..], choice.lists);
        Advance::Placed
    }

    /// Ranges of a list, which begins at `from`, that no open lifetime connects. The smallest range comes last, because
    /// it is taken first: it fails or succeeds soonest.
    fn parts(&self, list: &[u32], from: usize) -> Vec<Range<usize>> {
        let lifetime = |&slot: &u32| (self.sections.first[slot as usize], self.sections.last[slot as usize]);
        let mut parts = independent(list.iter().map(lifetime));
        parts.sort_by_key(|part| (Reverse(part.len()), Reverse(part.start)));
        parts.into_iter().map(|part| part.start + from..part.end + from).collect()
    }

    /// Whether every section can still hold its open slots.
    fn may_fit(&mut self, slots: &[u32], earliest: Turn) -> bool {
        self.stacked.clear();
        let mut end = 0;
        for slot in slots.iter().map(|&slot| slot as usize) {
            end = end.max(self.sections.last[slot]);
            let lowest = if self.is_passed(slot, earliest) {
                self.lowest_support(slot, slots, earliest.0)
            } else {
                Some(self.lowest[slot])
            };
            match lowest {
                Some(lowest) if lowest + self.sections.bytes[slot] <= self.capacity => {
                    self.stacked.push((lowest, slot));
                }
                _ => return false,
            }
        }
        self.stacked.sort_unstable();
        // The first slot begins first: lists are sorted.
        self.height[self.sections.first[slots[0] as usize]..end].fill(0);
        for &(lowest, slot) in &self.stacked {
            let range = self.sections.first[slot]..self.sections.last[slot];
            self.operations = self.operations.saturating_sub(range.len() as u64);
            let mut highest = 0;
            for height in &mut self.height[range] {
                *height = lowest.max(*height) + self.sections.bytes[slot];
                highest = highest.max(*height);
            }
            if highest > self.capacity {
                return false;
            }
        }
        true
    }

    /// Whether the turn of a slot at its present lowest place is over.
    fn is_passed(&self, slot: usize, earliest: Turn) -> bool {
        (self.lowest[slot], self.rank[slot]) < earliest
    }

    /// The lowest top on which a slot that was skipped may come to rest. `None` if it meets no open slot.
    fn lowest_support(&mut self, slot: usize, slots: &[u32], floor: u64) -> Option<u64> {
        let (begin, end) = (self.sections.first[slot], self.sections.last[slot]);
        let begun = slots.partition_point(|&other| self.sections.first[other as usize] < end);
        self.operations = self.operations.saturating_sub(begun as u64);
        let others = slots[..begun].iter().map(|&other| other as usize);
        others
            .filter(|&other| other != slot && self.sections.last[other] > begin)
            .map(|other| self.lowest[other].max(floor) + self.sections.bytes[other])
            .min()
    }

    /// The slot whose turn comes first from `earliest` on, unless another could still fall below it.
    fn next(&self, slots: &[u32], earliest: Turn) -> Option<usize> {
        let slots = || slots.iter().map(|&slot| slot as usize);
        let lowest_top = slots().map(|slot| self.lowest[slot] + self.sections.bytes[slot]).min()?;
        let waits_for_twin = |slot: usize| self.twin[slot].is_some_and(|twin| self.open[twin]);
        let first = slots()
            .filter(|&slot| !self.is_passed(slot, earliest) && !waits_for_twin(slot))
            .min_by_key(|&slot| (self.lowest[slot], self.rank[slot]))?;
        (self.lowest[first] < lowest_top).then_some(first)
    }

    /// Fixes a slot at its lowest place and lifts the open ones that it meets.
    fn place(&mut self, placed: usize, slots: &[u32]) {
        self.open[placed] = false;
        let top = self.lowest[placed] + self.sections.bytes[placed];
        for slot in slots.iter().map(|&slot| slot as usize) {
            if slot != placed && self.lowest[slot] < top && self.sections.meet(slot, placed) {
                self.trail.push((slot, self.lowest[slot]));
                self.lowest[slot] = top;
            }
        }
    }

    /// Takes back everything since the trail was `before` long. All of `slots` were open then.
    fn undo(&mut self, before: usize, slots: &[u32]) {
        while self.trail.len() > before
            && let Some((slot, lowest)) = self.trail.pop()
        {
            self.lowest[slot] = lowest;
        }
        for &slot in slots {
            self.open[slot as usize] = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{Cuts, joined_packing, overlap, peak, perfect_packing, smallest_peak};
    use super::super::preference::{PREFERENCES, ranks};
    use super::super::slot::Slot;
    use super::*;
    use proptest::prelude::*;

    /// Every preference must come to the same verdict.
    fn verdict(slots: &[Slot], capacity: u64) -> Outcome {
        let sections = Sections::new(slots);
        let verdicts: Vec<Outcome> = (0..PREFERENCES)
            .map(|preference| {
                let ranks = ranks(&sections, &sections.fullest(), preference, 0);
                let mut operations = u64::MAX;
                let (outcome, found) = search(&sections, capacity, &ranks, &mut operations);
                if outcome == Outcome::Found {
                    let mut offsets = vec![0; slots.len()];
                    for (&origin, offset) in sections.origin.iter().zip(found) {
                        offsets[origin] = offset;
                    }
                    assert_eq!(overlap(slots, &offsets), None);
                    assert!(peak(slots, &offsets) <= capacity);
                }
                outcome
            })
            .collect();
        assert!(verdicts.iter().all(|&verdict| verdict == verdicts[0]), "{verdicts:?}");
        verdicts[0]
    }

    proptest! {
        #[test]
        fn a_layout_is_found_at_the_optimum_and_none_below(
            raw in prop::collection::vec((0usize..8, 1usize..5, 1u64..8), 1..7),
        ) {
            let slots: Vec<Slot> =
                raw.iter().map(|&(start, len, bytes)| Slot { start, end: start + len, bytes }).collect();
            let optimum = smallest_peak(&slots);
            prop_assert_eq!(verdict(&slots, optimum), Outcome::Found);
            prop_assert_eq!(verdict(&slots, optimum - 1), Outcome::Impossible);
            prop_assert_eq!(verdict(&slots, optimum + 1), Outcome::Found);
        }

        #[test]
        fn no_branch_with_a_perfect_packing_is_cut(seed in 0u64..10_000, pieces in 5usize..16) {
            let slots = perfect_packing(seed, Cuts::Pinwheel, pieces, 9, 9);
            prop_assert_eq!(verdict(&slots, 9), Outcome::Found);
        }

        #[test]
        fn all_preferences_agree_where_the_bound_may_be_out_of_reach(seed in 0u64..10_000) {
            let slots = joined_packing(seed, 20, 10, 6);
            prop_assert_ne!(verdict(&slots, 6), Outcome::Unfinished);
        }
    }

    #[test]
    fn operations_that_run_out_leave_the_question_open() {
        let slots = perfect_packing(7, Cuts::Pinwheel, 60, 1000, 1 << 20);
        let sections = Sections::new(&slots);
        let ranks = ranks(&sections, &sections.fullest(), 0, 0);
        let mut operations = 100;
        assert_eq!(search(&sections, 1 << 20, &ranks, &mut operations).0, Outcome::Unfinished);
        assert_eq!(operations, 0);
    }

    #[test]
    fn four_thousand_slots_on_top_of_each_other_do_not_exhaust_the_stack() {
        let slots: Vec<Slot> = (1..=4000).map(|bytes| Slot { start: 0, end: 1, bytes }).collect();
        let sections = Sections::new(&slots);
        let ranks = ranks(&sections, &sections.fullest(), 0, 0);
        let mut operations = u64::MAX;
        let (outcome, offsets) = search(&sections, 4000 * 4001 / 2, &ranks, &mut operations);
        assert_eq!(outcome, Outcome::Found);
        assert_eq!(peak(&slots, &offsets), 4000 * 4001 / 2);
    }
}
