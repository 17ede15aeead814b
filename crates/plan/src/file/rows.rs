//! The form of a schedule in a plan file: rows of numbers, because there are many of them.
//!
//! ```text
//! buffer   [contents, id, purpose, bytes, offset, start, end]     contents: 0 value, 1 state, 2 scratch
//! copy     [buffer, tier, tier offset, direction]                 tier: 0 host, 1 disk; direction: 0 out, 1 in
//! away     [state, tier, tier offset, bytes]
//! run      [0, node, [inputs], [outputs], scratch or null, added outputs as bits]
//! start    [1, copy]        wait   [2, copy]
//! ```
//!
//! Reading checks that every number means something; [`sound`] checks what the judge takes for granted, because a
//! planner cannot get it wrong: that ids exist, that bytes are aligned, that kernels get their scratch, that state
//! is where the plan says and nothing else is sent there. The rest is the judge's.

use std::collections::BTreeMap;

use plimsoll_graph::{NodeId, StateId, Value as GraphValue};
use serde_json::{Map, Value, json};

use super::{FileError, persistent, purpose};
use crate::device::{Direction, Tier};
use crate::plan::Plan;
use crate::program::{Costed, StateRange};
use crate::schedule::{Action, Away, Buffer, BufferId, Contents, Copy, Schedule};

pub(super) fn field(place: &str, expected: &'static str) -> FileError {
    FileError::Field { place: place.to_owned(), expected }
}

pub(super) fn object<'a>(body: &'a Value, name: &str) -> Result<&'a Map<String, Value>, FileError> {
    body.get(name).and_then(Value::as_object).ok_or_else(|| field(name, "an object"))
}

pub(super) fn list<'a>(body: &'a Value, name: &str) -> Result<&'a [Value], FileError> {
    body.get(name).and_then(Value::as_array).map(Vec::as_slice).ok_or_else(|| field(name, "a list"))
}

pub(super) fn text<'a>(body: &'a Value, name: &str) -> Result<&'a str, FileError> {
    body.get(name).and_then(Value::as_str).ok_or_else(|| field(name, "text"))
}

pub(super) fn whole(body: &Value, name: &str) -> Result<u64, FileError> {
    body.get(name).and_then(Value::as_u64).ok_or_else(|| field(name, "a whole number"))
}

pub(super) fn number(body: &Value, name: &str) -> Result<f64, FileError> {
    let number = body.get(name).and_then(Value::as_f64).filter(|number| *number >= 0.0);
    number.ok_or_else(|| field(name, "a number that is not negative"))
}

pub(super) fn count(body: &Value, name: &str, place: &str) -> Result<usize, FileError> {
    let number = body.get(name).and_then(Value::as_u64).filter(|&number| number <= 1 << 40);
    number.and_then(|number| usize::try_from(number).ok()).ok_or_else(|| field(place, "a whole number"))
}

/// A schedule as JSON.
pub(super) fn schedule(schedule: &Schedule) -> Value {
    json!({
        "buffers": schedule.buffers.iter().map(buffer).collect::<Vec<_>>(),
        "copies": schedule.copies.iter().map(copy).collect::<Vec<_>>(),
        "away": schedule.away.iter().map(away).collect::<Vec<_>>(),
        "actions": schedule.actions.iter().map(action).collect::<Vec<_>>(),
    })
}

fn buffer(buffer: &Buffer) -> Value {
    let (contents, id) = match buffer.contents {
        Contents::Value(value) => (0, value.0),
        Contents::State(state) => (1, state.0),
        Contents::Scratch => (2, 0),
    };
    json!([contents, id, buffer.purpose as usize, buffer.bytes, buffer.offset, buffer.start, buffer.end])
}

fn away(away: &Away) -> Value {
    json!([away.state.0, tier_number(away.tier), away.tier_offset, away.bytes])
}

/// The number of a tier in rows.
pub(super) fn tier_number(tier: Tier) -> u64 {
    u64::from(tier == Tier::Disk)
}

/// The tier of a number.
pub(super) fn tier(number: u64) -> Option<Tier> {
    [Tier::Host, Tier::Disk].get(usize::try_from(number).ok()?).copied()
}

fn copy(copy: &Copy) -> Value {
    let tier = tier_number(copy.tier);
    json!([copy.buffer.0, tier, copy.tier_offset, usize::from(copy.direction == Direction::In)])
}

fn action(action: &Action) -> Value {
    let ids = |ids: &[BufferId]| ids.iter().map(|id| id.0).collect::<Vec<_>>();
    match action {
        Action::Run { node, inputs, outputs, workspace, accumulate } => {
            json!([0, node.0, ids(inputs), ids(outputs), workspace.map(|id| id.0), accumulate])
        }
        Action::Start { copy } => json!([1, copy]),
        Action::Wait { copy } => json!([2, copy]),
    }
}

/// A schedule from JSON.
pub(super) fn parse_schedule(name: &str, json: &Value) -> Result<Schedule, FileError> {
    let rows = |what: &'static str| -> Result<&[Value], FileError> {
        json.get(what)
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            .ok_or_else(|| field(&format!("schedules.{name}.{what}"), "a list"))
    };
    let at = |what: &str, row: usize| format!("schedules.{name}.{what}[{row}]");
    let mut schedule = Schedule {
        name: name.to_owned(),
        actions: Vec::new(),
        buffers: Vec::new(),
        copies: Vec::new(),
        away: Vec::new(),
    };
    for (row, json) in rows("buffers")?.iter().enumerate() {
        let buffer = parse_buffer(json).ok_or_else(|| field(&at("buffers", row), "a buffer"))?;
        schedule.buffers.push(buffer);
    }
    for (row, json) in rows("copies")?.iter().enumerate() {
        schedule.copies.push(parse_copy(json).ok_or_else(|| field(&at("copies", row), "a copy"))?);
    }
    for (row, json) in rows("away")?.iter().enumerate() {
        schedule.away.push(parse_away(json).ok_or_else(|| field(&at("away", row), "state of a tier"))?);
    }
    for (row, json) in rows("actions")?.iter().enumerate() {
        schedule.actions.push(parse_action(json).ok_or_else(|| field(&at("actions", row), "an action"))?);
    }
    Ok(schedule)
}

fn parse_buffer(json: &Value) -> Option<Buffer> {
    let numbers: Option<Vec<u64>> = json.as_array()?.iter().map(Value::as_u64).collect();
    let [contents, id, kind, bytes, offset, start, end] = numbers?[..] else { return None };
    let id = u32::try_from(id).ok()?;
    let contents = match contents {
        0 => Contents::Value(GraphValue(id)),
        1 => Contents::State(StateId(id)),
        2 => Contents::Scratch,
        _ => return None,
    };
    let (start, end) = (usize::try_from(start).ok()?, usize::try_from(end).ok()?);
    Some(Buffer { contents, purpose: purpose(kind)?, bytes, offset, start, end })
}

fn parse_copy(json: &Value) -> Option<Copy> {
    let numbers: Option<Vec<u64>> = json.as_array()?.iter().map(Value::as_u64).collect();
    let [buffer, tier, tier_offset, direction] = numbers?[..] else { return None };
    Some(Copy {
        buffer: BufferId(u32::try_from(buffer).ok()?),
        tier: self::tier(tier)?,
        tier_offset,
        direction: *[Direction::Out, Direction::In].get(usize::try_from(direction).ok()?)?,
    })
}

fn parse_away(json: &Value) -> Option<Away> {
    let numbers: Option<Vec<u64>> = json.as_array()?.iter().map(Value::as_u64).collect();
    let [state, tier, tier_offset, bytes] = numbers?[..] else { return None };
    Some(Away { state: StateId(u32::try_from(state).ok()?), tier: self::tier(tier)?, tier_offset, bytes })
}

fn parse_action(json: &Value) -> Option<Action> {
    let id = |json: &Value| u32::try_from(json.as_u64()?).ok().map(BufferId);
    let ids = |json: &Value| json.as_array()?.iter().map(id).collect::<Option<Vec<_>>>();
    let index = |json: &Value| usize::try_from(json.as_u64()?).ok();
    let row = json.as_array()?;
    match (row.first()?.as_u64()?, &row[1..]) {
        (0, [node, inputs, outputs, workspace, accumulate]) => Some(Action::Run {
            node: NodeId(u32::try_from(node.as_u64()?).ok()?),
            inputs: ids(inputs)?,
            outputs: ids(outputs)?,
            workspace: if workspace.is_null() { None } else { Some(id(workspace)?) },
            accumulate: u32::try_from(accumulate.as_u64()?).ok()?,
        }),
        (1, [copy]) => Some(Action::Start { copy: index(copy)? }),
        (2, [copy]) => Some(Action::Wait { copy: index(copy)? }),
        _ => None,
    }
}

/// Checks that state is away in a schedule where it is away in the plan, and nowhere else.
fn waits_where_it_lives(part: &Costed, schedule: &Schedule, plan: &Plan) -> Result<(), FileError> {
    let place = format!("schedules.{}.away", schedule.name);
    let found: BTreeMap<Option<&str>, (Tier, u64, u64)> = (schedule.away.iter())
        .map(|away| {
            let name = persistent(part, Contents::State(away.state));
            (name, (away.tier, away.tier_offset, away.bytes))
        })
        .collect();
    let here = |range: &&StateRange| part.graph.state_named(&range.name).is_some();
    let expected: BTreeMap<Option<&str>, (Tier, u64, u64)> = (plan.states.iter().filter(here))
        .filter_map(|range| Some((Some(range.name.as_str()), (range.tier?, range.offset, range.bytes))))
        .collect();
    if found != expected || found.len() != schedule.away.len() {
        return Err(field(&place, "the state that `states` has in a tier"));
    }
    Ok(())
}

/// Checks what the judge takes for granted of a schedule for `part`.
pub(super) fn sound(part: &Costed, schedule: &Schedule, plan: &Plan) -> Result<(), FileError> {
    let place = |what: &str, row: usize| format!("schedules.{}.{what}[{row}]", schedule.name);
    for (row, buffer) in schedule.buffers.iter().enumerate() {
        let wrong = |expected| Err(field(&place("buffers", row), expected));
        let range = persistent(part, buffer.contents).and_then(|name| plan.state(name));
        let away = range.is_some_and(|range| range.tier.is_some());
        let own = row < part.graph.states().len();
        let known = match buffer.contents {
            Contents::Value(value) => !own && value.index() < part.graph.value_count(),
            Contents::State(state) if own => state.index() == row,
            Contents::State(_) => away,
            Contents::Scratch => !own,
        };
        if !known {
            return wrong("a buffer of this program, states first");
        }
        let end = buffer.offset.checked_add(buffer.bytes);
        if end.is_none_or(|end| end > plan.arena_bytes) {
            return wrong("inside the arena");
        }
        if buffer.start >= buffer.end || buffer.end > schedule.actions.len().max(1) {
            return wrong("alive between two actions of the schedule");
        }
        if !(buffer.offset | buffer.bytes).is_multiple_of(part.facts.alignment) {
            return wrong("aligned as the device wants it");
        }
        if persistent(part, buffer.contents).is_some() && !away {
            let here = |range: &StateRange| (range.offset, range.bytes) == (buffer.offset, buffer.bytes);
            if !range.is_some_and(here) {
                return wrong("where `states` has it");
            }
        }
    }
    for (row, copy) in schedule.copies.iter().enumerate() {
        let buffer = schedule.buffers.get(copy.buffer.index());
        let end = buffer.and_then(|buffer| copy.tier_offset.checked_add(buffer.bytes));
        let (Some(buffer), Some(end)) = (buffer, end.filter(|&end| end <= 1 << 50)) else {
            return Err(field(&place("copies", row), "a copy of a buffer of the schedule"));
        };
        let name = persistent(part, buffer.contents);
        let others = plan.states.iter().filter(|range| name != Some(&range.name));
        let mut others = others.filter(|range| range.tier == Some(copy.tier));
        if others.any(|range| range.offset < end && copy.tier_offset < range.offset + range.bytes) {
            return Err(field(&place("copies", row), "a copy to where no other state is"));
        }
    }
    waits_where_it_lives(part, schedule, plan)?;
    for (row, action) in schedule.actions.iter().enumerate() {
        let Action::Run { node, workspace, .. } = action else { continue };
        let Some(facts) = part.facts.nodes.get(node.index()) else {
            return Err(field(&place("actions", row), "a node of this program"));
        };
        let given = workspace.map(|id| schedule.buffers.get(id.index()).map_or(0, |buffer| buffer.bytes));
        let scratch = |id: BufferId| {
            schedule.buffers.get(id.index()).is_some_and(|buffer| buffer.contents == Contents::Scratch)
        };
        if given.unwrap_or(0) < facts.workspace.least || workspace.is_some_and(|id| !scratch(id)) {
            return Err(field(&place("actions", row), "a run with the scratch its kernel needs"));
        }
    }
    Ok(())
}
