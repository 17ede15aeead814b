//! The files that a path of the data stands for.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::DataError;
use super::file_kinds::{FOREIGN, LISTS, TEXTS, ends_in};

/// The files of a path: itself, or the files below a folder in the order of their paths. If a folder holds files of
/// samples, these are the data set, and texts beside them only describe it.
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
            // Anything except a file, such as a pipe, is no data, whatever its name.
            if found.is_file() {
                files.push(path);
            }
        }
    }
    Ok(())
}
