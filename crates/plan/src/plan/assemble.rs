//! From an order of runs to a draft: every schedule of a program, laid out in one arena.
//!
//! State that is away (see `offload`) has no lasting place: it passes through the transient part of every schedule that
//! uses it. Gradients that are used up in the backward pass that makes them (see `interleave` of the graph) are not among
//! the persistent ones: they lie in the schedule's own part, where activations have died.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use plimsoll_graph::Graph;

use super::ahead::start_ahead;
use super::draft::{ByPurpose, Draft};
use super::overlap::{input_ranges, leave_open};
use crate::bytes::TransientBytes;
use crate::device::{Facts, Scratch};
use crate::layout::{Effort, Gradients, Layout, Lifetimes, Slot, layout, live_bytes, slots_of, solve};
use crate::offload::{Residency, StateOrder, Transfers};
use crate::program::{Costed, Program, Role, StateDiffers};
use crate::recompute::{self, Order, Strategy};
use crate::schedule::sequence::Sequence;
use crate::schedule::{Backlog, Contents, Schedule, seconds_after};

/// How much of the values and of the state waits on the device's tier; nothing by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Tiered {
    /// Values wait on the tier where a micro-batch would take more transient bytes than this.
    pub limit: Option<TransientBytes>,
    /// Bytes of state that live on the tier.
    pub away: u64,
}

/// Drafts a plan: runs, lifetimes and offsets, and transfers that cross from one schedule into the next.
pub(crate) fn draft(
    program: &Program,
    order: &Order,
    strategy: Strategy,
    scratch: Scratch,
    tiered: Tiered,
) -> Result<Draft, StateDiffers> {
    let residency = Residency::new(program, tiered.away)?;
    let mut assembly = Assembly::new(order, scratch, tiered, &residency);
    assembly.add_all(program);
    if residency.taken > 0 {
        leave_open(program, &mut assembly.schedules);
        start_ahead(program, &mut assembly.schedules);
    }
    Ok(assembly.finish(program, strategy))
}

/// A draft in which no transfer crosses from one schedule into the next; `states` is the order in which state leaves. The
/// search compares candidates by the times of such drafts, which follow from the order alone. The time that crossing saves
/// depends on the layouts of all schedules.
pub(crate) fn closed_draft(
    program: &Program,
    states: &StateOrder,
    order: &Order,
    strategy: Strategy,
    scratch: Scratch,
    tiered: Tiered,
) -> Draft {
    let residency = Residency::of(states, program, tiered.away);
    let mut assembly = Assembly::new(order, scratch, tiered, &residency);
    assembly.add_all(program);
    assembly.finish(program, strategy)
}

/// Transient bytes of the schedules that run no micro-batch of training, if no state is away. They do not depend on what
/// a micro-batch recomputes.
pub(crate) fn beside_bytes(program: &Program, scratch: Scratch) -> TransientBytes {
    let peak = |(role, part): (Role, &Costed)| {
        let sequence = match role {
            Role::First | Role::Further => return 0,
            Role::Update => recompute::update(&part.graph),
            Role::Evaluate | Role::Generate => recompute::forward(&part.graph),
        };
        layout(&slots_of(&part.graph, &part.facts, scratch, &sequence)).peak
    };
    TransientBytes(program.roles().map(peak).max().unwrap_or(0))
}

/// The schedules that were laid out so far.
struct Assembly<'a> {
    order: &'a Order,
    scratch: Scratch,
    limit: Option<TransientBytes>,
    residency: &'a Residency,
    schedules: BTreeMap<Role, Schedule>,
    /// Bytes of the largest layout, and of the largest liveness bound with its purposes.
    transient: u64,
    fullest: Option<(u64, ByPurpose)>,
    /// The last layout with its slots: first and further micro-batches have the same lifetimes.
    known: Option<(Vec<Slot>, Layout)>,
    /// The runs of a micro-batch; the first and the further ones have the same.
    passes: Option<Sequence>,
}

impl<'a> Assembly<'a> {
    fn new(order: &'a Order, scratch: Scratch, tiered: Tiered, residency: &'a Residency) -> Assembly<'a> {
        Assembly {
            order,
            scratch,
            limit: tiered.limit,
            residency,
            schedules: BTreeMap::new(),
            transient: 0,
            fullest: None,
            known: None,
            passes: None,
        }
    }

    fn add_all(&mut self, program: &Program) {
        for (role, part) in program.roles() {
            self.add(role, part);
        }
    }

    /// Adds the schedule of a role, with the first limit whose layout is small enough, or else the last limit.
    fn add(&mut self, role: Role, part: &Costed) {
        let enough = self.transient.max(self.limit.map_or(0, |limit| limit.0));
        let (crown, mut placed) = (self.crown(role, part), None);
        for limit in self.limits(role) {
            let lifetimes = self.lifetimes(role, part, limit.map(|limit| limit.saturating_sub(crown)));
            let places = self.places(&lifetimes.slots, enough - crown);
            let fits = places.peak <= enough - crown;
            placed = Some((lifetimes, places));
            if fits {
                break;
            }
        }
        let Some((mut lifetimes, places)) = placed else { return };
        let offsets = self.offsets(role, &lifetimes.slots, &places, crown);
        assign(&mut lifetimes, &part.graph, self.residency, &offsets);
        self.transient = self.transient.max(places.peak);
        if self.fullest.is_none_or(|(most, _)| places.bound > most) {
            self.fullest = Some((places.bound, purposes_at_peak(&lifetimes)));
        }
        self.schedules.insert(role, lifetimes.schedule);
        self.known = Some((lifetimes.slots, places));
    }

    /// The limits to try for a schedule. A micro-batch gets the given limit. Other schedules that stream state get the
    /// same, or the bytes that a micro-batch takes anyway, and then less as long as the layout is too large.
    fn limits(&self, role: Role) -> Vec<Option<u64>> {
        let limit = self.limit.map(|limit| limit.0);
        match role {
            Role::First | Role::Further => vec![limit],
            _ if self.residency.taken == 0 => vec![None],
            _ => [10, 8, 6, 0].map(|tenths| Some(limit.unwrap_or(self.transient) / 10 * tenths)).to_vec(),
        }
    }

    fn lifetimes(&mut self, role: Role, part: &Costed, limit: Option<u64>) -> Lifetimes {
        let sequence = match self.passes.take() {
            Some(passes) if role == Role::Further => passes,
            _ => self.sequence(role, part, limit),
        };
        let gradients = if role == Role::First { Gradients::Replace } else { Gradients::Add };
        let mut lifetimes = Lifetimes::of(&part.graph, &part.facts, self.scratch, &sequence, gradients);
        role.name().clone_into(&mut lifetimes.schedule.name);
        self.passes = (role == Role::First).then_some(sequence);
        lifetimes
    }

    /// The runs of a role with the transfers that keep a limit.
    fn sequence(&self, role: Role, part: &Costed, limit: Option<u64>) -> Sequence {
        let Costed { graph, facts } = part;
        let whole = match role {
            Role::First | Role::Further => recompute::micro_batch(graph, self.order),
            Role::Update => recompute::update(graph),
            Role::Evaluate | Role::Generate => recompute::forward(graph),
        };
        let whole = self.residency.stream(graph, whole);
        let transfers = (limit.is_some() || !whole.away.is_empty())
            .then(|| Transfers::new(graph, facts, self.scratch, &whole));
        let limit = limit.unwrap_or(u64::MAX);
        // A tier that cannot take values as well takes state alone.
        let spilled = transfers.flatten().and_then(|transfers| {
            transfers.within(limit, &whole).or_else(|| transfers.within(u64::MAX, &whole))
        });
        spilled.unwrap_or(whole)
    }

    fn places(&self, slots: &[Slot], enough: u64) -> Layout {
        match &self.known {
            Some((known, places)) if known == slots => places.clone(),
            // The micro-batch decides how large the arena is; other schedules that stream state only have to fit.
            _ if self.transient > 0 && self.residency.taken > 0 => solve(slots, Some(enough), Effort::PLAN),
            _ => layout(slots),
        }
    }

    /// Whether a schedule is an update that streams state. Such an update lies at the upper end of the arena. A
    /// micro-batch fills the arena from the lower end, so it seldom meets state that is still on its way to the tier
    /// when the next step begins.
    fn is_streaming_update(&self, role: Role) -> bool {
        role == Role::Update && self.residency.taken > 0
    }

    /// Bytes at the upper end that a streaming update does not use, because inputs of the micro-batch lie there.
    fn crown(&self, role: Role, part: &Costed) -> u64 {
        if !self.is_streaming_update(role) {
            return 0;
        }
        let base = self.residency.resident_bytes();
        let inputs = self.schedules.values().flat_map(|schedule| input_ranges(&part.graph, schedule));
        let upper = inputs.map(|(first, _)| first - base).filter(|&first| first >= self.transient / 4 * 3);
        upper.min().map_or(0, |first| self.transient - first)
    }

    /// Offsets of a schedule.
    fn offsets(&self, role: Role, slots: &[Slot], places: &Layout, crown: u64) -> Vec<u64> {
        if !self.is_streaming_update(role) {
            return places.offsets.clone();
        }
        let top = self.transient.saturating_sub(crown).max(places.peak);
        slots.iter().zip(&places.offsets).map(|(slot, offset)| top - offset - slot.bytes).collect()
    }

    fn finish(self, program: &Program, strategy: Strategy) -> Draft {
        let persistent = self.residency.resident_bytes();
        let arena_bytes = TransientBytes(self.transient).arena(persistent);
        let (bound, mut by_purpose) = self.fullest.unwrap_or_default();
        for range in self.residency.states.iter().filter(|range| range.tier.is_none()) {
            by_purpose.add(range.purpose, range.bytes);
        }
        let (schedules, scratch) = (self.schedules, self.scratch);
        let times = StepTimes::of(&schedules, &program.train.facts, scratch);
        Draft {
            strategy,
            scratch,
            arena_bytes,
            liveness_bound: persistent + bound,
            states: self.residency.states.clone(),
            by_purpose: by_purpose.in_arena(arena_bytes),
            micro_batch_seconds: times.micro_batch * program.passes() as f64,
            update_seconds: times.update,
            schedules,
        }
    }
}

/// Times of a micro-batch and of the update of these schedules, by facts that need not be those they were made with.
pub(crate) fn step_times(
    schedules: &BTreeMap<Role, Schedule>,
    facts: &Facts,
    scratch: Scratch,
) -> (f64, f64) {
    let StepTimes { micro_batch, update } = StepTimes::of(schedules, facts, scratch);
    (micro_batch, update)
}

/// Times of the parts of a step, once steps follow each other.
struct StepTimes {
    /// A micro-batch that follows another one.
    micro_batch: f64,
    /// The update, with the time by which it delays the micro-batches before and after it.
    update: f64,
}

impl StepTimes {
    fn of(schedules: &BTreeMap<Role, Schedule>, facts: &Facts, scratch: Scratch) -> StepTimes {
        let time = |role: Role, backlog: &Backlog, next: Role| {
            let next = schedules.get(&next).map(|schedule| (next, schedule));
            let timed =
                schedules.get(&role).map(|schedule| seconds_after(schedule, facts, scratch, backlog, next));
            timed.unwrap_or_default()
        };
        let micro_batch = if schedules.contains_key(&Role::Further) { Role::Further } else { Role::First };
        let (_, backlog) = time(micro_batch, &Backlog::default(), micro_batch);
        let (repeated, _) = time(micro_batch, &backlog, micro_batch);
        if !schedules.contains_key(&Role::Update) {
            return StepTimes { micro_batch: repeated, update: 0.0 };
        }
        let (last, backlog) = time(micro_batch, &backlog, Role::Update);
        let (update, backlog) = time(Role::Update, &backlog, Role::First);
        let (first, _) = time(Role::First, &backlog, micro_batch);
        let update = update + (last - repeated) + (first - repeated);
        StepTimes { micro_batch: repeated, update: update.max(0.0) }
    }
}

/// Writes offsets into the buffers of a schedule.
fn assign(lifetimes: &mut Lifetimes, graph: &Graph, residency: &Residency, offsets: &[u64]) {
    let (states, base) = (residency.resident_offsets(), residency.resident_bytes());
    for (buffer, slot) in lifetimes.schedule.buffers.iter_mut().zip(&lifetimes.slot_of) {
        buffer.offset = match (buffer.contents, slot) {
            (_, Some(slot)) => base + offsets[*slot],
            (Contents::State(state), None) => {
                states.get(graph.state(state).name.as_str()).copied().unwrap_or(base)
            }
            // Every buffer that is not state has a slot.
            (_, None) => base,
        };
    }
}

/// Bytes of transient slots by purpose at the fullest moment of a schedule.
fn purposes_at_peak(lifetimes: &Lifetimes) -> ByPurpose {
    let live = live_bytes(&lifetimes.slots);
    // Of equal maxima the earliest counts; `max_by_key` alone would take the last.
    let fullest = (0..live.len()).max_by_key(|&at| (live[at], Reverse(at))).unwrap_or(0);
    let mut purpose_of = vec![None; lifetimes.slots.len()];
    for (buffer, slot) in lifetimes.schedule.buffers.iter().zip(&lifetimes.slot_of) {
        if let Some(slot) = *slot
            && (buffer.start..buffer.end).contains(&fullest)
        {
            purpose_of[slot] = Some(buffer.purpose);
        }
    }
    let mut by_purpose = ByPurpose::default();
    for (slot, purpose) in lifetimes.slots.iter().zip(purpose_of) {
        if let Some(purpose) = purpose {
            by_purpose.add(purpose, slot.bytes);
        }
    }
    by_purpose
}
