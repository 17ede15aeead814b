//! Data sets as rows: tokenised files, packed or padded, mixed, shuffled, and divided for validation.
//!
//! ```text
//! two documents, seq_len 6        tokens               targets              doc_start
//! packed, one row                 b x y | b u v        x y e | u v e        0 0 0 3 3 3
//! padded, a row each              b x y · · ·          x y e ! ! !          0 0 0 3 3 3
//!                                 b u v · · ·          u v e ! ! !          0 0 0 3 3 3
//! ```
//!
//! No target lies in another document than its position, and padding is a document of its own: packed or padded, a
//! document costs the same. Which row comes when is a function of (data, seed, epoch, place), and so is the mixture:
//! a part of weight 2 is seen twice in an epoch, one of weight ½ every other epoch, each time in an order of its own.
//! In memory are the tables of [`super::pack`] and one row; ids stay in the cache.
//!
//! Words of the masked task are hidden by the same rule as in BERT: of 15 % of them, 80 % become the mask, 10 % any
//! id, and 10 % stay as they are; a function of (seed, epoch, row).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_exec::random::{Stream, name_hash};

use super::cache::{Cache, Notes};
use super::pack::{Packing, Piece, cut};
use super::sample::{Encoder, UNLEARNED};
use super::tokenise::{Progress, Tokenise};
use super::tokenizer::Tokenizer;
use super::{DataError, IGNORED, Order, Permutation, Rows, check_seq_len};

/// What is learned from the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// The next token: of texts, of answers in conversations, of completions.
    Causal,
    /// Hidden words.
    Masked,
    /// The class of a text.
    Classify {
        /// Names of the classes; empty when the data is to say.
        labels: Vec<String>,
    },
}

/// How documents lie in rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Several to a row. Only the causal task can; others are padded whatever is asked for.
    Packed,
    /// One to a row.
    Padded,
}

/// A file or folder of the data.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// `.txt`, `.jsonl`, `.parquet`, or a folder of them.
    pub path: PathBuf,
    /// How often an epoch sees it.
    pub weight: f64,
}

impl From<&Path> for Part {
    fn from(path: &Path) -> Part {
        Part { path: path.to_owned(), weight: 1.0 }
    }
}

/// What the data is judged by.
#[derive(Clone, Debug, PartialEq)]
pub enum Validation {
    /// Nothing.
    None,
    /// This share of every part, which is then not trained on: whole documents, the same ones whatever the seed. Where
    /// there are too few of them, the end of the text.
    Share(f64),
    /// Files of their own.
    Files(Vec<Part>),
}

/// Everything that says which rows there are.
#[derive(Clone, Debug, PartialEq)]
pub struct DataSpec {
    /// Files to train on.
    pub parts: Vec<Part>,
    /// What to judge by.
    pub validation: Validation,
    /// What is learned.
    pub task: Task,
    /// How documents lie in rows.
    pub layout: Layout,
    /// Positions of a row.
    pub seq_len: usize,
    /// Ids the model knows.
    pub vocabulary: usize,
    /// Of the order of rows, and of what is hidden.
    pub seed: u64,
    /// Whether samples that cannot be used are counted instead of refused.
    pub skip_bad_lines: bool,
    /// The folder for tokenised data.
    pub cache: PathBuf,
    /// Threads that tokenise.
    pub threads: usize,
}

/// The data of a run.
#[derive(Debug)]
pub struct Dataset {
    /// Rows to train on, shuffled anew in every epoch.
    pub train: Corpus,
    /// Rows to judge by, always in the same order.
    pub validation: Option<Corpus>,
    /// Names of the classes in the order of their numbers; empty when the data has numbers only.
    pub labels: Vec<String>,
    /// One more than the largest class; 0 without labels.
    pub classes: usize,
    /// Samples that were passed over.
    pub skipped: u64,
    /// What was wrong with the first of them.
    pub first_skipped: Option<String>,
}

impl Dataset {
    /// Tokenises what is not in the cache and lays out the rows.
    ///
    /// # Errors
    ///
    /// When the files are missing or broken, do not go with the task or the tokenizer, or the cache cannot be written.
    pub fn open(
        spec: &DataSpec,
        tokenizer: &Tokenizer,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Dataset, DataError> {
        check_seq_len(spec.seq_len)?;
        tokenizer.fits(spec.vocabulary)?;
        let shape = Shape::new(spec, tokenizer)?;
        let tokenise = Tokenise {
            encoder: Encoder { tokenizer, task: &spec.task },
            folder: &spec.cache,
            threads: spec.threads,
            skip_bad_lines: spec.skip_bad_lines,
        };
        let mut opened = |parts: &[Part]| -> Result<Vec<Arc<Cache>>, DataError> {
            parts.iter().map(|part| Ok(Arc::new(tokenise.open(&part.path, progress)?))).collect()
        };
        let caches = opened(&spec.parts)?;
        let apart = match &spec.validation {
            Validation::Files(parts) => (opened(parts)?, &parts[..]),
            _ => (Vec::new(), &[][..]),
        };
        let all = || caches.iter().chain(&apart.0);
        let labels = all_labels(spec, all().zip(spec.parts.iter().chain(apart.1)))?;

        let (mut train, mut judge) = (Vec::new(), Vec::new());
        for (part, cache) in spec.parts.iter().zip(&caches) {
            let pieces = shape.pieces(cache);
            let (kept, split_off) = match spec.validation {
                Validation::Share(share) => divide(&pieces, cache.documents(), share, &part.path)?,
                _ => (pieces, Vec::new()),
            };
            train.push(Mixed::new(cache, kept, part, &shape, &labels)?);
            if !split_off.is_empty() {
                judge.push(Mixed::new(cache, split_off, &Part::from(&*part.path), &shape, &labels)?);
            }
        }
        for (part, cache) in apart.1.iter().zip(&apart.0) {
            judge.push(Mixed::new(cache, shape.pieces(cache), part, &shape, &labels)?);
        }
        let notes = || all().map(|cache| cache.notes());
        Ok(Dataset {
            train: Corpus::new(train, Order::Shuffled { seed: spec.seed }, shape.clone()),
            validation: (!judge.is_empty()).then(|| Corpus::new(judge, Order::AsWritten, shape)),
            classes: all()
                .flat_map(|cache| cache.labels())
                .max()
                .map_or(0, |&most| most as usize + 1)
                .max(labels.len()),
            labels,
            skipped: notes().map(|notes| notes.skipped).sum(),
            first_skipped: notes().find_map(|notes| notes.first_skipped.clone()),
        })
    }
}

/// Names of all classes: the given ones, or those of the data in alphabetical order.
fn all_labels<'a>(
    spec: &DataSpec,
    caches: impl Iterator<Item = (&'a Arc<Cache>, &'a Part)>,
) -> Result<Vec<String>, DataError> {
    if let Task::Classify { labels } = &spec.task
        && !labels.is_empty()
    {
        return Ok(labels.clone());
    }
    let mut labels: Vec<String> = Vec::new();
    for (at, (cache, part)) in caches.enumerate() {
        let Notes { names, .. } = cache.notes();
        if at > 0 && names.is_empty() != labels.is_empty() {
            return Err(DataError::MixedLabels { path: part.path.clone() });
        }
        labels.extend_from_slice(names);
    }
    labels.sort_unstable();
    labels.dedup();
    Ok(labels)
}

/// Keeps a share of the pieces apart.
fn divide(
    pieces: &[Piece],
    documents: usize,
    share: f64,
    path: &Path,
) -> Result<(Vec<Piece>, Vec<Piece>), DataError> {
    let too_few = || DataError::Split { path: path.to_owned(), pieces: pieces.len() as u64 };
    let wanted = documents as f64 * share;
    let (kept, split_off): (Vec<Piece>, Vec<Piece>) = if wanted >= 1.0 {
        // Not the run's seed: runs of several seeds are judged by the same documents.
        let lots = Permutation::new(0, u64::MAX, documents as u64);
        pieces.iter().partition(|piece| lots.at(u64::from(piece.document)) >= wanted.round() as u64)
    } else {
        let last = (pieces.len() as f64 * share).round().max(1.0) as usize;
        let (front, back) = pieces.split_at(pieces.len().saturating_sub(last));
        (front.to_vec(), back.to_vec())
    };
    if kept.is_empty() || split_off.is_empty() { Err(too_few()) } else { Ok((kept, split_off)) }
}

/// What all rows of a run have in common.
#[derive(Clone, Debug)]
struct Shape {
    task: Task,
    layout: Layout,
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
    fn new(spec: &DataSpec, tokenizer: &Tokenizer) -> Result<Shape, DataError> {
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
    fn pieces(&self, cache: &Cache) -> Vec<Piece> {
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
            // A text has one class, however long it is; what does not fit is not read.
            Task::Classify { .. } => {
                numbered.filter_map(|(ids, which)| cut(ids, body, which).next()).collect()
            }
        }
    }

    fn pack(&self, pieces: Vec<Piece>) -> Packing {
        match (&self.task, self.layout) {
            (Task::Causal, Layout::Packed) => Packing::together(&pieces, self.seq_len),
            _ => Packing::apart(pieces),
        }
    }
}

/// A part of the data in the mixture.
#[derive(Debug)]
struct Mixed {
    cache: Arc<Cache>,
    packing: Packing,
    /// Rows of it in an epoch.
    visits: u64,
    /// The class that each label of the cache stands for; empty when it is the label itself.
    classes: Vec<i32>,
}

impl Mixed {
    fn new(
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
    fn new(parts: Vec<Mixed>, order: Order, shape: Shape) -> Corpus {
        let rows = parts.iter().map(|part| part.visits).sum();
        let ids = vec![0; shape.seq_len + 1];
        Corpus { parts, order, shape, rows, bytes: vec![0; 4 * ids.len()], ids }
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
        // A part is gone through lap after lap, wherever epochs begin.
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

    /// A piece with what stands around every text, and no targets yet.
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

    /// Hides words of a text of `len` tokens and asks for them.
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

#[cfg(test)]
mod tests;
