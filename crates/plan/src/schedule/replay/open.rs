//! Transfers that begin in one schedule and end in the next.
//!
//! There are two kinds of such transfers. State on its way to a tier is *left open*: the schedule ends without waiting
//! for it, and its bytes stay busy in the next one until that settles them. A stay of state is *started ahead*: the
//! schedule before begins a transfer of the next one, whose own start then finds it under way.
//!
//! The walk over a schedule takes the transfers that are open when it begins and returns those that are open when it
//! ends. [`replay_all`] walks every schedule alone and after each schedule that may precede it.

use std::collections::BTreeSet;

use plimsoll_graph::Graph;

use super::copies::Arrived;
use super::open_transfer::OpenTransfer;
use super::{Fault, Machine, ReplayError, walk};
use crate::device::{Direction, Lane};
use crate::program::Role;
use crate::schedule::{Action, Contents, Copy, Schedule};

/// A schedule with the graph that it runs.
#[derive(Clone, Copy, Debug)]
pub struct Judged<'a> {
    /// Role of the schedule.
    pub role: Role,
    /// The graph.
    pub graph: &'a Graph,
    /// The schedule.
    pub schedule: &'a Schedule,
}

/// The neighbours of a schedule: transfers that are open when it begins, and the schedule that runs next.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Around<'a> {
    pub(super) earlier: &'a [OpenTransfer],
    pub(super) next: Option<Judged<'a>>,
}

/// The end of a walk: transfers that are still open, and the actions that waited for open transfers of the schedule
/// before.
#[derive(Clone, Debug, Default)]
pub(super) struct Walked {
    pub(super) open: Vec<OpenTransfer>,
    pub(super) settled: BTreeSet<usize>,
}

/// Checks the schedules of a run: each alone, and each after every schedule that may precede it with open transfers
/// ([`Role::overlaps`]).
///
/// # Errors
///
/// The first fault found, with the role of the schedule that it is in.
pub fn replay_all(all: &[Judged], arena: u64) -> Result<(), (Role, ReplayError)> {
    let mut settled: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); all.len()];
    for &before in all {
        let open = alone(before, arena)?;
        for (position, &then) in all.iter().enumerate().filter(|(_, then)| overlap(before, **then)) {
            if open || before.starts_for(then.role) {
                settled[position].extend(pair(before, then, arena)?);
            }
        }
    }
    all.iter().zip(settled).try_for_each(|(judged, settled)| judged.no_idle_settle(&settled))
}

fn overlap(before: Judged, then: Judged) -> bool {
    before.role.overlaps().contains(&then.role)
}

/// Walks a schedule that starts with nothing open; returns whether it leaves anything open.
fn alone(judged: Judged, arena: u64) -> Result<bool, (Role, ReplayError)> {
    let walked = judged.walk(arena, Around::default())?;
    if !walked.open.is_empty() && judged.role.overlaps().is_empty() {
        let fault = Fault::Copy("it leaves a transfer open, and nothing may follow that waits for it".into());
        return Err((judged.role, ReplayError { action: None, after: None, fault }));
    }
    Ok(!walked.open.is_empty())
}

/// Walks two schedules that follow each other; returns the actions of the second that waited for the first.
fn pair(before: Judged, then: Judged, arena: u64) -> Result<BTreeSet<usize>, (Role, ReplayError)> {
    let open = before.walk(arena, Around { earlier: &[], next: Some(then) })?.open;
    let around = Around { earlier: &open, next: None };
    let walked = then.walk(arena, around);
    let walked = walked.map_err(|(role, error)| (role, ReplayError { after: Some(before.role), ..error }))?;
    Ok(walked.settled)
}

impl Judged<'_> {
    fn walk(self, arena: u64, around: Around) -> Result<Walked, (Role, ReplayError)> {
        walk(self.graph, self.schedule, self.role.phases(), arena, around).map_err(|error| (self.role, error))
    }

    /// Whether it starts a transfer of the schedule of `next`.
    fn starts_for(self, next: Role) -> bool {
        self.schedule
            .actions
            .iter()
            .any(|action| matches!(action, Action::StartNext { role, .. } if *role == next))
    }

    /// Refuses an action that waits for transfers that no schedule before leaves open.
    fn no_idle_settle(self, settled: &BTreeSet<usize>) -> Result<(), (Role, ReplayError)> {
        let settles = |action: &Action| matches!(action, Action::Settle { .. });
        let mut actions = self.schedule.actions.iter().enumerate();
        match actions.find(|(index, action)| settles(action) && !settled.contains(index)) {
            Some((index, _)) => {
                let fault = Fault::Copy("it settles transfers that no schedule leaves open".into());
                Err((self.role, ReplayError { action: Some(index), after: None, fault }))
            }
            None => Ok(()),
        }
    }
}

impl Machine<'_> {
    /// Transfers of the schedule before are under way when this one begins.
    pub(super) fn begin_open(&mut self, earlier: &[OpenTransfer]) -> Result<(), Fault> {
        let copies = self.schedule.copies.len();
        for (position, open) in earlier.iter().enumerate() {
            if let Some((copy, _)) = open.ahead {
                self.begin_ahead(copy, open)?;
            } else {
                self.copies.lose(open.tier, open.place);
                self.copies.occupy(copies + position, open);
                self.copies.earlier.insert(copies + position, open.clone());
            }
        }
        Ok(())
    }

    /// One of this schedule's own copies is under way: the schedule before has checked its source.
    fn begin_ahead(&mut self, copy: usize, open: &OpenTransfer) -> Result<(), Fault> {
        self.copies.occupy(copy, open);
        self.copies.ahead.insert(copy);
        let buffer = self.schedule.copies.get(copy).and_then(Copy::buffer);
        let Some(buffer) = buffer.filter(|buffer| buffer.index() < self.schedule.buffers.len()) else {
            return Err(Fault::Copy(format!("there is no copy {copy} that could be under way")));
        };
        self.claim(buffer);
        Ok(())
    }

    /// Waits until only this many transfers of the schedule before are left in a lane.
    pub(super) fn settle(&mut self, action: usize, lane: Lane, left: usize) {
        let open = |machine: &Machine, number: &usize| machine.copies.earlier.contains_key(number);
        while self.queue(lane).iter().filter(|number| open(self, number)).count() > left {
            let Some(&first) = self.queue(lane).front() else { return };
            self.finish_earlier(first);
            self.copies.settled.insert(action);
        }
    }

    /// Starts a transfer of the next schedule, if it is the one that runs next.
    pub(super) fn start_next(&mut self, role: Role, copy: usize, next: Option<Judged>) -> Result<(), Fault> {
        let Some(next) = next.filter(|next| next.role == role) else { return Ok(()) };
        let mut open = OpenTransfer::of(next.graph, next.schedule, copy)?;
        let refused = |why: &str| Err(Fault::Copy(format!("copy {copy} of `{}` {why}", role.name())));
        let state = open.state.as_ref().and_then(|name| self.graph.state_named(name));
        let (Direction::In, Some(state)) = (open.direction, state) else {
            return refused("brings in no state of this graph");
        };
        let version = self.version[state.index()];
        let bytes = open.arena.1 - open.arena.0;
        let newest = |there: &Arrived| {
            there.contents == Contents::State(state) && there.version == version && there.bytes >= bytes
        };
        if !self.arrived(open.tier, open.place.0).is_some_and(newest) {
            return refused("fetches what has not gone out");
        }
        if self.busy(open.arena, false).is_some() {
            return refused("comes in where another copy is under way");
        }
        self.lose(open.arena);
        open.ahead = Some((copy, version));
        // These transfers are numbered down from the largest number, so that no other transfer has the same number.
        self.copies.occupy(usize::MAX - self.copies.next.len(), &open);
        self.copies.next.push(open);
        Ok(())
    }

    /// Transfers that are open in the end, all of kinds that may be.
    pub(super) fn finish_open(&self) -> Result<Vec<OpenTransfer>, Fault> {
        if let Some(open) = self.copies.earlier.values().next() {
            let subject = open.subject();
            return Err(Fault::Copy(format!("nobody settles the copy of {subject} that was left open")));
        }
        if let Some(copy) = self.copies.ahead.first() {
            return Err(Fault::Copy(format!("copy {copy} was started ahead and is never started")));
        }
        let mut left = Vec::new();
        for &copy in
            self.copies.under_way.values().flatten().filter(|copy| **copy < self.schedule.copies.len())
        {
            let open = OpenTransfer::of(self.graph, self.schedule, copy)?;
            if open.direction == Direction::In || open.state.is_none() || !self.is_home(&open) {
                return Err(Fault::Copy(format!("nobody waits for copy {copy}")));
            }
            left.push(open);
        }
        for open in &self.copies.next {
            let state = open.state.as_ref().and_then(|name| self.graph.state_named(name));
            let newest = state.and_then(|state| self.version[state.index()]);
            if open.ahead.is_some_and(|(_, version)| version != newest) {
                let subject = open.subject();
                return Err(Fault::WrongVersion(format!("{subject} changes after it was fetched ahead")));
            }
        }
        left.extend(self.copies.next.iter().cloned());
        Ok(left)
    }

    /// Whether a transfer ends where the state it moves is away.
    fn is_home(&self, open: &OpenTransfer) -> bool {
        self.schedule.away.iter().any(|away| {
            (away.tier, away.tier_offset) == (open.tier, open.place.0)
                && Some(&self.graph.state(away.state).name) == open.state.as_ref()
        })
    }
}
