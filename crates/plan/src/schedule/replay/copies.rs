//! The rules of copies: what may be sent, what may be fetched, and what tiers hold before and after a schedule.

use std::collections::{BTreeMap, VecDeque};

use super::{Fault, Machine};
use crate::device::{Direction, Tier};
use crate::schedule::ranges::Ranges;
use crate::schedule::{Away, Buffer, BufferId, Contents, Copy};

/// Transfers under way, oldest first, and what tiers hold.
#[derive(Debug, Default)]
pub(super) struct Copies {
    pub(super) under_way: BTreeMap<Direction, VecDeque<usize>>,
    /// The same by the bytes they are about, in the arena and in each tier, with their turn.
    in_arena: Ranges<Turn>,
    in_tier: BTreeMap<Tier, Ranges<Turn>>,
    /// Copies that were started.
    started: usize,
    /// Ranges that arrived in each tier.
    arrived: BTreeMap<Tier, Ranges<Arrived>>,
}

/// Which way a copy goes, and how many were started before it: the order in which copies are looked at.
type Turn = (Direction, usize);

/// The number of every range that arrived: no two begin at one byte.
const ARRIVED: usize = 0;

/// The contents of a range of a tier.
#[derive(Debug)]
struct Arrived {
    bytes: u64,
    contents: Contents,
    /// Version of state, where it was written in this schedule before it went out.
    version: Option<u32>,
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
            let range = (tier_offset, tier_offset.saturating_add(bytes));
            self.copies.arrived.entry(tier).or_default().insert(range, ARRIVED, arrived);
        }
        places.sort_unstable();
        match places.windows(2).find(|pair| pair[0].0 == pair[1].0 && pair[0].2 > pair[1].1) {
            Some(pair) => Err(Fault::Copy(format!("two states are away at byte {} of a tier", pair[1].1))),
            None => Ok(()),
        }
    }

    /// Tiers hold the newest bits of the state that is away.
    pub(super) fn finish_away(&self) -> Result<(), Fault> {
        for away in &self.schedule.away {
            let contents = Contents::State(away.state);
            let there = self.arrived(away.tier, away.tier_offset);
            let newest = |there: &Arrived| {
                there.contents == contents && there.version == self.version[away.state.index()]
            };
            if !there.is_some_and(newest) {
                let name = &self.graph.state(away.state).name;
                return Err(Fault::Copy(format!(
                    "in the end the newest bits of `{name}` are not in its tier"
                )));
            }
        }
        Ok(())
    }

    fn copy(&self, index: usize) -> Result<Copy, Fault> {
        let copy = self.schedule.copies.get(index).copied();
        copy.filter(|copy| copy.buffer.index() < self.schedule.buffers.len())
            .ok_or_else(|| Fault::Copy(format!("there is no copy {index}, or no buffer for it")))
    }

    pub(super) fn start(&mut self, index: usize) -> Result<(), Fault> {
        let copy = self.copy(index)?;
        match copy.direction {
            Direction::Out => self.start_out(index, copy)?,
            Direction::In => self.start_in(index, copy)?,
        }
        let turn = (copy.direction, self.copies.started);
        let Buffer { offset, bytes, .. } = *self.schedule.buffer(copy.buffer);
        self.copies.started += 1;
        self.copies.in_arena.insert((offset, offset.saturating_add(bytes)), index, turn);
        let in_tier = self.copies.in_tier.entry(copy.tier).or_default();
        in_tier.insert((copy.tier_offset, copy.tier_offset.saturating_add(bytes)), index, turn);
        self.copies.under_way.entry(copy.direction).or_default().push_back(index);
        Ok(())
    }

    fn arrived(&self, tier: Tier, offset: u64) -> Option<&Arrived> {
        self.copies.arrived.get(&tier)?.get(offset, ARRIVED)
    }

    /// The unfinished copy that forbids touching the bytes of `id`: any when writing, one on its way in
    /// when reading.
    pub(super) fn busy(&self, id: BufferId, only_in: bool) -> Option<usize> {
        let Buffer { offset, bytes, .. } = *self.schedule.buffer(id);
        let meeting = self.copies.in_arena.meeting(offset, offset + bytes);
        let forbids = meeting.filter(|(_, _, (direction, _))| !only_in || *direction == Direction::In);
        forbids.min_by_key(|(_, _, turn)| **turn).map(|(_, copy, _)| copy)
    }

    fn start_out(&mut self, index: usize, copy: Copy) -> Result<(), Fault> {
        if self.intact[copy.buffer.index()] != self.schedule.buffer(copy.buffer).bytes {
            return Err(Fault::NotIntact(format!("copy {index} sends bytes that are not there")));
        }
        self.up_to_date(copy.buffer)?;
        if let Some(other) = self.busy(copy.buffer, true) {
            return Err(Fault::Copy(format!("copy {index} sends what copy {other} has not brought yet")));
        }
        let (first, end) = (copy.tier_offset, copy.tier_offset + self.schedule.buffer(copy.buffer).bytes);
        let under_way = self.copies.in_tier.get(&copy.tier).into_iter();
        let others = under_way.flat_map(|copies| copies.meeting(first, end));
        if let Some((_, other, _)) = others.min_by_key(|(_, _, turn)| **turn) {
            return Err(Fault::Copy(format!("copy {index} writes where copy {other} is under way")));
        }
        let arrived = self.copies.arrived.entry(copy.tier).or_default();
        let lost: Vec<u64> = arrived.meeting(first, end).map(|(start, _, _)| start).collect();
        for start in lost {
            arrived.remove(start, ARRIVED);
        }
        Ok(())
    }

    fn start_in(&mut self, index: usize, copy: Copy) -> Result<(), Fault> {
        let buffer = self.schedule.buffer(copy.buffer);
        let there = self.arrived(copy.tier, copy.tier_offset);
        let there = there.filter(|there| there.contents == buffer.contents && there.bytes >= buffer.bytes);
        let Some(there) = there else {
            return Err(Fault::Copy(format!("copy {index} fetches what has not gone out")));
        };
        if there.version != self.version_of(buffer.contents) {
            return Err(Fault::WrongVersion(format!("copy {index} brings back an old version")));
        }
        let version = there.version;
        self.writable(copy.buffer)?;
        self.claim(copy.buffer);
        self.held[copy.buffer.index()] = version;
        Ok(())
    }

    fn version_of(&self, contents: Contents) -> Option<u32> {
        match contents {
            Contents::State(state) => self.version[state.index()],
            Contents::Value(_) | Contents::Scratch => None,
        }
    }

    pub(super) fn wait(&mut self, index: usize) -> Result<(), Fault> {
        let copy = self.copy(index)?;
        let queue = self.copies.under_way.entry(copy.direction).or_default();
        if queue.front() != Some(&index) {
            return Err(Fault::Copy(format!("copy {index} is waited for out of turn")));
        }
        queue.pop_front();
        let Buffer { offset, bytes, contents, .. } = *self.schedule.buffer(copy.buffer);
        self.copies.in_arena.remove(offset, index);
        self.copies.in_tier.entry(copy.tier).or_default().remove(copy.tier_offset, index);
        if copy.direction == Direction::Out {
            let arrived = Arrived { bytes, contents, version: self.held[copy.buffer.index()] };
            let range = (copy.tier_offset, copy.tier_offset.saturating_add(bytes));
            self.copies.arrived.entry(copy.tier).or_default().insert(range, ARRIVED, arrived);
        }
        Ok(())
    }
}
