//! Turns files into a cache of ids: at once if the cache already exists, otherwise on all threads with progress.
//!
//! One thread reads records until a batch is full, all threads encode it, and the results are written in the order of
//! the records. So the cache does not depend on the number of threads, and the first bad sample reported is the first
//! in the file. A record longer than a batch is encoded alone, and its ids are written as they come. Memory holds a
//! batch, as large as the budget has room for, or one long text and no ids.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};

use super::DataError;
use super::cache::{Cache, Key, Writer, checksum};
use super::fault::Fault;
use super::find_files::files;
use super::record::Record;
use super::records::Records;
use super::room::Room;
use super::sample::{Encoder, Ids, Label};
use super::spec::Task;
use crate::reading;

/// To be increased when the same files and tokenizer give other ids than before, so that ids of earlier versions are
/// not used.
const RENDERING: u32 = 4;
/// Records of a batch.
const RECORDS: usize = 8192;
/// Ids of a long text that are written at once.
const WRITTEN: usize = 1 << 14;

/// Progress in tokenising one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The file or folder that was named.
    pub path: &'a Path,
    /// Bytes read so far.
    pub read: u64,
    /// Bytes of all files.
    pub total: u64,
}

/// The ids of a short sample, and facts about it.
type Encoded = (Vec<u32>, Told);

/// Facts about a sample besides its ids.
#[derive(Debug, Default)]
struct Told {
    label: Option<Label>,
    /// Learned tokens that begin in a prompt and reach into its answer.
    seams: u64,
    /// Labels that the task does not read.
    unread_labels: u64,
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
        // Read before and after, so that a change during the reading is noticed.
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
            let mut records = Records::open(file, self.room)?;
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

    /// A hash of all that the ids depend on. Files count by their content, since other content may have the same length
    /// and time.
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

    /// Encodes the next batch of a file, and the long record that ends it; `false` at the end of the file.
    fn batch(&self, file: &Path, records: &mut Records, writer: &mut Writer) -> Result<bool, DataError> {
        let (mut batch, mut bytes, mut long) = (Vec::new(), 0, None);
        while batch.is_empty() || batch.len() < RECORDS && bytes < self.room.batch {
            let Some(record) = records.next()? else { break };
            if record.bytes() > self.room.batch {
                long = Some(record);
                break;
            }
            bytes += record.bytes();
            batch.push(record);
        }
        let any = !batch.is_empty() || long.is_some();
        for (record, result) in batch.iter().zip(self.encode_all(&batch)) {
            self.write(file, record, result, writer)?;
        }
        drop(batch);
        if let Some(long) = long {
            self.write_long(file, &long, writer)?;
        }
        Ok(any)
    }

    /// Encodes records on all threads; a record that fails does not stop the others.
    fn encode_all(&self, batch: &[Record]) -> Vec<Result<Encoded, Fault>> {
        let share = batch.len().div_ceil(self.room.threads).max(1);
        let encode = |part: &'_ [Record]| -> Vec<_> {
            part.iter().map(|record| encoded(record, self.encoder)).collect()
        };
        thread::scope(|scope| {
            let helpers: Vec<_> = batch.chunks(share).map(|part| scope.spawn(move || encode(part))).collect();
            let join = |helper: thread::ScopedJoinHandle<'_, Vec<_>>| {
                helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            helpers.into_iter().flat_map(join).collect()
        })
    }

    fn write(
        &self,
        file: &Path,
        record: &Record,
        result: Result<Encoded, Fault>,
        writer: &mut Writer,
    ) -> Result<(), DataError> {
        let result = match result {
            // Encoded alone, the sample has more room.
            Err(Fault::Unbroken(_)) => encoded(record, self.alone(record)),
            result => result,
        };
        match result {
            Ok((ids, told)) => {
                writer.write(&ids)?;
                close(file, record, told, writer)
            }
            Err(fault) => self.pass_over(file, record, fault, writer),
        }
    }

    /// Encodes a long record and writes its ids as they come.
    fn write_long(&self, file: &Path, record: &Record, writer: &mut Writer) -> Result<(), DataError> {
        let (mut ids, mut written) = (Vec::with_capacity(WRITTEN), Ok(()));
        let mut each = |id| {
            ids.push(id);
            if ids.len() == WRITTEN && written.is_ok() {
                written = writer.write(&ids);
                ids.clear();
            }
        };
        let result = encode(record, self.alone(record), &mut each);
        written?;
        match result {
            Ok(told) => {
                writer.write(&ids)?;
                close(file, record, told, writer)
            }
            Err(fault) => self.pass_over(file, record, fault, writer),
        }
    }

    /// The encoder for a record that has all of the room.
    fn alone(&self, record: &Record) -> Encoder<'_> {
        let words = self.encoder.tokenizer.parts_at_spaces();
        Encoder { unbroken: self.room.unbroken_alone(&record.extent(), words), ..self.encoder }
    }

    /// Counts a bad sample, if that is allowed. A sample's own faults come before its first id.
    fn pass_over(
        &self,
        file: &Path,
        record: &Record,
        fault: Fault,
        writer: &mut Writer,
    ) -> Result<(), DataError> {
        match fault {
            Fault::All(fault) => Err(fault),
            Fault::Unbroken(bytes) => Err(DataError::TooLong {
                path: file.to_owned(),
                line: (!matches!(record, Record::Piece { .. })).then(|| record.line()),
                bytes: bytes as u64,
                least: self.room.least_unbroken(
                    &record.extent(),
                    self.encoder.tokenizer.parts_at_spaces(),
                    bytes as u64,
                ),
            }),
            Fault::Sample(why) => {
                let said = format!("{}, line {}: {why}", file.display(), record.line());
                let fault = DataError::BadLine { path: file.to_owned(), line: record.line(), why };
                self.pass_over_line(fault, said, writer)
            }
            Fault::Rendering { template, why } => {
                let (path, line) = (file.to_owned(), record.line());
                let said = format!("{}, line {line}: the chat template {why}", path.display());
                self.pass_over_line(DataError::NotRendered { path, line, template, why }, said, writer)
            }
            Fault::Answers { template, message } => {
                let (path, line) = (file.to_owned(), record.line());
                let said =
                    format!("{}, line {line}: the answer of message {message} is unclear", path.display());
                self.pass_over_line(DataError::AnswersUnclear { path, line, template, message }, said, writer)
            }
        }
    }

    fn pass_over_line(&self, fault: DataError, said: String, writer: &mut Writer) -> Result<(), DataError> {
        if !self.skip_bad_lines {
            return Err(fault);
        }
        writer.skip(said);
        Ok(())
    }
}

/// The ids of a record in memory, and facts about it.
fn encoded(record: &Record, encoder: Encoder<'_>) -> Result<Encoded, Fault> {
    let mut ids = Vec::new();
    let told = encode(record, encoder, &mut |id| ids.push(id))?;
    Ok((ids, told))
}

/// Passes the ids of a record to `each`; returns facts about the record.
fn encode(record: &Record, encoder: Encoder<'_>, each: &mut (dyn FnMut(u32) + Send)) -> Result<Told, Fault> {
    reading::step();
    let mut ids = Ids::to(each);
    match record {
        Record::Piece { .. } if matches!(encoder.task, Task::Classify { .. }) => {
            Err(Fault::Sample("a text file has no labels, and `text` and `label` are needed".into()))
        }
        Record::Piece { text, opens, closes } => {
            encoder.piece(text, *opens, *closes, &mut ids)?;
            Ok(Told::default())
        }
        Record::Fields { fields, .. } => {
            let label = encoder.record(fields, &mut ids)?;
            if ids.is_empty() {
                return Err(Fault::Sample("its text has no tokens".into()));
            }
            Ok(Told { label, seams: ids.seams, unread_labels: ids.unread_labels })
        }
        Record::Bad { why, .. } => Err(Fault::Sample(why.clone())),
    }
}

/// Ends a document with its last record.
fn close(file: &Path, record: &Record, told: Told, writer: &mut Writer) -> Result<(), DataError> {
    writer.count(told.seams, told.unread_labels);
    let closes = !matches!(record, Record::Piece { closes: false, .. });
    if closes && !writer.close(told.label) {
        return Err(DataError::MixedLabels { path: file.to_owned() });
    }
    Ok(())
}

/// The length of each file, and when it was written.
fn stamps(files: &[PathBuf]) -> Result<Vec<(u64, Option<SystemTime>)>, DataError> {
    let stamp = |file: &PathBuf| {
        let found = fs::metadata(file).map_err(|fault| DataError::reading(file, &fault))?;
        Ok((found.len(), found.modified().ok()))
    };
    files.iter().map(stamp).collect()
}
