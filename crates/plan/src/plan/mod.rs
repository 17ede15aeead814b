//! A plan: all schedules of a run in one arena, with state at the same offsets in each.
//!
//! ```text
//! 0            persistent                     transient                        arena
//! | weights | gradients | optimizer |  one layout per schedule, all from here  |
//! ```
//!
//! State that is away (see `offload`) is not there: it passes through the transient part of every schedule that
//! uses it. Gradients that are used up in the backward pass that makes them (see `interleave` of the graph) are not
//! among the persistent ones: they lie in the schedule's own part, where activations have died.
//!
//! Every schedule is replayed before a plan leaves this module.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use plimsoll_graph::Graph;

use crate::device::Scratch;
use crate::layout::{Effort, Gradients, Layout, Lifetimes, Slot, layout, live_bytes, slots_of, solve};
use crate::offload::{Placement, Spiller};
use crate::program::{Costed, Program, Purpose, Role, StateDiffers, StateRange};
use crate::recompute::{self, Order, Strategy};
use crate::schedule::{self, Contents, ReplayError, Schedule, replay};

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
}

/// Everything that is decided before the first step.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is dropped and rebuilt.
    pub strategy: Strategy,
    /// How much scratch actions get.
    pub scratch: Scratch,
    /// Size of the arena: the highest byte end of any buffer, and so the peak.
    pub arena_bytes: u64,
    /// The largest sum of bytes alive at one time. No layout of these schedules is smaller.
    pub liveness_bound: u64,
    /// All state, in the order it lies in the arena.
    pub states: Vec<StateRange>,
    /// The schedules of the run.
    pub schedules: BTreeMap<Role, Schedule>,
    /// Bytes by purpose at the peak.
    pub by_purpose: ByPurpose,
    /// Predicted time of one micro-batch and of one update, in seconds.
    pub micro_batch_seconds: f64,
    /// Predicted time of the optimizer.
    pub update_seconds: f64,
}

impl Plan {
    /// Predicted time of a step of `accumulation` micro-batches.
    pub fn step_seconds(&self, accumulation: usize) -> f64 {
        self.micro_batch_seconds * accumulation as f64 + self.update_seconds
    }

    /// The place of a range of state.
    pub fn state(&self, name: &str) -> Option<&StateRange> {
        self.states.iter().find(|range| range.name == name)
    }
}

/// Why a program cannot be planned. Both are faults of the program or of the planner, not of a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// Two graphs of the program disagree about a range of state.
    StateDiffers {
        /// Its name.
        name: String,
    },
    /// The judge refused a schedule.
    Refused {
        /// Which.
        schedule: &'static str,
        /// Why.
        error: ReplayError,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::StateDiffers { name } => {
                write!(f, "`{name}` has different shapes in the training and another graph")
            }
            PlanError::Refused { schedule, error } => {
                write!(f, "schedule `{schedule}` failed its check, which is a fault of plimsoll: {error}")
            }
        }
    }
}

impl std::error::Error for PlanError {}

impl From<StateDiffers> for PlanError {
    fn from(StateDiffers { name }: StateDiffers) -> PlanError {
        PlanError::StateDiffers { name }
    }
}

/// How much of what does not fit waits on the tier that the device offers; nothing by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Tiered {
    /// Transient bytes of a micro-batch above which values wait there.
    pub limit: Option<u64>,
    /// Bytes of state that live there.
    pub away: u64,
}

/// Plans `program` under one strategy, without regard to a budget.
///
/// # Errors
///
/// When graphs disagree about state, or a schedule fails the judge.
pub fn plan(program: &Program, strategy: Strategy, scratch: Scratch) -> Result<Plan, PlanError> {
    assemble(program, &Order::named(&program.train.graph, strategy), strategy, scratch)
}

/// Turns an order into a plan: runs, lifetimes, offsets, and the judge.
pub(crate) fn assemble(
    program: &Program,
    order: &Order,
    strategy: Strategy,
    scratch: Scratch,
) -> Result<Plan, PlanError> {
    assemble_within(program, order, strategy, scratch, Tiered::default())
}

/// As [`assemble`], with values and state on the tier that the device offers.
pub(crate) fn assemble_within(
    program: &Program,
    order: &Order,
    strategy: Strategy,
    scratch: Scratch,
    tiered: Tiered,
) -> Result<Plan, PlanError> {
    let plan = unjudged(program, order, strategy, scratch, tiered)?;
    for (role, part) in program.roles() {
        replay(&part.graph, &plan.schedules[&role], role.phases(), plan.arena_bytes)
            .map_err(|error| PlanError::Refused { schedule: role.name(), error })?;
    }
    Ok(plan)
}

/// As [`assemble_within`], to learn what a plan takes: the judge has not seen it, so it must not run.
pub(crate) fn unjudged(
    program: &Program,
    order: &Order,
    strategy: Strategy,
    scratch: Scratch,
    tiered: Tiered,
) -> Result<Plan, PlanError> {
    let placement = Placement::new(program, tiered.away)?;
    let persistent = placement.resident_bytes();
    let (mut transient, mut bound) = (0, 0);
    let mut schedules = BTreeMap::new();
    let mut fullest: Option<(u64, ByPurpose)> = None;
    let mut laid_out: Option<(Vec<Slot>, Layout)> = None;
    for (role, part) in program.roles() {
        let mut placed = None;
        let enough = transient.max(tiered.limit.unwrap_or(0));
        for limit in limits(role, &placement, tiered.limit, transient) {
            let draft = draft_of(role, part, order, scratch, limit, &placement);
            // First and further micro-batches differ in what they add to, not in lifetimes.
            let known = laid_out.as_ref().filter(|(slots, _)| *slots == draft.slots);
            let places = match known {
                Some((_, places)) => places.clone(),
                // The micro-batch decides how large the arena is; what streams state beside it only has to fit.
                None if transient > 0 && placement.taken > 0 => {
                    solve(&draft.slots, Some(enough), Effort::PLAN)
                }
                None => layout(&draft.slots),
            };
            let fits = places.peak <= enough;
            placed = Some((draft, places));
            if fits {
                break;
            }
        }
        let Some((mut draft, places)) = placed else { continue };
        laid_out = Some((draft.slots.clone(), places.clone()));
        assign(&mut draft, &part.graph, &placement, &places.offsets);
        transient = transient.max(places.peak);
        bound = bound.max(places.bound);
        if fullest.is_none_or(|(most, _)| places.bound > most) {
            fullest = Some((places.bound, purposes_at_peak(&draft)));
        }
        schedules.insert(role, draft.schedule);
    }
    let arena_bytes = persistent + transient;
    let mut by_purpose = fullest.map_or(ByPurpose::default(), |(_, by_purpose)| by_purpose);
    let states = placement.states;
    for range in states.iter().filter(|range| range.tier.is_none()) {
        by_purpose.bytes[range.purpose as usize] += range.bytes;
    }
    by_purpose.free = arena_bytes - by_purpose.bytes.iter().sum::<u64>();
    let seconds = |role: Role| {
        schedules.get(&role).map_or(0.0, |s| schedule::seconds(s, &program.train.facts, scratch))
    };
    Ok(Plan {
        strategy,
        scratch,
        arena_bytes,
        liveness_bound: persistent + bound,
        states,
        by_purpose,
        micro_batch_seconds: seconds(Role::First) * program.passes() as f64,
        update_seconds: seconds(Role::Update),
        schedules,
    })
}

/// Bytes of the arena that schedules beside those of a micro-batch take, where no state is away: they do not depend on
/// what a micro-batch rebuilds.
pub(crate) fn beside_bytes(program: &Program, scratch: Scratch) -> u64 {
    let peak = |(role, part): (Role, &Costed)| {
        let sequence = match role {
            Role::First | Role::Further => return 0,
            Role::Update => recompute::update(&part.graph),
            Role::Evaluate | Role::Generate => recompute::forward(&part.graph),
        };
        layout(&slots_of(&part.graph, &part.facts, scratch, &sequence)).peak
    };
    program.roles().map(peak).max().unwrap_or(0)
}

/// The limits to try for a schedule, until its layout is as small as it should be. A micro-batch gets what it is given.
/// What else streams state gets as much, or what a micro-batch takes anyway, and less where the layout of that
/// is too large.
fn limits(role: Role, placement: &Placement, limit: Option<u64>, transient: u64) -> Vec<Option<u64>> {
    match role {
        Role::First | Role::Further => vec![limit],
        _ if placement.taken == 0 => vec![None],
        _ => [10, 8, 6, 0].map(|tenths| Some(limit.unwrap_or(transient) / 10 * tenths)).to_vec(),
    }
}

fn draft_of(
    role: Role,
    part: &Costed,
    order: &Order,
    scratch: Scratch,
    limit: Option<u64>,
    placement: &Placement,
) -> Lifetimes {
    let (whole, gradients) = match role {
        Role::First => (recompute::micro_batch(&part.graph, order), Gradients::Replace),
        Role::Further => (recompute::micro_batch(&part.graph, order), Gradients::Add),
        Role::Update => (recompute::update(&part.graph), Gradients::Add),
        Role::Evaluate | Role::Generate => (recompute::forward(&part.graph), Gradients::Add),
    };
    let whole = placement.stream(&part.graph, whole);
    let spiller = (limit.is_some() || !whole.away.is_empty())
        .then(|| Spiller::new(&part.graph, &part.facts, scratch, whole.clone()));
    let limit = limit.unwrap_or(u64::MAX);
    // A tier that cannot take values as well takes state alone.
    let spilled =
        spiller.flatten().and_then(|spiller| spiller.within(limit).or_else(|| spiller.within(u64::MAX)));
    let sequence = spilled.unwrap_or(whole);
    let mut lifetimes = Lifetimes::of(&part.graph, &part.facts, scratch, &sequence, gradients);
    role.name().clone_into(&mut lifetimes.schedule.name);
    lifetimes
}

/// Writes offsets into the buffers of a draft.
fn assign(draft: &mut Lifetimes, graph: &Graph, placement: &Placement, offsets: &[u64]) {
    let (states, base) = (placement.resident_offsets(), placement.resident_bytes());
    for (buffer, slot) in draft.schedule.buffers.iter_mut().zip(&draft.slot_of) {
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
fn purposes_at_peak(draft: &Lifetimes) -> ByPurpose {
    let live = live_bytes(&draft.slots);
    // The earliest of equal maxima, so that the report does not depend on the iterator's taste.
    let fullest = (0..live.len()).max_by_key(|&at| (live[at], Reverse(at))).unwrap_or(0);
    let mut purpose_of = vec![None; draft.slots.len()];
    for (buffer, slot) in draft.schedule.buffers.iter().zip(&draft.slot_of) {
        if let Some(slot) = *slot
            && (buffer.start..buffer.end).contains(&fullest)
        {
            purpose_of[slot] = Some(buffer.purpose);
        }
    }
    let mut by_purpose = ByPurpose::default();
    for (slot, purpose) in draft.slots.iter().zip(purpose_of) {
        if let Some(purpose) = purpose {
            by_purpose.bytes[purpose as usize] += slot.bytes;
        }
    }
    by_purpose
}
