//! Files to a cache of ids: at once when it is there already, otherwise on all threads with progress.
//!
//! One thread reads records until a batch is full, all of them encode it, and the results are written in the order
//! of the records: the cache does not depend on the number of threads, and the first bad sample is the first in the
//! file. What is held in memory is a batch, as large as the budget has room for.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};

use super::cache::{Cache, Key, Writer, checksum};
use super::records::{Record, Records, files};
use super::room::Room;
use super::sample::{Encoded, Encoder, Fault};
use super::{DataError, Task};
use crate::reading;

/// Rises when the same files and tokenizer come to other ids than before, so that ids of earlier versions are not used.
const RENDERING: u32 = 2;
/// Records of a batch.
const RECORDS: usize = 8192;

/// How far the tokenising of one path has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The file or folder that was named.
    pub path: &'a Path,
    /// Bytes read so far.
    pub read: u64,
    /// Bytes there are.
    pub total: u64,
}

/// How to tokenise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokenise<'a> {
    pub(super) encoder: Encoder<'a>,
    pub(super) folder: &'a Path,
    pub(super) room: Room,
    pub(super) skip_bad_lines: bool,
}

impl Tokenise<'_> {
    /// The tokenised documents of a file or folder.
    pub(super) fn open(&self, path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Cache, DataError> {
        let files = files(path)?;
        // Looked at before and behind, so that a change during the reading is seen.
        let stamped = stamps(&files)?;
        let total = stamped.iter().map(|(bytes, _)| bytes).sum();
        let key = self.key(&files)?;
        let (name, _) = key.as_chunks::<16>();
        let cache = self.folder.join(format!("{:032x}.ids", u128::from_be_bytes(name[0])));
        if let Some(cache) = Cache::open(&cache, &key) {
            return Ok(cache);
        }
        let mut writer = Writer::create(&cache)?;
        let mut before = 0;
        for file in &files {
            match self.encoder.tokenizer.path() {
                Some(tokenizer) => reading::begin_with(file, tokenizer),
                None => reading::begin(file),
            }
            let mut records = Records::open(file, self.room.record)?;
            while self.batch(file, &mut records, &mut writer)? {
                progress(Progress { path, read: before + records.read(), total });
            }
            before += records.read();
        }
        if writer.is_empty() {
            return Err(match &writer.notes().first_skipped {
                Some(first) => DataError::NothingLeft {
                    path: path.to_owned(),
                    skipped: writer.notes().skipped,
                    first: first.clone(),
                },
                None => DataError::Empty { path: path.to_owned() },
            });
        }
        if stamps(&files)? != stamped {
            return Err(DataError::Changed { path: path.to_owned() });
        }
        progress(Progress { path, read: total, total });
        writer.finish(&key)
    }

    /// What the ids are a function of: the files by their content, as other content may have the same length and time.
    fn key(&self, files: &[PathBuf]) -> Result<Key, DataError> {
        let Encoder { tokenizer, task, classes, .. } = self.encoder;
        let mut hash = Sha256::new();
        hash.update(tokenizer.fingerprint());
        hash.update(format!("{RENDERING} {task:?} {classes:?} {}", self.skip_bad_lines));
        for file in files {
            let unreadable = |fault| DataError::reading(file, &fault);
            let mut content = File::open(file).map_err(unreadable)?;
            let (bytes, sum) = (content.metadata().map_err(unreadable)?.len(), checksum(&mut content));
            let path = fs::canonicalize(file).map_err(unreadable)?;
            hash.update(format!("\n{bytes} {:08x} {}", sum.map_err(unreadable)?, path.display()));
        }
        Ok(hash.finalize().into())
    }

    /// Encodes the next batch of a file; `false` at its end.
    fn batch(&self, file: &Path, records: &mut Records, writer: &mut Writer) -> Result<bool, DataError> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.is_empty() || batch.len() < RECORDS && bytes < self.room.batch {
            let Some(record) = records.next()? else { break };
            bytes += record.bytes();
            batch.push(record);
        }
        let share = batch.len().div_ceil(self.room.threads).max(1);
        let encoded = thread::scope(|scope| {
            let encode = |part: &'_ [Record]| part.iter().map(|record| self.encode(record)).collect();
            let helpers: Vec<_> =
                batch.chunks(share).map(|part| scope.spawn(move || -> Vec<_> { encode(part) })).collect();
            let join = |helper: thread::ScopedJoinHandle<'_, Vec<_>>| {
                helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            helpers.into_iter().flat_map(join).collect::<Vec<_>>()
        });
        for (record, encoded) in batch.iter().zip(encoded) {
            self.write(file, record, encoded, writer)?;
        }
        Ok(!batch.is_empty())
    }

    fn encode(&self, record: &Record) -> Result<Encoded, Fault> {
        reading::step();
        let encoded = match record {
            Record::Piece { .. } if matches!(self.encoder.task, Task::Classify { .. }) => {
                return Err(Fault::Sample(
                    "a text file has no labels, and `text` and `label` are needed".into(),
                ));
            }
            Record::Piece { text, opens, closes } => {
                return Ok(Encoded { ids: self.encoder.piece(text, *opens, *closes)?, label: None });
            }
            Record::Fields { fields, .. } => self.encoder.record(fields)?,
            Record::Bad { why, .. } => return Err(Fault::Sample(why.clone())),
        };
        if encoded.ids.is_empty() { Err(Fault::Sample("its text has no tokens".into())) } else { Ok(encoded) }
    }

    fn write(
        &self,
        file: &Path,
        record: &Record,
        encoded: Result<Encoded, Fault>,
        writer: &mut Writer,
    ) -> Result<(), DataError> {
        match encoded {
            Ok(Encoded { ids, label }) => {
                writer.write(&ids)?;
                let closes = !matches!(record, Record::Piece { closes: false, .. });
                if closes && !writer.close(label) {
                    return Err(DataError::MixedLabels { path: file.to_owned() });
                }
                Ok(())
            }
            Err(Fault::All(fault)) => Err(fault),
            Err(Fault::Unbroken(bytes)) => Err(DataError::TooLong {
                path: file.to_owned(),
                line: (!matches!(record, Record::Piece { .. })).then(|| record.line()),
                bytes: bytes as u64,
                most: self.room.unbroken as u64,
            }),
            Err(Fault::Sample(why)) => {
                let line = record.line();
                if !self.skip_bad_lines {
                    return Err(DataError::BadLine { path: file.to_owned(), line, why });
                }
                writer.skip(format!("{}, line {line}: {why}", file.display()));
                Ok(())
            }
        }
    }
}

/// The length of each file, and when it was written.
fn stamps(files: &[PathBuf]) -> Result<Vec<(u64, Option<SystemTime>)>, DataError> {
    let stamp = |file: &PathBuf| {
        let found = fs::metadata(file).map_err(|fault| DataError::reading(file, &fault))?;
        Ok((found.len(), found.modified().ok()))
    };
    files.iter().map(stamp).collect()
}
