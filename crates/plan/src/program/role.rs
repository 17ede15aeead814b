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
    /// All roles.
    pub const ALL: [Role; 5] = [Role::First, Role::Further, Role::Update, Role::Evaluate, Role::Generate];

    /// Schedules that may begin while transfers of this one are open. The judge tries each of these pairs. Before any
    /// other schedule, and before state is read or written, all open transfers are waited for.
    ///
    /// ```text
    /// first     ▶ first (a step without an update of its own, or its second pass) · further · update
    /// further   ▶ further · update
    /// update    ▶ first
    /// evaluate  ▶ nothing
    /// generate  ▶ nothing
    /// ```
    pub fn overlaps(self) -> &'static [Role] {
        match self {
            Role::First => &[Role::First, Role::Further, Role::Update],
            Role::Further => &[Role::Further, Role::Update],
            Role::Update => &[Role::First],
            Role::Evaluate | Role::Generate => &[],
        }
    }

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

    /// The phases of the graph that schedules of this role run.
    pub fn phases(self) -> &'static [Phase] {
        match self {
            Role::First | Role::Further => &[Phase::Forward, Phase::Backward],
            Role::Update => &[Phase::Update],
            Role::Evaluate | Role::Generate => &[Phase::Forward],
        }
    }
}
