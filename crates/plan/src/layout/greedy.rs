//! Layouts in one pass: near-linear ones that suit training, then classic greedy placement.
//!
//! ```text
//! in time order              tiers                          greedy by size
//!                            ▓▓  ▓▓  ▓▓   short, on top         ▓▓▓
//!     ▓▓▓▓▓▓▓▓               ▓▓▓▓▓▓▓▓▓▓                       ▓▓▓▓▓▓▓▓
//!   ▓▓▓▓▓▓▓▓▓▓▓▓             ▓▓▓▓▓▓▓▓▓▓▓▓ long, below       ▓▓▓▓▓▓▓▓▓▓▓▓  largest first
//! ```
//!
//! `in_time_order` is exact where lifetimes nest like brackets. `tiers` puts long lifetimes at the bottom and short
//! ones on top of them, which is the shape of training. Greedy placement by size and by duration is that of Pisarchyk
//! and Lee ("Efficient Memory Management for Deep Neural Net Inference", 2020) and of XLA, except that a slot takes the
//! lowest gap, not the tightest.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::range_max::RangeMax;
use super::slot::Slot;

/// Above this many slots the quadratic members of the portfolio are left out.
const QUADRATIC_LIMIT: usize = 4000;

/// The key by which greedy placement sorts, from the duration and the bytes of a slot.
type Key = fn(u64, u64) -> (u128, u64);

const KEYS: [Key; 3] = [
    |duration, bytes| (duration.into(), bytes),
    |duration, bytes| (bytes.into(), duration),
    |duration, bytes| (u128::from(bytes) * u128::from(duration), 0),
];

/// Layouts of the portfolio, the quick ones first. Each is made only when it is needed.
pub(super) fn portfolio(slots: &[Slot]) -> impl Iterator<Item = Vec<u64>> {
    let longest = slots.iter().map(|slot| slot.end - slot.start).max().unwrap_or(0);
    let quick = std::iter::once_with(|| in_time_order(slots))
        .chain([2, 4, 8, 16, 64].into_iter().map(move |divisor| tiers(slots, longest / divisor)));
    let keys = if slots.len() <= QUADRATIC_LIMIT { &KEYS[..] } else { &[] };
    quick.chain(keys.iter().map(|&key| greedy(slots, key)))
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
    let ceiling = RangeMax::new(&ceilings(slots, &long, &offsets));
    let mut order = rest;
    order.sort_by_key(|&i| (slots[i].start, Reverse(slots[i].end), i));
    let mut live = Live::default();
    for index in order {
        offsets[index] = live.place(slots[index], ceiling.of(slots[index].start, slots[index].end));
    }
    offsets
}

/// Bytes that no slot holds at the moment up to which all are placed. Neighbours merge, so there are far fewer gaps than
/// slots, and a place is found without a look at every slot.
struct Live {
    /// The end of each gap, by its begin. No two touch, and the last has no end.
    gaps: BTreeMap<u64, u64>,
    /// Slots by their ends: the first to end first, with its bytes.
    ends: BinaryHeap<Reverse<(usize, u64, u64)>>,
}

impl Default for Live {
    fn default() -> Live {
        Live { gaps: BTreeMap::from([(0, u64::MAX)]), ends: BinaryHeap::new() }
    }
}

impl Live {
    /// Gives a slot, which begins no earlier than those before it, the lowest offset from `floor` on.
    fn place(&mut self, slot: Slot, floor: u64) -> u64 {
        while let Some(&Reverse((end, from, to))) = self.ends.peek()
            && end <= slot.start
        {
            self.give(from, to);
            self.ends.pop();
        }
        let around = self.gaps.range(..=floor).next_back().map_or(floor, |(&from, _)| from);
        let mut gaps = self.gaps.range(around..).map(|(&from, &to)| (from, to, from.max(floor)));
        let found = gaps.find(|&(_, to, at)| at.saturating_add(slot.bytes) <= to);
        let Some((from, to, offset)) = found else { return floor };
        let end = offset + slot.bytes;
        self.gaps.remove(&from);
        self.gaps.extend([(from, offset), (end, to)].into_iter().filter(|(from, to)| from < to));
        self.ends.push(Reverse((slot.end, offset, end)));
        offset
    }

    /// Frees the bytes of a slot.
    fn give(&mut self, mut from: u64, mut to: u64) {
        if from == to {
            return;
        }
        if let Some((&before, _)) = self.gaps.range(..from).next_back().filter(|&(_, &end)| end == from) {
            from = before;
        }
        if let Some(end) = self.gaps.remove(&to) {
            to = end;
        }
        self.gaps.insert(from, to);
    }
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

/// The first undecided action at or after `at`. The path to it is shortened for later calls.
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

/// A slot that has its place.
struct Placed {
    offset: u64,
    top: u64,
    start: usize,
    end: usize,
}

/// Places slots in falling order of `key`, each in the lowest gap among those it meets.
fn greedy(slots: &[Slot], key: Key) -> Vec<u64> {
    let mut order: Vec<usize> = (0..slots.len()).collect();
    // Ties are broken by index, so that the same input always gives the same plan.
    let key = |slot: &Slot| key((slot.end - slot.start) as u64, slot.bytes);
    order.sort_by_key(|&i| (Reverse(key(&slots[i])), i));
    let mut offsets = vec![0; slots.len()];
    let mut placed: Vec<Placed> = Vec::with_capacity(slots.len());
    for index in order {
        offsets[index] = place(&mut placed, slots[index]);
    }
    offsets
}

/// Gives a slot the lowest offset where it fits between those it meets, and adds it to `placed`, which lies by offset:
/// gaps are met from low to high without sorting.
fn place(placed: &mut Vec<Placed>, slot: Slot) -> u64 {
    let Slot { start, end, bytes } = slot;
    let mut offset = 0;
    for other in placed.iter().filter(|other| other.start < end && start < other.end) {
        if offset + bytes <= other.offset {
            break;
        }
        offset = offset.max(other.top);
    }
    let at = placed.partition_point(|other| other.offset <= offset);
    placed.insert(at, Placed { offset, top: offset + bytes, start, end });
    offset
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{overlap, peak};
    use super::super::slot::bound;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lifetimes_that_nest_are_placed_exactly_without_search() {
        // Brackets: 400 levels, opened one after the other and closed in the opposite order.
        let slots: Vec<Slot> =
            (0..400).map(|i| Slot { start: i, end: 1000 - i, bytes: 1 + (i as u64 * 7) % 13 }).collect();
        let offsets = in_time_order(&slots);
        assert_eq!(peak(&slots, &offsets), bound(&slots));
    }

    /// The lowest offset from `floor` on, by a look at every slot that was placed and is alive.
    fn slow_place(placed: &[(Slot, u64)], slot: Slot, floor: u64) -> u64 {
        let alive = placed.iter().filter(|(other, _)| other.end > slot.start && other.bytes > 0);
        let mut alive: Vec<(u64, u64)> = alive.map(|&(other, at)| (at, at + other.bytes)).collect();
        alive.sort_unstable();
        let mut offset = floor;
        for (from, to) in alive {
            if to > offset && offset + slot.bytes > from {
                offset = to;
            }
        }
        offset
    }

    proptest! {
        #[test]
        fn gaps_between_live_slots_give_the_offsets_that_a_look_at_every_slot_gives(
            raw in prop::collection::vec((0usize..6, 1usize..30, 1u64..50, 0u64..120), 1..80),
        ) {
            let (mut live, mut placed, mut start) = (Live::default(), Vec::new(), 0);
            for (later, len, bytes, floor) in raw {
                start += later;
                let slot = Slot { start, end: start + len, bytes };
                let expected = slow_place(&placed, slot, floor);
                prop_assert_eq!(live.place(slot, floor), expected);
                placed.push((slot, expected));
            }
        }

        #[test]
        fn no_member_of_the_portfolio_lets_live_slots_overlap(
            raw in prop::collection::vec((0usize..60, 1usize..30, 1u64..50), 1..60),
            short in 0usize..30,
        ) {
            let slots: Vec<Slot> =
                raw.iter().map(|&(start, len, bytes)| Slot { start, end: start + len, bytes }).collect();
            for offsets in portfolio(&slots).chain([tiers(&slots, short)]) {
                prop_assert_eq!(overlap(&slots, &offsets), None);
                prop_assert!(peak(&slots, &offsets) >= bound(&slots));
            }
        }
    }
}
