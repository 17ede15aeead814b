//! One safetensors file, read in pieces.
//!
//! ```text
//! | n: u64 | n bytes of JSON: name → dtype, shape, [begin, end) | data, every byte of it in one tensor |
//! ```
//!
//! Only the header is held in memory, and nothing in it is trusted: the tensors must fill the rest of the file without
//! a gap, and each must be as long as its shape says, or the file is refused with the name of the tensor. Reading uses
//! the caller's buffer and a small one on the stack, whatever the tensor's size. Absent: memory mapping, whose pages
//! would count beside the arena's.

mod header;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::Dtype;

use super::{FileError, open_file};
use crate::reading;

/// The longest header that is read: 100 MB, the limit the format's own library has.
const LONGEST_HEADER: u64 = 100_000_000;
/// Bytes of a header that are in memory at once.
const HEADER_PIECE: usize = 64 << 10;
/// Bytes read at a time while numbers are converted.
const PIECE: usize = 16 << 10;

/// A safetensors file whose header has been checked.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: File,
    tensors: BTreeMap<String, StoredTensor>,
    metadata: BTreeMap<String, String>,
}

/// Where a tensor lies in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// Element type.
    pub dtype: Dtype,
    /// Extents.
    pub shape: Vec<usize>,
    /// First byte in the file.
    begin: u64,
    /// Size in bytes.
    pub bytes: u64,
}

impl TensorFile {
    /// Opens a file and checks its header against its length.
    ///
    /// # Errors
    ///
    /// When it cannot be read, is cut off, or its header contradicts itself.
    pub fn open(path: &Path) -> Result<TensorFile, FileError> {
        reading::begin(path);
        let unreadable = |fault: io::Error| FileError::reading(path, &fault);
        let file = open_file(path).map_err(unreadable)?;
        let found = file.metadata().map_err(unreadable)?;
        let mut length = [0; 8];
        if found.len() < 8 {
            return Err(FileError::wrong(path, "is too short for a safetensors file; fetch it again"));
        }
        file.read_exact_at(&mut length, 0).map_err(unreadable)?;
        let length = u64::from_le_bytes(length);
        if length > LONGEST_HEADER {
            return Err(FileError::wrong(path, "does not begin like a safetensors file; fetch it again"));
        }
        let begin = 8 + length;
        if begin > found.len() {
            return Err(FileError::wrong(path, "is cut off inside its header; fetch it again"));
        }
        let text = BufReader::with_capacity(HEADER_PIECE, HeaderText { file: &file, at: 8, end: begin });
        let (tensors, metadata) = header::parse(text, begin, found.len() - begin)
            .map_err(|why| FileError::wrong(path, format!("{why}; fetch the file again")))?;
        Ok(TensorFile { path: path.to_owned(), file, tensors, metadata })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tensors by name.
    pub fn tensors(&self) -> &BTreeMap<String, StoredTensor> {
        &self.tensors
    }

    /// Metadata of the file as a whole.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Reads numbers of a tensor from element `first` on.
    ///
    /// # Errors
    ///
    /// When the tensor does not hold floats or is shorter, or the file cannot be read.
    pub fn read(&self, name: &str, first: usize, values: &mut [f32]) -> Result<(), FileError> {
        let dtype = self.tensor(name)?.dtype;
        let width = match dtype {
            Dtype::F32 => 4,
            Dtype::BF16 | Dtype::F16 => 2,
            other => {
                let why = format!("holds `{name}` as {other}; weights are read from F32, BF16 or F16");
                return Err(FileError::wrong(&self.path, why));
            }
        };
        let mut bytes = [0; PIECE];
        for (piece, values) in values.chunks_mut(PIECE / width).enumerate() {
            let bytes = &mut bytes[..values.len() * width];
            let at = first + piece * (PIECE / width);
            self.read_bytes(name, (at * width) as u64, bytes)?;
            decode(dtype, bytes, values);
        }
        Ok(())
    }

    /// Reads a tensor as it lies in the file, from byte `first` of the tensor on.
    ///
    /// # Errors
    ///
    /// When the tensor is shorter or the file cannot be read.
    pub fn read_bytes(&self, name: &str, first: u64, bytes: &mut [u8]) -> Result<(), FileError> {
        let tensor = self.tensor(name)?;
        if first + bytes.len() as u64 > tensor.bytes {
            let why = format!("holds {} bytes of `{name}`, fewer than are asked for", tensor.bytes);
            return Err(FileError::wrong(&self.path, why));
        }
        let read = self.file.read_exact_at(bytes, tensor.begin + first);
        read.map_err(|fault| FileError::reading(&self.path, &fault))
    }

    /// Whether the tensor `own` has the same numbers as `theirs` in `other`, perhaps in another element type. Both tensors
    /// are read a piece at a time, up to the first difference.
    ///
    /// # Errors
    ///
    /// When one of them is not there, does not hold floats, or cannot be read.
    pub fn same_numbers(&self, own: &str, other: &TensorFile, theirs: &str) -> Result<bool, FileError> {
        let shape = &self.tensor(own)?.shape;
        if *shape != other.tensor(theirs)?.shape {
            return Ok(false);
        }
        let elements: usize = shape.iter().product();
        let mut pieces = [vec![0.0; PIECE], vec![0.0; PIECE]];
        for first in (0..elements).step_by(PIECE) {
            reading::step();
            let [ours, others] = pieces.each_mut().map(|piece| &mut piece[..PIECE.min(elements - first)]);
            self.read(own, first, ours)?;
            other.read(theirs, first, others)?;
            // Compared as bits, so that a NaN equals its copy.
            if !ours.iter().zip(others.iter()).all(|(a, b)| a.to_bits() == b.to_bits()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// CRC-32C of a tensor as it lies in the file.
    ///
    /// # Errors
    ///
    /// When it is not there or cannot be read.
    pub fn checksum(&self, name: &str) -> Result<u32, FileError> {
        let bytes = self.tensor(name)?.bytes;
        let (mut sum, mut first, mut piece) = (0, 0, vec![0; 16 * PIECE]);
        while first < bytes {
            reading::step();
            let count = (bytes - first).min(piece.len() as u64) as usize;
            self.read_bytes(name, first, &mut piece[..count])?;
            sum = crc32c::crc32c_append(sum, &piece[..count]);
            first += count as u64;
        }
        Ok(sum)
    }

    /// A tensor by name.
    ///
    /// # Errors
    ///
    /// When the file has none of that name.
    pub fn tensor(&self, name: &str) -> Result<&StoredTensor, FileError> {
        let tensor = self.tensors.get(name);
        tensor.ok_or_else(|| FileError::wrong(&self.path, format!("holds no tensor `{name}`")))
    }
}

/// The bytes of a header, one after the other.
struct HeaderText<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for HeaderText<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        reading::step();
        let most = (self.end - self.at).min(into.len() as u64) as usize;
        let count = self.file.read_at(&mut into[..most], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// Turns the bytes of a file into numbers.
fn decode(dtype: Dtype, bytes: &[u8], values: &mut [f32]) {
    match dtype {
        Dtype::F32 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
        Dtype::BF16 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = bf16::from_le_bytes(*bytes).to_f32();
            }
        }
        _ => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = f16::from_le_bytes(*bytes).to_f32();
            }
        }
    }
}

#[cfg(test)]
mod tests;
