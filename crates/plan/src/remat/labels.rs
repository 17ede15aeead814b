//! The exact frontier of kept bytes against recompute time, at one instant.
//!
//! Some operations are **demanded** after the instant. A kept set `S` answers part of the demand. Operations that are
//! demanded and not kept must run again, and so must all operations that those runs read and find missing (the closure
//! `R(S)`). The frontier is every pair (bytes of `S`, cost of `R(S)`) that no other pair beats on both counts, with a
//! set that reaches it.
//!
//! Operations are taken in reverse topological order. The state is the set `D` of earlier operations
//! demanded so far; a label is (bytes, time, what was kept):
//!
//! ```text
//! v not in D             D                     (b,            t)          neither kept nor run
//! v in D, kept           D \ {v}               (b + bytes v,  t)
//! v in D, run again      D \ {v} ∪ deps(v)     (b,            t + cost v)
//! ```
//!
//! Per state, labels are sorted by bytes with strictly falling time. Keeping an operation shifts a list right and
//! running it again shifts it up, so merging two lists takes linear time. `D` beyond the demanded set is as wide as the
//! graph is at that point, so a block or a convolutional net has a handful of states, where trying all subsets has 2ⁿ.
//! Rockmate (Zhao et al., 2023) asks an integer program for the same frontier.
//!
//! Deliberately absent: peaks. A label describes one instant; a simulation must show whether a schedule gets there and
//! back inside a budget.

use std::collections::BTreeMap;

use super::work::Work;

/// One operation, in topological order with the others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabelOp {
    /// Operations whose outputs this one reads, except values that always exist.
    pub deps: Vec<usize>,
    /// Bytes that the operation's output takes if it is kept.
    pub bytes: u64,
    /// Cost of running the operation again.
    pub cost: f64,
    /// Whether the operation's output may be kept at all.
    pub keepable: bool,
}

/// A point of the frontier.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// Bytes kept.
    pub bytes: u64,
    /// Cost of all that must run again.
    pub time: f64,
    /// The operations kept, in order. Empty under [`Thinning::Optimistic`] once labels were merged.
    pub keep: Vec<usize>,
}

/// The rule where there are more labels or states than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinning {
    /// Drop some: every label left is reached by its set, and better ones may be missing.
    Realisable,
    /// Merge some into a better one that may not exist: the least time is a valid lower bound.
    Optimistic,
}

/// Limits on the labels and states that are followed.
#[derive(Clone, Copy, Debug)]
pub struct LabelLimits {
    /// Labels with more bytes are dropped.
    pub bytes: u64,
    /// Labels with more time are dropped.
    pub time: f64,
    /// Labels per state.
    pub labels: usize,
    /// States at once.
    pub states: usize,
    /// The rule for dropping labels and states above those two limits.
    pub thinning: Thinning,
}

impl LabelLimits {
    /// Follows everything.
    pub const NONE: LabelLimits = LabelLimits {
        bytes: u64::MAX,
        time: f64::INFINITY,
        labels: usize::MAX,
        states: usize::MAX,
        thinning: Thinning::Realisable,
    };
}

/// The frontier for `demanded` over `ops`: bytes rising, time falling. Empty if some demand can be neither kept nor met
/// within the limits.
pub fn frontier(ops: &[LabelOp], demanded: &[usize], limits: &LabelLimits) -> Vec<Label> {
    frontier_within(ops, demanded, limits, &Work::endless()).unwrap_or_default()
}

/// The same as long as there is work left; none if it is used up before the end.
pub(crate) fn frontier_within(
    ops: &[LabelOp],
    demanded: &[usize],
    limits: &LabelLimits,
    work: &Work,
) -> Option<Vec<Label>> {
    let mut kept = KeptLists::default();
    let root = Point { bytes: 0, time: 0.0, kept: KeptLists::NOTHING };
    let mut states: BTreeMap<Demand, Vec<Point>> =
        BTreeMap::from([(Demand::new(ops.len(), demanded), vec![root])]);
    for (v, op) in ops.iter().enumerate().rev() {
        if !states.keys().any(|demand| demand.contains(v)) {
            continue;
        }
        let labels: usize = states.values().map(Vec::len).sum();
        // A state is copied, and has a bit for each operation.
        work.spend((labels + states.len() * (op.deps.len() + ops.len() / 64)) as u64);
        if work.is_done() {
            return None;
        }
        let mut next: BTreeMap<Demand, Vec<Point>> = BTreeMap::new();
        for (demand, points) in states {
            if !demand.contains(v) {
                join(&mut next, demand, points);
                continue;
            }
            let rest = demand.without(v);
            if op.keepable {
                let keep = |point: &Point| -> Option<Point> {
                    let bytes = point.bytes.checked_add(op.bytes).filter(|&bytes| bytes <= limits.bytes)?;
                    Some(Point { bytes, time: point.time, kept: kept.with(point.kept, v) })
                };
                join(&mut next, rest.clone(), points.iter().map_while(keep).collect());
            }
            let again = |point: &Point| Point { time: point.time + op.cost, ..*point };
            let again = points.iter().map(again).filter(|point| point.time <= limits.time);
            join(&mut next, rest.with_all(&op.deps), again.collect());
        }
        next.retain(|_, points| !points.is_empty());
        states = within(next, limits);
    }
    let merged = states.into_values().fold(Vec::new(), merge);
    let label = |point: Point| Label { bytes: point.bytes, time: point.time, keep: kept.list(point.kept) };
    Some(merged.into_iter().map(label).collect())
}

/// A label while the program runs: `kept` points into a tree of lists that share their tails.
#[derive(Clone, Copy, Debug)]
struct Point {
    bytes: u64,
    time: f64,
    kept: u32,
}

/// Lists of kept operations: each entry is an operation and the rest of its list.
#[derive(Default)]
struct KeptLists(Vec<(u32, u32)>);

impl KeptLists {
    const NOTHING: u32 = u32::MAX;

    fn with(&mut self, rest: u32, op: usize) -> u32 {
        self.0.push((op as u32, rest));
        self.0.len() as u32 - 1
    }

    /// The list, lowest operation first: operations were added from the last to the first.
    fn list(&self, mut at: u32) -> Vec<usize> {
        let mut ops = Vec::new();
        while at != KeptLists::NOTHING {
            let (op, rest) = self.0[at as usize];
            ops.push(op as usize);
            at = rest;
        }
        ops
    }
}

/// A set of demanded operations, ordered so that states come in a fixed order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Demand(Vec<u64>);

impl Demand {
    fn new(ops: usize, demanded: &[usize]) -> Demand {
        Demand(vec![0; ops.div_ceil(64)]).with_all(demanded)
    }

    fn contains(&self, op: usize) -> bool {
        self.0[op / 64] >> (op % 64) & 1 == 1
    }

    fn without(mut self, op: usize) -> Demand {
        self.0[op / 64] &= !(1 << (op % 64));
        self
    }

    fn with_all(mut self, ops: &[usize]) -> Demand {
        for &op in ops {
            self.0[op / 64] |= 1 << (op % 64);
        }
        self
    }

    fn intersection(mut self, other: &Demand) -> Demand {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word &= other);
        self
    }
}

fn join(states: &mut BTreeMap<Demand, Vec<Point>>, demand: Demand, points: Vec<Point>) {
    let there = states.entry(demand).or_default();
    *there = merge(std::mem::take(there), points);
}

/// Merges two lists sorted by bytes with falling time into one, without the points that others beat.
fn merge(first: Vec<Point>, second: Vec<Point>) -> Vec<Point> {
    if first.is_empty() {
        return second;
    }
    let mut merged: Vec<Point> = Vec::with_capacity(first.len() + second.len());
    let (mut a, mut b) = (first.into_iter().peekable(), second.into_iter().peekable());
    loop {
        let from_first = match (a.peek(), b.peek()) {
            (Some(x), Some(y)) => (x.bytes, x.time) <= (y.bytes, y.time),
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => return merged,
        };
        let point = if from_first { a.next() } else { b.next() };
        if let Some(point) = point
            && merged.last().is_none_or(|last| point.time < last.time)
        {
            merged.push(point);
        }
    }
}

/// Brings states and labels within the limits.
fn within(mut states: BTreeMap<Demand, Vec<Point>>, limits: &LabelLimits) -> BTreeMap<Demand, Vec<Point>> {
    for points in states.values_mut().filter(|points| points.len() > limits.labels) {
        *points = thin(points, limits);
    }
    if states.len() <= limits.states {
        return states;
    }
    match limits.thinning {
        Thinning::Realisable => {
            let mut ranked: Vec<(Demand, Vec<Point>)> = states.into_iter().collect();
            let least = |points: &[Point]| points.last().map_or(f64::INFINITY, |point| point.time);
            ranked.sort_by(|a, b| least(&a.1).total_cmp(&least(&b.1)).then_with(|| a.0.cmp(&b.0)));
            ranked.truncate(limits.states);
            ranked.into_iter().collect()
        }
        // A state with fewer demands costs less. So the demands that two states share give a lower bound for both.
        Thinning::Optimistic => {
            let mut merged: BTreeMap<Demand, Vec<Point>> = BTreeMap::new();
            let group = states.len().div_ceil(limits.states);
            let mut rest = states.into_iter().peekable();
            while rest.peek().is_some() {
                let both = |(demand, points): (Demand, Vec<Point>), (other, more): (Demand, Vec<Point>)| {
                    (demand.intersection(&other), merge(points, more))
                };
                if let Some((demand, points)) = rest.by_ref().take(group).reduce(both) {
                    join(&mut merged, demand, points);
                }
            }
            for points in merged.values_mut() {
                *points = thin(points, limits);
            }
            merged
        }
    }
}

fn thin(points: &[Point], limits: &LabelLimits) -> Vec<Point> {
    if points.len() <= limits.labels {
        return points.to_vec();
    }
    let corner = |group: &[Point]| match limits.thinning {
        Thinning::Realisable => group[0],
        Thinning::Optimistic => {
            Point { bytes: group[0].bytes, time: group[group.len() - 1].time, kept: KeptLists::NOTHING }
        }
    };
    points.chunks(points.len().div_ceil(limits.labels)).map(corner).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remat::oracle::exhaustive::Dice;

    fn random_ops(dice: &mut Dice, count: usize) -> Vec<LabelOp> {
        let op = |v: usize| LabelOp {
            deps: (0..v).filter(|&dep| dice.below(v - dep + 2) == 0).collect(),
            bytes: dice.below(9) as u64,
            cost: dice.below(7) as f64,
            keepable: dice.below(5) > 0,
        };
        let mut op = op;
        (0..count).map(&mut op).collect()
    }

    /// Bytes and closure cost of one kept set.
    fn price(ops: &[LabelOp], demanded: &[usize], keep: u32) -> (u64, f64) {
        let mut again = vec![false; ops.len()];
        demanded.iter().filter(|&&v| keep >> v & 1 == 0).for_each(|&v| again[v] = true);
        for v in (0..ops.len()).rev().filter(|&v| keep >> v & 1 == 0) {
            if again[v] {
                ops[v].deps.iter().filter(|&&dep| keep >> dep & 1 == 0).for_each(|&dep| again[dep] = true);
            }
        }
        let bytes = (0..ops.len()).filter(|&v| keep >> v & 1 == 1).map(|v| ops[v].bytes).sum();
        (bytes, (0..ops.len()).filter(|&v| again[v]).map(|v| ops[v].cost).sum())
    }

    fn by_brute_force(ops: &[LabelOp], demanded: &[usize]) -> Vec<(u64, f64)> {
        let allowed = |keep: &u32| (0..ops.len()).all(|v| keep >> v & 1 == 0 || ops[v].keepable);
        let mut all: Vec<(u64, f64)> =
            (0..1u32 << ops.len()).filter(allowed).map(|keep| price(ops, demanded, keep)).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut best: Vec<(u64, f64)> = Vec::new();
        for point in all {
            if best.last().is_none_or(|last| point.1 < last.1) {
                best.push(point);
            }
        }
        best
    }

    #[test]
    fn the_frontier_is_that_of_all_subsets() {
        for seed in 0..3000 {
            let mut dice = Dice(seed);
            let count = 1 + dice.below(if seed % 100 == 0 { 12 } else { 8 });
            let ops = random_ops(&mut dice, count);
            let demanded: Vec<usize> = (0..count).filter(|_| dice.below(2) == 0).collect();
            let labels = frontier(&ops, &demanded, &LabelLimits::NONE);
            let found: Vec<(u64, f64)> = labels.iter().map(|label| (label.bytes, label.time)).collect();
            assert_eq!(found, by_brute_force(&ops, &demanded), "seed {seed}");
            for label in &labels {
                let keep = label.keep.iter().fold(0, |mask, &v| mask | 1 << v);
                assert_eq!(price(&ops, &demanded, keep), (label.bytes, label.time), "seed {seed}");
            }
        }
    }

    #[test]
    fn thinned_frontiers_stay_on_their_side() {
        for seed in 0..1000 {
            let mut dice = Dice(seed);
            let ops = random_ops(&mut dice, 12);
            let demanded: Vec<usize> = (0..12).filter(|_| dice.below(2) == 0).collect();
            let exact = frontier(&ops, &demanded, &LabelLimits::NONE);
            let few = |thinning| LabelLimits { labels: 3, states: 2, thinning, ..LabelLimits::NONE };
            let least = |labels: &[Label], bytes: u64| {
                let fitting = labels.iter().filter(|label| label.bytes <= bytes);
                fitting.map(|label| label.time).fold(f64::INFINITY, f64::min)
            };
            let above = frontier(&ops, &demanded, &few(Thinning::Realisable));
            let below = frontier(&ops, &demanded, &few(Thinning::Optimistic));
            for bytes in 0..60 {
                assert!(least(&above, bytes) >= least(&exact, bytes), "seed {seed}");
                assert!(least(&below, bytes) <= least(&exact, bytes), "seed {seed}");
            }
        }
    }

    #[test]
    fn a_recomputed_value_pays_for_what_it_reads() {
        let op = |deps: &[usize], bytes, cost| LabelOp { deps: deps.to_vec(), bytes, cost, keepable: true };
        // Keeping the middle of the chain makes the demanded end cheap.
        let ops = [op(&[], 8, 5.0), op(&[0], 1, 5.0), op(&[1], 8, 1.0)];
        let labels = frontier(&ops, &[2], &LabelLimits::NONE);
        let label = |bytes, time, keep: &[usize]| Label { bytes, time, keep: keep.to_vec() };
        assert_eq!(labels, [label(0, 11.0, &[]), label(1, 1.0, &[1]), label(8, 0.0, &[2])]);
    }
}
