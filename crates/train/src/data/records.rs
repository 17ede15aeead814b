//! Files as streams of samples: text in pieces, `.jsonl` line by line, `.parquet` row by row.
//!
//! A text file is one document. It is read in pieces that end after a line break followed by something other than white
//! space, or between two words if there is none. Tokenizers split there anyway, so the ids are those of the whole text
//! (except that a tokenizer which marks the first word of every text also marks the first word of a piece). Memory
//! holds only the current piece, line (see `lines`) or row group. Text for which there is no room is refused before it
//! is read, with the budget it needs.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::DataError;
use super::file_kinds::ends_in;
use super::lines::Lines;
use super::parquet_rows::ParquetRows;
use super::record::{Record, too_long};
use super::room::{Extent, Room};
use crate::reading;

/// Bytes of a piece of text, if there is room for so many.
const PIECE: usize = 1 << 18;
/// Bytes that are searched for the end of a piece that is too long.
const LOOKED_THROUGH: u64 = 1 << 28;

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
                let Some(record) = rows.next(path)? else { return Ok(None) };
                if record.bytes() > self.room.batch && !self.room.holds(&record.extent()) {
                    return Err(too_long(path, Some(record.line()), &record.extent(), &self.room));
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

    /// Bytes of the file up to the next place to cut. The search is limited; beyond the limit, the bytes to the end of
    /// the file.
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

/// Where a text can be cut: after its last line break that is followed by something other than white space, or else
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
