//! The experts of a model in its plan: their bytes, and the parameters that work on one token.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_graph::op::Collective;
use plimsoll_graph::{Graph, Node, Op, Phase, StateId, StateKind, Value};

use crate::plan::Plan;
use crate::program::{Program, Purpose};

/// Bytes of experts and counts of parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertReport {
    /// Bytes that experts and their adapters have on one rank, for each purpose that has any.
    pub bytes: Vec<(Purpose, u64)>,
    /// Parameters of the model and its adapters, on all ranks together and before they are kept in few bits.
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
    let parameters = parameters(graph);
    let elements = |id: StateId| graph.state(id).whole_type().shape.elements() as u64;
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

fn parameters(graph: &Graph) -> u64 {
    let dequantised = graph.nodes().iter().filter(|node| matches!(node.op, Op::Dequantise(_)));
    let codes: BTreeSet<Value> = dequantised.flat_map(|node| node.inputs.iter().copied()).collect();
    let whole = graph.states().iter().filter(|state| {
        matches!(state.kind, StateKind::Parameter { .. }) && !codes.contains(&state.versions[0])
    });
    let whole: u64 = whole.map(|state| state.whole_type().shape.elements() as u64).sum();
    whole + graph.quantised_bytes().map_or(0, |coded| coded.whole_bytes / 4)
}

/// The weights of experts and of their adapters, each with the number of experts that a token goes to and of all there
/// are.
fn groups(graph: &Graph) -> BTreeMap<StateId, (u64, u64)> {
    let products =
        graph.nodes().iter().filter(|node| node.op == Op::GroupedLinear && node.phase == Phase::Forward);
    products.filter_map(|node| group(graph, node)).collect()
}

fn group(graph: &Graph, product: &Node) -> Option<(StateId, (u64, u64))> {
    let state = origin(graph, product.inputs[1])?;
    let sort = graph.node(graph.producer(product.inputs[2])?);
    let chosen = graph.shape(sort.inputs[0]).columns() as u64;
    Some((state, (chosen, graph.shape(product.inputs[1])[0] as u64)))
}

/// The state that a value is, or is a form of: ranks gather a weight that they divide, and an adapter's factors hold
/// experts along another axis.
fn origin(graph: &Graph, mut value: Value) -> Option<StateId> {
    loop {
        if let Some((state, _)) = graph.value(value).state {
            return Some(state);
        }
        let node = graph.node(graph.producer(value)?);
        match node.op {
            Op::Collective(Collective::AllGather { .. })
            | Op::Cast { .. }
            | Op::Reshape { .. }
            | Op::Slice { .. }
            | Op::Transpose { .. } => value = node.inputs[0],
            _ => return None,
        }
    }
}
