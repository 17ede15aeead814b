//! Which pieces of documents share a row.
//!
//! A document becomes pieces of at most a row's length; a row holds whole pieces, so a piece sees the
//! same tokens whatever else is in its row. Best fit, longest first: each piece goes to the fullest row that still has room for it.
//!
//! ```text
//! seq_len 8, pieces of 8 5 4 3 3 1 positions      [8] [5 3] [4 3 1]
//! ```
//!
//! It takes 16 bytes of memory per piece and 4 per row.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::reading;

/// Consecutive positions of one document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Where the piece's first id stands in the cache.
    pub(super) first: u64,
    /// Positions that the piece takes in a row.
    pub(super) len: u32,
    pub(super) document: u32,
}

/// Pieces row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packing {
    pieces: Vec<Piece>,
    /// Where each row ends in `pieces`.
    ends: Vec<u32>,
}

impl Packing {
    /// One piece in every row.
    pub(super) fn apart(pieces: Vec<Piece>) -> Packing {
        let ends = (1..=pieces.len() as u32).collect();
        Packing { pieces, ends }
    }

    /// Packs pieces into as few rows of `seq_len` positions as best fit finds. Rows come in the order of their first
    /// piece, and pieces of a row in their original order.
    pub(super) fn together(pieces: &[Piece], seq_len: usize) -> Packing {
        let mut longest_first: Vec<u32> = (0..pieces.len() as u32).collect();
        longest_first.sort_by_key(|&at| std::cmp::Reverse(pieces[at as usize].len));
        let mut row_of = vec![0u32; pieces.len()];
        let mut rows = 0u32;
        // Rows by the positions they have left.
        let mut open: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for at in longest_first {
            reading::step();
            let len = pieces[at as usize].len;
            let fit = open.range(len..).next().map(|(&left, _)| left);
            let (left, row) = match fit {
                Some(left) => {
                    let rows = open.entry(left).or_default();
                    let row = rows.pop();
                    if rows.is_empty() {
                        open.remove(&left);
                    }
                    (left, row)
                }
                None => (seq_len as u32, None),
            };
            let row = row.unwrap_or_else(|| {
                rows += 1;
                rows - 1
            });
            row_of[at as usize] = row;
            if left > len {
                open.entry(left - len).or_default().push(row);
            }
        }
        gather(pieces, &row_of, rows as usize)
    }

    pub(super) fn rows(&self) -> u64 {
        self.ends.len() as u64
    }

    /// The pieces of a row.
    pub(super) fn row(&self, row: u64) -> &[Piece] {
        let row = row as usize;
        let first = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.pieces[first as usize..self.ends[row] as usize]
    }
}

/// Sorts pieces by row, rows by their first piece.
fn gather(pieces: &[Piece], row_of: &[u32], rows: usize) -> Packing {
    let mut renumbered: Vec<Option<u32>> = vec![None; rows];
    let mut next = 0;
    let mut order: Vec<(u32, u32)> = Vec::with_capacity(pieces.len());
    for (at, &row) in row_of.iter().enumerate() {
        let row = *renumbered[row as usize].get_or_insert_with(|| {
            next += 1;
            next - 1
        });
        order.push((row, at as u32));
    }
    order.sort_unstable();
    let mut ends = vec![0; rows];
    for (end, &(row, _)) in (1..).zip(&order) {
        ends[row as usize] = end;
    }
    Packing { pieces: order.iter().map(|&(_, at)| pieces[at as usize]).collect(), ends }
}

/// Cuts `positions` of the cache, all of one document, into pieces of at most `most`.
pub(super) fn cut(positions: Range<u64>, most: usize, document: u32) -> impl Iterator<Item = Piece> {
    let Range { start, end } = positions;
    (start..end).step_by(most).map(move |first| {
        let len = (end - first).min(most as u64) as u32;
        Piece { first, len, document }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_piece_goes_to_the_fullest_row_with_room_and_rows_keep_the_order_of_the_text() {
        let packing = Packing::together(&pieces(&[5, 8, 3, 4, 3, 1]), 8);
        let rows: Vec<Vec<u32>> =
            (0..packing.rows()).map(|row| packing.row(row).iter().map(|piece| piece.len).collect()).collect();
        assert_eq!(rows, [vec![5, 3], vec![8], vec![4, 3, 1]]);
    }

    #[test]
    fn a_document_longer_than_a_row_is_cut() {
        let cut: Vec<Piece> = cut(100..110, 4, 7).collect();
        assert_eq!(
            cut.iter().map(|piece| (piece.first, piece.len)).collect::<Vec<_>>(),
            [(100, 4), (104, 4), (108, 2)]
        );
        assert!(cut.iter().all(|piece| piece.document == 7));
    }

    proptest! {
        #[test]
        fn every_piece_is_in_one_row_and_no_row_is_too_long(lengths in prop::collection::vec(1u32..=16, 0..200)) {
            let all = pieces(&lengths);
            let packing = Packing::together(&all, 16);
            let mut seen = Vec::new();
            for row in 0..packing.rows() {
                let row = packing.row(row);
                prop_assert!(!row.is_empty() && row.iter().map(|piece| piece.len).sum::<u32>() <= 16);
                prop_assert!(row.is_sorted_by_key(|piece| piece.first));
                seen.extend_from_slice(row);
            }
            seen.sort_by_key(|piece| piece.first);
            prop_assert_eq!(seen, all);
            // If two rows were at most half full, the pieces of one would have been put into the other.
            let filled = |row| packing.row(row).iter().map(|piece| piece.len).sum::<u32>();
            let half_empty = (0..packing.rows()).filter(|&row| filled(row) <= 8).count();
            prop_assert!(half_empty <= 1);
        }
    }

    fn pieces(lengths: &[u32]) -> Vec<Piece> {
        let numbered = lengths.iter().enumerate();
        numbered.map(|(at, &len)| Piece { first: 100 * at as u64, len, document: at as u32 }).collect()
    }
}
