//! A plan that the judge has not seen: plain data, to be made, altered, measured and judged.

use std::collections::BTreeMap;

use crate::bytes::ArenaBytes;
use crate::device::Scratch;
use crate::program::{Purpose, Role, StateRange};
use crate::recompute::Strategy;
use crate::schedule::Schedule;

/// Everything that is decided before the first step, unjudged. Nothing runs a draft: [`Draft::judge`] makes a
/// [`Plan`](super::Plan) of one that is sound.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// The rule by which values are dropped and recomputed.
    pub strategy: Strategy,
    /// How much scratch actions get.
    pub scratch: Scratch,
    /// Size of the arena: the highest byte end of any buffer, and so the peak.
    pub arena_bytes: ArenaBytes,
    /// The largest sum of bytes alive at one time. No layout of these schedules is smaller.
    pub liveness_bound: u64,
    /// All state, in the order it lies in the arena.
    pub states: Vec<StateRange>,
    /// The schedules of the run.
    pub schedules: BTreeMap<Role, Schedule>,
    /// Bytes by purpose at the peak.
    pub by_purpose: ByPurpose,
    /// Predicted time of one micro-batch, in seconds.
    pub micro_batch_seconds: f64,
    /// Predicted time of the optimizer.
    pub update_seconds: f64,
}

impl Draft {
    /// Predicted time of a step of `accumulation` micro-batches.
    pub fn step_seconds(&self, accumulation: usize) -> f64 {
        self.micro_batch_seconds * accumulation as f64 + self.update_seconds
    }

    /// The place of a range of state.
    pub fn state(&self, name: &str) -> Option<&StateRange> {
        self.states.iter().find(|range| range.name == name)
    }
}

/// Bytes of each purpose at the moment of the peak; they add up to the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ByPurpose {
    /// Indexed as [`Purpose::ALL`].
    bytes: [u64; Purpose::ALL.len()],
    /// Bytes of the arena that nothing uses at that moment.
    pub free: u64,
}

impl ByPurpose {
    /// Bytes of one purpose.
    pub fn of(&self, purpose: Purpose) -> u64 {
        self.bytes[purpose as usize]
    }

    /// From the bytes of each purpose, then `free`; none when there are not as many.
    pub(crate) fn from_sizes(sizes: &[u64]) -> Option<ByPurpose> {
        let (&free, bytes) = sizes.split_last()?;
        Some(ByPurpose { bytes: bytes.try_into().ok()?, free })
    }

    /// Each purpose with its bytes, then `free`.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Purpose::ALL.iter().map(|&purpose| (purpose.name(), self.of(purpose))).chain([("free", self.free)])
    }

    /// Adds to one purpose.
    pub(super) fn add(&mut self, purpose: Purpose, bytes: u64) {
        self.bytes[purpose as usize] += bytes;
    }

    /// The same in an arena of this many bytes: bytes without a purpose are free.
    pub(super) fn in_arena(self, arena: ArenaBytes) -> ByPurpose {
        ByPurpose { free: arena.0 - self.bytes.iter().sum::<u64>(), ..self }
    }
}
