//! The names in a folder, for tests that say what a run leaves there.

use std::path::Path;

/// Names of all entries of a folder, in order; none where there is no such folder.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
