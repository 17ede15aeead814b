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
//! Three stages, each for the cases the one before leaves open. All stop at the liveness bound, which no
//! layout can beat:
//!
//! 1. [`greedy`]: a portfolio of one-pass layouts. Training schedules rarely need more.
//! 2. [`local_search`]: another order of placement.
//! 3. [`exact`]: a complete search for a layout at the bound, then at capacities between the bound and the best layout
//!    known. It works in rounds: the first spends few operations on each preference and capacity, and each further
//!    round twice as many.
//!
//! More effort never gives a larger peak: it runs the same sequence of attempts for longer and keeps the
//! best. Effort is counted in operations, never read from a clock. Absent: alignment (sizes are
//! rounded up before they come here) and choices that change lifetimes.

mod csv;
mod exact;
mod exchanges;
mod greedy;
mod liveness;
mod local_search;
#[cfg(test)]
mod oracle;
mod preference;
mod range_max;
mod sections;
mod slot;

pub(crate) use exchanges::{ExchangeClock, ExchangeRun, compute_seconds, live_in_runs, order_seconds};
pub(crate) use liveness::{Gradients, Lifetimes, slots_of};
pub(crate) use slot::live_bytes;

pub use csv::{CsvError, CsvFault, Table};
pub use slot::Slot;

use exact::Outcome;
use sections::Sections;
use slot::bound;

/// Above this many slots in one part, greedy layouts must do.
const SEARCH_LIMIT: usize = 4000;

/// Operations spent on local search.
const LOCAL_OPERATIONS: u64 = 4_000_000;

/// Operations for each preference and capacity in the first round of the exact search.
const FIRST_ROUND: u64 = 1_000_000;

/// Capacities below the best peak that a round tries after the bound.
const BISECTIONS: u32 = 4;

/// Offsets of slots, and the bytes they span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// One offset per slot, in the order given.
    pub offsets: Vec<u64>,
    /// The highest byte end.
    pub peak: u64,
    /// The largest sum of bytes alive at one time: no layout is smaller.
    pub bound: u64,
    /// A lower bound on the bytes of any layout: `bound`, or more where a complete search has shown it.
    pub proven: u64,
}

impl Layout {
    /// Whether it is proven that no layout is smaller.
    pub fn is_optimal(&self) -> bool {
        self.peak == self.proven
    }
}

/// How long to search once greedy layouts have missed the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Effort {
    /// Operations for each part of the slots that shares no time with the others. About a thousand take
    /// a microsecond.
    pub operations: u64,
}

impl Effort {
    /// Greedy layouts alone.
    pub const NONE: Effort = Effort { operations: 0 };
    /// For one of the many plans that a search examines: a few milliseconds.
    pub(crate) const TRIAL: Effort = Effort { operations: 6_000_000 };
    /// For a plan, of which a search makes many: a few tens of milliseconds.
    pub const PLAN: Effort = Effort { operations: 30_000_000 };
    /// For a question of its own: ten or twenty seconds at most, where nothing can be proven.
    pub const THOROUGH: Effort = Effort { operations: 6_000_000_000 };
}

/// A layout for a plan. The same slots always give the same offsets.
pub fn layout(slots: &[Slot]) -> Layout {
    solve(slots, None, Effort::PLAN)
}

/// Whether `effort` finds a layout of at most `room` bytes, and an upper bound on its size. The search is the one for
/// the smallest layout; it ends as soon as the answer is known. If quick layouts miss `room` by more than the factor
/// `hope`, no search is made.
pub(crate) fn fits(slots: &[Slot], room: u64, hope: f64, effort: Effort) -> Option<u64> {
    let dense = sections::with_dense_times(slots);
    let bound = bound(&dense);
    if bound > room {
        return None;
    }
    let offsets = best_of_portfolio(&dense, room);
    let peak = peak_of(slots, &offsets);
    if peak <= room || peak as f64 > room as f64 * hope {
        return (peak <= room).then_some(peak);
    }
    let fitted = |part: &Sections| {
        let mut attempt = Attempt::new(part, &offsets, bound, effort);
        attempt.enough = Some(room);
        attempt.run(true);
        (attempt.peak <= room).then_some(attempt.peak)
    };
    Sections::new(slots).parts().iter().map(fitted).try_fold(bound, |most, peak| Some(most.max(peak?)))
}

/// The smallest layout that `effort` finds; with a `capacity`, the first that fits into it.
pub fn solve(slots: &[Slot], capacity: Option<u64>, effort: Effort) -> Layout {
    let dense = sections::with_dense_times(slots);
    let bound = bound(&dense);
    let goal = bound.max(capacity.unwrap_or(0));
    let mut offsets = best_of_portfolio(&dense, goal);
    let mut proven = bound;
    if peak_of(slots, &offsets) > goal && effort > Effort::NONE {
        for part in Sections::new(slots).parts() {
            let mut attempt = Attempt::new(&part, &offsets, goal, effort);
            attempt.run(capacity.is_none());
            proven = proven.max(attempt.proven);
            for (&origin, offset) in part.origin.iter().zip(attempt.offsets) {
                offsets[origin] = offset;
            }
        }
    }
    let peak = peak_of(slots, &offsets);
    Layout { offsets, peak, bound, proven }
}

fn best_of_portfolio(slots: &[Slot], goal: u64) -> Vec<u64> {
    let mut best: Option<(u64, Vec<u64>)> = None;
    for offsets in greedy::portfolio(slots) {
        let peak = peak_of(slots, &offsets);
        if best.as_ref().is_none_or(|(least, _)| peak < *least) {
            best = Some((peak, offsets));
        }
        if peak <= goal {
            break;
        }
    }
    best.map_or(Vec::new(), |(_, offsets)| offsets)
}

fn peak_of(slots: &[Slot], offsets: &[u64]) -> u64 {
    slots.iter().zip(offsets).map(|(slot, offset)| offset + slot.bytes).max().unwrap_or(0)
}

/// The search for a better layout of one part.
struct Attempt<'a> {
    part: &'a Sections,
    /// The best layout so far.
    offsets: Vec<u64>,
    peak: u64,
    /// The peak that is aimed at.
    goal: u64,
    /// The size that is enough, if the only question is whether a layout of that size exists.
    enough: Option<u64>,
    /// A proven lower bound on the size of any layout of this part.
    proven: u64,
    /// Bytes alive at the fullest moment of each slot.
    fullest: Vec<u64>,
    /// Every possible peak is a multiple of this number of bytes.
    grain: u64,
    operations: u64,
}

impl<'a> Attempt<'a> {
    fn new(part: &'a Sections, offsets: &[u64], goal: u64, effort: Effort) -> Attempt<'a> {
        let offsets: Vec<u64> = part.origin.iter().map(|&origin| offsets[origin]).collect();
        let grain = part.bytes.iter().copied().fold(0, gcd).max(1);
        let fullest = part.fullest();
        let proven = fullest.iter().copied().max().unwrap_or(0);
        let operations = effort.operations;
        let mut attempt =
            Attempt { part, offsets, peak: 0, goal, enough: None, proven, fullest, grain, operations };
        attempt.peak = attempt.peak_of(&attempt.offsets);
        attempt
    }

    fn peak_of(&self, offsets: &[u64]) -> u64 {
        offsets.iter().zip(&self.part.bytes).map(|(offset, bytes)| offset + bytes).max().unwrap_or(0)
    }

    fn run(&mut self, smallest: bool) {
        if self.is_done() || self.part.len() > SEARCH_LIMIT {
            return;
        }
        let (local, goal) = (self.operations.min(LOCAL_OPERATIONS), self.enough.unwrap_or(self.goal));
        self.operations -= local;
        self.keep(local_search::improve(self.part, &self.offsets, goal, local));
        for round in 0.. {
            if self.is_done() {
                return;
            }
            self.try_capacity(self.goal, round);
            if smallest {
                self.bisect(round);
            } else if self.proven > self.goal {
                return;
            }
        }
    }

    fn is_done(&self) -> bool {
        let answered = self.enough.is_some_and(|enough| self.peak <= enough || self.proven > enough);
        answered || self.peak <= self.goal.max(self.proven) || self.operations == 0
    }

    fn keep(&mut self, offsets: Vec<u64>) {
        let peak = self.peak_of(&offsets);
        if peak < self.peak {
            (self.peak, self.offsets) = (peak, offsets);
        }
    }

    /// Tries capacities between the goal and the best peak. A capacity at which a round found nothing is
    /// tried again in the next.
    fn bisect(&mut self, round: u32) {
        let mut missed = self.goal / self.grain * self.grain;
        for _ in 0..BISECTIONS {
            if self.is_done() {
                return;
            }
            missed = missed.max(self.proven.saturating_sub(self.grain));
            let steps = (self.peak - missed) / self.grain;
            if steps < 2 {
                return;
            }
            let capacity = missed + steps / 2 * self.grain;
            if self.try_capacity(capacity, round) != Outcome::Found {
                missed = capacity;
            }
        }
    }

    /// Searches at one capacity with each preference in turn, and records the results.
    fn try_capacity(&mut self, capacity: u64, round: u32) -> Outcome {
        if capacity < self.proven {
            return Outcome::Impossible;
        }
        for preference in 0..preference::PREFERENCES {
            let ranks = preference::ranks(self.part, &self.fullest, preference, round);
            let lent = self.operations.min(FIRST_ROUND << round.min(30));
            let mut left = lent;
            let (outcome, offsets) = exact::search(self.part, capacity, &ranks, &mut left);
            self.operations -= lent - left;
            match outcome {
                Outcome::Found => self.keep(offsets),
                Outcome::Impossible => self.proven = (capacity / self.grain + 1) * self.grain,
                Outcome::Unfinished => continue,
            }
            return outcome;
        }
        Outcome::Unfinished
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::oracle::{Cuts, joined_packing, overlap, perfect_packing, smallest_peak};
    use super::*;
    use proptest::prelude::*;

    const SOME: Effort = Effort { operations: 200_000_000 };

    fn slot(start: usize, end: usize, bytes: u64) -> Slot {
        Slot { start, end, bytes }
    }

    fn slots(raw: &[(usize, usize, u64)]) -> Vec<Slot> {
        raw.iter().map(|&(start, len, bytes)| slot(start, start + len, bytes)).collect()
    }

    #[test]
    fn bytes_are_reused_after_death() {
        let slots = [slot(0, 2, 4), slot(0, 4, 4), slot(4, 6, 4)];
        let layout = layout(&slots);
        assert_eq!((layout.peak, layout.bound, layout.proven), (8, 8, 8));
        assert_eq!(overlap(&slots, &layout.offsets), None);
    }

    #[test]
    fn nothing_needs_no_bytes() {
        let nothing = Layout { offsets: Vec::new(), peak: 0, bound: 0, proven: 0 };
        assert_eq!(layout(&[]), nothing);
        assert_eq!(layout(&[slot(0, 5, 0)]), Layout { offsets: vec![0], ..nothing });
    }

    #[test]
    fn where_no_layout_meets_the_bound_the_peak_is_that_of_trying_every_order() {
        let mut missed = 0;
        for slots in (0..600).map(|seed| joined_packing(seed, 24, 12, 5)).filter(|slots| slots.len() <= 10) {
            let layout = solve(&slots, None, SOME);
            assert_eq!(overlap(&slots, &layout.offsets), None);
            assert!(layout.is_optimal() && layout.bound == 5, "{slots:?}");
            if layout.peak > layout.bound {
                assert_eq!(layout.peak, smallest_peak(&slots), "{slots:?}");
                missed += 1;
            }
        }
        assert!(missed >= 3, "only {missed} instances were of the kind this test is for");
    }

    #[test]
    fn perfect_packings_are_found_again() {
        for (cuts, pieces, seeds) in [(Cuts::Guillotine, 150, 10), (Cuts::Pinwheel, 60, 20)] {
            for seed in 0..seeds {
                let slots = perfect_packing(seed, cuts, pieces, 1000, 1 << 20);
                let layout = solve(&slots, None, SOME);
                assert_eq!(overlap(&slots, &layout.offsets), None);
                assert_eq!(layout.bound, 1 << 20);
                assert!(layout.peak == layout.bound, "{cuts:?} {seed}: {}", layout.peak);
            }
        }
    }

    #[test]
    fn a_capacity_ends_the_search_where_a_layout_fits() {
        let slots = perfect_packing(3, Cuts::Pinwheel, 60, 1000, 1 << 20);
        let greedy = solve(&slots, None, Effort::NONE);
        let roomy = greedy.bound + greedy.bound / 50;
        assert!(greedy.peak > roomy, "the instance is too easy for this test");
        let layout = solve(&slots, Some(roomy), SOME);
        assert!(layout.peak <= roomy);
        assert_eq!(overlap(&slots, &layout.offsets), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn with_enough_effort_the_peak_is_that_of_trying_every_order(
            raw in prop::collection::vec((0usize..8, 1usize..5, 1u64..8), 1..7),
        ) {
            let slots = slots(&raw);
            let layout = solve(&slots, None, SOME);
            prop_assert_eq!(overlap(&slots, &layout.offsets), None);
            prop_assert_eq!(layout.peak, smallest_peak(&slots));
            prop_assert!(layout.is_optimal());
        }

        #[test]
        fn more_effort_never_gives_a_larger_peak(
            seed in 0u64..1000,
            pieces in 20usize..60,
            mut efforts in prop::collection::vec(0u64..12_000_000, 3),
        ) {
            let slots = perfect_packing(seed, Cuts::Pinwheel, pieces, 200, 1000);
            efforts.sort_unstable();
            let peaks: Vec<u64> = efforts
                .iter()
                .map(|&operations| {
                    let layout = solve(&slots, None, Effort { operations });
                    assert_eq!(overlap(&slots, &layout.offsets), None);
                    assert!(layout.peak >= layout.bound && (!layout.is_optimal() || layout.peak == 1000));
                    layout.peak
                })
                .collect();
            prop_assert!(peaks.is_sorted_by(|less, more| less >= more), "{:?}", peaks);
        }

        #[test]
        fn what_fits_is_what_the_search_for_the_smallest_makes_fit(
            seed in 0u64..1000,
            pieces in 20usize..60,
            operations in 0u64..6_000_000,
        ) {
            let slots = perfect_packing(seed, Cuts::Pinwheel, pieces, 200, 1000);
            let effort = Effort { operations };
            let smallest = solve(&slots, None, effort).peak;
            for room in [999, smallest - 1, smallest, smallest + 20] {
                let found = fits(&slots, room, f64::INFINITY, effort);
                prop_assert_eq!(found.is_some(), smallest <= room, "{} bytes in {}", smallest, room);
                prop_assert!(found.is_none_or(|peak| (smallest..=room).contains(&peak)));
            }
        }

        #[test]
        fn the_same_slots_give_the_same_offsets_and_large_times_change_nothing(
            raw in prop::collection::vec((0usize..60, 1usize..30, 1u64..50), 1..40),
        ) {
            let slots = slots(&raw);
            let effort = Effort { operations: 5_000_000 };
            let layout = solve(&slots, None, effort);
            prop_assert_eq!(&layout, &solve(&slots, None, effort));
            let later = |slot: &Slot| Slot {
                start: slot.start * 1_000_000_007 + 5,
                end: slot.end * 1_000_000_007 + 5,
                bytes: slot.bytes,
            };
            let late: Vec<Slot> = slots.iter().map(later).collect();
            prop_assert_eq!(&layout, &solve(&late, None, effort));
        }
    }
}
