//! Free memory of each card before this process has taken any, by the management library. No context is needed.
#![allow(unsafe_code, reason = "calls a C library by name")]

use std::ffi::c_void;

use libloading::{Library, Symbol};

/// A card by its place on the bus, and its free memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Free {
    pub(super) bus: [u32; 3],
    pub(super) bytes: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Default)]
struct Memory {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// `nvmlPciInfo_t`.
#[repr(C)]
#[allow(clippy::struct_field_names, reason = "the driver's own words")]
struct Bus {
    legacy: [u8; 16],
    domain: u32,
    bus: u32,
    device: u32,
    ids: [u32; 2],
    text: [u8; 32],
}

type Init = unsafe extern "C" fn() -> i32;
type Count = unsafe extern "C" fn(*mut u32) -> i32;
type Handle = unsafe extern "C" fn(u32, *mut *mut c_void) -> i32;
type MemoryInfo = unsafe extern "C" fn(*mut c_void, *mut Memory) -> i32;
type PciInfo = unsafe extern "C" fn(*mut c_void, *mut Bus) -> i32;

/// The free memory of every card; empty if the library is missing or refuses.
pub(super) fn free_memory() -> Vec<Free> {
    // SAFETY: signatures and structs are those of NVML's documentation, with the version that its structs ask for.
    unsafe { ask().unwrap_or_default() }
}

/// # Safety
///
/// The library by NVML's name is NVML.
unsafe fn ask() -> Option<Vec<Free>> {
    // SAFETY: the caller's promise, for every call below.
    unsafe {
        let library = Library::new("libnvidia-ml.so.1").ok()?;
        let init: Symbol<Init> = library.get(b"nvmlInit_v2\0").ok()?;
        let count: Symbol<Count> = library.get(b"nvmlDeviceGetCount_v2\0").ok()?;
        let handle: Symbol<Handle> = library.get(b"nvmlDeviceGetHandleByIndex_v2\0").ok()?;
        let memory: Symbol<MemoryInfo> = library.get(b"nvmlDeviceGetMemoryInfo_v2\0").ok()?;
        let pci: Symbol<PciInfo> = library.get(b"nvmlDeviceGetPciInfo_v3\0").ok()?;
        let mut cards = 0;
        if init() != 0 || count(&raw mut cards) != 0 {
            return None;
        }
        let one = |index: u32| {
            let mut card = std::ptr::null_mut();
            let mut bytes = Memory { version: size_of::<Memory>() as u32 | 2 << 24, ..Memory::default() };
            let mut bus = Bus { legacy: [0; 16], domain: 0, bus: 0, device: 0, ids: [0; 2], text: [0; 32] };
            let told = handle(index, &raw mut card) == 0
                && memory(card, &raw mut bytes) == 0
                && pci(card, &raw mut bus) == 0;
            told.then_some(Free { bus: [bus.domain, bus.bus, bus.device], bytes: bytes.free })
        };
        let free = (0..cards).filter_map(one).collect();
        // If the library were closed, the next call would read its files again.
        std::mem::forget(library);
        Some(free)
    }
}
