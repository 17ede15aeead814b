//! A transfer that is under way when one schedule ends, as the next schedule gets it: by its bytes.

use plimsoll_graph::Graph;

use super::Fault;
use crate::device::{Direction, Lane, Tier};
use crate::schedule::{Buffer, Contents, Ends, Schedule};

/// A transfer that crosses from one schedule into the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenTransfer {
    pub(super) lane: Lane,
    pub(super) direction: Direction,
    /// The transfer's bytes in the arena and in the tier.
    pub(super) arena: (u64, u64),
    pub(super) tier: Tier,
    pub(super) place: (u64, u64),
    /// The name of the state that is moved; `None` for a value. Numbers of states differ between schedules, names do
    /// not.
    pub(super) state: Option<String>,
    /// For a transfer that was started ahead: the index of its copy in the next schedule, and the version that it
    /// moves.
    pub(super) ahead: Option<(usize, Option<u32>)>,
}

impl OpenTransfer {
    /// The bytes that a copy of a schedule is about.
    pub(super) fn of(graph: &Graph, schedule: &Schedule, index: usize) -> Result<OpenTransfer, Fault> {
        let (Ends { buffer, tier, offset, direction }, lane) = ends_of(schedule, index)?;
        let Buffer { offset: first, bytes, contents, .. } = *schedule.buffer(buffer);
        let state = match contents {
            Contents::State(state) => graph.states().get(state.index()).map(|state| state.name.clone()),
            Contents::Value(_) | Contents::Scratch => None,
        };
        let range = |first: u64| (first, first.saturating_add(bytes));
        let (arena, place) = (range(first), range(offset));
        Ok(OpenTransfer { lane, direction, arena, tier, place, state, ahead: None })
    }

    /// The state or value that is moved, in words.
    pub(super) fn subject(&self) -> String {
        self.state.as_ref().map_or_else(|| "a value".to_owned(), |name| format!("`{name}`"))
    }
}

/// The ends and the lane of a copy, if they fit together.
pub(super) fn ends_of(schedule: &Schedule, index: usize) -> Result<(Ends, Lane), Fault> {
    let copy = schedule.copies.get(index);
    let ends = copy.and_then(|copy| Some((copy.ends()?, copy.lane)));
    let known = |ends: &Ends| ends.buffer.index() < schedule.buffers.len();
    let (ends, lane) = ends.filter(|(ends, _)| known(ends)).ok_or_else(|| {
        Fault::Copy(format!("there is no copy {index} between a buffer of the arena and a tier"))
    })?;
    if lane != Lane::of(ends.tier, ends.direction) {
        let name = lane.name();
        return Err(Fault::Copy(format!("copy {index} does not go the way of its lane, `{name}`")));
    }
    Ok((ends, lane))
}
