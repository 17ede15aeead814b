//! Where state lives: in the arena for good, or on another tier, from which it is fetched for every stay.
//!
//! ```text
//! arena   | weights | gradients | optimizer | transient: activations, scratch, and state that is in for a stay |
//! tier    | optimizer | weights | values that wait                                                            |
//! ```
//!
//! State leaves in one fixed order, and a prefix of that order, just long enough, is away:
//!
//! 1. moments of the optimizer, which move once a step however many micro-batches it has;
//! 2. weights that can be fetched while the layers before them are computed;
//! 3. the other weights, which the first layers read at once;
//! 4. gradient sums, which every micro-batch both reads and writes.
//!
//! Within each kind the order is that of declaration. Of equal layers the first leave first: their weights are not
//! needed around the turn, when the most bytes are alive. The order and the lengths that are tried depend on the
//! program alone, so that more memory is never slower. State smaller than a block of the tier stays, and so do
//! constants and outputs.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_graph::{Graph, Phase, StateKind};

use crate::device::{Direction, Link, Scratch, aligned};
use crate::program::{Costed, Program, Purpose, StateDiffers, StateRange, declared_bytes, declared_state};
use crate::schedule::Away;
use crate::schedule::sequence::Sequence;

/// How many prefix lengths are tried for each purpose, in the order in which purposes leave.
const RUNGS: [(Purpose, u64); 3] = [(Purpose::Optimizer, 4), (Purpose::Weights, 8), (Purpose::Gradients, 2)];
/// The lengths that are tried for a long program.
const FEW_RUNGS: [(Purpose, u64); 3] =
    [(Purpose::Optimizer, 1), (Purpose::Weights, 2), (Purpose::Gradients, 1)];

/// All state of a program, each in its place.
#[derive(Clone, Debug)]
pub(crate) struct Residency {
    /// State ranges by purpose, those of one purpose in the order of declaration.
    pub(crate) states: Vec<StateRange>,
    /// Bytes that state takes of the tier.
    pub(crate) taken: u64,
}

impl Residency {
    /// Sends `away` bytes of state to the tier that the device offers, or as many as can go. In the arena, weights come
    /// first, then gradients, then moments, one range per purpose, so that a pass over all of them is a pass over
    /// consecutive bytes.
    pub(crate) fn new(program: &Program, away: u64) -> Result<Residency, StateDiffers> {
        let order = if away > 0 { StateOrder::new(program)? } else { StateOrder::none(program)? };
        Ok(Residency::of(&order, program, away))
    }

    /// The same, with the order in which state leaves.
    pub(crate) fn of(order: &StateOrder, program: &Program, away: u64) -> Residency {
        let mut states = order.states.clone();
        let link = program.train.facts.link;
        let (gone, taken) = order.gone(link.as_ref(), away);
        for (index, offset) in gone {
            (states[index].tier, states[index].offset) = (link.map(|link| link.tier), offset);
        }
        let mut next = 0;
        for range in states.iter_mut().filter(|range| range.tier.is_none()) {
            range.offset = next;
            next += range.bytes;
        }
        Residency { states, taken }
    }

    /// Bytes of state in the arena.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.states.iter().filter(|range| range.tier.is_none()).map(|range| range.bytes).sum()
    }

    /// Offsets of state in the arena, by name.
    pub(crate) fn resident_offsets(&self) -> BTreeMap<&str, u64> {
        let resident = self.states.iter().filter(|range| range.tier.is_none());
        resident.map(|range| (range.name.as_str(), range.offset)).collect()
    }

    /// The runs of `sequence` with state that is away.
    pub(crate) fn stream(&self, graph: &Graph, sequence: Sequence) -> Sequence {
        let away = self.states.iter().filter_map(|range| {
            let (tier, state) = (range.tier?, graph.state_named(&range.name)?);
            Some(Away { state, tier, tier_offset: range.offset, bytes: range.bytes })
        });
        StateAway { ranges: away.collect(), taken: self.taken }.stream(graph, sequence)
    }
}

/// All state of a program and the order in which it leaves: found once for all amounts that are tried.
#[derive(Debug)]
pub(crate) struct StateOrder {
    states: Vec<StateRange>,
    /// Indices of `states`, those that leave first at the front.
    leaving: Vec<usize>,
}

impl StateOrder {
    /// The order of a program; nothing leaves where the device has no tier.
    pub(crate) fn new(program: &Program) -> Result<StateOrder, StateDiffers> {
        let states = declared_state(program)?;
        let link = program.train.facts.link;
        let leaving = link.map_or_else(Vec::new, |link| preferred(program, &states, &link));
        Ok(StateOrder { states, leaving })
    }

    /// The state that leaves if `away` bytes of it go, as indices with their offsets in the tier, and the bytes that it
    /// takes there.
    fn gone(&self, link: Option<&Link>, away: u64) -> (Vec<(usize, u64)>, u64) {
        let (mut gone, mut taken, mut left) = (Vec::new(), 0, away);
        let Some(link) = link else { return (gone, taken) };
        for &index in &self.leaving {
            let bytes = self.states[index].bytes;
            let end = taken + aligned(bytes, link.block);
            if left == 0 || end > link.room {
                break;
            }
            gone.push((index, taken));
            (taken, left) = (end, left.saturating_sub(bytes));
        }
        (gone, taken)
    }

    /// Bytes of state in the arena if `away` bytes of it go.
    pub(crate) fn resident_bytes(&self, link: Option<&Link>, away: u64) -> u64 {
        let (gone, _) = self.gone(link, away);
        bytes_of(&self.states) - bytes_of(gone.iter().map(|&(index, _)| &self.states[index]))
    }

    /// Bytes of gradients and of other state that can go.
    pub(crate) fn bytes_that_can_go(&self, link: &Link) -> (u64, u64) {
        let (gone, _) = self.gone(Some(link), u64::MAX);
        let ranges = gone.iter().map(|&(index, _)| &self.states[index]);
        let (gradients, others): (Vec<&StateRange>, Vec<&StateRange>) =
            ranges.partition(|range| range.purpose == Purpose::Gradients);
        (bytes_of(gradients), bytes_of(others))
    }

    /// The state of a graph that is away if `away` bytes go, the bytes of all state that stays, and the bytes of weights that
    /// go. Names are looked up for those that go alone.
    pub(crate) fn division(&self, part: &Costed, away: u64) -> Division {
        let link = part.facts.link;
        let (mut gone, taken) = self.gone(link.as_ref(), away);
        gone.sort_unstable();
        let going: Vec<&StateRange> = gone.iter().map(|&(index, _)| &self.states[index]).collect();
        let weights = going.iter().copied().filter(|range| range.purpose == Purpose::Weights);
        let ranges = gone.iter().filter_map(|&(index, tier_offset)| {
            let StateRange { name, bytes, .. } = &self.states[index];
            Some(Away { state: part.graph.state_named(name)?, tier: link?.tier, tier_offset, bytes: *bytes })
        });
        Division {
            state: StateAway { ranges: ranges.collect(), taken },
            resident: bytes_of(&self.states) - bytes_of(going.iter().copied()),
            weights: bytes_of(weights),
        }
    }

    fn none(program: &Program) -> Result<StateOrder, StateDiffers> {
        Ok(StateOrder { states: declared_state(program)?, leaving: Vec::new() })
    }
}

fn bytes_of<'a>(ranges: impl IntoIterator<Item = &'a StateRange>) -> u64 {
    ranges.into_iter().map(|range| range.bytes).sum()
}

/// How state divides between arena and tier.
#[derive(Debug)]
pub(crate) struct Division {
    /// The state of a graph that is away.
    pub(crate) state: StateAway,
    /// Bytes of state in the arena.
    pub(crate) resident: u64,
    /// Bytes of weights that are away.
    pub(crate) weights: u64,
}

/// State of a graph that is away, without the names of all the rest.
#[derive(Clone, Debug)]
pub(crate) struct StateAway {
    ranges: Vec<Away>,
    /// Bytes that the state takes on the tier.
    taken: u64,
}

impl StateAway {
    /// The runs of `sequence` with this state away.
    pub(crate) fn stream(&self, graph: &Graph, sequence: Sequence) -> Sequence {
        sequence.with_away(graph, self.ranges.clone(), self.taken)
    }

    /// The ranges that are away.
    pub(crate) fn ranges(&self) -> &[Away] {
        &self.ranges
    }

    /// Bytes that the ranges take on the tier.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }
}

/// Bytes of the arena that state takes when `away` bytes of it are on a tier.
pub(crate) fn persistent_bytes(program: &Program, away: u64) -> Result<u64, StateDiffers> {
    if away == 0 || program.train.facts.link.is_none() {
        return declared_bytes(program);
    }
    Ok(Residency::new(program, away)?.resident_bytes())
}

/// Amounts of state to send away, rising; none if the device offers no tier.
pub(crate) fn rungs(order: &StateOrder, long: bool) -> Vec<u64> {
    let StateOrder { states, leaving } = order;
    let (mut rungs, mut before) = (Vec::new(), 0);
    for (purpose, count) in if long { FEW_RUNGS } else { RUNGS } {
        let of_purpose = leaving.iter().filter(|&&index| states[index].purpose == purpose);
        let bytes: u64 = of_purpose.map(|&index| states[index].bytes).sum();
        rungs.extend((1..=count).map(|rung| before + bytes * rung / count).filter(|_| bytes > 0));
        before += bytes;
    }
    rungs.dedup();
    rungs
}

/// State that may be away, as indices of `states`, in the order in which it leaves.
fn preferred(program: &Program, states: &[StateRange], link: &Link) -> Vec<usize> {
    let graph = &program.train.graph;
    let leads = leads(program);
    let named = named_outputs(program);
    let rank = |range: &StateRange| {
        if range.bytes < link.block || named.contains(range.name.as_str()) {
            return None;
        }
        let state = graph.state_named(&range.name)?;
        let lead = leads[state.index()]?;
        match graph.state(state).kind {
            StateKind::Moment => Some(0),
            StateKind::Parameter { .. } if lead >= link.seconds(Direction::In, range.bytes) => Some(1),
            StateKind::Parameter { .. } => Some(2),
            StateKind::Gradient => Some(3),
            StateKind::Constant | StateKind::Transient | StateKind::Tally => None,
        }
    };
    let mut order: Vec<(u8, usize)> =
        states.iter().enumerate().filter_map(|(index, range)| Some((rank(range)?, index))).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, index)| index).collect()
}

/// For each state that training uses, the time of the forward pass before its first user.
fn leads(program: &Program) -> Vec<Option<f64>> {
    let part = &program.train;
    let mut leads = vec![None; part.graph.states().len()];
    let mut clock = 0.0;
    for (node, facts) in part.graph.nodes().iter().zip(&part.facts.nodes) {
        for &value in node.inputs.iter().chain(&node.outputs) {
            if let Some((state, _)) = part.graph.value(part.graph.storage(value)).state {
                leads[state.index()].get_or_insert(clock);
            }
        }
        if node.phase == Phase::Forward && !node.op.is_view() {
            clock += facts.seconds_with(Scratch::Best);
        }
    }
    leads
}

/// Names of state that is an output, which the caller reads in the arena.
fn named_outputs(program: &Program) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for (_, part) in program.roles() {
        for (_, value) in part.graph.outputs() {
            if let Some((state, _)) = part.graph.value(part.graph.storage(*value)).state {
                names.insert(part.graph.state(state).name.as_str());
            }
        }
    }
    names
}
