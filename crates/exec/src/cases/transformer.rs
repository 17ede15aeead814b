//! Cases of embeddings, rotary positions and attention.

use plimsoll_graph::op::Mask;
use plimsoll_graph::{Op, Shape, Type};

use super::building::{
    DEEP, EXACT, FAR, SUMMED, both_ways, cancelling, case, floats, integers, normal, stored,
};
use super::{Case, Fill};

pub(super) fn all() -> Vec<Case> {
    [embedding(), rope(), attention()].concat()
}

fn embedding() -> Vec<Case> {
    let mut cases = Vec::new();
    let sizes: [(usize, usize, Shape); 4] =
        [(1, 1, [1].into()), (11, 5, [2, 3].into()), (50, 33, [130].into()), (3, 7, [4, 40].into())];
    for (rows, width, ids) in sizes {
        let table = normal([rows, width]);
        let extents: Vec<usize> = ids.iter().copied().chain([width]).collect();
        let dy = normal(Shape::new(&extents).unwrap_or(Shape::SCALAR));
        let ids = integers(ids, Fill::Below(rows));
        cases.push(case(Op::Embedding, vec![table, ids.clone()], EXACT));
        cases.extend(both_ways(case(Op::EmbeddingGrad { rows }, vec![ids, dy], SUMMED)));
    }
    cases
}

fn rope() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in [[1, 1, 1, 2], [2, 5, 3, 8], [1, 67, 4, 64], [2, 3, 1, 20]] {
        let (x, frequencies) = (normal(shape), floats([shape[3] / 2], Fill::Frequencies));
        let positions = integers([shape[0], shape[1]], Fill::Below(512));
        for inverse in [false, true] {
            let near = Op::Rope { inverse, positions: false };
            cases.push(case(near, vec![x.clone(), frequencies.clone()], SUMMED));
            let far = Op::Rope { inverse, positions: true };
            cases.push(case(far, vec![x.clone(), frequencies.clone(), positions.clone()], FAR));
        }
    }
    cases
}

/// From this many tokens on, a case has long documents.
const MANY_TOKENS: usize = 300;

fn attention() -> Vec<Case> {
    let mask = |causal, window, documents| Mask { causal, window, documents };
    // (batch, length, query heads, key heads, width, mask)
    let sizes = [
        (1, 1, 1, 1, 32, mask(true, None, false)),
        (2, 5, 3, 3, 20, mask(true, None, false)),
        (1, 37, 4, 1, 32, mask(true, None, false)),
        (2, 67, 4, 4, 64, mask(true, None, false)),
        (1, 130, 8, 2, 64, mask(true, None, false)),
        (1, 70, 4, 2, 64, mask(true, Some(16), false)),
        (1, 9, 2, 1, 20, mask(true, Some(1), false)),
        (2, 33, 2, 1, 20, mask(true, None, true)),
        (2, 91, 4, 1, 32, mask(true, Some(40), true)),
        (1, 19, 2, 2, 32, mask(false, None, false)),
        (2, 41, 3, 1, 20, mask(false, Some(7), false)),
        (1, 65, 2, 2, 64, mask(false, None, true)),
        (2, 65, 4, 2, 64, mask(true, None, true)),
        (2, 150, 4, 2, 64, mask(true, None, true)),
        (1, 300, 2, 2, 128, mask(true, None, true)),
        (1, 3, 2, 1, 2, mask(false, None, false)),
    ];
    sizes.into_iter().flat_map(|(b, t, h, k, d, mask)| attention_pair([b, t, h, d], k, mask)).collect()
}

fn attention_pair(queries: [usize; 4], key_heads: usize, mask: Mask) -> [Case; 2] {
    let [batch, length, heads, width] = queries;
    let scale = 1.0 / (width as f32).sqrt();
    let keys = normal([batch, length, key_heads, width]);
    let operands = vec![normal(queries), keys.clone(), keys];
    // Rows of many tokens have documents of many tokens, for which devices may have other kernels.
    let mean = if batch * length >= MANY_TOKENS { 70 } else { 7 };
    let doc_start = mask.documents.then(|| integers([batch, length], Fill::Documents(mean)));

    let forward = Op::Attention { mask, scale };
    let inputs = operands.iter().cloned().chain(doc_start.clone()).collect();
    let from: &[usize] = if mask.documents { &[0, 1, 2, 6] } else { &[0, 1, 2] };
    let saved = [
        stored(Type::f32(queries), &forward, from, 0),
        stored(Type::f32([batch, heads, length]), &forward, from, 1),
        normal(queries),
    ];
    let backward = operands.into_iter().chain(saved).chain(doc_start).collect();
    // A query that sees one position has no gradient: two sums of products cancel.
    let least = if length == 1 || mask.window == Some(1) { 1.0 } else { 0.0 };
    let backward = cancelling(case(Op::AttentionGrad { mask, scale }, backward, DEEP), least);
    [case(forward, inputs, DEEP), backward]
}

/// Parameters of each case of `reference/ops.py`.
pub(super) fn golden() -> Vec<(&'static str, Op)> {
    let rope = |inverse, positions| Op::Rope { inverse, positions };
    let mut ops = vec![
        ("embedding.plain", Op::Embedding),
        ("embedding_grad.plain", Op::EmbeddingGrad { rows: 6 }),
        ("rope.counted", rope(false, false)),
        ("rope.counted_inverse", rope(true, false)),
        ("rope.given", rope(false, true)),
        ("rope.given_inverse", rope(true, true)),
    ];
    // (forward, backward, causal, window, documents, width)
    let attention = [
        ("attention.causal", "attention_grad.causal", true, None, false, 8.0f32),
        ("attention.all", "attention_grad.all", false, None, false, 6.0),
        ("attention.window", "attention_grad.window", true, Some(3), false, 4.0),
        ("attention.near", "attention_grad.near", false, Some(3), false, 4.0),
        ("attention.documents", "attention_grad.documents", true, None, true, 4.0),
    ];
    for (forward, backward, causal, window, documents, width) in attention {
        let (mask, scale) = (Mask { causal, window, documents }, 1.0 / width.sqrt());
        ops.push((forward, Op::Attention { mask, scale }));
        ops.push((backward, Op::AttentionGrad { mask, scale }));
    }
    ops
}
