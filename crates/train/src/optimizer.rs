//! The optimizer as graph nodes, so that the planner counts and places its state like any other.
//!
//! ```text
//! sum_squares(gradient)                   one per trainable parameter
//! clip_scale(all sums) → (norm, scale)
//! adamw(gradient, lr, step, scale)        one per trainable parameter, in place
//! ```
//!
//! A gradient that is not finite makes the scale NaN, and then no update changes anything: the trainer
//! reads the norm, sees why, and stops with the weights as they were.

use plimsoll_graph::op::AdamW;
use plimsoll_graph::{DType, Graph, GraphError, Op, Phase, StateId, StateKind, Value, gradient_name};

/// What the optimizer does at every step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimizer {
    /// Decay rate of the first moment.
    pub beta1: f32,
    /// Decay rate of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Decoupled weight decay, applied to parameters of two or more axes only: biases and norm weights
    /// are left alone.
    pub weight_decay: f32,
    /// The largest global gradient norm; larger ones are scaled down to it.
    pub max_grad_norm: Option<f32>,
}

impl Default for Optimizer {
    fn default() -> Optimizer {
        Optimizer { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1, max_grad_norm: Some(1.0) }
    }
}

/// Appends the update of every parameter that has a gradient. The graph gains the inputs `lr` and `step`
/// and the output `grad_norm`.
///
/// # Errors
///
/// When the graph has no gradients or does not verify afterwards.
pub fn append(mut graph: Graph, optimizer: &Optimizer) -> Result<Graph, GraphError> {
    graph.set_phase(Phase::Update);
    let parameters: Vec<(StateId, StateId)> = trained(&graph);
    let [lr, step] = rates(&mut graph);
    // One sum per parameter, so that updates inside the backward pass, which meet one gradient at a time, come to
    // the same norm to the bit.
    let squares: Vec<Value> = (parameters.iter())
        .map(|&(_, gradient)| graph.apply(Op::SumSquares, &[graph.newest(gradient)]))
        .collect();
    let clip = graph.apply_all(Op::ClipScale { max_norm: optimizer.max_grad_norm }, &squares);
    let (norm, scale) = (graph.node(clip).outputs[0], graph.node(clip).outputs[1]);
    graph.output("grad_norm", norm);
    for (parameter, gradient) in parameters {
        let gradient = graph.newest(gradient);
        update(&mut graph, optimizer, parameter, &[gradient, lr, step, scale]);
    }
    graph.finish()
}

/// The inputs `lr` and `step`.
pub(crate) fn rates(graph: &mut Graph) -> [Value; 2] {
    ["lr", "step"].map(|name| graph.input(name, [], DType::F32))
}

/// The update of one parameter from its gradient, `lr`, `step` and the clipping factor.
pub(crate) fn update(graph: &mut Graph, optimizer: &Optimizer, parameter: StateId, operands: &[Value]) {
    let (name, ty) = (graph.state(parameter).name.clone(), graph.state(parameter).ty);
    let weight_decay = if ty.shape.len() >= 2 { optimizer.weight_decay } else { 0.0 };
    let Optimizer { beta1, beta2, epsilon, .. } = *optimizer;
    let op = Op::AdamW(AdamW { beta1, beta2, epsilon, weight_decay });
    let update = graph.apply_all(op, operands);
    graph.write_state(update, 0, parameter);
    for (output, moment) in [(1, "m"), (2, "v")] {
        let name = format!("{moment}.{name}");
        graph.state_range(&name, ty, StateKind::Moment);
        if let Some(state) = graph.state_named(&name) {
            graph.write_state(update, output, state);
        }
    }
}

/// Every parameter that has a gradient, with it.
pub(crate) fn trained(graph: &Graph) -> Vec<(StateId, StateId)> {
    (0..graph.states().len() as u32)
        .map(StateId)
        .filter_map(|parameter| {
            Some((parameter, graph.state_named(&gradient_name(&graph.state(parameter).name))?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::{Init, differentiate};

    fn classifier() -> Graph {
        let mut g = Graph::new();
        let x = g.input("x", [4, 8], DType::F32);
        let targets = g.input("targets", [4], DType::I32);
        let scale = g.loss_scale();
        let norm = g.param("norm", [8], Init::Fill(1.0));
        let x = g.rms_norm(x, norm, 1e-6);
        let w = g.param("w", [10, 8], Init::Normal(0.1));
        let loss = g.head_loss(x, w, None, targets, scale, -100);
        g.output("loss", loss);
        append(differentiate(&g, loss).unwrap(), &Optimizer::default()).unwrap()
    }

    #[test]
    fn every_trained_parameter_has_two_moments_and_one_update() {
        let graph = classifier();
        let updates = graph.nodes().iter().filter(|node| matches!(node.op, Op::AdamW(_))).count();
        let moments = graph.states().iter().filter(|state| state.kind == StateKind::Moment).count();
        assert_eq!((updates, moments), (2, 4));
    }

    #[test]
    fn only_matrices_decay() {
        let decays: Vec<f32> = (classifier().nodes().iter())
            .filter_map(|node| match node.op {
                Op::AdamW(adamw) => Some(adamw.weight_decay),
                _ => None,
            })
            .collect();
        assert_eq!(decays, [0.0, 0.1]);
    }
}
