//! A search that finds a layout inside a capacity or proves that there is none.
//!
//! Slots fall. In any layout each one can be pushed down until it rests on the ground or on another, so
//! only such layouts are tried, and each of them once: its slots are placed from low to high, ties in a
//! fixed preference.
//!
//! ```text
//! capacity ┌───────────────────────┐
//!          │   sections ──▶        │   b, c and d are open. Each has a lowest place, on top of what is
//!          │                d      │   placed below it. c is next. Were d to be next, at its height,
//!          │  b   ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓ │   without c below it, c could still fall: not such a layout.
//!          │ ▓▓▓▓▓▓▓▓  c     ▓▓▓▓▓ │   Once b is next, c has been passed over: it must come to rest on
//!          └─▓▓▓▓▓▓▓▓────────▓▓▓▓▓─┘   an open slot, so its lowest place rises.
//! ```
//!
//! Method, after MiniMalloc (Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated
//! Machine Learning", ASPLOS 2023): depth first over canonical layouts; an open slot higher than where
//! another one's top would be is not next (dominance); when no open lifetime crosses a cut in time, the
//! sides are searched alone, which also settles slots that nothing rests on any more. Where we differ:
//!
//! - A branch is cut by more than floor + total of a section. In each section the open slots must be
//!   stacked below the capacity, none lower than its lowest place. Stacking them in the order of those
//!   places is the best any section can do (one machine, jobs with release times); if that is too high,
//!   the branch is dead.
//! - What was passed over counts: its lowest place is the lowest top among open slots that it meets.
//! - Slots with equal lifetime and size are interchangeable and keep one order.
//! - Sections are only the moments at which most slots meet.
//!
//! State is changed in place and undone from a trail. Effort is counted in operations, so that the same
//! effort gives the same layout on every machine. Absent: learning from conflicts, and a table of failed
//! states (tried: half the steps at best, and a proof would rest on hashes).

use super::sections::{Sections, independent};

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// With a layout.
    Found,
    /// There is none.
    Impossible,
    /// Nobody knows: the operations ran out.
    Unfinished,
}

/// A place in the order of all placements: offset, then preference.
type Turn = (u64, u32);

/// Searches for offsets of `sections` below `capacity`, lower `rank` first among equal offsets. Takes what
/// it uses from `operations`.
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
    let all: Vec<usize> = (0..slots).collect();
    let outcome = search.all_parts(&all, (0, 0));
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
    /// The top of what is placed below each open slot; the offset of each placed one.
    lowest: Vec<u64>,
    open: Vec<bool>,
    /// Values of `lowest` before they were raised.
    trail: Vec<(usize, u64)>,
    /// Open slots by the lowest place they can still have.
    stacked: Vec<(u64, usize)>,
    /// Top of the stack in each section.
    height: Vec<u64>,
    operations: u64,
}

impl Search<'_> {
    /// Places all of `slots`, in independent parts. On failure some may be left closed; whoever opened
    /// them opens them again.
    fn all_parts(&mut self, slots: &[usize], earliest: Turn) -> Outcome {
        let mut parts = independent(slots, &self.sections.first, &self.sections.last);
        // Small parts fail, or succeed, soonest.
        parts.sort_by_key(|&(from, to)| (to - from, from));
        for (from, to) in parts {
            let outcome = self.part(&slots[from..to], earliest);
            if outcome != Outcome::Found {
                return outcome;
            }
        }
        Outcome::Found
    }

    /// Places all of `slots`, none before its turn has come.
    fn part(&mut self, slots: &[usize], mut earliest: Turn) -> Outcome {
        let mut rest = Vec::with_capacity(slots.len());
        loop {
            if self.operations == 0 {
                return Outcome::Unfinished;
            }
            if !self.may_fit(slots, earliest) {
                return Outcome::Impossible;
            }
            let Some(next) = self.next(slots, earliest) else {
                return Outcome::Impossible;
            };
            let before = self.trail.len();
            let following = (self.lowest[next], self.rank[next] + 1);
            self.place(next, slots);
            rest.clear();
            rest.extend(slots.iter().copied().filter(|&slot| slot != next));
            match self.all_parts(&rest, following) {
                Outcome::Impossible => self.undo(before, slots),
                outcome => return outcome,
            }
            earliest = following;
        }
    }

    /// Whether every section can still hold its open slots.
    fn may_fit(&mut self, slots: &[usize], earliest: Turn) -> bool {
        self.stacked.clear();
        let mut end = 0;
        for &slot in slots {
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
        self.operations = self.operations.saturating_sub(slots.len() as u64);
        // The first slot begins first: slots are sorted.
        self.height[self.sections.first[slots[0]]..end].fill(0);
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

    /// The lowest top on which a slot that was passed over may come to rest. None if there is no open
    /// slot that it meets.
    fn lowest_support(&mut self, slot: usize, slots: &[usize], floor: u64) -> Option<u64> {
        let end = self.sections.last[slot];
        let before_end = slots.partition_point(|&other| self.sections.first[other] < end);
        self.operations = self.operations.saturating_sub(before_end as u64);
        let meets = slots[..before_end]
            .iter()
            .filter(|&&other| other != slot && self.sections.last[other] > self.sections.first[slot]);
        meets.map(|&other| self.lowest[other].max(floor) + self.sections.bytes[other]).min()
    }

    /// The slot whose turn comes first from `earliest` on, unless another could still fall below it.
    fn next(&self, slots: &[usize], earliest: Turn) -> Option<usize> {
        let lowest_top = slots.iter().map(|&slot| self.lowest[slot] + self.sections.bytes[slot]).min()?;
        let has_turn = |slot: usize| {
            !self.is_passed(slot, earliest) && self.twin[slot].is_none_or(|twin| !self.open[twin])
        };
        let first = slots
            .iter()
            .copied()
            .filter(|&slot| has_turn(slot))
            .min_by_key(|&slot| (self.lowest[slot], self.rank[slot]))?;
        (self.lowest[first] < lowest_top).then_some(first)
    }

    /// Fixes a slot at its lowest place and lifts the open ones that it meets.
    fn place(&mut self, placed: usize, slots: &[usize]) {
        self.open[placed] = false;
        let top = self.lowest[placed] + self.sections.bytes[placed];
        for &slot in slots {
            if slot != placed && self.lowest[slot] < top && self.sections.meet(slot, placed) {
                self.trail.push((slot, self.lowest[slot]));
                self.lowest[slot] = top;
            }
        }
    }

    /// Takes back everything since the trail was `before` long. All of `slots` were open then.
    fn undo(&mut self, before: usize, slots: &[usize]) {
        while self.trail.len() > before
            && let Some((slot, lowest)) = self.trail.pop()
        {
            self.lowest[slot] = lowest;
        }
        for &slot in slots {
            self.open[slot] = true;
        }
    }
}
