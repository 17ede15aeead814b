//! Rows as a graph reads them: its inputs by name, and none it does not have.
//!
//! | input | what it is |
//! |---|---|
//! | `tokens`, `targets` | as the rows have them |
//! | `targets` of one number per row | the label, which stands at the row's first position |
//! | `doc_start` | where documents of one row are kept apart |
//! | `positions` | counted from the start of each document, where positions are learned |
//! | `present` | 1 for a token and 0 for padding, where experts are counted |
//! | `scale` | one over the targets that count, of the whole step |

use plimsoll_exec::Data;
use plimsoll_graph::Type;

use super::{IGNORED, Rows, Sequence};

/// Memory for one micro-batch, taken once.
#[derive(Debug)]
pub struct Feed {
    seq_len: usize,
    rows: Sequence,
    documents: bool,
    positions: Option<Vec<i32>>,
    present: Option<Vec<i32>>,
    labels: Option<Vec<i32>>,
}

/// Inputs of one micro-batch.
#[derive(Debug)]
pub struct Inputs<'a> {
    all: [(&'static str, Data<'a>); 5],
    count: usize,
}

impl<'a> Inputs<'a> {
    /// Names and values, as a run takes them.
    pub fn as_slice(&self) -> &[(&'static str, Data<'a>)] {
        &self.all[..self.count]
    }
}

impl Feed {
    /// Memory for `rows` rows of `seq_len` positions, for a graph whose inputs `type_of` knows.
    pub fn new(rows: usize, seq_len: usize, type_of: impl Fn(&str) -> Option<Type>) -> Feed {
        let positions = rows * seq_len;
        let per_row = |ty: Type| ty.shape.elements() == rows && seq_len > 1;
        Feed {
            seq_len,
            rows: Sequence::with_positions(positions),
            documents: type_of("doc_start").is_some(),
            positions: type_of("positions").map(|_| vec![0; positions]),
            present: type_of("present").map(|_| vec![0; positions]),
            labels: type_of("targets").is_some_and(per_row).then(|| vec![0; rows]),
        }
    }

    /// Lends the rows to `fill`, then derives the rest from them.
    ///
    /// # Errors
    ///
    /// The errors of `fill`.
    pub fn fill<E>(&mut self, fill: impl FnOnce(Rows<'_>) -> Result<(), E>) -> Result<(), E> {
        fill(self.rows.rows())?;
        let Sequence { targets, doc_start, .. } = &self.rows;
        if let Some(positions) = &mut self.positions {
            for (at, (position, start)) in positions.iter_mut().zip(doc_start).enumerate() {
                *position = (at % self.seq_len) as i32 - start;
            }
        }
        if let Some(present) = &mut self.present {
            let rows = targets.chunks(self.seq_len).zip(doc_start.chunks(self.seq_len));
            for (present, (targets, starts)) in present.chunks_mut(self.seq_len).zip(rows) {
                let (tokens, padding) = present.split_at_mut(tokens_of(targets, starts));
                tokens.fill(1);
                padding.fill(0);
            }
        }
        if let Some(labels) = &mut self.labels {
            for (label, row) in labels.iter_mut().zip(targets.chunks(self.seq_len)) {
                *label = row[0];
            }
        }
        Ok(())
    }

    /// The label of each row, if texts are classified.
    pub fn labels(&self) -> Option<&[i32]> {
        self.labels.as_deref()
    }

    /// The inputs of the micro-batch.
    pub fn inputs(&self) -> Inputs<'_> {
        let targets = self.labels.as_ref().unwrap_or(&self.rows.targets);
        let mut all = [("tokens", Data::I32(&self.rows.tokens)); 5];
        all[1] = ("targets", Data::I32(targets));
        let mut count = 2;
        let documents = self.documents.then_some(("doc_start", Data::I32(&self.rows.doc_start)));
        let positions = self.positions.as_ref().map(|positions| ("positions", Data::I32(positions)));
        let present = self.present.as_ref().map(|present| ("present", Data::I32(present)));
        for input in documents.into_iter().chain(positions).chain(present) {
            all[count] = input;
            count += 1;
        }
        Inputs { all, count }
    }
}

/// Tokens of a row before its padding, which is the row's last document if nothing in that is learned: see
/// [`Rows::ignore_from`].
fn tokens_of(targets: &[i32], starts: &[i32]) -> usize {
    let last = starts.last().map_or(0, |&start| start as usize);
    if targets[last..].iter().all(|&target| target == IGNORED) { last } else { targets.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(inputs: &[(&str, usize)]) -> Feed {
        let ty = |name: &str| inputs.iter().find(|input| input.0 == name).map(|input| Type::i32([input.1]));
        let mut feed = Feed::new(2, 3, ty);
        let filled: Result<(), ()> = feed.fill(|rows| {
            rows.tokens.copy_from_slice(&[1, 2, 3, 4, 5, 6]);
            rows.targets.copy_from_slice(&[7, -100, -100, 8, -100, -100]);
            rows.doc_start.copy_from_slice(&[0, 0, 2, 0, 1, 1]);
            Ok(())
        });
        filled.unwrap();
        feed
    }

    fn given(feed: &Feed) -> Vec<(&'static str, Vec<i32>)> {
        let numbers = |data: Data| match data {
            Data::I32(numbers) => numbers.to_vec(),
            Data::F32(numbers) => numbers.iter().map(|&number| number as i32).collect(),
        };
        feed.inputs().as_slice().iter().map(|&(name, data)| (name, numbers(data))).collect()
    }

    #[test]
    fn a_graph_gets_the_inputs_it_reads_and_positions_begin_anew_in_each_document() {
        let (tokens, targets) = (vec![1, 2, 3, 4, 5, 6], vec![7, -100, -100, 8, -100, -100]);
        let plain = [("tokens", tokens), ("targets", targets)];
        assert_eq!(given(&filled(&[("targets", 6)])), plain);
        let all = given(&filled(&[("targets", 6), ("doc_start", 6), ("positions", 6)]));
        assert_eq!(all[..2], plain);
        assert_eq!(all[2..], [("doc_start", vec![0, 0, 2, 0, 1, 1]), ("positions", vec![0, 1, 0, 0, 0, 1])]);
    }

    #[test]
    fn padding_is_the_last_document_of_a_row_if_nothing_of_it_is_learned() {
        assert_eq!(given(&filled(&[("targets", 6), ("present", 6)]))[2], ("present", vec![1, 1, 0, 1, 0, 0]));
        // A prompt before an answer, a document that ends the row, and a row past the end of the data.
        assert_eq!(tokens_of(&[-100, -100, 4, -100, -100], &[0, 0, 0, 0, 4]), 4);
        assert_eq!(tokens_of(&[3, -100, 4, -100], &[0, 1, 1, 1]), 4);
        assert_eq!(tokens_of(&[-100; 3], &[0; 3]), 0);
    }

    #[test]
    fn a_graph_with_one_target_per_row_gets_the_labels() {
        let inputs = given(&filled(&[("targets", 2), ("doc_start", 6)]));
        assert_eq!(inputs[1], ("targets", vec![7, 8]));
        assert_eq!(inputs[2].0, "doc_start");
    }
}
