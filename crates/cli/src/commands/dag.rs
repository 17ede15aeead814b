//! `plimsoll plan --dag`: the planner on a training graph from elsewhere, for comparing planners.

use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use plimsoll::TrainError;
use plimsoll::planning::dag::{Dag, DagEffort, DagPlan, Unplannable, parse, plan_dag};
use plimsoll::training::files::read_any_text;
use plimsoll::training::memory::Size;

use crate::exit::Failure;
use crate::guard;
use crate::table::size;

pub(crate) fn run(file: &Path, memory: &str, as_json: bool) -> Result<(), Failure> {
    let budget: Result<Size, _> = memory.parse();
    let budget = budget.map_err(|error| TrainError::Config(error.to_string()))?.bytes;
    guard::raise(None)?;
    let dag = read(file)?;
    guard::lower();
    let started = Instant::now();
    let plan = plan_dag(&dag, budget, DagEffort::default()).map_err(|error| refusal(budget, &error))?;
    let seconds = started.elapsed().as_secs_f64();
    let mut out = io::stdout().lock();
    let written = if as_json {
        writeln!(out, "{}", json(&plan, seconds))
    } else {
        table(&mut out, &dag, budget, &plan, seconds)
    };
    written.map_err(|error| Failure::output(&error))
}

fn read(file: &Path) -> Result<Dag, TrainError> {
    let name = file.display();
    let text =
        read_any_text(file).map_err(|error| TrainError::Config(format!("{name} cannot be read: {error}")))?;
    parse(&text).map_err(|error| TrainError::Config(format!("{name}: {error}")))
}

/// The stated budget and one that works, in a form that can be typed.
fn refusal(budget: u64, error: &Unplannable) -> TrainError {
    TrainError::Config(match *error {
        Unplannable::TooSmall { smallest } => {
            format!(
                "no schedule fits into {budget}B; the smallest budget that works is `--memory {smallest}B`"
            )
        }
        Unplannable::NotFound { smallest, least } => format!(
            "no schedule was found that fits into {budget}B; the smallest budget known to work is `--memory {smallest}B`, and below {least}B there is none"
        ),
        Unplannable::TooMany { .. } | Unplannable::TooLarge { .. } => error.to_string(),
    })
}

/// The contract of `plan --dag --json`.
fn json(plan: &DagPlan, seconds: f64) -> Value {
    json!({
        "base_cost": plan.base_cost,
        "total_cost": plan.total_cost,
        "lower_bound_cost": plan.lower_bound_cost,
        "peak_bytes": plan.peak_bytes,
        "planning_seconds": seconds,
    })
}

fn table(out: &mut impl Write, dag: &Dag, budget: u64, plan: &DagPlan, seconds: f64) -> io::Result<()> {
    let forward = dag.nodes.iter().filter(|node| !node.backward).count();
    let over = |cost: f64| percent(cost / plan.base_cost - 1.0);
    let gap = plan.total_cost / plan.lower_bound_cost - 1.0;
    let verdict = if plan.total_cost > plan.lower_bound_cost {
        format!("at most {} % from optimal", percent(gap))
    } else {
        "optimal, proven over all schedules".to_owned()
    };
    writeln!(out, "{forward} forward nodes, {} backward nodes", dag.nodes.len() - forward)?;
    writeln!(out, "budget {}   peak {}   fits", size(budget), size(plan.peak_bytes))?;
    writeln!(out, "  base cost   {:>18}", plan.base_cost)?;
    writeln!(out, "  total cost  {:>18}   +{} %", plan.total_cost, over(plan.total_cost))?;
    writeln!(out, "  lower bound {:>18}   +{} %", plan.lower_bound_cost, over(plan.lower_bound_cost))?;
    writeln!(out, "{verdict}")?;
    writeln!(out, "planned in {seconds:.3} s")
}

/// A fraction as per cent; a graph without costs has no overhead.
fn percent(fraction: f64) -> String {
    format!("{:.2}", if fraction.is_finite() { 100.0 * fraction } else { 0.0 })
}
