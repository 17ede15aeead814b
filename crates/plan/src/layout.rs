//! Assigns every slot a byte offset inside one arena.
//!
//! Two slots may share bytes exactly when their lifetimes do not overlap:
//!
//! ```text
//! offset 4 |        s1        |        |
//! offset 0 |   s0    |        |   s2   |     s2 reuses the bytes of s0
//!          0         2        4        6     time (index into the schedule)
//! ```
//!
//! A portfolio is tried in order and stops as soon as one meets the liveness bound, which no layout can
//! beat. First the near-linear ones: `in_time_order` is exact where lifetimes nest like brackets, and
//! `tiers` puts long lifetimes below and short ones on top of them, which is what training looks like.
//! Then, for schedules of moderate size, greedy placement by duration, size and area. Exact search is
//! deliberately absent: on training schedules the portfolio meets the bound or comes within a few
//! percent of it (the plan reports both).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::liveness::{Slot, bound};

/// Above this many slots the quadratic members of the portfolio are left out.
const QUADRATIC_LIMIT: usize = 4000;

/// Offsets of slots, and the bytes they span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// One offset per slot, in the order given.
    pub offsets: Vec<u64>,
    /// The highest byte end.
    pub peak: u64,
    /// The largest sum of bytes alive at one time: no layout is smaller.
    pub bound: u64,
}

/// The best layout of the portfolio. The same slots always give the same offsets.
pub fn layout(slots: &[Slot]) -> Layout {
    let bound = bound(slots);
    let longest = slots.iter().map(|slot| slot.end - slot.start).max().unwrap_or(0);
    let mut best: Option<Layout> = None;
    let mut consider = |offsets: Vec<u64>| {
        let peak = peak(slots, &offsets);
        if best.as_ref().is_none_or(|b| peak < b.peak) {
            best = Some(Layout { offsets, peak, bound });
        }
        peak == bound
    };
    let linear = consider(in_time_order(slots))
        || [2, 4, 8, 16, 64].iter().any(|divisor| consider(tiers(slots, longest / divisor)));
    if !linear && slots.len() <= QUADRATIC_LIMIT {
        let duration = |slot: &Slot| (slot.end - slot.start) as u64;
        let _ = consider(greedy(slots, |slot| (duration(slot), slot.bytes)))
            || consider(greedy(slots, |slot| (slot.bytes, duration(slot))))
            || consider(greedy(slots, |slot| (slot.bytes * duration(slot), 0)));
    }
    best.unwrap_or(Layout { offsets: Vec::new(), peak: 0, bound })
}

fn peak(slots: &[Slot], offsets: &[u64]) -> u64 {
    slots.iter().zip(offsets).map(|(slot, offset)| offset + slot.bytes).max().unwrap_or(0)
}

/// Places slots as they begin, each in the lowest gap that holds it.
fn in_time_order(slots: &[Slot]) -> Vec<u64> {
    let mut offsets = vec![0; slots.len()];
    let mut gaps = Gaps::default();
    sweep(slots, |event| match event {
        Event::Begin(index) => offsets[index] = gaps.take(slots[index].bytes),
        Event::End(index) => gaps.give(offsets[index], slots[index].bytes),
    });
    offsets
}

enum Event {
    Begin(usize),
    End(usize),
}

/// Visits beginnings and ends in time order: ends first, since lifetimes are half-open; among those that
/// begin together the longest first, so that brackets nest.
fn sweep(slots: &[Slot], mut visit: impl FnMut(Event)) {
    let mut begins: Vec<usize> = (0..slots.len()).collect();
    begins.sort_by_key(|&i| (slots[i].start, Reverse(slots[i].end), i));
    let mut ends: Vec<usize> = (0..slots.len()).collect();
    ends.sort_by_key(|&i| (slots[i].end, i));
    let mut ended = ends.into_iter().peekable();
    for index in begins {
        while let Some(&end) = ended.peek()
            && slots[end].end <= slots[index].start
        {
            visit(Event::End(end));
            ended.next();
        }
        visit(Event::Begin(index));
    }
}

/// Free ranges below the top.
#[derive(Default)]
struct Gaps {
    /// Length of each free range, by its offset. No two touch.
    free: BTreeMap<u64, u64>,
    top: u64,
}

impl Gaps {
    fn take(&mut self, bytes: u64) -> u64 {
        let fit = self.free.iter().find(|&(_, &len)| len >= bytes).map(|(&at, &len)| (at, len));
        if let Some((at, len)) = fit {
            self.free.remove(&at);
            if len > bytes {
                self.free.insert(at + bytes, len - bytes);
            }
            return at;
        }
        self.top += bytes;
        self.top - bytes
    }

    fn give(&mut self, mut at: u64, mut bytes: u64) {
        if let Some((&before, &len)) = self.free.range(..at).next_back()
            && before + len == at
        {
            self.free.remove(&before);
            (at, bytes) = (before, len + bytes);
        }
        if let Some(len) = self.free.remove(&(at + bytes)) {
            bytes += len;
        }
        if at + bytes == self.top {
            self.top = at;
        } else {
            self.free.insert(at, bytes);
        }
    }
}

/// Long lifetimes first, in time order from the bottom; then short ones, each above the long ones it
/// meets.
fn tiers(slots: &[Slot], short: usize) -> Vec<u64> {
    let is_long = |index: &usize| slots[*index].end - slots[*index].start > short;
    let (long, rest): (Vec<usize>, Vec<usize>) = (0..slots.len()).partition(is_long);
    let mut offsets = vec![0; slots.len()];
    let long_slots: Vec<Slot> = long.iter().map(|&index| slots[index]).collect();
    for (&index, offset) in long.iter().zip(in_time_order(&long_slots)) {
        offsets[index] = offset;
    }
    let ceiling = ceilings(slots, &long, &offsets);
    let mut order = rest;
    order.sort_by_key(|&i| (slots[i].start, Reverse(slots[i].end), i));
    let mut live: Vec<usize> = Vec::new();
    for index in order {
        let slot = slots[index];
        live.retain(|&other| slots[other].end > slot.start);
        let floor = ceiling[slot.start..slot.end].iter().copied().max().unwrap_or(0);
        let busy = live.iter().map(|&other| (offsets[other], offsets[other] + slots[other].bytes));
        offsets[index] = lowest_gap(busy.collect(), slot.bytes, floor);
        live.push(index);
    }
    offsets
}

/// For each action, the highest byte end among `chosen` slots alive then.
fn ceilings(slots: &[Slot], chosen: &[usize], offsets: &[u64]) -> Vec<u64> {
    let last = slots.iter().map(|slot| slot.end).max().unwrap_or(0);
    let mut ceiling = vec![0; last];
    // The highest ends first: once an action has a ceiling, later slots cannot raise it. Skipping over
    // decided actions keeps the whole loop near-linear.
    let mut order = chosen.to_vec();
    order.sort_by_key(|&i| (Reverse(offsets[i] + slots[i].bytes), i));
    let mut next_open: Vec<usize> = (0..=last).collect();
    for index in order {
        let mut at = open_from(&mut next_open, slots[index].start);
        while at < slots[index].end {
            ceiling[at] = offsets[index] + slots[index].bytes;
            next_open[at] = at + 1;
            at = open_from(&mut next_open, at + 1);
        }
    }
    ceiling
}

/// The first undecided action at or after `at`, with the path to it shortened for the next question.
fn open_from(next_open: &mut [usize], at: usize) -> usize {
    let mut end = at;
    while next_open[end] != end {
        end = next_open[end];
    }
    let mut step = at;
    while next_open[step] != step {
        step = std::mem::replace(&mut next_open[step], end);
    }
    end
}

/// Places slots in falling order of `key`, each in the lowest gap among those it meets.
fn greedy(slots: &[Slot], key: impl Fn(&Slot) -> (u64, u64)) -> Vec<u64> {
    let mut order: Vec<usize> = (0..slots.len()).collect();
    // Ties are broken by index, so that the same input always gives the same plan.
    order.sort_by_key(|&i| (Reverse(key(&slots[i])), i));
    let mut offsets = vec![0; slots.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(slots.len());
    for index in order {
        let meets =
            |&&other: &&usize| slots[other].start < slots[index].end && slots[index].start < slots[other].end;
        let busy =
            placed.iter().filter(meets).map(|&other| (offsets[other], offsets[other] + slots[other].bytes));
        offsets[index] = lowest_gap(busy.collect(), slots[index].bytes, 0);
        placed.push(index);
    }
    offsets
}

/// The lowest offset from `floor` on where `bytes` fit between the busy ranges.
fn lowest_gap(mut busy: Vec<(u64, u64)>, bytes: u64, floor: u64) -> u64 {
    busy.sort_unstable();
    let mut at = floor;
    for (from, to) in busy {
        if at + bytes <= from {
            break;
        }
        at = at.max(to);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slot(start: usize, end: usize, bytes: u64) -> Slot {
        Slot { start, end, bytes }
    }

    fn overlap(slots: &[Slot], offsets: &[u64]) -> Option<(usize, usize)> {
        let pairs = (0..slots.len()).flat_map(|a| (a + 1..slots.len()).map(move |b| (a, b)));
        pairs.into_iter().find(|&(a, b)| {
            let in_time = slots[a].start < slots[b].end && slots[b].start < slots[a].end;
            let in_space =
                offsets[a] < offsets[b] + slots[b].bytes && offsets[b] < offsets[a] + slots[a].bytes;
            in_time && in_space
        })
    }

    #[test]
    fn bytes_are_reused_after_death() {
        let slots = [slot(0, 2, 4), slot(0, 4, 4), slot(4, 6, 4)];
        let layout = layout(&slots);
        assert_eq!((layout.peak, layout.bound), (8, 8));
        assert_eq!(overlap(&slots, &layout.offsets), None);
    }

    #[test]
    fn lifetimes_that_nest_are_placed_exactly_without_search() {
        // Brackets: 400 levels, opened one after the other and closed in the opposite order.
        let slots: Vec<Slot> = (0..400).map(|i| slot(i, 1000 - i, 1 + (i as u64 * 7) % 13)).collect();
        let offsets = in_time_order(&slots);
        assert_eq!(peak(&slots, &offsets), bound(&slots));
    }

    proptest! {
        #[test]
        fn no_member_of_the_portfolio_lets_live_slots_overlap(
            raw in prop::collection::vec((0usize..60, 1usize..30, 1u64..50), 1..60),
            short in 0usize..30,
        ) {
            let slots: Vec<Slot> = raw.iter().map(|&(start, len, bytes)| slot(start, start + len, bytes)).collect();
            let members = [
                in_time_order(&slots),
                tiers(&slots, short),
                greedy(&slots, |slot| (slot.bytes, 0)),
                layout(&slots).offsets,
            ];
            for offsets in members {
                prop_assert_eq!(overlap(&slots, &offsets), None);
                prop_assert!(peak(&slots, &offsets) >= bound(&slots));
            }
        }
    }
}
