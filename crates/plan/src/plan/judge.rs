//! The gate to a plan: a draft passes or is refused with its fault.
//!
//! [`sound`](super::sound) checks the draft's tables (ids exist, bytes are aligned, kernels get their scratch, state is
//! where the plan says). `replay` then walks every schedule byte range by byte range: alone, and after each schedule
//! that may precede it. Neither shares code with what makes drafts. A plan read from a file comes through here like one
//! just made.

use std::fmt;
use std::ops::Deref;

use super::draft::Draft;
use super::sound::check;
use crate::program::{Program, StateDiffers};
use crate::schedule::{Judged, ReplayError, replay_all};

/// A draft that passed the judge, to be read and run. It cannot be altered, and only [`Draft::judge`] makes one: to
/// change a plan, change a copy of its draft and judge that.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan(Draft);

impl Deref for Plan {
    type Target = Draft;

    fn deref(&self) -> &Draft {
        &self.0
    }
}

impl Plan {
    /// A copy of the judged draft.
    pub fn to_draft(&self) -> Draft {
        self.0.clone()
    }
}

impl Draft {
    /// Makes a plan of a draft, if its tables are sound and all its schedules pass the replay.
    ///
    /// # Errors
    ///
    /// When the draft lacks a schedule of the program, has one that is unsound, or has one that `replay` refuses.
    pub fn judge(self, program: &Program) -> Result<Plan, PlanError> {
        check(&self, program)?;
        let judged = program.roles().map(|(role, part)| Judged {
            role,
            graph: &part.graph,
            schedule: &self.schedules[&role],
        });
        replay_all(&judged.collect::<Vec<_>>(), self.arena_bytes.0)
            .map_err(|(role, error)| PlanError::Refused { schedule: role.name(), error })?;
        Ok(Plan(self))
    }
}

/// Why a program cannot be planned, or a draft is no plan. All are faults of the program, of a file or of the planner, not
/// of a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// Two graphs of the program disagree about a range of state.
    StateDiffers {
        /// Name of the state.
        name: String,
    },
    /// A table of the draft makes no sense.
    Unsound {
        /// Where, such as `schedules.first.buffers[3]`.
        place: String,
        /// The kind of entry that belongs there.
        expected: &'static str,
    },
    /// The judge refused a schedule.
    Refused {
        /// Which.
        schedule: &'static str,
        /// Why.
        error: ReplayError,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::StateDiffers { name } => StateDiffers { name: name.clone() }.fmt(f),
            PlanError::Unsound { place, expected } => write!(f, "`{place}` must be {expected}"),
            PlanError::Refused { schedule, error } => {
                write!(f, "schedule `{schedule}` failed its check, which is a fault of plimsoll: {error}")
            }
        }
    }
}

impl std::error::Error for PlanError {}

impl From<StateDiffers> for PlanError {
    fn from(StateDiffers { name }: StateDiffers) -> PlanError {
        PlanError::StateDiffers { name }
    }
}

impl From<super::sound::Unsound> for PlanError {
    fn from(super::sound::Unsound { place, expected }: super::sound::Unsound) -> PlanError {
        PlanError::Unsound { place, expected }
    }
}
