//! Validation data: always the same sequences, as one group with one divisor.
//!
//! The losses of all its micro-batches are divided by the valid targets of the whole group. So their sum is the mean
//! loss, and the size of a micro-batch changes it only by the order of a sum.

use crate::data::{Batches, DataError, Group, Rows, Source};

/// Sequences of endless data to evaluate on, unless another number is stated.
const MADE_UP: u64 = 64;
/// Where in endless data validation begins: no run trains that far.
const FAR: u64 = 1 << 48;

/// A fixed set of sequences.
#[derive(Debug)]
pub struct ValidationSet {
    batches: Batches,
    /// The number of its group among those of the source.
    number: u64,
    /// Counted once: the files do not change during a run.
    group: Option<Group>,
}

impl ValidationSet {
    /// The first `most` sequences of a source (all, where that is not stated), in micro-batches of `rows` rows.
    pub fn new(source: Source, rows: usize, most: Option<u64>) -> ValidationSet {
        let present = source.sequences_per_epoch();
        let count = most.or(present).unwrap_or(MADE_UP).min(present.unwrap_or(u64::MAX)).max(1);
        let number = if present.is_none() { FAR / count } else { 0 };
        ValidationSet { batches: Batches::new(source, count, rows), number, group: None }
    }

    /// Its sequences, with their valid tokens counted; `None` if `stopped` becomes true meanwhile.
    ///
    /// # Errors
    ///
    /// When the data cannot be read.
    pub fn group(&mut self, stopped: impl Fn() -> bool) -> Result<Option<Group>, DataError> {
        if self.group.is_none() {
            self.batches.go_to(self.number);
            self.group = self.batches.next_group_unless(stopped)?;
        }
        Ok(self.group)
    }

    /// Reads micro-batch `which` of the group.
    ///
    /// # Errors
    ///
    /// When the data cannot be read.
    pub fn read(&mut self, group: &Group, which: u64, rows: Rows<'_>) -> Result<(), DataError> {
        self.batches.read(group, which, rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Order, Synthetic, Text};
    use crate::scratch::Scratch;

    #[test]
    fn all_of_a_text_or_the_first_of_it_whatever_the_micro_batch() {
        let folder = Scratch::new();
        let path = folder.write("data.txt", (0..38).collect::<Vec<u8>>());
        let group = |rows, most| {
            let source = Source::Text(Text::open(&path, 4, 259, Order::AsWritten).unwrap());
            let mut validation = ValidationSet::new(source, rows, most);
            assert_eq!(validation.group(|| true).unwrap(), None, "stopped");
            let group = validation.group(|| false).unwrap().unwrap();
            assert_eq!(validation.group(|| false).unwrap(), Some(group), "the same every time");
            (group.first, group.sequences, group.valid_tokens, group.micro_batches)
        };
        assert_eq!(group(3, None), (0, 10, 39, 4));
        assert_eq!(group(4, Some(6)), (0, 6, 24, 2));
        assert_eq!(group(1, Some(99)), (0, 10, 39, 10));
    }

    #[test]
    fn made_up_validation_lies_beyond_all_training() {
        let source = Source::Synthetic(Synthetic::new(1, 10, 4).unwrap());
        let group = ValidationSet::new(source, 2, Some(6)).group(|| false).unwrap().unwrap();
        assert_eq!((group.sequences, group.valid_tokens), (6, 24));
        assert!(group.first > 1 << 47, "{}", group.first);
    }
}
