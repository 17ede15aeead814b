//! The program's allocator: the system's, with a check of resident memory before each allocation while foreign files
//! are read.
//!
//! The budget bounds the resident bytes, by the kernel's count. The kernel is asked each time a thread has allocated
//! [`STRIDE`] bytes. Memory counts from the moment it is touched. Large pieces are therefore touched as soon as they
//! are allocated. A small piece touches a page by its own header, so untouched memory stays below sixteen times the
//! counted memory, and in practice far below. Memory that C libraries allocate is seen at the next check, and so are
//! stacks and pages of code.
//!
//! The kernel answers in about a microsecond. Nothing is counted here, so giving memory back costs nothing.
#![allow(unsafe_code, reason = "a global allocator is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::ending::{self, Why};
use super::{LIMIT, is_raised};

/// Bytes that a thread allocates before the kernel is asked again; pieces of at least this size are touched.
const STRIDE: usize = 64 << 10;
/// Bytes that the kernel hands out at once.
const PAGE: usize = 4096;
/// From this size on a piece is a mapping of its own: it grows in place, and goes back to the system when it is freed.
const OWN_MAPPING: libc::c_int = 1 << 20;

#[global_allocator]
static ALLOCATOR: Asking = Asking;

struct Asking;

thread_local! {
    /// Bytes that this thread has allocated since its last check of the limit.
    static TAKEN: Cell<usize> = const { Cell::new(0) };
}

/// Bytes that threads are about to take.
static PENDING: AtomicU64 = AtomicU64::new(0);
/// The file in which the kernel reports resident pages.
static PAGES: OnceLock<File> = OnceLock::new();

/// Opens the kernel's file now, since later nothing can be opened.
pub(super) fn prepare() {
    if let Ok(file) = File::open("/proc/self/statm") {
        let _ = PAGES.set(file);
    }
    // SAFETY: no pointers are involved. The system would raise this threshold by itself after large pieces were freed, and
    // then copy them, both copies resident, when they grow.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING) };
}

// SAFETY: all memory is the system allocator's, for the layouts given; pages are written to only before they are handed out.
unsafe impl GlobalAlloc for Asking {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about the layout is passed on.
        taking(layout.size(), 0, layout, || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        taking(layout.size(), 0, layout, || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise about the pointer and the layout is passed on.
        taking(size, layout.size(), layout, || unsafe { System.realloc(pointer, layout, size) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Allocates `size` bytes, of which the first `had` exist already.
#[inline]
fn taking(size: usize, had: usize, layout: Layout, take: impl FnOnce() -> *mut u8) -> *mut u8 {
    if !is_raised() {
        let pointer = take();
        if pointer.is_null() {
            not_given(size, layout);
        }
        return pointer;
    }
    let more = size.saturating_sub(had);
    let taken = TAKEN.get() + more;
    if taken < STRIDE {
        TAKEN.set(taken);
        return given(take(), layout);
    }
    TAKEN.set(0);
    asked(more, had, layout, take)
}

/// Allocates after a check of the resident memory.
#[cold]
fn asked(more: usize, had: usize, layout: Layout, take: impl FnOnce() -> *mut u8) -> *mut u8 {
    let pending = PENDING.fetch_add(more as u64, Relaxed) + more as u64;
    if resident().is_some_and(|resident| resident.saturating_add(pending) > LIMIT.load(Relaxed)) {
        ending::end(&Why::Memory);
    }
    let pointer = given(take(), layout);
    if more >= STRIDE {
        for at in (had.next_multiple_of(PAGE)..had + more).step_by(PAGE) {
            // SAFETY: the byte lies in the memory just taken and behind what was there; whoever asked has not seen it, and
            // where it is to be zero it is.
            unsafe { pointer.add(at).write_volatile(0) };
        }
    }
    PENDING.fetch_sub(more as u64, Relaxed);
    pointer
}

/// Memory that the system has given, while files are read.
fn given(pointer: *mut u8, layout: Layout) -> *mut u8 {
    // Callers that ask for whole pages can handle a refusal.
    if pointer.is_null() && layout.align() < PAGE {
        ending::end(&Why::Memory);
    }
    pointer
}

/// Ends the program if the system gives no memory and the standard library would abort. The arena asks for whole pages
/// and can handle a refusal.
#[cold]
fn not_given(size: usize, layout: Layout) {
    if layout.align() < PAGE {
        ending::end(&Why::System(size));
    }
}

/// Bytes that are resident, by the kernel's count.
fn resident() -> Option<u64> {
    let mut text = [0; 64];
    let len = PAGES.get()?.read_at(&mut text, 0).ok()?;
    let second = text[..len].split(|&byte| byte == b' ').nth(1)?;
    let digit = |pages: u64, &byte: &u8| byte.is_ascii_digit().then(|| 10 * pages + u64::from(byte - b'0'));
    second.iter().try_fold(0, digit).map(|pages| pages * PAGE as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_counts_what_is_touched() {
        prepare();
        let before = resident().unwrap();
        let touched = vec![1u8; 8 << 20];
        let after = resident().unwrap();
        assert!(after >= before + (7 << 20), "{before} and {after}");
        assert_eq!(touched.iter().map(|&byte| u64::from(byte)).sum::<u64>(), 8 << 20);
    }
}
