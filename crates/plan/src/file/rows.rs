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

use std::fmt::Write as _;

use plimsoll_graph::{NodeId, StateId, Value as GraphValue};
use serde_json::{Map, Value};

use super::{PlanFileError, purpose};
use crate::device::{Lane, Tier};
use crate::program::{Role, StateRange};
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

/// Writes the rows of a schedule.
pub(super) fn write_schedule(text: &mut String, schedule: &Schedule) {
    text.push_str("{\"buffers\":");
    write_list(text, &schedule.buffers, write_buffer);
    text.push_str(",\"copies\":");
    write_list(text, &schedule.copies, write_copy);
    text.push_str(",\"away\":");
    write_list(text, &schedule.away, write_away);
    text.push_str(",\"actions\":");
    write_list(text, &schedule.actions, write_action);
    text.push('}');
}

/// Writes a list of rows.
pub(super) fn write_list<T>(text: &mut String, rows: &[T], write_row: fn(&mut String, &T)) {
    text.push('[');
    for (at, row) in rows.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        write_row(text, row);
    }
    text.push(']');
}

/// Writes a text with its quotes.
pub(super) fn write_text(text: &mut String, written: &str) {
    // Writing to a string does not fail.
    let _ = write!(text, "{}", Value::from(written));
}

/// Writes the row of a range of state.
pub(super) fn write_state(text: &mut String, range: &StateRange) {
    text.push('[');
    write_text(text, &range.name);
    let _ = write!(text, ",{},{},", range.offset, range.bytes);
    write_optional(text, range.tier.map(tier_number));
    text.push(']');
}

fn write_optional(text: &mut String, number: Option<u64>) {
    let _ = match number {
        Some(number) => write!(text, "{number}"),
        None => write!(text, "null"),
    };
}

fn write_buffer(text: &mut String, buffer: &Buffer) {
    let (contents, id) = match buffer.contents {
        Contents::Value(value) => (0, value.0),
        Contents::State(state) => (1, state.0),
        Contents::Scratch => (2, 0),
    };
    let &Buffer { purpose, bytes, offset, start, end, .. } = buffer;
    let _ = write!(text, "[{contents},{id},{},{bytes},{offset},{start},{end}]", purpose as usize);
}

fn write_away(text: &mut String, away: &Away) {
    let &Away { state, tier, tier_offset, bytes } = away;
    let _ = write!(text, "[{},{},{tier_offset},{bytes}]", state.0, tier_number(tier));
}

fn write_copy(text: &mut String, copy: &Copy) {
    text.push('[');
    for end in [copy.source, copy.destination] {
        let _ = match end {
            End::Buffer(buffer) => write!(text, "[{}],", buffer.0),
            End::Tier { tier, offset } => write!(text, "[{},{offset}],", tier_number(tier)),
        };
    }
    write_optional(text, lane_number(copy.lane));
    text.push(']');
}

fn write_ids(text: &mut String, ids: &[BufferId]) {
    write_list(text, ids, |text, id| {
        let _ = write!(text, "{}", id.0);
    });
}

fn write_action(text: &mut String, action: &Action) {
    let _ = match action {
        Action::Run { node, inputs, outputs, workspace, accumulate } => {
            let _ = write!(text, "[0,{},", node.0);
            write_ids(text, inputs);
            text.push(',');
            write_ids(text, outputs);
            text.push(',');
            write_optional(text, workspace.map(|id| u64::from(id.0)));
            write!(text, ",{accumulate}]")
        }
        Action::Await { node } => write!(text, "[5,{}]", node.0),
        Action::Start { copy } => write!(text, "[1,{copy}]"),
        Action::Wait { copy } => write!(text, "[2,{copy}]"),
        Action::Settle { lane, left } => {
            text.push_str("[3,");
            write_optional(text, lane_number(*lane));
            write!(text, ",{left}]")
        }
        Action::StartNext { role, copy } => {
            text.push_str("[4,");
            write_text(text, role.name());
            write!(text, ",{copy}]")
        }
    };
}

/// The number of a tier in rows.
pub(super) fn tier_number(tier: Tier) -> u64 {
    u64::from(tier == Tier::Disk)
}

/// The tier of a number.
pub(super) fn tier(number: u64) -> Option<Tier> {
    [Tier::Host, Tier::Disk].get(usize::try_from(number).ok()?).copied()
}

fn lane_number(lane: Lane) -> Option<u64> {
    Lane::ALL.iter().position(|known| *known == lane).map(|place| place as u64)
}

fn parse_lane(json: &Value) -> Option<Lane> {
    Lane::ALL.get(usize::try_from(json.as_u64()?).ok()?).copied()
}

/// A range of state in a file.
#[derive(Clone, Debug)]
pub(super) struct SavedState {
    pub(super) name: String,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) tier: Option<Tier>,
}

pub(super) fn parse_state(json: &Value) -> Option<SavedState> {
    let tier = match json.get(3) {
        None | Some(Value::Null) => None,
        Some(number) => Some(tier(number.as_u64()?)?),
    };
    let name = json.get(0)?.as_str()?.to_owned();
    Some(SavedState { name, offset: json.get(1)?.as_u64()?, bytes: json.get(2)?.as_u64()?, tier })
}

pub(super) fn parse_buffer(json: &Value) -> Option<Buffer> {
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

pub(super) fn parse_copy(json: &Value) -> Option<Copy> {
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

pub(super) fn parse_away(json: &Value) -> Option<Away> {
    let numbers: Option<Vec<u64>> = json.as_array()?.iter().map(Value::as_u64).collect();
    let [state, tier, tier_offset, bytes] = numbers?[..] else { return None };
    Some(Away { state: StateId(u32::try_from(state).ok()?), tier: self::tier(tier)?, tier_offset, bytes })
}

pub(super) fn parse_action(json: &Value) -> Option<Action> {
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
