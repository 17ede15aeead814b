//! Inputs chosen by libFuzzer, which watches the code they reach, in place of seeded alterations. Compiled by
//! `scripts/fuzz` alone.
//!
//! libFuzzer alters bytes, with the words of the originals as a dictionary. For every second input, [`Mutator`]
//! makes the alteration instead, which keeps JSON whole.

#![allow(unsafe_code, reason = "the fuzzer's driver is a C function")]

use std::collections::BTreeSet;
use std::ffi::{CString, c_char, c_int, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{LazyLock, Mutex};
use std::{fs, process, ptr, slice};

// Nothing else of the crate is used, and an unused crate would not be linked.
use libfuzzer_sys as _;

use super::mutate::Mutator;

type Reader = Box<dyn FnMut(&[u8]) + Send>;

/// The reader under test. It is global because the driver's callback takes no other argument.
static READER: Mutex<Option<Reader>> = Mutex::new(None);

/// Processor seconds after which the fuzzer ends, as `FUZZ_SECONDS` states them.
static SECONDS: LazyLock<i64> = LazyLock::new(|| std::env::var("FUZZ_SECONDS").unwrap().parse().unwrap());

unsafe extern "C" {
    fn LLVMFuzzerRunDriver(
        argc: *mut c_int,
        argv: *mut *mut *mut c_char,
        callback: extern "C" fn(*const u8, usize) -> c_int,
    ) -> c_int;
    fn LLVMFuzzerMutate(data: *mut u8, size: usize, max_size: usize) -> usize;
}

/// # Safety
///
/// `data` points to `size` bytes that live long enough, or `size` is 0.
unsafe fn bytes<'a>(data: *const u8, size: usize) -> &'a [u8] {
    // SAFETY: the caller's promise; the driver's address of no bytes may be null.
    if size == 0 { &[] } else { unsafe { slice::from_raw_parts(data, size) } }
}

extern "C" fn one(data: *const u8, size: usize) -> c_int {
    // SAFETY: the driver passes that many bytes, which live as long as this call.
    let input = unsafe { bytes(data, size) };
    if let Some(reader) = READER.lock().unwrap().as_mut() {
        reader(input);
    }
    if processor_seconds() >= *SECONDS {
        // SAFETY: the driver handles this signal: it writes its figures and ends after this input.
        unsafe { libc::raise(libc::SIGUSR1) };
    }
    0
}

/// Processor seconds of this process: on a busy machine the clock says nothing about the work done.
fn processor_seconds() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` lives through the call, which fills it in.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut now) };
    now.tv_sec
}

/// The entry that libfuzzer-sys expects of a program without a `main` of its own. Here the driver calls [`one`].
#[unsafe(no_mangle)]
extern "C" fn rust_fuzzer_test_input(data: *const u8, size: usize) -> c_int {
    one(data, size)
}

/// Alters an input in place; the driver calls it by this name.
#[unsafe(no_mangle)]
extern "C" fn LLVMFuzzerCustomMutator(data: *mut u8, size: usize, max_size: usize, seed: c_uint) -> usize {
    if seed % 2 == 0 {
        // SAFETY: the driver's own function on the driver's own bytes.
        return unsafe { LLVMFuzzerMutate(data, size, max_size) };
    }
    // SAFETY: the driver passes `size` bytes in room for `max_size`.
    let altered = Mutator::new(u64::from(seed), 0).altered(unsafe { bytes(data, size) });
    let size = altered.len().min(max_size);
    // SAFETY: as above; the altered bytes are a copy.
    unsafe { data.copy_from_nonoverlapping(altered.as_ptr(), size) };
    size
}

/// Whether this is the target that `FUZZ_TARGET` names.
pub(crate) fn chosen(target: &str) -> bool {
    std::env::var("FUZZ_TARGET").is_ok_and(|name| name == target)
}

/// Runs the fuzzer with the flags of `FUZZ_FLAGS` on inputs that grow in the folder `FUZZ_CORPUS`, the `originals` among them.
/// It ends the process.
pub(crate) fn run(originals: &[Vec<u8>], mut read: impl FnMut(&[u8]) -> Result<(), String>) -> ! {
    let corpus = std::env::var("FUZZ_CORPUS").unwrap();
    for (number, original) in originals.iter().enumerate() {
        fs::write(Path::new(&corpus).join(format!("original-{number}")), original).unwrap();
    }
    let words = format!("{corpus}.words");
    fs::write(&words, dictionary(originals)).unwrap();
    // Readers may catch panics of libraries; one that reaches this place is a finding.
    let reader: Box<dyn FnMut(&[u8]) + '_> = Box::new(move |bytes| {
        if catch_unwind(AssertUnwindSafe(|| drop(read(bytes)))).is_err() {
            process::abort();
        }
    });
    // SAFETY: the reader borrows from the caller, which never returns from here; the driver calls it from this thread alone.
    *READER.lock().unwrap() =
        Some(unsafe { std::mem::transmute::<Box<dyn FnMut(&[u8]) + '_>, Reader>(reader) });
    let flags = std::env::var("FUZZ_FLAGS").unwrap_or_default();
    let words = format!("-dict={words}");
    let words = ["fuzz", &corpus, &words].into_iter().chain(flags.split_whitespace());
    let words: Vec<CString> = words.map(|word| CString::new(word).unwrap()).collect();
    let mut argv: Vec<*mut c_char> = words.iter().map(|word| word.as_ptr().cast_mut()).collect();
    let mut argc = argv.len() as c_int;
    argv.push(ptr::null_mut());
    let mut first = argv.as_mut_ptr();
    // SAFETY: `argc` words and a null, all alive until the process ends.
    let status = unsafe { LLVMFuzzerRunDriver(&raw mut argc, &raw mut first, one) };
    process::exit(status)
}

/// The words of the originals, as libFuzzer reads them.
fn dictionary(originals: &[Vec<u8>]) -> String {
    let word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let words = originals.iter().flat_map(|original| original.split(|byte| !word(byte)));
    let words: BTreeSet<&[u8]> = words.filter(|word| (2..32).contains(&word.len())).take(4000).collect();
    words.into_iter().map(|word| format!("\"{}\"\n", String::from_utf8_lossy(word))).collect()
}
