//! Recovery after a killed run: finds half-written and half-removed checkpoints by their temporary names.
//!
//! A checkpoint takes the place of an older one of the same step in three renames and a removal:
//!
//! ```text
//! .tmp-checkpoint-4 whole | checkpoint-4 → .tmp-old-checkpoint-4 | .tmp-checkpoint-4 → checkpoint-4 | .tmp-old-… removed
//! ```
//!
//! A kill between the renames leaves no `checkpoint-4`, but both the new and the old one are whole. So a temporary that
//! is whole gets the name; otherwise the old one gets it back.

use std::fs;
use std::path::Path;

use super::names::{Kind, Name, discarded, is_taken, temporaries};
use super::own::remove;
use super::state::{Checkpoint, Fault};
use crate::files::{FileError, UNFINISHED, sync_folder};

/// Finishes the renames that a killed run had begun, and removes its temporary files.
pub(super) fn recover(folder: &Path) -> Result<(), FileError> {
    for kind in Kind::ALL {
        for step in temporaries(folder, kind)? {
            finish(folder, Name { kind, step })?;
        }
        for step in discarded(folder, kind)? {
            remove(&Name { kind, step }.discarded(folder))?;
        }
    }
    remove(&folder.join(UNFINISHED))
}

fn finish(folder: &Path, name: Name) -> Result<(), FileError> {
    let [temporary, old, path] = [name.temporary(folder), name.discarded(folder), name.path(folder)];
    if is_taken(&path)? {
        return remove(&temporary);
    }
    let rename = |from: &Path| {
        fs::rename(from, &path).map_err(|fault| FileError::writing(&path, &fault))?;
        sync_folder(folder)
    };
    match Checkpoint::examine(&temporary) {
        Ok(_) => return rename(&temporary),
        // The unreadable checkpoint may be the only one of its step.
        Err(Fault::Unreadable(fault)) => return Err(fault),
        Err(Fault::Broken(_) | Fault::Foreign(_)) => {}
    }
    if is_taken(&old)? && Checkpoint::examine(&old).is_ok() {
        rename(&old)?;
    }
    remove(&temporary)
}
