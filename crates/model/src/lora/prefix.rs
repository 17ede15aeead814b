//! Trained keys and values before those of the text, in every layer (Li and Liang 2021): prefix tuning.
//!
//! ```text
//! k, v  (B, T, K, D)      become      [Eₖ; k], [Eᵥ; v]  (B, n + T, K, D)          E (n, 2·layers·K·D)
//! ```
//!
//! The vectors are read as they are, without rotation, and the text's positions begin behind them: PEFT hands them over
//! as the keys and values of `n` earlier tokens. Attention works on `n + T` positions; its first `n` queries are zeros, and
//! their results are dropped. All of the model is frozen.
//!
//! Every layer picks its two rows of a table by a constant of ones and zeros, in place of a slice: so all layers are
//! alike, and the planner plans one and repeats it.
//!
//! Absent on purpose: rows of several documents, as in `prompt.rs`.

use std::cell::Cell;

use plimsoll_graph::{Axes, Graph, GraphError, Init, Node, NodeId, Op, State, StateKind, Value};

use super::prompt::{PARAMETER, VirtualTokens, check_documents};
use crate::language::refuse;

/// Spread of new vectors, as PEFT draws them.
const SPREAD: f32 = 1.0;
/// The end of the name of a table of positions.
const PLACES: &str = "wpe.weight";

/// The forward graph with the vectors in its attention.
pub(super) fn adapt(forward: &Graph, vectors: VirtualTokens) -> Result<Graph, GraphError> {
    let pass = Pass::new(forward, vectors)?;
    let kind = |state: &State| match state.kind {
        StateKind::Parameter { .. } => StateKind::Parameter { trainable: false },
        other => other,
    };
    forward.rewrite_nodes(kind, |g, node, moved| pass.make(g, node, moved))
}

/// A forward graph while vectors are put before its keys and values.
struct Pass<'a> {
    forward: &'a Graph,
    vectors: VirtualTokens,
    /// The vectors `(2·layers, n·K·D)`, once the graph has them.
    table: Cell<Option<Value>>,
    /// The attention of each layer, in order.
    attention: Vec<NodeId>,
}

impl Pass<'_> {
    fn new(forward: &Graph, vectors: VirtualTokens) -> Result<Pass<'_>, GraphError> {
        check_documents(forward, "prefix tuning")?;
        let is_attention = |&node: &NodeId| matches!(forward.node(node).op, Op::Attention { .. });
        let attention: Vec<NodeId> = forward.node_ids().filter(is_attention).collect();
        if attention.len() != vectors.layers {
            let (has, known) = (attention.len(), vectors.layers);
            return Err(wrong(format!("the vectors are those of {known} layers, and the model has {has}")));
        }
        for &node in &attention {
            let shape = forward.shape(forward.node(node).inputs[1]);
            if (shape[2], shape[2] * shape[3]) != (vectors.heads, vectors.width) {
                let (heads, width) = (vectors.heads, vectors.width);
                let why = format!(
                    "the vectors are those of {heads} heads and {width} columns, and keys are {shape}"
                );
                return Err(wrong(why));
            }
        }
        Ok(Pass { forward, vectors, table: Cell::new(None), attention })
    }

    fn make(&self, g: &mut Graph, id: NodeId, moved: &[Value]) -> Vec<Value> {
        let node = self.forward.node(id);
        let at = |input: usize| moved[node.inputs[input].index()];
        if self.table.get().is_none() {
            self.table.set(Some(self.rows_of_layers(g)));
        }
        match &node.op {
            Op::Rope { inverse: false, positions: false } => {
                let x = self.behind(g, at(0)); // (B, n + T, H, D)
                vec![g.apply(node.op.clone(), &[x, at(1)])]
            }
            Op::Slice { axis: 0, start: 0, len } if self.is_places(node) => {
                vec![g.slice(at(0), 0, self.vectors.count, *len)] // (T, C)
            }
            Op::Attention { .. } => self.attend(g, id, [at(0), at(1), at(2)]),
            _ => {
                let copy = g.copy(node, moved);
                g.node(copy).outputs.clone()
            }
        }
    }

    /// Whether a node reads the table of positions.
    fn is_places(&self, node: &Node) -> bool {
        let state = self.forward.value(node.inputs[0]).state;
        state.is_some_and(|(state, _)| self.forward.state(state).name.ends_with(PLACES))
    }

    /// The vectors as rows, two for each layer: its keys and its values.
    fn rows_of_layers(&self, g: &mut Graph) -> Value {
        let VirtualTokens { count, width, layers, .. } = self.vectors;
        let all = g.param_named(PARAMETER, [count, 2 * layers * width], Init::Normal(SPREAD)); // (n, 2·layers·K·D)
        let all = g.reshape(all, [count, 2 * layers, width]); // (n, 2·layers, K·D)
        let all = g.transpose(all, &[1, 0, 2]); // (2·layers, n, K·D)
        g.reshape(all, [2 * layers, count * width]) // (2·layers, n·K·D)
    }

    /// `n` positions of zeros before those of `x (B, T, H, D)`.
    fn behind(&self, g: &mut Graph, x: Value) -> Value {
        let (start, len) = (self.vectors.count, self.vectors.count + g.shape(x)[1]);
        g.apply(Op::Pad { axis: 1, start, len }, &[x]) // (B, n + T, H, D)
    }

    /// Attention over the vectors and the text. Queries and keys that are rotated have `n` positions of zeros before them.
    fn attend(&self, g: &mut Graph, id: NodeId, [q, k, v]: [Value; 3]) -> Vec<Value> {
        let node = self.forward.node(id);
        let tokens = self.forward.shape(node.inputs[0])[1];
        let rotated = g.shape(q)[1] > tokens;
        let (q, k) = if rotated {
            (q, g.slice(k, 1, self.vectors.count, tokens)) // (B, n + T, H, D), (B, T, K, D)
        } else {
            (self.behind(g, q), k)
        };
        let layer = self.attention.iter().position(|&known| known == id).unwrap_or_default();
        let [keys, values] = self.vectors_of(g, layer, g.shape(k)[0]); // (B, n, K, D)
        let (k, v) = (g.concat(&[keys, k], 1), g.concat(&[values, v], 1)); // (B, n + T, K, D)
        let attended = g.apply_all(node.op.clone(), &[q, k, v]);
        let mut outputs = g.node(attended).outputs.clone();
        outputs[0] = g.slice(outputs[0], 1, self.vectors.count, tokens); // (B, T, H, D)
        outputs
    }

    /// Keys and values of a layer, the same for every row of the batch.
    fn vectors_of(&self, g: &mut Graph, layer: usize, rows: usize) -> [Value; 2] {
        let VirtualTokens { count, width, layers, heads } = self.vectors;
        let name = format!("{PARAMETER}.layer.{layer}");
        let picks = g.one_hot(&name, 2 * layers, &[2 * layer, 2 * layer + 1]); // (2·layers, 2)
        let Some(table) = self.table.get() else { return [picks; 2] };
        let pick = Op::Matmul { transpose_a: true, transpose_b: false };
        let both = g.apply(pick, &[picks, table]); // (2, n·K·D)
        [0, 1].map(|which| {
            let one = g.slice(both, 0, which, 1); // (1, n·K·D)
            let one = g.reshape(one, [count, heads, width / heads]); // (n, K, D)
            let shape = [rows, count, heads, width / heads].into();
            g.apply(Op::Broadcast { shape, axes: Axes::of([0]) }, &[one]) // (B, n, K, D)
        })
    }
}

fn wrong(why: String) -> GraphError {
    refuse("prefix tuning", why)
}
