//! Times of ops on one machine, in the form that is kept in a file.
//!
//! Three sources, each stronger than the one before:
//!
//! ```text
//! probes   small models, trained for about a second when the machine is first used
//! runs     every training run on the processor adds the times of its own ops
//! bench    `plimsoll bench ops` times the ops of one model on purpose
//! ```
//!
//! The last two share a table. A run that was disturbed must not spoil it, so a new time moves the known one by a part
//! of the difference, and the known one weighs as much as four runs at most. The table has a largest size; the ops not
//! seen for longest are dropped.

use std::collections::BTreeMap;

use plimsoll_exec::{Timing, Timings};
use serde::{Deserialize, Serialize};

use crate::jinja::{day, now};

/// Version of the form of [`Measured`].
pub const OPS_FILE_VERSION: u32 = 2;

/// The most ops of runs that are kept: those of about half a dozen models.
const MOST_OPS: usize = 500;
/// A known time weighs as much as this many runs at most.
const MOST_WEIGHT: u32 = 4;
/// A run may change the known time of an op at most by this factor, up or down.
const MOST_CHANGE: f64 = 2.0;
const SECONDS_PER_DAY: u64 = 86_400;

/// Times of ops on one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The value of [`OPS_FILE_VERSION`] when the file was written.
    pub version: u32,
    /// The machine it was measured on: on another one the times do not hold.
    pub machine: String,
    /// When the machine was measured with small models, by precision.
    probed: BTreeMap<String, ProbedOn>,
    /// Times of the ops of those models.
    probes: BTreeMap<String, OpRow>,
    /// Training runs that added their times.
    runs: u64,
    /// Times of ops in runs and in `bench ops`.
    ops: BTreeMap<String, OpRow>,
}

/// A measurement of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ProbedOn {
    /// Days since 1970.
    day: u64,
    /// Number of model sizes that fitted into the available memory.
    sizes: usize,
}

/// One op: seconds with the best scratch and with the least, floating-point operations of its products, bytes, the day
/// it was last seen (counted from 1970), and the number of runs it was seen in.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct OpRow(Option<f64>, Option<f64>, f64, f64, u64, u32);

impl OpRow {
    fn new(timing: &Timing, day: u64) -> OpRow {
        let &Timing { seconds, lean_seconds, matmul_flops, bytes } = timing;
        OpRow(seconds, lean_seconds, matmul_flops, bytes, day, 1)
    }

    /// The row as times, unless the file holds numbers that no clock gives.
    fn timing(&self) -> Option<Timing> {
        let &OpRow(seconds, lean_seconds, matmul_flops, bytes, ..) = self;
        let likely = |number: f64, most: f64| number >= 0.0 && number < most;
        let clocked = |seconds: Option<f64>| seconds.is_none_or(|s| s > 0.0 && likely(s, 1e5));
        let all =
            clocked(seconds) && clocked(lean_seconds) && likely(matmul_flops, 1e21) && likely(bytes, 1e18);
        all.then_some(Timing { seconds, lean_seconds, matmul_flops, bytes })
    }

    /// The known times, updated with those of `newer`.
    fn learned(self, newer: OpRow) -> OpRow {
        let weight = self.5.clamp(1, MOST_WEIGHT);
        let moved = |known: Option<f64>, new: Option<f64>| match (known, new) {
            (Some(known), Some(new)) => {
                let new = new.clamp(known / MOST_CHANGE, known * MOST_CHANGE);
                Some(known + (new - known) / f64::from(weight + 1))
            }
            (known, new) => known.or(new),
        };
        OpRow(moved(self.0, newer.0), moved(self.1, newer.1), newer.2, newer.3, newer.4, weight + 1)
    }
}

impl Measured {
    /// Nothing is known yet of `machine`.
    pub fn nothing(machine: String) -> Measured {
        Measured { version: OPS_FILE_VERSION, machine, ..Measured::default() }
    }

    /// Times of ops that `bench ops` has taken.
    pub fn new(machine: String, timings: &Timings) -> Measured {
        Measured { ops: rows(timings), ..Measured::nothing(machine) }
    }

    /// All times, for [`Device::use_timings`](plimsoll_exec::Device::use_timings).
    pub fn timings(&self) -> Timings {
        let mut timings = Timings::default();
        for (signature, row) in self.probes.iter().chain(&self.ops) {
            if let Some(timing) = row.timing() {
                timings.insert(signature.clone(), timing);
            }
        }
        timings
    }

    /// Times of runs and of `bench ops` alone.
    pub fn ops(&self) -> Timings {
        Measured { probes: BTreeMap::new(), ..self.clone() }.timings()
    }

    /// Whether the machine was measured under a precision with models of `sizes` sizes or more.
    pub fn is_probed(&self, precision: &str, sizes: usize) -> bool {
        self.probed.get(precision).is_some_and(|probed| probed.sizes >= sizes)
    }

    /// Adds a measurement of the machine with models of `sizes` sizes.
    pub fn add_probes(&mut self, precision: &str, sizes: usize, timings: &Timings) {
        self.probed.insert(precision.to_owned(), ProbedOn { day: today(), sizes });
        self.probes.extend(rows(timings));
    }

    /// Adds the times of a training run.
    pub fn add_run(&mut self, timings: &Timings) {
        for (signature, row) in rows(timings) {
            let known = self.ops.get(&signature).copied();
            self.ops.insert(signature, known.map_or(row, |known| known.learned(row)));
        }
        self.runs += 1;
        self.forget_the_oldest();
    }

    fn forget_the_oldest(&mut self) {
        while self.ops.len() > MOST_OPS {
            let oldest = self.ops.iter().min_by_key(|(_, row)| row.4).map(|(signature, _)| signature.clone());
            oldest.map(|signature| self.ops.remove(&signature));
        }
    }

    /// Adds the times of `newer`, which win if both know an op.
    #[must_use]
    pub fn updated(mut self, newer: Measured) -> Measured {
        self.runs += newer.runs;
        for (signature, new) in newer.ops {
            let known = self.ops.entry(signature).or_insert(new);
            *known = OpRow(new.0.or(known.0), new.1.or(known.1), new.2, new.3, new.4, new.5);
        }
        self
    }

    /// The shorter of the two times if both know an op: other work of the machine can only slow an op down.
    #[must_use]
    pub fn fastest(mut self, other: Measured) -> Measured {
        let shorter = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a.min(b)).or(a).or(b);
        for (signature, row) in other.ops {
            let known = self.ops.entry(signature).or_insert(row);
            (known.0, known.1) = (shorter(known.0, row.0), shorter(known.1, row.1));
        }
        self
    }

    /// Number of ops whose times come from runs and from `bench ops`.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.probes.is_empty()
    }

    /// Where the times in plans of a precision come from, in words for the user.
    pub fn source(&self, precision: &str) -> String {
        let runs = |joined: &str| match self.runs {
            0 => String::new(),
            1 => format!(" and {joined} 1 run"),
            runs => format!(" and {joined} {runs} runs"),
        };
        match self.probed.get(precision) {
            Some(probed) => {
                let (date, runs) = (day(probed.day), runs("in"));
                format!("times measured on this machine on {date}{runs}")
            }
            None if self.is_empty() => "times modelled".to_owned(),
            None => format!("times from measured ops{}", runs("from")),
        }
    }
}

fn rows(timings: &Timings) -> BTreeMap<String, OpRow> {
    let day = today();
    timings.iter().map(|(signature, timing)| (signature.to_owned(), OpRow::new(timing, day))).collect()
}

/// Days since 1970.
fn today() -> u64 {
    now() / SECONDS_PER_DAY
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(ops: &[(&str, Option<f64>, Option<f64>)]) -> Timings {
        let mut timings = Timings::default();
        for &(name, seconds, lean_seconds) in ops {
            timings.insert(name.into(), Timing { seconds, lean_seconds, matmul_flops: 1.0, bytes: 1.0 });
        }
        timings
    }

    #[test]
    fn of_two_measurements_the_shorter_time_counts() {
        let measured = |ops: &[_]| Measured::new("machine".into(), &timed(ops));
        let disturbed = measured(&[("a", Some(3.0), Some(2.0)), ("b", None, Some(4.0))]);
        let quiet = measured(&[("a", Some(1.0), Some(5.0)), ("b", Some(6.0), None), ("c", Some(7.0), None)]);
        let both = [("a", Some(1.0), Some(2.0)), ("b", Some(6.0), Some(4.0)), ("c", Some(7.0), None)];
        assert_eq!(disturbed.fastest(quiet), measured(&both));
    }

    #[test]
    fn runs_count_for_more_than_probes_and_each_run_moves_what_is_known_by_its_share() {
        let mut known = Measured::nothing("machine".into());
        assert_eq!(known.source("f32"), "times modelled");
        known.add_probes("f32", 2, &timed(&[("a", Some(9.0), None), ("b", Some(8.0), None)]));
        assert!(known.is_probed("f32", 2) && !known.is_probed("f32", 3) && !known.is_probed("bf16", 1));
        let seconds = |known: &Measured, op: &str| known.timings().get(op).and_then(|timing| timing.seconds);
        assert_eq!((seconds(&known, "a"), seconds(&known, "b")), (Some(9.0), Some(8.0)));
        known.add_run(&timed(&[("a", Some(4.0), None)]));
        assert_eq!((seconds(&known, "a"), seconds(&known, "b")), (Some(4.0), Some(8.0)));
        known.add_run(&timed(&[("a", Some(6.0), None)]));
        assert_eq!(seconds(&known, "a"), Some(5.0), "two runs count alike");
        known.add_run(&timed(&[("a", Some(1e9), None)]));
        let after = seconds(&known, "a").unwrap();
        assert!(after < 6.7, "a run that was disturbed counts for no more than twice the time: {after}");
        for _ in 0..20 {
            known.add_run(&timed(&[("a", Some(5.0), None)]));
        }
        let settled = seconds(&known, "a").unwrap();
        assert!((settled - 5.0).abs() < 0.1, "it is forgotten: {settled}");
        assert!(
            known.source("f32").starts_with("times measured on this machine on 2"),
            "{}",
            known.source("f32")
        );
        assert!(known.source("f32").ends_with(" and in 23 runs"), "{}", known.source("f32"));
        assert_eq!(known.source("bf16"), "times from measured ops and from 23 runs");
    }

    #[test]
    fn the_table_of_runs_has_a_largest_size_and_numbers_that_no_clock_gives_are_passed_over() {
        let mut known = Measured::nothing("machine".into());
        let names: Vec<String> = (0..MOST_OPS + 300).map(|number| format!("op{number}")).collect();
        let ops: Vec<_> = names.iter().map(|name| (name.as_str(), Some(1.0), None)).collect();
        known.add_run(&timed(&ops));
        assert_eq!(known.len(), MOST_OPS);
        let absurd = [("a", Some(-1.0), None), ("b", Some(1.0), Some(1e9)), ("c", Some(1.0), None)];
        let timings = Measured::new("machine".into(), &timed(&absurd)).timings();
        assert_eq!(timings.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["c"]);
    }
}
