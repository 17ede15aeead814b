//! The traffic between ranks in one step: bytes on the wire, and the time that compute does not cover.

use crate::plan::step_times;
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
    let [pass, update] = [Role::First, Role::Update].map(|role| exchange_seconds(choice, role));
    let sent = |role| wire_bytes(choice, role);
    let exposed_seconds = (choice.step_seconds() - seconds_without(choice)).max(0.0);
    let wire_bytes = sent(Role::First) * micro_batches as u64 + sent(Role::Update);
    Some(Traffic { ranks, wire_bytes, seconds: micro_batches as f64 * pass + update, exposed_seconds })
}

/// Time of the same step if exchanges took no time. Waits for a tier stay.
fn seconds_without(choice: &Choice) -> f64 {
    let Costed { graph, facts } = &choice.program.train;
    let mut facts = facts.clone();
    for (node, facts) in graph.nodes().iter().zip(&mut facts.nodes) {
        if node.op.collective().is_some() {
            (facts.seconds, facts.lean_seconds) = (0.0, 0.0);
        }
    }
    let (micro_batch, update) = step_times(&choice.plan.schedules, &facts, choice.plan.scratch);
    (choice.accumulation * choice.program.passes()) as f64 * micro_batch + update
}

/// Bytes that each rank sends in one run of a schedule. Weights may be gathered more than once.
pub fn wire_bytes(choice: &Choice, role: Role) -> u64 {
    let graph = choice.program.part(role).map(|part| &part.graph);
    let exchanged = graph.zip(choice.plan.schedules.get(&role)).into_iter();
    let exchanged = exchanged.flat_map(|(graph, schedule)| exchanges(graph, schedule));
    exchanged.map(|exchange| exchange.collective.wire_bytes(exchange.ty)).sum()
}

/// Time of a schedule's exchanges, one after the other.
fn exchange_seconds(choice: &Choice, role: Role) -> f64 {
    let Costed { graph, facts } = &choice.program.train;
    let actions = choice.plan.schedules.get(&role).map_or(&[][..], |schedule| &schedule.actions);
    let seconds = |action: &Action| match action {
        Action::Run { node, .. } if graph.node(*node).op.collective().is_some() => {
            facts.nodes[node.index()].seconds_with(choice.plan.scratch)
        }
        _ => 0.0,
    };
    actions.iter().map(seconds).sum()
}
