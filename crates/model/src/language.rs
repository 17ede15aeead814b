//! Parts that the graphs of all language models share: the names of their inputs and outputs, and the head.
//!
//! A training graph reads `tokens` i32 `[B,T]`, `targets` i32 `[B,T]`, `scale` f32 `[]` and, where rows
//! hold more than one document, `doc_start` i32 `[B,T]`, and with learned positions `positions` i32 `[B,T]`, and with
//! experts `present` i32 `[B,T]`; it yields `loss`. A generation graph reads `tokens` i32 `[1,T]` and `position` i32 `[1]`; it yields
//! `logits` `[1,V]`. A graph that sorts whole texts reads one target per row, `targets` i32 `[B]`, and when it
//! evaluates it yields `logits` `[B,L]` too.
//!
//! Targets arrive shifted: `targets[b,t]` is the token that position `t` should predict. So the graph is the same for
//! the next word and for a hidden word; the data loader makes the difference.

use plimsoll_graph::{DType, Graph, GraphError, Value};

/// Targets with this id carry no loss; the number most tools use.
pub const IGNORED: i32 = -100;

/// The words read, `(B, T)`.
#[track_caller]
pub(crate) fn tokens(g: &mut Graph, batch: usize, seq: usize) -> Value {
    g.input("tokens", [batch, seq], DType::I32)
}

/// The words to predict, `(B, T)`.
#[track_caller]
pub(crate) fn targets(g: &mut Graph, batch: usize, seq: usize) -> Value {
    g.input("targets", [batch, seq], DType::I32)
}

/// The first position of the document each position belongs to, `(B, T)`.
#[track_caller]
pub(crate) fn doc_start(g: &mut Graph, batch: usize, seq: usize) -> Value {
    g.input("doc_start", [batch, seq], DType::I32)
}

/// The mark of padding in `present`; a token has the mark 1.
pub(crate) const PADDING: i32 = 0;

/// Whether each position holds a token or padding, `(B, T)`. Targets do not tell: prompts have none either.
#[track_caller]
pub(crate) fn present(g: &mut Graph, batch: usize, seq: usize) -> Value {
    g.input("present", [batch, seq], DType::I32)
}

/// Distance of each of the `tokens (B, T)` from the start of its document, `(B, T)`.
#[track_caller]
pub(crate) fn positions(g: &mut Graph, tokens: Value) -> Value {
    g.input("positions", [g.shape(tokens).rows(), g.shape(tokens).columns()], DType::I32)
}

/// Ends a training graph: the loss of predicting `targets` from `x (B, T, C)` with the head's weight
/// `(V, C)` and bias `(V)`.
#[track_caller]
pub(crate) fn loss(g: &mut Graph, x: Value, head: Value, bias: Option<Value>) {
    let &[batch, seq, width] = &g.shape(x)[..] else {
        unreachable!("models hand over (B, T, C)");
    };
    let targets = targets(g, batch, seq); // (B, T)
    let scale = g.loss_scale(); // ()
    let rows = g.reshape(x, [batch * seq, width]); // (B·T, C)
    let wanted = g.reshape(targets, [batch * seq]); // (B·T)
    let loss = g.head_loss(rows, head, bias, wanted, scale, IGNORED); // ()
    g.output("loss", loss);
}

/// Ends a graph that sorts whole texts: the loss of predicting one target per row from `logits (B, L)`.
/// They are few, so unlike the logits of all words they are kept in memory.
#[track_caller]
pub(crate) fn label_loss(g: &mut Graph, logits: Value) {
    let targets = g.input("targets", [g.shape(logits).rows()], DType::I32); // (B)
    let scale = g.loss_scale(); // ()
    let loss = g.cross_entropy(logits, targets, scale, IGNORED); // ()
    g.output("loss", loss);
}

/// Ends a generation graph: the logits of one `position` of `x (1, T, C)`. Choosing the row before the
/// head avoids the `T·V` logits that no one reads.
#[track_caller]
pub(crate) fn logits(g: &mut Graph, x: Value, head: Value, bias: Option<Value>) {
    let &[_, seq, width] = &g.shape(x)[..] else {
        unreachable!("models hand over (1, T, C)");
    };
    let position = g.input("position", [1], DType::I32); // (1)
    let rows = g.reshape(x, [seq, width]); // (T, C)
    let row = g.embedding(rows, position); // (1, C)
    let logits = g.linear(row, head, bias); // (1, V)
    g.output("logits", logits);
}

/// Checks the numbers that must not be 0, those of the batch included. The graph accepts a shape with a 0, but a model
/// that computes nothing is useless.
pub(crate) fn no_zeros(
    g: &Graph,
    model: &str,
    tokens: Value,
    named: &[(&str, usize)],
) -> Result<(), GraphError> {
    let (batch, seq) = (g.shape(tokens).rows(), g.shape(tokens).columns());
    let mut all = [("batch", batch), ("sequence length", seq)].into_iter().chain(named.iter().copied());
    match all.find(|&(_, number)| number == 0) {
        Some((name, _)) => Err(refuse(model, format!("the {name} is 0"))),
        None => Ok(()),
    }
}

/// Width of one head, when `width` divides evenly.
pub(crate) fn head_width(model: &str, width: usize, heads: usize) -> Result<usize, GraphError> {
    match width.checked_rem(heads) {
        Some(0) => Ok(width / heads),
        _ => Err(refuse(model, format!("width {width} cannot be divided among {heads} heads"))),
    }
}

/// Checks that learned positions reach as far as the sequence.
pub(crate) fn enough_positions(model: &str, seq: usize, positions: usize) -> Result<(), GraphError> {
    if seq <= positions {
        return Ok(());
    }
    Err(refuse(model, format!("sequences of {seq} tokens, but positions are learned for {positions} only")))
}

/// Checks that a sequence is no longer than the model was meant for, where that is stated.
pub(crate) fn within_positions(model: &str, seq: usize, positions: Option<usize>) -> Result<(), GraphError> {
    match positions {
        Some(positions) if seq > positions => Err(refuse(
            model,
            format!("sequences of {seq} tokens, but the model is meant for {positions} at most"),
        )),
        _ => Ok(()),
    }
}

/// A mistake in a model's configuration.
pub(crate) fn refuse(model: &str, why: String) -> GraphError {
    GraphError { what: model.to_owned(), block: String::new(), why, at: None }
}
