//! When transfers begin and when they are waited for: a walk over the runs that keeps a clock and the bytes alive.
//!
//! What goes out does so as soon as it is written. It is waited for when it should have arrived, or when its bytes
//! are needed, if that is earlier. It comes back when there is room until its user, but no earlier than is
//! useful, and else just before the user, which then stands still. What did not change since it went out, or since it
//! came in, is dropped and fetched again: a value goes out once, however often it comes back, and a frozen weight
//! never.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use plimsoll_graph::Value;

use super::{Gap, Spiller};
use crate::liveness::aligned;
use crate::problem::Link;
use crate::schedule::Direction;
use crate::sequence::{Move, Place, Sequence, Transfer};

/// Transfers are expected after this many times the time they should take: disks are not punctual.
const PATIENCE: f64 = 2.0;

/// An instance on its way out.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    of: usize,
    bytes: u64,
    /// The first run that does without it.
    from: usize,
    begun: f64,
    done: f64,
}

/// The walk that gives transfers their places.
pub(super) struct Placing<'a> {
    link: Link,
    limit: u64,
    /// Time of all runs before each one when none stands still.
    until: Vec<f64>,
    chosen: &'a [Gap],
    /// Gaps by their first run, and by the run that ends them.
    begin: Vec<Vec<usize>>,
    finish: Vec<Vec<usize>>,
    /// Gaps whose instance goes out, by the run behind the one that writes it.
    made: Vec<Vec<usize>>,
    /// Move that takes the instance of each gap out, unless the tier has held it from the beginning, and the one that
    /// brings it back, if anybody needs it.
    out: Vec<Option<usize>>,
    back: Vec<Option<usize>>,
    /// Bytes alive during each run, what came back early included and what lingers on its way out not.
    live: Vec<u64>,
    lingering: u64,
    leaving: VecDeque<Leaving>,
    /// Moves whose instance has arrived in the tier.
    gone: Vec<bool>,
    /// Gaps that are under way and whose instance has not been sent for, by the run that ends them.
    wanted: BTreeSet<(usize, usize)>,
    /// Time of runs before which nobody need be sent for: until then the wanted are not all looked at again.
    idle_until: f64,
    /// Gaps whose instance is on its way in, with the time it arrives.
    coming: VecDeque<(usize, f64)>,
    pub(super) clock: f64,
    out_free: f64,
    in_free: f64,
    moves: Vec<Move>,
    transfers: Vec<Transfer>,
    /// For each instance that is split, those it consists of, each from some run on.
    parts: BTreeMap<usize, Vec<(usize, usize)>>,
    /// Instances so far, with the new ones.
    instances: usize,
}

impl<'a> Placing<'a> {
    /// Prepares the walk; none when the tier has no room for what is to be sent.
    pub(super) fn new(
        spiller: &Spiller,
        chosen: &'a [Gap],
        live: Vec<u64>,
        limit: u64,
    ) -> Option<Placing<'a>> {
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
            out: vec![None; chosen.len()],
            back: vec![None; chosen.len()],
            live,
            lingering: 0,
            leaving: VecDeque::new(),
            gone: Vec::new(),
            wanted: BTreeSet::new(),
            idle_until: f64::NEG_INFINITY,
            coming: VecDeque::new(),
            clock: 0.0,
            out_free: 0.0,
            in_free: 0.0,
            moves: Vec::new(),
            transfers: Vec::new(),
            parts: BTreeMap::new(),
            instances: spiller.sequence.instances.len(),
        };
        placing.split(spiller).then_some(placing)
    }

    /// The runs of `sequence` with the transfers of a walk that has come to its end.
    pub(super) fn apply(self, sequence: &Sequence) -> Sequence {
        let mut sequence = sequence.clone();
        sequence.instances.resize(self.instances, Value(0));
        for (&instance, parts) in &self.parts {
            for &(_, part) in parts {
                sequence.instances[part] = sequence.instances[instance];
            }
        }
        for (run, execution) in sequence.executions.iter_mut().enumerate() {
            for place in execution.inputs.iter_mut().chain(&mut execution.outputs) {
                if let Place::Instance(instance) = place
                    && let Some(parts) = self.parts.get(instance)
                    && let Some(&(_, part)) = parts.iter().rev().find(|(from, _)| *from <= run)
                {
                    *instance = part;
                }
            }
        }
        Sequence { moves: self.moves, transfers: self.transfers, ..sequence }
    }

    /// Gives every gap its moves and its users an instance of their own; says whether the tier has room.
    fn split(&mut self, spiller: &Spiller) -> bool {
        let mut order: Vec<usize> = (0..self.chosen.len()).collect();
        order.sort_by_key(|&gap| (self.chosen[gap].instance, self.chosen[gap].from));
        let mut next_offset = spiller.sequence.taken;
        let mut gaps = order.into_iter().peekable();
        while let Some(&first) = gaps.peek() {
            let Gap { instance, bytes, .. } = self.chosen[first];
            let home = spiller.homes[instance].unwrap_or_else(|| {
                next_offset += aligned(bytes, self.link.block);
                next_offset - aligned(bytes, self.link.block)
            });
            // Who holds the instance, and the move that took out what was written last, with the run that wrote it.
            let (mut holder, mut sent) = (instance, None);
            while let Some(index) = gaps.next_if(|&gap| self.chosen[gap].instance == instance) {
                let Gap { written, from, before, .. } = self.chosen[index];
                if let Some(run) = written.filter(|&run| sent.is_none_or(|(known, _)| known != run)) {
                    sent = Some((run, self.add_move(holder, home, Direction::Out)));
                    self.made[run + 1].push(index);
                }
                self.out[index] = sent.map(|(_, out)| out);
                self.begin[from].push(index);
                if before < self.until.len() {
                    // State that nobody has used yet comes into its first instance.
                    if from > 0 {
                        holder = self.instances;
                        self.instances += 1;
                    }
                    self.parts.entry(instance).or_default().push((before, holder));
                    self.back[index] = Some(self.add_move(holder, home, Direction::In));
                    self.finish[before].push(index);
                }
            }
        }
        self.gone = vec![false; self.moves.len()];
        next_offset <= self.link.room
    }

    fn add_move(&mut self, instance: usize, tier_offset: u64, direction: Direction) -> usize {
        self.moves.push(Move { instance, tier: self.link.tier, tier_offset, direction });
        self.moves.len() - 1
    }

    /// All transfers that come before `run`.
    pub(super) fn before(&mut self, run: usize) {
        self.leave(run);
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

    /// What comes behind the last run: state that was written goes home.
    pub(super) fn close(&mut self) {
        let runs = self.until.len();
        self.leave(runs);
        while !self.leaving.is_empty() {
            self.wait_out(runs);
        }
    }

    /// Begins the gaps that begin at `run`, and sends out what was written just before.
    fn leave(&mut self, run: usize) {
        for index in std::mem::take(&mut self.begin[run]) {
            if self.back[index].is_some() {
                let Gap { before, bytes, .. } = self.chosen[index];
                self.wanted.insert((before, index));
                // Who comes in behind it must be sent for earlier by as much, and so must it, were it the first.
                let patient = PATIENCE * self.link.seconds(Direction::In, bytes);
                let own = self.until[before] - PATIENCE * self.backlog();
                self.idle_until = self.idle_until.min(own) - patient;
            }
            self.lingering += if self.is_gone(index) { 0 } else { self.chosen[index].bytes };
        }
        for index in std::mem::take(&mut self.made[run]) {
            self.start_out(run, index);
        }
    }

    /// Whether the tier holds the instance of a gap.
    fn is_gone(&self, index: usize) -> bool {
        self.out[index].is_none_or(|out| self.gone[out])
    }

    /// Whether the instance of the gap that ends first may be on its way back, and should be.
    fn is_time(&mut self, run: usize, index: usize) -> bool {
        let Gap { bytes, before, .. } = self.chosen[index];
        let (limit, lingering) = (self.limit, self.lingering);
        let room = |&live: &u64| live + lingering + bytes <= limit;
        self.is_gone(index)
            && self.until[run] >= self.idle_until
            && self.live[run..before].iter().all(room)
            && self.is_due(run)
    }

    /// Whether the first of the wanted should be on its way: for its own user's sake or for the sake of those that
    /// come in behind it.
    fn is_due(&mut self, run: usize) -> bool {
        let mut backlog = self.backlog();
        let mut latest = f64::INFINITY;
        for &(before, index) in &self.wanted {
            backlog += self.link.seconds(Direction::In, self.chosen[index].bytes);
            latest = latest.min(self.until[before] - PATIENCE * backlog);
            if latest <= self.until[run] {
                return true;
            }
        }
        self.idle_until = latest;
        false
    }

    /// Time for which the way in is taken.
    fn backlog(&self) -> f64 {
        (self.in_free - self.clock).max(0.0)
    }

    fn start_out(&mut self, run: usize, index: usize) {
        let (Gap { bytes, from, .. }, Some(of)) = (self.chosen[index], self.out[index]) else { return };
        self.clock += self.link.lost_seconds(bytes);
        let begun = self.out_free.max(self.clock);
        self.out_free = begun + self.link.seconds(Direction::Out, bytes);
        self.leaving.push_back(Leaving { of, bytes, from, begun: self.clock, done: self.out_free });
        self.transfers.push(Transfer { before: run, of, begins: true });
    }

    /// Waits for the oldest instance on its way out.
    fn wait_out(&mut self, run: usize) {
        let Some(Leaving { of, bytes, from, done, .. }) = self.leaving.pop_front() else { return };
        self.clock = self.clock.max(done);
        self.lingering -= if from <= run { bytes } else { 0 };
        self.gone[of] = true;
        self.transfers.push(Transfer { before: run, of, begins: false });
    }

    fn start_in(&mut self, run: usize, index: usize) {
        let Gap { bytes, before, .. } = self.chosen[index];
        while !self.is_gone(index) && !self.leaving.is_empty() {
            self.wait_out(run);
        }
        self.wanted.remove(&(before, index));
        let Some(of) = self.back[index] else { return };
        self.live[run..before].iter_mut().for_each(|live| *live += bytes);
        self.clock += self.link.lost_seconds(bytes);
        self.in_free = self.in_free.max(self.clock) + self.link.seconds(Direction::In, bytes);
        self.coming.push_back((index, self.in_free));
        self.transfers.push(Transfer { before: run, of, begins: true });
    }

    /// Waits for the oldest instance on its way in.
    fn wait_in(&mut self, run: usize) {
        let Some((index, done)) = self.coming.pop_front() else { return };
        self.clock = self.clock.max(done);
        let Some(of) = self.back[index] else { return };
        self.transfers.push(Transfer { before: run, of, begins: false });
    }
}
