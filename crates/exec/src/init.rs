//! Contents of state before the first step.
//!
//! Each element is a function of (seed, name of the state, flat index) alone, so a range can be filled in pieces of any
//! size, by any rank, in any order, with the same numbers.

use plimsoll_graph::Init;

pub(crate) use crate::random::place;
use crate::random::{Stream, name_hash};

/// Writes elements `offset … offset + out.len()` of the state `name`.
pub fn fill(init: &Init, name: &str, seed: u64, offset: usize, out: &mut [f32]) {
    let stream = Stream::new(seed, name_hash(name), 0);
    match init {
        Init::Fill(number) => out.fill(*number),
        Init::Normal(deviation) => normal(&stream, *deviation, offset, out),
        Init::Uniform(bound) => {
            for (index, slot) in (offset..).zip(out) {
                let (row, element) = place(index);
                *slot = bound * (2.0 * stream.uniform(row, element) - 1.0);
            }
        }
        Init::Table(table) => out.copy_from_slice(&table[offset..offset + out.len()]),
        Init::OneHot(rows) => {
            for (index, slot) in (offset..).zip(out) {
                let (row, column) = (index / rows.len(), index % rows.len());
                *slot = if rows[column] == row { 1.0 } else { 0.0 };
            }
        }
    }
}

/// Normal numbers come in pairs; a piece may begin with the second of one.
pub(crate) fn normal(stream: &Stream, deviation: f32, offset: usize, out: &mut [f32]) {
    let mut pair = [0.0; 2];
    for (index, slot) in (offset..).zip(out) {
        if index == offset || index % 2 == 0 {
            let (row, element) = place(index);
            pair = stream.normal_pair(row, element / 2);
        }
        *slot = deviation * pair[index % 2];
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "the very same bits are meant")]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_size_hold_the_numbers_of_the_whole() {
        let table = Init::Table((0..23).map(|i| i as f32).collect());
        for init in [Init::Normal(0.02), Init::Uniform(0.5), table, Init::OneHot(vec![4, 0, 2])] {
            let mut whole = [0.0; 23];
            fill(&init, "w", 5, 0, &mut whole);
            for size in [1, 3, 8] {
                let mut pieces = [0.0; 23];
                for (index, piece) in pieces.chunks_mut(size).enumerate() {
                    fill(&init, "w", 5, index * size, piece);
                }
                assert_eq!(whole, pieces, "{init:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn name_and_seed_change_the_numbers() {
        let draw = |name, seed| {
            let mut out = [0.0; 4];
            fill(&Init::Normal(1.0), name, seed, 0, &mut out);
            out
        };
        assert_ne!(draw("a", 1), draw("b", 1));
        assert_ne!(draw("a", 1), draw("a", 2));
    }

    #[test]
    fn uniform_numbers_stay_within_their_bound_and_reach_both_ends() {
        let mut out = vec![0.0; 4000];
        fill(&Init::Uniform(0.25), "w", 1, 0, &mut out);
        let (least, most) = out.iter().fold((0.0f32, 0.0f32), |(a, b), &x| (a.min(x), b.max(x)));
        assert!((-0.25..-0.24).contains(&least) && (0.24..=0.25).contains(&most), "{least} {most}");
    }

    #[test]
    fn a_column_of_a_one_hot_matrix_is_one_in_its_row() {
        let mut out = [9.0; 8];
        fill(&Init::OneHot(vec![3, 1]), "w", 5, 0, &mut out);
        assert_eq!(out, [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0]);
    }
}
