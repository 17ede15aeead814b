//! Plans that were tried, and the one that was chosen.

use crate::bytes::{ArenaBytes, TransientBytes};
use crate::device::Scratch;
use crate::plan::{Plan, Tiered};
use crate::program::Program;
use crate::recompute::Strategy;

/// A plan with the program it is for.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The plan.
    pub plan: Plan,
    /// The graphs, built for the chosen micro-batch.
    pub program: Program,
    /// Sequences of one micro-batch.
    pub micro_batch: usize,
    /// Micro-batches of one step.
    pub accumulation: usize,
    /// A lower bound on the time of any schedule of the micro-batches that were tried, in this budget, for these
    /// kernels and costs. `None` if the graph is too large for a planner or the strategy was fixed.
    pub lower_bound_seconds: Option<f64>,
}

impl Choice {
    /// Predicted time of a step.
    pub fn step_seconds(&self) -> f64 {
        self.plan.step_seconds(self.accumulation)
    }
}

/// One combination that was planned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tried {
    /// Sequences of one micro-batch.
    pub micro_batch: usize,
    /// Whether feed-forward networks are worked on in tiles.
    pub tiled: bool,
    /// The recompute strategy.
    pub strategy: Strategy,
    /// How much scratch actions get.
    pub scratch: Scratch,
    /// Size of the arena.
    pub arena_bytes: ArenaBytes,
    /// Predicted time of one step.
    pub step_seconds: f64,
    /// For [`Strategy::Auto`], the transient budget given to the optimum.
    pub rung: Option<TransientBytes>,
    /// Bytes that wait on another tier.
    pub tiered: Tiered,
}

/// The fastest that fits.
pub(super) fn fastest(tried: &[Tried], budget: ArenaBytes) -> Option<&Tried> {
    let fits = tried.iter().filter(|t| t.arena_bytes <= budget);
    fits.min_by(|a, b| a.step_seconds.total_cmp(&b.step_seconds))
}

/// The smallest plan among those that fit and are at most `slack` slower than the fastest that fits.
pub(super) fn select(tried: &[Tried], budget: ArenaBytes, slack: f64) -> Option<Tried> {
    let fits: Vec<Tried> = tried.iter().copied().filter(|t| t.arena_bytes <= budget).collect();
    let fastest = fits.iter().map(|t| t.step_seconds).min_by(f64::total_cmp)?;
    let near = fits.into_iter().filter(|t| t.step_seconds <= fastest * (1.0 + slack));
    near.min_by_key(|t| (t.arena_bytes, t.scratch))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(micro_batch: usize, arena: u64, step_seconds: f64) -> Tried {
        let (arena_bytes, strategy, scratch, tiered) =
            (ArenaBytes(arena), Strategy::None, Scratch::Best, Tiered::default());
        Tried { micro_batch, tiled: false, strategy, scratch, arena_bytes, step_seconds, rung: None, tiered }
    }

    #[test]
    fn the_fastest_that_fits_is_taken() {
        let all = [tried(4, 400, 1.0), tried(2, 200, 1.5), tried(1, 100, 2.0)];
        assert_eq!(select(&all, ArenaBytes(250), 0.0), Some(all[1]));
        assert_eq!(select(&all, ArenaBytes(50), 0.0), None);
    }

    #[test]
    fn within_the_slack_the_smallest_is_taken() {
        let all = [tried(4, 400, 1.0), tried(2, 200, 1.005), tried(1, 100, 2.0)];
        assert_eq!(select(&all, ArenaBytes(1000), 0.01), Some(all[1]));
    }
}
