//! Derives the transfers of an order with some state away from the transfers of the same order with all state in the
//! arena.
//!
//! A search looks at one order with several residencies. They share everything but the stays of state:
//!
//! ```text
//! values   w───r · · · · · · r───r          as before: their lifetimes and gaps do not depend on state
//! state    · · · r──r · · · · · · r─w · ·   away: its bytes are alive from its first user to its last,
//!                                           and it has gaps before, between and after its users
//! ```
//!
//! So the users of state are listed once for an order, and each residency costs a walk over that list. Absent: orders with
//! exchanges between ranks. These lengthen lifetimes until the exchange has ended, so such an order is looked at as a whole.

use plimsoll_graph::{Graph, StateId};

use super::{Gap, Transfers, begin, certain, least_bytes, order_of};
use crate::device::{Facts, Scratch, aligned};
use crate::offload::residency::StateAway;
use crate::schedule::sequence::{Operand, Sequence};

/// A run that reads or writes a range of state.
#[derive(Clone, Copy, Debug)]
struct Use {
    state: StateId,
    run: u32,
    writes: bool,
}

/// An order of runs with all state in the arena, from which the same order with state away follows.
#[derive(Debug)]
pub(crate) struct ResidentRuns {
    pub(crate) sequence: Sequence,
    /// Transfers with all state in the arena.
    pub(crate) transfers: Transfers,
    /// Users of state in the order of runs; none where runs include exchanges between ranks.
    uses: Option<Vec<Use>>,
}

impl ResidentRuns {
    /// The runs of `sequence`, none of whose state is away; `None` if the device has no tier.
    pub(crate) fn new(
        graph: &Graph,
        facts: &Facts,
        scratch: Scratch,
        sequence: Sequence,
    ) -> Option<ResidentRuns> {
        let transfers = Transfers::new(graph, facts, scratch, &sequence)?;
        let exchanges = |run: usize| graph.node(sequence.executions[run].node).op.collective().is_some();
        let uses = (!(0..sequence.executions.len()).any(exchanges)).then(|| uses(&sequence));
        Some(ResidentRuns { sequence, transfers, uses })
    }

    /// The transfers of these runs with state away.
    pub(crate) fn with_away(
        &self,
        graph: &Graph,
        facts: &Facts,
        scratch: Scratch,
        away: &StateAway,
    ) -> Option<Transfers> {
        match &self.uses {
            Some(uses) => {
                Some(Stays::of(graph, facts, away, uses, &self.transfers).transfers(&self.transfers))
            }
            None => Transfers::new(graph, facts, scratch, &self.streamed(graph, away)),
        }
    }

    /// The runs with state away, in full.
    pub(crate) fn streamed(&self, graph: &Graph, away: &StateAway) -> Sequence {
        away.stream(graph, self.sequence.clone())
    }
}

/// The users of state, inputs of a run before its outputs.
fn uses(sequence: &Sequence) -> Vec<Use> {
    let mut uses = Vec::new();
    for (run, execution) in (0..).zip(&sequence.executions) {
        let (inputs, outputs) = sequence.operands_of(execution);
        for (operands, writes) in [(inputs, false), (outputs, true)] {
            let states = operands.iter().filter_map(|operand| match *operand {
                Operand::State(state) => Some(Use { state, run, writes }),
                Operand::Instance(_) => None,
            });
            uses.extend(states);
        }
    }
    uses
}

/// One range of state that is away.
struct Stay {
    bytes: u64,
    home: u64,
    first: usize,
    /// The last run so far that wrote it, and the run behind its last user so far.
    written: Option<usize>,
    behind: usize,
}

/// All stays of an order, by first user, and the gaps between their users.
struct Stays {
    /// The number of instances before those of state.
    values: usize,
    taken: u64,
    list: Vec<Stay>,
    gaps: Vec<Gap>,
}

impl Stays {
    fn of(graph: &Graph, facts: &Facts, away: &StateAway, uses: &[Use], resident: &Transfers) -> Stays {
        let mut homes: Vec<Option<u64>> = vec![None; graph.states().len()];
        for range in away.ranges() {
            homes[range.state.index()] = Some(range.tier_offset);
        }
        let mut stay_of: Vec<Option<usize>> = vec![None; homes.len()];
        let mut stays =
            Stays { values: resident.instances, taken: away.taken(), list: Vec::new(), gaps: Vec::new() };
        for &Use { state, run, writes } in uses {
            let Some(home) = homes[state.index()] else { continue };
            let stay = *stay_of[state.index()].get_or_insert_with(|| {
                let value = graph.state(state).versions[0];
                let bytes = aligned(graph.ty(value).bytes() as u64, facts.alignment);
                let first = run as usize;
                stays.list.push(Stay { bytes, home, first, written: None, behind: first });
                stays.list.len() - 1
            });
            stays.extend_to(stay, run as usize, writes);
        }
        stays
    }

    /// Adds a user of a stay.
    fn extend_to(&mut self, index: usize, run: usize, writes: bool) {
        let instance = self.values + index;
        let stay = &mut self.list[index];
        if stay.behind < run {
            let &mut Stay { bytes, written, behind: from, .. } = stay;
            self.gaps.push(Gap { instance, bytes, written, from, before: run });
        }
        stay.written = if writes { Some(run) } else { stay.written };
        stay.behind = run + 1;
    }

    /// Gaps before the first users, then those behind the last ones.
    fn fixed(&self, runs: usize) -> Vec<Gap> {
        let all = || self.list.iter().zip(self.values..);
        let before = all().map(|(stay, instance)| Gap {
            instance,
            bytes: stay.bytes,
            written: None,
            from: 0,
            before: stay.first,
        });
        let behind = all().map(|(stay, instance)| Gap {
            instance,
            bytes: stay.bytes,
            written: stay.written,
            from: stay.behind,
            before: runs,
        });
        before.chain(behind).collect()
    }

    /// The transfers of an order with these stays, from those with all state `resident`.
    fn transfers(mut self, resident: &Transfers) -> Transfers {
        let runs = resident.runs;
        let fixed = self.fixed(runs);
        // All state that is away is large enough to be worth a transfer.
        self.gaps.sort_unstable_by(order_of);
        let gaps = merged(&resident.gaps, &self.gaps);
        let live = self.live(resident);
        let (inward, outward) = certain(&fixed, runs);
        Transfers {
            link: resident.link,
            runs,
            instances: self.values + self.list.len(),
            taken: self.taken,
            seconds: resident.seconds.clone(),
            until: resident.until.clone(),
            exchanges: resident.exchanges.clone(),
            begin: begin(&gaps, runs),
            least: least_bytes(&live, &gaps),
            live,
            gaps,
            fixed,
            first_home: self.values,
            homes: self.list.iter().map(|stay| stay.home).collect(),
            inward,
            outward,
        }
    }

    /// Bytes alive during each run.
    fn live(&self, resident: &Transfers) -> Vec<u64> {
        let mut change = vec![0i64; resident.runs + 1];
        for stay in &self.list {
            change[stay.first] += stay.bytes as i64;
            change[stay.behind] -= stay.bytes as i64;
        }
        let mut more = 0;
        let added = resident.live.iter().zip(&change).map(|(live, change)| {
            more += change;
            live + more as u64
        });
        added.collect()
    }
}

/// Two lists of gaps in their order, as one.
fn merged(values: &[Gap], stays: &[Gap]) -> Vec<Gap> {
    let mut gaps = Vec::with_capacity(values.len() + stays.len());
    let (mut values, mut stays) = (values.iter().peekable(), stays.iter().peekable());
    while let (Some(&value), Some(&stay)) = (values.peek(), stays.peek()) {
        let stay_first = order_of(stay, value).is_lt();
        gaps.extend(if stay_first { stays.next() } else { values.next() });
    }
    gaps.extend(values);
    gaps.extend(stays);
    gaps
}
