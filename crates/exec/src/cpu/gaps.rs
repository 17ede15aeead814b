//! While a kernel runs, AddressSanitizer reports any access to the arena outside the kernel's own operands and scratch.
//! Compiled by `scripts/sanitizers` alone.
//!
//! The sanitizer knows allocations, and the arena is a single one: without this a kernel could read or write its
//! neighbours unseen. Absent: schedules with transfers or exchanges, in which other threads touch other bytes meanwhile.
#![allow(unsafe_code, reason = "the sanitizer's functions are C functions")]

use std::ffi::c_void;

use super::bound::{Bound, Lanes};
use crate::arena::Arena;

unsafe extern "C" {
    fn __asan_poison_memory_region(first: *const c_void, bytes: usize);
    fn __asan_unpoison_memory_region(first: *const c_void, bytes: usize);
}

/// The arena with all bytes forbidden but those of one action, until it is dropped.
pub(super) struct Gaps {
    first: *const c_void,
    bytes: usize,
}

impl Gaps {
    /// Forbids everything outside the operands of `action`; `None` if the action is no kernel or others touch the arena.
    pub(super) fn around(arena: Option<&Arena>, action: &Bound, lanes: &Lanes) -> Option<Gaps> {
        let Bound::Call { inputs, outputs, workspace, .. } = action else { return None };
        let arena = arena.filter(|_| lanes.disk.is_none() && lanes.ranks.is_none())?;
        let bytes = arena.bytes();
        let gaps = Gaps { first: arena.address(0, bytes).ok()?.cast_const().cast(), bytes: bytes as usize };
        // SAFETY: the range is the arena, which is allocated; the mark in the shadow memory changes no byte of it.
        unsafe { __asan_poison_memory_region(gaps.first, gaps.bytes) };
        let operands = inputs.iter().chain(outputs).map(|operand| (operand.pointer, operand.ty.bytes()));
        for (pointer, bytes) in
            operands.chain([(workspace.pointer, workspace.bytes)]).filter(|(_, bytes)| *bytes > 0)
        {
            // SAFETY: as above, of a part of the arena.
            unsafe { __asan_unpoison_memory_region(pointer.cast_const().cast(), bytes) };
        }
        Some(gaps)
    }
}

impl Drop for Gaps {
    fn drop(&mut self) {
        // SAFETY: as in `around`.
        unsafe { __asan_unpoison_memory_region(self.first, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::{CpuOperand, ScratchMemory};
    use plimsoll_graph::{DType, Op, Shape, Type};

    unsafe extern "C" {
        /// The first forbidden byte of a range, or null.
        fn __asan_region_is_poisoned(first: *mut c_void, bytes: usize) -> *mut c_void;
    }

    #[test]
    fn bytes_between_operands_are_forbidden_until_the_action_ends() {
        let mut arena = Arena::reserve(256).unwrap();
        arena.map();
        // SAFETY: the question touches no byte of the arena.
        let first = |offset: u64, bytes: u64| unsafe {
            let begin = arena.address(offset, bytes).unwrap();
            let found = __asan_region_is_poisoned(begin.cast(), bytes as usize);
            (!found.is_null()).then(|| found as usize - arena.address(0, 0).unwrap() as usize)
        };
        let operand = |offset: u64| CpuOperand {
            pointer: arena.address(offset, 20).unwrap(),
            ty: Type { dtype: DType::F32, shape: Shape::new(&[5]).unwrap() },
            accumulate: false,
        };
        let workspace = ScratchMemory::NONE;
        let action = Bound::Call {
            op: Op::Silu,
            inputs: vec![operand(0)],
            outputs: vec![operand(128)],
            workspace,
            block: String::new(),
        };
        let (ranks, disk, next) = (None, None, None);
        let (mut exchanges, mut tickets, mut ahead) = ([], [], Vec::new());
        let lanes = Lanes {
            ranks,
            exchanges: &mut exchanges,
            disk,
            tickets: &mut tickets,
            before: [0; 2],
            next,
            ahead: &mut ahead,
            found: 0,
        };
        let gaps = Gaps::around(Some(&arena), &action, &lanes);
        assert_eq!([first(0, 128), first(128, 128)], [Some(20), Some(148)], "to the byte");
        drop(gaps);
        assert_eq!(first(0, 256), None);
    }
}
