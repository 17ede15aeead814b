//! Writing a model: declarations and blocks, and the general way to apply an op. Each op has a method of its own, in
//! the file of its family in `rules`.
//!
//! Methods return plain [`Value`]s, not results, so that a model reads like its paper. The first
//! mistake is remembered together with the line of the caller's code, everything after it is ignored,
//! and [`Graph::finish`] reports it.

use std::panic::Location;

use crate::graph::{
    AddedLoss, Block, BlockId, Graph, Init, Node, NodeId, Phase, State, StateId, StateKind, StateNames,
    Tally, ValueInfo, ValueSource, tally_name,
};
use crate::{DType, GraphError, Op, Shape, Type, Value, infer};

impl Default for Graph {
    fn default() -> Graph {
        Graph::new()
    }
}

impl Graph {
    /// A graph with nothing in it.
    pub fn new() -> Graph {
        let root = Block { name: String::new(), parent: Graph::ROOT, checkpoint: false };
        Graph {
            nodes: Vec::new(),
            values: Vec::new(),
            states: Vec::new(),
            state_names: StateNames::default(),
            blocks: vec![root],
            inputs: Vec::new(),
            outputs: Vec::new(),
            added_losses: Vec::new(),
            tallies: Vec::new(),
            steered: Vec::new(),
            current: Graph::ROOT,
            phase: Phase::Forward,
            derivative_of: None,
            error: None,
        }
    }

    /// The finished graph, or the first mistake made while building it.
    ///
    /// # Errors
    ///
    /// The mistake, with the line of code that made it.
    pub fn finish(self) -> Result<Graph, GraphError> {
        match self.error {
            Some(error) => Err(error),
            None => self.verify().map(|()| self),
        }
    }

    // ---- declarations ------------------------------------------------------------------------------

    /// A value the caller supplies for every micro-batch. Declaring the same name again returns the
    /// same value.
    #[track_caller]
    pub fn input(&mut self, name: &str, shape: impl Into<Shape>, dtype: DType) -> Value {
        let ty = Type { shape: shape.into(), dtype };
        if let Some(known) = self.input_named(name) {
            if self.ty(known) != ty {
                self.fail("input", format!("`{name}` is already declared as {}, not {ty}", self.ty(known)));
            }
            return known;
        }
        let value = self.push_value(ty, ValueSource::Input, None);
        name.clone_into(&mut self.values[value.index()].name);
        self.inputs.push(value);
        value
    }

    /// A trainable weight; its name is prefixed with the block's. Declaring the same full name again
    /// returns the same value, which is how weights are shared.
    #[track_caller]
    pub fn param(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Value {
        self.declare(name, Type::f32(shape), StateKind::Parameter { trainable: true }, init)
    }

    /// A weight that is not trained: it has no gradient and no optimizer state.
    #[track_caller]
    pub fn frozen(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Value {
        self.declare(name, Type::f32(shape), StateKind::Parameter { trainable: false }, init)
    }

    /// A trainable weight by its full name, whatever block is being built: a pass puts an addition to a weight beside
    /// that weight.
    #[track_caller]
    pub fn param_named(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Value {
        let kind = StateKind::Parameter { trainable: true };
        let state = self.find_or_push_state(name.to_owned(), Type::f32(shape), kind, init);
        self.newest(state)
    }

    /// A small table of numbers. The names of constants are global: whoever asks for a name again gets the same
    /// table.
    #[track_caller]
    pub fn constant(&mut self, name: &str, shape: impl Into<Shape>, table: Vec<f32>) -> Value {
        let ty = Type::f32(shape);
        if ty.shape.elements() != table.len() {
            self.fail("constant", format!("`{name}` is {ty} but has {} numbers", table.len()));
        }
        let state = self.find_or_push_state(name.to_owned(), ty, StateKind::Constant, Init::Table(table));
        self.states[state.index()].versions[0]
    }

    /// A constant that is `number` everywhere until the caller writes others, once, before the first run.
    #[track_caller]
    pub fn constant_filled(&mut self, name: &str, shape: impl Into<Shape>, number: f32) -> Value {
        let (ty, init) = (Type::f32(shape), Init::Fill(number));
        let state = self.find_or_push_state(name.to_owned(), ty, StateKind::Constant, init);
        self.states[state.index()].versions[0]
    }

    /// The matrix `(rows, n)` whose column `i` is 1 in row `chosen[i]` and 0 elsewhere, which picks those rows of another.
    #[track_caller]
    pub fn one_hot(&mut self, name: &str, rows: usize, chosen: &[usize]) -> Value {
        let ty = Type::f32([rows, chosen.len()]);
        if let Some(row) = chosen.iter().find(|&&row| row >= rows) {
            self.fail("one_hot", format!("`{name}` has {rows} rows, and row {row} is asked for"));
        }
        let init = Init::OneHot(chosen.to_vec());
        let state = self.find_or_push_state(name.to_owned(), ty, StateKind::Constant, init);
        self.states[state.index()].versions[0]
    }

    /// State that is not a parameter: gradient sums and optimizer moments.
    #[track_caller]
    pub fn state_range(&mut self, name: &str, ty: Type, kind: StateKind) -> Value {
        let state = self.find_or_push_state(name.to_owned(), ty, kind, Init::Fill(0.0));
        self.states[state.index()].versions[0]
    }

    /// Names a value that the caller reads after a run; it is always kept.
    #[track_caller]
    pub fn output(&mut self, name: &str, value: Value) {
        if self.output_named(name).is_some() {
            self.fail("output", format!("`{name}` is declared twice"));
        }
        self.outputs.push((name.to_owned(), value));
    }

    /// Minimises `weight · value` beside the loss: a router's balance, a penalty. The value is an output of the graph
    /// under `name`, prefixed with the block's like a parameter, so that it is reported on its own.
    ///
    /// The loss itself stays as it is, and a fused head stays one node; a sum of both would split the head. Values of
    /// micro-batches are added like their losses: for a mean over the global batch, multiply by
    /// [`loss_scale`](Self::loss_scale).
    #[track_caller]
    pub fn add_loss(&mut self, name: &str, value: Value, weight: f32) {
        if self.ty(value) != Type::f32([]) {
            self.fail("add_loss", format!("`{name}` must be an f32 scalar, got {}", self.ty(value)));
        }
        if !weight.is_finite() {
            self.fail("add_loss", format!("the weight of `{name}` is {weight}; choose a finite number"));
        }
        let name = self.full_name(name);
        self.output(&name, value);
        self.added_losses.push(AddedLoss { name, value, weight });
    }

    /// Sums a value of the forward phase over the micro-batches of a step, in state of kind
    /// [`Tally`](StateKind::Tally) that the caller reads after the step. Its name is `tally.` and the block's before
    /// `name`. Only a training graph has the sum: [`differentiate`](crate::differentiate) adds it.
    #[track_caller]
    pub fn tally(&mut self, name: &str, value: Value) {
        if self.ty(value).dtype != DType::F32 {
            self.fail("tally", format!("`{name}` must be f32, got {}", self.ty(value)));
        }
        let name = tally_name(&self.full_name(name));
        self.tallies.push(Tally { name, value });
    }

    /// Runs `body` inside a named block. Recompute strategies work on blocks: make one per layer. Parameters declared
    /// inside carry the block's name as a prefix.
    pub fn block<T>(&mut self, name: &str, body: impl FnOnce(&mut Graph) -> T) -> T {
        self.enter(name, false, body)
    }

    /// Runs `body` inside a block whose values the strategy `manual` drops after use and recomputes in the
    /// backward pass. Parameter names are not affected.
    pub fn checkpoint<T>(&mut self, body: impl FnOnce(&mut Graph) -> T) -> T {
        self.enter("", true, body)
    }

    fn enter<T>(&mut self, name: &str, checkpoint: bool, body: impl FnOnce(&mut Graph) -> T) -> T {
        let outer = self.current;
        self.blocks.push(Block { name: name.to_owned(), parent: outer, checkpoint });
        self.current = BlockId(self.blocks.len() as u32 - 1);
        let result = body(self);
        self.current = outer;
        result
    }

    // ---- the general form --------------------------------------------------------------------------

    /// Applies an op and returns its first output.
    #[track_caller]
    pub fn apply(&mut self, op: Op, inputs: &[Value]) -> Value {
        let node = self.apply_all(op, inputs);
        self.nodes[node.index()].outputs[0]
    }

    /// Applies an op and returns its node, whose outputs are in the op's order.
    #[track_caller]
    pub fn apply_all(&mut self, op: Op, inputs: &[Value]) -> NodeId {
        let types: Vec<Type> = inputs.iter().map(|&value| self.ty(value)).collect();
        // Not a closure: `fail` must see the caller of this method.
        let outputs = match infer(&op, &types) {
            Ok(outputs) => outputs,
            Err(why) => {
                self.fail(op.name(), why);
                // A placeholder keeps the caller's code running until `finish` reports the mistake.
                vec![types.first().copied().unwrap_or(Type::f32([])); 4]
            }
        };
        let node = NodeId(self.nodes.len() as u32);
        let outputs = (0..outputs.len())
            .map(|output| self.push_value(outputs[output], ValueSource::Node { node, output }, None))
            .collect();
        let (block, phase, derivative_of) = (self.current, self.phase, self.derivative_of);
        self.nodes.push(Node { op, inputs: inputs.to_vec(), outputs, block, phase, derivative_of });
        node
    }

    /// Nodes added from here on belong to `phase`.
    pub fn set_phase(&mut self, phase: Phase) {
        self.phase = phase;
    }

    /// Declares the element type of a result that its op [stores as either](Op::stores_either), before it is read or
    /// made a version of state. The verifier refuses types that the op cannot store.
    pub fn store_as(&mut self, value: Value, dtype: DType) {
        self.values[value.index()].ty.dtype = dtype;
    }

    /// Turns output `output` of `node` into the next version of `state`, written in place.
    #[track_caller]
    pub fn write_state(&mut self, node: NodeId, output: usize, state: StateId) -> Value {
        let value = self.nodes[node.index()].outputs[output];
        let (ty, range) = (self.ty(value), self.states[state.index()].ty);
        if ty != range {
            let why = format!("writes {ty} into `{}`, which is {range}", self.states[state.index()].name);
            self.fail(self.nodes[node.index()].op.name(), why);
        }
        let versions = &mut self.states[state.index()].versions;
        self.values[value.index()].state = Some((state, versions.len() as u32));
        versions.push(value);
        value
    }

    /// Makes `node` the backward node `op` of the same operands, with the outputs it had and those that `op` adds.
    pub(crate) fn turn_backward(&mut self, node: NodeId, op: Op) {
        let types: Vec<Type> = self.node(node).inputs.iter().map(|&value| self.ty(value)).collect();
        let known = self.node(node).outputs.len();
        let outputs = infer(&op, &types).unwrap_or_default();
        let added: Vec<Value> = (known..outputs.len())
            .map(|output| self.push_value(outputs[output], ValueSource::Node { node, output }, None))
            .collect();
        let node = &mut self.nodes[node.index()];
        (node.op, node.phase) = (op, Phase::Backward);
        node.outputs.extend(added);
    }

    /// Declares that a gradient is used up in the schedule that makes it; see [`StateKind::Transient`].
    pub fn make_transient(&mut self, state: StateId) {
        self.states[state.index()].kind = StateKind::Transient;
    }

    /// Declares that a range of state is one rank's shard of a range of type `whole`.
    pub fn make_shard(&mut self, state: StateId, whole: Type) {
        self.states[state.index()].whole = Some(whole);
    }

    /// The newest version of a range of state.
    pub fn newest(&self, state: StateId) -> Value {
        let versions = &self.states[state.index()].versions;
        versions[versions.len() - 1]
    }

    #[track_caller]
    fn declare(&mut self, name: &str, ty: Type, kind: StateKind, init: Init) -> Value {
        let state = self.find_or_push_state(self.full_name(name), ty, kind, init);
        self.newest(state)
    }

    /// `name`, prefixed with the names of the enclosing blocks.
    pub(crate) fn full_name(&self, name: &str) -> String {
        let path = self.block_path(self.current);
        let blocks = path.iter().map(|block| self.blocks[block.index()].name.as_str());
        blocks.chain([name]).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".")
    }

    #[track_caller]
    pub(crate) fn find_or_push_state(
        &mut self,
        name: String,
        ty: Type,
        kind: StateKind,
        init: Init,
    ) -> StateId {
        if let Some(known) = self.state_named(&name) {
            let state = &self.states[known.index()];
            if state.ty != ty || state.kind != kind {
                let why = format!("`{name}` is already declared as {} ({:?})", state.ty, state.kind);
                self.fail("state", why);
            }
            return known;
        }
        let id = StateId(self.states.len() as u32);
        let value = self.push_value(ty, ValueSource::State, Some((id, 0)));
        self.state_names.add(&name, id);
        self.states.push(State {
            name,
            ty,
            kind,
            init,
            parts: Vec::new(),
            whole: None,
            versions: vec![value],
        });
        id
    }

    #[track_caller]
    fn push_value(&mut self, ty: Type, source: ValueSource, state: Option<(StateId, u32)>) -> Value {
        if !ty.is_addressable() {
            self.fail("shape", format!("{ty} has more bytes than a machine can address"));
        }
        self.values.push(ValueInfo { ty, source, state, name: String::new() });
        Value(self.values.len() as u32 - 1)
    }

    /// Remembers the first mistake.
    #[track_caller]
    pub(crate) fn fail(&mut self, what: &str, why: String) {
        if self.error.is_none() {
            let at = Location::caller();
            self.error = Some(GraphError {
                what: what.to_owned(),
                block: self.block_name(self.current),
                why,
                at: Some(format!("{}:{}", at.file(), at.line())),
            });
        }
    }

    /// A number that stays the same as long as the block keeps its name and its order of random ops.
    pub(crate) fn stable_stream(&self, op: &str) -> u64 {
        let block = self.current;
        let earlier = self.nodes.iter().filter(|n| n.block == block && n.op.name() == op).count();
        crate::name_hash(&format!("{}/{op}.{earlier}", self.block_name(block)))
    }
}

/// Runs `body` as a region that `manual` recompute drops and runs again, like PyTorch's function of the
/// same name.
pub fn checkpoint<T>(graph: &mut Graph, body: impl FnOnce(&mut Graph) -> T) -> T {
    graph.checkpoint(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_mistake_is_reported_with_its_line_and_both_sides() {
        let mut g = Graph::new();
        let x = g.input("x", [2, 8], DType::F32);
        g.block("layers.0", |g| {
            let w = g.param("w", [4, 16], Init::Normal(0.02));
            let y = g.linear(x, w, None);
            g.reshape(y, [3])
        });
        let error = g.finish().unwrap_err();
        assert_eq!(error.what, "linear");
        assert_eq!(error.block, "layers.0");
        assert_eq!(error.why, "input [2,8] has 8 columns, weight [4,16] wants 16");
    }

    #[test]
    fn a_value_that_no_memory_holds_is_refused_where_it_is_declared() {
        let mut g = Graph::new();
        let x = g.input("x", [1 << 62, 4], DType::F32);
        g.transpose(x, &[1, 0]);
        assert_eq!(
            g.finish().unwrap_err().why,
            "f32[4611686018427387904,4] has more bytes than a machine can address"
        );
        let mut g = Graph::new();
        let x = g.input("x", [1 << 40, 1], DType::F32);
        let y = g.input("y", [1 << 40, 1], DType::F32);
        g.matmul_transposed(x, y);
        assert!(g.finish().unwrap_err().why.contains("more bytes than a machine can address"));
    }

    #[test]
    fn parameters_are_named_by_their_block_and_shared_by_name() {
        let mut g = Graph::new();
        let first = g.block("a", |g| g.param("w", [2, 2], Init::Fill(1.0)));
        let again = g.block("a", |g| g.param("w", [2, 2], Init::Fill(1.0)));
        assert_eq!(first, again);
        assert_eq!(g.states()[0].name, "a.w");
    }

    #[test]
    fn two_dropouts_of_one_block_have_different_streams() {
        let mut g = Graph::new();
        let x = g.input("x", [2, 2], DType::F32);
        let (a, b) = (g.dropout(x, 0.5), g.dropout(x, 0.5));
        let stream = |v| match g.node(g.producer(v).unwrap()).op {
            Op::Dropout { stream, .. } => stream,
            _ => unreachable!(),
        };
        assert_ne!(stream(a), stream(b));
    }
}
