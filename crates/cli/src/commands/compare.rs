//! `plimsoll plan --compare`: the classic strategies beside the chosen plan.

use std::fmt::Write as _;

use plimsoll::Strategy;
use plimsoll::planning::{Compared, Request, compare};
use plimsoll::training::job::{Questions, Summary};
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::table::size;

/// The rows, with `auto` planned anew if the given plan has a fixed strategy.
pub(crate) fn rows(questions: &mut Questions, summary: &Summary) -> Result<Vec<Compared>, Failure> {
    let request = Request { strategy: None, ..questions.request };
    let fixed = questions.request.strategy.is_some_and(|strategy| strategy != Strategy::Auto);
    let open = fixed.then(|| questions.search_open()).transpose()?;
    let auto = open.as_ref().unwrap_or(&summary.planned);
    let rows = compare(&mut questions.searcher, request, &auto.choice);
    Ok(rows.map_err(|error| questions.failure(error))?)
}

/// The rows as a table.
pub(crate) fn table(summary: &Summary, rows: &[Compared]) -> String {
    let mut text = String::from("strategy      micro-batch      memory        step   slowdown\n");
    for row in rows {
        let batch = format!("{} × {}", row.micro_batch, row.accumulation);
        let memory = size(summary.process_bytes(row.arena_bytes).0);
        let verdict = if row.fits { "" } else { "   does not fit" };
        let (seconds, slowdown) = (row.step_seconds, 100.0 * row.slowdown);
        let _ = writeln!(
            text,
            "{:<14}{batch:<12}{memory:>11}{seconds:>10.3} s{slowdown:>+9.1} %{verdict}",
            row.name
        );
    }
    text
}

/// One row, by the names that scripts rely on.
pub(crate) fn json(summary: &Summary, row: &Compared) -> Value {
    json!({
        "strategy": row.name,
        "micro_batch": row.micro_batch,
        "accumulation": row.accumulation,
        "planned_peak_bytes": row.arena_bytes.0,
        "process_bytes": summary.process_bytes(row.arena_bytes).0,
        "predicted_step_seconds": row.step_seconds,
        "slowdown": row.slowdown,
        "fits": row.fits,
    })
}
