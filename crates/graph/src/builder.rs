//! Writing a model: one method per op, shapes checked as you go.
//!
//! Methods return plain [`Value`]s, not results, so that a model reads like its paper. The first
//! mistake is remembered together with the line of the caller's code, everything after it is ignored,
//! and [`Graph::finish`] reports it.

use std::collections::BTreeMap;
use std::panic::Location;

use crate::graph::{
    Block, BlockId, Graph, Init, Node, NodeId, Phase, Source, State, StateId, StateKind, ValueInfo,
};
use crate::op::{Conv, Gelu, Head, Mask};
use crate::{Axes, DType, GraphError, Op, Shape, Type, Value, infer};

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
            state_ids: BTreeMap::new(),
            blocks: vec![root],
            inputs: Vec::new(),
            outputs: Vec::new(),
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
        let value = self.push_value(ty, Source::Input, None);
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

    /// A trainable weight by its full name, whatever block is being built: what a pass adds to a weight lies
    /// beside that weight.
    #[track_caller]
    pub fn param_named(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Value {
        let kind = StateKind::Parameter { trainable: true };
        let state = self.find_or_push_state(name.to_owned(), Type::f32(shape), kind, init);
        self.newest(state)
    }

    /// A small table of numbers. Constants have global names: the same name is the same table.
    #[track_caller]
    pub fn constant(&mut self, name: &str, shape: impl Into<Shape>, table: Vec<f32>) -> Value {
        let ty = Type::f32(shape);
        if ty.shape.elements() != table.len() {
            self.fail("constant", format!("`{name}` is {ty} but has {} numbers", table.len()));
        }
        let state = self.find_or_push_state(name.to_owned(), ty, StateKind::Constant, Init::Table(table));
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

    /// Runs `body` inside a named block. Blocks are what recompute strategies work on: make one per
    /// layer. Parameters declared inside carry the block's name as a prefix.
    pub fn block<T>(&mut self, name: &str, body: impl FnOnce(&mut Graph) -> T) -> T {
        self.enter(name, false, body)
    }

    /// Runs `body` inside a block whose values the strategy `manual` drops after use and rebuilds in the
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

    // ---- data movement -----------------------------------------------------------------------------

    /// The same elements under another shape.
    #[track_caller]
    pub fn reshape(&mut self, x: Value, shape: impl Into<Shape>) -> Value {
        self.apply(Op::Reshape { shape: shape.into() }, &[x])
    }

    /// Axes reordered: axis `i` of the result is axis `permutation[i]` of `x`.
    #[track_caller]
    pub fn transpose(&mut self, x: Value, permutation: &[usize]) -> Value {
        self.apply(Op::Transpose { permutation: permutation.to_vec() }, &[x])
    }

    /// `len` indices of `axis` from `start` on.
    #[track_caller]
    pub fn slice(&mut self, x: Value, axis: usize, start: usize, len: usize) -> Value {
        self.apply(Op::Slice { axis, start, len }, &[x])
    }

    /// The parts joined along `axis`.
    #[track_caller]
    pub fn concat(&mut self, parts: &[Value], axis: usize) -> Value {
        self.apply(Op::Concat { axis }, parts)
    }

    /// `x` in another element type.
    #[track_caller]
    pub fn cast(&mut self, x: Value, to: DType) -> Value {
        self.apply(Op::Cast { to }, &[x])
    }

    // ---- elementwise -------------------------------------------------------------------------------

    /// `a + b`; the shape of `b` is a suffix of the shape of `a`.
    #[track_caller]
    pub fn add(&mut self, a: Value, b: Value) -> Value {
        self.apply(Op::Add, &[a, b])
    }

    /// `a · b`; the shape of `b` is a suffix of the shape of `a`.
    #[track_caller]
    pub fn mul(&mut self, a: Value, b: Value) -> Value {
        self.apply(Op::Mul, &[a, b])
    }

    /// `factor · x`.
    #[track_caller]
    pub fn scale(&mut self, x: Value, factor: f32) -> Value {
        self.apply(Op::Scale { factor }, &[x])
    }

    /// `x · σ(x)`.
    #[track_caller]
    pub fn silu(&mut self, x: Value) -> Value {
        self.apply(Op::Silu, &[x])
    }

    /// Gaussian error linear unit.
    #[track_caller]
    pub fn gelu(&mut self, x: Value, form: Gelu) -> Value {
        self.apply(Op::Gelu(form), &[x])
    }

    /// Hyperbolic tangent.
    #[track_caller]
    pub fn tanh(&mut self, x: Value) -> Value {
        self.apply(Op::Tanh, &[x])
    }

    /// `silu(gate) · up`.
    #[track_caller]
    pub fn swiglu(&mut self, gate: Value, up: Value) -> Value {
        self.apply(Op::Swiglu, &[gate, up])
    }

    /// Zeroes elements with probability `p` and scales the rest; `x` itself when `p` is 0.
    ///
    /// Adds the graph input `rng`: see [`Op::Dropout`].
    #[track_caller]
    pub fn dropout(&mut self, x: Value, p: f32) -> Value {
        if p == 0.0 {
            return x;
        }
        if !(0.0..1.0).contains(&p) {
            self.fail("dropout", format!("the probability must be in 0..1, got {p}"));
        }
        let rng = self.input("rng", [4], DType::I32);
        let stream = self.stable_stream("dropout");
        self.apply(Op::Dropout { p, stream }, &[x, rng])
    }

    // ---- matrix products ---------------------------------------------------------------------------

    /// `x·wᵀ + bias` with `w (out, in)`; the bias is `[out]`, or a value of the result's shape.
    #[track_caller]
    pub fn linear(&mut self, x: Value, w: Value, bias: Option<Value>) -> Value {
        self.linear_op(x, w, bias, false)
    }

    /// `x·w + bias` with `w (in, out)`, as GPT-2 stores its weights.
    #[track_caller]
    pub fn linear_transposed(&mut self, x: Value, w: Value, bias: Option<Value>) -> Value {
        self.linear_op(x, w, bias, true)
    }

    #[track_caller]
    fn linear_op(&mut self, x: Value, w: Value, bias: Option<Value>, transposed: bool) -> Value {
        let inputs: Vec<Value> = [x, w].into_iter().chain(bias).collect();
        self.apply(Op::Linear { transposed, bias: bias.is_some() }, &inputs)
    }

    /// `a·b` over the last two axes.
    #[track_caller]
    pub fn matmul(&mut self, a: Value, b: Value) -> Value {
        self.apply(Op::Matmul { transpose_a: false, transpose_b: false }, &[a, b])
    }

    /// `a·bᵀ` over the last two axes.
    #[track_caller]
    pub fn matmul_transposed(&mut self, a: Value, b: Value) -> Value {
        self.apply(Op::Matmul { transpose_a: false, transpose_b: true }, &[a, b])
    }

    /// Two-dimensional convolution of `x[B,C,Y,X]` with `w[O,C,h,w]`.
    #[track_caller]
    pub fn conv2d(&mut self, x: Value, w: Value, bias: Option<Value>, conv: Conv) -> Value {
        let inputs: Vec<Value> = [x, w].into_iter().chain(bias).collect();
        self.apply(Op::Conv2d { conv, bias: bias.is_some() }, &inputs)
    }

    // ---- normalisation and reductions --------------------------------------------------------------

    /// Sum over `axes`, which disappear.
    #[track_caller]
    pub fn sum(&mut self, x: Value, axes: &[usize]) -> Value {
        self.apply(Op::Sum { axes: Axes::of(axes.iter().copied()) }, &[x])
    }

    /// Mean over `axes`, which disappear.
    #[track_caller]
    pub fn mean(&mut self, x: Value, axes: &[usize]) -> Value {
        let shape = self.shape(x);
        let count: usize = axes.iter().filter_map(|&axis| shape.get(axis)).product();
        let sum = self.sum(x, axes);
        self.scale(sum, 1.0 / count as f32)
    }

    /// Softmax over the last axis.
    #[track_caller]
    pub fn softmax(&mut self, x: Value) -> Value {
        self.apply(Op::Softmax, &[x])
    }

    /// Layer normalisation over the last axis.
    #[track_caller]
    pub fn layer_norm(&mut self, x: Value, weight: Value, bias: Value, epsilon: f32) -> Value {
        self.apply(Op::LayerNorm { epsilon }, &[x, weight, bias])
    }

    /// Root-mean-square normalisation over the last axis.
    #[track_caller]
    pub fn rms_norm(&mut self, x: Value, weight: Value, epsilon: f32) -> Value {
        self.apply(Op::RmsNorm { epsilon }, &[x, weight])
    }

    // ---- transformers ------------------------------------------------------------------------------

    /// Rows of `table` chosen by `ids`.
    #[track_caller]
    pub fn embedding(&mut self, table: Value, ids: Value) -> Value {
        self.apply(Op::Embedding, &[table, ids])
    }

    /// Rotary position embedding of `x[B,T,H,D]`; `frequencies[D/2]` are radians per position.
    #[track_caller]
    pub fn rope(&mut self, x: Value, frequencies: Value, positions: Option<Value>) -> Value {
        let inputs: Vec<Value> = [x, frequencies].into_iter().chain(positions).collect();
        self.apply(Op::Rope { inverse: false, positions: positions.is_some() }, &inputs)
    }

    /// Attention with the usual `1/√D` scale. `doc_start[B,T]` keeps documents of one row apart.
    #[track_caller]
    pub fn attention(&mut self, q: Value, k: Value, v: Value, visible: Visible) -> Value {
        let scale = 1.0 / (self.shape(q).columns() as f32).sqrt();
        let Visible { causal, window, doc_start } = visible;
        let mask = Mask { causal, window, documents: doc_start.is_some() };
        let inputs: Vec<Value> = [q, k, v].into_iter().chain(doc_start).collect();
        self.apply(Op::Attention { mask, scale }, &inputs)
    }

    // ---- losses ------------------------------------------------------------------------------------

    /// `scale · Σ −log softmax(logits)[target]`; `scale` is usually the graph input that holds one over
    /// the valid targets of the global batch: see [`Graph::loss_scale`].
    #[track_caller]
    pub fn cross_entropy(&mut self, logits: Value, targets: Value, scale: Value, ignore_index: i32) -> Value {
        self.apply(Op::CrossEntropy { ignore_index }, &[logits, targets, scale])
    }

    /// Language-model head and loss in one, so that the full logits never exist.
    #[track_caller]
    pub fn head_loss(
        &mut self,
        x: Value,
        w: Value,
        bias: Option<Value>,
        targets: Value,
        scale: Value,
        ignore_index: i32,
    ) -> Value {
        let inputs: Vec<Value> = [x, w, targets, scale].into_iter().chain(bias).collect();
        self.apply(Op::HeadLoss(Head { ignore_index, bias: bias.is_some() }), &inputs)
    }

    /// The scalar graph input `scale` that every loss is multiplied by: one over the number of valid
    /// targets of the *global* batch, which is known before its first micro-batch runs.
    #[track_caller]
    pub fn loss_scale(&mut self) -> Value {
        self.input("scale", [], DType::F32)
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
        // Not a closure: `fail` must see who called this method.
        let outputs = match infer(&op, &types) {
            Ok(outputs) => outputs,
            Err(why) => {
                self.fail(op.name(), why);
                // A stand-in keeps the caller's code running until `finish` reports the mistake.
                vec![types.first().copied().unwrap_or(Type::f32([])); 4]
            }
        };
        let node = NodeId(self.nodes.len() as u32);
        let outputs = (0..outputs.len())
            .map(|output| self.push_value(outputs[output], Source::Node { node, output }, None))
            .collect();
        let (block, phase, derivative_of) = (self.current, self.phase, self.derivative_of);
        self.nodes.push(Node { op, inputs: inputs.to_vec(), outputs, block, phase, derivative_of });
        node
    }

    /// Nodes added from here on belong to `phase`.
    pub fn set_phase(&mut self, phase: Phase) {
        self.phase = phase;
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

    /// Declares that a gradient is used up in the schedule that makes it; see [`StateKind::Transient`].
    pub fn make_transient(&mut self, state: StateId) {
        self.states[state.index()].kind = StateKind::Transient;
    }

    /// The newest version of a range of state.
    pub fn newest(&self, state: StateId) -> Value {
        let versions = &self.states[state.index()].versions;
        versions[versions.len() - 1]
    }

    #[track_caller]
    fn declare(&mut self, name: &str, ty: Type, kind: StateKind, init: Init) -> Value {
        let path: Vec<String> = self
            .block_path(self.current)
            .iter()
            .map(|block| self.blocks[block.index()].name.clone())
            .chain([name.to_owned()])
            .filter(|part| !part.is_empty())
            .collect();
        let state = self.find_or_push_state(path.join("."), ty, kind, init);
        self.newest(state)
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
        let value = self.push_value(ty, Source::State, Some((id, 0)));
        self.state_ids.insert(name.clone(), id);
        self.states.push(State { name, ty, kind, init, versions: vec![value] });
        id
    }

    fn push_value(&mut self, ty: Type, source: Source, state: Option<(StateId, u32)>) -> Value {
        self.values.push(ValueInfo { ty, source, state, name: String::new() });
        Value(self.values.len() as u32 - 1)
    }

    /// Remembers the first mistake.
    #[track_caller]
    fn fail(&mut self, what: &str, why: String) {
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
    fn stable_stream(&self, op: &str) -> u64 {
        let block = self.current;
        let earlier = self.nodes.iter().filter(|n| n.block == block && n.op.name() == op).count();
        crate::name_hash(&format!("{}/{op}.{earlier}", self.block_name(block)))
    }
}

/// What an attention query may see.
#[derive(Clone, Copy, Debug, Default)]
pub struct Visible {
    /// Only positions up to its own.
    pub causal: bool,
    /// Only positions closer than this.
    pub window: Option<usize>,
    /// Only its own document: i32 `[B,T]`, the first position of each position's document.
    pub doc_start: Option<Value>,
}

impl Visible {
    /// Every earlier position and its own.
    pub const CAUSAL: Visible = Visible { causal: true, window: None, doc_start: None };
    /// Every position.
    pub const ALL: Visible = Visible { causal: false, window: None, doc_start: None };
}

/// Runs `body` as a region that `manual` recompute drops and rebuilds, like PyTorch's function of the
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
