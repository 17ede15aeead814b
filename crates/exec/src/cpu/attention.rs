//! Attention, forward: tiles of 32 queries by 64 keys, with the softmax carried along.
//!
//! ```text
//!   queries (lanes) →            scores  = keys · queriesᵀ         (64 keys, 32 queries)
//! keys ↓  [ tile ]               weights = exp(scores − maximum)   in place
//!                                output  = output·shrink + weightsᵀ · values
//! ```
//!
//! Queries are the lanes, so the running maximum and sum of a query stay in its lane and no reduction
//! crosses lanes; keys and values are read where they lie, or widened a tile at a time. Tiles that the mask hides are never computed.
//! A piece is one head's tile of queries: it owns its rows of the output.
#![allow(
    unsafe_code,
    reason = "the rows of a head are interleaved with those of others, which slices cannot split"
)]

use half::bf16;
use plimsoll_graph::op::Mask;
use plimsoll_graph::{DType, Op, Type};
use plimsoll_plan::Workspace;

use super::Call;
use super::element::{self, Element};
use super::exp::exp;
use super::simd::widest;
use super::split::{self, Lent};
use super::tile::Product;
use super::visibility::{KEYS, QUERIES, Seen, Visibility};
use crate::ExecError;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    Some(match call.op {
        Op::Attention { mask, scale } => attention(call, *mask, *scale),
        _ => return None,
    })
}

/// The scratch that an op of this file needs.
pub(super) fn workspace(op: &Op, inputs: &[Type], _: &[Type], threads: usize) -> Option<Workspace> {
    Some(match op {
        Op::Attention { .. } => attention_workspace(inputs, threads),
        _ => return None,
    })
}

/// The extents of attention's operands: queries `[B,T,H,D]`, keys and values `[B,T,K,D]`.
#[derive(Clone, Copy)]
pub(super) struct Extents {
    pub(super) batch: usize,
    pub(super) length: usize,
    pub(super) heads: usize,
    pub(super) key_heads: usize,
    pub(super) width: usize,
}

impl Extents {
    pub(super) fn of(queries: &Type, keys: &Type) -> Extents {
        let (q, k) = (queries.shape, keys.shape);
        Extents { batch: q[0], length: q[1], heads: q[2], key_heads: k[2], width: q[3] }
    }

    /// Where the row of a query (or output) begins.
    pub(super) fn query_row(&self, batch: usize, position: usize, head: usize) -> usize {
        ((batch * self.length + position) * self.heads + head) * self.width
    }

    /// Where the row of a key (or value) begins.
    pub(super) fn key_row(&self, batch: usize, position: usize, key_head: usize) -> usize {
        ((batch * self.length + position) * self.key_heads + key_head) * self.width
    }

    pub(super) fn query_stride(&self) -> usize {
        self.heads * self.width
    }

    pub(super) fn key_stride(&self) -> usize {
        self.key_heads * self.width
    }
}

fn attention(call: &Call, mask: Mask, scale: f32) -> Result<(), ExecError> {
    match call.precision()? {
        DType::Bf16 => attention_as::<bf16>(call, mask, scale),
        _ => attention_as::<f32>(call, mask, scale),
    }
    Ok(())
}

fn attention_as<E: Element>(call: &Call, mask: Mask, scale: f32) {
    let extents = Extents::of(&call.inputs[0].ty, &call.inputs[1].ty);
    let doc_start = mask.documents.then(|| call.integers(3));
    let [q, k, v] = [0, 1, 2].map(|index| call.elements::<E>(index));
    let forward = Forward { extents, q, k, v, mask, scale, doc_start };
    let (o, lse) = (Lent::new(call.output_as::<E>(0)), Lent::new(call.output(1)));
    let tiles = extents.length.div_ceil(QUERIES);
    let count = extents.batch * extents.heads * tiles;
    let len = scratch_len(extents.width, !E::WHOLE);
    split::with_scratch(count, call.scratch(), len, |piece, scratch| {
        // Late tiles see most keys under a causal mask: they come first, so that threads end together.
        let (tile, rest) =
            (tiles - 1 - piece / (extents.batch * extents.heads), piece % (extents.batch * extents.heads));
        forward.tile(rest / extents.heads, rest % extents.heads, tile * QUERIES, scratch, (o, lse));
    });
}

fn attention_workspace(inputs: &[Type], threads: usize) -> Workspace {
    let (width, half) = (inputs[0].shape.columns(), inputs[0].dtype == DType::Bf16);
    Workspace::exactly(4 * (threads * scratch_len(width, half)) as u64)
}

/// Floats a thread needs: transposed queries, scores and the output so far, and a tile of keys or values where they are
/// stored in half.
fn scratch_len(width: usize, half: bool) -> usize {
    QUERIES * width + KEYS * QUERIES + QUERIES * width + if half { KEYS * width } else { 0 }
}

/// One number per query of a tile.
pub(super) type PerQuery = [f32; QUERIES];

struct Forward<'a, E> {
    extents: Extents,
    q: &'a [E],
    k: &'a [E],
    v: &'a [E],
    mask: Mask,
    scale: f32,
    doc_start: Option<&'a [i32]>,
}

impl<E: Element> Forward<'_, E> {
    fn tile(
        &self,
        batch: usize,
        head: usize,
        start: usize,
        scratch: &mut [f32],
        (o, lse): (Lent<E>, Lent<f32>),
    ) {
        let e = &self.extents;
        let queries = start..e.length.min(start + QUERIES);
        let key_head = head * e.key_heads / e.heads;
        let (transposed, rest) = scratch.split_at_mut(QUERIES * e.width);
        let (scores, rest) = rest.split_at_mut(KEYS * QUERIES);
        let (output, room) = rest.split_at_mut(QUERIES * e.width);
        let rows = &self.q[e.query_row(batch, start, head)..];
        transpose(rows, e.query_stride(), queries.len(), self.scale, transposed);
        output.fill(0.0);

        // Finite, so that exp(maximum − maximum) = 1 even if a query sees nothing in a tile.
        let mut state = Running { maximum: [f32::MIN; QUERIES], sum: [0.0; QUERIES] };
        let visibility = visibility(self.mask, e, self.doc_start, batch);
        visibility.each_tile(&queries, |keys, seen| {
            let at = e.key_row(batch, keys.start, key_head);
            let (a, stride) = element::rows(&self.k[at..], e.key_stride(), e.width, keys.len(), room);
            let extents = [keys.len(), QUERIES, e.width];
            Product { a, a_strides: [stride, 1], b: transposed, b_stride: QUERIES, extents, add: false }
                .into(scores, QUERIES);
            let scores = &mut scores[..keys.len() * QUERIES];
            if seen == Seen::Part {
                visibility.hide(scores, &queries, &keys);
            }
            absorb(scores, &mut state, output, e.width);
            let (b, b_stride) = element::rows(&self.v[at..], e.key_stride(), e.width, keys.len(), room);
            let extents = [queries.len(), e.width, keys.len()];
            Product { a: scores, a_strides: [1, QUERIES], b, b_stride, extents, add: true }
                .into(output, e.width);
        });
        for (lane, query) in queries.enumerate() {
            let at = (batch * e.heads + head) * e.length + query;
            // SAFETY: these rows of this head are this piece's alone, and each is asked for once.
            let (row, lse) = unsafe { (o.range(e.query_row(batch, query, head), e.width), lse.range(at, 1)) };
            let factor = 1.0 / state.sum[lane];
            for (row, output) in row.iter_mut().zip(&output[lane * e.width..]) {
                *row = E::rounded(factor * output);
            }
            lse[0] = state.maximum[lane] + state.sum[lane].ln();
        }
    }
}

pub(super) fn visibility<'a>(
    mask: Mask,
    extents: &Extents,
    doc_start: Option<&'a [i32]>,
    batch: usize,
) -> Visibility<'a> {
    let length = extents.length;
    let doc_start = doc_start.map(|starts| &starts[batch * length..(batch + 1) * length]);
    Visibility { mask, length, doc_start }
}

/// Transposes `count` rows, `stride` apart, into columns of [`QUERIES`], multiplied by `scale`; the rest of the columns
/// is zero.
pub(super) fn transpose<E: Element>(
    rows: &[E],
    stride: usize,
    count: usize,
    scale: f32,
    columns: &mut [f32],
) {
    if count < QUERIES {
        columns.fill(0.0);
    }
    let (columns, _) = columns.as_chunks_mut::<QUERIES>();
    // Row by row: rows often lie a multiple of 4 KiB apart, where a cache can hold only a few at a time.
    for lane in 0..count {
        for (column, x) in columns.iter_mut().zip(&rows[lane * stride..]) {
            column[lane] = scale * x.wide();
        }
    }
}

/// The softmax as far as keys have been seen.
struct Running {
    maximum: PerQuery,
    sum: PerQuery,
}

widest! {
    /// Turns scores into weights under the new maximum, and rescales the output so far to it.
    fn absorb(scores: &mut [f32], state: &mut Running, output: &mut [f32], width: usize) {
        let (rows, _) = scores.as_chunks_mut::<QUERIES>();
        let mut maximum = state.maximum;
        for row in rows.iter() {
            for (maximum, &score) in maximum.iter_mut().zip(row) {
                *maximum = if score > *maximum { score } else { *maximum };
            }
        }
        let mut sum = [0.0f32; QUERIES];
        for row in rows.iter_mut() {
            for (lane, score) in row.iter_mut().enumerate() {
                *score = exp(*score - maximum[lane]);
                sum[lane] += *score;
            }
        }
        let mut shrink = [0.0f32; QUERIES];
        for lane in 0..QUERIES {
            shrink[lane] = exp(state.maximum[lane] - maximum[lane]);
            state.sum[lane] = state.sum[lane] * shrink[lane] + sum[lane];
        }
        state.maximum = maximum;
        for (row, shrink) in output.chunks_exact_mut(width).zip(shrink) {
            for x in row {
                *x *= shrink;
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use plimsoll_graph::Op;

    use super::*;
    use crate::cpu::trial::{Trial, assert_near, numbers};

    /// Operands of one attention, and the results by definition.
    pub(in crate::cpu) struct Case {
        pub(in crate::cpu) extents: Extents,
        pub(in crate::cpu) mask: Mask,
        pub(in crate::cpu) scale: f32,
        pub(in crate::cpu) q: Vec<f32>,
        pub(in crate::cpu) k: Vec<f32>,
        pub(in crate::cpu) v: Vec<f32>,
        pub(in crate::cpu) doc_start: Vec<i32>,
    }

    impl Case {
        pub(in crate::cpu) fn query_shape(&self) -> [usize; 4] {
            let e = self.extents;
            [e.batch, e.length, e.heads, e.width]
        }

        pub(in crate::cpu) fn key_shape(&self) -> [usize; 4] {
            let e = self.extents;
            [e.batch, e.length, e.key_heads, e.width]
        }

        /// The keys that a query sees, each with the row of its key and its score.
        pub(in crate::cpu) fn seen(&self, b: usize, h: usize, t: usize) -> Vec<(usize, f64)> {
            let e = &self.extents;
            let row = &self.q[e.query_row(b, t, h)..][..e.width];
            (0..e.length)
                .filter(|&s| {
                    let starts = &self.doc_start[b * e.length..];
                    (!self.mask.causal || s <= t)
                        && self.mask.window.is_none_or(|window| t.abs_diff(s) < window)
                        && (!self.mask.documents || starts[s] == starts[t])
                })
                .map(|s| {
                    let at = e.key_row(b, s, h * e.key_heads / e.heads);
                    (at, f64::from(self.scale) * dot(row, &self.k[at..]))
                })
                .collect()
        }

        fn forward(&self) -> [Vec<f64>; 2] {
            let e = &self.extents;
            let mut o = vec![0.0; self.q.len()];
            let mut lse = Vec::new();
            for (b, h, t) in triples(e) {
                let seen = self.seen(b, h, t);
                let divisor: f64 = seen.iter().map(|seen| seen.1.exp()).sum();
                lse.push(divisor.ln());
                for (at, score) in seen {
                    for d in 0..e.width {
                        o[e.query_row(b, t, h) + d] += score.exp() / divisor * f64::from(self.v[at + d]);
                    }
                }
            }
            [o, lse]
        }

        pub(in crate::cpu) fn trial(&self) -> Trial {
            let op = Op::Attention { mask: self.mask, scale: self.scale };
            let trial = Trial::new(op).f32(self.query_shape(), &self.q);
            let trial = trial.f32(self.key_shape(), &self.k).f32(self.key_shape(), &self.v);
            self.with_documents(trial)
        }

        pub(in crate::cpu) fn with_documents(&self, trial: Trial) -> Trial {
            let shape = [self.extents.batch, self.extents.length];
            if self.mask.documents { trial.i32(shape, &self.doc_start) } else { trial }
        }
    }

    pub(in crate::cpu) fn dot(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    }

    /// Every batch, head and position, in the order of `lse`.
    pub(in crate::cpu) fn triples(e: &Extents) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let Extents { batch, length, heads, .. } = *e;
        (0..batch * heads * length).map(move |i| (i / length / heads, i / length % heads, i % length))
    }

    pub(in crate::cpu) fn case(
        extents: [usize; 5],
        causal: bool,
        window: Option<usize>,
        documents: bool,
    ) -> Case {
        let [batch, length, heads, key_heads, width] = extents;
        let doc_start = (0..batch * length).map(|i| (i % length / 37 * 37) as i32).collect();
        let keys = batch * length * key_heads * width;
        Case {
            extents: Extents { batch, length, heads, key_heads, width },
            mask: Mask { causal, window, documents },
            scale: 1.0 / (width as f32).sqrt(),
            q: numbers(batch * length * heads * width, 1),
            k: numbers(keys, 2),
            v: numbers(keys, 3),
            doc_start,
        }
    }

    pub(in crate::cpu) fn cases() -> Vec<Case> {
        vec![
            case([2, 131, 4, 2, 32], true, None, false),
            case([1, 150, 3, 3, 20], true, Some(70), false),
            case([1, 97, 6, 1, 6], false, None, false),
            case([2, 130, 2, 1, 16], false, Some(9), true),
            case([2, 200, 2, 2, 33], true, None, true),
            case([4, 70, 4, 2, 12], true, None, true),
            case([1, 1, 1, 1, 2], true, None, false),
        ]
    }

    #[test]
    fn attention_follows_its_equation_under_every_mask() {
        for case in cases() {
            let results = case.trial().run();
            let [o, lse] = case.forward();
            assert_near(&results[0], &o, 1e-6);
            assert_near(&results[1], &lse, 1e-6);
            assert_eq!(results, case.trial().threads(2).run());
        }
    }

    #[test]
    fn scores_far_apart_neither_overflow_nor_vanish() {
        let mut case = case([1, 200, 1, 1, 4], true, None, false);
        case.scale = 40.0;
        let results = case.trial().run();
        let [o, lse] = case.forward();
        assert_near(&results[0], &o, 1e-4);
        assert_near(&results[1], &lse, 1e-6);
    }
}
