//! From a kept set to a schedule: lazy recomputation, whatever the peak.
//!
//! Before the first once-node, forward nodes run in order and an output leaves after its last reader
//! unless it is in the kept set. From then on each once-node first rebuilds exactly what it lacks. A
//! rebuilt output stays as long as a once-node within `hold` positions reads it, and goes otherwise, to
//! be rebuilt again: with an unlimited `hold` everything runs at most twice, with `hold = 1` memory is
//! least and runs are most.

use super::problem::Problem;
use super::set::Set;

/// One run: a forward node or a once-node, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Forward(usize),
    Once(usize),
}

/// A schedule: for each run, which forward outputs are resident just before it.
pub(crate) type Path<const W: usize> = Vec<(Set<W>, Action)>;

/// A schedule with what it takes.
#[derive(Clone, Debug)]
pub(crate) struct Draft<const W: usize> {
    pub(crate) path: Path<W>,
    /// Cost of the forward runs.
    pub(crate) cost: f64,
    pub(crate) peak: u64,
}

/// The schedule for `keep`.
pub(crate) fn lazy<const W: usize>(problem: &Problem<W>, keep: &Set<W>, hold: usize) -> Draft<W> {
    let positions = problem.once_ids.len();
    let mut draft = Draft { path: Vec::new(), cost: 0.0, peak: 0 };
    let mut resident = Set::EMPTY;
    for position in 0..positions {
        let needs = &problem.needs[position];
        let again = problem.missing(&problem.later[position], &resident);
        let wanted =
            again.iter().fold(problem.later[position], |wanted, node| wanted.union(&problem.sources[node]));
        let near = match position {
            0 => Set::EMPTY,
            _ => (position..positions.min(position.saturating_add(hold)))
                .fold(Set::EMPTY, |near, at| near.union(&problem.needs[at])),
        };
        let stays = wanted.intersection(&keep.union(&near)).union(needs);
        let mut rest = problem.missing(needs, &resident);
        let reads =
            |rest: &Set<W>| rest.iter().fold(Set::EMPTY, |reads, node| reads.union(&problem.sources[node]));
        resident = resident.intersection(&stays.union(&reads(&rest)));
        while let Some(node) = rest.first() {
            draft.peak =
                draft.peak.max(problem.held[position] + problem.size(&resident) + problem.running[node]);
            draft.cost += problem.cost[node];
            draft.path.push((resident, Action::Forward(node)));
            rest.remove(node);
            resident = resident.with(node).intersection(&stays.union(&reads(&rest)));
        }
        let own = problem.once_running[position];
        draft.peak = draft.peak.max(problem.held[position] + problem.size(&resident) + own);
        draft.path.push((resident, Action::Once(position)));
    }
    draft
}
