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
//! The second schedule is unchanged, and complete by itself where something else came before it. Only transfers that stand
//! before its first run are started early, in their order, because a lane is a queue. No offset changes and no byte is added.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_graph::Graph;

use super::meeting::MeetingRanges;
use super::overlap::{Left, input_ranges, insert, meet};
use crate::device::{Direction, Lane, Tier};
use crate::program::{Program, Role};
use crate::schedule::{Action, Buffer, Ends, Schedule};

/// Makes every schedule start the first transfers of those that may follow it, where the bytes are free.
pub(super) fn start_ahead(program: &Program, schedules: &mut BTreeMap<Role, Schedule>) {
    let roles: Vec<Role> = schedules.keys().copied().collect();
    let mut added: BTreeMap<Role, Vec<(usize, Action)>> = BTreeMap::new();
    for before in roles {
        let mut freed = None;
        for &next in before.overlaps() {
            let (Some(schedule), Some(part)) = (schedules.get(&next), program.part(next)) else { continue };
            if opening(schedule).next().is_none() {
                continue;
            }
            let freed = freed.get_or_insert_with(|| Freed::new(&schedules[&before]));
            let early = early(&part.graph, schedule, freed);
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

/// The transfers of `next` that the schedule before may start, each with the action it comes before.
fn early(graph: &Graph, next: &Schedule, before: &Freed) -> Vec<(usize, usize)> {
    let inputs: Vec<(u64, u64)> = input_ranges(graph, next).collect();
    let homes: BTreeSet<(Tier, u64)> = next.away.iter().map(|away| (away.tier, away.tier_offset)).collect();
    // The earlier a buffer begins, the larger its number.
    let begins = next.buffers.iter().map(|buffer| (range_of(buffer), u64::MAX - buffer.start as u64));
    let begins = MeetingRanges::new(&begins.collect::<Vec<_>>());
    let mut from = 0;
    let mut found = Vec::new();
    for (at, copy) in opening(next) {
        let Some(transfer) = fetched(next, &homes, copy) else { break };
        let free = before.from(&transfer).max(from);
        // Nothing may touch the bytes of the arena before the action that starts the transfer.
        let reaches_back = begins.most(transfer.arena) <= u64::MAX - at as u64;
        if free >= before.last || !reaches_back || inputs.iter().any(|&input| meet(input, transfer.arena)) {
            break;
        }
        from = free;
        found.push((free, copy));
    }
    found
}

fn range_of(buffer: &Buffer) -> (u64, u64) {
    (buffer.offset, buffer.offset + buffer.bytes)
}

/// The transfers that a schedule starts before its first run.
fn opening(schedule: &Schedule) -> impl Iterator<Item = (usize, usize)> + '_ {
    let before_runs = schedule.actions.iter().take_while(|action| !matches!(action, Action::Run { .. }));
    before_runs.enumerate().filter_map(|(at, action)| match action {
        Action::Start { copy } => Some((at, *copy)),
        _ => None,
    })
}

/// The bytes of a copy that brings state in from one of its `homes`.
fn fetched(schedule: &Schedule, homes: &BTreeSet<(Tier, u64)>, copy: usize) -> Option<Left> {
    let copy = schedule.copies[copy];
    let Ends { buffer, tier, offset, direction } = copy.ends()?;
    let buffer = schedule.buffer(buffer);
    (direction == Direction::In && homes.contains(&(tier, offset))).then(|| Left {
        lane: copy.lane,
        arena: range_of(buffer),
        tier,
        place: (offset, offset + buffer.bytes),
    })
}

/// The actions of a schedule from which bytes and lanes are free.
struct Freed {
    /// Number of actions of the schedule.
    last: usize,
    /// Ranges of the arena, each with the end of its buffer or of its transfer.
    arena: MeetingRanges,
    /// Ranges of each tier, with the ends of their transfers.
    tiers: BTreeMap<Tier, MeetingRanges>,
    /// The action behind the last start in each lane.
    lanes: BTreeMap<Lane, usize>,
    /// The action behind the last settling of transfers outward.
    settled: usize,
}

/// A range of bytes and the action that it is in use until.
type Until = ((u64, u64), u64);

impl Freed {
    fn new(schedule: &Schedule) -> Freed {
        let last = schedule.actions.len();
        let mut arena: Vec<Until> =
            schedule.buffers.iter().map(|buffer| (range_of(buffer), buffer.end as u64)).collect();
        let mut tiers: BTreeMap<Tier, Vec<Until>> = BTreeMap::new();
        for (copy, end) in ends(schedule) {
            if let Some(Ends { buffer, tier, offset, .. }) = schedule.copies[copy].ends() {
                let buffer = schedule.buffer(buffer);
                arena.push((range_of(buffer), end as u64));
                tiers.entry(tier).or_default().push(((offset, offset + buffer.bytes), end as u64));
            }
        }
        let tiers = tiers.into_iter().map(|(tier, ranges)| (tier, MeetingRanges::new(&ranges)));
        let mut freed = Freed {
            last,
            arena: MeetingRanges::new(&arena),
            tiers: tiers.collect(),
            lanes: BTreeMap::new(),
            settled: 0,
        };
        for (at, action) in schedule.actions.iter().enumerate() {
            match action {
                Action::Start { copy } => {
                    freed.lanes.insert(schedule.copies[*copy].lane, at + 1);
                }
                Action::Settle { lane, .. } if is_outward(*lane) => freed.settled = at + 1,
                _ => {}
            }
        }
        freed
    }

    /// The first action from which nothing touches the bytes of a transfer and its lane is free; one past the last action if
    /// there is none.
    fn from(&self, transfer: &Left) -> usize {
        let there = self.tiers.get(&transfer.tier).map_or(0, |tier| tier.most(transfer.place));
        let bytes = self.arena.most(transfer.arena).max(there) as usize;
        let lane = self.lanes.get(&transfer.lane).copied().unwrap_or(0);
        bytes.max(lane).max(self.settled)
    }
}

/// Copies that a schedule starts, each with the action behind its wait; one past the last action where none waits.
fn ends(schedule: &Schedule) -> BTreeMap<usize, usize> {
    let mut ends = BTreeMap::new();
    for (at, action) in schedule.actions.iter().enumerate() {
        match action {
            Action::Start { copy } => {
                ends.insert(*copy, schedule.actions.len());
            }
            Action::Wait { copy } => {
                if let Some(end) = ends.get_mut(copy) {
                    *end = at + 1;
                }
            }
            _ => {}
        }
    }
    ends
}

/// Whether transfers of state back to its tier may still be open in a lane when a schedule begins.
fn is_outward(lane: Lane) -> bool {
    matches!(lane, Lane::DiskWrite | Lane::ToHost)
}
