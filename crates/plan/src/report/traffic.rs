//! The traffic between ranks in one step: bytes on the wire, and the time that compute does not cover.

use plimsoll_graph::Phase;

use crate::program::{Costed, Role};
use crate::search::Choice;

/// Exchanges between ranks in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Ranks that exchange.
    pub ranks: usize,
    /// Bytes that each rank sends.
    pub wire_bytes: u64,
    /// Predicted time of all exchanges.
    pub seconds: f64,
    /// The part of it during which a rank computes nothing.
    pub exposed_seconds: f64,
}

/// The traffic of a plan; none where one rank trains alone.
pub fn traffic(choice: &Choice) -> Option<Traffic> {
    let (program, scratch) = (&choice.program, choice.plan.scratch);
    let Costed { graph, facts } = &program.train;
    let ranks = program.ranks();
    if ranks == 1 || !choice.plan.schedules.contains_key(&Role::Update) {
        return None;
    }
    let updates = graph.node_ids().filter(|&id| graph.node(id).phase == Phase::Update);
    let exchanges = updates.filter(|&id| graph.node(id).op.collective().is_some());
    let seconds = exchanges.map(|id| facts.nodes[id.index()].seconds_with(scratch)).sum();
    let exposed_seconds = (choice.plan.update_seconds - program.update_seconds(scratch)).max(0.0);
    Some(Traffic { ranks, wire_bytes: program.update_wire_bytes(), seconds, exposed_seconds })
}
