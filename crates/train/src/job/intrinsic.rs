//! The smallest random subspace that reaches a part of full training's gain: which dimension to try next.
//!
//! ```text
//! 10 → 100 → 1000 reached       ten times as many until one reaches the target
//! 100 … 316 … 1000              then the middle, on a scale of ratios, until the gap is small
//! ```
//!
//! More dimensions are taken to reach at least as much. Runs belong to the caller: this module holds their results, so a
//! search that was interrupted goes on from the results it has.

use std::collections::BTreeMap;

/// The dimension that is tried first.
const FIRST: usize = 10;
/// The search ends when the smallest dimension that reaches the target is at most this many times one that does not.
const PRECISE: f64 = 1.5;

/// Validation losses of runs that differ in the subspace they train.
#[derive(Clone, Debug, PartialEq)]
pub struct IntrinsicCurve {
    /// Loss of the model before training.
    pub start: f64,
    /// Loss after training all weights.
    pub full: f64,
    /// Losses after training in a subspace, by its dimension. A loss that is not finite counts as a miss.
    pub losses: BTreeMap<usize, f64>,
}

/// The step of a search that follows from its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntrinsicStep {
    /// Train in a subspace of this dimension.
    Try(usize),
    /// The smallest dimension that reached the target.
    Found(usize),
    /// No dimension up to the number of parameters reached it.
    NotReached,
}

impl IntrinsicCurve {
    /// The part of full training's gain that a loss stands for.
    pub fn gain(&self, loss: f64) -> f64 {
        (self.start - loss) / (self.start - self.full)
    }

    /// The next step towards the smallest dimension of at most `most` that gains the part `target`.
    pub fn next_step(&self, target: f64, most: usize) -> IntrinsicStep {
        let reaches = |(_, loss): &(&usize, &f64)| self.gain(**loss) >= target;
        let smallest = self.losses.iter().find(reaches).map(|(&dimension, _)| dimension);
        let Some(smallest) = smallest else {
            return match self.losses.last_key_value() {
                None => IntrinsicStep::Try(FIRST.min(most)),
                Some((&last, _)) if last >= most => IntrinsicStep::NotReached,
                Some((&last, _)) => IntrinsicStep::Try(last.saturating_mul(10).min(most)),
            };
        };
        let below = self.losses.range(..smallest).next_back().map_or(0, |(&dimension, _)| dimension);
        if smallest == below + 1 || smallest as f64 <= PRECISE * below as f64 {
            return IntrinsicStep::Found(smallest);
        }
        if below == 0 {
            return IntrinsicStep::Try((smallest / 10).max(1));
        }
        let middle = (below as f64 * smallest as f64).sqrt().round() as usize;
        IntrinsicStep::Try(middle.clamp(below + 1, smallest - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The dimensions that a search tries, and its answer, where `needed` dimensions reach the target.
    fn search(needed: usize, most: usize) -> (Vec<usize>, IntrinsicStep) {
        let mut curve = IntrinsicCurve { start: 2.0, full: 1.0, losses: BTreeMap::new() };
        let mut tried = Vec::new();
        loop {
            match curve.next_step(0.9, most) {
                IntrinsicStep::Try(dimension) => {
                    tried.push(dimension);
                    curve.losses.insert(dimension, if dimension >= needed { 1.05 } else { 1.5 });
                }
                end => return (tried, end),
            }
        }
    }

    #[test]
    fn dimensions_grow_tenfold_and_then_close_in_on_the_smallest_that_reaches_the_target() {
        assert_eq!(search(250, 100_000), (vec![10, 100, 1000, 316, 178, 237], IntrinsicStep::Found(316)));
        assert_eq!(search(1, 100_000), (vec![10, 1], IntrinsicStep::Found(1)));
        assert_eq!(search(2, 100_000).1, IntrinsicStep::Found(2));
        for needed in 1..400 {
            let (tried, end) = search(needed, 5000);
            let IntrinsicStep::Found(found) = end else { unreachable!("{end:?}") };
            assert!(found >= needed && found as f64 <= 1.5 * needed as f64, "{needed}: {found} of {tried:?}");
            assert!(tried.len() <= 9, "{needed}: {tried:?}");
        }
    }

    #[test]
    fn a_target_that_no_dimension_reaches_ends_at_the_number_of_parameters() {
        assert_eq!(search(usize::MAX, 7), (vec![7], IntrinsicStep::NotReached));
        assert_eq!(search(usize::MAX, 250), (vec![10, 100, 250], IntrinsicStep::NotReached));
    }

    #[test]
    fn a_run_whose_loss_is_not_finite_reaches_nothing() {
        let losses = BTreeMap::from([(10, f64::NAN)]);
        let curve = IntrinsicCurve { start: 2.0, full: 1.0, losses };
        assert_eq!(curve.next_step(0.9, 1000), IntrinsicStep::Try(100));
    }
}
