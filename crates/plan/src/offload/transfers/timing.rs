//! When transfers begin and when they are waited for: a walk over the runs that keeps a clock and the bytes alive.
//!
//! A value goes out as soon as it is written. The schedule waits for that transfer when it should have arrived, or when
//! its bytes are needed, if that is earlier. The value comes back as soon as there is room for it until its user, but
//! no earlier than useful. If there is never room, it comes back just before the user, which then waits. A value that
//! has not changed since it went out is dropped and fetched again: it goes out once, however often it comes back, and a
//! frozen weight never goes out.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use plimsoll_graph::Value;

use super::live::LiveBytes;
use super::{Gap, Transfers, sorted};
use crate::device::{Direction, Link, aligned};
use crate::schedule::sequence::{Move, Operand, Sequence, Transfer};

/// Transfers are expected after this many times the time they should take: disks are not punctual.
const PATIENCE: f64 = 2.0;

/// An instance on its way out.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    of: usize,
    bytes: u64,
    /// The first run that does without the instance.
    from: usize,
    begun: f64,
    done: f64,
}

/// When the first waiting value must be fetched, so that it and all after it arrive in time. This is the minimum over
/// values of (the time of the run that reads the value, less its transfer and all transfers before it). It is kept as a
/// tree over the runs, in which the right half waits for the transfers of the left half.
struct Due {
    nodes: Vec<Waiting>,
}

/// Instances that runs of a range wait for.
#[derive(Clone, Copy)]
struct Waiting {
    count: usize,
    /// Time of all their transfers.
    transfers: f64,
    /// When the first must be fetched, if no value waits before this range.
    latest: f64,
}

impl Due {
    fn new(runs: usize) -> Due {
        let nobody = Waiting { count: 0, transfers: 0.0, latest: f64::INFINITY };
        Due { nodes: vec![nobody; 2 * runs.next_power_of_two()] }
    }

    /// Adds a value that a run at `time` reads, with a transfer of this length; a negative length removes one.
    fn change(&mut self, run: usize, transfer: f64, time: f64) {
        let mut at = self.nodes.len() / 2 + run;
        let node = self.nodes[at];
        let count = if transfer < 0.0 { node.count - 1 } else { node.count + 1 };
        let transfers = if count == 0 { 0.0 } else { node.transfers + transfer };
        let latest = if count == 0 { f64::INFINITY } else { time - transfers };
        self.nodes[at] = Waiting { count, transfers, latest };
        while at > 1 {
            at /= 2;
            let (left, right) = (self.nodes[2 * at], self.nodes[2 * at + 1]);
            self.nodes[at] = Waiting {
                count: left.count + right.count,
                transfers: left.transfers + right.transfers,
                latest: left.latest.min(right.latest - left.transfers),
            };
        }
    }

    fn latest(&self) -> f64 {
        self.nodes[1.min(self.nodes.len() - 1)].latest
    }
}

/// Gaps by run, read once from the first run to the last.
#[derive(Default)]
struct ByRun {
    listed: Vec<(u32, u32)>,
    next: usize,
}

impl ByRun {
    fn push(&mut self, run: usize, gap: usize) {
        self.listed.push((run as u32, gap as u32));
    }

    /// To be called before the first is taken. Entries of one run keep their order.
    fn sort(&mut self, runs: usize) {
        self.listed = sorted(&self.listed, runs);
    }

    /// The next gap of `run`, if there is another.
    fn take(&mut self, run: usize) -> Option<usize> {
        let &(_, gap) = self.listed.get(self.next).filter(|&&(of, _)| of as usize == run)?;
        self.next += 1;
        Some(gap as usize)
    }
}

/// The result that is wanted of a walk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Record {
    /// Only the time is wanted.
    Time,
    /// The time and the list of transfers are wanted.
    Transfers,
}

/// The walk that gives transfers their places.
pub(super) struct Placing<'a> {
    link: Link,
    limit: u64,
    runs: usize,
    /// Time of all runs before each one, if compute never waits.
    until: &'a [f64],
    chosen: &'a [Gap],
    /// Gaps by their first run, and by the run that ends them.
    begin: ByRun,
    finish: ByRun,
    /// Gaps whose instance goes out, by the run behind the one that writes it.
    made: ByRun,
    /// For each gap, the transfer that takes its instance out, unless the tier has held it from the beginning, and the
    /// transfer that brings it back, if a later run reads it.
    out: Vec<Option<usize>>,
    back: Vec<Option<usize>>,
    /// Bytes alive during each run, including buffers that came back early and excluding buffers still on their way
    /// out.
    live: LiveBytes,
    lingering: u64,
    /// The place where the last early fetch found no room: often there still is none.
    blocked: usize,
    leaving: VecDeque<Leaving>,
    /// Moves whose instance has arrived in the tier.
    gone: Vec<bool>,
    /// Gaps that have begun and whose instance has not been fetched yet, by the run that ends them, and the time at
    /// which the first fetch must start.
    wanted: BinaryHeap<Reverse<(u32, u32)>>,
    due: Due,
    /// Gaps whose instance is on its way in, with the time it arrives, and whether each gap is one.
    coming: VecDeque<(usize, f64)>,
    is_coming: Vec<bool>,
    pub(super) clock: f64,
    out_free: f64,
    in_free: f64,
    record: Record,
    /// How many moves there are, and these moves with their transfers where they are wanted.
    count: usize,
    moves: Vec<Move>,
    transfers: Vec<Transfer>,
    /// Parts of instances that are split: the instance, the run from which the part counts, and the part. They rise.
    parts: Vec<(usize, usize, usize)>,
    /// Instances so far, with the new ones.
    instances: usize,
}

impl<'a> Placing<'a> {
    /// Prepares the walk; `None` if the tier has no room for the values to be sent.
    pub(super) fn new(
        transfers: &'a Transfers,
        chosen: &'a [Gap],
        live: Vec<u64>,
        limit: u64,
        record: Record,
    ) -> Option<Placing<'a>> {
        let mut placing = Placing {
            link: transfers.link,
            limit,
            runs: transfers.runs,
            until: &transfers.until,
            chosen,
            begin: ByRun::default(),
            finish: ByRun::default(),
            made: ByRun::default(),
            out: vec![None; chosen.len()],
            back: vec![None; chosen.len()],
            live: LiveBytes::new(live),
            lingering: 0,
            blocked: 0,
            leaving: VecDeque::new(),
            gone: Vec::new(),
            wanted: BinaryHeap::new(),
            due: Due::new(transfers.runs),
            coming: VecDeque::new(),
            is_coming: vec![false; chosen.len()],
            clock: 0.0,
            out_free: 0.0,
            in_free: 0.0,
            record,
            count: 0,
            moves: Vec::new(),
            transfers: Vec::new(),
            parts: Vec::new(),
            instances: transfers.instances,
        };
        placing.split(transfers).then_some(placing)
    }

    /// The runs of `sequence` with the transfers of a finished walk.
    pub(super) fn apply(self, sequence: &Sequence) -> Sequence {
        let mut sequence = sequence.clone();
        sequence.instances.resize(self.instances, Value(0));
        let mut split = vec![false; sequence.instances.len()];
        for &(instance, _, part) in &self.parts {
            sequence.instances[part] = sequence.instances[instance];
            split[instance] = true;
        }
        for (run, execution) in sequence.executions.iter().enumerate() {
            for place in &mut sequence.operands[execution.operands()] {
                if let Operand::Instance(instance) = place
                    && split[*instance as usize]
                    && let Some(part) = self.part_at(*instance as usize, run)
                {
                    *instance = part as u32;
                }
            }
        }
        Sequence { moves: self.moves, transfers: self.transfers, ..sequence }
    }

    /// The part of an instance that counts during a run, if that is not the instance itself.
    fn part_at(&self, instance: usize, run: usize) -> Option<usize> {
        let behind = self.parts.partition_point(|&(of, from, _)| (of, from) <= (instance, run));
        let (of, _, part) = self.parts[behind.checked_sub(1)?];
        (of == instance).then_some(part)
    }

    /// Adds the transfers of every gap, and gives the users after a gap an instance of their own. Returns whether the
    /// tier has room.
    fn split(&mut self, transfers: &Transfers) -> bool {
        let mut next_offset = transfers.taken;
        let mut gaps = self.by_instance(transfers.instances).into_iter().peekable();
        while let Some(&first) = gaps.peek() {
            let Gap { instance, bytes, .. } = self.chosen[first];
            let home = transfers.home(instance).unwrap_or_else(|| {
                next_offset += aligned(bytes, self.link.block);
                next_offset - aligned(bytes, self.link.block)
            });
            // The instance that holds the value, and the move that took out the last write, with the run that wrote.
            let (mut holder, mut sent) = (instance, None);
            while let Some(index) = gaps.next_if(|&gap| self.chosen[gap].instance == instance) {
                let Gap { written, from, before, .. } = self.chosen[index];
                if let Some(run) = written.filter(|&run| sent.is_none_or(|(known, _)| known != run)) {
                    sent = Some((run, self.add_move(holder, home, Direction::Out)));
                    self.made.push(run + 1, index);
                }
                self.out[index] = sent.map(|(_, out)| out);
                self.begin.push(from, index);
                if before < self.runs {
                    // State that no run has used yet comes into its first instance.
                    if from > 0 {
                        holder = self.instances;
                        self.instances += 1;
                    }
                    if self.record == Record::Transfers {
                        self.parts.push((instance, before, holder));
                    }
                    self.back[index] = Some(self.add_move(holder, home, Direction::In));
                    self.finish.push(before, index);
                }
            }
        }
        for listed in [&mut self.begin, &mut self.finish, &mut self.made] {
            listed.sort(self.runs);
        }
        self.gone = vec![false; self.count];
        next_offset <= self.link.room
    }

    /// The indices of the gaps, those of one instance together. The gaps of an instance are in the order of runs.
    fn by_instance(&self, instances: usize) -> Vec<usize> {
        let begins = (0..).zip(self.chosen).map(|(index, gap)| (gap.from as u32, index));
        let begins = sorted(&begins.collect::<Vec<_>>(), self.runs);
        let instance = |(_, index): (u32, u32)| (self.chosen[index as usize].instance as u32, index);
        let of_instances: Vec<(u32, u32)> = begins.into_iter().map(instance).collect();
        sorted(&of_instances, instances).into_iter().map(|(_, index)| index as usize).collect()
    }

    fn add_move(&mut self, instance: usize, tier_offset: u64, direction: Direction) -> usize {
        if self.record == Record::Transfers {
            self.moves.push(Move { instance, tier: self.link.tier, tier_offset, direction });
        }
        self.count += 1;
        self.count - 1
    }

    /// Notes the beginning or the end of a move.
    fn note(&mut self, before: usize, of: usize, begins: bool) {
        if self.record == Record::Transfers {
            self.transfers.push(Transfer { before, of, begins });
        }
    }

    /// All transfers that come before `run`.
    pub(super) fn before(&mut self, run: usize) {
        self.leave(run);
        while let Some(&first) = self.leaving.front() {
            let expected = first.begun + PATIENCE * (first.done - first.begun) <= self.clock;
            let needed = self.lingering > 0 && self.live.at(run) + self.lingering > self.limit;
            if !expected && !needed {
                break;
            }
            self.wait_out(run);
        }
        while let Some(&Reverse((before, index))) = self.wanted.peek() {
            if before as usize != run && !self.is_time(run, index as usize) {
                break;
            }
            self.wanted.pop();
            self.start_in(run, index as usize);
        }
        while let Some(index) = self.finish.take(run) {
            while self.is_coming[index] {
                self.wait_in(run);
            }
        }
    }

    /// Transfers after the last run: state that was written returns to its tier.
    pub(super) fn close(&mut self) {
        let runs = self.runs;
        self.leave(runs);
        while !self.leaving.is_empty() {
            self.wait_out(runs);
        }
    }

    /// Starts the gaps that begin at `run`, and sends out the values written just before.
    fn leave(&mut self, run: usize) {
        while let Some(index) = self.begin.take(run) {
            if self.back[index].is_some() {
                let Gap { before, bytes, .. } = self.chosen[index];
                self.wanted.push(Reverse((before as u32, index as u32)));
                self.due.change(
                    before,
                    PATIENCE * self.link.seconds(Direction::In, bytes),
                    self.until[before],
                );
            }
            self.lingering += if self.is_gone(index) { 0 } else { self.chosen[index].bytes };
        }
        while let Some(index) = self.made.take(run) {
            self.start_out(run, index);
        }
    }

    /// Whether the tier holds the instance of a gap.
    fn is_gone(&self, index: usize) -> bool {
        self.out[index].is_none_or(|out| self.gone[out])
    }

    /// Whether the instance of the gap that ends first may be fetched now, and should be.
    fn is_time(&mut self, run: usize, index: usize) -> bool {
        let Gap { before, bytes, .. } = self.chosen[index];
        self.is_gone(index) && self.is_due(run) && self.has_room(run..before, bytes)
    }

    /// Whether this many more bytes fit during all of these runs.
    fn has_room(&mut self, runs: Range<usize>, bytes: u64) -> bool {
        // Where more than `most` bytes are in use, there is no room for `bytes` more.
        let Some(most) = self.limit.checked_sub(self.lingering + bytes) else { return runs.is_empty() };
        if runs.contains(&self.blocked) && self.live.at(self.blocked) > most {
            return false;
        }
        let last_full = self.live.last_above(runs, most);
        self.blocked = last_full.unwrap_or(self.blocked);
        last_full.is_none()
    }

    /// Whether the first wanted instance should be on its way now, for its own user or for those that come in after it.
    fn is_due(&self, run: usize) -> bool {
        self.due.latest() - PATIENCE * self.backlog() <= self.until[run]
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
        self.note(run, of, true);
    }

    /// Waits for the oldest instance on its way out.
    fn wait_out(&mut self, run: usize) {
        let Some(Leaving { of, bytes, from, done, .. }) = self.leaving.pop_front() else { return };
        self.clock = self.clock.max(done);
        self.lingering -= if from <= run { bytes } else { 0 };
        self.gone[of] = true;
        self.note(run, of, false);
    }

    /// Fetches the instance of the gap that ended first among those that were wanted.
    fn start_in(&mut self, run: usize, index: usize) {
        let Gap { bytes, before, .. } = self.chosen[index];
        while !self.is_gone(index) && !self.leaving.is_empty() {
            self.wait_out(run);
        }
        self.due.change(before, -PATIENCE * self.link.seconds(Direction::In, bytes), self.until[before]);
        let Some(of) = self.back[index] else { return };
        self.live.raise(run..before, bytes);
        self.clock += self.link.lost_seconds(bytes);
        self.in_free = self.in_free.max(self.clock) + self.link.seconds(Direction::In, bytes);
        self.coming.push_back((index, self.in_free));
        self.is_coming[index] = true;
        self.note(run, of, true);
    }

    /// Waits for the oldest instance on its way in.
    fn wait_in(&mut self, run: usize) {
        let Some((index, done)) = self.coming.pop_front() else { return };
        self.clock = self.clock.max(done);
        self.is_coming[index] = false;
        let Some(of) = self.back[index] else { return };
        self.note(run, of, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_is_due_when_it_or_one_behind_it_would_be_late(
            changes in prop::collection::vec((0usize..11, 1u32..9, any::<bool>()), 1..40),
        ) {
            let time = |run: usize| 7.0 * run as f64;
            let mut due = Due::new(11);
            let mut waiting: Vec<(usize, u32)> = Vec::new();
            for (run, transfer, goes) in changes {
                if let Some(at) = waiting.iter().position(|&(known, _)| goes && known == run) {
                    due.change(run, -f64::from(waiting.remove(at).1), time(run));
                } else {
                    waiting.push((run, transfer));
                    due.change(run, f64::from(transfer), time(run));
                }
                waiting.sort_unstable();
                let before = |run: usize| waiting.iter().filter(move |&&(known, _)| known <= run);
                let latest = |&(run, _): &(usize, u32)| {
                    time(run) - before(run).map(|&(_, transfer)| f64::from(transfer)).sum::<f64>()
                };
                let expected = waiting.iter().map(latest).fold(f64::INFINITY, f64::min);
                prop_assert_eq!(due.latest().to_bits(), expected.to_bits());
            }
        }
    }
}
