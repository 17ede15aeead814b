//! A lower bound on the cost of every schedule, whatever its order and however often it recomputes.
//!
//! **At one instant.** Take the moment once-node `p` runs. Its own output, its inputs and the earlier once-outputs
//! still to be read fill part of the budget; some set `S` of forward outputs fills at most the rest. Nodes that later
//! once-nodes need and `S` lacks must run after this moment, and so must everything that these nodes need and `S` lacks.
//! Such a run is extra where it is certainly not the first (the node is an ancestor of a once-node up to `p`). The least extra cost over all `S` is a
//! point of the label frontier. The same holds for the moment a forward node runs for the first time: its ancestors
//! have run, and nothing after it has.
//!
//! **Over several instants.** Runs between the moments of `p` and `q` and runs after `q` are different
//! runs. So with `W(p)` the extra cost after `p`:
//!
//! ```text
//! W(p) ≥ least extra cost after p for the needs of p+1 … q only   +   W(q)          for every q > p
//! ```
//!
//! which sees several recomputations of one node where a single instant sees one. All costs are sums of
//! runs, so the bound holds for the true optimum, not for a class of schedules; tests hold it against an
//! exhaustive search.

use super::labels::{Label, LabelLimits, LabelOp, Thinning, frontier_within};
use super::search_graph::SearchGraph;
use super::set::Set;
use super::work::Work;

/// How much work the bound may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BoundEffort {
    /// Labels per state and states in one frontier.
    pub(crate) labels: usize,
    /// Frontiers for pairs of instants, besides one for each instant.
    pub(crate) pairs: usize,
    /// Extra cost that need not be exceeded: a schedule of this cost is known.
    pub(crate) worth: f64,
}

/// Lower bounds for one budget.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    /// Extra forward cost after each once-node.
    pub(crate) after: Vec<f64>,
    /// Extra forward cost of the whole schedule.
    pub(crate) extra: f64,
}

/// Computes the bounds for a budget that is at least [`SearchGraph::least_memory`].
pub(crate) fn bound<const W: usize>(
    graph: &SearchGraph<W>,
    memory: u64,
    effort: BoundEffort,
    work: &Work,
) -> Bound {
    bound_at(graph, memory, effort, usize::MAX, work)
}

/// The same with frontiers at about this many instants of each pass; an instant between two of them gets the bound of
/// the next. Without work left, the bound is that of the instants that were reached.
pub(crate) fn bound_at<const W: usize>(
    graph: &SearchGraph<W>,
    memory: u64,
    effort: BoundEffort,
    instants: usize,
    work: &Work,
) -> Bound {
    let positions = graph.once_ids.len();
    let mut after = vec![0.0; positions];
    let mut pairs = effort.pairs;
    let mut before = Vec::with_capacity(positions);
    let mut ran = Set::EMPTY;
    for needs in &graph.needs {
        ran = ran.union(&graph.missing(needs, &ran));
        before.push(ran);
    }
    let every = |count: usize| count.div_ceil(instants.max(1)).max(1);
    for position in (0..positions).rev() {
        after[position] = if position % every(positions) == 0 && !work.is_done() {
            let instant = Instant::of_once(graph, memory, position, before[position]);
            instant.extra(position + 1, &after, effort, (&mut pairs, work))
        } else {
            after.get(position + 1).copied().unwrap_or(0.0)
        };
    }
    let mut extra = after.first().copied().unwrap_or(0.0);
    let nodes = graph.forward_ids.len();
    for node in (0..nodes).step_by(every(nodes)).take_while(|_| !work.is_done()) {
        let first_reader = before.iter().position(|ran| ran.contains(node)).unwrap_or(positions);
        let instant = Instant::of_first_run(graph, memory, node);
        extra = extra.max(instant.extra(first_reader, &after, effort, (&mut pairs, work)));
    }
    Bound { after, extra }
}

/// The frontier of kept sets at the first once-node, for schedules rather than bounds: bytes rising.
pub(crate) fn turn_labels<const W: usize>(
    graph: &SearchGraph<W>,
    memory: u64,
    labels: usize,
    work: &Work,
) -> Vec<Label> {
    let everything = (0..graph.forward_ids.len()).collect();
    let turn = Instant::of_once(graph, memory, 0, everything);
    let demanded = turn.demands(1..graph.once_ids.len());
    let limits = LabelLimits { bytes: turn.room, labels, states: labels, ..LabelLimits::NONE };
    frontier_within(&turn.ops, &demanded, &limits, work).unwrap_or_default()
}

/// A moment that every schedule passes.
struct Instant<'a, const W: usize> {
    graph: &'a SearchGraph<W>,
    /// Outputs that certainly are resident, and paid for in `room`.
    resident: Set<W>,
    /// Bytes left for other forward outputs.
    room: u64,
    /// Forward nodes as operations of the label program.
    ops: Vec<LabelOp>,
}

impl<'a, const W: usize> Instant<'a, W> {
    fn of_once(graph: &'a SearchGraph<W>, memory: u64, position: usize, ran: Set<W>) -> Instant<'a, W> {
        let taken = graph.held[position] + graph.once_running[position] + graph.size(&graph.needs[position]);
        Instant::new(graph, memory, taken, graph.needs[position], ran)
    }

    fn of_first_run(graph: &'a SearchGraph<W>, memory: u64, node: usize) -> Instant<'a, W> {
        let ran = graph.missing(&graph.sources[node], &Set::EMPTY);
        let taken = graph.running[node] + graph.size(&graph.sources[node]);
        Instant::new(graph, memory, taken, graph.sources[node].with(node), ran)
    }

    fn new(
        graph: &'a SearchGraph<W>,
        memory: u64,
        taken: u64,
        resident: Set<W>,
        ran: Set<W>,
    ) -> Instant<'a, W> {
        let room = memory.saturating_sub(taken);
        let op = |node: usize| LabelOp {
            deps: graph.sources[node].minus(&resident).iter().collect(),
            bytes: graph.bytes[node],
            cost: if ran.contains(node) { graph.cost[node] } else { 0.0 },
            keepable: true,
        };
        Instant { graph, resident, room, ops: (0..graph.forward_ids.len()).map(op).collect() }
    }

    /// Forward outputs that the once-nodes in a range read and that are not certainly resident.
    fn demands(&self, positions: std::ops::Range<usize>) -> Vec<usize> {
        let needs = self.graph.needs[positions].iter().fold(Set::EMPTY, |all, needs| all.union(needs));
        needs.minus(&self.resident).iter().collect()
    }

    /// The best chained bound on the extra cost after this moment, if `next` is the first once-node
    /// certainly after it.
    fn extra(
        &self,
        next: usize,
        after: &[f64],
        effort: BoundEffort,
        (pairs, work): (&mut usize, &Work),
    ) -> f64 {
        let positions = after.len();
        if next >= positions {
            return 0.0;
        }
        let mut least = self.least(next..positions, effort, work);
        let mut best = least.max(after[next]);
        for last in (next..positions - 1).rev() {
            // A smaller `last` has fewer demands, which cost no more, and `after` never rises. So once the sum is no better
            // than the best, no smaller `last` is.
            if least + after[next] <= best || best >= effort.worth || *pairs == 0 {
                break;
            }
            if least + after[last] > best {
                *pairs -= 1;
                least = self.least(next..last + 1, effort, work);
                best = best.max(least + after[last]);
            }
        }
        best
    }

    /// Least cost of meeting the demands of a range of once-nodes; nothing where the work was used up before it was known.
    fn least(&self, positions: std::ops::Range<usize>, effort: BoundEffort, work: &Work) -> f64 {
        work.spend((self.ops.len() + positions.len()) as u64);
        let demanded = self.demands(positions);
        if demanded.iter().map(|&node| self.graph.bytes[node]).sum::<u64>() <= self.room {
            return 0.0;
        }
        let limits = LabelLimits {
            bytes: self.room,
            time: effort.worth,
            labels: effort.labels,
            states: effort.labels.min(64),
            thinning: Thinning::Optimistic,
        };
        let labels = frontier_within(&self.ops, &demanded, &limits, work);
        labels.map_or(0.0, |labels| labels.last().map_or(effort.worth, |label| label.time))
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "costs here are whole numbers")]
mod tests {
    use super::*;
    use crate::remat::oracle::exhaustive::{optimum, random_dag};
    use crate::remat::search_graph::Oddities;

    #[test]
    fn no_schedule_is_cheaper_than_the_bound() {
        let mut tight = 0;
        for seed in 0..2000 {
            let dag = random_dag(seed);
            let graph: SearchGraph<1> = SearchGraph::new(&dag, Oddities::Removed);
            let whole = graph.fixed_cost + graph.cost.iter().sum::<f64>();
            let least = graph.least_memory();
            for memory in [least, least + 2, least + 5] {
                let effort = BoundEffort {
                    labels: if seed % 3 == 0 { 2 } else { 1000 },
                    pairs: 1000,
                    worth: f64::INFINITY,
                };
                let instants = if seed % 5 == 0 { 3 } else { usize::MAX };
                let lower = whole + bound_at(&graph, memory, effort, instants, &Work::endless()).extra;
                if let Some(best) = optimum(&dag, memory) {
                    assert!(lower <= best, "seed {seed}, memory {memory}: bound {lower}, optimum {best}");
                    tight += usize::from(lower == best);
                }
            }
        }
        assert!(tight > 3000, "the bound should be met often, and was {tight} times");
    }

    #[test]
    fn a_bound_whose_work_ends_is_a_bound_still() {
        for (seed, work) in (0..600).zip([0, 10, 40, 100, 400].into_iter().cycle()) {
            let dag = random_dag(seed);
            let graph: SearchGraph<1> = SearchGraph::new(&dag, Oddities::Removed);
            let (memory, whole) = (graph.least_memory(), graph.fixed_cost + graph.cost.iter().sum::<f64>());
            let effort = BoundEffort { labels: 1000, pairs: 1000, worth: f64::INFINITY };
            let ended = bound(&graph, memory, effort, &Work::of(work)).extra;
            if let Some(best) = optimum(&dag, memory) {
                assert!(whole + ended <= best, "seed {seed}: bound {ended}, optimum {best}");
            }
        }
    }

    #[test]
    fn below_the_least_memory_there_is_no_schedule() {
        for seed in 0..300 {
            let dag = random_dag(seed);
            let graph: SearchGraph<1> = SearchGraph::new(&dag, Oddities::Removed);
            assert_eq!(optimum(&dag, graph.least_memory() - 1), None, "seed {seed}");
        }
    }
}
