//! Kept sets worth turning into schedules, whatever the budget.
//!
//! The frontier at one instant ([`labels`](super::labels)) counts every run that must be repeated once. Where most of
//! the forward pass is repeated, it therefore sees no use in keeping anything: all runs are in the closure either way.
//! But without kept values on the way, outputs that were recomputed early wait for late readers. So sets are made in
//! two steps: the values that cross certain cuts of the forward pass are always kept, as a strategy with layers would,
//! and a frontier decides what to keep beside them.
//!
//! ```text
//! a b c │ d e f │ g h i        cuts where few bytes cross, so many bytes of outputs apart
//!     └──────────▲             c crosses the first cut, and is kept
//! ```
//!
//! Each set becomes a schedule in which recomputed values stay until their last reader. A small set also becomes two
//! more, in which they stay for a short time or not at all.

use super::labels::{Label, LabelLimits, LabelOp, frontier};
use super::lazy::{Trial, lazy};
use super::search_graph::SearchGraph;
use super::set::Set;
use super::work::Work;

/// Kept sets for every budget.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    families: Vec<Family>,
    /// The Pareto front of all schedules made so far, by cost and peak, the cheapest first.
    pub(crate) best: Vec<Kept>,
}

/// The sets that keep the values crossing the same cuts.
#[derive(Clone, Debug)]
struct Family {
    /// Numbers of the forward nodes that all sets of the family keep.
    cut: Vec<usize>,
    /// Their other kept nodes: bytes rising, so that cost falls and peaks mostly rise.
    points: Vec<Label>,
    /// Points whose schedule is known, rising, with its peak.
    known: Vec<(usize, u64)>,
}

/// A kept set, and the cost and peak of its schedule.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    /// Numbers of forward nodes.
    pub(crate) keep: Vec<usize>,
    /// How long recomputed outputs stay, as in [`lazy`].
    pub(crate) hold: usize,
    /// Cost of the forward runs.
    pub(crate) cost: f64,
    pub(crate) peak: u64,
}

/// Numbers of parts into which cuts divide the forward pass.
const PARTS: [u64; 12] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];
/// Points of the frontier of a family.
const LABELS: usize = 400;
/// States of a frontier.
const STATES: usize = 64;
/// Number of families in which a budget searches for the best point.
const REFINED: usize = 3;

impl Pool {
    /// Turns `points` sets of each family into schedules; small sets give more than one.
    pub(crate) fn new<const W: usize>(graph: &SearchGraph<W>, points: usize) -> Pool {
        let crossing = crossing(graph);
        let mut cuts: Vec<Set<W>> =
            PARTS.iter().map(|&parts| kept_at_cuts(graph, &crossing, parts)).collect();
        cuts.dedup();
        let (mut families, mut best) = (Vec::new(), Vec::new());
        for cut in &cuts {
            let mut family =
                Family { cut: cut.iter().collect(), points: beside(graph, cut), known: Vec::new() };
            let last = family.points.len().saturating_sub(1);
            let mut chosen: Vec<usize> =
                (0..points).map(|index| index * last / (points - 1).max(1)).collect();
            chosen.dedup();
            for (index, point) in chosen.into_iter().enumerate() {
                // A set that keeps many bytes need not recompute often.
                for &hold in if index < points / 2 { &[usize::MAX, 3, 1][..] } else { &[usize::MAX] } {
                    let kept = family.kept(graph, point, hold);
                    if hold == usize::MAX {
                        family.known.push((point, kept.peak));
                    }
                    best.push(kept);
                }
            }
            families.push(family);
        }
        best.sort_by(|a: &Kept, b| a.cost.total_cmp(&b.cost).then(a.peak.cmp(&b.peak)));
        let mut least = u64::MAX;
        best.retain(|kept| {
            let smaller = kept.peak < least;
            least = least.min(kept.peak);
            smaller
        });
        Pool { families, best }
    }

    /// Sets for this very budget, from the families that promise to cost less than `limit`.
    pub(crate) fn refined<const W: usize>(
        &self,
        graph: &SearchGraph<W>,
        memory: u64,
        limit: f64,
    ) -> Vec<Kept> {
        let forward: f64 = graph.cost.iter().sum();
        let mut promising: Vec<(f64, &Family, usize, usize)> = Vec::new();
        for family in &self.families {
            let fitting = family.known.iter().rposition(|&(_, peak)| peak <= memory);
            let Some(above) = fitting.and_then(|at| family.known.get(at + 1)) else { continue };
            let below = fitting.map_or(0, |at| family.known[at].0);
            let promised = forward + family.points[above.0].time;
            if promised < limit && below + 1 < above.0 {
                promising.push((promised, family, below, above.0));
            }
        }
        promising.sort_by(|a, b| a.0.total_cmp(&b.0));
        let refine = |(_, family, below, above): (f64, &Family, usize, usize)| {
            let (mut below, mut above, mut found) = (below, above, None);
            while below + 1 < above {
                let middle = usize::midpoint(below, above);
                let kept = family.kept(graph, middle, usize::MAX);
                if kept.peak <= memory {
                    (below, found) = (middle, Some(kept));
                } else {
                    above = middle;
                }
            }
            found
        };
        promising.into_iter().take(REFINED).filter_map(refine).collect()
    }
}

impl Family {
    fn kept<const W: usize>(&self, graph: &SearchGraph<W>, point: usize, hold: usize) -> Kept {
        let beside = self.points.get(point).map_or(&[][..], |label| &label.keep);
        let keep = self.cut.iter().chain(beside).copied().collect();
        let mut kept = Kept { keep, hold, cost: 0.0, peak: 0 };
        let trial = kept.trial(graph);
        (kept.cost, kept.peak) = (trial.cost, trial.peak);
        kept
    }
}

impl Kept {
    /// Its schedule.
    pub(crate) fn trial<const W: usize>(&self, graph: &SearchGraph<W>) -> Trial<W> {
        lazy(graph, &self.keep.iter().copied().collect(), self.hold, &Work::endless())
    }
}

/// For each forward node, the outputs of it and of earlier nodes that later forward nodes read.
fn crossing<const W: usize>(graph: &SearchGraph<W>) -> Vec<Set<W>> {
    let nodes = graph.forward_ids.len();
    let mut crossing = vec![Set::EMPTY; nodes];
    let mut read = Set::EMPTY;
    for node in (0..nodes).rev() {
        crossing[node] = read.iter().filter(|&earlier| earlier <= node).collect();
        read = read.union(&graph.sources[node]);
    }
    crossing
}

/// The values that cross the cuts which divide the forward pass into about this many parts.
fn kept_at_cuts<const W: usize>(graph: &SearchGraph<W>, crossing: &[Set<W>], parts: u64) -> Set<W> {
    let apart = graph.bytes.iter().sum::<u64>() / parts;
    let (mut keep, mut passed) = (Set::EMPTY, 0);
    // The quietest place since half a part has passed.
    let mut quietest: Option<(u64, usize)> = None;
    for (node, &bytes) in graph.bytes.iter().enumerate() {
        passed += bytes;
        if 2 * passed >= apart {
            let across = graph.size(&crossing[node]);
            if quietest.is_none_or(|(least, _)| across <= least) {
                quietest = Some((across, node));
            }
        }
        if let Some((_, at)) = quietest.filter(|_| passed >= apart && parts > 1) {
            keep = keep.union(&crossing[at]);
            passed = graph.bytes[at + 1..=node].iter().sum();
            quietest = None;
        }
    }
    keep
}

/// Sets to keep beside `cut`, from nothing to everything.
fn beside<const W: usize>(graph: &SearchGraph<W>, cut: &Set<W>) -> Vec<Label> {
    let op = |node: usize| LabelOp {
        deps: graph.sources[node].minus(cut).iter().collect(),
        bytes: graph.bytes[node],
        cost: graph.cost[node],
        keepable: true,
    };
    let ops: Vec<LabelOp> = (0..graph.forward_ids.len()).map(op).collect();
    let demanded: Vec<usize> = graph.later.first().map_or(Vec::new(), |all| all.minus(cut).iter().collect());
    frontier(&ops, &demanded, &LabelLimits { labels: LABELS, states: STATES, ..LabelLimits::NONE })
}
