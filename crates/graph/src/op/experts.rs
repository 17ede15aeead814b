//! How copies of tokens are sorted into rows, expert by expert.

use crate::Shape;

/// Form of a sort of token copies by expert.
///
/// ```text
/// tile 4        expert 0          expert 1          expert 2
/// rows          a c f · │         │ b d e g h · · · │         · padding, whose work is skipped
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sorting {
    /// Number of experts `E`.
    pub experts: usize,
    /// An expert's rows begin at a multiple of this; 1 leaves no padding.
    pub tile: usize,
    /// The most copies of one sequence that one expert takes, where a sequence is an index of the first of three or
    /// more axes; unlimited if absent.
    pub capacity: Option<usize>,
}

impl Sorting {
    /// Rows that hold the copies of `indices` under any routing: all of them, or as many as the capacity admits, and
    /// `tile − 1` of padding for each expert.
    pub fn rows(self, indices: Shape) -> usize {
        let most = self.capacity.map_or(usize::MAX, |most| {
            most.saturating_mul(self.experts).saturating_mul(self.sequences(indices))
        });
        indices.elements().min(most) + self.experts * (self.tile - 1)
    }

    /// Number of sequences to which a capacity applies separately.
    pub fn sequences(self, indices: Shape) -> usize {
        if indices.len() > 2 { indices[0] } else { 1 }
    }
}
