//! Text files as token sequences, read piece by piece.
//!
//! Memory holds an index, one entry per file, one open file and a buffer of at most [`PIECE`] bytes. Each file is a
//! document: [`BEGIN`], its bytes, [`END`]. The stream of all documents is cut every `seq_len` tokens, wherever that
//! falls, and the target of a position is the next token of the stream; after [`END`] that is the [`BEGIN`] of the next
//! document. The very last token has no successor, so no sequence is made for it alone.
//!
//! Files must not change during a run: a length or a modification time that differs is an error, because the index
//! would point into other text. Empty files of a folder are skipped. Absent: checksums, compressed files, links to
//! folders (they may form circles).

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::cache::checksum;
use super::file_kinds::{TEXTS, ends_in};
use super::find_files::files_below;
use super::{BEGIN, BYTE_VOCABULARY, DataError, END, IGNORED, Order, PAD, Rows, check_seq_len};

/// The most bytes that are read at once.
const PIECE: usize = 64 * 1024;

/// A file or a folder of text, seen as sequences of `seq_len` tokens.
#[derive(Debug)]
pub struct Text {
    documents: Vec<Document>,
    tokens: u64,
    seq_len: usize,
    order: Order,
    /// The file read last, with its place in `documents`.
    open: Option<(usize, File)>,
    piece: Vec<u8>,
}

#[derive(Debug)]
struct Document {
    path: PathBuf,
    bytes: u64,
    modified: Option<SystemTime>,
    /// Where the document's [`BEGIN`] stands in the stream.
    first_token: u64,
}

impl Document {
    /// One past the document's [`END`] in the stream.
    fn end_token(&self) -> u64 {
        self.first_token + self.bytes + 2
    }

    fn describes(&self, found: &Metadata) -> bool {
        found.len() == self.bytes && found.modified().ok() == self.modified
    }
}

impl Text {
    /// Indexes the file at `path`, or all `.txt`, `.md` and `.rs` files below the folder at `path` in
    /// the order of their paths. `vocabulary` is the model's.
    pub fn open(path: &Path, seq_len: usize, vocabulary: usize, order: Order) -> Result<Text, DataError> {
        check_seq_len(seq_len)?;
        if vocabulary < BYTE_VOCABULARY {
            return Err(DataError::Vocabulary { vocabulary, needed: BYTE_VOCABULARY });
        }
        let documents = index(path)?;
        let tokens = documents.last().map_or(0, Document::end_token);
        if tokens == 0 {
            return Err(DataError::Empty { path: path.to_owned() });
        }
        if tokens < seq_len as u64 {
            return Err(DataError::TooShort { tokens, seq_len });
        }
        let piece = vec![0; seq_len.min(PIECE)];
        Ok(Text { documents, tokens, seq_len, order, open: None, piece })
    }

    /// Tokens of the whole stream.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Positions in a sequence.
    pub fn seq_len(&self) -> usize {
        self.seq_len
    }

    /// Sequences in an epoch, an incomplete last one included.
    pub fn sequences(&self) -> u64 {
        (self.tokens - 1).div_ceil(self.seq_len as u64)
    }

    /// A checksum of all documents.
    pub(super) fn mark(&self) -> Result<String, DataError> {
        let of = |document: &Document| {
            let sum = File::open(&document.path).and_then(|mut file| checksum(&mut file));
            sum.map_err(|fault| DataError::reading(&document.path, &fault))
        };
        let sums = self.documents.iter().map(of).collect::<Result<Vec<u32>, DataError>>()?;
        let all: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        Ok(format!("{:08x} in {} tokens", crc32c::crc32c(&all), self.tokens))
    }

    pub(super) fn fill_row(&mut self, epoch: u64, index: u64, mut row: Rows<'_>) -> Result<(), DataError> {
        assert!(index < self.sequences(), "sequence {index} of {}", self.sequences());
        let sequence = self.order.sequence_at(epoch, index, self.sequences());
        let first = sequence * self.seq_len as u64;
        let left = self.tokens - first;
        let present = left.min(self.seq_len as u64) as usize;

        self.read_tokens(first, &mut row.tokens[..present], &mut row.doc_start[..present])?;
        row.targets[..present - 1].copy_from_slice(&row.tokens[1..present]);
        row.targets[present - 1] = IGNORED;
        if left > present as u64 {
            self.read_tokens(first + present as u64, &mut row.targets[present - 1..], &mut [0])?;
        }
        row.ignore_from(present, PAD);
        Ok(())
    }

    /// Copies the stream from token `first` on, and notes where in `tokens` each document starts.
    fn read_tokens(
        &mut self,
        first: u64,
        tokens: &mut [i32],
        doc_start: &mut [i32],
    ) -> Result<(), DataError> {
        let mut which = self.documents.partition_point(|document| document.end_token() <= first);
        let mut at = 0;
        while at < tokens.len() {
            let document = &self.documents[which];
            let offset = first + at as u64 - document.first_token;
            let rest = document.end_token() - document.first_token - offset;
            let end = at + rest.min((tokens.len() - at) as u64) as usize;
            self.read_document(which, offset, &mut tokens[at..end])?;
            doc_start[at..end].fill(at as i32);
            (at, which) = (end, which + 1);
        }
        Ok(())
    }

    /// Copies tokens of one document, `offset` tokens behind its [`BEGIN`].
    fn read_document(&mut self, which: usize, offset: u64, tokens: &mut [i32]) -> Result<(), DataError> {
        let bytes = self.documents[which].bytes;
        let mut at = 0;
        if offset == 0 {
            tokens[0] = BEGIN;
            at = 1;
        }
        while at < tokens.len() {
            let byte = offset + at as u64 - 1;
            if byte == bytes {
                tokens[at] = END;
                return Ok(());
            }
            let count = (tokens.len() - at).min(self.piece.len()).min((bytes - byte) as usize);
            self.read_piece(which, byte, count)?;
            for (token, &byte) in tokens[at..at + count].iter_mut().zip(&self.piece) {
                *token = i32::from(byte);
            }
            at += count;
        }
        Ok(())
    }

    /// Reads `count` bytes at `offset` of a file into the front of `piece`.
    fn read_piece(&mut self, which: usize, offset: u64, count: usize) -> Result<(), DataError> {
        let document = &self.documents[which];
        let fault = |fault: io::Error| match fault.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof => {
                DataError::Changed { path: document.path.clone() }
            }
            _ => DataError::reading(&document.path, &fault),
        };
        let mut file = match self.open.take() {
            Some((open, file)) if open == which => file,
            _ => File::open(&document.path).map_err(fault)?,
        };
        file.seek(SeekFrom::Start(offset)).map_err(fault)?;
        file.read_exact(&mut self.piece[..count]).map_err(fault)?;
        // Checked after reading, so that a change during the read is seen too.
        if !document.describes(&file.metadata().map_err(fault)?) {
            return Err(DataError::Changed { path: document.path.clone() });
        }
        self.open = Some((which, file));
        Ok(())
    }
}

/// One entry per file with text in it, at their places in the stream.
fn index(path: &Path) -> Result<Vec<Document>, DataError> {
    let mut documents: Vec<Document> = Vec::new();
    for path in files_below(path, |path| ends_in(path, &TEXTS))? {
        let found = File::open(&path).and_then(|file| file.metadata());
        let found = found.map_err(|fault| DataError::reading(&path, &fault))?;
        if found.len() > 0 {
            let first_token = documents.last().map_or(0, Document::end_token);
            let (bytes, modified) = (found.len(), found.modified().ok());
            documents.push(Document { path, bytes, modified, first_token });
        }
    }
    Ok(documents)
}

#[cfg(test)]
mod tests;
