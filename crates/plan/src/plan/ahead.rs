//! Transfers that a schedule starts for the next one.
//!
//! A schedule that begins by fetching state makes the processor wait for the first transfer. The schedule before seldom
//! uses all bytes up to its end, so it starts those transfers as soon as their bytes are free, if it knows which
//! schedule comes next:
//!
//! ```text
//! first    … run · start next(m) · run · start next(v) · run
//! update   start(m) · start(v), both under way · wait(m) · run · wait(v) · run · …
//! ```
//!
//! The second schedule is unchanged, and complete by itself where something else came before it. Transfers are taken in their
//! order and only from before its first run, because a lane is a queue. No offset changes and no byte is added.

use std::collections::BTreeMap;

use plimsoll_graph::Graph;

use super::overlap::{Left, input_ranges, insert, meet};
use crate::device::{Direction, Lane};
use crate::program::{Program, Role};
use crate::schedule::{Action, Ends, Schedule};

/// Makes every schedule start the first transfers of those that may follow it, where the bytes are free.
pub(super) fn start_ahead(program: &Program, schedules: &mut BTreeMap<Role, Schedule>) {
    let roles: Vec<Role> = schedules.keys().copied().collect();
    let mut added: BTreeMap<Role, Vec<(usize, Action)>> = BTreeMap::new();
    for before in roles {
        for &next in before.overlaps() {
            let (Some(schedule), Some(part)) = (schedules.get(&next), program.part(next)) else { continue };
            let early = early(&part.graph, schedule, &schedules[&before]);
            let actions = early.into_iter().map(|(at, copy)| (at, Action::StartNext { role: next, copy }));
            added.entry(before).or_default().extend(actions);
        }
    }
    for (role, actions) in added {
        if let Some(schedule) = schedules.get_mut(&role) {
            insert(schedule, actions);
        }
    }
}

/// The transfers of `next` that `before` may start, each with the action it comes before.
fn early(graph: &Graph, next: &Schedule, before: &Schedule) -> Vec<(usize, usize)> {
    let inputs: Vec<(u64, u64)> = input_ranges(graph, next).collect();
    let last = before.actions.len();
    let mut from = 0;
    let mut found = Vec::new();
    for (at, copy) in opening(next) {
        let Some(transfer) = fetched(next, copy) else { break };
        let free = free_from(before, &transfer).max(from);
        if free >= last
            || !reaches_back(next, at, &transfer)
            || inputs.iter().any(|&input| meet(input, transfer.arena))
        {
            break;
        }
        from = free;
        found.push((free, copy));
    }
    found
}

/// The transfers that a schedule starts before its first run.
fn opening(schedule: &Schedule) -> impl Iterator<Item = (usize, usize)> + '_ {
    let before_runs = schedule.actions.iter().take_while(|action| !matches!(action, Action::Run { .. }));
    before_runs.enumerate().filter_map(|(at, action)| match action {
        Action::Start { copy } => Some((at, *copy)),
        _ => None,
    })
}

/// The bytes of a copy that brings state in from where it is away.
fn fetched(schedule: &Schedule, copy: usize) -> Option<Left> {
    let copy = schedule.copies[copy];
    let Ends { buffer, tier, offset, direction } = copy.ends()?;
    let buffer = schedule.buffer(buffer);
    let range = |first: u64| (first, first + buffer.bytes);
    let home = schedule.away.iter().any(|away| (away.tier, away.tier_offset) == (tier, offset));
    (direction == Direction::In && home).then(|| Left {
        lane: copy.lane,
        arena: range(buffer.offset),
        tier,
        place: range(offset),
    })
}

/// The first action of a schedule from which nothing touches the bytes of a transfer and its lane is free; one past the
/// last action if there is none.
fn free_from(schedule: &Schedule, transfer: &Left) -> usize {
    let last = schedule.actions.len();
    let over = |first: u64, bytes: u64, range| meet((first, first + bytes), range);
    let used = schedule.buffers.iter().filter(|buffer| over(buffer.offset, buffer.bytes, transfer.arena));
    let mut from = used.map(|buffer| buffer.end).max().unwrap_or(0);
    let mut open: Vec<usize> = Vec::new();
    for (at, action) in schedule.actions.iter().enumerate() {
        match action {
            Action::Start { copy } => {
                if schedule.copies[*copy].lane == transfer.lane {
                    from = from.max(at + 1);
                }
                if shares(schedule, *copy, transfer) {
                    open.push(*copy);
                }
            }
            Action::Wait { copy } if open.contains(copy) => {
                open.retain(|other| other != copy);
                from = from.max(at + 1);
            }
            Action::Settle { lane, .. } if is_outward(*lane) => from = from.max(at + 1),
            _ => {}
        }
    }
    if open.is_empty() { from } else { last }
}

/// Whether a copy moves bytes of the arena or of the tier that a transfer moves too.
fn shares(schedule: &Schedule, copy: usize, transfer: &Left) -> bool {
    schedule.copies[copy].ends().is_some_and(|Ends { buffer, tier, offset, .. }| {
        let buffer = schedule.buffer(buffer);
        let there = tier == transfer.tier && meet((offset, offset + buffer.bytes), transfer.place);
        there || meet((buffer.offset, buffer.offset + buffer.bytes), transfer.arena)
    })
}

/// Whether transfers of state back to its tier may still be open in a lane when a schedule begins.
fn is_outward(lane: Lane) -> bool {
    matches!(lane, Lane::DiskWrite | Lane::ToHost)
}

/// Whether nothing of the schedule touches the arena's bytes of a transfer before the action that starts it.
fn reaches_back(schedule: &Schedule, at: usize, transfer: &Left) -> bool {
    let meets = |first: u64, bytes: u64| meet((first, first + bytes), transfer.arena);
    schedule.buffers.iter().all(|buffer| buffer.start >= at || !meets(buffer.offset, buffer.bytes))
}
