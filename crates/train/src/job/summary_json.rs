//! A plan as JSON, for `plan --json` and the first line of `metrics.jsonl`: scripts rely on these names.

use serde_json::{Map, Value, json};

use plimsoll_exec::Instructions;
use plimsoll_plan::{LayerReport, Point, gradients};

use super::summary::Summary;
use crate::planning::Planned;

impl Summary {
    /// The plan by the names that scripts know.
    pub fn to_json(&self) -> Map<String, Value> {
        fields(self)
    }
}

fn fields(summary: &Summary) -> Map<String, Value> {
    let (choice, budget) = (&summary.planned.choice, &summary.planned.budget);
    let plan = &choice.plan;
    let by_purpose: Map<String, Value> =
        plan.by_purpose.iter().map(|(purpose, bytes)| (purpose.to_owned(), bytes.into())).collect();
    let away = summary.report.state_bytes_away.iter();
    let away: Map<String, Value> =
        away.map(|&(purpose, bytes)| (purpose.name().to_owned(), bytes.into())).collect();
    let gradients = gradients(choice);
    let fields = json!({
        "budget_bytes": budget.total.0,
        "planned_peak_bytes": plan.arena_bytes.0,
        "arena_bytes": plan.arena_bytes.0,
        "planned_process_bytes": summary.process_bytes(plan.arena_bytes).0,
        "outside_bytes": budget.outside,
        "pools": pools(summary),
        "by_purpose": by_purpose,
        "quantised_weights": quantised(summary),
        "micro_batch": choice.micro_batch,
        "accumulation": choice.accumulation,
        "recompute": plan.strategy.to_string(),
        "tile_rows": summary.report.tile_rows,
        "precision": choice.program.train.graph.precision().name(),
        "instructions": summary.instructions.map(Instructions::name),
        "liveness_bound_bytes": plan.liveness_bound,
        "predicted_step_seconds": summary.step_seconds(),
        "steps": summary.steps,
        "predicted_run_seconds": summary.run_seconds(),
        "unbudgeted_step_seconds": summary.unbudgeted.step_seconds,
        "lower_bound_step_seconds": summary.lower_bound_seconds.min(summary.step_seconds()),
        "gap": summary.gap(),
        "recompute_fraction": summary.report.recompute_fraction,
        "gradients": {
            "bytes": gradients.bytes,
            "persist": gradients.persist.is_some(),
            "why": gradients.to_string(),
        },
        "offload_bytes": summary.report.offload_bytes,
        "offload_state_bytes": away,
        "planning_seconds": summary.planning_seconds,
        "comparing_seconds": summary.comparing_seconds,
        "layers": summary.report.layers.iter().map(layer).collect::<Vec<_>>(),
        "faster": summary.faster.iter().map(|point| faster(summary, point)).collect::<Vec<_>>(),
    });
    match fields {
        Value::Object(mut fields) => {
            fields.extend(experts(summary));
            fields.extend(ranks(summary));
            fields
        }
        _ => Map::new(),
    }
}

/// The traffic between ranks; nothing where one trains alone.
fn ranks(summary: &Summary) -> Option<(String, Value)> {
    let traffic = plimsoll_plan::traffic(&summary.planned.choice)?;
    let fields = json!({
        "count": traffic.ranks,
        "wire_bytes_per_step": traffic.wire_bytes,
        "exchange_seconds": traffic.seconds,
        "exposed_seconds": traffic.exposed_seconds,
    });
    Some(("ranks".to_owned(), fields))
}

/// Bytes of experts and counts of parameters; nothing for a model without.
fn experts(summary: &Summary) -> Option<(String, Value)> {
    let choice = &summary.planned.choice;
    let report = plimsoll_plan::experts(&choice.program, &choice.plan)?;
    let bytes: Map<String, Value> =
        report.bytes.iter().map(|&(purpose, bytes)| (purpose.name().to_owned(), bytes.into())).collect();
    let told = json!({ "bytes": bytes, "parameters": report.parameters, "active_parameters": report.active });
    Some(("experts".to_owned(), told))
}

/// The weights that are kept in few bits, if any are.
fn quantised(summary: &Summary) -> Option<Value> {
    let graph = &summary.planned.choice.program.train.graph;
    let (coded, words) = (graph.quantised_bytes()?, graph.vocabulary_bytes());
    Some(json!({
        "form": coded.form.name(),
        "weights": coded.weights,
        "bytes": coded.bytes,
        "f32_bytes": coded.whole_bytes,
        "embedding_bytes": words.embedding,
        "head_bytes": words.head,
    }))
}

/// Budget and planned bytes of the memory that holds the arena, and of the tier for offload. A tier without a limit has
/// no budget.
fn pools(summary: &Summary) -> Map<String, Value> {
    let pool =
        |budget: Option<u64>, planned: u64| json!({ "budget_bytes": budget, "planned_bytes": planned });
    let Planned { choice, budget } = &summary.planned;
    let own = pool(Some(budget.total.0), summary.process_bytes(choice.plan.arena_bytes).0);
    let mut pools = Map::from_iter([("device".to_owned(), own)]);
    if let (Some(link), Some((taken, room))) = (choice.program.train.facts.link, summary.waiting_bytes()) {
        pools.insert(link.tier.name().to_owned(), pool(Some(room).filter(|&room| room < u64::MAX), taken));
    }
    pools
}

/// One group of layers.
fn layer(layer: &LayerReport) -> Value {
    let LayerReport { kind, count, keep, recompute, offload } = layer;
    json!({ "kind": kind, "count": count, "keep": keep, "recompute": recompute, "offload": offload })
}

fn faster(summary: &Summary, point: &Point) -> Value {
    json!({
        "memory_bytes": summary.process_bytes(point.arena_bytes).0,
        "predicted_step_seconds": point.step_seconds,
    })
}
