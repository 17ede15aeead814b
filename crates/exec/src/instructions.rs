//! The instruction paths of the CPU's kernels, each a fact of a run.
//!
//! ```text
//! portable      every processor; multiplications and additions round separately
//! avx2          vectors of 8 floats; products fuse a multiplication with its addition, which rounds once
//! avx512        vectors of 16 floats
//! avx512-bf16   as avx512, and products of bf16 by bf16 multiply two pairs of numbers at once
//! ```
//!
//! One path gives the same bits on every machine that has it. Different paths may differ in the last bit of a sum,
//! depending on fused operations. `avx512-bf16` differs from `avx512` only for numbers below 2⁻¹²⁶, which its products
//! take as zero. So a device reports its path, a checkpoint records it, and a lower one can be forced.

use std::fmt;
use std::str::FromStr;

use crate::ExecError;

/// An instruction path; a later one is faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Instructions {
    /// Instructions that every processor has.
    Portable,
    /// AVX2 with fused multiply-add.
    Avx2,
    /// AVX-512: foundation, bytes and words, double and quad words, short vectors.
    Avx512,
    /// The same, with products of bf16 by `vdpbf16ps`.
    Avx512Bf16,
}

impl Instructions {
    /// Every path, the fastest last.
    pub const ALL: [Instructions; 4] =
        [Instructions::Portable, Instructions::Avx2, Instructions::Avx512, Instructions::Avx512Bf16];

    /// The fastest path of this machine.
    pub fn fastest() -> Instructions {
        let here = Instructions::ALL.into_iter().rev().find(|path| path.is_here());
        here.unwrap_or(Instructions::Portable)
    }

    /// Every path of this machine, the fastest last.
    pub fn available() -> Vec<Instructions> {
        Instructions::ALL.into_iter().filter(|path| path.is_here()).collect()
    }

    /// The name of the path, as users type it.
    pub fn name(self) -> &'static str {
        match self {
            Instructions::Portable => "portable",
            Instructions::Avx2 => "avx2",
            Instructions::Avx512 => "avx512",
            Instructions::Avx512Bf16 => "avx512-bf16",
        }
    }

    /// Whether this machine's processor has them. The standard library caches its answers.
    #[cfg(target_arch = "x86_64")]
    pub fn is_here(self) -> bool {
        use std::arch::is_x86_feature_detected as has;
        match self {
            Instructions::Portable => true,
            Instructions::Avx2 => has!("avx2") && has!("fma"),
            Instructions::Avx512 => {
                Instructions::Avx2.is_here()
                    && has!("avx512f")
                    && has!("avx512vl")
                    && has!("avx512bw")
                    && has!("avx512dq")
            }
            Instructions::Avx512Bf16 => Instructions::Avx512.is_here() && has!("avx512bf16"),
        }
    }

    /// Whether this machine's processor has these instructions.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_here(self) -> bool {
        self == Instructions::Portable
    }

    /// Itself, if this machine has it.
    ///
    /// # Errors
    ///
    /// Otherwise, with the paths that this machine has.
    pub fn checked(self) -> Result<Instructions, ExecError> {
        if self.is_here() {
            return Ok(self);
        }
        Err(ExecError::Unsupported(format!(
            "this processor has no {self} instructions; it has {}",
            listed(&Instructions::available())
        )))
    }
}

impl fmt::Display for Instructions {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Instructions {
    type Err = ExecError;

    fn from_str(name: &str) -> Result<Instructions, ExecError> {
        let known = Instructions::ALL.into_iter().find(|path| path.name() == name);
        known.ok_or_else(|| {
            let all = listed(&Instructions::ALL);
            ExecError::Unsupported(format!("no instructions are called `{name}`; known are {all}"))
        })
    }
}

fn listed(paths: &[Instructions]) -> String {
    paths.iter().map(|path| path.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_names_and_unknown_or_absent_ones_get_a_list() {
        for path in Instructions::ALL {
            assert_eq!(path.to_string().parse::<Instructions>().unwrap(), path);
        }
        let why = "neon".parse::<Instructions>().unwrap_err().to_string();
        assert!(why.contains("`neon`") && why.contains("portable, avx2, avx512, avx512-bf16"), "{why}");
        for absent in Instructions::ALL.into_iter().filter(|path| !path.is_here()) {
            let why = absent.checked().unwrap_err().to_string();
            assert!(why.contains(absent.name()) && why.contains("portable"), "{why}");
        }
    }

    #[test]
    fn the_fastest_path_is_the_last_of_those_that_are_here_and_portable_always_is() {
        let here = Instructions::available();
        assert_eq!(
            (here.first(), here.last()),
            (Some(&Instructions::Portable), Some(&Instructions::fastest()))
        );
        assert!(here.is_sorted());
    }
}
