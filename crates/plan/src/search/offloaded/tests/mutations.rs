//! Plans whose transfers cross from one schedule into the next, each altered in one place: the judge refuses all of them.

use proptest::arbitrary::any;
use proptest::strategy::{Strategy as _, ValueTree as _};

use super::*;
use crate::device::Lane;
use crate::plan::{Draft, PlanError, draft};
use crate::program::Role;
use crate::schedule::{Action, Buffer, Contents, Copy, End, Fault, Schedule};

/// Every kind of alteration, made at some place of a schedule; `false` where the schedule has no such place.
#[derive(Clone, Debug, PartialEq, std::marker::Copy)]
enum Mutation {
    MissingWait,
    MissingSettle,
    LateSettle,
    MoreLeft,
    NobodyStarted,
    WaitsSwapped,
    StartsSwapped,
    OtherLane,
    OtherPlace,
    TurnedRound,
    NeverSentHome,
    EarlierAhead,
    OtherAhead,
}

const ALL: [Mutation; 13] = [
    Mutation::MissingWait,
    Mutation::MissingSettle,
    Mutation::LateSettle,
    Mutation::MoreLeft,
    Mutation::NobodyStarted,
    Mutation::WaitsSwapped,
    Mutation::StartsSwapped,
    Mutation::OtherLane,
    Mutation::OtherPlace,
    Mutation::TurnedRound,
    Mutation::NeverSentHome,
    Mutation::EarlierAhead,
    Mutation::OtherAhead,
];

/// The places of the actions that `is` selects.
fn places(schedule: &Schedule, is: impl Fn(&Action) -> bool) -> Vec<usize> {
    (0..schedule.actions.len()).filter(|&at| is(&schedule.actions[at])).collect()
}

fn settles(action: &Action) -> bool {
    matches!(action, Action::Settle { .. })
}

fn starts_next(action: &Action) -> bool {
    matches!(action, Action::StartNext { .. })
}

/// Two neighbouring actions of one lane, among those that `of` gives a copy for, with different copies.
fn neighbours(schedule: &Schedule, of: fn(&Action) -> Option<usize>, pick: usize) -> Option<(usize, usize)> {
    let lane = |at: &usize| of(&schedule.actions[*at]).map(|copy| schedule.copies[copy].lane);
    let listed = places(schedule, |action| of(action).is_some());
    let pairs: Vec<(usize, usize)> = (listed.iter().enumerate())
        .filter_map(|(index, first)| {
            let next = listed[index + 1..].iter().find(|next| lane(next) == lane(first))?;
            Some((*first, *next))
        })
        .collect();
    pairs.get(pick % pairs.len().max(1)).copied()
}

fn waited(action: &Action) -> Option<usize> {
    if let Action::Wait { copy } = action { Some(*copy) } else { None }
}

/// Copies that are started and not waited for.
fn open(schedule: &Schedule) -> Vec<usize> {
    let waited: Vec<usize> = schedule.actions.iter().filter_map(waited).collect();
    (0..schedule.copies.len()).filter(|copy| !waited.contains(copy)).collect()
}

fn pick_of(listed: &[usize], pick: usize) -> Option<usize> {
    listed.get(pick % listed.len().max(1)).copied()
}

impl Mutation {
    /// Alters a schedule; `None` if it has no place for the mutation.
    fn apply(self, schedule: &mut Schedule, pick: usize) -> Option<()> {
        match self {
            Mutation::MissingWait => {
                let at = pick_of(&places(schedule, |action| waited(action).is_some()), pick)?;
                schedule.actions.remove(at);
            }
            Mutation::MissingSettle => {
                let at = pick_of(&places(schedule, settles), pick)?;
                schedule.actions.remove(at);
            }
            Mutation::LateSettle => {
                let at = pick_of(&places(schedule, settles), pick)?;
                let run = (at + 1..schedule.actions.len()).find(|&next| !settles(&schedule.actions[next]))?;
                let settle = schedule.actions.remove(at);
                schedule.actions.insert(run, settle);
            }
            Mutation::MoreLeft => {
                let at = pick_of(&places(schedule, settles), pick)?;
                let Action::Settle { left, .. } = &mut schedule.actions[at] else { return None };
                *left += 1;
            }
            Mutation::NobodyStarted => {
                let at = pick % (schedule.actions.len() + 1);
                schedule.actions.insert(at, Action::Settle { lane: Lane::FromHost, left: 0 });
            }
            Mutation::WaitsSwapped => {
                let (first, second) = neighbours(schedule, waited, pick)?;
                schedule.actions.swap(first, second);
            }
            Mutation::StartsSwapped => swap_starts(schedule, pick)?,
            // Its bytes are in use up to the action before, or its lane is.
            Mutation::EarlierAhead => {
                let ahead = places(schedule, starts_next);
                let first = *ahead.first()?;
                let before =
                    (0..first).rev().find(|&at| matches!(schedule.actions[at], Action::Run { .. }))?;
                let at = before.saturating_sub(pick % 40);
                let start = schedule.actions.remove(first);
                schedule.actions.insert(at, start);
            }
            Mutation::OtherAhead => {
                let at = pick_of(&places(schedule, starts_next), pick)?;
                let Action::StartNext { copy, .. } = &mut schedule.actions[at] else { return None };
                *copy += 1 + pick % 3;
            }
            _ => self.apply_to_open(schedule, pick)?,
        }
        Some(())
    }

    /// Alters a transfer that is left open.
    fn apply_to_open(self, schedule: &mut Schedule, pick: usize) -> Option<()> {
        let copy = pick_of(&open(schedule), pick)?;
        let altered: &mut Copy = &mut schedule.copies[copy];
        match self {
            Mutation::OtherLane => altered.lane = Lane::FromHost,
            Mutation::OtherPlace => {
                let End::Tier { tier, offset } = altered.destination else { return None };
                altered.destination = End::Tier { tier, offset: offset + (1 << 30) };
            }
            Mutation::TurnedRound => {
                let (tier, offset) = altered.tier()?;
                *altered = Copy::new(altered.buffer()?, tier, offset, Direction::In);
            }
            _ => schedule.actions.retain(|action| *action != Action::Start { copy }),
        }
        Some(())
    }
}

/// Two transfers of one lane in the wrong order: those behind are waited for first.
fn swap_starts(schedule: &mut Schedule, pick: usize) -> Option<()> {
    let closed = |action: &Action| if let Action::Start { copy } = action { Some(*copy) } else { None };
    let (first, second) = neighbours(schedule, closed, pick)?;
    let open = open(schedule);
    let is_open = |at: usize| closed(&schedule.actions[at]).is_some_and(|copy| open.contains(&copy));
    // If both transfers stay open, either may be first.
    (!is_open(first) && !is_open(second)).then(|| schedule.actions.swap(first, second))
}

/// Plans of `tiny` in which state goes home across schedules: with and without updates inside the backward pass.
fn crossing(transient: TransientBytes) -> Vec<(Program, Draft)> {
    let mut found = Vec::new();
    for in_backward in [false, true] {
        let program = program(2, Some(link(1e8)), in_backward);
        let order = Order::named(&program.train.graph, Strategy::Full);
        for away in rungs(&StateOrder::new(&program).unwrap(), false).into_iter().step_by(5) {
            let tiered = Tiered { limit: Some(transient), away };
            let draft = draft(&program, &order, Strategy::Full, Scratch::Best, tiered).unwrap();
            if draft.schedules.values().any(|schedule| schedule.actions.iter().any(settles)) {
                found.push((program.clone(), draft));
            }
        }
    }
    found
}

/// So little that a schedule needs the bytes of open transfers as soon as it begins.
const TIGHT: TransientBytes = TransientBytes(200 << 10);

/// A limit so large that a schedule may settle transfers late.
const ROOMY: TransientBytes = TransientBytes(4 << 20);

#[test]
fn plans_leave_transfers_open_and_keep_their_memory() {
    let plans = crossing(TIGHT);
    assert!(plans.len() > 3, "{} plans with transfers that cross", plans.len());
    for (program, draft) in plans {
        let left: usize = draft.schedules.values().map(|schedule| open(schedule).len()).sum();
        assert!(left > 0);
        assert!(draft.judge(&program).is_ok());
    }
}

#[test]
fn the_judge_refuses_every_kind_of_alteration() {
    let plans = crossing(TIGHT);
    let roles = [Role::First, Role::Further, Role::Update];
    let mut made = [0; ALL.len()];
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let cases = (0..plans.len(), 0..roles.len(), 0..ALL.len(), any::<usize>());
    for _ in 0..600 {
        let (plan, role, kind, pick) = cases.new_tree(&mut runner).unwrap().current();
        let (program, draft) = &plans[plan];
        let mut altered = draft.clone();
        let Some(schedule) = altered.schedules.get_mut(&roles[role]) else { continue };
        if ALL[kind].apply(schedule, pick).is_some() {
            made[kind] += 1;
            let last = schedule.actions.len();
            schedule.buffers.iter_mut().for_each(|buffer| buffer.end = buffer.end.min(last));
            assert!(altered.judge(program).is_err(), "{:?} of {:?} at {pick}", ALL[kind], roles[role]);
        }
    }
    assert!(made.iter().all(|&made| made > 3), "{made:?} alterations of {ALL:?}");
}

/// The bytes of a buffer in the arena.
fn range(buffer: &Buffer) -> (u64, u64) {
    (buffer.offset, buffer.offset + buffer.bytes)
}

fn meet(one: (u64, u64), other: (u64, u64)) -> bool {
    one.0 < other.1 && other.0 < one.1
}

/// A buffer of `schedule` that is written before anything is settled there, and a place for it that meets `taken` and that
/// the other buffers of the schedule leave free.
fn movable(schedule: &Schedule, taken: (u64, u64), (arena, alignment): (u64, u64)) -> Option<(usize, u64)> {
    let settled = schedule.actions.iter().position(settles)?;
    let free = |index: usize, at: u64| {
        let buffer = &schedule.buffers[index];
        let moved = (at, at + buffer.bytes);
        let mut others = schedule.buffers.iter().enumerate().filter(|&(other, _)| other != index);
        moved.1 <= arena
            && meet(moved, taken)
            && !others.any(|(_, other)| {
                other.start < buffer.end && buffer.start < other.end && meet(range(other), moved)
            })
    };
    let early = (schedule.buffers.iter().enumerate())
        .filter(|(_, buffer)| !matches!(buffer.contents, Contents::State(_)) && buffer.start < settled);
    early.into_iter().find_map(|(index, buffer)| {
        let mut places = (taken.0.saturating_sub(buffer.bytes)..taken.1).step_by(alignment as usize);
        places.find(|&at| free(index, at)).map(|at| (index, at))
    })
}

#[test]
fn the_judge_refuses_a_buffer_on_bytes_that_a_transfer_of_the_schedule_before_still_reads() {
    let mut moved = 0;
    for (program, draft) in crossing(ROOMY) {
        for (role, schedule) in &draft.schedules {
            for copy in open(schedule) {
                let Some(sent) = schedule.copies[copy].buffer() else { continue };
                let taken = range(&schedule.buffers[sent.index()]);
                for next in role.overlaps() {
                    let mut altered = draft.clone();
                    let Some(next) = altered.schedules.get_mut(next) else { continue };
                    let room = (draft.arena_bytes.0, program.train.facts.alignment);
                    let Some((buffer, place)) = movable(next, taken, room) else { continue };
                    next.buffers[buffer].offset = place;
                    let Err(PlanError::Refused { error, .. }) = altered.judge(&program) else {
                        panic!("{role:?}: copy {copy}, buffer {buffer} at {place} passes");
                    };
                    moved += usize::from(matches!(error.fault, Fault::Copy(_)));
                }
            }
        }
    }
    assert!(moved > 3, "{moved} buffers were refused for a transfer");
}
