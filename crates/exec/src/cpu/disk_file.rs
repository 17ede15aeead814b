//! The file behind the disk tier: without a name, past the page cache if possible, and reserved in full.
#![allow(unsafe_code, reason = "the standard library has no call that reserves space on a disk")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::room::free_disk_bytes;
use crate::ExecError;

/// A nameless file in `folder`, past the page cache if the file system allows it.
pub(super) fn open(folder: &Path) -> Result<(File, bool), ExecError> {
    let nameless = |flags: i32| {
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE | flags).open(folder)
    };
    match nameless(libc::O_DIRECT) {
        Ok(file) => Ok((file, true)),
        Err(_) => nameless(0).map(|file| (file, false)).map_err(|error| {
            ExecError::Device(format!("cannot make a file for offload in {}: {error}", folder.display()))
        }),
    }
}

/// Takes the space now, so that a full disk cannot end a run half-way.
///
/// The system's own call is used, not the library's `posix_fallocate`: where the file system cannot reserve space
/// (ext2), that writes single bytes, which a file past the page cache does not accept. `zeros` are then written instead:
/// whole pages of them.
pub(super) fn reserve(file: &File, folder: &Path, bytes: u64, zeros: &[u8]) -> io::Result<()> {
    let length = i64::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    loop {
        // SAFETY: the descriptor belongs to `file`, which is alive.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) } == 0 {
            return Ok(());
        }
        let fault = io::Error::last_os_error();
        match fault.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => return fill(file, folder, bytes, zeros),
            _ => return Err(fault),
        }
    }
}

/// Takes the space by writing all of it, once the file system has said that it has room.
fn fill(file: &File, folder: &Path, bytes: u64, zeros: &[u8]) -> io::Result<()> {
    if free_disk_bytes(folder)? < bytes {
        return Err(io::Error::from(io::ErrorKind::StorageFull));
    }
    for offset in (0..bytes).step_by(zeros.len()) {
        let piece = (bytes - offset).min(zeros.len() as u64) as usize;
        file.write_all_at(&zeros[..piece], offset)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn space_is_taken_by_writing_where_it_cannot_be_reserved() {
        let folder = std::env::temp_dir();
        let (file, _) = open(&folder).unwrap();
        let mut pages = super::super::bounce::Bounce::new();
        let bytes = (5 << 20) + 4096;
        fill(&file, &folder, bytes, pages.bytes()).unwrap();
        let found = file.metadata().unwrap();
        assert_eq!(found.len(), bytes);
        assert!(found.blocks() * 512 >= bytes, "{} blocks are taken", found.blocks());
        let fault = fill(&file, &folder, 1 << 60, pages.bytes()).unwrap_err();
        assert_eq!(fault.kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.metadata().unwrap().len(), bytes, "nothing is written that cannot be written whole");
    }
}
