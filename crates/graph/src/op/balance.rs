//! The groups of tokens that a balance of experts is counted over.

/// Form of a loss that spreads tokens over experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// Experts that each token goes to, `k`.
    pub chosen: usize,
    /// Whether all sequences of the micro-batch are one group, as in transformers; otherwise each is a group of its
    /// own, and the loss does not depend on the micro-batch.
    pub whole: bool,
    /// Targets with this id carry no loss.
    pub ignore_index: i32,
}
