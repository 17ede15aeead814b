//! The rules of copies: which bytes may be sent, which may be fetched, and which bytes tiers hold before and after a
//! schedule. Transfers that cross from one schedule into the next are in `open`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::exchange::is_of_exchange;
use super::open_transfer::{OpenTransfer, ends_of};
use super::{Fault, Machine};
use crate::device::{Direction, Lane, Tier};
use crate::schedule::ranges::Ranges;
use crate::schedule::{Away, Buffer, BufferId, Contents, Copy, Ends};

/// Transfers under way, oldest first, and the contents of tiers. A transfer of this schedule has the number of its
/// copy; transfers that an earlier schedule left open, or that are fetched for the next, have higher numbers.
#[derive(Debug, Default)]
pub(super) struct Copies {
    pub(super) under_way: BTreeMap<Lane, VecDeque<usize>>,
    /// The same transfers by the bytes they move, in the arena and in each tier, with their turn.
    pub(super) in_arena: Ranges<Turn>,
    pub(super) in_tier: BTreeMap<Tier, Ranges<Turn>>,
    /// Copies that were started.
    pub(super) started: usize,
    /// Ranges that arrived in each tier.
    arrived: BTreeMap<Tier, Ranges<Arrived>>,
    /// Transfers that the schedule before has left open, by number.
    pub(super) earlier: BTreeMap<usize, OpenTransfer>,
    /// Copies of this schedule that the schedule before has started and whose own start has not come yet.
    pub(super) ahead: BTreeSet<usize>,
    /// Transfers that were started for the next schedule, in order.
    pub(super) next: Vec<OpenTransfer>,
    /// Actions that waited for transfers of the schedule before.
    pub(super) settled: BTreeSet<usize>,
}

/// Direction of a copy, and the number of copies started before it: the order in which copies are examined.
pub(super) type Turn = (Direction, usize);

/// The number of every range that arrived: no two begin at one byte.
const ARRIVED: usize = 0;

/// The contents of a range of a tier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) bytes: u64,
    pub(super) contents: Contents,
    /// Version of state, where it was written in this schedule before it went out.
    pub(super) version: Option<u32>,
}

impl Copies {
    /// Marks the bytes of a transfer as busy.
    pub(super) fn occupy(&mut self, number: usize, open: &OpenTransfer) {
        let turn = (open.direction, self.started);
        self.started += 1;
        self.in_arena.insert(open.arena, number, turn);
        self.in_tier.entry(open.tier).or_default().insert(open.place, number, turn);
        self.under_way.entry(open.lane).or_default().push_back(number);
    }

    /// Frees the bytes of a transfer that is done.
    fn release(&mut self, number: usize, arena: u64, (tier, place): (Tier, u64)) {
        self.in_arena.remove(arena, number);
        self.in_tier.entry(tier).or_default().remove(place, number);
    }

    /// Forgets the contents of a range of a tier.
    pub(super) fn lose(&mut self, tier: Tier, (first, end): (u64, u64)) {
        let arrived = self.arrived.entry(tier).or_default();
        let lost: Vec<u64> = arrived.meeting(first, end).map(|(start, _, _)| start).collect();
        for start in lost {
            arrived.remove(start, ARRIVED);
        }
    }

    /// The transfer that is under way where the range of a tier is, the one that was started first.
    fn meeting(&self, tier: Tier, (first, end): (u64, u64)) -> Option<usize> {
        let under_way = self.in_tier.get(&tier)?.meeting(first, end);
        under_way.min_by_key(|(_, _, turn)| **turn).map(|(_, other, _)| other)
    }
}

impl Machine<'_> {
    /// Tiers hold the state that is away, each range in a place of its own.
    pub(super) fn begin_away(&mut self) -> Result<(), Fault> {
        let mut places: Vec<(Tier, u64, u64)> = Vec::new();
        for &Away { state, tier, tier_offset, bytes } in &self.schedule.away {
            let known = self.graph.states().get(state.index());
            if known.is_none_or(|state| bytes < state.ty.bytes() as u64) {
                return Err(Fault::Copy(format!("state {} is away in no place for it", state.0)));
            }
            places.push((tier, tier_offset, tier_offset.saturating_add(bytes)));
            let arrived = Arrived { bytes, contents: Contents::State(state), version: None };
            self.arrive(tier, tier_offset, arrived);
        }
        places.sort_unstable();
        match places.windows(2).find(|pair| pair[0].0 == pair[1].0 && pair[0].2 > pair[1].1) {
            Some(pair) => Err(Fault::Copy(format!("two states are away at byte {} of a tier", pair[1].1))),
            None => Ok(()),
        }
    }

    /// At the end, tiers hold the newest bits of the state that is away, or these are on their way there.
    pub(super) fn finish_away(&self) -> Result<(), Fault> {
        for away in &self.schedule.away {
            let contents = Contents::State(away.state);
            let version = self.version[away.state.index()];
            let there = self.arrived(away.tier, away.tier_offset);
            let newest = |there: &Arrived| there.contents == contents && there.version == version;
            if !there.is_some_and(newest) && !self.goes_home(away, version) {
                let name = &self.graph.state(away.state).name;
                return Err(Fault::Copy(format!(
                    "in the end the newest bits of `{name}` are not in its tier"
                )));
            }
        }
        Ok(())
    }

    /// Whether a version of state is on its way to the place where it lives.
    fn goes_home(&self, away: &Away, version: Option<u32>) -> bool {
        let mut under_way = self.copies.under_way.values().flatten();
        under_way.any(|&number| {
            let ends = self.schedule.copies.get(number).and_then(Copy::ends);
            ends.is_some_and(|Ends { buffer, tier, offset, direction }| {
                direction == Direction::Out
                    && (tier, offset) == (away.tier, away.tier_offset)
                    && self.schedule.buffer(buffer).contents == Contents::State(away.state)
                    && self.held[buffer.index()] == version
            })
        })
    }

    pub(super) fn start(&mut self, index: usize) -> Result<(), Fault> {
        if self.copies.ahead.remove(&index) {
            return Ok(());
        }
        let (ends, lane) = ends_of(self.schedule, index)?;
        if self.copies.next.iter().any(|open| open.lane == lane) {
            return Err(Fault::Copy(format!("copy {index} is started behind one of the next schedule")));
        }
        match ends.direction {
            Direction::Out => self.start_out(index, ends)?,
            Direction::In => self.start_in(index, ends)?,
        }
        let open = OpenTransfer::of(self.graph, self.schedule, index)?;
        self.copies.occupy(index, &open);
        Ok(())
    }

    pub(super) fn arrived(&self, tier: Tier, offset: u64) -> Option<&Arrived> {
        self.copies.arrived.get(&tier)?.get(offset, ARRIVED)
    }

    pub(super) fn arrive(&mut self, tier: Tier, offset: u64, arrived: Arrived) {
        let range = (offset, offset.saturating_add(arrived.bytes));
        self.copies.arrived.entry(tier).or_default().insert(range, ARRIVED, arrived);
    }

    /// The unfinished copy that forbids touching bytes: any copy when writing, a copy into the arena when reading.
    pub(super) fn busy(&self, (first, end): (u64, u64), only_in: bool) -> Option<usize> {
        let meeting = self.copies.in_arena.meeting(first, end);
        let forbids = meeting.filter(|(_, _, (direction, _))| !only_in || *direction == Direction::In);
        forbids.min_by_key(|(_, _, turn)| **turn).map(|(_, copy, _)| copy)
    }

    fn start_out(&mut self, index: usize, ends: Ends) -> Result<(), Fault> {
        let Ends { buffer, tier, offset, .. } = ends;
        let bytes = self.schedule.buffer(buffer).bytes;
        if self.intact[buffer.index()] != bytes {
            return Err(Fault::NotIntact(format!("copy {index} sends bytes that are not there")));
        }
        self.up_to_date(buffer)?;
        if let Some(other) = self.busy(self.bytes_of(buffer), true) {
            let other = self.copy_name(other);
            return Err(Fault::Copy(format!("copy {index} sends what {other} has not brought yet")));
        }
        let range = (offset, offset.saturating_add(bytes));
        if let Some(other) = self.copies.meeting(tier, range) {
            let other = self.copy_name(other);
            return Err(Fault::Copy(format!("copy {index} writes where {other} is under way")));
        }
        self.copies.lose(tier, range);
        Ok(())
    }

    fn start_in(&mut self, index: usize, ends: Ends) -> Result<(), Fault> {
        let Ends { buffer: id, tier, offset, .. } = ends;
        let buffer = self.schedule.buffer(id);
        let there = self.arrived(tier, offset);
        let there = there.filter(|there| there.contents == buffer.contents && there.bytes >= buffer.bytes);
        let Some(there) = there else {
            return Err(Fault::Copy(format!("copy {index} fetches what has not gone out")));
        };
        if there.version != self.version_of(buffer.contents) {
            return Err(Fault::WrongVersion(format!("copy {index} brings back an old version")));
        }
        let version = there.version;
        self.writable(id)?;
        self.claim(id);
        self.held[id.index()] = version;
        Ok(())
    }

    pub(super) fn version_of(&self, contents: Contents) -> Option<u32> {
        match contents {
            Contents::State(state) => self.version[state.index()],
            Contents::Value(_) | Contents::Scratch => None,
        }
    }

    pub(super) fn wait(&mut self, index: usize) -> Result<(), Fault> {
        let (ends, lane) = ends_of(self.schedule, index)?;
        // A lane is a queue: transfers that were started before this one are done too.
        while let Some(&first) =
            self.queue(lane).front().filter(|first| self.copies.earlier.contains_key(first))
        {
            self.finish_earlier(first);
        }
        if self.queue(lane).front() != Some(&index) {
            return Err(Fault::Copy(format!("copy {index} is waited for out of turn")));
        }
        self.copies.under_way.entry(lane).or_default().pop_front();
        let Buffer { offset, bytes, contents, .. } = *self.schedule.buffer(ends.buffer);
        self.copies.release(index, offset, (ends.tier, ends.offset));
        if ends.direction == Direction::Out {
            let version = self.held[ends.buffer.index()];
            self.arrive(ends.tier, ends.offset, Arrived { bytes, contents, version });
        }
        Ok(())
    }

    pub(super) fn queue(&self, lane: Lane) -> &VecDeque<usize> {
        static NOTHING: VecDeque<usize> = VecDeque::new();
        self.copies.under_way.get(&lane).unwrap_or(&NOTHING)
    }

    /// A transfer of the schedule before has arrived: it is the oldest of its lane.
    pub(super) fn finish_earlier(&mut self, number: usize) {
        let Some(open) = self.copies.earlier.remove(&number) else { return };
        self.copies.under_way.entry(open.lane).or_default().pop_front();
        self.copies.release(number, open.arena.0, (open.tier, open.place.0));
        let home = self.schedule.away.iter().find(|away| {
            (away.tier, away.tier_offset) == (open.tier, open.place.0)
                && Some(&self.graph.state(away.state).name) == open.state.as_ref()
        });
        if let Some(&Away { state, tier, tier_offset, bytes }) = home {
            self.arrive(
                tier,
                tier_offset,
                Arrived { bytes, contents: Contents::State(state), version: None },
            );
        }
    }

    /// The bytes of a buffer.
    pub(super) fn bytes_of(&self, id: BufferId) -> (u64, u64) {
        let Buffer { offset, bytes, .. } = *self.schedule.buffer(id);
        (offset, offset.saturating_add(bytes))
    }

    /// A transfer in words.
    pub(super) fn copy_name(&self, number: usize) -> String {
        let open = self.copies.earlier.get(&number);
        match open {
            Some(open) => format!("a copy of {} that the schedule before has left open", open.subject()),
            None if number < self.schedule.copies.len() => format!("copy {number}"),
            None if is_of_exchange(number) => "an exchange between ranks".to_owned(),
            None => "a copy of the next schedule".to_owned(),
        }
    }
}
