//! The 256 numbers that an 8-bit moment may hold, and the search for the nearest of them.
//!
//! The tables follow Dettmers' dynamic types ("8-bit Optimizers via Block-wise Quantization", 2022): seven
//! decades from 10⁻⁶ to 1, each cut into equal parts whose middles are entries, the number of parts doubling
//! from decade to decade; then 0 and 1. The signed table gives half its entries to negative numbers.
//!
//! ```text
//! signed     ±1 entry in 10⁻⁷…10⁻⁶   ±2 in 10⁻⁶…10⁻⁵   …   ±64 in 0.1…1     254 and {0, 1}
//! unsigned    2 entries               4                 …   128
//! ```

use std::sync::LazyLock;

/// Entries of a table.
pub const COUNT: usize = 256;
const DECADES: usize = 7;

/// The numbers of one dynamic type.
#[derive(Debug)]
pub struct Codes {
    /// The number that each code stands for, ascending.
    pub numbers: [f32; COUNT],
    /// Halfway between each number and the next; the last entry is infinite.
    middles: [f32; COUNT],
}

/// For first moments: −1 … 1.
pub static SIGNED: LazyLock<Codes> = LazyLock::new(|| Codes::new(true));
/// For second moments: 0 … 1.
pub static UNSIGNED: LazyLock<Codes> = LazyLock::new(|| Codes::new(false));

impl Codes {
    fn new(signed: bool) -> Codes {
        let mut numbers = [0.0; COUNT];
        numbers[1] = 1.0;
        let mut filled = 2;
        for decade in 0..DECADES {
            let unit = 0.1f64.powi((DECADES - 1 - decade) as i32);
            let parts = 1usize << (decade + usize::from(!signed));
            for part in 0..parts {
                let number = (unit * (0.1 + 0.9 * (part as f64 + 0.5) / parts as f64)) as f32;
                for number in [number, -number].into_iter().take(1 + usize::from(signed)) {
                    numbers[filled] = number;
                    filled += 1;
                }
            }
        }
        numbers.sort_unstable_by(f32::total_cmp);
        Codes::of(&numbers)
    }

    /// The type of these numbers, which ascend.
    pub(crate) fn of(numbers: &[f32; COUNT]) -> Codes {
        let mut middles = [f32::INFINITY; COUNT];
        for (middle, pair) in middles.iter_mut().zip(numbers.windows(2)) {
            *middle = 0.5 * (pair[0] + pair[1]);
        }
        Codes { numbers: *numbers, middles }
    }

    /// The code of the entry nearest to `x`, the lower one when two are equally near.
    #[inline]
    pub fn nearest(&self, x: f32) -> u8 {
        let mut code = 0;
        for half in [128, 64, 32, 16, 8, 4, 2, 1] {
            code += if x > self.middles[code + half - 1] { half } else { 0 };
        }
        code as u8
    }

    /// The code of a number that must not become zero: that of the least positive entry or above. Zero has its
    /// own.
    #[inline]
    pub fn nearest_positive(&self, x: f32) -> u8 {
        let code = self.nearest(x);
        code + u8::from(x > 0.0 && self.numbers[usize::from(code)] <= 0.0)
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "the very entries are meant")]
mod tests {
    use super::*;

    #[test]
    fn the_tables_hold_what_was_published() {
        let (signed, unsigned) = (&SIGNED.numbers, &UNSIGNED.numbers);
        assert_eq!((signed[127], signed[255], unsigned[0], unsigned[255]), (0.0, 1.0, 0.0, 1.0));
        // The least decade has one signed part, 10⁻⁶·(0.1 … 1), and two unsigned ones.
        assert_eq!((signed[126], signed[128]), (-5.5e-7, 5.5e-7));
        assert_eq!((unsigned[1], unsigned[2]), (3.25e-7, 7.75e-7));
        // The greatest decade has 64 signed parts and 128 unsigned ones; its highest entry lies half a part below 1.
        assert_eq!((signed[0], signed[254]), (-0.992_968_75, 0.992_968_75));
        assert_eq!(unsigned[254], 0.996_484_4);
        for table in [signed, unsigned] {
            assert!(table.windows(2).all(|pair| pair[0] < pair[1]), "256 different numbers, ascending");
        }
    }

    #[test]
    fn the_nearest_is_the_one_a_search_through_all_finds() {
        for codes in [&*SIGNED, &*UNSIGNED] {
            for step in -40_000..=40_000 {
                let x = (step as f32 / 40_000.0).powi(3);
                let distance = |code: usize| (codes.numbers[code] - x).abs();
                let best = (0..COUNT).min_by(|&a, &b| distance(a).total_cmp(&distance(b))).unwrap();
                let found = usize::from(codes.nearest(x));
                assert!(found == best || distance(found) <= distance(best) + 1e-7 * x.abs(), "{x}: {found}");
            }
        }
    }

    #[test]
    fn what_is_positive_stays_positive() {
        assert_eq!(UNSIGNED.nearest(1e-9), 0);
        assert_eq!(UNSIGNED.nearest_positive(1e-9), 1);
        assert_eq!(UNSIGNED.nearest_positive(0.0), 0);
        assert_eq!(UNSIGNED.nearest_positive(1.0), 255);
    }
}
