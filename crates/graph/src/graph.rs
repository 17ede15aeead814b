//! The program as data: nodes in execution order, values in SSA form, state, blocks.
//!
//! A **value** is written once, by a node or by the caller (an input). **State** outlives a micro-batch: parameters,
//! constants, gradient sums, optimizer moments. To read state is to read a value that stands for one *version* of it. A
//! node that updates state has the next version among its outputs and writes it in place:
//!
//! ```text
//! %7: grad.w@1 = linear_grad_weight(%2, %6)     the node reads and writes the range `grad.w`
//! ```
//!
//! [`Graph::verify`](crate::verify) checks that no node reads version 1 after version 2 is written.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::{Op, Shape, Type};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);

        impl $name {
            /// Position in the table to which the id belongs.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

id! {
    /// A value. Cheap to copy; model code passes it around.
    Value
}
id! {
    /// A node.
    NodeId
}
id! {
    /// A range of state.
    StateId
}
id! {
    /// A block.
    BlockId
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// FNV-1a of a name. Fixed here, and not left to a hasher that may change between releases, because it is part
/// of what makes a run repeatable.
pub fn name_hash(name: &str) -> u64 {
    let mut hashed = NameHash::default();
    hashed.add(name);
    hashed.hash()
}

/// The [`name_hash`] of a text that is written piece by piece and not held as a whole.
#[derive(Clone, Copy, Debug)]
pub struct NameHash(u64);

impl Default for NameHash {
    fn default() -> NameHash {
        NameHash(0xcbf2_9ce4_8422_2325)
    }
}

impl NameHash {
    /// The hash of everything written so far.
    pub fn hash(self) -> u64 {
        self.0
    }

    fn add(&mut self, piece: &str) {
        let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        self.0 = piece.bytes().fold(self.0, add);
    }
}

impl fmt::Write for NameHash {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        self.add(piece);
        Ok(())
    }
}

/// Finds state by its name. Names of deep models are long and begin alike, so a tree of them compares thousands of bytes for
/// each question; hashes differ at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateNames {
    by_hash: HashMap<u64, StateId>,
    /// State whose name has the hash of an earlier one.
    others: BTreeMap<String, StateId>,
}

impl StateNames {
    pub(crate) fn find(&self, name: &str, states: &[State]) -> Option<StateId> {
        let &first = self.by_hash.get(&name_hash(name))?;
        if states[first.index()].name == name { Some(first) } else { self.others.get(name).copied() }
    }

    /// Adds a name that is not there yet.
    pub(crate) fn add(&mut self, name: &str, id: StateId) {
        match self.by_hash.entry(name_hash(name)) {
            Entry::Vacant(place) => drop(place.insert(id)),
            Entry::Occupied(_) => drop(self.others.insert(name.to_owned(), id)),
        }
    }
}

/// Which part of a training step a node belongs to. Nodes are in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Runs for every micro-batch, and may run again to recompute a dropped value.
    Forward,
    /// Runs exactly once for every micro-batch.
    Backward,
    /// Runs once a step, after the last micro-batch.
    Update,
}

/// An operation applied to values.
#[derive(Clone, Debug)]
pub struct Node {
    /// The op.
    pub op: Op,
    /// Inputs, in the order the op documents.
    pub inputs: Vec<Value>,
    /// Outputs, in the order the op documents.
    pub outputs: Vec<Value>,
    /// The innermost block the node belongs to.
    pub block: BlockId,
    /// The part of the step that the node belongs to.
    pub phase: Phase,
    /// For a backward node: the forward node that it helps to differentiate.
    pub derivative_of: Option<NodeId>,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSource {
    /// The caller writes the value before the schedule runs.
    Input,
    /// Output `output` of `node`.
    Node {
        /// The producer.
        node: NodeId,
        /// Which of the node's outputs.
        output: usize,
    },
    /// The contents of `state` before any node of the graph has updated it.
    State,
}

/// Facts about a value.
#[derive(Clone, Debug)]
pub struct ValueInfo {
    /// Shape and element type.
    pub ty: Type,
    /// Where the value comes from.
    pub source: ValueSource,
    /// If the value lives in state: the state, and the version that the value is.
    pub state: Option<(StateId, u32)>,
    /// The name of an input; empty for the rest.
    pub name: String,
}

/// The purpose of a range of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateKind {
    /// A weight of the model.
    Parameter {
        /// Whether the state receives a gradient.
        trainable: bool,
    },
    /// A small table that never changes.
    Constant,
    /// Sum of a parameter's gradients over the micro-batches of a step. Its first writer in a step overwrites the sum
    /// of the last step.
    Gradient,
    /// Sum over the micro-batches of a step of a value that the caller watches. It begins anew like a gradient's sum, and
    /// in the graph only an update reads it.
    Tally,
    /// A gradient that is used up inside the micro-batch that makes it, or a rank's shard of a parameter inside the update. It
    /// has bytes from its first writer, which replaces the contents, to its last reader, and is invisible outside that
    /// schedule.
    Transient,
    /// A running average of the optimizer, or a bias that its step moves: numbers that only a checkpoint keeps.
    Moment,
}

impl StateKind {
    /// Whether contents last from one step to the next; a step makes the others anew.
    pub fn outlives_a_step(self) -> bool {
        !matches!(self, StateKind::Gradient | StateKind::Tally | StateKind::Transient)
    }
}

/// The contents of a range of state before the first step.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// Every element is this number.
    Fill(f32),
    /// Drawn from a normal distribution of mean 0 with this standard deviation.
    Normal(f32),
    /// Drawn evenly from `−bound … bound`.
    Uniform(f32),
    /// These numbers; for small tables only, such as rotary frequencies.
    Table(Vec<f32>),
    /// A matrix with a column for each of these rows, in which that row is 1 and the others are 0.
    OneHot(Vec<usize>),
}

/// A named part of a range of state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePart {
    /// The name of the part in files; unique like that of a state.
    pub name: String,
    /// Extents of the part.
    pub shape: Shape,
}

/// A named range that outlives a micro-batch.
#[derive(Clone, Debug)]
pub struct State {
    /// Unique; parameters are named as in Hugging Face files.
    pub name: String,
    /// Shape and element type.
    pub ty: Type,
    /// Purpose of the state.
    pub kind: StateKind,
    /// First contents of the state.
    pub init: Init,
    /// Its named parts in the order they lie in, where it is a group; see [`State::pieces`].
    pub parts: Vec<StatePart>,
    /// The type of the whole, where each rank keeps a shard of it.
    pub whole: Option<Type>,
    /// The value that stands for each version, oldest first.
    pub versions: Vec<Value>,
}

/// A scalar that is minimised beside the loss: the derivative is that of `loss + Σ weight · value`.
#[derive(Clone, Debug, PartialEq)]
pub struct AddedLoss {
    /// Name of the graph's output that holds the value, without its weight.
    pub name: String,
    /// The scalar.
    pub value: Value,
    /// The loss's cotangent.
    pub weight: f32,
}

/// A value that is summed over the micro-batches of a step for the caller to read.
#[derive(Clone, Debug, PartialEq)]
pub struct Tally {
    /// Name of the state that holds the sum.
    pub name: String,
    /// The value, of the forward phase.
    pub value: Value,
}

/// Biases of a router's choice that every step moves towards an even load.
#[derive(Clone, Debug, PartialEq)]
pub struct Steered {
    /// Name of their state. The [tally](Tally) of the same name counts the tokens of each expert.
    pub bias: String,
    /// How far a bias moves in one step.
    pub rate: f32,
}

impl Steered {
    /// Name of the state that counts the tokens of each expert.
    pub fn tally(&self) -> String {
        tally_name(&self.bias)
    }
}

/// The name of the state that sums a value over the micro-batches of a step.
pub(crate) fn tally_name(name: &str) -> String {
    format!("tally.{name}")
}

/// A named region of the graph, usually one layer. Blocks nest.
#[derive(Clone, Debug)]
pub struct Block {
    /// Last part of the name.
    pub name: String,
    /// The surrounding block; the root is its own parent.
    pub parent: BlockId,
    /// Whether the user marked the block's values to be dropped and recomputed.
    pub checkpoint: bool,
}

/// A program: see the module's documentation.
#[derive(Clone, Debug)]
pub struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) values: Vec<ValueInfo>,
    pub(crate) states: Vec<State>,
    /// The states by name.
    pub(crate) state_names: StateNames,
    pub(crate) blocks: Vec<Block>,
    pub(crate) inputs: Vec<Value>,
    pub(crate) outputs: Vec<(String, Value)>,
    pub(crate) added_losses: Vec<AddedLoss>,
    pub(crate) tallies: Vec<Tally>,
    pub(crate) steered: Vec<Steered>,
    pub(crate) current: BlockId,
    pub(crate) phase: Phase,
    pub(crate) derivative_of: Option<NodeId>,
    pub(crate) error: Option<crate::GraphError>,
}

impl Graph {
    /// The outermost block.
    pub const ROOT: BlockId = BlockId(0);

    /// All nodes, in execution order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Ids of all nodes, in execution order.
    pub fn node_ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// One node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// Number of values; ids run from 0.
    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    /// Facts about a value.
    pub fn value(&self, value: Value) -> &ValueInfo {
        &self.values[value.index()]
    }

    /// Shape and element type of a value.
    pub fn ty(&self, value: Value) -> Type {
        self.values[value.index()].ty
    }

    /// Shape of a value.
    pub fn shape(&self, value: Value) -> Shape {
        self.ty(value).shape
    }

    /// All state, in the order it was declared.
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// One range of state.
    pub fn state(&self, id: StateId) -> &State {
        &self.states[id.index()]
    }

    /// The range of state of that name.
    pub fn state_named(&self, name: &str) -> Option<StateId> {
        self.state_names.find(name, &self.states)
    }

    /// All blocks; the first is the root.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// One block.
    pub fn block_info(&self, id: BlockId) -> &Block {
        &self.blocks[id.index()]
    }

    /// The blocks around `block` from the outermost inwards, the root left out and `block` included.
    pub fn block_path(&self, mut block: BlockId) -> Vec<BlockId> {
        let mut path = Vec::new();
        while block != Graph::ROOT {
            path.push(block);
            block = self.blocks[block.index()].parent;
        }
        path.reverse();
        path
    }

    /// The blocks that count as layers: the children of the outermost block that has several.
    pub fn layer_blocks(&self) -> Vec<BlockId> {
        let mut outer = Graph::ROOT;
        loop {
            let children: Vec<BlockId> = (1..self.blocks.len() as u32)
                .map(BlockId)
                .filter(|&block| self.block_info(block).parent == outer && block != outer)
                .collect();
            match children[..] {
                [only] if self.blocks.iter().any(|block| block.parent == only) => outer = only,
                _ => return children,
            }
        }
    }

    /// The dotted name of a block, empty for the root.
    pub fn block_name(&self, block: BlockId) -> String {
        let path = self.block_path(block);
        path.iter().map(|b| self.blocks[b.index()].name.as_str()).collect::<Vec<_>>().join(".")
    }

    /// The values the caller writes before a schedule runs.
    pub fn inputs(&self) -> &[Value] {
        &self.inputs
    }

    /// The input of that name.
    pub fn input_named(&self, name: &str) -> Option<Value> {
        self.inputs.iter().copied().find(|&value| self.value(value).name == name)
    }

    /// The named values the caller reads after a schedule ran. They are always kept.
    pub fn outputs(&self) -> &[(String, Value)] {
        &self.outputs
    }

    /// The output of that name.
    pub fn output_named(&self, name: &str) -> Option<Value> {
        self.outputs.iter().find(|(output, _)| output == name).map(|&(_, value)| value)
    }

    /// The scalars that are minimised beside the loss, in the order they were declared.
    pub fn added_losses(&self) -> &[AddedLoss] {
        &self.added_losses
    }

    /// The biases that a step moves, in the order they were declared.
    pub fn steered(&self) -> &[Steered] {
        &self.steered
    }

    /// The node that writes a value, unless the caller does or it is initial state.
    pub fn producer(&self, value: Value) -> Option<NodeId> {
        match self.value(value).source {
            ValueSource::Node { node, .. } => Some(node),
            ValueSource::Input | ValueSource::State => None,
        }
    }

    /// The value whose bytes `value` shows: itself, or the value it is a reshape of.
    pub fn storage(&self, value: Value) -> Value {
        match self.producer(value) {
            Some(node) if self.node(node).op.is_view() => self.storage(self.node(node).inputs[0]),
            _ => value,
        }
    }

    /// Types of a node's inputs.
    pub fn input_types(&self, node: &Node) -> Vec<Type> {
        node.inputs.iter().map(|&value| self.ty(value)).collect()
    }

    /// Types of a node's outputs.
    pub fn output_types(&self, node: &Node) -> Vec<Type> {
        node.outputs.iter().map(|&value| self.ty(value)).collect()
    }

    /// Elements of all trainable parameters.
    pub fn trainable_elements(&self) -> usize {
        let trainable = |state: &&State| matches!(state.kind, StateKind::Parameter { trainable: true });
        self.states.iter().filter(trainable).map(|state| state.ty.shape.elements()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_whose_hash_belongs_to_another_is_found_and_a_name_that_is_not_there_is_not() {
        let mut graph = Graph::new();
        for name in ["a", "b"] {
            graph.param(name, [1], Init::Fill(0.0));
        }
        let [a, b] = ["a", "b"].map(|name| graph.state_named(name).unwrap());
        // As if the names had one hash.
        let mut names = StateNames::default();
        names.by_hash.insert(name_hash("b"), a);
        names.add("b", b);
        assert_eq!(names.find("b", &graph.states), Some(b));
        assert_eq!((names.find("a", &graph.states), graph.state_named("c")), (None, None));
    }
}
