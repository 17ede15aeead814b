//! Programs: the graphs of a run with the facts of the device they are planned for.
//!
//! A program is the planner's input. Decisions are absent: strategies, budgets and places begin in later folders.

mod build;
mod purpose;
mod role;
mod state;

use plimsoll_graph::op::Collective;
use plimsoll_graph::{Graph, Node, Op, Phase, StateKind, Value};

use crate::device::{Facts, Scratch};

pub(crate) use state::{declared_bytes, declared_state};

pub use build::Build;
pub use purpose::Purpose;
pub use role::Role;
pub use state::{StateDiffers, StateRange};

/// A graph with the device's facts about it.
#[derive(Clone, Debug)]
pub struct Costed {
    /// The graph.
    pub graph: Graph,
    /// Time and scratch of the graph's nodes on the device.
    pub facts: Facts,
}

/// All graphs of a run. They share state by name.
#[derive(Clone, Debug)]
pub struct Program {
    /// Forward, backward and update.
    pub train: Costed,
    /// The forward pass alone, for a validation loss.
    pub evaluate: Option<Costed>,
    /// The forward pass that yields the next token.
    pub generate: Option<Costed>,
}

impl Program {
    /// Name of the output that holds the clipping factor of all gradients, and of the input that takes it. They are
    /// used where a micro-batch runs twice: once to compute the factor and once to apply it.
    pub const CLIP: &str = "clip_scale";

    /// The graph that schedules of `role` run, if the program has it.
    pub fn part(&self, role: Role) -> Option<&Costed> {
        match role {
            Role::First | Role::Further | Role::Update => Some(&self.train),
            Role::Evaluate => self.evaluate.as_ref(),
            Role::Generate => self.generate.as_ref(),
        }
    }

    pub(crate) fn roles(&self) -> impl Iterator<Item = (Role, &Costed)> {
        Role::ALL.into_iter().filter_map(|role| self.part(role).map(|part| (role, part))).filter(
            |(role, part)| match role {
                Role::Update => part.graph.nodes().iter().any(|node| node.phase == Phase::Update),
                // A gradient that is used up in one micro-batch cannot be added to in another, and probes have none.
                Role::Further => !self.updates_in_backward() && self.probes() == 0,
                _ => true,
            },
        )
    }

    /// Ranks that run the program together: those of its exchanges, or one.
    pub fn ranks(&self) -> usize {
        let exchanges = self.train.graph.nodes().iter().find_map(|node| node.op.collective());
        exchanges.map_or(1, Collective::ranks)
    }

    /// Bytes that each rank sends to others in one update.
    pub fn update_wire_bytes(&self) -> u64 {
        let graph = &self.train.graph;
        let sent = |node: &Node| Some(node.op.collective()?.wire_bytes(graph.ty(*node.inputs.first()?)));
        graph.nodes().iter().filter(|node| node.phase == Phase::Update).filter_map(sent).sum()
    }

    /// Forward passes over each micro-batch whose losses stand in for gradients: two for each direction, or none.
    pub fn probes(&self) -> usize {
        let graph = &self.train.graph;
        let mut updates = graph.nodes().iter().filter(|node| node.phase == Phase::Update);
        let step = updates.find(|node| matches!(node.op, Op::ProbeStep(_)));
        step.map_or(0, |node| graph.ty(node.inputs[2]).shape.elements())
    }

    /// Runs of a micro-batch's schedule: two where the first computes the clipping factor and the second reads it; one for
    /// each probe.
    pub fn passes(&self) -> usize {
        let (graph, probes) = (&self.train.graph, self.probes());
        if probes > 0 {
            return probes;
        }
        let takes = self.updates_in_backward() && graph.input_named(Program::CLIP).is_some();
        if takes && graph.output_named(Program::CLIP).is_some() { 2 } else { 1 }
    }

    /// Time of a step of this many micro-batches without recomputation, which is the least time possible.
    pub fn once_seconds(&self, scratch: Scratch, micro_batches: usize) -> f64 {
        let passes = (self.passes() * micro_batches) as f64;
        self.pass_seconds(scratch) * passes + self.update_seconds(scratch)
    }

    /// Time of one pass over a micro-batch that recomputes nothing.
    pub(crate) fn pass_seconds(&self, scratch: Scratch) -> f64 {
        self.seconds_of(scratch, false)
    }

    /// Time of the update with all state in the arena.
    pub(crate) fn update_seconds(&self, scratch: Scratch) -> f64 {
        self.seconds_of(scratch, true)
    }

    fn seconds_of(&self, scratch: Scratch, update: bool) -> f64 {
        let Costed { graph, facts } = &self.train;
        let nodes = graph.node_ids().filter(|&id| !graph.node(id).op.is_view());
        // Exchanges run beside the rest; only a schedule tells how much of their time shows.
        let nodes = nodes.filter(|&id| graph.node(id).op.collective().is_none());
        let nodes = nodes.filter(|&id| (graph.node(id).phase == Phase::Update) == update);
        nodes.map(|id| facts.nodes[id.index()].seconds_with(scratch)).sum()
    }

    /// Whether parameters are updated inside the backward pass, with gradients that do not outlive it.
    pub fn updates_in_backward(&self) -> bool {
        let graph = &self.train.graph;
        let mut backward = graph.nodes().iter().filter(|node| node.phase == Phase::Backward);
        let is_parameter = |state| matches!(graph.state(state).kind, StateKind::Parameter { .. });
        let parameter =
            |&value: &Value| graph.value(value).state.is_some_and(|(state, _)| is_parameter(state));
        backward.any(|node| node.outputs.iter().any(parameter))
    }
}
