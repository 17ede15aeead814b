//! Tokenised documents as rows: packed or padded, mixed and shuffled.
//!
//! ```text
//! two documents, seq_len 6        tokens               targets              doc_start
//! packed, one row                 b x y | b u v        x y e | u v e        0 0 0 3 3 3
//! padded, a row each              b x y · · ·          x y e ! ! !          0 0 0 3 3 3
//!                                 b u v · · ·          u v e ! ! !          0 0 0 3 3 3
//! ```
//!
//! No target lies in another document than its position, and padding is a document of its own: packed or padded, a
//! document has the same loss. The row at each place is a function of (data, seed, epoch, place), and so is the
//! mixture: a part of weight 2 is seen twice in an epoch, one of weight ½ every other epoch, each time in an order of
//! its own. Memory holds the tables of `pack` and one row; ids stay in the cache.
//!
//! Tokens of the masked task are hidden by BERT's rule: 15 % are chosen, and of these 80 % become the mask, 10 % any
//! id, and 10 % stay as they are; the choice is a function of (seed, epoch, row).

use std::sync::Arc;

use plimsoll_exec::random::{Stream, name_hash};

use super::cache::Cache;
use super::pack::{Packing, Piece, cut};
use super::sample::UNLEARNED;
use super::spec::{DataSpec, Part, RowLayout, Task};
use super::tokenizer::Tokenizer;
use super::{DataError, IGNORED, Order, Permutation, Rows};
use crate::reading;

/// How much data there is, and how much of it does not fit into a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Documents, conversations or texts.
    pub samples: u64,
    /// Rows of an epoch.
    pub rows: u64,
    /// Tokens of the samples that lie in rows.
    pub tokens: u64,
    /// Samples longer than a row.
    pub cut: u64,
    /// The part of `tokens` that lies beyond the first row of its sample.
    pub beyond: u64,
    /// Further tokens of these samples that are in no row: a classifier reads one row of a text, and a row in which
    /// nothing is learned is left out.
    pub unread: u64,
}

/// Facts that all rows of a run share.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    task: Task,
    layout: RowLayout,
    seq_len: usize,
    seed: u64,
    pad: i32,
    mask: i32,
    /// Ids a hidden word may be replaced by.
    ids: u32,
    opening: Vec<i32>,
    closing: Vec<i32>,
}

impl Shape {
    pub(super) fn new(spec: &DataSpec, tokenizer: &Tokenizer) -> Result<Shape, DataError> {
        let mask = tokenizer.special().mask;
        if spec.task == Task::Masked && mask.is_none() {
            return Err(DataError::NoMask);
        }
        let (opening, closing) = (tokenizer.opening().to_vec(), tokenizer.closing().to_vec());
        let around = opening.len() + closing.len();
        if spec.task != Task::Causal && spec.seq_len <= around {
            return Err(DataError::NoRoom { seq_len: spec.seq_len, around });
        }
        Ok(Shape {
            task: spec.task.clone(),
            layout: spec.layout,
            seq_len: spec.seq_len,
            seed: spec.seed,
            pad: tokenizer.pad(),
            mask: mask.unwrap_or(0),
            ids: tokenizer.vocabulary() as u32,
            opening,
            closing,
        })
    }

    /// All pieces of a part in the order of its text.
    pub(super) fn pieces(&self, cache: &Cache) -> Vec<Piece> {
        let numbered = (0..cache.documents()).map(|which| (cache.document(which), which as u32));
        let body = self.seq_len - (self.opening.len() + self.closing.len()).min(self.seq_len);
        match self.task {
            // The last token of a document is only a target.
            Task::Causal => numbered
                .flat_map(|(ids, which)| {
                    cut(ids.start..ids.end.saturating_sub(1).max(ids.start), self.seq_len, which)
                })
                .collect(),
            Task::Masked => numbered.flat_map(|(ids, which)| cut(ids, body, which)).collect(),
            // A text has one class, however long it is; the part that does not fit is not read.
            Task::Classify { .. } => {
                numbered.filter_map(|(ids, which)| cut(ids, body, which).next()).collect()
            }
        }
    }

    /// Adds the counts of a part's pieces.
    pub(super) fn count(&self, cache: &Cache, pieces: &[Piece], counts: &mut Counts) {
        let causal = self.task == Task::Causal;
        let around = if causal { 0 } else { self.opening.len() + self.closing.len() };
        let body = (self.seq_len - around.min(self.seq_len)) as u64;
        let (mut whole, mut read) = (0, 0);
        for (at, piece) in pieces.iter().enumerate() {
            let ids = cache.document(piece.document as usize);
            let len = u64::from(piece.len);
            counts.tokens += len;
            counts.beyond += if piece.first - ids.start < body { 0 } else { len };
            read += len;
            if at > 0 && pieces[at - 1].document == piece.document {
                continue;
            }
            // The last token of a document is only a target.
            let positions = (ids.end - ids.start).saturating_sub(u64::from(causal));
            whole += positions;
            counts.samples += 1;
            counts.cut += u64::from(positions > body);
        }
        counts.unread += whole.saturating_sub(read);
    }

    /// Removes the pieces of which nothing is learned: a step of only such pieces would learn from no data. Returns how
    /// many there were, and whether some target of any piece belongs to a prompt.
    pub(super) fn leave_out_untaught(
        &self,
        pieces: &mut Vec<Piece>,
        cache: &Cache,
    ) -> Result<(u64, bool), DataError> {
        if self.task != Task::Causal {
            return Ok((0, false));
        }
        let (all, mut fault, mut bytes) = (pieces.len(), Ok(()), vec![0; 4 * self.seq_len]);
        let mut prompts = false;
        pieces.retain(|piece| {
            reading::step();
            let targets = &mut bytes[..4 * piece.len as usize];
            if let Err(error) = cache.read(piece.first + 1, targets) {
                fault = Err(error);
                return false;
            }
            let learned = |id: &[u8; 4]| u32::from_le_bytes(*id) & UNLEARNED == 0;
            let (targets, _) = targets.as_chunks();
            prompts |= !targets.iter().all(learned);
            targets.iter().any(learned)
        });
        fault.map(|()| ((all - pieces.len()) as u64, prompts))
    }

    fn pack(&self, pieces: Vec<Piece>) -> Packing {
        match (&self.task, self.layout) {
            (Task::Causal, RowLayout::Packed) => Packing::together(&pieces, self.seq_len),
            _ => Packing::apart(pieces),
        }
    }
}

/// A part of the data in the mixture.
#[derive(Debug)]
pub(super) struct Mixed {
    cache: Arc<Cache>,
    packing: Packing,
    /// How many rows of the part an epoch sees.
    visits: u64,
    /// The class that each label of the cache stands for; empty when it is the label itself.
    classes: Vec<i32>,
}

impl Mixed {
    pub(super) fn new(
        cache: &Arc<Cache>,
        pieces: Vec<Piece>,
        part: &Part,
        shape: &Shape,
        labels: &[String],
    ) -> Result<Mixed, DataError> {
        if !(part.weight > 0.0 && part.weight.is_finite()) {
            return Err(DataError::Weight { path: part.path.clone(), weight: part.weight.to_string() });
        }
        if pieces.is_empty() {
            // Every document is a single token, which predicts nothing.
            return Err(DataError::Empty { path: part.path.clone() });
        }
        let packing = shape.pack(pieces);
        let visits = ((packing.rows() as f64 * part.weight).round() as u64).max(1);
        let place = |name: &String| labels.iter().position(|label| label == name).unwrap_or(0) as i32;
        let classes = cache.notes().names.iter().map(place).collect();
        Ok(Mixed { cache: Arc::clone(cache), packing, visits, classes })
    }

    fn class(&self, document: u32) -> i32 {
        let label = self.cache.labels().get(document as usize).copied().unwrap_or(IGNORED);
        self.classes.get(label as usize).copied().unwrap_or(label)
    }
}

/// Rows of tokenised documents.
#[derive(Debug)]
pub struct Corpus {
    parts: Vec<Mixed>,
    order: Order,
    shape: Shape,
    rows: u64,
    bytes: Vec<u8>,
    ids: Vec<u32>,
}

impl Corpus {
    pub(super) fn new(parts: Vec<Mixed>, order: Order, shape: Shape) -> Corpus {
        let rows = parts.iter().map(|part| part.visits).sum();
        let ids = vec![0; shape.seq_len + 1];
        Corpus { parts, order, shape, rows, bytes: vec![0; 4 * ids.len()], ids }
    }

    /// Checksums of the parts, each with the number of its rows that an epoch sees.
    pub(super) fn mark(&self) -> String {
        let part = |part: &Mixed| format!("{:08x} in {} rows", part.cache.sum(), part.visits);
        self.parts.iter().map(part).collect::<Vec<_>>().join(", ")
    }

    /// Positions in a sequence.
    pub fn seq_len(&self) -> usize {
        self.shape.seq_len
    }

    /// Sequences in an epoch.
    pub fn sequences(&self) -> u64 {
        self.rows
    }

    /// The id that stands where there is no data.
    pub fn pad(&self) -> i32 {
        self.shape.pad
    }

    pub(super) fn fill_row(&mut self, epoch: u64, index: u64, mut row: Rows<'_>) -> Result<(), DataError> {
        assert!(index < self.rows, "sequence {index} of {}", self.rows);
        let (part, number) = self.locate(epoch, index);
        let count = self.parts[part].packing.row(number).len();
        let mut at = 0;
        for which in 0..count {
            let piece = self.parts[part].packing.row(number)[which];
            let len = match self.shape.task {
                Task::Causal => self.causal(part, piece, &mut row, at)?,
                Task::Masked | Task::Classify { .. } => self.wrapped(part, piece, &mut row)?,
            };
            row.doc_start[at..at + len].fill(at as i32);
            at += len;
        }
        row.ignore_from(at, self.shape.pad);
        match self.shape.task {
            Task::Causal => {}
            Task::Masked => self.hide(epoch, part, number, &mut row, at),
            Task::Classify { .. } => {
                let document = self.parts[part].packing.row(number)[0].document;
                row.targets[0] = self.parts[part].class(document);
            }
        }
        Ok(())
    }

    /// Which row of which part comes at a place of an epoch.
    fn locate(&self, epoch: u64, index: u64) -> (usize, u64) {
        let mut place = self.order.sequence_at(epoch, index, self.rows);
        let mut part = 0;
        while place >= self.parts[part].visits {
            place -= self.parts[part].visits;
            part += 1;
        }
        let Mixed { visits, packing, .. } = &self.parts[part];
        // A part is traversed lap after lap, independent of where epochs begin.
        let visit = u128::from(epoch) * u128::from(*visits) + u128::from(place);
        let rows = packing.rows();
        let (lap, at) = ((visit / u128::from(rows)) as u64, (visit % u128::from(rows)) as u64);
        let number = match self.order {
            Order::AsWritten => at,
            Order::Shuffled { seed } => {
                let seed = seed ^ name_hash("data.part").wrapping_mul(part as u64 + 1);
                Permutation::new(seed, lap, rows).at(at)
            }
        };
        (part, number)
    }

    /// A piece and its targets, from position `at` on.
    fn causal(
        &mut self,
        part: usize,
        piece: Piece,
        row: &mut Rows<'_>,
        at: usize,
    ) -> Result<usize, DataError> {
        let len = piece.len as usize;
        self.read(part, piece.first, len + 1)?;
        for (position, pair) in (at..at + len).zip(self.ids.windows(2)) {
            row.tokens[position] = (pair[0] & !UNLEARNED) as i32;
            row.targets[position] = if pair[1] & UNLEARNED == 0 { pair[1] as i32 } else { IGNORED };
        }
        Ok(len)
    }

    /// A piece with the ids around every text, and no targets yet.
    fn wrapped(&mut self, part: usize, piece: Piece, row: &mut Rows<'_>) -> Result<usize, DataError> {
        self.read(part, piece.first, piece.len as usize)?;
        let body = self.ids[..piece.len as usize].iter().map(|id| (id & !UNLEARNED) as i32);
        let (opening, closing) = (self.shape.opening.iter().copied(), self.shape.closing.iter().copied());
        let mut len = 0;
        for (token, id) in row.tokens.iter_mut().zip(opening.chain(body).chain(closing)) {
            *token = id;
            len += 1;
        }
        row.targets[..len].fill(IGNORED);
        Ok(len)
    }

    fn read(&mut self, part: usize, first: u64, count: usize) -> Result<(), DataError> {
        let bytes = &mut self.bytes[..4 * count];
        self.parts[part].cache.read(first, bytes)?;
        for (id, &bytes) in self.ids.iter_mut().zip(bytes.as_chunks().0) {
            *id = u32::from_le_bytes(bytes);
        }
        Ok(())
    }

    /// Hides tokens of a text of `len` tokens and makes them the targets.
    fn hide(&self, epoch: u64, part: usize, number: u64, row: &mut Rows<'_>, len: usize) {
        let name =
            name_hash("data.mask") ^ (epoch >> 32) ^ (number >> 32).rotate_left(32) ^ (part as u64) << 16;
        let stream = Stream::new(self.shape.seed, name, epoch as u32);
        let share = |percent: u32| (u64::from(u32::MAX) * u64::from(percent) / 100) as u32;
        let body = self.shape.opening.len()..len - self.shape.closing.len();
        for position in body {
            let [chosen, how, id, _] = stream.quad(number as u32, position as u32);
            if chosen < share(15) {
                row.targets[position] = row.tokens[position];
                if how < share(80) {
                    row.tokens[position] = self.shape.mask;
                } else if how < share(90) {
                    row.tokens[position] = ((u64::from(id) * u64::from(self.shape.ids)) >> 32) as i32;
                }
            }
        }
    }
}
