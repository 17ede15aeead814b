//! Values that wait on another tier while nobody reads them, so that the rest fits into fewer bytes.
//!
//! A value has *gaps*: stretches between two of its readers. In a gap its bytes can be somebody else's:
//!
//! ```text
//!            written        last forward reader          first backward reader
//! value        w───r────────r · · · · · · · · · · · · · · · · r────r
//! out            start───────────wait                                      bytes busy until the wait
//! in                                             start────────wait         bytes busy from the start
//! ```
//!
//! *Which gaps* is Belady's rule: go through the runs in order, and wherever more bytes are alive than allowed,
//! send away what is read again last. In training that is what the first layers made, so it is also what was
//! made first: the way out is in use from the beginning of the forward pass, and the way in from the turn
//! on, each for as long as compute takes. So the traffic that costs no time is as large as with a quota in every
//! layer, without room set aside for two layers' transfers; and because whole values of the whole
//! model are counted, not of one layer, nothing is gained by splitting one.
//!
//! *When*: a value goes out as soon as it is made. It is waited for when it should have arrived, or when its bytes
//! are needed, if that is earlier. It comes back when there is room until its reader, but no earlier than is
//! useful, and else just before the reader, which then stands still. A value never changes, so it goes out
//! once, however often it comes back.
//!
//! Not here: what is rebuilt instead, which the order of runs has decided.

use std::collections::{BTreeSet, VecDeque};

use plimsoll_graph::{Graph, Value};

use crate::liveness::{Gradients, aligned, draft, live_bytes};
use crate::problem::{Facts, Link, Scratch};
use crate::schedule::{Action, Direction, Schedule};
use crate::sequence::{Move, Place, Sequence, Transfer};

/// Transfers are expected after this many times the time they should take: disks are not punctual.
const PATIENCE: f64 = 2.0;

/// An order of runs whose values may be sent away.
#[derive(Clone, Debug)]
pub(crate) struct Spiller {
    link: Link,
    sequence: Sequence,
    /// Bytes alive during each run when nothing is sent away.
    live: Vec<u64>,
    /// Time of each run.
    seconds: Vec<f64>,
    /// The gaps of all values, the one that ends last first.
    gaps: Vec<Gap>,
    /// The most bytes alive during one run when every gap is used.
    least: u64,
}

/// A stretch of runs in which nobody reads an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    instance: usize,
    bytes: u64,
    /// The run that writes the instance.
    written: usize,
    /// The last run that uses it before the gap, and the first behind it.
    after: usize,
    before: usize,
}

/// An order with its transfers.
#[derive(Clone, Debug)]
pub(crate) struct Spilled {
    pub(crate) sequence: Sequence,
    /// Predicted time, with the time that runs stand still.
    pub(crate) seconds: f64,
}

impl Spiller {
    /// Finds the gaps of `sequence`; none when the device has no other tier.
    pub(crate) fn new(graph: &Graph, facts: &Facts, scratch: Scratch, sequence: Sequence) -> Option<Spiller> {
        let link = facts.link?;
        let slots = draft("", graph, &sequence, facts, scratch, Gradients::Add).slots;
        let seconds =
            sequence.executions.iter().map(|run| facts.nodes[run.node.index()].seconds_with(scratch));
        let named: BTreeSet<Value> = graph.outputs().iter().map(|(_, value)| graph.storage(*value)).collect();
        let size = |value: Value| aligned(graph.ty(value).bytes() as u64, facts.alignment);
        let worth = |value: Value| size(value) >= link.block && !named.contains(&value);
        let mut gaps = gaps(&sequence);
        gaps.retain(|gap| worth(sequence.instances[gap.instance]));
        for gap in &mut gaps {
            gap.bytes = size(sequence.instances[gap.instance]);
        }
        gaps.sort_by(|a, b| (b.before, b.bytes, a.instance).cmp(&(a.before, a.bytes, b.instance)));
        let (live, seconds) = (live_bytes(&slots), seconds.collect());
        let mut spiller = Spiller { link, live, seconds, gaps, sequence, least: 0 };
        spiller.least = spiller.choose(0).1.into_iter().max().unwrap_or(0);
        Some(spiller)
    }

    /// The most bytes alive during one run when everything that can be is sent away: no limit below is kept.
    pub(crate) fn least_bytes(&self) -> u64 {
        self.least
    }

    /// Time of all runs when none stands still.
    pub(crate) fn busy_seconds(&self) -> f64 {
        self.seconds.iter().sum()
    }

    /// The most bytes alive during one run when nothing is sent away.
    pub(crate) fn most_bytes(&self) -> u64 {
        self.live.iter().copied().max().unwrap_or(0)
    }

    /// No way of keeping at most `limit` bytes alive is faster: what does not fit at the fullest moment has gone
    /// out before it and comes in behind it.
    pub(crate) fn lower_bound(&self, limit: u64) -> f64 {
        let bytes = self.most_bytes().saturating_sub(limit.max(self.least)) as f64;
        self.busy_seconds().max(bytes / self.link.out_rate + bytes / self.link.in_rate)
    }

    /// The order with transfers that keep at most `limit` bytes alive, or as few as can be; none when the tier
    /// has no room for what must go.
    pub(crate) fn within(&self, limit: u64) -> Option<Spilled> {
        let (chosen, live) = self.choose(limit);
        let mut placing = Placing::new(self, &chosen, live, limit)?;
        for run in 0..self.sequence.executions.len() {
            placing.before(run);
            placing.clock += self.seconds[run];
        }
        Some(Spilled { seconds: placing.clock, sequence: placing.sequence })
    }

    /// Belady's rule: the gaps to use, and the bytes alive during each run outside them.
    fn choose(&self, limit: u64) -> (Vec<Gap>, Vec<u64>) {
        let mut live = self.live.clone();
        let mut chosen = Vec::new();
        let mut left: Vec<&Gap> = self.gaps.iter().collect();
        for run in 0..live.len() {
            while live[run] > limit {
                let around = |gap: &&Gap| gap.after < run && run < gap.before;
                let Some(index) = left.iter().position(around) else { break };
                let gap = left.remove(index);
                live[gap.after + 1..gap.before].iter_mut().for_each(|bytes| *bytes -= gap.bytes);
                chosen.push(*gap);
            }
        }
        (chosen, live)
    }
}

/// The gaps of all instances that a run writes. Sizes are filled in by the caller.
fn gaps(sequence: &Sequence) -> Vec<Gap> {
    let mut used: Vec<Option<(usize, usize)>> = vec![None; sequence.instances.len()];
    let mut gaps = Vec::new();
    for (run, execution) in sequence.executions.iter().enumerate() {
        for place in &execution.inputs {
            let Place::Instance(instance) = *place else { continue };
            if let Some((written, last)) = used[instance] {
                if last + 1 < run {
                    gaps.push(Gap { instance, bytes: 0, written, after: last, before: run });
                }
                used[instance] = Some((written, run));
            }
        }
        for place in &execution.outputs {
            if let Place::Instance(instance) = *place {
                used[instance] = Some((run, run));
            }
        }
    }
    gaps
}

/// An instance on its way out.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    of: usize,
    bytes: u64,
    /// The last run that uses it before it is gone.
    after: usize,
    begun: f64,
    done: f64,
}

/// The walk that gives transfers their places.
struct Placing<'a> {
    link: Link,
    limit: u64,
    /// Time of all runs before each one when none stands still.
    until: Vec<f64>,
    chosen: &'a [Gap],
    /// Gaps by the run they follow, and by the run that ends them.
    begin: Vec<Vec<usize>>,
    finish: Vec<Vec<usize>>,
    /// First gaps by the run that writes the instance.
    made: Vec<Vec<usize>>,
    /// Move that takes the instance of each gap out, and the one that brings it back.
    out: Vec<usize>,
    back: Vec<usize>,
    /// Bytes alive during each run, what came back early included and what lingers on its way out not.
    live: Vec<u64>,
    lingering: u64,
    leaving: VecDeque<Leaving>,
    /// Moves whose instance has arrived in the tier.
    gone: Vec<bool>,
    /// Gaps that are under way and whose instance has not been sent for, by the run that ends them.
    wanted: BTreeSet<(usize, usize)>,
    /// Gaps whose instance is on its way in, with the time it arrives.
    coming: VecDeque<(usize, f64)>,
    clock: f64,
    out_free: f64,
    in_free: f64,
    sequence: Sequence,
}

impl<'a> Placing<'a> {
    fn new(spiller: &Spiller, chosen: &'a [Gap], live: Vec<u64>, limit: u64) -> Option<Placing<'a>> {
        let runs = spiller.sequence.executions.len();
        let until = spiller.seconds.iter().scan(0.0, |sum, seconds| {
            *sum += seconds;
            Some(*sum - seconds)
        });
        let mut placing = Placing {
            link: spiller.link,
            limit,
            until: until.collect(),
            chosen,
            begin: vec![Vec::new(); runs + 1],
            finish: vec![Vec::new(); runs + 1],
            made: vec![Vec::new(); runs + 1],
            out: vec![0; chosen.len()],
            back: vec![0; chosen.len()],
            live,
            lingering: 0,
            leaving: VecDeque::new(),
            gone: Vec::new(),
            wanted: BTreeSet::new(),
            coming: VecDeque::new(),
            clock: 0.0,
            out_free: 0.0,
            in_free: 0.0,
            sequence: spiller.sequence.clone(),
        };
        placing.split().then_some(placing)
    }

    /// Gives every gap its moves and its readers an instance of their own; says whether the tier has room.
    fn split(&mut self) -> bool {
        let mut order: Vec<usize> = (0..self.chosen.len()).collect();
        order.sort_by_key(|&gap| (self.chosen[gap].instance, self.chosen[gap].after));
        // The instances that each split instance consists of from some run on.
        let mut parts: Vec<Vec<(usize, usize)>> = vec![Vec::new(); self.sequence.instances.len()];
        let (mut sent, mut tier_offset, mut next_offset) = (None, 0, 0);
        for index in order {
            let Gap { instance, bytes, written, after, before } = self.chosen[index];
            let tier = self.link.tier;
            if sent.is_none_or(|(known, _)| known != instance) {
                (tier_offset, next_offset) = (next_offset, next_offset + aligned(bytes, self.link.block));
                self.sequence.moves.push(Move { instance, tier, tier_offset, direction: Direction::Out });
                sent = Some((instance, self.sequence.moves.len() - 1));
                self.made[written + 1].push(index);
            }
            self.out[index] = sent.map_or(0, |(_, out)| out);
            let value = self.sequence.instances[instance];
            self.sequence.instances.push(value);
            let returned = self.sequence.instances.len() - 1;
            parts[instance].push((before, returned));
            let back = Move { instance: returned, tier, tier_offset, direction: Direction::In };
            self.sequence.moves.push(back);
            self.back[index] = self.sequence.moves.len() - 1;
            self.begin[after + 1].push(index);
            self.finish[before].push(index);
        }
        for (run, execution) in self.sequence.executions.iter_mut().enumerate() {
            for place in &mut execution.inputs {
                if let Place::Instance(instance) = place
                    && let Some(&(_, part)) = parts[*instance].iter().rev().find(|(from, _)| *from <= run)
                {
                    *instance = part;
                }
            }
        }
        self.gone = vec![false; self.sequence.moves.len()];
        next_offset <= self.link.room
    }

    /// All transfers that come before `run`.
    fn before(&mut self, run: usize) {
        for index in std::mem::take(&mut self.begin[run]) {
            self.wanted.insert((self.chosen[index].before, index));
            self.lingering += if self.gone[self.out[index]] { 0 } else { self.chosen[index].bytes };
        }
        for index in std::mem::take(&mut self.made[run]) {
            self.start_out(run, index);
        }
        while let Some(&first) = self.leaving.front() {
            let expected = first.begun + PATIENCE * (first.done - first.begun) <= self.clock;
            let needed = self.lingering > 0 && self.live[run] + self.lingering > self.limit;
            if !expected && !needed {
                break;
            }
            self.wait_out(run);
        }
        while let Some(&(before, index)) = self.wanted.first() {
            if before != run && !self.is_time(run, index) {
                break;
            }
            self.start_in(run, index);
        }
        for index in std::mem::take(&mut self.finish[run]) {
            while self.coming.iter().any(|&(coming, _)| coming == index) {
                self.wait_in(run);
            }
        }
    }

    /// Whether the instance of the gap that ends first may be on its way back, and should be: for its own
    /// reader's sake or for the sake of those that come in behind it.
    fn is_time(&self, run: usize, index: usize) -> bool {
        let Gap { bytes, before, .. } = self.chosen[index];
        let room = |&live: &u64| live + self.lingering + bytes <= self.limit;
        if !self.gone[self.out[index]] || !self.live[run..before].iter().all(room) {
            return false;
        }
        let mut backlog = (self.in_free - self.clock).max(0.0);
        self.wanted.iter().any(|&(before, index)| {
            backlog += self.link.seconds(Direction::In, self.chosen[index].bytes);
            self.until[before] - self.until[run] <= PATIENCE * backlog
        })
    }

    fn start_out(&mut self, run: usize, index: usize) {
        let Gap { bytes, after, .. } = self.chosen[index];
        let begun = self.out_free.max(self.clock);
        self.out_free = begun + self.link.seconds(Direction::Out, bytes);
        let of = self.out[index];
        self.leaving.push_back(Leaving { of, bytes, after, begun: self.clock, done: self.out_free });
        self.sequence.transfers.push(Transfer { before: run, of, begins: true });
    }

    /// Waits for the oldest instance on its way out.
    fn wait_out(&mut self, run: usize) {
        let Some(Leaving { of, bytes, after, done, .. }) = self.leaving.pop_front() else { return };
        self.clock = self.clock.max(done);
        self.lingering -= if after < run { bytes } else { 0 };
        self.gone[of] = true;
        self.sequence.transfers.push(Transfer { before: run, of, begins: false });
    }

    fn start_in(&mut self, run: usize, index: usize) {
        let Gap { bytes, before, .. } = self.chosen[index];
        while !self.gone[self.out[index]] {
            self.wait_out(run);
        }
        self.wanted.remove(&(before, index));
        self.live[run..before].iter_mut().for_each(|live| *live += bytes);
        self.in_free = self.in_free.max(self.clock) + self.link.seconds(Direction::In, bytes);
        self.coming.push_back((index, self.in_free));
        self.sequence.transfers.push(Transfer { before: run, of: self.back[index], begins: true });
    }

    /// Waits for the oldest instance on its way in.
    fn wait_in(&mut self, run: usize) {
        let Some((index, done)) = self.coming.pop_front() else { return };
        self.clock = self.clock.max(done);
        self.sequence.transfers.push(Transfer { before: run, of: self.back[index], begins: false });
    }
}

/// Predicted time of a schedule: runs one after another, transfers beside them, one at a time each way.
pub(crate) fn seconds(schedule: &Schedule, facts: &Facts, scratch: Scratch) -> f64 {
    let mut clock = 0.0;
    let mut free = [0.0; 2];
    let mut done = vec![0.0; schedule.copies.len()];
    for action in &schedule.actions {
        match *action {
            Action::Run { node, .. } => clock += facts.nodes[node.index()].seconds_with(scratch),
            Action::Start { copy } => {
                let crate::schedule::Copy { buffer, direction, .. } = schedule.copies[copy];
                let lane: &mut f64 = &mut free[usize::from(direction == Direction::In)];
                let bytes = schedule.buffer(buffer).bytes;
                let takes = facts.link.map_or(0.0, |link| link.seconds(direction, bytes));
                *lane = lane.max(clock) + takes;
                done[copy] = *lane;
            }
            Action::Wait { copy } => clock = f64::max(clock, done[copy]),
        }
    }
    clock
}

#[cfg(test)]
mod tests;
