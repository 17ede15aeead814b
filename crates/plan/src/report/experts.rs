//! The experts of a model in its plan: their bytes, and the parameters that work on one token.

use std::collections::BTreeMap;

use plimsoll_graph::{Graph, Node, Op, Phase, StateId, StateKind};

use crate::plan::Plan;
use crate::program::{Program, Purpose};

/// Bytes of experts and counts of parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertReport {
    /// Bytes that experts have, for each purpose that has any.
    pub bytes: Vec<(Purpose, u64)>,
    /// Parameters of the model.
    pub parameters: u64,
    /// Parameters that are active for one token: all but the experts that it is not sent to.
    pub active: u64,
}

/// Reads the share of experts in a plan; none for a model without.
pub fn experts(program: &Program, plan: &Plan) -> Option<ExpertReport> {
    let graph = &program.train.graph;
    let groups = groups(graph);
    if groups.is_empty() {
        return None;
    }
    let elements = |id: StateId| graph.state(id).ty.shape.elements() as u64;
    let parameters = graph.states().iter().filter(|state| matches!(state.kind, StateKind::Parameter { .. }));
    let parameters: u64 = parameters.map(|state| state.ty.shape.elements() as u64).sum();
    let idle = groups.iter().map(|(&id, &(chosen, experts))| elements(id) / experts * (experts - chosen));
    // Names of gradients, moments and lower halves are the name of the weight with a prefix.
    let names: Vec<&str> = groups.keys().map(|&id| graph.state(id).name.as_str()).collect();
    let of_experts = |name: &str| {
        let mut rests = names.iter().filter_map(|group| name.strip_suffix(group));
        rests.any(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let bytes = |purpose: Purpose| {
        let ranges = plan.states.iter().filter(|range| range.purpose == purpose && of_experts(&range.name));
        (purpose, ranges.map(|range| range.bytes).sum())
    };
    let bytes = Purpose::ALL.map(bytes).into_iter().filter(|&(_, bytes)| bytes > 0).collect();
    Some(ExpertReport { bytes, parameters, active: parameters - idle.sum::<u64>() })
}

/// The weights of experts, each with the number of experts that a token goes to and of all there are.
fn groups(graph: &Graph) -> BTreeMap<StateId, (u64, u64)> {
    let products =
        graph.nodes().iter().filter(|node| node.op == Op::GroupedLinear && node.phase == Phase::Forward);
    products.filter_map(|node| group(graph, node)).collect()
}

fn group(graph: &Graph, product: &Node) -> Option<(StateId, (u64, u64))> {
    let (state, _) = graph.value(product.inputs[1]).state?;
    let sort = graph.node(graph.producer(product.inputs[2])?);
    let chosen = graph.shape(sort.inputs[0]).columns() as u64;
    Some((state, (chosen, graph.shape(product.inputs[1])[0] as u64)))
}
