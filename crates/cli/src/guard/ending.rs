//! The last error message: one line that names the file. It is written without allocating or locking, since it may come
//! from an allocator or from a signal handler on a stack of a few KiB. So the line lies in a static.
#![allow(unsafe_code, reason = "what may be called in a signal handler is in libc")]

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8};

use plimsoll::training::reading::{self, LONGEST};

use super::{LIMIT, STATED, lower};

/// Why a file is not read on.
pub(super) enum Why<'a> {
    /// Reading the file would take more memory than the budget has.
    Memory,
    /// The system refused this many bytes.
    System(usize),
    /// The stack is full.
    Deep,
    /// The reading of a file makes no progress.
    Stuck,
    /// A library has aborted.
    Aborted,
    /// A library has panicked, with these words.
    Panicked(&'a str),
}

/// The exit code of a user's mistake, which another file or a larger budget mends.
const MISTAKE: i32 = 2;
const FAILURE: i32 = 1;

/// Prints the reason, removes the file that would never be finished, and ends the process. If several threads end it,
/// only one prints.
pub(super) fn end(why: &Why<'_>) -> ! {
    static ENDING: AtomicBool = AtomicBool::new(false);
    lower();
    if ENDING.swap(true, Relaxed) {
        loop {
            // SAFETY: nothing is passed. The thread that came first ends this one too.
            unsafe { libc::pause() };
        }
    }
    let mut line = Line { len: 0 };
    line.add(b"error: ");
    let code = line.explain(why);
    line.add(b"\n");
    // SAFETY: the pointer and the length are those of the line.
    unsafe { libc::write(libc::STDERR_FILENO, LINE.as_ptr().cast(), line.len) };
    remove_unfinished();
    // SAFETY: nothing is passed. Destructors must not run: their values may be half changed.
    unsafe { libc::_exit(code) }
}

fn remove_unfinished() {
    let mut path = Line { len: 0 };
    reading::unfinished_name().for_each(|byte| path.put(byte));
    if path.len > 0 {
        path.put(0);
        // SAFETY: the path ends in a zero.
        unsafe { libc::unlink(LINE.as_ptr().cast()) };
    }
}

/// Longer than any name with a sentence.
const MOST: usize = LONGEST + 1024;

/// Prints the line, then removes the path. Only the thread that ends the process runs this.
static LINE: [AtomicU8; MOST] = [const { AtomicU8::new(0) }; MOST];

/// How much of the line has been written.
struct Line {
    len: usize,
}

impl Line {
    fn put(&mut self, byte: u8) {
        if let Some(place) = LINE.get(self.len) {
            place.store(byte, Relaxed);
            self.len += 1;
        }
    }

    /// Adds text, without characters that move a terminal's cursor.
    fn add(&mut self, text: &[u8]) {
        for &byte in text {
            self.add_byte(byte);
        }
    }

    fn add_byte(&mut self, byte: u8) {
        let moves = byte < b' ' && byte != b'\n' || byte == 127;
        self.put(if moves { b'?' } else { byte });
    }

    fn add_file(&mut self) {
        let before = self.len;
        reading::name().for_each(|byte| self.add_byte(byte));
        if self.len == before {
            self.add(b"a file");
        }
    }

    /// The bytes with one decimal, in KiB below a MiB.
    fn add_size(&mut self, bytes: u64) {
        let (unit, name): (u64, &[u8]) =
            if bytes < 1 << 20 { (1 << 10, b" KiB") } else { (1 << 20, b" MiB") };
        let tenths = (bytes as f64 / unit as f64 * 10.0).round() as u64;
        self.add_number(tenths / 10);
        self.add(&[b'.', b'0' + (tenths % 10) as u8]);
        self.add(name);
    }

    fn add_number(&mut self, number: u64) {
        let mut digits = [0; 20];
        let (mut at, mut rest) = (digits.len(), number);
        while at == digits.len() || rest > 0 {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        self.add(&digits[at..]);
    }

    /// The sentence, and the exit code that goes with it.
    fn explain(&mut self, why: &Why<'_>) -> i32 {
        if let Why::System(bytes) = why {
            self.add(b"the system refuses ");
            self.add_size(*bytes as u64);
            self.add(b" of memory to this process; raise its limit (ulimit -v) or free memory");
            return FAILURE;
        }
        self.add_file();
        match why {
            Why::Memory | Why::System(_) => self.explain_memory(),
            Why::Deep => self.add(b" is nested too deeply to be read; take another file"),
            Why::Stuck => self.add(b" keeps its reader busy without end; take another file"),
            Why::Aborted => self.add(b" cannot be read: a library gave up on it; take another file"),
            Why::Panicked(words) => {
                self.add(b" cannot be read (");
                self.add(words.lines().next().unwrap_or_default().as_bytes());
                self.add(b"); take another file");
            }
        }
        MISTAKE
    }

    fn explain_memory(&mut self) {
        self.add(b" takes more memory to read than ");
        match STATED.load(Relaxed) {
            0 => {
                self.add(b"this machine has free (");
                self.add_size(LIMIT.load(Relaxed));
                self.add(b"); take another file or a machine with more");
            }
            stated => {
                self.add(b"the budget of ");
                self.add_size(stated);
                self.add_larger(stated);
            }
        }
    }

    /// The way out of a budget that is too small: the least that is known to be enough. Where no such number is known, or the
    /// budget is above it, the file is an unusual one.
    fn add_larger(&mut self, stated: u64) {
        let enough = reading::needed().div_ceil(1 << 20);
        if stated < enough << 20 {
            self.add(b" has; `--memory ");
            self.add_number(enough);
            self.add(b"MiB` is enough to read it");
        } else {
            self.add(b" has; state a larger --memory, or take another file");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(why: &Why<'_>) -> String {
        let mut line = Line { len: 0 };
        line.explain(why);
        String::from_utf8(LINE[..line.len].iter().map(|byte| byte.load(Relaxed)).collect()).unwrap()
    }

    #[test]
    fn every_ending_names_the_file_and_a_way_out_in_one_line() {
        reading::begin(std::path::Path::new("m/to\x1bken.json"));
        STATED.store(64 << 20, Relaxed);
        assert_eq!(
            said(&Why::Memory),
            "m/to?ken.json takes more memory to read than the budget of 64.0 MiB has; state a larger --memory, or take another file"
        );
        STATED.store(1 << 10, Relaxed);
        assert!(said(&Why::Memory).contains("than the budget of 1.0 KiB has; state a larger"));
        assert!(said(&Why::Deep).starts_with("m/to?ken.json is nested too deeply"));
        assert_eq!(
            said(&Why::Panicked("index out\n of bounds")),
            "m/to?ken.json cannot be read (index out); take another file"
        );
        assert_eq!(
            said(&Why::System(3 << 19)),
            "the system refuses 1.5 MiB of memory to this process; raise its limit (ulimit -v) or free memory"
        );
    }
}
