//! How fast each pair of a head turns with its position (Su et al. 2021), and two ways to stretch it.
//!
//! Pair `i` of a head of width `D` turns by `base^(−2i/D)` radians a position. Texts longer than those of the first
//! training are handled by turning slower: all pairs by one factor (Chen et al. 2023), or, as in Llama 3.1, only those
//! that have not completed a turn within the original length:
//!
//! ```text
//! turns in the original length     ≥ high        between          ≤ low
//! frequency                        f         from f to f/factor   f/factor
//! ```
//!
//! Computed in double precision and rounded once. Absent: the stretchings of other families.

use std::f64::consts::TAU;

/// Rotary frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub base: f64,
    /// How pairs are slowed, if they are.
    pub stretch: Option<Stretch>,
}

impl Rope {
    /// Rotary frequencies without any slowing.
    pub fn plain(base: f64) -> Rope {
        Rope { base, stretch: None }
    }
}

/// A slowing of rotary frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stretch {
    /// Every pair alike.
    Linear {
        /// All pairs are slowed by this factor.
        factor: f64,
    },
    /// Llama 3's.
    Llama3 {
        /// The slowest pairs are slowed by this factor.
        factor: f64,
        /// Pairs that turn at most so often in the original length are slowed fully.
        low: f64,
        /// Pairs that turn at least so often are not slowed.
        high: f64,
        /// Positions of the original length.
        original: f64,
    },
}

impl Stretch {
    fn apply(&self, frequency: f64) -> f64 {
        match *self {
            Stretch::Linear { factor } => frequency / factor,
            Stretch::Llama3 { factor, low, high, original } => {
                let turns = original * frequency / TAU;
                // 0 if a pair is slowed fully, 1 if it keeps its speed.
                let share = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                frequency * (share + (1.0 - share) / factor)
            }
        }
    }
}

/// Radians per position of each pair of a head.
pub(crate) fn frequencies(rope: &Rope, head_width: usize) -> Vec<f32> {
    let frequency = |i| rope.base.powf(-2.0 * i as f64 / head_width as f64);
    let stretched = |f: f64| rope.stretch.map_or(f, |stretch| stretch.apply(f));
    (0..head_width / 2).map(|i| stretched(frequency(i)) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_of_llama_3_are_those_of_transformers() {
        let stretch = Stretch::Llama3 { factor: 32.0, low: 1.0, high: 4.0, original: 8192.0 };
        let ours = frequencies(&Rope { base: 500_000.0, stretch: Some(stretch) }, 64);
        assert_eq!(ours.len(), 32);
        // `reference/rope.py` prints these; it computes in single precision.
        for (pair, theirs) in LLAMA_3_2_1B {
            assert!((ours[pair] / theirs - 1.0).abs() < 2e-6, "pair {pair}: {} and {theirs}", ours[pair]);
        }
    }

    const LLAMA_3_2_1B: [(usize, f32); 10] = [
        (0, 1.0),
        (1, 6.636_013e-1),
        (14, 3.211_446e-3),
        (15, 1.290_548e-3),
        (16, 4.295_567e-4),
        (17, 9.708_286e-5),
        (18, 1.946_164e-5),
        (19, 1.291_477e-5),
        (30, 1.419_272e-7),
        (31, 9.418_306e-8),
    ];

    #[test]
    fn without_stretching_frequencies_fall_by_equal_ratios() {
        let plain = frequencies(&Rope::plain(10_000.0), 8);
        let expected = [1.0, 0.1, 0.01, 0.001];
        assert!(plain.iter().zip(expected).all(|(f, e)| (f / e - 1.0_f32).abs() < 1e-6), "{plain:?}");
    }
}
