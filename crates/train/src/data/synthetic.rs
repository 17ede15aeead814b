//! An endless invented stream that a model can learn, for trials and benchmarks without files.
//!
//! Every id has four likely successors, drawn by a hash of (seed, id), which follow it with
//! probabilities 1/2, 1/4, 1/8 and 1/8. A model that has learned the table reaches a loss of
//! (1.75 bits) 1.213 nats; one that knows nothing has ln(vocabulary). Successors may coincide, which
//! lowers the floor a little in small vocabularies. Sequence `i` is a function of (seed, i) alone, and
//! is one document.

use plimsoll_exec::random::{Stream, name_hash};

use super::{DataError, Rows, check_seq_len};

/// A seeded Markov chain over a model's vocabulary.
#[derive(Clone, Debug)]
pub struct Synthetic {
    seed: u64,
    vocabulary: u32,
    seq_len: usize,
    successors: Stream,
}

impl Synthetic {
    /// A source of sequences of `seq_len` ids below `vocabulary`.
    pub fn new(seed: u64, vocabulary: usize, seq_len: usize) -> Result<Synthetic, DataError> {
        check_seq_len(seq_len)?;
        // With one id there is nothing to predict; above i32 there are no ids.
        let ids = u32::try_from(vocabulary).ok().filter(|ids| (2..=1 << 31).contains(ids));
        let ids = ids.ok_or(DataError::Vocabulary { vocabulary, needed: 2 })?;
        let successors = Stream::new(seed, name_hash("data.synthetic.successors"), 0);
        Ok(Synthetic { seed, vocabulary: ids, seq_len, successors })
    }

    /// Positions in a sequence.
    pub fn seq_len(&self) -> usize {
        self.seq_len
    }

    pub(super) fn fill_row(&self, index: u64, row: Rows<'_>) {
        let walk = Stream::new(self.seed, name_hash("data.synthetic.walk"), (index >> 32) as u32);
        let row_of_stream = index as u32;
        // Element 0 chooses the first id, element t + 1 the id after position t.
        let mut id = self.scale(walk.bits(row_of_stream, 0));
        for (position, (token, target)) in row.tokens.iter_mut().zip(row.targets).enumerate() {
            *token = id as i32;
            id = self.after(id, walk.bits(row_of_stream, position as u32 + 1));
            *target = id as i32;
        }
        row.doc_start.fill(0);
    }

    fn after(&self, id: u32, draw: u32) -> u32 {
        // Leading zeros of random bits: none with probability 1/2, one with 1/4, two with 1/8.
        let choice = draw.leading_zeros().min(3);
        self.scale(self.successors.bits(id, choice))
    }

    /// Maps 32 random bits onto the vocabulary without a division.
    fn scale(&self, bits: u32) -> u32 {
        ((u64::from(bits) * u64::from(self.vocabulary)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Sequence, Source};
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_sequence_is_a_function_of_seed_and_index() {
        assert_eq!(sequence(1, 5), sequence(1, 5));
        assert_ne!(sequence(1, 5), sequence(1, 6));
        assert_ne!(sequence(1, 5), sequence(2, 5));
        assert_ne!(sequence(1, 5), sequence(1, 5 + (1 << 32)));
    }

    #[test]
    fn targets_are_the_next_tokens_and_the_row_is_one_document() {
        let sequence = sequence(1, 0);
        assert_eq!(sequence.targets[..63], sequence.tokens[1..]);
        assert_eq!(sequence.doc_start, vec![0; 64]);
    }

    #[test]
    fn small_and_large_vocabularies_are_kept_to_and_used() {
        for vocabulary in [2, 50_000] {
            let mut source = Source::Synthetic(Synthetic::new(4, vocabulary, 512).unwrap());
            let mut sequence = Sequence::with_positions(512);
            source.fill(0, 9, &mut sequence).unwrap();
            assert!(
                sequence.tokens.iter().chain(&sequence.targets).all(|id| (0..vocabulary as i32).contains(id))
            );
        }
    }

    #[test]
    fn each_id_is_followed_by_few_ids_and_half_the_time_by_one_of_them() {
        let mut follows: BTreeMap<i32, BTreeMap<i32, u32>> = BTreeMap::new();
        for index in 0..2000 {
            let sequence = sequence(3, index);
            for (&token, &target) in sequence.tokens.iter().zip(&sequence.targets) {
                *follows.entry(token).or_default().entry(target).or_default() += 1;
            }
        }
        assert!(follows.len() > 50, "the chain is stuck in {} ids", follows.len());
        for (token, next) in follows {
            let (total, most) = (next.values().sum::<u32>(), *next.values().max().unwrap());
            assert!(next.len() <= 4, "{token} has {} successors", next.len());
            assert!(total < 200 || most * 5 > total * 2, "{token} is not predictable: {next:?}");
        }
    }

    #[test]
    fn a_vocabulary_of_one_is_refused() {
        let fault = Synthetic::new(0, 1, 8).unwrap_err().to_string();
        assert!(fault.contains("vocabulary of 2 or more"), "{fault}");
    }

    fn sequence(seed: u64, index: u64) -> Sequence {
        let mut source = Source::Synthetic(Synthetic::new(seed, 100, 64).unwrap());
        let mut sequence = Sequence::with_positions(64);
        source.fill(0, index, &mut sequence).unwrap();
        sequence
    }
}
