//! How much of a disk is free, which the standard library does not tell.
#![allow(unsafe_code, reason = "the system is asked by a call that fills in a structure")]

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes that a user without privileges can still write to the file system of `folder`.
///
/// # Errors
///
/// When the folder does not exist or the system cannot tell.
pub fn free_disk_bytes(folder: &Path) -> io::Result<u64> {
    let name = CString::new(folder.as_os_str().as_bytes())?;
    let mut found = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `name` ends with a zero and lives through the call; `found` has room for the structure.
    if unsafe { libc::statvfs(name.as_ptr(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has filled in the structure.
    let found = unsafe { found.assume_init() };
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_some_room_and_one_that_is_not_there_is_an_error() {
        assert!(free_disk_bytes(&std::env::temp_dir()).unwrap() > 0);
        assert!(free_disk_bytes(Path::new("/no-such-folder")).is_err());
    }
}
