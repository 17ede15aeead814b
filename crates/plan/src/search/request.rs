//! Requests, and the micro-batches that a request leaves open.

use super::error::SearchError;
use crate::bytes::ArenaBytes;
use crate::recompute::Strategy;

/// A request. The search chooses everything that it leaves open.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Sequences of one step.
    pub global_batch: usize,
    /// Sequences of one micro-batch, if the user fixed it.
    pub micro_batch: Option<usize>,
    /// The recompute strategy, if the user fixed it.
    pub strategy: Option<Strategy>,
    /// Bytes the arena may take.
    pub budget: ArenaBytes,
    /// Among plans slower than the fastest by at most this fraction, the smallest is taken.
    pub slack: f64,
}

impl Request {
    /// The micro-batches that the request leaves open, or the one that it fixes.
    pub(crate) fn micro_batches(&self) -> Result<Vec<usize>, SearchError> {
        let (global_batch, fixed) = (self.global_batch, self.micro_batch);
        let divides = |b: usize| b > 0 && global_batch > 0 && global_batch.is_multiple_of(b);
        match fixed {
            Some(micro_batch) if divides(micro_batch) => Ok(vec![micro_batch]),
            Some(micro_batch) => Err(SearchError::Batch { micro_batch, global_batch }),
            None if global_batch == 0 => Err(SearchError::Batch { micro_batch: 0, global_batch }),
            None => Ok(divisors(global_batch)),
        }
    }

    /// The strategy with a fixed rule that the request asks for; `None` if the search chooses.
    pub(crate) fn fixed_strategy(&self) -> Option<Strategy> {
        self.strategy.filter(|&strategy| strategy != Strategy::Auto)
    }
}

/// All divisors, rising: those up to the square root, and the quotients by them.
fn divisors(number: usize) -> Vec<usize> {
    let small: Vec<usize> = (1..=number.isqrt()).filter(|&b| number.is_multiple_of(b)).collect();
    let large = small.iter().rev().map(|&b| number / b).filter(|&b| b * b != number);
    small.iter().copied().chain(large).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_divisors_of_the_global_batch_are_tried() {
        let micro_batches = |global_batch, micro_batch| {
            let request =
                Request { global_batch, micro_batch, strategy: None, budget: ArenaBytes(0), slack: 0.0 };
            request.micro_batches()
        };
        assert_eq!(micro_batches(12, None).unwrap(), [1, 2, 3, 4, 6, 12]);
        assert!(matches!(micro_batches(12, Some(5)), Err(SearchError::Batch { .. })));
        assert!(micro_batches(0, None).is_err());
    }
}
