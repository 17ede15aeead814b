//! Ops of transformers: embeddings, rotary positions and attention.

use super::{Cotangents, equal, float, integers, no_derivative, no_types, operands, rank4, vector};
use crate::graph::{Graph, Node};
use crate::op::Mask;
use crate::tape::Tape;
use crate::{GraphError, Op, Shape, Type, Value};

/// The positions that an attention query may see.
#[derive(Clone, Copy, Debug, Default)]
pub struct Visible {
    /// Each query sees only positions up to its own.
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

impl Graph {
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
}

pub(super) fn types(op: &Op, inputs: &[Type]) -> Result<Vec<Type>, String> {
    match op {
        Op::Embedding => {
            let [table, ids] = operands(inputs)?;
            let &[_, width] = &table.shape[..] else {
                return Err(format!("the table must be a matrix, got {}", table.shape));
            };
            integers(ids, "ids")?;
            let extents: Vec<usize> = ids.shape.iter().copied().chain([width]).collect();
            let shape = Shape::new(&extents).ok_or("the ids have too many axes")?;
            Ok(vec![Type { shape, ..table }])
        }
        Op::EmbeddingGrad { rows } => {
            let [ids, dy] = operands(inputs)?;
            integers(ids, "ids")?;
            if dy.shape.rows() != ids.shape.elements() {
                return Err(format!("gradient {} does not match ids {}", dy.shape, ids.shape));
            }
            Ok(vec![Type { shape: [*rows, dy.shape.columns()].into(), ..dy }])
        }
        Op::Rope { positions: false, .. } => {
            let [x, frequencies] = operands(inputs)?;
            rope(x, frequencies, None).map(|()| vec![x])
        }
        Op::Rope { positions: true, .. } => {
            let [x, frequencies, positions] = operands(inputs)?;
            rope(x, frequencies, Some(positions)).map(|()| vec![x])
        }
        Op::Attention { mask, .. } => {
            let (qkv, doc_start) = split_documents::<3>(inputs, *mask)?;
            attention(qkv, doc_start, *mask)?;
            let [batch, length, heads, _] = rank4(qkv[0].shape, "queries")?;
            Ok(vec![qkv[0], Type::f32([batch, heads, length])])
        }
        Op::AttentionGrad { mask, .. } => {
            let ([q, k, v, o, _, dy], doc_start) = split_documents::<6>(inputs, *mask)?;
            attention([q, k, v], doc_start, *mask)?;
            equal(q, o, "queries and output")?;
            equal(q, dy, "queries and gradient")?;
            Ok(vec![q, k, v])
        }
        other => no_types(other),
    }
}

pub(super) fn derivative(tape: &mut Tape, node: &Node, dys: Cotangents) -> Result<(), GraphError> {
    let Some(dy) = dys[0] else { return Ok(()) };
    let (inputs, outputs, x) = (&node.inputs, &node.outputs, node.inputs[0]);
    match &node.op {
        Op::Embedding => {
            let rows = tape.graph.shape(x)[0];
            tape.emit(x, Op::EmbeddingGrad { rows }, &[inputs[1], dy]);
        }
        Op::Rope { inverse, positions } => {
            let rest: Vec<Value> = [dy].into_iter().chain(inputs[1..].iter().copied()).collect();
            tape.emit(x, Op::Rope { inverse: !inverse, positions: *positions }, &rest);
        }
        Op::Attention { mask, scale } => {
            let mut operands = vec![x, inputs[1], inputs[2], outputs[0], outputs[1], dy];
            operands.extend(inputs.get(3));
            let op = Op::AttentionGrad { mask: *mask, scale: *scale };
            let gradient = tape.graph.apply_all(op, &operands);
            for (output, &input) in inputs[..3].iter().enumerate() {
                tape.give(input, gradient, output);
            }
        }
        other => return no_derivative(other),
    }
    Ok(())
}

pub(super) fn flops(op: &Op, inputs: &[Type]) -> f64 {
    match op {
        Op::Attention { mask, .. } => 4.0 * visible_products(inputs, mask),
        Op::AttentionGrad { mask, .. } => 10.0 * visible_products(inputs, mask),
        _ => 0.0,
    }
}

/// `B·H·D` times the number of visible (query, key) pairs of one head, documents left out of account.
fn visible_products(inputs: &[Type], mask: &Mask) -> f64 {
    let q = inputs[0].shape;
    let length = q[1] as f64;
    let keys = mask.window.map_or(length, |window| (window as f64).min(length));
    let per_query = if mask.causal && mask.window.is_none() { keys / 2.0 } else { keys };
    q.elements() as f64 * per_query
}

fn rope(x: Type, frequencies: Type, positions: Option<Type>) -> Result<(), String> {
    let [batch, length, _, width] = rank4(x.shape, "input")?;
    float(x)?;
    if width % 2 != 0 {
        return Err(format!("the head width must be even, got {width}"));
    }
    vector(frequencies, width / 2, "frequencies")?;
    positions.map_or(Ok(()), |given| equal(given, Type::i32([batch, length]), "positions"))
}

/// The first `N` operands, and `doc_start` where the mask has documents.
fn split_documents<const N: usize>(inputs: &[Type], mask: Mask) -> Result<([Type; N], Option<Type>), String> {
    let (first, rest) = inputs.split_at(inputs.len().min(N));
    match (rest, mask.documents) {
        ([], false) => Ok((operands(first)?, None)),
        (&[doc_start], true) => Ok((operands(first)?, Some(doc_start))),
        _ => Err(format!("takes {} inputs, got {}", N + usize::from(mask.documents), inputs.len())),
    }
}

fn attention([q, k, v]: [Type; 3], doc_start: Option<Type>, mask: Mask) -> Result<(), String> {
    let [batch, length, heads, width] = rank4(q.shape, "queries")?;
    let [_, _, key_heads, _] = rank4(k.shape, "keys")?;
    equal(k, Type { shape: [batch, length, key_heads, width].into(), ..q }, "keys")?;
    equal(k, v, "keys and values")?;
    if key_heads == 0 || heads % key_heads != 0 {
        return Err(format!("{heads} query heads cannot share {key_heads} key heads evenly"));
    }
    if mask.window == Some(0) {
        return Err("a window of 0 hides every position".into());
    }
    doc_start.map_or(Ok(()), |starts| equal(starts, Type::i32([batch, length]), "doc_start"))
}
