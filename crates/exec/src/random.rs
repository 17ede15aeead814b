//! Random bits without state: a function of (seed, step, stream, row, element).
//!
//! Philox 4x32 with ten rounds (Salmon et al., 2011). Because nothing is stored, a recomputed dropout
//! draws the mask it drew the first time, and the mask of a row of the global batch does not depend on
//! the micro-batch it travels in.

pub use plimsoll_graph::name_hash;

use crate::box_muller::{cos_sin, ln};

/// Where in the space of random numbers a draw lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    key: [u32; 2],
    step: u32,
}

impl Stream {
    /// The numbers that belong to `name` (see [`name_hash`]) at `step` of the run seeded with `seed`.
    pub fn new(seed: u64, name: u64, step: u32) -> Stream {
        let mixed = seed ^ name.rotate_left(17) ^ name.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Stream { key: [mixed as u32, (mixed >> 32) as u32], step }
    }

    /// The numbers that belong to `name` by the graph's input `rng`: i32 `[seed low, seed high, step, …]`.
    pub fn of_input(rng: &[i32], name: u64) -> Stream {
        let seed = u64::from(rng[0] as u32) | u64::from(rng[1] as u32) << 32;
        Stream::new(seed, name, rng[2] as u32)
    }

    /// The numbers that belong to `name` by a probe, the graph's input `[seed low, seed high, step, direction]`.
    pub fn of_probe(probe: &[i32], name: u64, direction: u32) -> Stream {
        Stream::of_input(probe, name.wrapping_add(u64::from(direction)))
    }

    /// The numbers of a projection: of matrix `matrix` of the parameter `name`, number `projection` of the run whose seed is
    /// in the graph's input `rng`.
    pub fn of_projection(rng: &[i32], name: u64, matrix: usize, projection: u32) -> Stream {
        let name = name.wrapping_add(matrix as u64);
        Stream { step: projection, ..Stream::of_input(rng, name) }
    }

    /// The four numbers of elements `4·group … 4·group + 3` of `row`.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "must be compiled with its caller's vector instructions")]
    pub fn quad(&self, row: u32, group: u32) -> [u32; 4] {
        philox([group, row, self.step, 0], self.key)
    }

    /// The number of one element.
    pub fn bits(&self, row: u32, element: u32) -> u32 {
        self.quad(row, element / 4)[(element % 4) as usize]
    }

    /// The number of one element as a fraction in `0..1` with 24 bits.
    pub fn uniform(&self, row: u32, element: u32) -> f32 {
        unit(self.bits(row, element))
    }

    /// Standard normal numbers of elements `first …`, as [`normal_pair`](Self::normal_pair) gives them. Whole groups are drawn
    /// side by side, so that a caller with vector instructions draws several at once.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "must be compiled with its caller's vector instructions")]
    pub(crate) fn normals(&self, first: usize, numbers: &mut [f32]) {
        let before = numbers.len().min((4 - first % 4) % 4);
        let (head, rest) = numbers.split_at_mut(before);
        self.some_normals(first, head);
        for (at, numbers) in (first + before..).step_by(SIDE_BY_SIDE).zip(rest.chunks_mut(SIDE_BY_SIDE)) {
            let mut drawn = [0.0; SIDE_BY_SIDE];
            self.aligned_normals(at, &mut drawn);
            numbers.copy_from_slice(&drawn[..numbers.len()]);
        }
    }

    /// At most three numbers, all of one group.
    fn some_normals(&self, first: usize, numbers: &mut [f32]) {
        for (at, number) in (first..).zip(numbers) {
            let (row, element) = place(at);
            *number = self.normal_pair(row, element / 2)[at % 2];
        }
    }

    /// The numbers of whole groups; `first` begins one.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "must be compiled with its caller's vector instructions")]
    fn aligned_normals(&self, first: usize, numbers: &mut [f32; SIDE_BY_SIDE]) {
        let (mut radii, mut angles) = ([0; SIDE_BY_SIDE / 2], [0; SIDE_BY_SIDE / 2]);
        for group in 0..SIDE_BY_SIDE / 4 {
            let (row, element) = place(first + 4 * group);
            let [a, b, c, d] = self.quad(row, element / 4);
            (radii[2 * group], angles[2 * group]) = (a, b);
            (radii[2 * group + 1], angles[2 * group + 1]) = (c, d);
        }
        for pair in 0..SIDE_BY_SIDE / 2 {
            let [first, second] = box_muller(radii[pair], angles[pair]);
            (numbers[2 * pair], numbers[2 * pair + 1]) = (first, second);
        }
    }

    /// Two independent standard normal numbers from elements `2·pair` and `2·pair + 1` of `row`.
    pub fn normal_pair(&self, row: u32, pair: u32) -> [f32; 2] {
        let quad = self.quad(row, pair / 2);
        let at = 2 * (pair % 2) as usize;
        box_muller(quad[at], quad[at + 1])
    }
}

/// Row and element of a flat index: row 0 for all states of fewer than 2³² elements.
#[inline(always)]
#[allow(clippy::inline_always, reason = "must be compiled with its caller's vector instructions")]
pub(crate) fn place(index: usize) -> (u32, u32) {
    ((index as u64 >> 32) as u32, index as u32)
}

/// How many numbers are drawn side by side. Must be a multiple of four, the numbers of one group.
const SIDE_BY_SIDE: usize = 64;

/// Box and Muller's pair of normal numbers; 1 − u keeps the logarithm finite.
#[inline(always)]
#[allow(clippy::inline_always, reason = "must be compiled with its caller's vector instructions")]
fn box_muller(first: u32, second: u32) -> [f32; 2] {
    let radius = (-2.0 * ln(1.0 - unit(first))).sqrt();
    cos_sin(std::f32::consts::TAU * unit(second)).map(|part| radius * part)
}

/// The threshold below which 32 random bits mean "dropped" with probability `p`.
pub fn drop_threshold(p: f32) -> u32 {
    (f64::from(p) * 4_294_967_296.0) as u32
}

/// 32 random bits as a fraction in `0..1` with 24 bits.
#[inline(always)]
#[allow(clippy::inline_always, reason = "must be compiled with its caller's vector instructions")]
pub(crate) fn unit(bits: u32) -> f32 {
    (bits >> 8) as f32 * (1.0 / 16_777_216.0)
}

#[inline(always)]
#[allow(clippy::inline_always, reason = "must be compiled with its caller's vector instructions")]
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xd251_1f53;
        let b = u64::from(counter[2]) * 0xcd9e_8d57;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_numbers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let all = u32::MAX;
        assert_eq!(philox([all; 4], [all; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }

    #[test]
    fn normal_numbers_of_a_range_are_those_of_its_pairs() {
        let stream = Stream::new(7, name_hash("w"), 3);
        let mut numbers = [0.0; 150];
        let pairs: Vec<u32> =
            (0..90).flat_map(|pair| stream.normal_pair(0, pair).map(f32::to_bits)).collect();
        for first in [8, 9, 11, 15] {
            stream.normals(first, &mut numbers);
            assert_eq!(numbers.map(f32::to_bits)[..], pairs[first..first + 150]);
        }
    }

    #[test]
    fn normal_numbers_have_mean_zero_and_variance_one() {
        let stream = Stream::new(7, name_hash("w"), 0);
        let draws: Vec<f32> = (0..20_000).flat_map(|pair| stream.normal_pair(0, pair)).collect();
        let mean = draws.iter().sum::<f32>() / draws.len() as f32;
        let variance = draws.iter().map(|x| x * x).sum::<f32>() / draws.len() as f32;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    }
}
