//! Attention as graphs of cuDNN's nodes: scores, masks, softmax and products, which its engines run as one kernel.
//!
//! The graphs are those that cuDNN's engines recognise, node by node; the same mathematics in another order finds no
//! engine. Keys and values are passed transposed by their strides where a product needs that. Scores never reach
//! memory.
//!
//! Documents are either a mask, by which a query sees keys from the first position of its document on, or sequences of
//! their own: the *ragged* form, in which every tensor has a table of the elements where its documents begin.

use plimsoll_exec::ExecError;

use super::cudnn::attribute;
use super::graph_builder::{
    ADD, BF16, Builder, DIV, EXP, F32, Form, I32, I64, IDENTITY, LOG, Lengths, MAX, MUL, SUB, SUM, Tensor,
};
use crate::lower::{AttentionShape, AttentionTensor};

/// Axes of scores.
const QUERY: i64 = 2;
const KEY: i64 = 3;

/// The tensors of a shape.
struct Forms {
    query: Form,
    key: Form,
    scores: Form,
    /// One number for each query of each head, inside the graph and in memory.
    reduced: Form,
    statistics: Form,
    /// First positions of documents, one for each query.
    starts: Form,
}

impl Forms {
    fn of(shape: &AttentionShape) -> Forms {
        let AttentionShape { batch, length, heads, key_heads, width, slots, .. } = *shape;
        let sequences = slots.unwrap_or(batch);
        let [b, t, h, k, d] = [sequences, length, heads, key_heads, width].map(|extent| extent as i64);
        let by_head = Form::packed([b, h, t, 1]);
        let by_position = Form { strides: [h * t, 1, h, 1], ..by_head };
        Forms {
            query: Form::rows([b, h, t, d]),
            key: Form::rows([b, k, t, d]),
            scores: Form::packed([b, h, t, t]),
            reduced: by_head,
            statistics: if slots.is_some() { by_position } else { by_head },
            starts: Form { extents: [b, 1, t, 1], strides: [t, t, 1, 1] },
        }
    }
}

/// Lengths and first elements of sequences of different lengths; nothing if all are equal.
#[derive(Clone, Copy, Default)]
struct Sequences {
    query_lengths: Option<Tensor>,
    key_lengths: Option<Tensor>,
    query: Option<Tensor>,
    key: Option<Tensor>,
    statistics: Option<Tensor>,
}

impl Sequences {
    fn of(g: &mut Builder, shape: &AttentionShape) -> Result<Sequences, ExecError> {
        use AttentionTensor::{KeyLengths, KeyOffsets, QueryLengths, QueryOffsets, StatisticOffsets};
        let Some(slots) = shape.slots else { return Ok(Sequences::default()) };
        let mut table = |tensor, length, dtype| {
            let form = Form { extents: [length, 1, 1, 1], strides: [1; 4] };
            g.bound(tensor, form, dtype, None).map(Some)
        };
        let slots = slots as i64;
        Ok(Sequences {
            query_lengths: table(QueryLengths, slots, I32)?,
            key_lengths: table(KeyLengths, slots, I32)?,
            query: table(QueryOffsets, slots + 1, I64)?,
            key: table(KeyOffsets, slots + 1, I64)?,
            statistics: table(StatisticOffsets, slots + 1, I64)?,
        })
    }

    /// The lengths of a product with a row for each query and a column for each key.
    fn scores(&self) -> Lengths {
        Lengths { rows: self.query_lengths, columns: self.key_lengths, terms: None }
    }

    /// The lengths of a product with a row for each query and a term for each key.
    fn over_keys(&self) -> Lengths {
        Lengths { rows: self.query_lengths, columns: None, terms: self.key_lengths }
    }

    /// The lengths of a product with a row for each key and a term for each query.
    fn over_queries(&self) -> Lengths {
        Lengths { rows: self.key_lengths, columns: None, terms: self.query_lengths }
    }
}

/// Hidden scores become −∞: those before the query's document, unless documents are sequences of their own, and those
/// after the query.
fn masked(
    g: &mut Builder,
    mut x: Tensor,
    shape: &AttentionShape,
    forms: &Forms,
) -> Result<Tensor, ExecError> {
    if shape.documents && shape.slots.is_none() {
        let starts = g.bound(AttentionTensor::Starts, forms.starts, I32, None)?;
        let key = g.index(x, KEY, I32)?;
        x = g.keep_where(x, key, starts)?;
    }
    if shape.causal {
        let (query, key) = (g.index(x, QUERY, F32)?, g.index(x, KEY, F32)?);
        x = g.keep_where(x, query, key)?;
    }
    Ok(x)
}

pub(super) fn forward(g: &mut Builder, shape: &AttentionShape) -> Result<(), ExecError> {
    use AttentionTensor::{K, Lse, O, Q, V};
    let (forms, of) = (Forms::of(shape), Sequences::of(g, shape)?);
    let q = g.bound(Q, forms.query, BF16, of.query)?;
    let k = g.bound(K, forms.key.transposed(), BF16, of.key)?;
    let v = g.bound(V, forms.key, BF16, of.key)?;
    let o = g.bound(O, forms.query, BF16, of.query)?;
    let lse = g.bound(Lse, forms.statistics, F32, of.statistics)?;
    let scores = g.inner(forms.scores, F32)?;
    g.matmul(q, k, scores, of.scores())?;
    let scale = g.scalar(shape.scale())?;
    let scaled = g.pointwise(MUL, scores, Some(scale))?;
    let x = masked(g, scaled, shape, &forms)?;
    let most = g.reduce(MAX, x, forms.reduced)?;
    let below = g.pointwise(SUB, x, Some(most))?;
    let powers = g.pointwise(EXP, below, None)?;
    let divisor = g.reduce(SUM, powers, forms.reduced)?;
    let log = g.pointwise(LOG, divisor, None)?;
    g.pointwise_to((ADD, F32), None, most, &[(attribute::POINTWISE_NODE_B, log)], lse)?;
    let p = g.inner(forms.scores, BF16)?;
    g.pointwise_to((DIV, F32), None, powers, &[(attribute::POINTWISE_NODE_B, divisor)], p)?;
    g.matmul(p, v, o, of.over_keys())
}

pub(super) fn backward(g: &mut Builder, shape: &AttentionShape) -> Result<(), ExecError> {
    use AttentionTensor::{DK, DO, DQ, DV, Delta, DqSum, K, Lse, O, Q, V, WideDK, WideDV};
    let (forms, of) = (Forms::of(shape), Sequences::of(g, shape)?);
    let q = g.bound(Q, forms.query, BF16, of.query)?;
    let k = g.bound(K, forms.key.transposed(), BF16, of.key)?;
    let v = g.bound(V, forms.key.transposed(), BF16, of.key)?;
    let o = g.bound(O, forms.query, BF16, of.query)?;
    let d_o = g.bound(DO, forms.query, BF16, of.query)?;
    let lse = g.bound(Lse, forms.statistics, F32, of.statistics)?;
    let [dq, dk, dv] = [
        g.bound(DQ, forms.query, BF16, of.query)?,
        g.bound(DK, forms.key, BF16, of.key)?,
        g.bound(DV, forms.key, BF16, of.key)?,
    ];
    let (scale, one) = (g.scalar(shape.scale())?, g.scalar(1.0)?);

    // δ = Σ do · o, kept in memory.
    let packed = Form::packed(forms.query.extents);
    let product = g.inner(packed, F32)?;
    g.pointwise_to((MUL, F32), None, d_o, &[(attribute::POINTWISE_NODE_B, o)], product)?;
    let sums = g.reduce(SUM, product, forms.reduced)?;
    let delta = g.bound(Delta, forms.statistics, F32, of.statistics)?;
    g.pointwise_to((MUL, F32), None, sums, &[(attribute::POINTWISE_NODE_B, one)], delta)?;

    // p = exp(scale · q·kᵀ − lse), masked.
    let scores = g.inner(forms.scores, F32)?;
    g.matmul(q, k, scores, of.scores())?;
    let scaled = g.pointwise(MUL, scores, Some(scale))?;
    let below = g.pointwise(SUB, scaled, Some(lse))?;
    let x = masked(g, below, shape, &forms)?;
    let p = g.pointwise(EXP, x, None)?;

    // dv = pᵀ·do
    let turned = forms.scores.transposed();
    let turned = Form { extents: forms.scores.extents, strides: turned.strides };
    let p_turned = g.view(p, turned, BF16, None)?;
    keys_grad(g, &forms, &of, [p_turned, d_o, dv], WideDV)?;

    // ds = scale · p · (do·vᵀ − δ)
    let dp = g.inner(forms.scores, F32)?;
    g.matmul(d_o, v, dp, of.scores())?;
    let less = g.pointwise(SUB, dp, Some(delta))?;
    let weighted = g.pointwise(MUL, less, Some(p))?;
    let ds = g.pointwise(MUL, weighted, Some(scale))?;

    // dk = dsᵀ·q
    let ds_turned = g.view(ds, turned, BF16, None)?;
    keys_grad(g, &forms, &of, [ds_turned, q, dk], WideDK)?;

    // dq = ds·k, summed in f32 in memory unless the order of the sum is to be fixed.
    let straight = g.view(k, forms.key, F32, of.key)?;
    if shape.deterministic {
        return g.matmul(ds, straight, dq, of.over_keys());
    }
    // Ragged sequences are summed at the places of the queries.
    let form = if shape.slots.is_some() { forms.query } else { packed };
    let sum = g.bound(DqSum, form, F32, of.query)?;
    g.matmul(ds, straight, sum, of.over_keys())?;
    g.pointwise_to((IDENTITY, F32), None, sum, &[], dq)
}

/// `left · right` of every query head, summed over the heads that share a key head. For ragged sequences the numbers
/// before that sum are in memory, since inside the graph each sequence would take the memory of the longest.
fn keys_grad(
    g: &mut Builder,
    forms: &Forms,
    of: &Sequences,
    [left, right, out]: [Tensor; 3],
    wide: AttentionTensor,
) -> Result<(), ExecError> {
    let [_, heads, ..] = forms.query.extents;
    let [_, key_heads, ..] = forms.key.extents;
    if heads == key_heads {
        return g.matmul(left, right, out, of.over_queries());
    }
    let each = if of.key.is_some() {
        // Offsets are those of the keys, which the engine multiplies by the heads that share one.
        let [batch, head, row, column] = forms.key.strides;
        let shared = heads / key_heads;
        let strides = [batch * shared, head, row * shared, column];
        g.bound(wide, Form { extents: forms.query.extents, strides }, BF16, of.key)?
    } else {
        g.inner(Form::packed(forms.query.extents), BF16)?
    };
    g.matmul(left, right, each, of.over_queries())?;
    g.reduce_to(SUM, each, out)
}
