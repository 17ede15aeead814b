//! Runs of a schedule before they have buffers: the order of nodes, the lifetime that each operand belongs to, and the
//! lifetimes that move to another tier and back.
//!
//! `recompute` writes a sequence, `offload` adds transfers to it, and `layout` turns it into buffers.

use std::ops::Range;

use plimsoll_graph::{Graph, NodeId, StateId, Value};

use super::Away;
use crate::device::{Direction, Tier};

/// Where a node finds an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// A lifetime of a value.
    Instance(u32),
    /// A range of state.
    State(StateId),
}

/// One run of a node. Its operands lie in the list of the sequence, so that a hundred thousand runs are two lists and not
/// as many small ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Execution {
    pub(crate) node: NodeId,
    /// Where the run's inputs begin in that list.
    first: u32,
    inputs: u32,
    outputs: u32,
}

impl Execution {
    /// Positions of the run's operands in the list of the sequence, inputs first.
    pub(crate) fn operands(&self) -> Range<usize> {
        self.first as usize..(self.first + self.inputs + self.outputs) as usize
    }
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
    /// The execution that the transfer comes before.
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
    /// Operands of all runs, one run after another.
    pub(crate) operands: Vec<Operand>,
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
    /// Adds a run of `node` whose `inputs` inputs and then outputs are the last operands of the list, from `first` on.
    pub(crate) fn run(&mut self, node: NodeId, first: usize, inputs: usize) {
        let outputs = self.operands.len() - first - inputs;
        let (first, inputs, outputs) = (first as u32, inputs as u32, outputs as u32);
        self.executions.push(Execution { node, first, inputs, outputs });
    }

    /// Inputs and outputs of a run.
    pub(crate) fn operands_of(&self, run: &Execution) -> (&[Operand], &[Operand]) {
        self.operands[run.operands()].split_at(run.inputs as usize)
    }

    /// The same runs without a lasting place for the state in `away`: each state that is used becomes one instance,
    /// which no transfer brings in yet. State takes the first `taken` bytes of the tier.
    pub(crate) fn with_away(mut self, graph: &Graph, away: Vec<Away>, taken: u64) -> Sequence {
        let mut is_away = vec![false; graph.states().len()];
        for away in &away {
            is_away[away.state.index()] = true;
        }
        let mut stays: Vec<Option<u32>> = vec![None; graph.states().len()];
        for place in &mut self.operands {
            let Operand::State(state) = *place else { continue };
            if !is_away[state.index()] {
                continue;
            }
            let instance = *stays[state.index()].get_or_insert_with(|| {
                self.instances.push(graph.state(state).versions[0]);
                self.instances.len() as u32 - 1
            });
            *place = Operand::Instance(instance);
        }
        Sequence { away, taken, ..self }
    }
}
