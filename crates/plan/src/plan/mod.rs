//! A plan: all schedules of a run in one arena, with state at the same offsets in each.
//!
//! ```text
//! 0            persistent                     transient                        arena
//! | weights | gradients | optimizer |  one layout per schedule, all from here  |
//! ```
//!
//! ```text
//! assemble, overlap, ahead ──▶ Draft ──▶ judge (sound, replay) ──▶ Plan
//! file ───────────────────────▶   │
//! ```
//!
//! A [`Draft`] is plain data that anybody may make or alter. A [`Plan`] is a draft that passed the judge: its fields can be
//! read and not written, and [`Draft::judge`] is the only way to one.

mod ahead;
mod assemble;
mod draft;
mod judge;
mod meeting;
mod overlap;
mod sound;

use crate::device::Scratch;
use crate::program::Program;
use crate::recompute::{Order, Strategy};

pub(crate) use assemble::{beside_bytes, closed_draft, draft, step_times};

pub use assemble::Tiered;
pub use draft::{ByPurpose, Draft};
pub use judge::{Plan, PlanError};

/// Plans `program` under one strategy, without regard to a budget.
///
/// # Errors
///
/// When graphs disagree about state, or a schedule fails the judge.
pub fn plan(program: &Program, strategy: Strategy, scratch: Scratch) -> Result<Plan, PlanError> {
    let order = Order::named(&program.train.graph, strategy);
    assemble(program, &order, strategy, scratch, Tiered::default())
}

/// Turns an order into a plan: runs, lifetimes, offsets, and the judge.
pub(crate) fn assemble(
    program: &Program,
    order: &Order,
    strategy: Strategy,
    scratch: Scratch,
    tiered: Tiered,
) -> Result<Plan, PlanError> {
    draft(program, order, strategy, scratch, tiered)?.judge(program)
}
