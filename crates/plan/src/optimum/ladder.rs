//! The fixed ladder of budgets: powers of one ratio, the same for every request.
//!
//! Plans are made at the rungs of a ladder and not at the stated budget. A rung that fits a budget also fits every larger
//! one, so the plans that a budget may choose from are among those of every larger budget, and more memory is never
//! slower. The ratio says how fine the ladder is: fine where a rung is a look-up, coarse where it is a search.

/// Budgets at the powers of a ratio.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ladder {
    ratio: f64,
}

impl Ladder {
    /// The ladder whose neighbouring rungs have this ratio, which is above 1.
    pub(crate) const fn new(ratio: f64) -> Ladder {
        Ladder { ratio }
    }

    /// The highest budget to try if `room` bytes are available: one rung above, because a plan can take a little less
    /// than it was allowed.
    pub(crate) fn above(self, room: u64) -> u64 {
        (room as f64 * self.ratio) as u64
    }

    /// The rungs that are not above `top`, falling to one byte.
    pub(crate) fn falling(self, top: u64) -> impl Iterator<Item = u64> {
        let highest = self.index(top).floor() as i32 + 1;
        let rungs = (0..=highest).rev().map(move |index| self.ratio.powi(index));
        // A rung beyond the largest integer would be rounded down to that integer.
        let exact = rungs.filter(|&rung| rung < u64::MAX as f64).map(|rung| rung as u64);
        exact.filter(move |&rung| rung <= top)
    }

    /// The budgets to try, falling, where `room` bytes are available and more than `most` are of no use: `most` itself
    /// first if it is in reach, then rungs.
    pub(crate) fn within(self, room: u64, most: u64) -> impl Iterator<Item = u64> {
        let highest = self.above(room);
        let whole = (highest >= most).then_some(most);
        let rungs = self.falling(highest.min(most)).filter(move |&rung| rung < most);
        whole.into_iter().chain(rungs)
    }

    /// The rung `count` rungs below the lowest that is not below `bytes`.
    pub(crate) fn below(self, bytes: u64, count: i32) -> u64 {
        self.ratio.powi(self.index(bytes).ceil() as i32 - count) as u64
    }

    fn index(self, bytes: u64) -> f64 {
        (bytes.max(1) as f64).ln() / self.ratio.ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINE: Ladder = Ladder::new(1.005);

    #[test]
    fn a_larger_budget_sees_all_rungs_of_a_smaller_one() {
        let small: Vec<u64> = FINE.within(1_000_000, u64::MAX).collect();
        let large: Vec<u64> = FINE.within(1_500_000, u64::MAX).collect();
        assert!(small.iter().all(|rung| large.contains(rung)));
        let top = small[0] as f64;
        assert!(top <= 1_005_000.0 && top > 1_000_000.0 - 2.0, "begins just above the budget: {top}");
    }

    #[test]
    fn rungs_fall_and_begin_with_what_is_of_use() {
        let rungs: Vec<u64> = FINE.within(1_000_000, 900_000).collect();
        assert_eq!(rungs[0], 900_000);
        assert!(rungs.is_sorted_by(|high, low| high >= low) && rungs[1] < 900_000);
        assert_eq!(rungs.last(), Some(&1));
        assert!(Ladder::new(1.1).falling(u64::MAX).all(|rung| rung < u64::MAX));
    }

    #[test]
    fn rungs_below_a_size_are_counted_from_the_one_above_it() {
        let ladder = Ladder::new(2.0);
        assert_eq!((ladder.below(1000, 0), ladder.below(1000, 2)), (1024, 256));
        assert_eq!((ladder.below(1024, 0), ladder.below(3, 9)), (1024, 0));
    }
}
