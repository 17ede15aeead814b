//! Embedding, rotary positions, attention.

use plimsoll_graph::op::Mask;
use plimsoll_graph::{Op, Shape};

use super::Operands;
use super::array::{Array, add_scaled, dot};
use super::products::triples;
use crate::ExecError;

/// The results of an op of this family.
pub(super) fn eval(op: &Op, operands: &Operands) -> Result<Vec<Array>, ExecError> {
    let x = |index| operands.x(index);
    match op {
        Op::Embedding => Ok(vec![embedding(x(0), operands.integers(1), operands.outputs[0].ty.shape)?]),
        Op::EmbeddingGrad { rows } => Ok(vec![embedding_grad(operands.integers(0), x(1), *rows)?]),
        Op::Rope { inverse, .. } => Ok(vec![rope(x(0), x(1), operands.get(2), *inverse)]),
        Op::Attention { mask, scale } => {
            Ok(Attention::new(operands, operands.get(3), *mask, *scale).forward().into())
        }
        Op::AttentionGrad { mask, scale } => {
            let attention = Attention::new(operands, operands.get(6), *mask, *scale);
            Ok(attention.backward(x(3), x(4), x(5)).into())
        }
        other => unreachable!("`{}` is of another family", other.name()),
    }
}

/// `table[ids]`.
fn embedding(table: &Array, ids: &[i32], shape: Shape) -> Result<Array, ExecError> {
    let mut data = Vec::new();
    for &id in ids {
        data.extend_from_slice(table.row(&[row_of(id, table.shape[0])?]));
    }
    Ok(Array { shape, data })
}

/// Adds each row of `dy` to the row of the table it came from.
fn embedding_grad(ids: &[i32], dy: &Array, rows: usize) -> Result<Array, ExecError> {
    let mut dtable = Array::zeros([rows, dy.shape.columns()]);
    for (&id, dy) in ids.iter().zip(dy.rows()) {
        add_scaled(dtable.row_mut(&[row_of(id, rows)?]), 1.0, dy);
    }
    Ok(dtable)
}

fn row_of(id: i32, rows: usize) -> Result<usize, ExecError> {
    usize::try_from(id)
        .ok()
        .filter(|&id| id < rows)
        .ok_or_else(|| ExecError::Data(format!("token id {id} is outside the vocabulary of {rows}")))
}

/// Rotates pair `(i, i + D/2)` of each head of `x[B,T,H,D]` by `±position · frequencies[i]`.
fn rope(x: &Array, frequencies: &Array, positions: Option<&Array>, inverse: bool) -> Array {
    let half = x.shape[3] / 2;
    Array::build(x.shape, |at| {
        let &[b, t, h, d] = at else { return 0.0 };
        let position = positions.map_or(t as f64, |positions| positions.at(&[b, t]));
        let angle = position * frequencies.data[d % half];
        let (sin, cos) = (if inverse { -angle } else { angle }).sin_cos();
        let (first, second) = (x.at(&[b, t, h, d % half]), x.at(&[b, t, h, d % half + half]));
        if d < half { first * cos - second * sin } else { second * cos + first * sin }
    })
}

/// Operands and shapes that both directions of attention share.
struct Attention<'a> {
    /// Queries (B, T, H, D).
    q: &'a Array,
    /// Keys (B, T, K, D).
    k: &'a Array,
    /// Values (B, T, K, D).
    v: &'a Array,
    /// First position of each position's document (B, T).
    doc_start: Option<&'a Array>,
    mask: Mask,
    scale: f64,
}

impl<'a> Attention<'a> {
    /// Queries, keys and values are the first three operands.
    fn new(operands: &'a Operands, doc_start: Option<&'a Array>, mask: Mask, scale: f32) -> Attention<'a> {
        let [q, k, v] = [0, 1, 2].map(|index| operands.x(index));
        Attention { q, k, v, doc_start, mask, scale: f64::from(scale) }
    }

    /// `(o[B,T,H,D], lse[B,H,T])`.
    fn forward(&self) -> [Array; 2] {
        let (batch, length, heads) = self.extents();
        let mut o = Array::zeros(self.q.shape);
        let mut lse = Array::zeros([batch, heads, length]);
        for (b, h, t) in triples(batch, heads, length) {
            let scores: Vec<(usize, f64)> =
                (0..length).filter(|&s| self.sees(b, t, s)).map(|s| (s, self.score(b, h, t, s))).collect();
            let max = scores.iter().map(|score| score.1).fold(f64::NEG_INFINITY, f64::max);
            let divisor: f64 = scores.iter().map(|score| (score.1 - max).exp()).sum();
            lse.add_at(&[b, h, t], max + divisor.ln());
            for (s, score) in scores {
                let p = (score - max).exp() / divisor;
                add_scaled(o.row_mut(&[b, t, h]), p, self.v.row(&[b, s, self.key_head(h)]));
            }
        }
        [o, lse]
    }

    /// `(dq, dk, dv)`. With `p` the softmax and `dp = do·vᵀ`: `dv = pᵀ·do` and the gradient of the scores
    /// is `p·(dp − do·o)`, since `do·o` is the mean of `dp` under `p`.
    fn backward(&self, o: &Array, lse: &Array, d_o: &Array) -> [Array; 3] {
        let (batch, length, heads) = self.extents();
        let [mut dq, mut dk, mut dv] = [self.q, self.k, self.v].map(|operand| Array::zeros(operand.shape));
        for (b, h, t) in triples(batch, heads, length) {
            let d_o_row = d_o.row(&[b, t, h]);
            let mean = dot(d_o_row, o.row(&[b, t, h]));
            for s in (0..length).filter(|&s| self.sees(b, t, s)) {
                let key = [b, s, self.key_head(h)];
                let p = (self.score(b, h, t, s) - lse.at(&[b, h, t])).exp();
                let ds = self.scale * p * (dot(d_o_row, self.v.row(&key)) - mean);
                add_scaled(dq.row_mut(&[b, t, h]), ds, self.k.row(&key));
                add_scaled(dk.row_mut(&key), ds, self.q.row(&[b, t, h]));
                add_scaled(dv.row_mut(&key), p, d_o_row);
            }
        }
        [dq, dk, dv]
    }

    fn extents(&self) -> (usize, usize, usize) {
        (self.q.shape[0], self.q.shape[1], self.q.shape[2])
    }

    fn key_head(&self, h: usize) -> usize {
        h * self.k.shape[2] / self.q.shape[2]
    }

    fn score(&self, b: usize, h: usize, t: usize, s: usize) -> f64 {
        self.scale * dot(self.q.row(&[b, t, h]), self.k.row(&[b, s, self.key_head(h)]))
    }

    /// Whether position `s` is visible from `t`.
    fn sees(&self, b: usize, t: usize, s: usize) -> bool {
        let in_order = !self.mask.causal || s <= t;
        let near = self.mask.window.is_none_or(|window| t.abs_diff(s) < window);
        // Positions are integers, which floats hold exactly here, so comparing for equality is right.
        let together =
            self.doc_start.is_none_or(|start| start.at(&[b, s]).total_cmp(&start.at(&[b, t])).is_eq());
        in_order && near && together
    }
}
