//! Tokenised documents in one file, written once and read in windows.
//!
//! ```text
//! 0    magic, key of what it was made from, five counts, checksum of the rest, checksum of this   HEADER bytes
//!      ids        u32 × tokens       the highest bit is set in ids that are not learned from
//!      ends       u64 × documents    one past the last id of each
//!      labels     i32 × documents    or none at all
//!      notes      JSON: names of the labels, what was wrong with the first sample that was passed over,
//!                 and how many learned tokens begin before their answer
//! ```
//!
//! All numbers are little-endian. The file is written under another name and renamed when it is whole. A file that is
//! too short, fails its checksums or was made from something else is ignored. Memory holds the ends and the labels, 8
//! to 12 bytes per document; ids are read when a row needs them.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use super::DataError;
use super::sample::Label;
use crate::files::temporary_file;
use crate::reading;

const MAGIC: &[u8; 16] = b"plimsoll ids 01\n";
/// Magic, key, five counts, two checksums.
const HEADER: usize = 16 + 32 + 5 * 8 + 2 * 4;
/// Bytes read at once to check a file.
const PIECE: usize = 1 << 20;
/// Part of the name of a file that is not whole yet.
const PARTIAL: &str = ".partial-";
/// Ids written at once.
const WRITTEN: usize = 1 << 14;

/// Files, tokenizer and settings that a cache was made from, hashed.
pub(super) type Key = [u8; 32];

/// Tokenised documents on disk.
#[derive(Debug)]
pub(super) struct Cache {
    path: PathBuf,
    file: File,
    ends: Vec<u64>,
    labels: Vec<i32>,
    notes: Notes,
    sum: u32,
}

/// Notes about the samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Notes {
    /// Names of the labels, in the order they came; none when the data has numbers as labels.
    pub(super) names: Vec<String>,
    /// Samples that were skipped.
    pub(super) skipped: u64,
    /// The fault of the first skipped sample.
    pub(super) first_skipped: Option<String>,
    /// Learned tokens that begin in a prompt and reach into its answer.
    pub(super) seams: u64,
    /// Samples with a label that their task does not read.
    pub(super) unread_labels: u64,
}

impl Cache {
    /// The cache at `path`, if it exists, is whole, and was made from the data of `key`.
    pub(super) fn open(path: &Path, key: &Key) -> Option<Cache> {
        let mut file = File::open(path).ok()?;
        let mut header = [0; HEADER];
        file.read_exact(&mut header).ok()?;
        let counts = header_counts(&header, key)?;
        let [tokens, documents, labels, notes, _] = counts;
        let parts = [tokens.checked_mul(4)?, documents.checked_mul(8)?, labels.checked_mul(4)?, notes];
        let body = parts.into_iter().try_fold(0u64, u64::checked_add)?;
        let whole = file.metadata().ok()?.len() == body.checked_add(HEADER as u64)?;
        let sum = number(&header, HEADER - 8);
        if !whole || checksum(&mut file).ok()? != sum {
            return None;
        }
        file.seek(SeekFrom::Start(HEADER as u64 + parts[0])).ok()?;
        let mut read = |bytes: u64| -> Option<Vec<u8>> {
            let mut part = vec![0; usize::try_from(bytes).ok()?];
            file.read_exact(&mut part).ok()?;
            Some(part)
        };
        let ends = read(parts[1])?.as_chunks().0.iter().map(|&bytes| u64::from_le_bytes(bytes)).collect();
        let labels = read(parts[2])?.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect();
        let notes = Notes::from_json(&serde_json::from_slice(&read(parts[3])?).ok()?, counts[4])?;
        Some(Cache { path: path.to_owned(), file, ends, labels, notes, sum })
    }

    /// Checksum of ids, documents and labels.
    pub(super) fn sum(&self) -> u32 {
        self.sum
    }

    /// How many documents there are.
    pub(super) fn documents(&self) -> usize {
        self.ends.len()
    }

    /// Where the ids of a document stand.
    pub(super) fn document(&self, which: usize) -> std::ops::Range<u64> {
        let first = which.checked_sub(1).map_or(0, |before| self.ends[before]);
        first..self.ends[which]
    }

    /// Labels, one per document; none when the data has no labels.
    pub(super) fn labels(&self) -> &[i32] {
        &self.labels
    }

    pub(super) fn notes(&self) -> &Notes {
        &self.notes
    }

    /// Reads `bytes.len() / 4` ids from the id at `first` on.
    pub(super) fn read(&self, first: u64, bytes: &mut [u8]) -> Result<(), DataError> {
        let read = self.file.read_exact_at(bytes, HEADER as u64 + 4 * first);
        read.map_err(|fault| DataError::reading(&self.path, &fault))
    }
}

impl Notes {
    fn to_json(&self) -> Json {
        json!({
            "names": self.names,
            "first_skipped": self.first_skipped,
            "seams": self.seams,
            "unread_labels": self.unread_labels,
        })
    }

    fn from_json(json: &Json, skipped: u64) -> Option<Notes> {
        let names = json["names"].as_array()?.iter().map(|name| name.as_str().map(str::to_owned));
        let first_skipped = json["first_skipped"].as_str().map(str::to_owned);
        let seams = json["seams"].as_u64()?;
        // Files of earlier versions do not count labels.
        let unread_labels = json["unread_labels"].as_u64().unwrap_or(0);
        Some(Notes { names: names.collect::<Option<_>>()?, skipped, first_skipped, seams, unread_labels })
    }
}

fn header_counts(header: &[u8; HEADER], key: &Key) -> Option<[u64; 5]> {
    let sound = crc32c::crc32c(&header[..HEADER - 4]) == number(header, HEADER - 4);
    if !sound || header[..16] != MAGIC[..] || header[16..48] != key[..] {
        return None;
    }
    let counts = header[48..HEADER - 8].as_chunks::<8>().0;
    let mut each = counts.iter().map(|&bytes| u64::from_le_bytes(bytes));
    Some(std::array::from_fn(|_| each.next().unwrap_or(0)))
}

fn number(header: &[u8; HEADER], at: usize) -> u32 {
    u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

/// Checksum from the current position of the file to its end.
pub(super) fn checksum(file: &mut File) -> io::Result<u32> {
    let (mut piece, mut sum) = (vec![0; PIECE], 0);
    loop {
        reading::step();
        match file.read(&mut piece)? {
            0 => return Ok(sum),
            count => sum = crc32c::crc32c_append(sum, &piece[..count]),
        }
    }
}

/// A cache in the making.
pub(super) struct Writer {
    path: PathBuf,
    partial: PathBuf,
    out: BufWriter<File>,
    sum: u32,
    tokens: u64,
    ends: Vec<u64>,
    labels: Vec<i32>,
    notes: Notes,
    numbered: bool,
}

impl Writer {
    /// Begins the cache that will be at `path`.
    pub(super) fn create(path: &Path) -> Result<Writer, DataError> {
        let fault = |fault: io::Error| unwritten(path, &fault);
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(fault)?;
        clear_litter(folder);
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let (file, partial) = locked_file(folder, &format!("{stem}{PARTIAL}")).map_err(fault)?;
        let mut out = BufWriter::with_capacity(PIECE, file);
        reading::unfinished(&partial);
        out.write_all(&[0; HEADER]).map_err(fault)?;
        let (ends, labels, notes) = (Vec::new(), Vec::new(), Notes::default());
        let path = path.to_owned();
        Ok(Writer { path, partial, out, sum: 0, tokens: 0, ends, labels, notes, numbered: false })
    }

    /// Adds ids to the current document.
    pub(super) fn write(&mut self, ids: &[u32]) -> Result<(), DataError> {
        self.tokens += ids.len() as u64;
        let mut bytes = Vec::with_capacity(4 * WRITTEN.min(ids.len()));
        for ids in ids.chunks(WRITTEN) {
            bytes.clear();
            bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
            self.put(&bytes)?;
        }
        Ok(())
    }

    /// Ends the current document. Returns `false` if its label is a number and earlier labels are names, or if its label
    /// is a name and earlier ones are numbers.
    pub(super) fn close(&mut self, label: Option<Label>) -> bool {
        self.ends.push(self.tokens);
        let number = match label {
            None => return true,
            Some(Label::Number(number)) => {
                self.numbered = true;
                number
            }
            Some(Label::Name(name)) => {
                let known = self.notes.names.iter().position(|known| *known == name);
                known.unwrap_or_else(|| {
                    self.notes.names.push(name);
                    self.notes.names.len() - 1
                }) as i32
            }
        };
        self.labels.push(number);
        !self.numbered || self.notes.names.is_empty()
    }

    /// Counts a sample that is skipped.
    pub(super) fn skip(&mut self, why: String) {
        self.notes.skipped += 1;
        self.notes.first_skipped.get_or_insert(why);
    }

    /// Counts learned tokens that begin in a prompt and reach into its answer, and labels that are not read.
    pub(super) fn count(&mut self, seams: u64, unread_labels: u64) {
        self.notes.seams += seams;
        self.notes.unread_labels += unread_labels;
    }

    pub(super) fn notes(&self) -> &Notes {
        &self.notes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Writes the parts after the ids, and gives the file its name.
    pub(super) fn finish(mut self, key: &Key) -> Result<Cache, DataError> {
        let (ends, labels) = (std::mem::take(&mut self.ends), std::mem::take(&mut self.labels));
        self.put(&ends.iter().flat_map(|end| end.to_le_bytes()).collect::<Vec<u8>>())?;
        self.put(&labels.iter().flat_map(|label| label.to_le_bytes()).collect::<Vec<u8>>())?;
        let notes = self.notes.to_json().to_string();
        self.put(notes.as_bytes())?;
        let counts =
            [self.tokens, ends.len() as u64, labels.len() as u64, notes.len() as u64, self.notes.skipped];
        let mut header = [&MAGIC[..], key].concat();
        header.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
        header.extend(self.sum.to_le_bytes());
        header.extend(crc32c::crc32c(&header).to_le_bytes());

        let fault = |fault: io::Error| unwritten(&self.path, &fault);
        self.out.flush().map_err(fault)?;
        let file = self.out.get_ref().try_clone().map_err(fault)?;
        file.write_all_at(&header, 0).map_err(fault)?;
        file.sync_all().map_err(fault)?;
        fs::rename(&self.partial, &self.path).map_err(fault)?;
        let notes = std::mem::take(&mut self.notes);
        Ok(Cache { path: self.path.clone(), file, ends, labels, notes, sum: self.sum })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        self.sum = crc32c::crc32c_append(self.sum, bytes);
        self.out.write_all(bytes).map_err(|fault| unwritten(&self.path, &fault))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // After a successful renaming, no file has the partial name any more.
        let _ = fs::remove_file(&self.partial);
        reading::unfinished(Path::new(""));
    }
}

/// Creates a file that stays locked while it is written, which distinguishes it from the remains of a killed run.
fn locked_file(folder: &Path, begins: &str) -> io::Result<(File, PathBuf)> {
    loop {
        let (file, path) = temporary_file(folder, (begins, ""), 0o666)?;
        // On a file system without locks, no file counts as a leftover either.
        let locked = file.lock().is_ok();
        // Another process may have removed the file as a leftover before it was locked.
        if !locked || path.exists() {
            return Ok((file, path));
        }
    }
}

/// Removes the files of runs that were killed while they wrote.
fn clear_litter(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let partial = entry.file_name().to_str().is_some_and(|name| name.contains(PARTIAL));
        let plain = entry.file_type().is_ok_and(|kind| kind.is_file());
        if partial && plain && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
            // A file that stays does no harm.
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn unwritten(path: &Path, fault: &io::Error) -> DataError {
    DataError::Cache { path: path.to_owned(), why: fault.to_string() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn files_of_killed_runs_go_and_those_of_running_ones_and_links_stay() {
        let folder = Scratch::new();
        let precious = folder.write("precious", "kept");
        folder.write("cache/0123.partial-77", "of a run that was killed");
        let link = folder.path().join("cache/4567.partial-78");
        symlink(&precious, &link).unwrap();
        let cache = folder.path().join("cache/0123.ids");
        let (one, other) = (Writer::create(&cache).unwrap(), Writer::create(&cache).unwrap());
        assert!(one.partial.exists() && other.partial.exists(), "two that run at once");
        let mut names: Vec<PathBuf> =
            fs::read_dir(link.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        let mut expected = vec![one.partial.clone(), other.partial.clone(), link];
        expected.sort();
        assert_eq!(names, expected);
        drop((one.finish(&[0; 32]).unwrap(), other));
        assert!(Cache::open(&cache, &[0; 32]).is_some());
        assert_eq!(fs::read_to_string(precious).unwrap(), "kept");
    }
}
