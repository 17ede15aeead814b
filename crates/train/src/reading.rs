//! The file that is being read, and the progress of the reading.
//!
//! Foreign files pass through foreign parsers. A program that guards itself against both (with an allocator that
//! refuses, a watchdog, signal handlers) must name the file when it ends. It can ask here from anywhere: names and
//! counts are atomics, and reading them takes neither a lock nor memory.
//!
//! A guarded process reads one file at a time; with several, the last one named is reported. Absent: the guard itself,
//! which is the program's (see `docs/decisions/0018-files-are-read-behind-a-guard.md`).

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The longest name that is reported whole; a longer one is reported by its end.
pub const LONGEST: usize = 4096;

/// A name that can be read from a signal handler.
struct Name {
    bytes: [AtomicU8; LONGEST],
    len: AtomicUsize,
}

impl Name {
    const fn new() -> Name {
        Name { bytes: [const { AtomicU8::new(0) }; LONGEST], len: AtomicUsize::new(0) }
    }

    /// A thread that reads the name meanwhile gets none, or part of one.
    fn set(&self, parts: &[&[u8]]) {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let bytes = parts.iter().flat_map(|part| part.iter()).skip(total.saturating_sub(LONGEST));
        self.len.store(0, Relaxed);
        let mut len = 0;
        for (place, &byte) in self.bytes.iter().zip(bytes) {
            place.store(byte, Relaxed);
            len += 1;
        }
        self.len.store(len, Relaxed);
    }

    fn get(&self) -> impl Iterator<Item = u8> {
        self.bytes[..self.len.load(Relaxed)].iter().map(|byte| byte.load(Relaxed))
    }
}

static FILE: Name = Name::new();
static UNFINISHED: Name = Name::new();
static STEPS: AtomicU64 = AtomicU64::new(0);
static NEEDED: AtomicU64 = AtomicU64::new(0);

/// Notes that the file at `path` is read from now on.
pub fn begin(path: &Path) {
    NEEDED.store(0, Relaxed);
    FILE.set(&[path.as_os_str().as_bytes()]);
    step();
}

/// Notes that the file at `path` is read from now on, and that a process of `bytes` has enough memory for it.
pub(crate) fn begin_needing(path: &Path, bytes: u64) {
    begin(path);
    NEEDED.store(bytes, Relaxed);
}

/// Notes that the data at `path` is read from now on, with a tokenizer from `tokenizer`.
pub(crate) fn begin_with(path: &Path, tokenizer: &Path) {
    NEEDED.store(0, Relaxed);
    FILE.set(&[path.as_os_str().as_bytes(), b" with ", tokenizer.as_os_str().as_bytes()]);
    step();
}

/// Reports progress. To be called at least once per second of work, however large a file is.
pub fn step() {
    STEPS.fetch_add(1, Relaxed);
}

/// A counter of progress: it has changed since the last call if the reading has made progress.
pub fn steps() -> u64 {
    STEPS.load(Relaxed)
}

/// The name of the file that is being read; empty if none was read yet.
pub fn name() -> impl Iterator<Item = u8> {
    FILE.get()
}

/// The bytes of a process that has enough memory to read the file; 0 where that is not known.
pub fn needed() -> u64 {
    NEEDED.load(Relaxed)
}

/// Notes that the file at `path` is useless until it is finished; an empty path means that there is none.
pub(crate) fn unfinished(path: &Path) {
    UNFINISHED.set(&[path.as_os_str().as_bytes()]);
}

/// The path of the unfinished file, empty if there is none. A program that ends now should remove it.
pub fn unfinished_name() -> impl Iterator<Item = u8> {
    UNFINISHED.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_as_they_were_given_and_of_long_ones_the_end() {
        let told = Name::new();
        let got = || told.get().collect::<Vec<u8>>();
        assert!(got().is_empty());
        told.set(&[b"d/x.txt", b" with ", b"t.json"]);
        assert_eq!(got(), b"d/x.txt with t.json");
        told.set(&[b"b"]);
        assert_eq!(got(), b"b");
        told.set(&[&[b"a".repeat(LONGEST), b"end".to_vec()].concat()]);
        assert_eq!(got(), [b"a".repeat(LONGEST - 3), b"end".to_vec()].concat());
    }

    #[test]
    fn every_file_and_every_step_counts() {
        let before = steps();
        begin(Path::new("x"));
        step();
        assert!(steps() >= before + 2);
    }
}
