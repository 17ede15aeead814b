//! Runs of a schedule before they have buffers: the order of nodes, the lifetime of a value that each operand is, and
//! the lifetimes that move to another tier and back.
//!
//! `recompute` writes a sequence, `offload` adds transfers to it, and `layout` turns it into buffers.

use std::collections::BTreeMap;

use plimsoll_graph::{Graph, NodeId, StateId, Value};

use super::Away;
use crate::device::{Direction, Tier};

/// Where a node finds an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// A lifetime of a value.
    Instance(usize),
    /// A range of state.
    State(StateId),
}

/// One run of a node.
#[derive(Clone, Debug)]
pub(crate) struct Execution {
    pub(crate) node: NodeId,
    pub(crate) inputs: Vec<Operand>,
    pub(crate) outputs: Vec<Operand>,
}

/// A copy of an instance to another tier, or back from it into an instance of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) instance: usize,
    pub(crate) tier: Tier,
    pub(crate) tier_offset: u64,
    pub(crate) direction: Direction,
}

/// The beginning or the end of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transfer {
    /// The execution it comes before.
    pub(crate) before: usize,
    /// Index of the move.
    pub(crate) of: usize,
    /// Whether the move begins or is waited for.
    pub(crate) begins: bool,
}

/// All runs of a schedule, and for each instance the value it is a lifetime of. Instances of graph inputs come first:
/// the caller writes them before the first run. State that is away has instances too, one per stay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sequence {
    pub(crate) executions: Vec<Execution>,
    pub(crate) instances: Vec<Value>,
    pub(crate) moves: Vec<Move>,
    /// In order; those before the same run in the order of this list.
    pub(crate) transfers: Vec<Transfer>,
    /// State that a tier holds before the first run and after the last.
    pub(crate) away: Vec<Away>,
    /// Bytes of that tier that hold state, of this graph or another: values are sent to the bytes after them.
    pub(crate) taken: u64,
}

impl Sequence {
    /// The same runs without a lasting place for the state in `away`: each state that is used becomes one instance,
    /// which no transfer brings in yet. State takes the first `taken` bytes of the tier.
    pub(crate) fn with_away(mut self, graph: &Graph, away: Vec<Away>, taken: u64) -> Sequence {
        let mut stays: BTreeMap<StateId, Option<usize>> =
            away.iter().map(|away| (away.state, None)).collect();
        for execution in &mut self.executions {
            for place in execution.inputs.iter_mut().chain(&mut execution.outputs) {
                let Operand::State(state) = *place else { continue };
                let Some(stay) = stays.get_mut(&state) else { continue };
                let instance = *stay.get_or_insert_with(|| {
                    self.instances.push(graph.state(state).versions[0]);
                    self.instances.len() - 1
                });
                *place = Operand::Instance(instance);
            }
        }
        Sequence { away, taken, ..self }
    }
}
