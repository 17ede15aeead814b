//! The projection of a random subspace: to which coordinate each element of a parameter belongs, and with which sign.
//!
//! ```text
//! elements      0 1 2 3 4 │ 5 6 7 8 9 │ 10 …        blocks of d = 5
//! coordinates   3 4 0 1 2 │ 1 2 3 4 0 │             each block turned by a random number: 3, 1, …
//! ```
//!
//! Every coordinate has one element of each block, so columns of the projection are orthogonal and, but for the last block,
//! of one length. Nothing is stored: turns and signs are functions of the stream and of the element. A sign takes one random
//! bit.

use crate::random::{Stream, place};

/// Elements whose signs are the bits of one random number.
const WORD: usize = 32;

/// The projection of one parameter.
#[derive(Clone, Copy, Debug)]
pub struct Projection {
    signs: Stream,
    turns: Stream,
    dimension: usize,
}

impl Projection {
    /// The projection that belongs to `stream`, onto `dimension` coordinates, of which there is at least one.
    pub fn new(stream: u64, dimension: usize) -> Projection {
        let dimension = dimension.max(1);
        Projection { signs: Stream::new(0, stream, 0), turns: Stream::new(0, stream, 1), dimension }
    }

    /// The coordinate of the first element of a block.
    fn turn(&self, block: usize) -> usize {
        let (row, element) = place(block);
        ((u64::from(self.turns.bits(row, element)) * self.dimension as u64) >> 32) as usize
    }

    /// The coordinate of an element.
    pub(crate) fn coordinate(&self, element: usize) -> usize {
        (element % self.dimension + self.turn(element / self.dimension)) % self.dimension
    }

    /// Whether an element has the sign −1.
    pub(crate) fn is_negative(&self, element: usize) -> bool {
        let (row, word) = place(element / WORD);
        self.signs.bits(row, word) >> (element % WORD) & 1 == 1
    }

    /// Adds the coordinates of elements `first …` of the parameter, each with its sign.
    pub fn add(&self, coordinates: &[f32], first: usize, numbers: &mut [f32]) {
        let mut moved = [0.0; 256];
        for (at, numbers) in (first..).step_by(moved.len()).zip(numbers.chunks_mut(moved.len())) {
            let moved = &mut moved[..numbers.len()];
            self.runs(at, moved.len(), |from, to, count| {
                moved[from..from + count].copy_from_slice(&coordinates[to..to + count]);
            });
            self.sign(at, moved);
            numbers.iter_mut().zip(moved).for_each(|(number, moved)| *number += *moved);
        }
    }

    /// Adds elements `first …` to their coordinates in `sums`; the elements get their signs.
    pub(crate) fn gather(&self, first: usize, numbers: &mut [f32], sums: &mut [f32]) {
        self.sign(first, numbers);
        self.runs(first, numbers.len(), |from, to, count| {
            sums[to..to + count].iter_mut().zip(&numbers[from..]).for_each(|(sum, number)| *sum += number);
        });
    }

    /// Calls `each` for runs of neighbours among elements `first … first + count`: where a run begins among them, its first
    /// coordinate, and its length.
    fn runs(&self, first: usize, count: usize, mut each: impl FnMut(usize, usize, usize)) {
        let mut done = 0;
        while done < count {
            let element = first + done;
            let (block, inside) = (element / self.dimension, element % self.dimension);
            let turn = self.turn(block);
            let mut left = (self.dimension - inside).min(count - done);
            let mut coordinate = inside + turn;
            // A block is two runs: up to the last coordinate, and from the first one on.
            while left > 0 {
                coordinate %= self.dimension;
                let run = left.min(self.dimension - coordinate);
                each(done, coordinate, run);
                (done, left, coordinate) = (done + run, left - run, coordinate + run);
            }
        }
    }

    /// Gives elements `first …` their signs.
    fn sign(&self, first: usize, numbers: &mut [f32]) {
        let mut done = 0;
        while done < numbers.len() {
            let (word, bit) = ((first + done) / WORD, (first + done) % WORD);
            let count = (WORD - bit).min(numbers.len() - done);
            let (row, element) = place(word);
            let bits = self.signs.bits(row, element) >> bit;
            for (index, number) in numbers[done..done + count].iter_mut().enumerate() {
                *number = f32::from_bits(number.to_bits() ^ (bits >> index) << 31);
            }
            done += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_each_coordinate_once_and_turns_and_signs_are_even() {
        let projection = Projection::new(77, 10);
        let mut turned = [0; 10];
        for block in 0..1000 {
            let coordinates = (10 * block..10 * block + 10).map(|element| projection.coordinate(element));
            let mut coordinates: Vec<usize> = coordinates.collect();
            turned[coordinates[0]] += 1;
            coordinates.sort_unstable();
            assert_eq!(coordinates, (0..10).collect::<Vec<_>>());
        }
        // 1000 draws of one in ten: each count has mean 100 and standard deviation 9.5.
        assert!(turned.iter().all(|&count| (60..=140).contains(&count)), "{turned:?}");
        let negative = (0..10_000).filter(|&element| projection.is_negative(element)).count();
        assert!((4800..=5200).contains(&negative), "{negative}");
    }

    #[test]
    fn pieces_of_any_size_are_moved_and_gathered_as_element_by_element() {
        for dimension in [1, 7, 300, 2000] {
            let projection = Projection::new(5, dimension);
            let coordinates: Vec<f32> = (0..dimension).map(|i| 1.0 + i as f32).collect();
            let sign = |element| if projection.is_negative(element) { -1.0 } else { 1.0 };
            let moved: Vec<f32> =
                (0..1000).map(|e| sign(e) * coordinates[projection.coordinate(e)]).collect();
            let numbers: Vec<f32> = (0..1000).map(|i| (i % 13) as f32).collect();
            let mut sums = vec![0.0; dimension];
            for (element, number) in numbers.iter().enumerate() {
                sums[projection.coordinate(element)] += sign(element) * number;
            }
            for piece in [1, 33, 512, 1000] {
                let (mut found, mut gathered) = (vec![0.0; 1000], vec![0.0; dimension]);
                let mut own = numbers.clone();
                for (index, part) in found.chunks_mut(piece).enumerate() {
                    projection.add(&coordinates, index * piece, part);
                }
                for (index, part) in own.chunks_mut(piece).enumerate() {
                    projection.gather(index * piece, part, &mut gathered);
                }
                assert_eq!(found, moved, "{dimension} in pieces of {piece}");
                assert_eq!(gathered, sums, "{dimension} in pieces of {piece}");
            }
        }
    }
}
