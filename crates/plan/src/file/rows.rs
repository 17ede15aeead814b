//! The form of a schedule in a plan file: rows of numbers, because there are many of them.
//!
//! ```text
//! buffer   [contents, id, purpose, bytes, offset, start, end]     contents: 0 value, 1 state, 2 scratch
//! copy     [source, destination, lane]                            lane: 0 to host, 1 from host, 2 disk write, 3 disk read
//! end      [buffer] or [tier, offset]                             tier: 0 host, 1 disk
//! away     [state, tier, tier offset, bytes]
//! run      [0, node, [inputs], [outputs], scratch or null, added outputs as bits]
//! start    [1, copy]            wait    [2, copy]
//! settle   [3, lane, left]      start next   [4, role, copy]      await   [5, node]
//! ```
//!
//! Reading checks that every number means something. Whether it is right is the judge's business.

use plimsoll_graph::{NodeId, StateId, Value as GraphValue};
use serde_json::{Map, Value, json};

use super::{PlanFileError, purpose};
use crate::device::{Lane, Tier};
use crate::program::Role;
use crate::schedule::{Action, Away, Buffer, BufferId, Contents, Copy, End, Schedule};

pub(super) fn field(place: &str, expected: &'static str) -> PlanFileError {
    PlanFileError::Field { place: place.to_owned(), expected }
}

pub(super) fn object<'a>(body: &'a Value, name: &str) -> Result<&'a Map<String, Value>, PlanFileError> {
    body.get(name).and_then(Value::as_object).ok_or_else(|| field(name, "an object"))
}

pub(super) fn list<'a>(body: &'a Value, name: &str) -> Result<&'a [Value], PlanFileError> {
    body.get(name).and_then(Value::as_array).map(Vec::as_slice).ok_or_else(|| field(name, "a list"))
}

pub(super) fn text<'a>(body: &'a Value, name: &str) -> Result<&'a str, PlanFileError> {
    body.get(name).and_then(Value::as_str).ok_or_else(|| field(name, "text"))
}

pub(super) fn whole(body: &Value, name: &str) -> Result<u64, PlanFileError> {
    body.get(name).and_then(Value::as_u64).ok_or_else(|| field(name, "a whole number"))
}

pub(super) fn number(body: &Value, name: &str) -> Result<f64, PlanFileError> {
    let number = body.get(name).and_then(Value::as_f64).filter(|number| *number >= 0.0);
    number.ok_or_else(|| field(name, "a number that is not negative"))
}

pub(super) fn count(body: &Value, name: &str, place: &str) -> Result<usize, PlanFileError> {
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
    json!([end(copy.source), end(copy.destination), lane_number(copy.lane)])
}

fn end(end: End) -> Value {
    match end {
        End::Buffer(buffer) => json!([buffer.0]),
        End::Tier { tier, offset } => json!([tier_number(tier), offset]),
    }
}

fn lane_number(lane: Lane) -> Option<usize> {
    Lane::ALL.iter().position(|known| *known == lane)
}

fn parse_lane(json: &Value) -> Option<Lane> {
    Lane::ALL.get(usize::try_from(json.as_u64()?).ok()?).copied()
}

fn action(action: &Action) -> Value {
    let ids = |ids: &[BufferId]| ids.iter().map(|id| id.0).collect::<Vec<_>>();
    match action {
        Action::Run { node, inputs, outputs, workspace, accumulate } => {
            json!([0, node.0, ids(inputs), ids(outputs), workspace.map(|id| id.0), accumulate])
        }
        Action::Await { node } => json!([5, node.0]),
        Action::Start { copy } => json!([1, copy]),
        Action::Wait { copy } => json!([2, copy]),
        Action::Settle { lane, left } => json!([3, lane_number(*lane), left]),
        Action::StartNext { role, copy } => json!([4, role.name(), copy]),
    }
}

/// A schedule from JSON.
pub(super) fn parse_schedule(name: &str, json: &Value) -> Result<Schedule, PlanFileError> {
    let rows = |what: &'static str| -> Result<&[Value], PlanFileError> {
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
    let [source, destination, lane] = &json.as_array()?[..] else { return None };
    Some(Copy { source: parse_end(source)?, destination: parse_end(destination)?, lane: parse_lane(lane)? })
}

fn parse_end(json: &Value) -> Option<End> {
    let numbers: Option<Vec<u64>> = json.as_array()?.iter().map(Value::as_u64).collect();
    match numbers?[..] {
        [buffer] => Some(End::Buffer(BufferId(u32::try_from(buffer).ok()?))),
        [tier, offset] => Some(End::Tier { tier: self::tier(tier)?, offset }),
        _ => None,
    }
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
        (5, [node]) => Some(Action::Await { node: NodeId(u32::try_from(node.as_u64()?).ok()?) }),
        (1, [copy]) => Some(Action::Start { copy: index(copy)? }),
        (2, [copy]) => Some(Action::Wait { copy: index(copy)? }),
        (3, [lane, left]) => Some(Action::Settle { lane: parse_lane(lane)?, left: index(left)? }),
        (4, [role, copy]) => {
            let role = Role::ALL.into_iter().find(|known| Some(known.name()) == role.as_str())?;
            Some(Action::StartNext { role, copy: index(copy)? })
        }
        _ => None,
    }
}
