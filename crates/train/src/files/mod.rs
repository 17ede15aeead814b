//! Models in folders, as the Hugging Face hub stores them: read, and written.
//!
//! In order of use: a [`TensorFile`] is one safetensors file, a [`ModelFolder`] all of a model's files;
//! [`load_weights`] reads each parameter straight into its place in the arena, and [`save_weights`] writes them from
//! there. Both this module and checkpoints write with [`TensorWriter`]. Nothing here holds a tensor: numbers pass
//! through buffers of about a MiB.
//!
//! Absent: the meaning of `config.json` (crate `model`), tokenizers, downloads.

mod beside;
mod byte_models;
mod error;
mod folder;
mod quantised;
mod quantised_tensor;
mod temporary;
mod tensors;
mod weights;
mod whole;
mod write;
mod writer;

pub(crate) use beside::{
    MORE_TEMPLATES, beside, copy_beside, goes_along, own_subfolder, refuse_links_elsewhere,
};
#[cfg(feature = "hub")]
pub(crate) use beside::{MOST_TEMPLATES, is_template};
pub(crate) use byte_models::{TOKENS, reads_bytes};
pub use error::{FileError, WeightError};
pub(crate) use folder::Index;
pub use folder::ModelFolder;
pub use plimsoll_model::hf::StoredName;
pub use quantised::QuantisedBase;
pub use quantised_tensor::QuantisedTensor;
pub use safetensors::Dtype;
pub use temporary::{check_writable, clear_temporaries, temporary_file};
pub use tensors::{StoredTensor, TensorFile};
pub use weights::{Loaded, ModelFormat, WholeState, load_weights, save_weights};
pub(crate) use weights::{in_file, write_model};
pub(crate) use whole::{UNFINISHED, index, replace_model};
pub use write::write_whole;
pub use writer::{TensorSpec, TensorWriter};

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::memory::Size;
use crate::reading;

/// Length and SHA-256 of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checksum {
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256 of the whole file, in hexadecimal.
    pub sha256: String,
}

impl Checksum {
    /// Reads a file to its end.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn of(path: &Path) -> Result<Checksum, FileError> {
        let unreadable = |fault: io::Error| FileError::reading(path, &fault);
        let mut file = open_file(path).map_err(unreadable)?;
        let (mut hash, mut bytes, mut piece) = (Sha256::new(), 0, vec![0; 256 << 10]);
        loop {
            match file.read(&mut piece) {
                Ok(0) => return Ok(Checksum { bytes, sha256: hex(&hash.finalize()) }),
                Ok(count) => {
                    reading::step();
                    hash.update(&piece[..count]);
                    bytes += count as u64;
                }
                Err(fault) if fault.kind() == io::ErrorKind::Interrupted => {}
                Err(fault) => return Err(unreadable(fault)),
            }
        }
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])).collect()
}

/// Writes a small file and brings it to the disk.
pub(crate) fn write_text(path: &Path, text: &str) -> Result<Checksum, FileError> {
    let unwritable = |fault: io::Error| FileError::writing(path, &fault);
    let mut file = File::create(path).map_err(unwritable)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(unwritable)?;
    Ok(Checksum { bytes: text.len() as u64, sha256: hex(&Sha256::digest(text)) })
}

/// Copies a file and brings the copy to the disk.
pub(crate) fn copy_file(from: &Path, to: &Path) -> Result<Checksum, FileError> {
    let unwritable = |fault: io::Error| FileError::writing(to, &fault);
    let mut source = open_file(from).map_err(|fault| FileError::reading(from, &fault))?;
    let mut copy = File::create(to).map_err(unwritable)?;
    io::copy(&mut source, &mut copy).and_then(|_| copy.sync_all()).map_err(unwritable)?;
    Checksum::of(to)
}

/// Brings a folder's list of names to the disk: until then a new name in it may be lost.
pub(crate) fn sync_folder(path: &Path) -> Result<(), FileError> {
    let synced = File::open(path).and_then(|folder| folder.sync_all());
    synced.map_err(|fault| FileError::writing(path, &fault))
}

/// Creates a folder and its missing parents, and syncs the names of all of them to disk.
///
/// # Errors
///
/// When one cannot be made.
pub fn create_folder(path: &Path) -> io::Result<()> {
    let missing = path.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
    let missing: Vec<&Path> = missing.collect();
    fs::create_dir_all(path)?;
    for folder in missing {
        let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(())
}

/// Opens a regular file to read it. Anything else at that path is not opened: a pipe would block until someone writes,
/// and a device may have no end.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    if fs::metadata(path)?.is_file() { File::open(path) } else { Err(io::Error::other("it is not a file")) }
}

/// The most bytes of a file that is read whole: settings, indices, states. The largest published index has 9 MB.
pub const SMALL: u64 = 32 << 20;

/// The most bytes of a vocabulary, a plan or a graph. The largest published `tokenizer.json` has 33 MB.
pub const LARGE: u64 = 256 << 20;

/// All of a small file.
pub(crate) fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    read_whole(path, open_file(path)?, SMALL)
}

/// The contents of an open file of at most `most` bytes, whatever length the system reports.
pub fn read_whole(path: &Path, file: File, most: u64) -> io::Result<Vec<u8>> {
    reading::begin(path);
    read_open(file, most)
}

/// As [`read_whole`], of a file whose reading has been announced.
pub(crate) fn read_open(file: File, most: u64) -> io::Result<Vec<u8>> {
    let too_long = || io::Error::other(format!("it has more than {}", Size { bytes: most }));
    let said = file.metadata()?.len();
    if said > most {
        return Err(too_long());
    }
    let mut bytes = Vec::with_capacity(said as usize);
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_long()) } else { Ok(bytes) }
}

/// The text of a whole file that the user names: a plan, a graph, a table. Pipes are read too, up to a limit.
///
/// # Errors
///
/// When it cannot be read, has more than [`LARGE`] bytes or is no text.
pub fn read_any_text(path: &Path) -> io::Result<String> {
    let no_text = |_| io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8");
    String::from_utf8(read_whole(path, File::open(path)?, LARGE)?).map_err(no_text)
}

/// Reads a small file as text.
pub(crate) fn read_text(path: &Path) -> Result<String, FileError> {
    let unreadable = |fault: io::Error| FileError::reading(path, &fault);
    let no_text = |_| unreadable(io::Error::other("stream did not contain valid UTF-8"));
    String::from_utf8(read_bytes(path).map_err(unreadable)?).map_err(no_text)
}

/// Whether a name found in a file refers to something inside that file's folder.
pub(crate) fn stays_inside(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    !name.is_empty() && parts.all(|part| matches!(part, Component::Normal(_)))
}
