//! The management library (NVML): memory of the cards as it counts, without a context.
//!
//! Free memory is asked for before this process has taken any. Shares of processes are asked for afterwards; a container may
//! hide them.
#![allow(unsafe_code, reason = "calls a C library by name")]

use std::collections::BTreeMap;
use std::ffi::c_void;

use libloading::os::unix::Library as Shared;

use super::symbols::named;
use crate::counting::Shares;

/// The most processes of one kind on one card that are counted.
const PROCESSES: usize = 512;

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

/// `nvmlProcessInfo_v2_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Process {
    pid: u32,
    bytes: u64,
    instances: [u32; 2],
}

type Card = *mut c_void;
type MemoryInfo = unsafe extern "C" fn(Card, *mut Memory) -> i32;
type PciInfo = unsafe extern "C" fn(Card, *mut Bus) -> i32;
type Running = unsafe extern "C" fn(Card, *mut u32, *mut Process) -> i32;

/// One card as NVML knows it.
#[derive(Debug)]
pub(crate) struct ManagedCard {
    card: Card,
    /// The card's place on the bus.
    pub(super) bus: [u32; 3],
    /// Bytes that were free when the card was looked up.
    pub(super) free: u64,
    /// Lists of the processes that compute and that draw.
    running: Vec<Running>,
}

// SAFETY: NVML may be called from any thread, and its handles are numbers of its own.
unsafe impl Send for ManagedCard {}
// SAFETY: as above.
unsafe impl Sync for ManagedCard {}

impl ManagedCard {
    /// The bytes that processes have on the card; `None` if the library does not tell.
    pub(crate) fn shares(&self) -> Option<Shares> {
        let lists = self.running.iter().map(|list| {
            let mut count = PROCESSES as u32;
            let mut found = vec![Process::default(); PROCESSES];
            // SAFETY: the array is as long as said; the handle is one that the library gave out.
            let told = unsafe { list(self.card, &raw mut count, found.as_mut_ptr()) } == 0;
            found.truncate(count as usize);
            told.then_some(found)
        });
        let all: Vec<Process> = lists.collect::<Option<Vec<_>>>()?.concat();
        // A process that both computes and draws is in both lists.
        let shares: BTreeMap<u32, u64> = all.iter().map(|process| (process.pid, process.bytes)).collect();
        Shares::of(&shares, std::process::id())
    }
}

/// Every card; empty if the library is missing or refuses.
pub(super) fn cards() -> Vec<ManagedCard> {
    // SAFETY: signatures and structs are those of NVML's documentation, with the version that its structs ask for.
    unsafe { ask().unwrap_or_default() }
}

/// # Safety
///
/// The library by NVML's name is NVML.
unsafe fn ask() -> Option<Vec<ManagedCard>> {
    // SAFETY: the caller's promise, for every call below.
    unsafe {
        let flags = libloading::os::unix::RTLD_NOW;
        let library = Shared::open(Some("libnvidia-ml.so.1"), flags).ok()?;
        let init: unsafe extern "C" fn() -> i32 = named(&library, "nvmlInit_v2").ok()?;
        let count: unsafe extern "C" fn(*mut u32) -> i32 = named(&library, "nvmlDeviceGetCount_v2").ok()?;
        let handle: unsafe extern "C" fn(u32, *mut Card) -> i32 =
            named(&library, "nvmlDeviceGetHandleByIndex_v2").ok()?;
        let memory: MemoryInfo = named(&library, "nvmlDeviceGetMemoryInfo_v2").ok()?;
        let pci: PciInfo = named(&library, "nvmlDeviceGetPciInfo_v3").ok()?;
        let lists = ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"];
        let running: Vec<Running> = lists.iter().filter_map(|name| named(&library, name).ok()).collect();
        // If the library were closed, the next call would read its files again.
        std::mem::forget(library);
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
            let bus = [bus.domain, bus.bus, bus.device];
            told.then(|| ManagedCard { card, bus, free: bytes.free, running: running.clone() })
        };
        Some((0..cards).filter_map(one).collect())
    }
}
