//! From a kept set to a schedule: lazy recomputation, whatever the peak.
//!
//! Before the first once-node, forward nodes run in order, and an output is dropped after its last reader unless it is
//! in the kept set. From then on each once-node first recomputes exactly the values it lacks. A recomputed output stays
//! as long as a once-node within `hold` positions reads it, and is otherwise dropped, to be recomputed again. With an
//! unlimited `hold` everything runs at most twice; `hold = 1` takes the fewest bytes and the most runs.

use super::search_graph::SearchGraph;
use super::set::Set;
use super::work::Work;

/// One run: a forward node or a once-node, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Forward(usize),
    Once(usize),
}

/// A schedule: for each run, which forward outputs are resident just before it.
pub(crate) type Path<const W: usize> = Vec<(Set<W>, Action)>;

/// A schedule with its peak and cost.
#[derive(Clone, Debug)]
pub(crate) struct Trial<const W: usize> {
    pub(crate) path: Path<W>,
    /// Cost of the forward runs.
    pub(crate) cost: f64,
    pub(crate) peak: u64,
}

/// The schedule for `keep`. If the allowed work is used up first, the schedule is cut off and its peak is infinite.
pub(crate) fn lazy<const W: usize>(
    graph: &SearchGraph<W>,
    keep: &Set<W>,
    hold: usize,
    work: &Work,
) -> Trial<W> {
    let positions = graph.once_ids.len();
    let mut trial = Trial { path: Vec::new(), cost: 0.0, peak: 0 };
    let mut resident = Set::EMPTY;
    for position in 0..positions {
        let needs = &graph.needs[position];
        let again = graph.missing(&graph.later[position], &resident);
        let wanted =
            again.iter().fold(graph.later[position], |wanted, node| wanted.union(&graph.sources[node]));
        let near = match position {
            0 => Set::EMPTY,
            _ => (position..positions.min(position.saturating_add(hold)))
                .fold(Set::EMPTY, |near, at| near.union(&graph.needs[at])),
        };
        let stays = wanted.intersection(&keep.union(&near)).union(needs);
        let mut rest = graph.missing(needs, &resident);
        let reads =
            |rest: &Set<W>| rest.iter().fold(Set::EMPTY, |reads, node| reads.union(&graph.sources[node]));
        resident = resident.intersection(&stays.union(&reads(&rest)));
        work.spend((positions.saturating_sub(position).min(hold) + rest.iter().count()) as u64);
        while let Some(node) = rest.first().filter(|_| !work.is_done()) {
            work.spend(rest.iter().count() as u64);
            trial.peak = trial.peak.max(graph.held[position] + graph.size(&resident) + graph.running[node]);
            trial.cost += graph.cost[node];
            trial.path.push((resident, Action::Forward(node)));
            rest.remove(node);
            resident = resident.with(node).intersection(&stays.union(&reads(&rest)));
        }
        if work.is_done() {
            return Trial { peak: u64::MAX, ..trial };
        }
        let own = graph.once_running[position];
        trial.peak = trial.peak.max(graph.held[position] + graph.size(&resident) + own);
        trial.path.push((resident, Action::Once(position)));
    }
    trial
}
