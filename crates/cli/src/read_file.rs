//! Whole files that a command is given: plans, graphs, tables. Pipes are read too, and none without end.

use std::fs::File;
use std::io;
use std::path::Path;

use plimsoll::training::files::{LARGE, read_whole};

/// The text of a file.
pub(crate) fn text(path: &Path) -> io::Result<String> {
    let no_text = |_| io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8");
    String::from_utf8(read_whole(path, File::open(path)?, LARGE)?).map_err(no_text)
}
