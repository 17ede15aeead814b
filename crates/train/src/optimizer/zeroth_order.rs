//! Training without a backward pass: a step computes the loss at points near the weights, along random directions, and moves
//! the weights along those directions.
//!
//! ```text
//! first    perturb(w, probe, size) → forward → loss     for each micro-batch, direction and side
//! update   probe_step(lr, probe, losses)                one per trained parameter, in place
//! ```
//!
//! Ranks sum the losses of their micro-batches in the update and draw the same directions, so they exchange two numbers for
//! each direction and nothing else.
//!
//! A step is a list of forward passes of one schedule, each with another `probe` and `probe_size`, and one update that draws
//! the same directions again. There are no gradients, no moments and no kept activations: see
//! docs/decisions/0054-a-step-without-gradients-is-a-list-of-forward-passes.md.

use std::str::FromStr;

use plimsoll_graph::op::{Collective, Estimate, ProbeStep, Stored};
use plimsoll_graph::{
    DType, ErrorsOf, Graph, GraphError, Op, Phase, Shape, StateId, StateKind, count_errors, perturb,
    probe_stream,
};

use super::{Optimizer, OptimizerKind, StateStorage, write};

/// The input of the update that holds the losses of all probes.
pub(crate) const PROBE_LOSSES: &str = "probe_losses";
/// The input of the update that says from which random numbers the directions of all probes are drawn. The forward pass
/// has an input of its own for its one probe, [`PROBE`](plimsoll_graph::PROBE).
pub(crate) const PROBES: &str = "probes";

/// The quantity by which the members of a population are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Fitness {
    /// The training loss.
    #[default]
    Loss,
    /// The share of targets that are the likeliest word.
    Accuracy,
    /// The share of answers that greedy generation writes to the letter.
    ExactMatch,
}

impl Fitness {
    const ALL: [Fitness; 3] = [Fitness::Loss, Fitness::Accuracy, Fitness::ExactMatch];

    /// Its name among settings.
    pub fn name(self) -> &'static str {
        match self {
            Fitness::Loss => "loss",
            Fitness::Accuracy => "accuracy",
            Fitness::ExactMatch => "exact-match",
        }
    }

    /// The errors that are counted in place of the loss.
    fn errors(self) -> Option<ErrorsOf> {
        match self {
            Fitness::Loss => None,
            Fitness::Accuracy => Some(ErrorsOf::Tokens),
            Fitness::ExactMatch => Some(ErrorsOf::Answers),
        }
    }
}

impl FromStr for Fitness {
    type Err = String;

    fn from_str(name: &str) -> Result<Fitness, String> {
        let known = Fitness::ALL.into_iter().find(|fitness| fitness.name() == name.replace('_', "-"));
        let names = Fitness::ALL.map(Fitness::name).join(", ");
        known.ok_or_else(|| format!("there is no fitness `{name}`; known are {names}"))
    }
}

impl Optimizer {
    /// How losses of probes become a step.
    pub(crate) fn estimate(&self) -> Estimate {
        Estimate { size: self.probe_size, ranked: self.kind == OptimizerKind::Es }
    }

    /// The update of a parameter.
    pub(super) fn probe_step(&self, name: &str, shape: Shape, stored: Stored) -> Op {
        let weight_decay = if shape.len() >= 2 { self.weight_decay } else { 0.0 };
        let stream = probe_stream(name);
        Op::ProbeStep(ProbeStep { shape, stream, estimate: self.estimate(), weight_decay, stored })
    }
}

/// Lets a forward graph read every trained parameter with a perturbation added, and appends the update of each. The graph
/// gains the inputs `probe` and `probe_size`, and for the update `lr`, `probes` and `probe_losses`, which are
/// summed over `ranks` ranks.
///
/// # Errors
///
/// When a rate is out of range, nothing is trained, or the graph does not verify afterwards.
pub(crate) fn append_probes(
    graph: Graph,
    optimizer: &Optimizer,
    storage: StateStorage,
    world: Option<usize>,
) -> Result<Graph, GraphError> {
    let refused = |why| GraphError { what: "optimizer".into(), block: String::new(), why, at: None };
    optimizer.check().map_err(refused)?;
    if !graph.steered().is_empty() {
        let why =
            "a step without gradients moves no bias of routers; balance experts with --router-aux-loss none";
        return Err(refused(why.to_owned()));
    }
    let counted = optimizer.fitness.errors().map(|of| count_errors(graph.clone(), of)).transpose()?;
    let mut graph = perturb(counted.unwrap_or(graph))?;
    graph.set_phase(Phase::Update);
    let lr = graph.input("lr", [], DType::F32);
    let mut losses = graph.input(PROBE_LOSSES, [optimizer.directions, 2], DType::F32);
    if let Some(ranks) = world {
        losses = graph.apply(Op::Collective(Collective::AllReduce { ranks }), &[losses]);
    }
    let probe = graph.input(PROBES, [4], DType::I32);
    for parameter in probed(&graph) {
        let (name, shape) = (graph.state(parameter).name.clone(), graph.state(parameter).ty.shape);
        let op = optimizer.op(&name, shape, false, storage);
        write(&mut graph, storage, parameter, op, vec![lr, probe, losses]);
    }
    graph.finish()
}

/// The trained parameters that some probe reads.
fn probed(graph: &Graph) -> Vec<StateId> {
    let is_read = |id: StateId| {
        let read = |value| graph.value(value).state.is_some_and(|(state, _)| state == id);
        graph.nodes().iter().any(|node| node.inputs.iter().any(|&value| read(value)))
    };
    let ids = (0..graph.states().len() as u32).map(StateId);
    ids.filter(|&id| graph.state(id).kind == StateKind::Parameter { trainable: true } && is_read(id))
        .collect()
}
