//! The predicted time of a schedule, alone or after another whose transfers are still under way.

use std::collections::BTreeMap;

use plimsoll_graph::NodeId;

use super::{Action, Schedule};
use crate::device::{Direction, Facts, Lane, Link, Scratch};
use crate::program::Role;

/// Transfers that are under way when a schedule begins, as times from then on: when each is done.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Backlog {
    /// Transfers of the schedule before in each lane of [`Lane::ALL`], in their order.
    open: [Vec<f64>; Lane::ALL.len()],
    /// Transfers of this schedule that were started ahead.
    ahead: Vec<(usize, f64)>,
}

/// The walk over a schedule with a clock.
struct Walk<'a> {
    schedule: &'a Schedule,
    link: Option<Link>,
    clock: f64,
    /// When each lane has finished its transfers.
    free: [f64; Lane::ALL.len()],
    /// When each copy is done, if it has been started.
    done: Vec<Option<f64>>,
    /// Whether a copy was waited for.
    waited: Vec<bool>,
    /// When each exchange between ranks is done, infinity before it begins, and when their lane is free.
    exchanges: BTreeMap<NodeId, f64>,
    ranks_free: f64,
    backlog: &'a Backlog,
    next: Option<(Role, &'a Schedule)>,
    ahead: Vec<(usize, f64)>,
}

/// Time of a schedule that begins with a backlog of transfers, and the backlog that it leaves to `next`. Runs follow
/// one after another; transfers run beside them, one at a time in each lane.
pub(crate) fn seconds_after(
    schedule: &Schedule,
    facts: &Facts,
    scratch: Scratch,
    backlog: &Backlog,
    next: Option<(Role, &Schedule)>,
) -> (f64, Backlog) {
    let mut walk = Walk::new(schedule, facts.link, backlog, next);
    for action in &schedule.actions {
        match *action {
            Action::Run { node, .. } => walk.run(node, facts.nodes[node.index()].seconds_with(scratch)),
            Action::Await { node } => walk.clock = walk.clock.max(walk.exchanges[&node]),
            Action::Start { copy } => walk.start(copy),
            Action::Wait { copy } => walk.wait(copy),
            Action::Settle { lane, left } => walk.settle(lane, left),
            Action::StartNext { role, copy } => walk.start_next(role, copy),
        }
    }
    (walk.clock, walk.left())
}

fn position(lane: Lane) -> usize {
    lane as usize
}

impl<'a> Walk<'a> {
    fn new(
        schedule: &'a Schedule,
        link: Option<Link>,
        backlog: &'a Backlog,
        next: Option<(Role, &'a Schedule)>,
    ) -> Walk<'a> {
        let mut free: [f64; Lane::ALL.len()] =
            std::array::from_fn(|lane| backlog.open[lane].last().copied().unwrap_or(0.0));
        let mut done = vec![None; schedule.copies.len()];
        for &(copy, at) in &backlog.ahead {
            done[copy] = Some(at);
            let lane = position(schedule.copies[copy].lane);
            free[lane] = free[lane].max(at);
        }
        let waited = vec![false; schedule.copies.len()];
        let awaited = schedule.actions.iter().filter_map(|action| match action {
            Action::Await { node } => Some((*node, f64::INFINITY)),
            _ => None,
        });
        let (exchanges, ahead) = (awaited.collect(), Vec::new());
        let (clock, ranks_free) = (0.0, 0.0);
        Walk { schedule, link, clock, free, done, waited, exchanges, ranks_free, backlog, next, ahead }
    }

    /// Runs a node, or puts it into the lane between ranks where it is an exchange.
    fn run(&mut self, node: NodeId, seconds: f64) {
        match self.exchanges.get_mut(&node) {
            Some(done) => {
                self.ranks_free = self.ranks_free.max(self.clock) + seconds;
                *done = self.ranks_free;
            }
            None => self.clock += seconds,
        }
    }

    /// Puts a copy of a schedule into its lane and returns the time when it is done.
    fn queue(&mut self, schedule: &Schedule, copy: usize) -> f64 {
        let copy = schedule.copies[copy];
        let bytes = copy.buffer().map_or(0, |buffer| schedule.buffer(buffer).bytes);
        let direction = copy.direction().unwrap_or(Direction::Out);
        self.clock += self.link.map_or(0.0, |link| link.lost_seconds(bytes));
        let takes = self.link.map_or(0.0, |link| link.seconds(direction, bytes));
        let free = &mut self.free[position(copy.lane)];
        *free = free.max(self.clock) + takes;
        *free
    }

    fn start(&mut self, copy: usize) {
        if self.done[copy].is_none() {
            self.done[copy] = Some(self.queue(self.schedule, copy));
        }
    }

    fn wait(&mut self, copy: usize) {
        self.waited[copy] = true;
        self.clock = self.clock.max(self.done[copy].unwrap_or(0.0));
    }

    fn settle(&mut self, lane: Lane, left: usize) {
        let open = &self.backlog.open[position(lane)];
        if let Some(&done) = open.len().checked_sub(left + 1).and_then(|last| open.get(last)) {
            self.clock = self.clock.max(done);
        }
    }

    fn start_next(&mut self, role: Role, copy: usize) {
        if let Some((_, next)) = self.next.filter(|(next, _)| *next == role) {
            let done = self.queue(next, copy);
            self.ahead.push((copy, done));
        }
    }

    /// The transfers that are under way in the end.
    fn left(&self) -> Backlog {
        let behind = |done: f64| (done - self.clock).max(0.0);
        let mut open: [Vec<f64>; Lane::ALL.len()] = Default::default();
        for (copy, done) in self.done.iter().enumerate().filter(|(copy, _)| !self.waited[*copy]) {
            if let Some(done) = *done {
                open[position(self.schedule.copies[copy].lane)].push(behind(done));
            }
        }
        for open in &mut open {
            open.sort_by(f64::total_cmp);
        }
        Backlog { open, ahead: self.ahead.iter().map(|&(copy, done)| (copy, behind(done))).collect() }
    }
}
