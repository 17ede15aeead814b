//! Bounce buffers: memory between the arena and a file, for transfers that direct I/O does not take as they are.
#![allow(unsafe_code, reason = "it maps pages and lends them")]

use std::alloc::Layout;
use std::ptr::NonNull;

/// Bytes of a bounce buffer: large enough that a transfer runs at the disk's own speed.
pub(crate) const BOUNCE: usize = 1 << 20;

/// Whole pages, as direct I/O requires. They are allocated from the system and returned to it, past the allocator:
/// memory that the allocator keeps would count against the budget.
pub(crate) struct Bounce(NonNull<u8>);

impl Bounce {
    pub(crate) fn new() -> Bounce {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping of no file at an address of the system's choice touches nothing of ours.
        let pages = unsafe { libc::mmap(std::ptr::null_mut(), BOUNCE, access, kind, -1, 0) };
        match NonNull::new(pages.cast::<u8>()).filter(|_| pages != libc::MAP_FAILED) {
            Some(pages) => Bounce(pages),
            None => std::alloc::handle_alloc_error(Layout::new::<[u8; BOUNCE]>()),
        }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this many zeroed bytes and is borrowed mutably through `self`.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), BOUNCE) }
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this very length, and nobody else has the address.
        unsafe { libc::munmap(self.0.as_ptr().cast(), BOUNCE) };
    }
}
