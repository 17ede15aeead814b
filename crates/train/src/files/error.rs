//! Faults of a file of a model or of a checkpoint: one sentence each, naming the file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use plimsoll_exec::ExecError;

/// A fault of a file, with the way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileError {
    /// The file's content is wrong.
    Wrong {
        /// The file or folder.
        path: PathBuf,
        /// The fault, and the way out.
        why: String,
    },
    /// The system does not let us read the file.
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// The system's words.
        why: String,
    },
    /// The system does not let us write the file: no room, no permission.
    Unwritable {
        /// The file or folder.
        path: PathBuf,
        /// The system's words.
        why: String,
    },
}

impl FileError {
    pub(crate) fn wrong(path: &Path, why: impl Into<String>) -> FileError {
        FileError::Wrong { path: path.to_owned(), why: why.into() }
    }

    pub(crate) fn reading(path: &Path, fault: &io::Error) -> FileError {
        FileError::Unreadable { path: path.to_owned(), why: words(fault) }
    }

    pub(crate) fn writing(path: &Path, fault: &io::Error) -> FileError {
        FileError::Unwritable { path: path.to_owned(), why: words(fault) }
    }

    /// Whether other files or another folder would help.
    pub fn is_users(&self) -> bool {
        !matches!(self, FileError::Unwritable { .. })
    }
}

fn words(fault: &io::Error) -> String {
    match fault.kind() {
        io::ErrorKind::NotFound => "it does not exist".to_owned(),
        io::ErrorKind::StorageFull => "the disk is full".to_owned(),
        _ => fault.to_string(),
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::Wrong { path, why } => write!(f, "{} {why}", path.display()),
            FileError::Unreadable { path, why } => {
                write!(f, "{} cannot be read ({why}); check the path and its permissions", path.display())
            }
            FileError::Unwritable { path, why } => write!(
                f,
                "{} cannot be written ({why}); make room or give another folder; what was saved before is untouched",
                path.display()
            ),
        }
    }
}

impl std::error::Error for FileError {}

/// A fault between weight files and a device.
#[derive(Debug)]
pub enum WeightError {
    /// A fault of a file.
    File(FileError),
    /// A fault of the device that holds the numbers.
    Device(ExecError),
}

impl fmt::Display for WeightError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeightError::File(error) => error.fmt(f),
            WeightError::Device(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for WeightError {}

impl From<FileError> for WeightError {
    fn from(error: FileError) -> WeightError {
        WeightError::File(error)
    }
}

impl From<ExecError> for WeightError {
    fn from(error: ExecError) -> WeightError {
        WeightError::Device(error)
    }
}
