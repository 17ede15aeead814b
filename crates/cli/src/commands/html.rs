//! `plimsoll plan --html`: a plan as one page with pictures.

use std::path::Path;

use serde_json::{Value, json};

use plimsoll::Role;
use plimsoll::planning::{self, Action, Compared, Point, Purpose, Request, Span, spans, spread};
use plimsoll::training::job::{Questions, Summary};

use crate::commands::compare;
use crate::exit::Failure;
use crate::page::Plain;
use crate::{page, table};

/// Budgets on the curve.
const BUDGETS: u32 = 24;

/// Writes the page of a plan.
pub(crate) fn write(
    path: &Path,
    title: &str,
    summary: &Summary,
    rows: &[Compared],
    questions: &mut Questions,
) -> Result<(), Failure> {
    let curve = curve(questions, summary)?;
    let on_curve = |point: &Point| {
        json!({
            "bytes": summary.process_bytes(point.arena_bytes).0,
            "seconds": point.step_seconds,
            "bound": point.lower_bound_seconds,
            "micro_batch": point.micro_batch,
        })
    };
    let data = json!({
        "title": title,
        "seq_len": summary.seq_len,
        "budget_is": table::origin(&summary.planned.budget),
        "purposes": Purpose::ALL.map(Purpose::name),
        "plan": summary.to_json(),
        "schedules": [schedule(summary, Role::First), schedule(summary, Role::Update)],
        "curve": curve.iter().map(on_curve).collect::<Vec<_>>(),
        "compare": rows.iter().map(|row| compare::json(summary, row)).collect::<Vec<_>>(),
    });
    page::PLAN.write(path, &data, &Plain::default())
}

/// `auto` from the smallest budget that works to the one at which everything is kept.
fn curve(questions: &mut Questions, summary: &Summary) -> Result<Vec<Point>, Failure> {
    let request = Request { strategy: None, ..questions.request };
    let smallest =
        questions.searcher.smallest(request).map_err(|error| questions.failure(error))?.arena_bytes;
    let mut budgets = vec![smallest];
    budgets.extend(spread(smallest, summary.unbudgeted.arena_bytes, BUDGETS - 1));
    let mut points = planning::curve(&mut questions.searcher, request, &budgets)
        .map_err(|error| questions.failure(error))?;
    if questions.request.strategy.is_none() {
        // The plan may be of a kind that the curve does not include: two passes over each micro-batch.
        points.push(Point::of(&summary.planned.choice));
    }
    points.sort_by_key(|point| point.arena_bytes);
    let mut fastest = f64::INFINITY;
    points.retain(|point| {
        let faster = point.step_seconds < fastest;
        fastest = fastest.min(point.step_seconds);
        faster
    });
    Ok(points)
}

/// The actions of a schedule with their times, and its buffers.
fn schedule(summary: &Summary, role: Role) -> Value {
    let choice = &summary.planned.choice;
    let Some(schedule) = choice.plan.schedules.get(&role) else { return Value::Null };
    let part = &choice.program.train;
    let mut seen = vec![false; part.graph.nodes().len()];
    let mut action = |action: &Action| match action {
        Action::Run { node, .. } => {
            let again = std::mem::replace(&mut seen[node.index()], true);
            let seconds = part.facts.nodes[node.index()].seconds_with(choice.plan.scratch);
            let node = part.graph.node(*node);
            let op = if again { format!("{} again", node.op.name()) } else { node.op.name().to_owned() };
            json!([op, part.graph.block_name(node.block), seconds])
        }
        Action::Await { node } => {
            json!([format!("end of {}", part.graph.node(*node).op.name()), "", 0.0])
        }
        Action::Start { copy } => json!([format!("start of copy {copy}"), "", 0.0]),
        Action::Wait { copy } => json!([format!("end of copy {copy}"), "", 0.0]),
        Action::Settle { lane, left } => {
            json!([format!("end of earlier copies by {} but {left}", lane.name()), "", 0.0])
        }
        Action::StartNext { role, copy } => {
            json!([format!("start of copy {copy} of {}", role.name()), "", 0.0])
        }
    };
    let buffer = |span: Span| {
        let Span { contents, purpose, offset, bytes, start, end } = span;
        json!([contents, purpose as usize, offset, bytes, start, end])
    };
    json!({
        "name": role.name(),
        "actions": schedule.actions.iter().map(&mut action).collect::<Vec<_>>(),
        "buffers": spans(&part.graph, schedule).into_iter().map(buffer).collect::<Vec<_>>(),
    })
}
