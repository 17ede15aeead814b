//! Temporary files under unpredictable names, created exclusively: a link that someone has put in the way is never
//! followed, and no file is truncated.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Names that are tried before the folder is given up.
const TRIES: u32 = 100;
/// Beginning of the names of files that only show that a folder can be written.
const PROBE: &str = ".tmp-probe";

/// Creates a file in `folder` with the prefix and suffix in `around`, and with the permissions of `mode` as far as the
/// user's mask allows. The caller renames or removes it.
///
/// # Errors
///
/// When the folder cannot be written.
pub fn temporary_file(folder: &Path, around: (&str, &str), mode: u32) -> io::Result<(File, PathBuf)> {
    for _ in 0..TRIES {
        // The standard library's hash keys come from the system's random numbers.
        let path =
            folder.join(format!("{}{:016x}{}", around.0, RandomState::new().hash_one(TRIES), around.1));
        match OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(&path) {
            Err(fault) if fault.kind() == io::ErrorKind::AlreadyExists => {}
            opened => return opened.map(|file| (file, path)),
        }
    }
    Err(io::Error::from(io::ErrorKind::AlreadyExists))
}

/// Removes temporary files that killed processes left in `folder` under names of this form: plain files of this user, older
/// than `age`. A file that cannot be removed stays: no run depends on it.
pub fn clear_temporaries(folder: &Path, around: (&str, &str), age: Duration) {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    for entry in entries.filter(|entry| has_form(&entry.file_name(), around)) {
        if is_left(&entry.path(), age) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether [`temporary_file`] could have given this name.
fn has_form(name: &OsStr, (prefix, suffix): (&str, &str)) -> bool {
    let middle = name.to_str().and_then(|name| name.strip_prefix(prefix)?.strip_suffix(suffix));
    middle.is_some_and(|middle| middle.len() == 16 && middle.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Whether a path is a plain file of this user, last written longer ago than `age`.
fn is_left(path: &Path, age: Duration) -> bool {
    let Ok(found) = fs::symlink_metadata(path) else { return false };
    // The folder of this process's own entry in `/proc` belongs to its user.
    let own = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == found.uid());
    let old = found.modified().is_ok_and(|written| written.elapsed().is_ok_and(|passed| passed > age));
    found.is_file() && own && old
}

/// Checks that files can be created in a folder, and removes the file of an earlier check that was killed.
///
/// # Errors
///
/// When they cannot.
pub fn check_writable(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PROBE));
        if ours && !entry.file_type()?.is_dir() {
            removed(fs::remove_file(entry.path()))?;
        }
    }
    let (_, path) = temporary_file(folder, (&format!("{PROBE}-"), ""), 0o600)?;
    removed(fs::remove_file(path))
}

/// Two runs that check one folder remove each other's files: then there is nothing left to remove.
fn removed(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(fault) if fault.kind() != io::ErrorKind::NotFound => Err(fault),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::time::SystemTime;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn names_differ_and_files_are_private_where_that_is_asked_for() {
        let folder = Scratch::new();
        let made: Vec<_> =
            (0..50).map(|_| temporary_file(folder.path(), ("a-", ".b"), 0o600).unwrap()).collect();
        let names: BTreeSet<_> = made.iter().map(|(_, path)| path.clone()).collect();
        assert_eq!(names.len(), 50);
        assert_eq!(made[0].0.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn temporary_files_are_cleared_where_they_are_old_and_ours_and_nothing_else() {
        let folder = Scratch::new();
        let names = ["a-0123456789abcdef.b", "a-fedcba9876543210.b", "a-0123.b", "a-0123456789abcdef.c"];
        for name in names {
            let file = File::options().write(true).open(folder.write(name, "")).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_hours(2)).unwrap();
        }
        let fresh = folder.write(names[1], "");
        File::options().write(true).open(&fresh).unwrap().set_modified(SystemTime::now()).unwrap();
        symlink(&fresh, folder.path().join("a-aaaaaaaaaaaaaaaa.b")).unwrap();
        fs::create_dir(folder.path().join("a-bbbbbbbbbbbbbbbb.b")).unwrap();
        clear_temporaries(folder.path(), ("a-", ".b"), Duration::from_hours(1));
        let left: BTreeSet<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(!left.contains(OsStr::new(names[0])) && left.len() == 5, "{left:?}");
    }

    #[test]
    fn looking_whether_a_folder_can_be_written_truncates_nothing_and_leaves_nothing() {
        let folder = Scratch::new();
        let precious = folder.write("precious", "kept");
        let runs = folder.write("run/.tmp-probe-0123", "").parent().unwrap().to_owned();
        symlink(&precious, runs.join(".tmp-probe")).unwrap();
        check_writable(&runs).unwrap();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "kept");
        assert_eq!(fs::read_dir(&runs).unwrap().count(), 0);
        assert!(check_writable(&precious).is_err() && check_writable(&runs.join("none")).is_err());
    }
}
