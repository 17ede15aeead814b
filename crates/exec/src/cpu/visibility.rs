//! Which keys a query sees, tile by tile: the mask of attention.
//!
//! A tile is a range of queries times a range of keys. Most tiles are seen whole or not at all; only the
//! rest are masked element by element.

use std::ops::Range;

use plimsoll_graph::op::Mask;

use super::simd::widest;

/// Queries of a tile, which are the lanes of the vectors.
pub(super) const QUERIES: usize = 32;

/// Keys of a tile.
pub(super) const KEYS: usize = 64;

/// How much of a tile can be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Nothing,
    Part,
    All,
}

/// The mask of one sequence.
#[derive(Clone, Copy)]
pub(super) struct Visibility<'a> {
    pub(super) mask: Mask,
    pub(super) length: usize,
    /// First position of the document of each position, where documents are kept apart.
    pub(super) doc_start: Option<&'a [i32]>,
}

impl Visibility<'_> {
    /// The keys that any of `queries` may see by distance alone, from the start of a tile on.
    pub(super) fn keys(&self, queries: &Range<usize>) -> Range<usize> {
        let reach = self.mask.window.unwrap_or(self.length) - 1;
        let first = queries.start.saturating_sub(reach);
        let end = if self.mask.causal { queries.end } else { queries.end + reach };
        first / KEYS * KEYS..end.min(self.length)
    }

    /// Calls `body` with the keys of every tile that some of `queries` see.
    pub(super) fn each_tile(&self, queries: &Range<usize>, mut body: impl FnMut(Range<usize>, Seen)) {
        let reachable = self.keys(queries);
        for first in reachable.clone().step_by(KEYS) {
            let keys = first..reachable.end.min(first + KEYS);
            let seen = self.tile(queries, &keys);
            if seen != Seen::Nothing {
                body(keys, seen);
            }
        }
    }

    /// How much of a tile can be seen.
    pub(super) fn tile(&self, queries: &Range<usize>, keys: &Range<usize>) -> Seen {
        let (first_query, last_query) = (queries.start, queries.end - 1);
        let (first_key, last_key) = (keys.start, keys.end - 1);
        let window = self.mask.window.unwrap_or(usize::MAX);
        // Distances of the nearest and of the farthest pair, in each direction.
        let nearest = first_query.saturating_sub(last_key).max(first_key.saturating_sub(last_query));
        let farthest = last_query.saturating_sub(first_key).max(last_key.saturating_sub(first_query));
        let documents = self.documents(queries, keys);
        if nearest >= window || (self.mask.causal && first_key > last_query) || documents == Seen::Nothing {
            return Seen::Nothing;
        }
        if farthest >= window || (self.mask.causal && last_key > first_query) || documents == Seen::Part {
            return Seen::Part;
        }
        Seen::All
    }

    fn documents(&self, queries: &Range<usize>, keys: &Range<usize>) -> Seen {
        let Some(starts) = self.doc_start else { return Seen::All };
        let (low, high) = extremes(&starts[queries.clone()]);
        let (key_low, key_high) = extremes(&starts[keys.clone()]);
        if high < key_low || key_high < low {
            Seen::Nothing
        } else if low == high && key_low == key_high {
            Seen::All
        } else {
            Seen::Part
        }
    }

    /// Sets the scores of unseen pairs to minus infinity. `scores` has a row of [`QUERIES`] for each key.
    pub(super) fn hide(&self, scores: &mut [f32], queries: &Range<usize>, keys: &Range<usize>) {
        let window = self.mask.window.map_or(i32::MAX, |window| i32::try_from(window).unwrap_or(i32::MAX));
        // Distances query − key that are seen.
        let range = [if self.mask.causal { 0 } else { 1 - window }, window - 1];
        let mut document = [0; QUERIES];
        for (document, query) in document.iter_mut().zip(queries.clone()) {
            *document = self.doc_start.map_or(0, |starts| starts[query]);
        }
        for (key, scores) in keys.clone().zip(scores.as_chunks_mut::<QUERIES>().0) {
            let own = self.doc_start.map_or(0, |starts| starts[key]);
            hide_row(scores, queries.start as i32 - key as i32, range, &document, own);
        }
    }
}

widest! {
    /// Hides one key from the queries that do not see it; `distance` is that of the first query.
    fn hide_row(
        scores: &mut [f32; QUERIES], distance: i32, range: [i32; 2], document: &[i32; QUERIES], own: i32,
    ) {
        for (lane, (score, &document)) in (0..).zip(scores.iter_mut().zip(document)) {
            let distance = distance + lane;
            #[allow(clippy::needless_bitwise_bool, reason = "branches would keep the loop from becoming vectors")]
            let seen = (distance >= range[0]) & (distance <= range[1]) & (document == own);
            *score = if seen { *score } else { f32::NEG_INFINITY };
        }
    }
}

fn extremes(starts: &[i32]) -> (i32, i32) {
    starts.iter().fold((i32::MAX, i32::MIN), |(low, high), &start| (low.min(start), high.max(start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_judged_as_their_elements_are() {
        let starts: Vec<i32> = (0..200).map(|i| if i < 70 { 0 } else { 70 + (i - 70) / 50 * 50 }).collect();
        for (causal, window, documents) in [
            (true, None, false),
            (false, Some(40), false),
            (true, Some(3), false),
            (true, Some(200), true),
            (false, None, true),
            (false, None, false),
        ] {
            let mask = Mask { causal, window, documents };
            let visibility = Visibility { mask, length: 200, doc_start: documents.then_some(&starts[..]) };
            let sees = |t: usize, s: usize| {
                (!causal || s <= t)
                    && window.is_none_or(|window| t.abs_diff(s) < window)
                    && (!documents || starts[s] == starts[t])
            };
            for queries in (0..200).step_by(QUERIES).map(|t| t..200.min(t + QUERIES)) {
                let reachable = visibility.keys(&queries);
                for keys in (0..200).step_by(KEYS).map(|s| s..200.min(s + KEYS)) {
                    let pairs = || queries.clone().flat_map(|t| keys.clone().map(move |s| (t, s)));
                    let count = pairs().filter(|&(t, s)| sees(t, s)).count();
                    let expected = match count {
                        0 => Seen::Nothing,
                        _ if count == pairs().count() => Seen::All,
                        _ => Seen::Part,
                    };
                    let tile = visibility.tile(&queries, &keys);
                    // A tile may be called partly seen when it is not, never the other way round.
                    assert!(tile == expected || tile == Seen::Part, "{mask:?} {queries:?} {keys:?} {tile:?}");
                    assert!(expected == Seen::Nothing || reachable.contains(&keys.start), "{mask:?}");
                    let mut scores = vec![0.0; keys.len() * QUERIES];
                    visibility.hide(&mut scores, &queries, &keys);
                    for (t, s) in pairs() {
                        let score = scores[(s - keys.start) * QUERIES + t - queries.start];
                        assert_eq!(score == 0.0, sees(t, s), "{mask:?} {t} {s}");
                    }
                }
            }
        }
    }
}
