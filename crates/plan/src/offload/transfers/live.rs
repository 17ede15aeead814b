//! Bytes alive during each run, where a stretch of runs is raised and searched without a look at every run.
//!
//! A value that comes back early is alive from its fetch to its reader, which can be thousands of runs. Runs are taken in
//! blocks, and each block knows its largest number and what was added to all of it:
//!
//! ```text
//! runs     ├──block──┼──block──┼──block──┼──block──┤
//! raise         ▓▓▓▓▓ ▓▓▓▓▓▓▓▓▓ ▓▓▓▓▓▓▓▓▓ ▓▓          whole blocks by one number, the ends run by run
//! ```

use std::ops::Range;

/// Runs of one block.
const BLOCK: usize = 64;

/// Bytes alive during each run.
pub(super) struct LiveBytes {
    /// Bytes of each run, without those that were added to its whole block.
    own: Vec<u64>,
    /// Bytes that were added to all runs of each block.
    added: Vec<u64>,
    /// The most bytes of any run of each block, with those that were added to the whole block.
    most: Vec<u64>,
}

impl LiveBytes {
    pub(super) fn new(own: Vec<u64>) -> LiveBytes {
        let most = own.chunks(BLOCK).map(|block| block.iter().copied().max().unwrap_or(0)).collect();
        LiveBytes { added: vec![0; own.len().div_ceil(BLOCK)], own, most }
    }

    /// Bytes alive during a run.
    pub(super) fn at(&self, run: usize) -> u64 {
        self.own[run] + self.added[run / BLOCK]
    }

    /// Adds bytes to each run of a stretch.
    pub(super) fn raise(&mut self, runs: Range<usize>, bytes: u64) {
        for (block, inside) in blocks(runs) {
            if inside.len() == BLOCK {
                self.added[block] += bytes;
                self.most[block] += bytes;
            } else {
                for own in &mut self.own[inside.clone()] {
                    *own += bytes;
                    self.most[block] = self.most[block].max(*own + self.added[block]);
                }
            }
        }
    }

    /// The last run of a stretch during which more than `limit` bytes are alive.
    pub(super) fn last_above(&self, runs: Range<usize>, limit: u64) -> Option<usize> {
        let above = |run: &usize| self.at(*run) > limit;
        let mut full = blocks(runs).rev().filter(|&(block, _)| self.most[block] > limit);
        full.find_map(|(_, inside)| inside.rev().find(above))
    }
}

/// The blocks that a stretch of runs meets, each with the runs inside it.
fn blocks(runs: Range<usize>) -> impl DoubleEndedIterator<Item = (usize, Range<usize>)> {
    let last = if runs.is_empty() { runs.start / BLOCK } else { (runs.end - 1) / BLOCK + 1 };
    (runs.start / BLOCK..last).map(move |block| {
        let (first, behind) = (block * BLOCK, (block + 1) * BLOCK);
        (block, first.max(runs.start)..behind.min(runs.end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn stretches_are_raised_and_searched_as_run_by_run(
            begin in prop::collection::vec(0u64..50, 1..400),
            changes in prop::collection::vec((0usize..400, 0usize..400, 0u64..50), 1..30),
        ) {
            let (mut live, mut slow) = (LiveBytes::new(begin.clone()), begin);
            let runs = slow.len();
            for (from, to, bytes) in changes {
                let (from, to) = (from.min(to) % runs, from.max(to).min(runs));
                if from >= to {
                    continue;
                }
                let found = slow[from..to].iter().rposition(|&alive| alive > bytes + 20).map(|at| from + at);
                prop_assert_eq!(live.last_above(from..to, bytes + 20), found);
                live.raise(from..to, bytes);
                slow[from..to].iter_mut().for_each(|alive| *alive += bytes);
                prop_assert!((0..runs).all(|run| live.at(run) == slow[run]));
            }
        }
    }
}
