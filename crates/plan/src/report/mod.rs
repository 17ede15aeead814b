//! Reports of a plan, read back from its schedule: which values each layer keeps, recomputes and offloads.
//!
//! Nothing here relies on the planner's intentions. A node is recomputed when the schedule runs it again, kept when
//! bytes it wrote in the forward pass are touched in the backward pass, and offloaded when a copy takes them out. So
//! the report is as true for a plan read from a file as for one just made.

mod compare;
mod experts;
mod gradients;
mod names;
mod timeline;
mod traffic;

use std::collections::BTreeSet;

use plimsoll_graph::{Graph, NodeId, Op, Phase};

use names::{forward_names, ranges};

use crate::device::{Direction, Facts};
use crate::plan::Plan;
use crate::program::{Program, Purpose, Role};
use crate::recompute::{Strategy, layer_names, layers};
use crate::schedule::{Action, Contents, Schedule};

pub use compare::{Compared, compare};
pub use experts::{ExpertReport, experts};
pub use gradients::{GradientReport, Persist, gradients};
pub use timeline::{Span, spans, timeline};
pub use traffic::{Traffic, traffic, wire_bytes};

/// Layers that are treated alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerReport {
    /// Names of the layers, consecutive ones as a range: `model.layers.0-4`.
    pub kind: String,
    /// The number of layers.
    pub count: usize,
    /// Values that the forward pass leaves for the backward pass.
    pub keep: Vec<String>,
    /// Nodes that run again.
    pub recompute: Vec<String>,
    /// Values that go to another tier and come back.
    pub offload: Vec<String>,
}

/// The work of one micro-batch of a plan beyond the forward and the backward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Layers in forward order, equal ones together.
    pub layers: Vec<LayerReport>,
    /// Time of recomputation over the time of one forward pass.
    pub recompute_fraction: f64,
    /// Bytes of values that leave the device.
    pub offload_bytes: u64,
    /// Bytes of state that live on another tier, for each purpose that has any there.
    pub state_bytes_away: Vec<(Purpose, u64)>,
    /// `checkpoint` marks of the model that the plan does not follow: only [`Strategy::Manual`] is bound by them.
    pub ignored_marks: usize,
    /// Rows of the tiles in which feed-forward networks run, if they do.
    pub tile_rows: Option<usize>,
}

/// Reads the report of a plan from its schedule of one micro-batch.
pub fn report(program: &Program, plan: &Plan) -> Report {
    let graph = &program.train.graph;
    let marks = graph.blocks().iter().filter(|block| block.checkpoint).count();
    let ignored_marks = if plan.strategy == Strategy::Manual { 0 } else { marks };
    let tile_rows = graph.tile_rows();
    let Some(schedule) = plan.schedules.get(&Role::First) else {
        return Report {
            layers: Vec::new(),
            recompute_fraction: 0.0,
            offload_bytes: 0,
            state_bytes_away: Vec::new(),
            ignored_marks,
            tile_rows,
        };
    };
    let out = schedule.copies.iter().filter(|copy| copy.direction() == Some(Direction::Out));
    let sent = out.filter_map(|copy| Some(schedule.buffer(copy.buffer()?)));
    let values = sent.filter(|buffer| matches!(buffer.contents, Contents::Value(_)));
    Report {
        layers: layer_reports(graph, &Fates::of(graph, schedule)),
        recompute_fraction: recompute_fraction(graph, schedule, &program.train.facts, plan),
        offload_bytes: values.map(|buffer| buffer.bytes).sum(),
        state_bytes_away: state_bytes_away(plan),
        ignored_marks,
        tile_rows,
    }
}

fn state_bytes_away(plan: &Plan) -> Vec<(Purpose, u64)> {
    let of = |purpose: Purpose| {
        let away = plan.states.iter().filter(|range| range.tier.is_some() && range.purpose == purpose);
        (purpose, away.map(|range| range.bytes).sum())
    };
    Purpose::ALL.map(of).into_iter().filter(|&(_, bytes)| bytes > 0).collect()
}

/// The fate of the results of forward nodes.
struct Fates {
    kept: BTreeSet<NodeId>,
    recomputed: BTreeSet<NodeId>,
    offloaded: BTreeSet<NodeId>,
}

impl Fates {
    fn of(graph: &Graph, schedule: &Schedule) -> Fates {
        let mut fates =
            Fates { kept: BTreeSet::new(), recomputed: BTreeSet::new(), offloaded: BTreeSet::new() };
        let backward = |action: &Action| matches!(action, Action::Run { node, .. } if graph.node(*node).phase == Phase::Backward);
        let turn = schedule.actions.iter().position(backward).unwrap_or(schedule.actions.len());
        let sent: BTreeSet<_> = schedule.copies.iter().filter_map(crate::schedule::Copy::buffer).collect();
        let mut seen = BTreeSet::new();
        for (index, action) in schedule.actions.iter().enumerate() {
            let Action::Run { node, outputs, .. } = action else { continue };
            if graph.node(*node).phase != Phase::Forward {
                continue;
            }
            if !seen.insert(*node) {
                fates.recomputed.insert(*node);
            }
            if index < turn && outputs.iter().any(|&id| schedule.buffer(id).end > turn) {
                fates.kept.insert(*node);
            }
            if outputs.iter().any(|id| sent.contains(id)) {
                fates.offloaded.insert(*node);
            }
        }
        // A value that is recomputed was not kept for all its readers, even if some bytes of it lived on.
        fates.kept.retain(|node| !fates.recomputed.contains(node));
        fates
    }
}

fn layer_reports(graph: &Graph, fates: &Fates) -> Vec<LayerReport> {
    let (layer_of, count) = layers(graph);
    let names = layer_names(graph, count);
    let mut groups: Vec<(Vec<String>, LayerReport)> = Vec::new();
    for (layer, layer_name) in names.into_iter().enumerate() {
        let nodes: Vec<NodeId> = (graph.node_ids())
            .filter(|id| layer_of[id.index()] == Some(layer) && !graph.node(*id).op.is_view())
            .collect();
        let node_names = forward_names(graph, &nodes);
        let among = |set: &BTreeSet<NodeId>| -> Vec<String> {
            let named = nodes.iter().zip(&node_names).filter(|(node, _)| set.contains(node));
            named.map(|(_, name)| name.clone()).collect()
        };
        let report = LayerReport {
            kind: String::new(),
            count: 1,
            keep: among(&fates.kept),
            recompute: among(&fates.recomputed),
            offload: among(&fates.offloaded),
        };
        let same = |known: &LayerReport| LayerReport { count: 1, ..known.clone() } == report;
        match groups.iter_mut().find(|(_, known)| same(known)) {
            Some((members, known)) => {
                members.push(layer_name);
                known.count += 1;
            }
            None => groups.push((vec![layer_name], report)),
        }
    }
    groups.into_iter().map(|(members, group)| LayerReport { kind: ranges(&members), ..group }).collect()
}

fn recompute_fraction(graph: &Graph, schedule: &Schedule, facts: &Facts, plan: &Plan) -> f64 {
    let executions = schedule.executions(graph);
    let forward = graph.node_ids().filter(|&id| graph.node(id).phase == Phase::Forward);
    let (mut once, mut again) = (0.0, 0.0);
    for id in forward {
        let seconds = facts.nodes[id.index()].seconds_with(plan.scratch);
        let times = executions[id.index()];
        once += if times > 0 { seconds } else { 0.0 };
        again += f64::from(times.saturating_sub(1)) * seconds;
        if let Op::Mlp(mlp) = graph.node(id).op {
            // The network's derivative computes all products but the last once more.
            again += seconds * (mlp.products() - 1) as f64 / mlp.products() as f64;
        }
    }
    if once > 0.0 { again / once } else { 0.0 }
}
