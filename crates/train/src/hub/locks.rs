//! Locks on blobs, shared with Python's library: one process downloads a file, the others wait for it.
//!
//! The locks are the system's and end with their process. On a file system that has none, downloads are kept apart by
//! the names of their partial files instead.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::fault::Fault;
use crate::files::FileError;

/// Time between two looks at a lock that another process holds.
const LOOK: Duration = Duration::from_millis(50);

/// A lock that lasts as long as this value.
#[derive(Debug)]
pub(super) struct Lock {
    /// Absent where the file system has no locks.
    file: Option<File>,
}

impl Lock {
    /// Whether others are kept out.
    pub(super) fn holds(&self) -> bool {
        self.file.is_some()
    }

    /// The lock at `path`, if no process holds it.
    pub(super) fn now(path: &Path) -> io::Result<Option<Lock>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(_)) => return Ok(Some(Lock { file: None })),
        }
        // Another process may have removed the file when it released its lock: then this lock excludes nobody.
        let (held, named) = (file.metadata()?, fs::symlink_metadata(path));
        let same = named.is_ok_and(|named| (named.dev(), named.ino()) == (held.dev(), held.ino()));
        Ok(same.then_some(Lock { file: Some(file) }))
    }

    /// Waits for the lock at `path`, as long as its holder makes the file at `growing` longer.
    pub(super) fn wait(path: &Path, growing: &Path, stall: Duration) -> Result<Lock, Fault> {
        let length = || fs::symlink_metadata(growing).map_or(0, |partial| partial.len());
        let (mut last, mut since) = (length(), Instant::now());
        loop {
            if let Some(lock) = Lock::now(path).map_err(|fault| Fault::writing(path, &fault))? {
                return Ok(lock);
            }
            let now = length();
            if now != last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() >= stall {
                let why = format!(
                    "is held by another process that downloads the same file, and nothing came for {stall:?}; wait for \
                     its end, or end it"
                );
                return Err(Fault::Cache(FileError::wrong(path, why)));
            }
            thread::sleep(LOOK.min(stall));
        }
    }
}
