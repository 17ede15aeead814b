//! Files as streams of samples: text in pieces, `.jsonl` line by line, `.parquet` row by row.
//!
//! A text file is one document. It is handed out in pieces that end behind a line break with something other than
//! white space after it, or between two words where there is none: tokenizers split there anyway, so the ids are those
//! of the whole text (one that marks the first word of every text will mark the first of a piece too). Nothing is held in
//! memory but the piece, the line (see `lines`) or the row group at hand, and text for which there is no room is refused
//! before it is read, with the budget it needs.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

use super::DataError;
use super::lines::Lines;
use super::parquet_rows::ParquetRows;
use super::room::{Extent, Form, Room};
use crate::reading;

/// Bytes of a piece of text, where there is room for that.
const PIECE: usize = 1 << 18;
/// Bytes that are looked through for the end of a piece that is too long.
const LOOKED_THROUGH: u64 = 1 << 28;

/// Endings of files that are lists of samples, and of files that are one text.
pub(super) const LISTS: [&str; 2] = ["jsonl", "parquet"];
pub(super) const TEXTS: [&str; 3] = ["txt", "md", "rs"];
/// Endings of data that would be mistaken for text.
const FOREIGN: [&str; 12] =
    ["json", "csv", "tsv", "xml", "arrow", "gz", "zst", "xz", "bz2", "zip", "safetensors", "bin"];

/// One thing read from a file.
#[derive(Debug)]
pub(super) enum Record {
    /// Part of a document.
    Piece { text: String, opens: bool, closes: bool },
    /// A sample with named columns, and its line or row, counted from 1.
    Fields { line: u64, fields: Map<String, Json>, bytes: usize },
    /// A line that is no sample.
    Bad { line: u64, why: String },
}

impl Record {
    /// About how much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Record::Piece { text, .. } => text.len(),
            Record::Fields { bytes, .. } => *bytes,
            Record::Bad { why, .. } => why.len(),
        }
    }

    /// What it takes until it is encoded.
    pub(super) fn extent(&self) -> Extent {
        let bytes = self.bytes() as u64;
        match self {
            Record::Fields { fields, .. } => {
                let conversation =
                    fields.contains_key("messages") || fields.get("prompt").is_some_and(Json::is_array);
                let form = if conversation { Form::Conversation } else { Form::Escaped };
                Extent { bytes, form, values: 0 }
            }
            Record::Piece { .. } | Record::Bad { .. } => Extent::of_text(bytes),
        }
    }

    /// Its line or row; a piece of text has no number.
    pub(super) fn line(&self) -> u64 {
        match self {
            Record::Piece { .. } => 1,
            Record::Fields { line, .. } | Record::Bad { line, .. } => *line,
        }
    }
}

/// The files a path stands for: itself, or what is below a folder, in the order of their paths. A folder with lists of
/// samples is a data set, and the texts beside them describe it.
pub(super) fn files(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    if ends_in(path, &FOREIGN) && path.is_file() {
        return Err(DataError::UnknownKind { path: path.to_owned() });
    }
    let mut all = files_below(path, |path| ends_in(path, &LISTS) || ends_in(path, &TEXTS))?;
    let is_list = |path: &PathBuf| ends_in(path, &LISTS);
    if all.iter().any(is_list) {
        all.retain(is_list);
    }
    Ok(all)
}

/// Whether [`files`] finds lists of samples at a path, or data that it refuses to take for text.
pub(crate) fn holds_samples(path: &Path) -> bool {
    match files(path) {
        Ok(files) => files.iter().any(|file| ends_in(file, &LISTS)),
        Err(fault) => matches!(fault, DataError::UnknownKind { .. }),
    }
}

/// The file at `path`, or the files below the folder there whose names are `wanted`, in the order of their paths. Links to
/// files are followed, links to folders are not: they may form circles.
pub(super) fn files_below(path: &Path, wanted: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>, DataError> {
    let found = fs::metadata(path).map_err(|fault| match fault.kind() {
        io::ErrorKind::NotFound => DataError::Missing { path: path.to_owned() },
        _ => DataError::reading(path, &fault),
    })?;
    if found.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    if !found.is_dir() {
        return Err(DataError::NotAFile { path: path.to_owned() });
    }
    let mut files = Vec::new();
    collect(path, &wanted, &mut files)?;
    if files.is_empty() {
        return Err(DataError::NoFiles { path: path.to_owned() });
    }
    // The order in which a folder lists its files differs between machines.
    files.sort_unstable();
    Ok(files)
}

fn collect(
    folder: &Path,
    wanted: &impl Fn(&Path) -> bool,
    files: &mut Vec<PathBuf>,
) -> Result<(), DataError> {
    let unreadable = |fault: io::Error| DataError::reading(folder, &fault);
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let path = entry.path();
        if entry.file_type().map_err(unreadable)?.is_dir() {
            collect(&path, wanted, files)?;
        } else if wanted(&path) {
            let found = fs::metadata(&path).map_err(|fault| DataError::reading(&path, &fault))?;
            // Anything but a file, such as a pipe, is no data whatever its name.
            if found.is_file() {
                files.push(path);
            }
        }
    }
    Ok(())
}

pub(super) fn ends_in(path: &Path, endings: &[&str]) -> bool {
    path.extension().is_some_and(|end| endings.iter().any(|known| end == *known))
}

/// The samples of one file.
pub(super) struct Records {
    path: PathBuf,
    /// Longer records are refused.
    room: Room,
    reader: Reader,
}

enum Reader {
    Text(Text),
    Lines(Lines),
    Rows(ParquetRows),
}

struct Text {
    input: File,
    /// Read and not yet handed out.
    rest: Vec<u8>,
    read: u64,
    opens: bool,
    done: bool,
}

impl Records {
    /// Records for which there is no room are refused.
    pub(super) fn open(path: &Path, room: Room) -> Result<Records, DataError> {
        let fault = |fault: io::Error| DataError::reading(path, &fault);
        let input = File::open(path).map_err(fault)?;
        let reader = if ends_in(path, &["jsonl"]) {
            Reader::Lines(Lines::new(input))
        } else if ends_in(path, &["parquet"]) {
            Reader::Rows(ParquetRows::open(path, input)?)
        } else {
            Reader::Text(Text { input, rest: Vec::new(), read: 0, opens: true, done: false })
        };
        Ok(Records { path: path.to_owned(), room, reader })
    }

    /// Bytes of the file that have been read.
    pub(super) fn read(&self) -> u64 {
        match &self.reader {
            Reader::Text(text) => text.read,
            Reader::Lines(lines) => lines.read(),
            Reader::Rows(rows) => rows.read(),
        }
    }

    /// The next record; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Record>, DataError> {
        let path = &self.path;
        match &mut self.reader {
            Reader::Text(text) => text.next(path, &self.room),
            Reader::Lines(lines) => lines.next(path, &self.room),
            Reader::Rows(rows) => {
                let Some((line, fields)) = rows.next(path)? else { return Ok(None) };
                let bytes = fields.values().map(size).sum();
                let record = Record::Fields { line, fields, bytes };
                if bytes > self.room.batch && !self.room.holds(&record.extent()) {
                    return Err(too_long(path, Some(line), &record.extent(), &self.room));
                }
                Ok(Some(record))
            }
        }
    }
}

impl Text {
    fn next(&mut self, path: &Path, room: &Room) -> Result<Option<Record>, DataError> {
        if self.done {
            return Ok(None);
        }
        let piece = PIECE.min(room.batch / 2).max(1);
        loop {
            let had = self.rest.len();
            let unreadable = |fault| DataError::reading(path, &fault);
            let longer = Extent::of_text((had + piece) as u64);
            if had > room.batch && !room.holds(&longer) {
                let whole = had as u64 + self.until_seam().map_err(unreadable)?;
                return Err(too_long(path, None, &Extent::of_text(whole.max(longer.bytes)), room));
            }
            // A list that grows by itself would double.
            self.rest.reserve_exact(piece);
            let count = (&self.input).take(piece as u64).read_to_end(&mut self.rest).map_err(unreadable)?;
            self.read += count as u64;
            if count == 0 {
                self.done = true;
                if self.rest.is_empty() && self.opens {
                    return Ok(None);
                }
                let last = std::mem::take(&mut self.rest);
                return self.piece(path, last, true);
            }
            if let Some(at) = last_seam(&self.rest, had) {
                let behind = self.rest.split_off(at);
                let piece = std::mem::replace(&mut self.rest, behind);
                return self.piece(path, piece, false);
            }
        }
    }

    /// Bytes of the file up to the end of the part with the next place to cut at. It is looked for only so far; then the
    /// bytes are those to the end of the file.
    fn until_seam(&mut self) -> io::Result<u64> {
        let mut looked = 0;
        while looked < LOOKED_THROUGH {
            reading::step();
            let had = self.rest.len().min(2);
            self.rest.drain(..self.rest.len() - had);
            let count = (&self.input).take(PIECE as u64).read_to_end(&mut self.rest)?;
            looked += count as u64;
            if count == 0 || last_seam(&self.rest, had).is_some() {
                return Ok(looked);
            }
        }
        let (file, here) = (self.input.metadata()?.len(), self.read + looked);
        Ok(looked + file.saturating_sub(here))
    }

    fn piece(&mut self, path: &Path, bytes: Vec<u8>, closes: bool) -> Result<Option<Record>, DataError> {
        let text = String::from_utf8(bytes).map_err(|fault| {
            let before = self.read - self.rest.len() as u64 - fault.as_bytes().len() as u64;
            let at = before + fault.utf8_error().valid_up_to() as u64;
            let why = format!("byte {at} is not UTF-8 text");
            DataError::Unreadable { path: path.to_owned(), why }
        })?;
        let opens = std::mem::take(&mut self.opens);
        Ok(Some(Record::Piece { text, opens, closes }))
    }
}

/// Where a text can be cut: behind its last line break that is followed by something other than white space, or else
/// before its last single space.
fn last_seam(text: &[u8], from: usize) -> Option<usize> {
    let places = || (from.max(1)..text.len()).rev();
    let line = |&at: &usize| text[at - 1] == b'\n' && text[at] > b' ';
    let word = |&at: &usize| {
        let ahead = text.get(at + 1).is_some_and(|&ahead| ahead > b' ');
        text[at] == b' ' && text[at - 1].is_ascii_alphanumeric() && ahead
    };
    places().find(line).or_else(|| places().find(word))
}

pub(super) fn too_long(path: &Path, line: Option<u64>, extent: &Extent, room: &Room) -> DataError {
    DataError::TooLong { path: path.to_owned(), line, bytes: extent.bytes, least: room.least(extent) }
}

/// About how many bytes a value takes.
fn size(value: &Json) -> usize {
    match value {
        Json::String(text) => text.len(),
        Json::Array(values) => values.iter().map(size).sum(),
        Json::Object(fields) => fields.iter().map(|(name, value)| name.len() + size(value)).sum(),
        Json::Null | Json::Bool(_) | Json::Number(_) => 8,
    }
}
