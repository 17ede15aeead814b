//! The cache as Python's library lays it out, and the reading of it.
//!
//! ```text
//! models--owner--name/refs/main                          the commit that `main` was when it was last asked for
//! models--owner--name/snapshots/<commit>/config.json     a link to ../../blobs/<tag>
//! models--owner--name/blobs/<tag>                        the content, under its hash
//! .locks/models--owner--name/<tag>.lock                  held while a blob is downloaded
//! ```

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::names::{is_commit, is_file_name, is_full_commit};
use crate::files::reads_bytes;
use crate::files::{Index, read_bytes};

/// The weights in one file, and the list of them where they are in several.
pub(super) const SINGLE: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// One model in a cache.
#[derive(Debug)]
pub(super) struct CachedModel {
    /// The cache.
    pub(super) root: PathBuf,
    /// The name of the model's folder in the cache.
    pub(super) name: String,
}

impl CachedModel {
    /// The place of the model `id`, which must have the form of an id.
    pub(super) fn new(root: &Path, id: &str) -> CachedModel {
        CachedModel { root: root.to_owned(), name: format!("models--{}", id.replace('/', "--")) }
    }

    /// The model's folder.
    pub(super) fn folder(&self) -> PathBuf {
        self.root.join(&self.name)
    }

    /// The folder of a revision that is here with everything it needs.
    pub(super) fn complete(&self, revision: &str) -> Option<PathBuf> {
        let folder = self.folder().join("snapshots").join(self.commit(revision)?);
        if !folder.join("config.json").exists() {
            return None;
        }
        let weights = if folder.join(INDEX).exists() {
            shards(&folder.join(INDEX)).ok()?
        } else {
            BTreeSet::from([SINGLE.to_owned()])
        };
        let tokens = folder.join("tokenizer.json").exists() || reads_bytes(&folder);
        (tokens && weights.iter().all(|name| folder.join(name).exists())).then_some(folder)
    }

    /// The commit of a revision when the hub was last asked.
    fn commit(&self, revision: &str) -> Option<String> {
        if is_full_commit(revision) {
            return Some(revision.to_owned());
        }
        let mut text = String::new();
        let file = File::open(self.folder().join("refs").join(revision)).ok()?;
        file.take(1024).read_to_string(&mut text).ok()?;
        let commit = text.trim();
        is_commit(commit).then(|| commit.to_owned())
    }
}

/// The files that an index names.
///
/// # Errors
///
/// When it cannot be read, or names a file of another folder.
pub(super) fn shards(index: &Path) -> io::Result<BTreeSet<String>> {
    let index: Index = serde_json::from_slice(&read_bytes(index)?)?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    match names.iter().find(|name| !is_file_name(name)) {
        Some(name) => {
            let shown = name.escape_debug();
            Err(io::Error::other(format!("the index names `{shown}`, which is another folder")))
        }
        None => Ok(names),
    }
}
