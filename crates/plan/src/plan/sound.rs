//! Checks facts of a draft that the replay takes for granted. A planner cannot get them wrong, but a file can: ids
//! exist, bytes are aligned and inside the arena, kernels get their scratch, state is where the plan says, and no
//! transfer writes anything else there.

use std::collections::BTreeMap;

use plimsoll_graph::StateKind;

use super::draft::Draft;
use crate::bytes::ArenaBytes;
use crate::device::{Lane, Tier};
use crate::program::{Costed, Program, StateRange};
use crate::schedule::ranges::Ranges;
use crate::schedule::{Action, Buffer, BufferId, Contents, Copy, Ends, Schedule};

/// Beyond this, sums of sizes could overflow; no machine has as much.
const MOST_BYTES: u64 = 1 << 50;

/// A field of a draft and the kind of entry that belongs there.
pub(super) struct Unsound {
    pub(super) place: String,
    pub(super) expected: &'static str,
}

/// Checks all schedules that `program` needs.
pub(super) fn check(draft: &Draft, program: &Program) -> Result<(), Unsound> {
    let wrong = |place: &str, expected| Err(Unsound { place: place.to_owned(), expected });
    if draft.arena_bytes > ArenaBytes(MOST_BYTES) {
        return wrong("arena_bytes", "a size that a machine can have");
    }
    let inside = |range: &StateRange| range.offset <= MOST_BYTES && range.bytes <= MOST_BYTES;
    if !draft.states.iter().all(inside) {
        return wrong("states", "the program's state, in its order");
    }
    let states = draft.states.iter().map(|range| (range.name.as_str(), range)).collect();
    for (role, part) in program.roles() {
        let Some(schedule) = draft.schedules.get(&role) else {
            return wrong(&format!("schedules.{}", role.name()), "there");
        };
        Checked { part, schedule, arena_bytes: draft.arena_bytes, states: &states }.check()?;
    }
    Ok(())
}

/// A schedule, and the program and plan it is checked against.
struct Checked<'a> {
    part: &'a Costed,
    schedule: &'a Schedule,
    arena_bytes: ArenaBytes,
    /// The ranges of the plan, by name.
    states: &'a BTreeMap<&'a str, &'a StateRange>,
}

impl Checked<'_> {
    fn check(&self) -> Result<(), Unsound> {
        for (row, buffer) in self.schedule.buffers.iter().enumerate() {
            self.buffer(row, buffer).map_err(|expected| self.at("buffers", row, expected))?;
        }
        let mut away = Ranges::default();
        for (number, range) in self.states.values().filter(|range| range.tier.is_some()).enumerate() {
            away.insert((range.offset, range.offset + range.bytes), number, *range);
        }
        for (row, copy) in self.schedule.copies.iter().enumerate() {
            self.copy(copy, &away).map_err(|expected| self.at("copies", row, expected))?;
        }
        self.waits_where_it_lives()?;
        for (row, action) in self.schedule.actions.iter().enumerate() {
            self.action(action).map_err(|expected| self.at("actions", row, expected))?;
        }
        Ok(())
    }

    fn at(&self, what: &str, row: usize, expected: &'static str) -> Unsound {
        Unsound { place: format!("schedules.{}.{what}[{row}]", self.schedule.name), expected }
    }

    /// The state range that a buffer belongs to, if it is state that all schedules see at the same place.
    fn range(&self, contents: Contents) -> Option<&StateRange> {
        self.states.get(persistent(self.part, contents)?).copied()
    }

    fn buffer(&self, row: usize, buffer: &Buffer) -> Result<(), &'static str> {
        let range = self.range(buffer.contents);
        let away = range.is_some_and(|range| range.tier.is_some());
        if !self.is_known(row, buffer.contents, away) {
            return Err("a buffer of this program, states first");
        }
        let end = buffer.offset.checked_add(buffer.bytes);
        if end.is_none_or(|end| end > self.arena_bytes.0) {
            return Err("inside the arena");
        }
        if buffer.start >= buffer.end || buffer.end > self.schedule.actions.len().max(1) {
            return Err("alive between two actions of the schedule");
        }
        if !(buffer.offset | buffer.bytes).is_multiple_of(self.part.facts.alignment) {
            return Err("aligned as the device wants it");
        }
        let here = |range: &StateRange| (range.offset, range.bytes) == (buffer.offset, buffer.bytes);
        let lasts = persistent(self.part, buffer.contents).is_some() && !away;
        if lasts && !range.is_some_and(here) { Err("where `states` has it") } else { Ok(()) }
    }

    /// Whether a buffer in this row may hold these contents: state comes first, each in its row, and after it state may
    /// occur only if it is away.
    fn is_known(&self, row: usize, contents: Contents, away: bool) -> bool {
        let own = row < self.part.graph.states().len();
        match contents {
            Contents::Value(value) => !own && value.index() < self.part.graph.value_count(),
            Contents::State(state) if own => state.index() == row,
            Contents::State(_) => away,
            Contents::Scratch => !own,
        }
    }

    fn copy(&self, copy: &Copy, away: &Ranges<&StateRange>) -> Result<(), &'static str> {
        let Some(Ends { buffer, tier, offset, direction }) = copy.ends() else {
            return Err("a copy between the arena and a tier");
        };
        if copy.lane != Lane::of(tier, direction) {
            return Err("a copy in the lane that leads from its source to its destination");
        }
        let buffer = self.schedule.buffers.get(buffer.index());
        let end = buffer.and_then(|buffer| offset.checked_add(buffer.bytes));
        let (Some(buffer), Some(end)) = (buffer, end.filter(|&end| end <= MOST_BYTES)) else {
            return Err("a copy of a buffer of the schedule");
        };
        let mut meeting = away.meeting(offset, end).map(|(_, _, range)| range);
        let name = persistent(self.part, buffer.contents);
        if meeting.any(|range| range.tier == Some(tier) && name != Some(&range.name)) {
            return Err("a copy to where no other state is");
        }
        Ok(())
    }

    /// Checks that state is away in the schedule where it is away in the plan, and nowhere else.
    fn waits_where_it_lives(&self) -> Result<(), Unsound> {
        let away = &self.schedule.away;
        let found: BTreeMap<Option<&str>, (Tier, u64, u64)> = (away.iter())
            .map(|away| {
                let name = persistent(self.part, Contents::State(away.state));
                (name, (away.tier, away.tier_offset, away.bytes))
            })
            .collect();
        let here = |range: &&&StateRange| self.part.graph.state_named(&range.name).is_some();
        let expected: BTreeMap<Option<&str>, (Tier, u64, u64)> = (self.states.values().filter(here))
            .filter_map(|range| Some((Some(range.name.as_str()), (range.tier?, range.offset, range.bytes))))
            .collect();
        if found == expected && found.len() == away.len() {
            return Ok(());
        }
        let place = format!("schedules.{}.away", self.schedule.name);
        Err(Unsound { place, expected: "the state that `states` has in a tier" })
    }

    fn action(&self, action: &Action) -> Result<(), &'static str> {
        let Action::Run { node, workspace, .. } = action else { return Ok(()) };
        let Some(facts) = self.part.facts.nodes.get(node.index()) else {
            return Err("a node of this program");
        };
        let buffer = |id: BufferId| self.schedule.buffers.get(id.index());
        let given = workspace.map(|id| buffer(id).map_or(0, |buffer| buffer.bytes));
        let scratch = |id| buffer(id).is_some_and(|buffer| buffer.contents == Contents::Scratch);
        if given.unwrap_or(0) < facts.workspace.least || workspace.is_some_and(|id| !scratch(id)) {
            return Err("a run with the scratch its kernel needs");
        }
        Ok(())
    }
}

/// The name of state that all schedules see at the same place; none for anything else.
fn persistent(part: &Costed, contents: Contents) -> Option<&str> {
    let Contents::State(state) = contents else { return None };
    let state = part.graph.states().get(state.index())?;
    (state.kind != StateKind::Transient).then_some(&state.name)
}
