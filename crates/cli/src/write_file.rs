//! Files appear whole or not at all: written to a sibling, synced, renamed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::exit::Failure;

/// Writes `contents` to `path`; what was there before stays until the new file is complete.
pub(crate) fn whole(path: &Path, contents: &[u8]) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::Other(format!("cannot write `{}`: {error}", path.display()));
    let Some(name) = path.file_name() else {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it names no file")));
    };
    let mut sibling_name = name.to_owned();
    sibling_name.push(format!(".{}.part", std::process::id()));
    let sibling = path.with_file_name(sibling_name);
    let written = File::create(&sibling)
        .and_then(|mut file| file.write_all(contents).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&sibling, path));
    written.map_err(|error| {
        // Half a file is of no use; that it cannot be removed either is not what went wrong.
        let _ = fs::remove_file(&sibling);
        failed(error)
    })
}
