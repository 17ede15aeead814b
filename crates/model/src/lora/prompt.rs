//! Trained vectors in front of those of the text (Lester et al. 2021): prompt tuning.
//!
//! ```text
//! x = W[tokens]  (B, T, C)      becomes      x = [E; W[tokens]]  (B, n + T, C)          E (n, C), the same for every row
//! ```
//!
//! The pass is given a graph for `n + T` positions and makes one that reads `T` tokens and targets: the first `n` positions
//! are those of the vectors, and no loss is taken of them. All of the model is frozen.
//!
//! Absent on purpose: rows of several documents. Each document would have to see the vectors, and masks have no such form.

use plimsoll_graph::{Axes, Graph, GraphError, Init, Node, Op, Shape, State, StateKind, Value};

use crate::language::refuse;

/// Name of the vectors, in the graph and in PEFT's files.
pub(super) const PARAMETER: &str = "prompt_embeddings";

/// Spread of new vectors, as PEFT draws them.
const SPREAD: f32 = 1.0;

/// Trained vectors of a model, and the figures of the model that PEFT's file states beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualTokens {
    /// The number of vectors.
    pub count: usize,
    /// Columns of each vector, those of the model's table of words.
    pub width: usize,
    /// Layers of the model.
    pub layers: usize,
    /// Heads of the model's attention.
    pub heads: usize,
}

/// The forward graph with the vectors before its text.
pub(super) fn adapt(forward: &Graph, vectors: VirtualTokens) -> Result<Graph, GraphError> {
    let pass = Pass::new(forward, vectors)?;
    let kind = |state: &State| match state.kind {
        StateKind::Parameter { .. } => StateKind::Parameter { trainable: false },
        other => other,
    };
    let input = |name: &str, shape: Shape| match name {
        "tokens" | "targets" | "present" => shape.with(1, pass.tokens),
        _ => shape,
    };
    forward.rewrite_with_inputs(input, kind, |g, node, moved| pass.make(g, forward.node(node), moved))
}

/// A forward graph while vectors are put before its text.
struct Pass<'a> {
    forward: &'a Graph,
    vectors: VirtualTokens,
    rows: usize,
    /// Tokens of a row that are read.
    tokens: usize,
}

impl Pass<'_> {
    fn new(forward: &Graph, vectors: VirtualTokens) -> Result<Pass<'_>, GraphError> {
        let tokens = forward.input_named("tokens").ok_or_else(|| wrong("the model reads no tokens"))?;
        let (rows, positions) = (forward.shape(tokens).rows(), forward.shape(tokens).columns());
        if vectors.count == 0 || vectors.count >= positions {
            let why = format!("{} vectors leave no room for text in {positions} positions", vectors.count);
            return Err(wrong(&why));
        }
        check_documents(forward, "prompt tuning")?;
        let pass = Pass { forward, vectors, rows, tokens: positions - vectors.count };
        let targets = forward.input_named("targets");
        let strange = |node: &&Node| {
            let reads = targets.is_some_and(|targets| node.inputs.contains(&targets));
            let of_tokens = matches!(
                node.op,
                Op::Reshape { .. } | Op::ExpertLoad { .. } | Op::BalanceLoss(_) | Op::RouterZLoss { .. }
            );
            reads && !of_tokens
        };
        match forward.nodes().iter().find(strange) {
            Some(node) => {
                Err(wrong(&format!("the model's `{}` reads targets of every position", node.op.name())))
            }
            None => Ok(pass),
        }
    }

    fn make(&self, g: &mut Graph, node: &Node, moved: &[Value]) -> Vec<Value> {
        let at = |input: usize| moved[node.inputs[input].index()];
        let name = |input: usize| self.forward.value(node.inputs[input]).name.as_str();
        match &node.op {
            Op::Embedding if name(1) == "tokens" => {
                let text = g.embedding(at(0), at(1)); // (B, T, C)
                vec![self.join(g, text)]
            }
            Op::Embedding if name(1) == "position" => {
                let text = g.slice(at(0), 0, self.vectors.count, self.tokens); // (T, C)
                vec![g.embedding(text, at(1))] // (1, C)
            }
            Op::Reshape { .. } if name(0) == "targets" => vec![g.reshape(at(0), [self.rows * self.tokens])],
            // The vectors are no tokens, neither of loads nor of losses of routers.
            Op::ExpertLoad { .. } => {
                let [p, indices] = [0, 1].map(|input| g.slice(at(input), 1, self.vectors.count, self.tokens)); // (B, T, E), (B, T, k)
                let load = g.apply_all(node.op.clone(), &[p, indices, at(2)]);
                g.node(load).outputs.clone()
            }
            Op::RouterZLoss { .. } => {
                let all = g.reshape(at(2), [self.rows, self.vectors.count + self.tokens]); // (B, n + T)
                let text = g.slice(all, 1, self.vectors.count, self.tokens); // (B, T)
                let text = g.reshape(text, [self.rows * self.tokens]); // (B·T)
                vec![g.apply(node.op.clone(), &[at(0), at(1), text])]
            }
            Op::CountCopies { .. } => {
                let [indices, places] =
                    [0, 1].map(|input| g.slice(at(input), 1, self.vectors.count, self.tokens)); // (B, T, k)
                vec![g.apply(node.op.clone(), &[indices, places, at(2)])]
            }
            Op::HeadLoss(head) => {
                let rows = self.of_text(g, at(0)); // (B·T, C)
                let inputs: Vec<Value> = (0..node.inputs.len()).map(at).collect();
                let inputs: Vec<Value> = [rows].into_iter().chain(inputs.into_iter().skip(1)).collect();
                vec![g.apply(Op::HeadLoss(*head), &inputs)]
            }
            _ => {
                let copy = g.copy(node, moved);
                g.node(copy).outputs.clone()
            }
        }
    }

    /// The vectors, and the text behind them.
    fn join(&self, g: &mut Graph, text: Value) -> Value {
        let VirtualTokens { count, width, .. } = self.vectors;
        let vectors = g.param_named(PARAMETER, [count, width], Init::Normal(SPREAD)); // (n, C)
        let shape = [self.rows, count, width].into();
        let vectors = g.apply(Op::Broadcast { shape, axes: Axes::of([0]) }, &[vectors]); // (B, n, C)
        g.concat(&[vectors, text], 1) // (B, n + T, C)
    }

    /// The rows `(B·(n + T), C)` of the text alone.
    fn of_text(&self, g: &mut Graph, rows: Value) -> Value {
        let (count, width) = (self.vectors.count, g.shape(rows).columns());
        let all = g.reshape(rows, [self.rows, count + self.tokens, width]); // (B, n + T, C)
        let text = g.slice(all, 1, count, self.tokens); // (B, T, C)
        g.reshape(text, [self.rows * self.tokens, width]) // (B·T, C)
    }
}

/// Refuses rows of several documents.
pub(super) fn check_documents(forward: &Graph, method: &str) -> Result<(), GraphError> {
    let why = "the vectors belong to every text, and rows of several texts have them once; give --packing false and \
               texts as .jsonl or .parquet, for a model that writes";
    match forward.input_named("doc_start") {
        Some(_) => Err(refuse(method, why.to_owned())),
        None => Ok(()),
    }
}

fn wrong(why: &str) -> GraphError {
    refuse("prompt tuning", why.to_owned())
}
