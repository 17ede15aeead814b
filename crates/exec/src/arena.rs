//! The one allocation of a run on the CPU.
//!
//! Its addresses are known first, so that schedules can be bound to them. Its memory is touched page by page before the
//! first step, so that a lack of memory shows at the start. After it lies a strip of known bytes: a kernel that writes
//! past its operand at the very end of the arena is caught by [`Arena::guard_is_intact`]. Nothing here knows what the
//! bytes mean.
#![allow(unsafe_code, reason = "this module owns the arena and lends ranges of it")]

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

use crate::ExecError;

/// Alignment of the arena: a page, so that offsets aligned for vectors stay so.
const PAGE: usize = 4096;
/// Bytes after the arena that nothing may touch.
const GUARD: usize = PAGE;
const GUARD_BYTE: u8 = 0xa5;

/// A fixed range of memory.
#[derive(Debug)]
pub struct Arena {
    pointer: NonNull<u8>,
    bytes: usize,
    mapped: bool,
}

// SAFETY: the arena owns its allocation; access goes through `&self`/`&mut self` or through operands whose
// disjointness `replay` has proved.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Sets `bytes` of addresses aside.
    ///
    /// # Errors
    ///
    /// When they cannot be had.
    pub fn reserve(bytes: u64) -> Result<Arena, ExecError> {
        let refused = || ExecError::Memory(format!("cannot take an arena of {bytes} bytes from the system"));
        let bytes = usize::try_from(bytes).map_err(|_| refused())?;
        // SAFETY: the layout has a size above 0, because of the guard.
        let pointer = unsafe { alloc(Arena::layout(bytes).ok_or_else(refused)?) };
        Ok(Arena { pointer: NonNull::new(pointer).ok_or_else(refused)?, bytes, mapped: false })
    }

    /// Touches every page, so that the memory is there.
    pub fn map(&mut self) {
        give_back_freed_memory();
        // SAFETY: the guard lies inside the allocation, behind the bytes that are lent out.
        unsafe {
            self.pointer.as_ptr().write_bytes(0, self.bytes);
            self.pointer.as_ptr().add(self.bytes).write_bytes(GUARD_BYTE, GUARD);
        }
        self.mapped = true;
    }

    /// Whether memory is mapped at the arena's addresses.
    pub fn is_mapped(&self) -> bool {
        self.mapped
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Whether the bytes after the arena are unchanged.
    pub fn guard_is_intact(&self) -> bool {
        if !self.mapped {
            return true;
        }
        // SAFETY: the guard was allocated with the arena and written when it was mapped.
        let guard = unsafe { std::slice::from_raw_parts(self.pointer.as_ptr().add(self.bytes), GUARD) };
        guard.iter().all(|&byte| byte == GUARD_BYTE)
    }

    /// The bytes of a range.
    ///
    /// # Errors
    ///
    /// When the range lies outside the arena, or its memory is not there yet.
    pub fn range(&self, offset: u64, bytes: u64) -> Result<&[u8], ExecError> {
        if !self.mapped {
            return Err(ExecError::Memory("the arena has not been taken yet".into()));
        }
        let pointer = self.address(offset, bytes)?;
        // SAFETY: `address` has checked the range; the bytes were initialised by `map`.
        Ok(unsafe { std::slice::from_raw_parts(pointer, bytes as usize) })
    }

    /// Copies bytes into a range.
    ///
    /// # Errors
    ///
    /// When the range lies outside the arena.
    ///
    /// # Safety
    ///
    /// Nothing else touches the range meanwhile.
    pub(crate) unsafe fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        let pointer = self.address(offset, bytes.len() as u64)?;
        // SAFETY: `address` has checked the range, and the caller keeps everybody else away from it.
        unsafe { pointer.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Address of a range, for operands of kernels.
    ///
    /// # Errors
    ///
    /// When the range lies outside the arena.
    pub fn address(&self, offset: u64, bytes: u64) -> Result<*mut u8, ExecError> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes as u64) {
            let size = self.bytes;
            return Err(ExecError::Mismatch(format!(
                "bytes {offset}+{bytes} lie outside an arena of {size} bytes"
            )));
        }
        // SAFETY: the range, and so its first byte, lies inside the allocation.
        Ok(unsafe { self.pointer.as_ptr().add(offset as usize) })
    }

    fn layout(bytes: usize) -> Option<Layout> {
        Layout::from_size_align(bytes.checked_add(GUARD)?, PAGE).ok()
    }
}

/// Returns memory that planning has freed to the system, so that it does not count beside the arena.
fn give_back_freed_memory() {
    // SAFETY: the call only returns unused pages of the C library's heap; it touches no live object.
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    unsafe {
        libc::malloc_trim(0);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if let Some(layout) = Arena::layout(self.bytes) {
            // SAFETY: the pointer came from `alloc` with this very layout.
            unsafe { dealloc(self.pointer.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_outside_the_arena_is_refused() {
        let mut arena = Arena::reserve(100).unwrap();
        assert!(arena.range(0, 100).is_err(), "no memory is there yet");
        arena.map();
        assert!(arena.range(0, 100).is_ok());
        assert!(arena.range(1, 100).is_err());
        assert!(arena.range(u64::MAX, 2).is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri ends with an allocation that is refused")]
    fn an_arena_that_no_machine_has_is_an_error() {
        assert!(matches!(Arena::reserve(u64::MAX / 4), Err(ExecError::Memory(_))));
    }

    #[test]
    #[allow(unsafe_code, reason = "the test is the fault it looks for")]
    fn a_write_behind_the_end_is_seen() {
        let mut arena = Arena::reserve(64).unwrap();
        arena.map();
        assert!(arena.guard_is_intact());
        // SAFETY: the byte behind the arena belongs to the guard, which is allocated.
        unsafe { arena.address(0, 64).unwrap().add(64).write(0) };
        assert!(!arena.guard_is_intact());
    }
}
