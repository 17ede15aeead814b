//! The optimizer inside the backward pass: a gradient lives from its first contribution to its update.
//!
//! ```text
//! guard ← 0·loss                                          at the turn
//! squares.w ← sum_squares(grad.w)                         as soon as grad.w is complete
//! clip_scale(guard, squares.w) → scale                    1, or NaN and then the update changes nothing
//! adamw(grad.w, lr, step, scale)                          the bytes of grad.w are free again
//! clip_scale(all squares) → grad_norm                     at the end
//! ```
//!
//! Weights, moments, losses and the norm have the bits of a separate update: the same nodes run on the same numbers,
//! only earlier. The difference is a step that fails. A loss that is not finite is known before the first update, and
//! nothing changes. A gradient that is not finite leaves its own parameter unchanged, but parameters nearer to the loss
//! have been updated by then; the error of that step says so.
//!
//! This works only if nothing about all gradients must be known first: one micro-batch a step and no limit on the norm.
//! With a limit there is the form of two passes. The same schedule runs twice: first with a clipping factor of NaN, so
//! that it changes nothing and leaves the norm, then with the factor that follows from the norm. It costs a further
//! forward and backward pass and is the last resort of a budget; a gradient that is not finite is found before any
//! update.

use plimsoll_graph::{DType, Graph, GraphError, Op, Phase, StateId, StateKind, Type, Value, interleave};
use plimsoll_plan::Program;

use crate::optimizer::matrices::hidden_matrices;
use crate::optimizer::steering::append_steering;
use crate::optimizer::{Optimizer, StateStorage, trained, update};

/// When parameters are updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Update {
    /// Inside the backward pass wherever that is possible: it takes no longer, and gradients need not persist. In two
    /// passes if the norm is limited and all other plans do not fit or are slower.
    Auto,
    /// The update follows the last micro-batch of a step.
    #[default]
    Separate,
    /// Inside the backward pass, which requires one micro-batch a step and no limit on the gradient norm.
    InBackward,
    /// Inside a second backward pass; the first only finds the norm. Requires one micro-batch a step.
    TwoPass,
}

impl Update {
    /// The name of the setting, as the user types it.
    pub fn name(self) -> &'static str {
        match self {
            Update::Auto => "auto",
            Update::Separate => "separate",
            Update::InBackward => "in-backward",
            Update::TwoPass => "two-pass",
        }
    }
}

impl std::str::FromStr for Update {
    type Err = String;

    fn from_str(name: &str) -> Result<Update, String> {
        match name {
            "auto" => Ok(Update::Auto),
            "separate" => Ok(Update::Separate),
            "in-backward" => Ok(Update::InBackward),
            "two-pass" => Ok(Update::TwoPass),
            _ => Err(format!("--update is auto, separate, in-backward or two-pass, got `{name}`")),
        }
    }
}

/// Appends the update of every parameter that has a gradient and moves it into the backward pass. The graph gains
/// the inputs `lr` and `step` and the output `grad_norm`; its gradients become transient.
///
/// # Errors
///
/// When the graph has no gradients or no output `loss`, or does not verify afterwards.
pub fn append_in_backward(
    mut graph: Graph,
    optimizer: &Optimizer,
    storage: StateStorage,
) -> Result<Graph, GraphError> {
    graph.set_phase(Phase::Update);
    let parameters = trained(&graph);
    let hidden = hidden_matrices(&graph);
    let lr = graph.input("lr", [], DType::F32);
    let loss = graph.output_named("loss").ok_or_else(|| GraphError {
        what: "model".into(),
        block: String::new(),
        why: "has no output `loss`, which updates inside the backward pass must see first".into(),
        at: None,
    })?;
    // Scalars that many layers read are state. So they lie outside the transient part, and all layers stay alike.
    let guard = scalar_state(&mut graph, "grad_guard", Op::Scale { factor: 0.0 }, loss);
    let limit = Op::ClipScale { max_norm: None };
    let mut squares = Vec::new();
    for (parameter, gradient) in parameters {
        let [newest, own] = with_squares(&mut graph, parameter, gradient);
        let clip = graph.apply_all(limit.clone(), &[guard, own]);
        let scale = graph.node(clip).outputs[1];
        let parameter = (parameter, hidden[parameter.index()]);
        update(&mut graph, optimizer, storage, parameter, [newest, lr, scale]);
        graph.make_transient(gradient);
        squares.push(own);
    }
    let clip = graph.apply_all(limit, &squares);
    let [norm, scale] = [graph.node(clip).outputs[0], graph.node(clip).outputs[1]];
    graph.output("grad_norm", norm);
    append_steering(&mut graph, scale)?;
    interleave(graph)
}

/// As [`append_in_backward`], for two passes: updates take the clipping factor from the input `clip_scale`, and the
/// output of that name holds the factor that follows from the norm.
///
/// # Errors
///
/// When the graph has no gradients or does not verify afterwards.
pub fn append_two_pass(
    mut graph: Graph,
    optimizer: &Optimizer,
    storage: StateStorage,
) -> Result<Graph, GraphError> {
    graph.set_phase(Phase::Update);
    let parameters = trained(&graph);
    let hidden = hidden_matrices(&graph);
    let lr = graph.input("lr", [], DType::F32);
    let scale = graph.input(Program::CLIP, [], DType::F32);
    let mut squares = Vec::new();
    for (parameter, gradient) in parameters {
        let [newest, own] = with_squares(&mut graph, parameter, gradient);
        squares.push(own);
        let parameter = (parameter, hidden[parameter.index()]);
        update(&mut graph, optimizer, storage, parameter, [newest, lr, scale]);
        graph.make_transient(gradient);
    }
    append_steering(&mut graph, scale)?;
    let clip = graph.apply_all(Op::ClipScale { max_norm: optimizer.max_grad_norm }, &squares);
    let [norm, scale] = [graph.node(clip).outputs[0], graph.node(clip).outputs[1]];
    graph.output("grad_norm", norm);
    graph.output(Program::CLIP, scale);
    interleave(graph)
}

/// Prefix of a parameter's name in the name of the sum of its gradient's squares.
pub(crate) const SQUARES: &str = "grad_squares.";

/// The newest version of a gradient, and the sum of its squares as state.
fn with_squares(graph: &mut Graph, parameter: StateId, gradient: StateId) -> [Value; 2] {
    let newest = graph.newest(gradient);
    let name = format!("{SQUARES}{}", graph.state(parameter).name);
    [newest, scalar_state(graph, &name, Op::SumSquares, newest)]
}

/// Applies `op` and keeps its scalar result as state.
fn scalar_state(graph: &mut Graph, name: &str, op: Op, input: Value) -> Value {
    let node = graph.apply_all(op, &[input]);
    graph.state_range(name, Type::f32([]), StateKind::Gradient);
    match graph.state_named(name) {
        Some(state) => graph.write_state(node, 0, state),
        None => graph.node(node).outputs[0],
    }
}
