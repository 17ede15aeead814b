//! Files appear whole or not at all: written to a sibling with a name of its own, synced, renamed.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::temporary_file;

/// Writes `contents` to `path`; the old file stays until the new one is complete.
///
/// # Errors
///
/// When the folder cannot be written to.
pub fn write_whole(path: &Path, contents: &[u8]) -> io::Result<()> {
    let (Some(name), Some(folder)) = (path.file_name(), path.parent()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it names no file"));
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let begins = format!("{}.", name.to_string_lossy());
    let (mut file, sibling) = temporary_file(folder, (&begins, ".part"), 0o666)?;
    let written = file.write_all(contents).and_then(|()| file.sync_all());
    let written = written.and_then(|()| fs::rename(&sibling, path));
    written.inspect_err(|_| {
        // Half a file is of no use; a failure to remove it is not the error to report.
        let _ = fs::remove_file(&sibling);
    })
}
