//! The groups of tokens that a balance of experts is counted over.

/// Form of a loss that spreads tokens over experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// Experts that each token goes to, `k`.
    pub chosen: usize,
    /// Whether all sequences of the micro-batch are one group, as transformers has it; else each is a group of its own,
    /// and the micro-batch changes nothing.
    pub whole: bool,
    /// Targets with this id carry no loss.
    pub ignore_index: i32,
}
