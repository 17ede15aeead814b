//! The traffic between ranks in one step: bytes on the wire, and the time that compute does not cover.

use crate::program::{Costed, Role};
use crate::schedule::{Action, exchanges};
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
    /// The part of that time during which a rank computes nothing.
    pub exposed_seconds: f64,
}

/// The traffic of a plan; none where one rank trains alone.
pub fn traffic(choice: &Choice) -> Option<Traffic> {
    let program = &choice.program;
    let ranks = program.ranks();
    if ranks == 1 || !choice.plan.schedules.contains_key(&Role::Update) {
        return None;
    }
    let micro_batches = choice.accumulation * program.passes();
    let [passes, update] = [Role::First, Role::Update].map(|role| times(choice, role));
    let sent = |role| wire_bytes(choice, role);
    let [exchanged, computed] = [0, 1].map(|which| micro_batches as f64 * passes[which] + update[which]);
    let exposed_seconds = (choice.step_seconds() - computed).max(0.0);
    let wire_bytes = sent(Role::First) * micro_batches as u64 + sent(Role::Update);
    Some(Traffic { ranks, wire_bytes, seconds: exchanged, exposed_seconds })
}

/// Bytes that each rank sends in one run of a schedule. Weights may be gathered more than once.
pub fn wire_bytes(choice: &Choice, role: Role) -> u64 {
    let graph = choice.program.part(role).map(|part| &part.graph);
    let exchanged = graph.zip(choice.plan.schedules.get(&role)).into_iter();
    let exchanged = exchanged.flat_map(|(graph, schedule)| exchanges(graph, schedule));
    exchanged.map(|exchange| exchange.collective.wire_bytes(exchange.ty)).sum()
}

/// Times of a schedule's exchanges and of its other runs, each by itself.
fn times(choice: &Choice, role: Role) -> [f64; 2] {
    let Costed { graph, facts } = &choice.program.train;
    let mut times = [0.0; 2];
    let actions = choice.plan.schedules.get(&role).map_or(&[][..], |schedule| &schedule.actions);
    for action in actions {
        if let Action::Run { node, .. } = action {
            let exchanges = graph.node(*node).op.collective().is_some();
            let seconds = facts.nodes[node.index()].seconds_with(choice.plan.scratch);
            times[usize::from(!exchanges)] += seconds;
        }
    }
    times
}
