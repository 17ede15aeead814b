//! Products whose result is stored in bf16: some rows at a time are multiplied in f32, in scratch, and rounded once.
//!
//! bf16 operands are multiplied directly if the instructions can, and otherwise widened when they are packed, so that
//! their product takes no longer than one of f32. An addend is one pass over the result while it lies in a cache. The
//! second factor is packed once for all rows if scratch holds it whole, and otherwise once for each chunk. Every
//! element is one chain of multiply-adds over `k` for any number of rows at a time, so scratch changes no bit.

use half::bf16;
use plimsoll_plan::Workspace;

use super::element::{self, add_rounded};
use super::lanes::PIECE;
use super::matmul::{self, Extents, Factors, Start};
use super::split;

/// Rows at once in the smallest workspace.
const FEWEST_ROWS: usize = 16;
/// Beyond this many rows at once, more gain little: packing the second factor once for each is then a few percent.
const MOST_ROWS: usize = 256;
/// Floats set aside to begin the rows at a cache line.
const LINE: usize = 16;

/// First value of the sums of a rounded product, or the addend.
#[derive(Clone, Copy)]
pub(super) enum Begin<'a> {
    /// Zero.
    Zero,
    /// The same row for every row.
    Bias(&'a [f32]),
    /// A matrix of the result's extents.
    Matrix(&'a [bf16]),
    /// The numbers in the result's place.
    Kept,
    /// Zero; in the end the sums are added to the numbers already in the result's place, as for a gradient.
    Added,
}

/// Scratch of a product that is rounded, or else of one that is not.
pub(super) fn workspace(extents: Extents, rounded: bool) -> Workspace {
    let Workspace { least, best } = matmul::workspace(extents);
    if !rounded {
        return Workspace { least, best };
    }
    let rows = |most: usize| (4 * (most.min(extents.m) * extents.n + LINE)) as u64;
    Workspace { least: least + rows(FEWEST_ROWS), best: best + rows(MOST_ROWS) }
}

impl Factors<'_> {
    /// `c = begin + a·b`, each element rounded once.
    pub(super) fn rounded(self, begin: Begin, c: &mut [bf16], scratch: &mut [f32]) {
        let Extents { m, n, k } = self.extents;
        if m * n == 0 {
            return;
        }
        let rows = self.rows_at_once(scratch.len());
        let at = (scratch.len() - rows * n) / LINE * LINE;
        let (packing, sums) = scratch.split_at_mut(at);
        let mut packed = false;
        for (chunk, c) in c.chunks_mut(rows * n).enumerate() {
            let sums = &mut sums[..c.len()];
            let start = begin.load(chunk * rows * n, c, sums);
            let extents = Extents { m: c.len() / n, n, k };
            let factors = Factors { extents, a: self.a.from(chunk * rows, 0), b: self.b };
            packed = factors.product_again(start, sums, packing, packed);
            let adds = matches!(begin, Begin::Added);
            split::chunks_with_scratch((c, PIECE), (sums, PIECE), |_, c, sums| {
                if adds { add_rounded(sums, c) } else { element::round(sums, c) }
            });
        }
    }

    fn rows_at_once(&self, scratch: usize) -> usize {
        let Extents { m, n, .. } = self.extents;
        let Workspace { least, best } = matmul::workspace(self.extents);
        let most = MOST_ROWS.min(m);
        if scratch >= best as usize / 4 + most * n + LINE {
            return most;
        }
        let rows = scratch.saturating_sub(least as usize / 4 + LINE) / n;
        assert!(rows > 0, "the workspace of a rounded product is too small");
        rows.min(most)
    }
}

impl<'a> Begin<'a> {
    /// Loads the start values of the sums of some rows, which are elements `from …` of the result and now lie in `c`.
    fn load(self, from: usize, c: &[bf16], sums: &mut [f32]) -> Start<'a> {
        let addend = match self {
            Begin::Zero | Begin::Added => return Start::Zero,
            Begin::Bias(bias) => return Start::Bias(bias),
            Begin::Matrix(matrix) => &matrix[from..][..c.len()],
            Begin::Kept => c,
        };
        split::chunks([(sums, PIECE)], |piece, [sums]| {
            element::widen(&addend[piece * PIECE..][..sums.len()], sums);
        });
        Start::Kept
    }
}
