//! The opened data of a run: tokenised files, divided into training rows and validation rows.

use std::path::Path;
use std::sync::Arc;

use super::cache::{Cache, Notes};
use super::corpus::{Corpus, Counts, Mixed, Shape};
use super::pack::Piece;
use super::room::Room;
use super::sample::Encoder;
use super::spec::{DataSpec, Part, Task, Validation};
use super::tokenise::{Progress, Tokenise};
use super::tokenizer::Tokenizer;
use super::{DataError, Order, Permutation, check_seq_len};

/// The data of a run.
#[derive(Debug)]
pub struct Dataset {
    /// Training rows, shuffled anew in every epoch.
    pub train: Corpus,
    /// Validation rows, always in the same order.
    pub validation: Option<Corpus>,
    /// Names of the classes in the order of their numbers; empty when the data has numbers only.
    pub labels: Vec<String>,
    /// One more than the largest class; 0 without labels.
    pub classes: usize,
    /// Samples that were skipped.
    pub skipped: u64,
    /// The fault of the first skipped sample.
    pub first_skipped: Option<String>,
    /// Learned tokens that begin in a prompt and reach into its answer.
    pub seams: u64,
    /// Samples with a label that the task does not read.
    pub unread_labels: u64,
    /// Samples, or row-long parts of them, that were left out because nothing in them is learned.
    pub untaught: u64,
    /// Whether some samples are prompts with answers, and not texts that are learned from end to end.
    pub prompts: bool,
    /// How much data there is to train on.
    pub counts: Counts,
}

impl Dataset {
    /// Tokenises the files that are not in the cache and lays out the rows.
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
        let room = Room::now(spec.memory, spec.threads, spec.seq_len);
        let tokenise = Tokenise {
            encoder: Encoder { tokenizer, task: &spec.task, classes: spec.classes, unbroken: room.unbroken },
            folder: &spec.cache,
            room,
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

        let (mut train, mut judge, mut untaught, mut prompts) = (Vec::new(), Vec::new(), 0, false);
        let mut counts = Counts::default();
        let mut pieces_of = |cache: &Cache, part: &Part| {
            let mut pieces = shape.pieces(cache);
            let (left_out, some_prompts) = shape.leave_out_untaught(&mut pieces, cache)?;
            untaught += left_out;
            prompts |= some_prompts;
            if pieces.is_empty() && left_out > 0 {
                return Err(DataError::NoTargets { path: part.path.clone(), seq_len: spec.seq_len });
            }
            Ok(pieces)
        };
        for (part, cache) in spec.parts.iter().zip(&caches) {
            let pieces = pieces_of(cache, part)?;
            let (kept, split_off) = match spec.validation {
                Validation::Share(share) => divide(&pieces, cache.documents(), share, &part.path)?,
                _ => (pieces, Vec::new()),
            };
            shape.count(cache, &kept, &mut counts);
            train.push(Mixed::new(cache, kept, part, &shape, &labels)?);
            if !split_off.is_empty() {
                judge.push(Mixed::new(cache, split_off, &Part::from(&*part.path), &shape, &labels)?);
            }
        }
        for (part, cache) in apart.1.iter().zip(&apart.0) {
            judge.push(Mixed::new(cache, pieces_of(cache, part)?, part, &shape, &labels)?);
        }
        let notes = || all().map(|cache| cache.notes());
        let train = Corpus::new(train, Order::Shuffled { seed: spec.seed }, shape.clone());
        counts.rows = train.sequences();
        Ok(Dataset {
            train,
            counts,
            validation: (!judge.is_empty()).then(|| Corpus::new(judge, Order::AsWritten, shape)),
            classes: all()
                .flat_map(|cache| cache.labels())
                .max()
                .map_or(0, |&most| most as usize + 1)
                .max(labels.len()),
            labels,
            skipped: notes().map(|notes| notes.skipped).sum(),
            untaught,
            prompts,
            seams: notes().map(|notes| notes.seams).sum(),
            unread_labels: notes().map(|notes| notes.unread_labels).sum(),
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
        // Not the run's seed: runs with different seeds are evaluated on the same documents.
        let lots = Permutation::new(0, u64::MAX, documents as u64);
        pieces.iter().partition(|piece| lots.at(u64::from(piece.document)) >= wanted.round() as u64)
    } else {
        let last = (pieces.len() as f64 * share).round().max(1.0) as usize;
        let (front, back) = pieces.split_at(pieces.len().saturating_sub(last));
        (front.to_vec(), back.to_vec())
    };
    if kept.is_empty() || split_off.is_empty() { Err(too_few()) } else { Ok((kept, split_off)) }
}

#[cfg(test)]
mod tests;
