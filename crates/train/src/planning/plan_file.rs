//! Plans that were made before: `plan --out FILE`, `train --plan FILE`.
//!
//! The program is built anew for the file's micro-batch, in tiles or not, in one pass or two, and
//! [`Saved::for_program`] refuses a plan that does not belong to it. The file decides micro-batch, recompute and passes
//! if the options leave them open.

use plimsoll_exec::Device;
use plimsoll_graph::Graph;
use plimsoll_plan::file::{self, PlanFileError, Saved};
use plimsoll_plan::{ArenaBytes, Build, Choice};

use crate::error::TrainError;
use crate::memory;
use crate::memory::Size;
use crate::memory::{Budget, BudgetOrigin};
use crate::planning::Options;
use crate::planning::{Model, Planned, Programs, budget_with_rounding};

impl Planned {
    /// The text of a file that [`plan_from_file`] reads back.
    pub fn to_file(&self) -> String {
        file::write(&self.choice, self.budget.total)
    }
}

/// The plan in a file, for the same model on the same kind of device.
///
/// # Errors
///
/// When the file is damaged, was made for something else (the difference is named), does not fit the stated budget or
/// the machine, or holds a schedule that must not run.
pub fn plan_from_file(
    model: &impl Model,
    device: &dyn Device,
    options: &Options,
    text: &str,
) -> Result<Planned, TrainError> {
    // Measured before the file is parsed, since the parser's memory is given back before the arena is taken.
    let (mut budget, rounding) = budget_with_rounding(model, device, options)?;
    let saved = Saved::parse(text).map_err(refused)?;
    let micro_batch = saved.micro_batch();
    let planned_for = micro_batch * saved.accumulation() * options.ranks;
    if planned_for != options.global_batch {
        return Err(TrainError::Config(format!(
            "the plan is for a global batch of {planned_for} and {} was asked for; state `--global-batch {planned_for}`",
            options.global_batch
        )));
    }
    let two_passes = if saved.two_passes() { options.in_two_passes() } else { None };
    let choice = match &two_passes {
        Some(two) => choice_of(model, device, two, &saved)?,
        None => choice_of_a_stage(model, device, options, &saved)?,
    };
    let needed = choice.plan.arena_bytes;
    let free = memory::available()?;
    if options.memory.is_none() && needed <= ArenaBytes(free) {
        // The memory outside the arena may have grown a little since.
        let total = saved.budget().max(needed.process(budget.outside));
        budget = Budget { total, origin: BudgetOrigin::Stated, ..budget };
    }
    budget = budget.as_planned(needed, rounding + text.len() as u64);
    if needed > budget.arena() {
        let (needs, has) = (needed.process(budget.outside), budget.total);
        let (needs, has) = (Size { bytes: needs.0 }.at_least(), Size { bytes: has.0 });
        return Err(TrainError::Config(format!(
            "the plan needs {needs}, the budget is {has}; plan again for this budget"
        )));
    }
    Ok(Planned { choice, budget })
}

/// The plan that another rank has made and sent, for the same settings. This rank's process was not there when the budget was
/// divided, and takes the division as it is; the memory of all ranks is judged when the run ends.
///
/// # Errors
///
/// When the plan was made for something else (the difference is named), or holds a schedule that must not run.
pub(crate) fn plan_of_another_rank(
    model: &impl Model,
    device: &dyn Device,
    options: &Options,
    text: &str,
) -> Result<Planned, TrainError> {
    let saved = Saved::parse(text).map_err(refused)?;
    let choice = choice_of_a_stage(model, device, options, &saved)?;
    let total = saved.budget();
    let outside = total.0.saturating_sub(choice.plan.arena_bytes.0);
    Ok(Planned { choice, budget: Budget { total, outside, origin: BudgetOrigin::Stated, ceiling: None } })
}

/// The choice in a file. Where the options leave the stage open, the file decides it, because another stage is another
/// graph.
fn choice_of_a_stage(
    model: &impl Model,
    device: &dyn Device,
    options: &Options,
    saved: &Saved,
) -> Result<Choice, TrainError> {
    let stages = options.stages(model);
    let (lowest, others) = stages.split_first().map_or((options, &[][..]), |(first, rest)| (first, rest));
    let first = choice_of(model, device, lowest, saved);
    let of = |stage: &Options| choice_of(model, device, stage, saved).ok();
    if first.is_ok() { first } else { others.iter().find_map(of).map_or(first, Ok) }
}

/// The choice in a file for the program that the options ask for.
fn choice_of(
    model: &impl Model,
    device: &dyn Device,
    options: &Options,
    saved: &Saved,
) -> Result<Choice, TrainError> {
    let micro_batch = saved.micro_batch();
    let mut programs = Programs { model, facts: |graph: &Graph| device.facts(graph), options };
    // A model that no longer has tiles is another model, as the comparison of the whole program will show.
    let tiled = if saved.tiled() { programs.tiled(micro_batch)? } else { None };
    let program = tiled.map_or_else(|| programs.whole(micro_batch), Ok)?;
    saved.for_program(program).map_err(refused)
}

#[allow(clippy::needless_pass_by_value, reason = "it serves as `map_err(refused)`")]
fn refused(error: PlanFileError) -> TrainError {
    TrainError::Config(error.to_string())
}
