//! Roles of schedules: one plan holds a schedule for each role that its program has.

use plimsoll_graph::Phase;

/// The role of a schedule in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Forward and backward of the first micro-batch of a step: gradients are replaced.
    First,
    /// Forward and backward of any other micro-batch: gradients are added to.
    Further,
    /// The optimizer, after the last micro-batch.
    Update,
    /// The forward pass for a validation loss.
    Evaluate,
    /// The forward pass that yields the next token.
    Generate,
}

impl Role {
    /// The name of the schedule.
    pub fn name(self) -> &'static str {
        match self {
            Role::First => "first",
            Role::Further => "further",
            Role::Update => "update",
            Role::Evaluate => "evaluate",
            Role::Generate => "generate",
        }
    }

    /// The phases of its graph that it runs.
    pub fn phases(self) -> &'static [Phase] {
        match self {
            Role::First | Role::Further => &[Phase::Forward, Phase::Backward],
            Role::Update => &[Phase::Update],
            Role::Evaluate | Role::Generate => &[Phase::Forward],
        }
    }
}
