//! Writing into the cache. Nothing is written through a link inside it: a folder of the cache that is a link is refused,
//! and names that are links are replaced, not followed.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::blobs::Blob;
use super::cache::CachedModel;
use super::fault::Fault;
use super::locks::Lock;
use super::names::is_full_commit;
use crate::files::{FileError, sync_folder, temporary_file};

/// Endings of partial files: ours and Python's, and those of the library used before.
const INCOMPLETE: &str = "incomplete";
const PART: &str = "part";
/// Age at which an unlocked partial file counts as abandoned. Until then its owner may want to continue it.
const GIVEN_UP: Duration = Duration::from_hours(7 * 24);
/// Beginning of the names of refs that are being written.
const NEW_REF: &str = ".new-ref-";

/// One commit of a model in the cache, to be filled.
#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
    blobs: PathBuf,
    snapshot: PathBuf,
    locks: PathBuf,
    commit: String,
}

impl Store {
    /// Makes the folders of a commit.
    pub(super) fn open(model: &CachedModel, commit: &str) -> Result<Store, Fault> {
        fs::create_dir_all(&model.root).map_err(|fault| Fault::writing(&model.root, &fault))?;
        let folder = own_folder(&model.root, &model.name)?;
        Ok(Store {
            blobs: own_folder(&folder, "blobs")?,
            snapshot: own_folder(&own_folder(&folder, "snapshots")?, commit)?,
            locks: own_folder(&own_folder(&model.root, ".locks")?, &model.name)?,
            folder,
            commit: commit.to_owned(),
        })
    }

    /// The commit's folder.
    pub(super) fn snapshot(&self) -> &Path {
        &self.snapshot
    }

    /// The folder of contents.
    pub(super) fn blobs(&self) -> &Path {
        &self.blobs
    }

    /// Where the content of a blob is, or will be.
    pub(super) fn path(&self, blob: &Blob) -> PathBuf {
        self.blobs.join(&blob.name)
    }

    /// Whether a blob is here, whole.
    pub(super) fn holds(&self, blob: &Blob, size: u64) -> bool {
        plain_file(&self.path(blob)).is_some_and(|found| found.len() == size)
    }

    /// Waits for the right to download a blob.
    pub(super) fn lock(&self, blob: &Blob, stall: Duration) -> Result<Lock, Fault> {
        Lock::wait(&self.lock_path(&blob.name), &self.shared_partial(blob), stall)
    }

    fn lock_path(&self, blob: &str) -> PathBuf {
        self.locks.join(format!("{blob}.lock"))
    }

    fn shared_partial(&self, blob: &Blob) -> PathBuf {
        self.blobs.join(format!("{}.{INCOMPLETE}", blob.name))
    }

    /// Where a blob is downloaded to. Without a lock to exclude others, the file gets a unique name, and the next start
    /// does not continue it.
    pub(super) fn partial(&self, blob: &Blob, lock: &Lock) -> Result<PathBuf, Fault> {
        if !lock.holds() {
            let around = (&*format!("{}.", blob.name), &*format!(".{INCOMPLETE}"));
            let named = temporary_file(&self.blobs, around, 0o666).map(|(_, path)| path);
            return named.map_err(|fault| Fault::writing(&self.blobs, &fault));
        }
        let (path, older) = (self.shared_partial(blob), self.blobs.join(format!("{}.{PART}", blob.name)));
        if fs::symlink_metadata(&path).is_err() && plain_file(&older).is_some() {
            // If it cannot be taken over, the download begins anew.
            let _ = fs::rename(&older, &path);
        }
        Ok(path)
    }

    /// Gives a blob its name in the commit's folder.
    pub(super) fn link(&self, name: &str, blob: &Blob) -> Result<(), Fault> {
        let (mut folder, mut up) = (self.snapshot.clone(), PathBuf::from("../.."));
        // Templates beside the usual one lie in a folder of their own.
        if let Some((inner, _)) = name.split_once('/') {
            folder = own_folder(&folder, inner)?;
            up.push("..");
        }
        let (path, target) = (self.snapshot.join(name), up.join("blobs").join(&blob.name));
        if fs::read_link(&path).is_ok_and(|found| found == target) {
            return Ok(());
        }
        let linked = match fs::symlink_metadata(&path) {
            // Python's library stores files here on file systems without links.
            Ok(found) if found.is_file() => return Ok(()),
            Ok(found) if found.is_symlink() => fs::remove_file(&path).and_then(|()| symlink(&target, &path)),
            _ => symlink(&target, &path),
        };
        linked.map_err(|fault| Fault::writing(&path, &fault))?;
        sync_folder(&folder).map_err(Fault::Cache)
    }

    /// Notes that `revision` is this commit.
    pub(super) fn set_ref(&self, revision: &str) -> Result<(), Fault> {
        if is_full_commit(revision) {
            return Ok(());
        }
        let (parents, name) = revision.rsplit_once('/').unwrap_or(("", revision));
        let mut folder = own_folder(&self.folder, "refs")?;
        for part in parents.split('/').filter(|part| !part.is_empty()) {
            folder = own_folder(&folder, part)?;
        }
        let path = folder.join(name);
        let failed = |fault: io::Error| Fault::writing(&path, &fault);
        // Written beside the locks, since every file among the refs counts as one.
        let (mut file, new) = temporary_file(&self.locks, (NEW_REF, ""), 0o666).map_err(failed)?;
        let written = file.write_all(self.commit.as_bytes()).and_then(|()| file.sync_all());
        written.and_then(|()| fs::rename(&new, &path)).map_err(|fault| {
            let _ = fs::remove_file(&new);
            failed(fault)
        })?;
        sync_folder(&folder).map_err(Fault::Cache)
    }

    /// Removes partial files that nothing will continue: those whose blob is complete, and those untouched for days. A
    /// file whose lock is held is left alone.
    pub(super) fn clear_litter(&self) {
        for (path, name) in entries(&self.blobs) {
            let Some((blob, rest)) = name.split_once('.') else { continue };
            let partial = [INCOMPLETE, PART].contains(&rest.rsplit('.').next().unwrap_or_default());
            let useless = plain_file(&self.blobs.join(blob)).is_some() || given_up(&path);
            if partial && useless && matches!(Lock::now(&self.lock_path(blob)), Ok(Some(_))) {
                // A file that stays does no harm.
                let _ = fs::remove_file(&path);
            }
        }
        for (path, name) in entries(&self.locks) {
            if name.starts_with(NEW_REF) && given_up(&path) {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

/// A folder of the cache's own, made where it is missing. A link in its place would send the files elsewhere.
fn own_folder(parent: &Path, name: &str) -> Result<PathBuf, Fault> {
    let path = parent.join(name);
    match fs::create_dir(&path) {
        Err(fault) if fault.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Fault::writing(&path, &fault));
        }
        _ => {}
    }
    if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
        return Ok(path);
    }
    let why = "is a link or a file where the cache has a folder of its own; remove it, or name another cache with \
               HF_HUB_CACHE";
    Err(Fault::Cache(FileError::wrong(&path, why)))
}

/// The files of a folder whose names are text.
fn entries(folder: &Path) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| Some((entry.path(), entry.file_name().into_string().ok()?)));
    named.collect()
}

/// Whether a file has not been written to for long.
fn given_up(path: &Path) -> bool {
    let touched = fs::symlink_metadata(path).and_then(|found| found.modified());
    touched.is_ok_and(|touched| touched.elapsed().is_ok_and(|age| age > GIVEN_UP))
}

/// Whether a plain file is at `path`: no link, no folder.
pub(super) fn plain_file(path: &Path) -> Option<fs::Metadata> {
    fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)
}
