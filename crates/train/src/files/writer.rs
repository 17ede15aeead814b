//! A safetensors file, written in pieces.
//!
//! Names, types and shapes come first, because the header does; then the numbers of one tensor after the other, in the
//! order of [`TensorWriter::tensors`]. Bytes are hashed as they are written, so that a checkpoint need not read them
//! again for its checksum.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::Dtype;
use sha2::{Digest, Sha256};

use super::{Checksum, FileError};

/// Name, type and shape of a tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// The tensor's name in the file.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Extents.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Size in bytes. Only types of whole bytes are written here.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * (self.dtype.bitsize() as u64 / 8)
    }
}

/// A file under way.
#[derive(Debug)]
pub struct TensorWriter {
    path: PathBuf,
    out: BufWriter<File>,
    hash: Sha256,
    tensors: Vec<TensorSpec>,
    /// The tensor whose numbers come next, and how many of its bytes are written.
    current: usize,
    filled: u64,
    written: u64,
}

impl TensorWriter {
    /// Creates the file and writes its header.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn create(path: &Path, mut tensors: Vec<TensorSpec>) -> Result<TensorWriter, FileError> {
        // Wide elements first keeps every tensor aligned to its own element, as the format's library does.
        tensors.sort_by(|a, b| b.dtype.bitsize().cmp(&a.dtype.bitsize()).then_with(|| a.name.cmp(&b.name)));
        let file = File::create(path).map_err(|fault| FileError::writing(path, &fault))?;
        let mut writer = TensorWriter {
            path: path.to_owned(),
            out: BufWriter::with_capacity(256 << 10, file),
            hash: Sha256::new(),
            tensors,
            current: 0,
            filled: 0,
            written: 0,
        };
        let header = header(&writer.tensors);
        writer.put(&(header.len() as u64).to_le_bytes())?;
        writer.put(&header)?;
        writer.pass_over_empty();
        Ok(writer)
    }

    /// The tensors in the order in which their numbers are expected.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// Writes the next numbers of the tensor whose turn it is, in its element type.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn write(&mut self, values: &[f32]) -> Result<(), FileError> {
        let dtype = self.tensors.get(self.current).map_or(Dtype::F32, |spec| spec.dtype);
        let mut bytes = [0; 4 << 10];
        for values in values.chunks(1 << 10) {
            let count = encode(dtype, values, &mut bytes);
            self.write_bytes(&bytes[..count])?;
        }
        Ok(())
    }

    /// Writes the next bytes of the tensor whose turn it is.
    ///
    /// Panics when that tensor has fewer left: pieces are cut to tensors by the caller.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        let whole = self.tensors.get(self.current).map_or(0, TensorSpec::bytes);
        self.filled += bytes.len() as u64;
        assert!(self.filled <= whole, "more bytes than `{}` has in its shape", self.path.display());
        if self.filled == whole {
            (self.current, self.filled) = (self.current + 1, 0);
            self.pass_over_empty();
        }
        self.put(bytes)
    }

    /// Brings the file to the disk.
    ///
    /// Panics when numbers are missing.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn finish(mut self) -> Result<Checksum, FileError> {
        assert!(self.current == self.tensors.len(), "numbers are missing in {}", self.path.display());
        let unwritable = |fault: std::io::Error| FileError::writing(&self.path, &fault);
        self.out.flush().map_err(unwritable)?;
        self.out.get_ref().sync_all().map_err(unwritable)?;
        Ok(Checksum { bytes: self.written, sha256: super::hex(&self.hash.finalize()) })
    }

    /// A tensor without elements has no bytes to write.
    fn pass_over_empty(&mut self) {
        while self.tensors.get(self.current).is_some_and(|spec| spec.bytes() == 0) {
            self.current += 1;
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.hash.update(bytes);
        self.written += bytes.len() as u64;
        self.out.write_all(bytes).map_err(|fault| FileError::writing(&self.path, &fault))
    }
}

/// The JSON of a file, padded so that the data begins at a multiple of 8.
fn header(tensors: &[TensorSpec]) -> Vec<u8> {
    let mut entries = serde_json::Map::new();
    entries.insert("__metadata__".into(), serde_json::json!({ "format": "pt" }));
    let mut begin = 0;
    for spec in tensors {
        let end = begin + spec.bytes();
        let entry = serde_json::json!({
            "dtype": spec.dtype.to_string(),
            "shape": spec.shape,
            "data_offsets": [begin, end],
        });
        entries.insert(spec.name.clone(), entry);
        begin = end;
    }
    let mut header = serde_json::Value::Object(entries).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    header
}

/// Turns numbers into the bytes of a file; returns how many bytes they took.
fn encode(dtype: Dtype, values: &[f32], bytes: &mut [u8]) -> usize {
    match dtype {
        Dtype::BF16 => {
            for (bytes, value) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                *bytes = bf16::from_f32(*value).to_le_bytes();
            }
            2 * values.len()
        }
        Dtype::F16 => {
            for (bytes, value) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                *bytes = f16::from_f32(*value).to_le_bytes();
            }
            2 * values.len()
        }
        other => {
            assert!(other == Dtype::F32, "floats are written as F32, BF16 or F16, not {other}");
            for (bytes, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                *bytes = value.to_le_bytes();
            }
            4 * values.len()
        }
    }
}
