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
//! Three stages, each for what the one before leaves, and all of them stop at the liveness bound, which no
//! layout can beat:
//!
//! 1. [`greedy`]: a portfolio of one-pass layouts. Training schedules rarely need more.
//! 2. [`local_search`]: another order of placement.
//! 3. [`exact`]: a complete search for a layout at the bound, then at capacities between the bound and the
//!    best layout known. It works in rounds: few operations for each preference and capacity in the first,
//!    twice as many in each that follows.
//!
//! More effort never gives a larger peak: it runs the same sequence of attempts for longer and keeps the
//! best. Effort is counted in operations, never read from a clock. Absent: alignment (sizes are
//! rounded up before they come here) and choices that change lifetimes.

mod csv;
mod exact;
mod greedy;
#[cfg(test)]
mod instances;
mod local_search;
mod preference;
mod sections;

use crate::liveness::{Slot, bound};

pub use csv::{CsvError, Table};

use exact::Outcome;
use sections::Sections;

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
    /// Whether it is proven that no layout is smaller: because the peak is the bound, or because a
    /// search that found nothing smaller was complete.
    pub optimal: bool,
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
    /// For a plan, of which a search makes many: some hundredths of a second.
    pub const PLAN: Effort = Effort { operations: 30_000_000 };
    /// For a question of its own: some tens of seconds.
    pub const THOROUGH: Effort = Effort { operations: 10_000_000_000 };
}

/// A layout for a plan. The same slots always give the same offsets.
pub fn layout(slots: &[Slot]) -> Layout {
    solve(slots, None, Effort::PLAN)
}

/// The smallest layout that `effort` finds; with a `capacity`, the first that fits into it.
pub fn solve(slots: &[Slot], capacity: Option<u64>, effort: Effort) -> Layout {
    let bound = bound(slots);
    let goal = bound.max(capacity.unwrap_or(0));
    let mut offsets = best_of_portfolio(slots, goal);
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
    Layout { offsets, peak, bound, optimal: peak == proven }
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
    /// Good enough.
    goal: u64,
    /// No layout of this part is smaller than this and also smaller than the goal.
    proven: u64,
    /// Every peak that can occur is a multiple of this.
    grain: u64,
    operations: u64,
}

impl<'a> Attempt<'a> {
    fn new(part: &'a Sections, offsets: &[u64], goal: u64, effort: Effort) -> Attempt<'a> {
        let offsets: Vec<u64> = part.origin.iter().map(|&origin| offsets[origin]).collect();
        let grain = part.bytes.iter().copied().fold(0, gcd).max(1);
        let proven = part.live_bytes().into_iter().max().unwrap_or(0);
        let mut attempt =
            Attempt { part, offsets, peak: 0, goal, proven, grain, operations: effort.operations };
        attempt.peak = attempt.peak_of(&attempt.offsets);
        attempt
    }

    fn peak_of(&self, offsets: &[u64]) -> u64 {
        offsets.iter().zip(&self.part.bytes).map(|(offset, bytes)| offset + bytes).max().unwrap_or(0)
    }

    fn run(&mut self, smallest: bool) {
        if self.peak <= self.goal || self.part.len() > SEARCH_LIMIT {
            return;
        }
        let local = self.operations.min(LOCAL_OPERATIONS);
        self.operations -= local;
        self.keep(local_search::improve(self.part, &self.offsets, self.goal, local));
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
        self.peak <= self.goal.max(self.proven) || self.operations == 0
    }

    fn keep(&mut self, offsets: Vec<u64>) {
        let peak = self.peak_of(&offsets);
        if peak < self.peak {
            (self.peak, self.offsets) = (peak, offsets);
        }
    }

    /// Tries capacities between the goal and the best peak. What was merely not found in a round is
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

    /// Searches at one capacity with each preference in turn, and keeps what it learns.
    fn try_capacity(&mut self, capacity: u64, round: u32) -> Outcome {
        if capacity < self.proven {
            return Outcome::Impossible;
        }
        for preference in 0..preference::PREFERENCES {
            let ranks = preference::ranks(self.part, preference, round);
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
