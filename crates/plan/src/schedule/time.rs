//! The predicted time of a schedule.

use super::{Action, Copy, Schedule};
use crate::device::{Direction, Facts, Scratch};

/// Predicted time of a schedule: runs one after another, transfers beside them, one at a time each way.
pub(crate) fn seconds(schedule: &Schedule, facts: &Facts, scratch: Scratch) -> f64 {
    let mut clock = 0.0;
    let mut free = [0.0; 2];
    let mut done = vec![0.0; schedule.copies.len()];
    for action in &schedule.actions {
        match *action {
            Action::Run { node, .. } => clock += facts.nodes[node.index()].seconds_with(scratch),
            Action::Start { copy } => {
                let Copy { buffer, direction, .. } = schedule.copies[copy];
                let lane: &mut f64 = &mut free[usize::from(direction == Direction::In)];
                let bytes = schedule.buffer(buffer).bytes;
                let takes = facts.link.map_or(0.0, |link| link.seconds(direction, bytes));
                clock += facts.link.map_or(0.0, |link| link.lost_seconds(bytes));
                *lane = lane.max(clock) + takes;
                done[copy] = *lane;
            }
            Action::Wait { copy } => clock = f64::max(clock, done[copy]),
        }
    }
    clock
}
