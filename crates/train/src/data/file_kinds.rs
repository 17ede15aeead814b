//! Kinds of data files, by the endings of their names.

use std::path::Path;

/// Endings of files that are lists of samples.
pub(super) const LISTS: [&str; 2] = ["jsonl", "parquet"];
/// Endings of files that are one text.
pub(super) const TEXTS: [&str; 3] = ["txt", "md", "rs"];
/// Endings of data that would be mistaken for text.
pub(super) const FOREIGN: [&str; 12] =
    ["json", "csv", "tsv", "xml", "arrow", "gz", "zst", "xz", "bz2", "zip", "safetensors", "bin"];

/// Whether the name of a file has one of these endings.
pub(super) fn ends_in(path: &Path, endings: &[&str]) -> bool {
    path.extension().is_some_and(|end| endings.iter().any(|known| end == *known))
}
