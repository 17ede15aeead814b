//! Schedules that the judge has passed: the only form in which a device takes one.
//!
//! A device follows addresses without looking at them, so an altered schedule would be a kernel that writes anywhere. The
//! judge proves what holds on every device; [`Runnable::suits`] is the rest, which depends on the device: alignment and
//! scratch. A device asks it with facts of its own.

use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_graph::Graph;

use super::open::{Judged, replay_all};
use super::{Fault, ReplayError};
use crate::device::Facts;
use crate::program::Role;
use crate::schedule::{Action, BufferId, Contents, Schedule};

/// A schedule with its graph, which the judge has passed together with all schedules that may follow it. Only
/// [`runnable`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct Runnable<'a> {
    judged: Judged<'a>,
    set: u64,
}

/// Judges the schedules of a run as [`replay_all`] does, and returns them in the form that a device takes.
///
/// # Errors
///
/// The first fault found, with the role of the schedule that it is in.
pub fn runnable<'a>(all: &[Judged<'a>], arena: u64) -> Result<Vec<Runnable<'a>>, (Role, ReplayError)> {
    static SETS: AtomicU64 = AtomicU64::new(0);
    replay_all(all, arena)?;
    let set = SETS.fetch_add(1, Ordering::Relaxed);
    Ok(all.iter().map(|&judged| Runnable { judged, set }).collect())
}

impl<'a> Runnable<'a> {
    /// Role of the schedule.
    pub fn role(&self) -> Role {
        self.judged.role
    }

    /// The graph whose nodes the schedule runs.
    pub fn graph(&self) -> &'a Graph {
        self.judged.graph
    }

    /// The schedule.
    pub fn schedule(&self) -> &'a Schedule {
        self.judged.schedule
    }

    /// The number of a group of schedules that were judged together. A schedule may begin while transfers of another are
    /// open only if both have the same number.
    pub fn set(&self) -> u64 {
        self.set
    }

    /// Checks it against a device: buffers are aligned and padded as the device wants it, and every kernel gets at least
    /// the scratch without which it cannot run.
    ///
    /// # Errors
    ///
    /// The first fault found.
    pub fn suits(&self, facts: &Facts) -> Result<(), ReplayError> {
        let wrong = |action, why| ReplayError { action, after: None, fault: Fault::WrongOperand(why) };
        let Facts { alignment, .. } = *facts;
        for (row, buffer) in self.schedule().buffers.iter().enumerate() {
            if !buffer.offset.is_multiple_of(alignment) || !buffer.bytes.is_multiple_of(alignment) {
                let place = format!("buffer {row} is {} bytes from byte {} on", buffer.bytes, buffer.offset);
                let why = format!("{place}, and the device wants multiples of {alignment}");
                return Err(wrong(None, why));
            }
        }
        for (index, action) in self.schedule().actions.iter().enumerate() {
            self.has_scratch(action, facts).map_err(|why| wrong(Some(index), why))?;
        }
        Ok(())
    }

    fn has_scratch(&self, action: &Action, facts: &Facts) -> Result<(), String> {
        let Action::Run { node, workspace, .. } = action else { return Ok(()) };
        let least = facts.nodes.get(node.index()).map_or(u64::MAX, |facts| facts.workspace.least);
        let given = workspace.map_or(0, |id| self.scratch_bytes(id));
        if given >= least {
            return Ok(());
        }
        let op = self.graph().node(*node).op.name();
        Err(format!("{op} gets {given} bytes of scratch and needs {least} on this device"))
    }

    /// Bytes that an action may use as scratch in a buffer: all of a buffer of scratch, none of any other.
    fn scratch_bytes(&self, id: BufferId) -> u64 {
        let buffer = self.schedule().buffer(id);
        if buffer.contents == Contents::Scratch { buffer.bytes } else { 0 }
    }
}
