//! Transfers that one schedule leaves open and the next one ends.
//!
//! Every schedule was laid out by itself, with a wait for each of its transfers. State that returns to its tier at the
//! end makes the processor wait there, although the next schedule seldom needs those bytes at once. So the last waits
//! are left out, and each schedule that may follow settles the open transfers before it touches their bytes:
//!
//! ```text
//! update   … run · start out(m) · start out(v)                         was: … wait out(m) · wait out(v)
//! first    run · run · settle to 1 · run, over m's bytes · … · settle to 0 · run, over v's bytes
//! ```
//!
//! A transfer is not left open if the caller writes an input of a following schedule over its bytes. No offset changes
//! and no byte is added: the memory of a plan is the same. The judge assumes none of this and walks every pair.

use std::collections::BTreeMap;

use plimsoll_graph::Graph;

use crate::device::{Direction, Lane, Tier};
use crate::program::{Program, Role};
use crate::schedule::{Action, Away, Contents, Ends, Schedule};

/// The bytes of a transfer that crosses, in the arena and in a tier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    pub(super) lane: Lane,
    pub(super) arena: (u64, u64),
    pub(super) tier: Tier,
    pub(super) place: (u64, u64),
}

/// The share of a schedule's actions by which the transfers of the schedule before have ended. It is late, so that
/// compute seldom waits for them, but before the end, where the schedule may fetch the same state for the next.
const LATEST: (usize, usize) = (3, 4);

/// Leaves transfers of state open at the end of schedules, and has the schedules that may follow settle them.
pub(super) fn leave_open(program: &Program, schedules: &mut BTreeMap<Role, Schedule>) {
    let mut left: BTreeMap<Role, Vec<Left>> = BTreeMap::new();
    for (role, _) in program.roles() {
        let open = opened(program, schedules, role);
        if let Some(schedule) = schedules.get_mut(&role).filter(|_| !open.is_empty()) {
            schedule.actions.truncate(schedule.actions.len() - open.len());
            let last = schedule.actions.len();
            schedule.buffers.iter_mut().for_each(|buffer| buffer.end = buffer.end.min(last));
            left.insert(role, open);
        }
    }
    for (&role, schedule) in schedules.iter_mut() {
        let before = left.iter().filter(|(before, _)| before.overlaps().contains(&role));
        let before: Vec<&[Left]> = before.map(|(_, left)| left.as_slice()).collect();
        let settles = Lane::ALL.into_iter().flat_map(|lane| settles(schedule, lane, &before)).collect();
        insert(schedule, settles);
    }
}

/// The transfers whose waits end the schedule of `role` and may be left open, because in every schedule that may follow
/// the caller's inputs lie elsewhere.
fn opened(program: &Program, schedules: &BTreeMap<Role, Schedule>, role: Role) -> Vec<Left> {
    let Some(schedule) = schedules.get(&role) else { return Vec::new() };
    let followers =
        role.overlaps().iter().filter_map(|next| Some((schedules.get(next)?, program.part(*next)?)));
    let inputs: Vec<(u64, u64)> =
        followers.flat_map(|(next, part)| input_ranges(&part.graph, next).collect::<Vec<_>>()).collect();
    if role.overlaps().iter().all(|next| !schedules.contains_key(next)) {
        return Vec::new();
    }
    let waits = schedule.actions.iter().rev().map_while(|action| going_home(schedule, action));
    let free = |left: &Left| !inputs.iter().any(|&input| meet(input, left.arena));
    let mut open: Vec<Left> = waits.take_while(free).collect();
    open.reverse();
    open
}

/// The transfer of state to its tier that an action waits for, if it is one.
fn going_home(schedule: &Schedule, action: &Action) -> Option<Left> {
    let Action::Wait { copy } = action else { return None };
    let copy = schedule.copies[*copy];
    let Ends { buffer, tier, offset, direction } = copy.ends()?;
    let buffer = schedule.buffer(buffer);
    let home = |away: &Away| {
        buffer.contents == Contents::State(away.state) && (tier, offset) == (away.tier, away.tier_offset)
    };
    let goes = direction == Direction::Out && schedule.away.iter().any(home);
    let range = |first: u64| (first, first + buffer.bytes);
    goes.then(|| Left { lane: copy.lane, arena: range(buffer.offset), tier, place: range(offset) })
}

pub(super) fn input_ranges<'a>(
    graph: &'a Graph,
    schedule: &'a Schedule,
) -> impl Iterator<Item = (u64, u64)> + 'a {
    let given =
        |contents: Contents| matches!(contents, Contents::Value(value) if graph.inputs().contains(&value));
    let inputs = schedule.buffers.iter().filter(move |buffer| given(buffer.contents));
    inputs.map(|buffer| (buffer.offset, buffer.offset + buffer.bytes))
}

pub(super) fn meet(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 < b.1 && b.0 < a.1
}

/// The waits that a schedule needs in a lane if any of `before` left its transfers open, each with the action it comes
/// before.
fn settles(schedule: &Schedule, lane: Lane, before: &[&[Left]]) -> Vec<(usize, Action)> {
    // A wait for one of its own transfers is also a wait for all transfers before it.
    let own =
        |action: &Action| matches!(action, Action::Wait { copy } if schedule.copies[*copy].lane == lane);
    let waits = schedule.actions.iter().position(own).unwrap_or(usize::MAX);
    let starts = starts(schedule);
    let mut needed: Vec<(usize, usize)> = Vec::new();
    for left in before {
        let open: Vec<&Left> = left.iter().filter(|left| left.lane == lane).collect();
        for (position, transfer) in open.iter().enumerate() {
            needed.push((first_touch(schedule, &starts, transfer), open.len() - 1 - position));
        }
    }
    needed.retain(|&(at, _)| at <= waits);
    needed.sort_unstable();
    let mut most = usize::MAX;
    let mut found = Vec::new();
    for (at, left) in needed {
        if left < most {
            most = left;
            found.push((at, Action::Settle { lane, left }));
        }
    }
    found
}

/// The action that starts each copy.
fn starts(schedule: &Schedule) -> Vec<usize> {
    let mut starts = vec![usize::MAX; schedule.copies.len()];
    for (index, action) in schedule.actions.iter().enumerate() {
        if let Action::Start { copy } = action {
            starts[*copy] = index;
        }
    }
    starts
}

/// The first action that writes the arena bytes of an open transfer, or moves its bytes of the tier; at most the latest
/// action allowed.
fn first_touch(schedule: &Schedule, starts: &[usize], left: &Left) -> usize {
    let over = |first: u64, bytes: u64, range: (u64, u64)| meet((first, first + bytes), range);
    let writes = schedule.buffers.iter().filter(|buffer| over(buffer.offset, buffer.bytes, left.arena));
    let moves = schedule.copies.iter().zip(starts).filter(|(copy, _)| {
        copy.ends().is_some_and(|Ends { buffer, tier, offset, .. }| {
            tier == left.tier && over(offset, schedule.buffer(buffer).bytes, left.place)
        })
    });
    let first = writes.map(|buffer| buffer.start).chain(moves.map(|(_, start)| *start)).min();
    first.unwrap_or(usize::MAX).min(schedule.actions.len() * LATEST.0 / LATEST.1)
}

/// Puts actions before those that they are listed with.
pub(super) fn insert(schedule: &mut Schedule, mut added: Vec<(usize, Action)>) {
    if added.is_empty() {
        return;
    }
    added.sort_by_key(|(at, _)| *at);
    let places: Vec<usize> = added.iter().map(|(at, _)| *at).collect();
    let moved = |action: usize| action + places.partition_point(|&at| at <= action);
    let (old, mut added) = (std::mem::take(&mut schedule.actions), added.into_iter().peekable());
    for (index, action) in old.into_iter().enumerate() {
        while let Some((_, new)) = added.next_if(|(at, _)| *at <= index) {
            schedule.actions.push(new);
        }
        schedule.actions.push(action);
    }
    schedule.actions.extend(added.map(|(_, new)| new));
    let last = schedule.actions.len();
    for buffer in &mut schedule.buffers {
        // State and inputs exist from the beginning, and a buffer that lasted to the end still does.
        buffer.start = if buffer.start == 0 { 0 } else { moved(buffer.start) };
        buffer.end = (moved(buffer.end.saturating_sub(1)) + 1).min(last);
    }
}
