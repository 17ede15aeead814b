//! Attention, backward: the weights are built again from the stored log-sum-exp, tile by tile.
//!
//! With `p` the weights, `dp = do·vᵀ` and `mean = Σ do·o` (the mean of `dp` under `p`), the gradient of
//! the scores is `ds = p·(dp − mean)`, and `dv = pᵀ·do`, `dk = scale·dsᵀ·q`, `dq = scale·ds·k`.
//! As in the forward op, tiles are `(keys, queries)` with queries as lanes.
//!
//! A piece is one key head of one sequence with all the query heads that read it, so it owns its rows of all three
//! gradients. If that would leave threads idle (one sequence, few key heads), there are two passes: a piece of the
//! first owns a tile of keys, a piece of the second a tile of queries, and the weights are computed in both, with seven
//! products instead of five. All sums have the same order either way, so the choice changes no bit and may depend on
//! the number of threads.
//!
//! Gradients of keys and values are sums over queries. If they are stored in half precision, the sums stay in scratch
//! until they are complete: those of a tile, or with enough scratch those of all positions, which one pass needs.
#![allow(
    unsafe_code,
    reason = "the rows of a head are interleaved with those of others, which slices cannot split"
)]

use std::ops::Range;

use half::bf16;
use plimsoll_graph::op::Mask;
use plimsoll_graph::{DType, Op, Type};
use plimsoll_plan::Workspace;

use super::attention::{Extents, PerQuery, transpose, visibility};
use super::element::{self, Element};
use super::exp::exp;
use super::simd::widest;
use super::split::{self, Lent};
use super::tile::Product;
use super::visibility::{KEYS, QUERIES, Seen, Visibility};
use super::{Call, pieces, reduce};
use crate::ExecError;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    Some(match call.op {
        Op::AttentionGrad { mask, scale } => attention_grad(call, *mask, *scale),
        _ => return None,
    })
}

/// The scratch that an op of this file needs.
pub(super) fn workspace(op: &Op, inputs: &[Type], _: &[Type], threads: usize) -> Option<Workspace> {
    Some(match op {
        Op::AttentionGrad { .. } => attention_grad_workspace(inputs, threads),
        _ => return None,
    })
}

fn attention_grad(call: &Call, mask: Mask, scale: f32) -> Result<(), ExecError> {
    match call.precision()? {
        DType::Bf16 => attention_grad_as::<bf16>(call, mask, scale),
        _ => attention_grad_as::<f32>(call, mask, scale),
    }
    Ok(())
}

fn attention_grad_as<E: Element>(call: &Call, mask: Mask, scale: f32) {
    let extents = Extents::of(&call.inputs[0].ty, &call.inputs[1].ty);
    let [q, k, v, o, d_o] = [0, 1, 2, 3, 5].map(|index| call.elements::<E>(index));
    let (lse, doc_start) = (call.input(4), mask.documents.then(|| call.integers(6)));
    let [dq, dk, dv] = [0, 1, 2].map(|index| Lent::new(call.output_as::<E>(index)));
    let backward = Backward { extents, q, k, v, o, lse, d_o, doc_start, mask, scale, dq, dk, dv };
    let Extents { batch, length, heads, key_heads, width } = extents;
    let (scratch, threads) = (call.scratch(), pieces::threads());
    let whole = scratch_len(width, !E::WHOLE, length);
    if one_pass_is_shorter(batch * key_heads, threads) && threads * whole <= scratch.len() {
        return split::with_scratch(batch * key_heads, scratch, whole, |piece, scratch| {
            backward.key_head(piece / key_heads, piece % key_heads, scratch);
        });
    }
    let len = scratch_len(width, !E::WHOLE, KEYS);
    let tiles = length.div_ceil(KEYS);
    split::with_scratch(batch * key_heads * tiles, scratch, len, |piece, scratch| {
        let (head, tile) = (piece / tiles, piece % tiles);
        backward.key_tile(head / key_heads, head % key_heads, tile * KEYS, scratch);
    });
    let tiles = length.div_ceil(QUERIES);
    split::with_scratch(batch * heads * tiles, scratch, len, |piece, scratch| {
        let (head, tile) = (piece / tiles, tiles - 1 - piece % tiles);
        backward.query_tile(head / heads, head % heads, tile * QUERIES, scratch);
    });
}

/// Two passes take half as long again (more products, and queries transposed more often), but keep all threads busy;
/// one pass lasts as long as the thread with the most `pieces`.
fn one_pass_is_shorter(pieces: usize, threads: usize) -> bool {
    2 * pieces.div_ceil(threads) * threads <= 3 * pieces
}

fn attention_grad_workspace(inputs: &[Type], threads: usize) -> Workspace {
    let (extents, half) = (Extents::of(&inputs[0], &inputs[1]), inputs[0].dtype == DType::Bf16);
    let bytes = |positions| 4 * (threads * scratch_len(extents.width, half, positions)) as u64;
    let (least, whole) = (bytes(KEYS), bytes(extents.length));
    let one_pass = one_pass_is_shorter(extents.batch * extents.key_heads, threads);
    Workspace { least, best: if one_pass { least.max(whole) } else { least } }
}

/// Floats a thread needs to sum the gradients of keys at this many positions: see [`Scratch`].
fn scratch_len(width: usize, half: bool, positions: usize) -> usize {
    let widened = if half { (KEYS + 2 * QUERIES + 2 * positions) * width } else { 0 };
    2 * QUERIES * width + 2 * KEYS * QUERIES + QUERIES * width + KEYS * width + widened
}

struct Scratch<'a> {
    /// Queries, scaled, and gradients of the output, transposed `(D, QUERIES)`.
    q: &'a mut [f32],
    d_o: &'a mut [f32],
    /// Scores and then weights `(KEYS, QUERIES)`.
    weights: &'a mut [f32],
    /// Gradients of the weights and then of the scores `(KEYS, QUERIES)`.
    gradients: &'a mut [f32],
    /// Gradient of the queries `(QUERIES, D)`.
    dq: &'a mut [f32],
    /// A tile's share in the gradient of keys or values `(KEYS, D)`.
    share: &'a mut [f32],
    /// Where values are stored in half: a tile of keys or values `(KEYS, D)`, the rows of queries and of gradients of the
    /// output `(QUERIES, D)`, and the gradients of keys and of values so far.
    tile: &'a mut [f32],
    q_rows: &'a mut [f32],
    d_o_rows: &'a mut [f32],
    sums: [&'a mut [f32]; 2],
}

impl<'a> Scratch<'a> {
    fn cut(scratch: &'a mut [f32], width: usize, half: bool) -> Scratch<'a> {
        let (q, rest) = scratch.split_at_mut(QUERIES * width);
        let (d_o, rest) = rest.split_at_mut(QUERIES * width);
        let (weights, rest) = rest.split_at_mut(KEYS * QUERIES);
        let (gradients, rest) = rest.split_at_mut(KEYS * QUERIES);
        let (dq, rest) = rest.split_at_mut(QUERIES * width);
        let (share, rest) = rest.split_at_mut(KEYS * width);
        let widened = |len: usize| if half { len * width } else { 0 };
        let (tile, rest) = rest.split_at_mut(widened(KEYS));
        let (q_rows, rest) = rest.split_at_mut(widened(QUERIES));
        let (d_o_rows, rest) = rest.split_at_mut(widened(QUERIES));
        let (keys, values) = rest.split_at_mut(rest.len() / 2);
        Scratch { q, d_o, weights, gradients, dq, share, tile, q_rows, d_o_rows, sums: [keys, values] }
    }
}

struct Backward<'a, E> {
    extents: Extents,
    q: &'a [E],
    k: &'a [E],
    v: &'a [E],
    o: &'a [E],
    lse: &'a [f32],
    d_o: &'a [E],
    doc_start: Option<&'a [i32]>,
    mask: Mask,
    scale: f32,
    dq: Lent<'a, E>,
    dk: Lent<'a, E>,
    dv: Lent<'a, E>,
}

/// Some queries of one head.
struct Tile {
    batch: usize,
    head: usize,
    queries: Range<usize>,
    /// Log-sum-exp and `Σ do·o` of each.
    lse: PerQuery,
    mean: PerQuery,
}

impl<E: Element> Backward<'_, E> {
    /// Everything that one key head takes part in.
    fn key_head(&self, batch: usize, key_head: usize, scratch: &mut [f32]) {
        let e = &self.extents;
        let scratch = &mut Scratch::cut(scratch, e.width, !E::WHOLE);
        self.clear(batch, key_head, 0..e.length, scratch);
        let visibility = visibility(self.mask, e, self.doc_start, batch);
        for head in self.readers(key_head) {
            for start in (0..e.length).step_by(QUERIES) {
                let tile = self.load(batch, head, start, scratch);
                scratch.dq.fill(0.0);
                visibility.each_tile(&tile.queries, |keys, seen| {
                    self.scores(&visibility, &tile, &keys, seen, scratch);
                    self.add_to_keys(&tile, &keys, 0, scratch);
                    self.add_to_queries(&tile, &keys, scratch);
                });
                self.store(&tile, scratch);
            }
        }
        self.finish(batch, key_head, 0..e.length, scratch);
    }

    /// The gradients of one tile of keys and values.
    fn key_tile(&self, batch: usize, key_head: usize, first: usize, scratch: &mut [f32]) {
        let e = &self.extents;
        let keys = first..e.length.min(first + KEYS);
        let scratch = &mut Scratch::cut(scratch, e.width, !E::WHOLE);
        self.clear(batch, key_head, keys.clone(), scratch);
        let visibility = visibility(self.mask, e, self.doc_start, batch);
        for head in self.readers(key_head) {
            for start in (0..e.length).step_by(QUERIES) {
                let queries = start..e.length.min(start + QUERIES);
                // The same keys as the forward op and the second pass take with these queries.
                let keys = first..keys.end.min(visibility.keys(&queries).end);
                let seen = if keys.is_empty() { Seen::Nothing } else { visibility.tile(&queries, &keys) };
                if seen != Seen::Nothing {
                    let tile = self.load(batch, head, start, scratch);
                    self.scores(&visibility, &tile, &keys, seen, scratch);
                    self.add_to_keys(&tile, &keys, first, scratch);
                }
            }
        }
        self.finish(batch, key_head, keys, scratch);
    }

    /// The gradient of one tile of queries.
    fn query_tile(&self, batch: usize, head: usize, start: usize, scratch: &mut [f32]) {
        let scratch = &mut Scratch::cut(scratch, self.extents.width, !E::WHOLE);
        let visibility = visibility(self.mask, &self.extents, self.doc_start, batch);
        let tile = self.load(batch, head, start, scratch);
        scratch.dq.fill(0.0);
        visibility.each_tile(&tile.queries, |keys, seen| {
            self.scores(&visibility, &tile, &keys, seen, scratch);
            self.add_to_queries(&tile, &keys, scratch);
        });
        self.store(&tile, scratch);
    }

    /// The query heads that read a key head.
    fn readers(&self, key_head: usize) -> Range<usize> {
        let group = self.extents.heads / self.extents.key_heads;
        key_head * group..(key_head + 1) * group
    }

    /// Sets the gradients of some keys and values, or their sums, to zero.
    fn clear(&self, batch: usize, key_head: usize, keys: Range<usize>, scratch: &mut Scratch) {
        let e = &self.extents;
        if !E::WHOLE {
            return scratch.sums.iter_mut().for_each(|sums| sums[..keys.len() * e.width].fill(0.0));
        }
        for position in keys {
            let at = e.key_row(batch, position, key_head);
            // SAFETY: these keys of this head are this piece's alone, and each borrow ends here.
            let [dk, dv] = [self.dk, self.dv].map(|output| unsafe { output.range(at, e.width) });
            dk.fill(E::ZERO);
            dv.fill(E::ZERO);
        }
    }

    /// Stores sums that stand in scratch, now that they are whole.
    fn finish(&self, batch: usize, key_head: usize, keys: Range<usize>, scratch: &Scratch) {
        let e = &self.extents;
        if E::WHOLE {
            return;
        }
        for (output, sums) in [self.dk, self.dv].into_iter().zip(&scratch.sums) {
            for (position, sums) in keys.clone().zip(sums.chunks_exact(e.width)) {
                // SAFETY: these keys of this head are this piece's alone, and each borrow ends here.
                let row = unsafe { output.range(e.key_row(batch, position, key_head), e.width) };
                element::round(sums, row);
            }
        }
    }

    /// Loads a tile of queries and its statistics into scratch.
    fn load(&self, batch: usize, head: usize, start: usize, scratch: &mut Scratch) -> Tile {
        let e = &self.extents;
        let queries = start..e.length.min(start + QUERIES);
        let (at, stride) = (e.query_row(batch, start, head), e.query_stride());
        transpose(&self.q[at..], stride, queries.len(), self.scale, scratch.q);
        transpose(&self.d_o[at..], stride, queries.len(), 1.0, scratch.d_o);
        let mut tile = Tile { batch, head, queries, lse: [0.0; QUERIES], mean: [0.0; QUERIES] };
        let (lse, count) = ((batch * e.heads + head) * e.length + start, tile.queries.len());
        tile.lse[..count].copy_from_slice(&self.lse[lse..lse + count]);
        means(&self.d_o[at..], &self.o[at..], stride, e.width, &mut tile.mean[..count]);
        tile
    }

    fn store(&self, tile: &Tile, scratch: &Scratch) {
        let e = &self.extents;
        for (query, dq) in tile.queries.clone().zip(scratch.dq.chunks_exact(e.width)) {
            // SAFETY: these queries of this head are this piece's alone, and each is asked for once.
            let row = unsafe { self.dq.range(e.query_row(tile.batch, query, tile.head), e.width) };
            element::round(dq, row);
        }
    }

    /// Fills `weights` and `gradients` of a tile.
    fn scores(
        &self,
        visibility: &Visibility,
        tile: &Tile,
        keys: &Range<usize>,
        seen: Seen,
        scratch: &mut Scratch,
    ) {
        let e = &self.extents;
        let at = e.key_row(tile.batch, keys.start, tile.head * e.key_heads / e.heads);
        let extents = [keys.len(), QUERIES, e.width];
        let mut product = |rows: &[E], b, c: &mut [f32]| {
            let (a, stride) = element::rows(rows, e.key_stride(), e.width, keys.len(), scratch.tile);
            Product { a, a_strides: [stride, 1], b, b_stride: QUERIES, extents, add: false }.into(c, QUERIES);
        };
        product(&self.v[at..], scratch.d_o, scratch.gradients);
        // Keys come last: if they are widened, the gradient of the queries finds them in `scratch.tile`.
        product(&self.k[at..], scratch.q, scratch.weights);
        let tile_len = keys.len() * QUERIES;
        let (weights, gradients) = (&mut scratch.weights[..tile_len], &mut scratch.gradients[..tile_len]);
        if seen == Seen::Part {
            visibility.hide(weights, &tile.queries, keys);
        }
        differentiate(weights, gradients, &tile.lse, &tile.mean, self.scale);
    }

    /// Adds a tile's share to the gradients of its keys and values; sums that stand in scratch begin with position `first`.
    fn add_to_keys(&self, tile: &Tile, keys: &Range<usize>, first: usize, scratch: &mut Scratch) {
        let e = &self.extents;
        let key_head = tile.head * e.key_heads / e.heads;
        let key_at = e.key_row(tile.batch, keys.start, key_head);
        let query_at = e.query_row(tile.batch, tile.queries.start, tile.head);
        let [key_sums, value_sums] = &mut scratch.sums;
        for (a, rows, room, output, sums) in [
            (&*scratch.weights, self.d_o, &mut *scratch.d_o_rows, self.dv, value_sums),
            (&*scratch.gradients, self.q, &mut *scratch.q_rows, self.dk, key_sums),
        ] {
            let count = tile.queries.len();
            let (b, b_stride) = element::rows(&rows[query_at..], e.query_stride(), e.width, count, room);
            let extents = [keys.len(), e.width, count];
            Product { a, a_strides: [QUERIES, 1], b, b_stride, extents, add: false }
                .into(scratch.share, e.width);
            for (offset, share) in scratch.share.chunks_exact(e.width).take(keys.len()).enumerate() {
                // SAFETY: the rows of this key head are this piece's alone, and each borrow ends here.
                let row = unsafe { output.range(key_at + offset * e.key_stride(), e.width) };
                let sum = match E::as_wide_mut(row) {
                    Some(row) => row,
                    None => &mut sums[(keys.start - first + offset) * e.width..][..e.width],
                };
                for (sum, share) in sum.iter_mut().zip(share) {
                    *sum += share;
                }
            }
        }
    }

    /// Adds a tile's share to the gradient of its queries.
    fn add_to_queries(&self, tile: &Tile, keys: &Range<usize>, scratch: &mut Scratch) {
        let e = &self.extents;
        let key_at = e.key_row(tile.batch, keys.start, tile.head * e.key_heads / e.heads);
        let (b, b_stride) = match E::as_wide(&self.k[key_at..]) {
            Some(rows) => (rows, e.key_stride()),
            None => (&*scratch.tile, e.width), // `scores` has left them there
        };
        let extents = [tile.queries.len(), e.width, keys.len()];
        let a = &*scratch.gradients;
        Product { a, a_strides: [1, QUERIES], b, b_stride, extents, add: true }.into(scratch.dq, e.width);
    }
}

widest! {
    /// `Σ do·o` of some rows that lie `stride` apart.
    fn means<E: Element>(d_o: &[E], o: &[E], stride: usize, width: usize, means: &mut [f32]) {
        for (row, mean) in means.iter_mut().enumerate() {
            let at = row * stride;
            *mean = reduce::dot(&d_o[at..at + width], &o[at..at + width]);
        }
    }
}

widest! {
    /// Turns scores into weights and the gradients of weights into those of scores.
    fn differentiate(weights: &mut [f32], gradients: &mut [f32], lse: &PerQuery, mean: &PerQuery, scale: f32) {
        let rows = weights.as_chunks_mut::<QUERIES>().0.iter_mut().zip(gradients.as_chunks_mut::<QUERIES>().0);
        for (weights, gradients) in rows {
            for lane in 0..QUERIES {
                weights[lane] = exp(weights[lane] - lse[lane]);
                gradients[lane] = scale * weights[lane] * (gradients[lane] - mean[lane]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Op;

    use super::super::attention::tests::{Case, case, cases, dot, triples};
    use crate::cpu::trial::{Trial, assert_near, numbers};

    fn trial(case: &Case, o: &[f32], lse: &[f32], d_o: &[f32]) -> Trial {
        let e = case.extents;
        let (query, key) = (case.query_shape(), case.key_shape());
        let trial = Trial::new(Op::AttentionGrad { mask: case.mask, scale: case.scale });
        let trial = trial.f32(query, &case.q).f32(key, &case.k).f32(key, &case.v).f32(query, o);
        case.with_documents(trial.f32([e.batch, e.heads, e.length], lse).f32(query, d_o))
    }

    /// `dq`, `dk`, `dv` by definition.
    fn expected(case: &Case, d_o: &[f32]) -> [Vec<f64>; 3] {
        let (e, scale) = (&case.extents, f64::from(case.scale));
        let [mut dq, mut dk, mut dv] = [&case.q, &case.k, &case.v].map(|x| vec![0.0; x.len()]);
        for (b, h, t) in triples(e) {
            let (seen, row) = (case.seen(b, h, t), e.query_row(b, t, h));
            let divisor: f64 = seen.iter().map(|seen| seen.1.exp()).sum();
            let d_o = &d_o[row..row + e.width];
            let dp: Vec<f64> = seen.iter().map(|&(at, _)| dot(d_o, &case.v[at..])).collect();
            let mean: f64 = seen.iter().zip(&dp).map(|(seen, dp)| seen.1.exp() / divisor * dp).sum();
            for (&(at, score), dp) in seen.iter().zip(dp) {
                let p = score.exp() / divisor;
                let ds = scale * p * (dp - mean);
                for d in 0..e.width {
                    dq[row + d] += ds * f64::from(case.k[at + d]);
                    dk[at + d] += ds * f64::from(case.q[row + d]);
                    dv[at + d] += p * f64::from(d_o[d]);
                }
            }
        }
        [dq, dk, dv]
    }

    #[test]
    fn the_gradient_of_attention_follows_its_equation_under_every_mask() {
        for case in cases() {
            let forward = case.trial().run();
            let d_o = numbers(case.q.len(), 4);
            let results = trial(&case, &forward[0], &forward[1], &d_o).run();
            for (result, expected) in results.iter().zip(expected(&case, &d_o)) {
                assert_near(result, &expected, 2e-6);
            }
            for threads in [2, 16] {
                assert_eq!(results, trial(&case, &forward[0], &forward[1], &d_o).threads(threads).run());
            }
        }
    }

    #[test]
    fn one_pass_and_two_give_the_same_bits() {
        assert!(super::one_pass_is_shorter(8, 1) && !super::one_pass_is_shorter(8, 16));
        for window in [None, Some(90)] {
            let (case, d_o) = (case([4, 150, 4, 2, 20], true, window, false), numbers(4 * 150 * 4 * 20, 4));
            let forward = case.trial().run();
            let [one, two] =
                [1, 16].map(|threads| trial(&case, &forward[0], &forward[1], &d_o).threads(threads).run());
            assert_eq!(one, two);
        }
    }
}
