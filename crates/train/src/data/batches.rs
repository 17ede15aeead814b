//! Global batches in order, each with its count of valid tokens, cut into micro-batches.
//!
//! ```text
//! epoch of 10 sequences, global batch 4, micro-batch 3 ("·" is a row that is ignored):
//! group 0   [0 1 2] [3 · ·]
//! group 1   [4 5 6] [7 · ·]
//! group 2   [8 9 ·]            the rest of the epoch: a smaller group with a count of its own
//! ```
//!
//! The loss is divided by the valid tokens of the whole group, so they are counted before its first micro-batch is
//! read; for that, every sequence is read twice. Groups never cross an epoch, so the step alone determines its group,
//! and a resumed run only calls [`Batches::go_to`]. Ranks deal the micro-batches of a group out among them.
//! Absent: reading ahead.

use super::{DataError, Rows, Sequence, Source};

/// An endless series of groups over a source.
#[derive(Debug)]
pub struct Batches {
    source: Source,
    global_batch: u64,
    micro_batch: usize,
    /// The number of the next group, counted from 0 over the whole run.
    next: u64,
    /// Where sequences are read to be counted.
    counting: Sequence,
}

/// The sequences of one optimizer step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The pass over the data, counted from 0; always 0 for endless data.
    pub epoch: u64,
    /// Place in the epoch of the group's first sequence.
    pub first: u64,
    /// Sequences in the group: the global batch, or the rest of the epoch.
    pub sequences: u64,
    /// Targets that count in the loss, over all sequences of the group.
    pub valid_tokens: u64,
    /// Micro-batches of the group, an incomplete last one included.
    pub micro_batches: u64,
}

impl Batches {
    /// Groups of `global_batch` sequences, read `micro_batch` rows at a time.
    ///
    /// Panics when either is 0; a configuration is checked before it comes here.
    pub fn new(source: Source, global_batch: u64, micro_batch: usize) -> Batches {
        assert!(global_batch > 0 && micro_batch > 0, "a batch holds at least one sequence");
        let counting = Sequence::with_positions(source.seq_len());
        Batches { source, global_batch, micro_batch, next: 0, counting }
    }

    /// Optimizer steps per epoch; `None` for endless data.
    pub fn steps_per_epoch(&self) -> Option<u64> {
        self.source.sequences_per_epoch().map(|sequences| sequences.div_ceil(self.global_batch))
    }

    /// The source the groups are taken from.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Sequences of a full group.
    pub fn global_batch(&self) -> u64 {
        self.global_batch
    }

    /// Number of groups taken since the beginning: pass it to [`Batches::go_to`] to continue from here.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Continues as if `steps` groups had been taken since the beginning.
    pub fn go_to(&mut self, steps: u64) {
        self.next = steps;
    }

    /// The next group, with its valid tokens counted.
    ///
    /// After an error the same group comes again.
    pub fn next_group(&mut self) -> Result<Group, DataError> {
        Ok(self.next_group_unless(|| false)?.unwrap_or_default())
    }

    /// The next group. If `stopped` becomes true while its tokens are counted, nothing is returned and the same group
    /// comes again.
    pub(crate) fn next_group_unless(
        &mut self,
        stopped: impl Fn() -> bool,
    ) -> Result<Option<Group>, DataError> {
        let (epoch, place) = match self.steps_per_epoch() {
            Some(steps) => (self.next / steps, self.next % steps),
            None => (0, self.next),
        };
        let first = place * self.global_batch;
        let left = self.source.sequences_per_epoch().map_or(u64::MAX, |sequences| sequences - first);
        let sequences = self.global_batch.min(left);

        let mut valid_tokens = 0;
        for index in first..first + sequences {
            if stopped() {
                return Ok(None);
            }
            self.source.fill(epoch, index, &mut self.counting)?;
            valid_tokens += self.counting.rows().valid_tokens();
        }
        self.next += 1;
        let micro_batches = sequences.div_ceil(self.micro_batch as u64);
        Ok(Some(Group { epoch, first, sequences, valid_tokens, micro_batches }))
    }

    /// Reads micro-batch `which` of a group into memory for `micro_batch` rows. Row `r` is row `which × micro_batch +
    /// r` of the global batch; rows past the group's end carry no loss, and a micro-batch past it has only such rows.
    ///
    /// Panics when the memory has another size.
    pub fn read(&mut self, group: &Group, which: u64, mut rows: Rows<'_>) -> Result<(), DataError> {
        let seq_len = self.source.seq_len();
        assert!(
            [rows.tokens.len(), rows.targets.len(), rows.doc_start.len()] == [self.micro_batch * seq_len; 3],
            "a micro-batch needs {} rows of {seq_len} positions",
            self.micro_batch
        );
        for row in 0..self.micro_batch {
            let in_group = which * self.micro_batch as u64 + row as u64;
            let mut memory = rows.row(row, seq_len);
            if in_group < group.sequences {
                self.source.fill_row(group.epoch, group.first + in_group, memory)?;
            } else {
                memory.ignore_from(0, self.source.pad());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{IGNORED, Order, PAD, Synthetic, Text};
    use super::*;
    use crate::scratch::Scratch;

    const SEQ_LEN: usize = 4;
    const SHUFFLED: Order = Order::Shuffled { seed: 8 };

    #[test]
    fn the_rest_of_an_epoch_is_a_smaller_group_and_the_next_epoch_begins_full() {
        let folder = Scratch::new();
        let mut batches = text(&folder, Order::AsWritten, 4, 3);
        // 38 bytes are 40 tokens and 39 targets in 10 sequences: the last has 3.
        assert_eq!(batches.steps_per_epoch(), Some(3));
        let groups: Vec<Group> = (0..4).map(|_| batches.next_group().unwrap()).collect();
        let group = |epoch, first, sequences, valid_tokens, micro_batches| Group {
            epoch,
            first,
            sequences,
            valid_tokens,
            micro_batches,
        };
        assert_eq!(
            groups,
            [group(0, 0, 4, 16, 2), group(0, 4, 4, 16, 2), group(0, 8, 2, 7, 1), group(1, 0, 4, 16, 2)]
        );
    }

    #[test]
    fn micro_batches_hold_every_sequence_once_and_as_many_valid_tokens_as_were_counted() {
        let folder = Scratch::new();
        for (global_batch, micro_batch) in [(1, 1), (4, 3), (4, 2), (3, 5), (100, 4)] {
            let mut batches = text(&folder, SHUFFLED, global_batch, micro_batch);
            let mut valid_in_epoch = 0;
            let mut bytes_seen = Vec::new();
            for _ in 0..batches.steps_per_epoch().unwrap() {
                let group = batches.next_group().unwrap();
                let rows = read_all(&mut batches, &group, micro_batch);
                let valid = rows.iter().flat_map(|row| &row.targets).filter(|&&target| target != IGNORED);
                assert_eq!(valid.count() as u64, group.valid_tokens);
                valid_in_epoch += group.valid_tokens;
                bytes_seen
                    .extend(rows.iter().flat_map(|row| row.tokens.clone()).filter(|&token| token < 256));
            }
            assert_eq!(valid_in_epoch, 39);
            bytes_seen.sort_unstable();
            assert_eq!(bytes_seen, (0..38).collect::<Vec<i32>>(), "{global_batch}, {micro_batch}");
        }
    }

    #[test]
    fn rows_without_a_sequence_are_ignored_as_a_whole() {
        let folder = Scratch::new();
        let mut batches = text(&folder, SHUFFLED, 4, 3);
        let group = batches.next_group().unwrap();
        let last = &read_all(&mut batches, &group, 3)[1];
        assert_eq!(last.tokens[SEQ_LEN..], [PAD; 2 * SEQ_LEN]);
        assert_eq!(last.targets[SEQ_LEN..], [IGNORED; 2 * SEQ_LEN]);
        assert_eq!(last.doc_start[SEQ_LEN..], [0; 2 * SEQ_LEN]);
    }

    #[test]
    fn the_size_of_a_micro_batch_does_not_change_which_rows_a_group_has() {
        let folder = Scratch::new();
        let rows_with = |micro_batch: usize| {
            let mut batches = text(&folder, SHUFFLED, 4, micro_batch);
            let group = batches.next_group().unwrap();
            let rows = read_all(&mut batches, &group, micro_batch);
            let tokens: Vec<i32> = rows.into_iter().flat_map(|row| row.tokens).collect();
            tokens[..4 * SEQ_LEN].to_vec()
        };
        assert_eq!(rows_with(1), rows_with(4));
        assert_eq!(rows_with(3), rows_with(4));
    }

    #[test]
    fn going_to_a_step_gives_the_group_that_counting_there_gives() {
        let folder = Scratch::new();
        let mut batches = text(&folder, SHUFFLED, 4, 2);
        let counted: Vec<Group> = (0..8).map(|_| batches.next_group().unwrap()).collect();
        for step in [5, 0, 7, 2] {
            batches.go_to(step);
            assert_eq!(batches.next_group().unwrap(), counted[step as usize]);
        }
    }

    #[test]
    fn endless_data_has_full_groups_for_ever_and_pads_within_its_vocabulary() {
        let source = Source::Synthetic(Synthetic::new(1, 10, SEQ_LEN).unwrap());
        let mut batches = Batches::new(source, 3, 2);
        batches.go_to(1_000_000);
        let group = batches.next_group().unwrap();
        assert_eq!((group.epoch, group.first, group.sequences, group.valid_tokens), (0, 3_000_000, 3, 12));
        let last = &read_all(&mut batches, &group, 2)[1];
        assert!(last.tokens.iter().all(|&token| token < 10));
        assert_eq!(last.targets[SEQ_LEN..], [IGNORED; SEQ_LEN]);
    }

    /// A file of the bytes 0 to 37, each of them once.
    fn text(folder: &Scratch, order: Order, global_batch: u64, micro_batch: usize) -> Batches {
        let path = folder.write("data.txt", (0..38).collect::<Vec<u8>>());
        let text = Text::open(&path, SEQ_LEN, 259, order).unwrap();
        Batches::new(Source::Text(text), global_batch, micro_batch)
    }

    fn read_all(batches: &mut Batches, group: &Group, micro_batch: usize) -> Vec<Sequence> {
        let mut read = |which| {
            let mut rows = Sequence::with_positions(micro_batch * SEQ_LEN);
            batches.read(group, which, rows.rows()).unwrap();
            rows
        };
        (0..group.micro_batches).map(&mut read).collect()
    }
}
