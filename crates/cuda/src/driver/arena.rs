//! The arena: a range of addresses reserved at the start, memory mapped into it once.
#![allow(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;

use cudarc::driver::sys as cuda;
use plimsoll_exec::ExecError;

use super::{Context, ok};

/// A range of addresses with no memory behind it, as large as the card.
#[derive(Debug)]
pub(crate) struct Reserved {
    context: Arc<Context>,
    base: u64,
    bytes: usize,
    granularity: usize,
}

impl Reserved {
    /// Reserves addresses for as much as the card has.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Reserved, ExecError> {
        context.enter()?;
        let properties = properties(context);
        let (mut granularity, mut base) = (0, 0);
        // SAFETY: out-parameters that live here.
        unsafe {
            let least = cuda::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
            let asked =
                cuda::cuMemGetAllocationGranularity(&raw mut granularity, &raw const properties, least);
            ok(asked, "asking how memory is cut")?;
            let bytes = (context.card.memory as usize).next_multiple_of(granularity);
            ok(cuda::cuMemAddressReserve(&raw mut base, bytes, 0, 0, 0), "reserving addresses")?;
            Ok(Reserved { context: Arc::clone(context), base, bytes, granularity })
        }
    }

    /// Refuses an arena that the card could never hold.
    pub(crate) fn holds(&self, bytes: u64) -> Result<(), ExecError> {
        let card = self.context.card.memory;
        if bytes > card { Err(refused(bytes, card)) } else { Ok(()) }
    }

    fn open(&self, mapped: usize) -> Result<(), ExecError> {
        let access = cuda::CUmemAccessDesc {
            location: properties(&self.context).location,
            flags: cuda::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the first `mapped` bytes of the range have memory behind them.
        unsafe { ok(cuda::cuMemSetAccess(self.base, mapped, &raw const access, 1), "opening the arena") }
    }

    /// The first address.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: reserved once; mappings hold the range, so none is left.
            unsafe { cuda::cuMemAddressFree(self.base, self.bytes) };
        }
    }
}

/// Memory behind the first bytes of a range.
#[derive(Debug)]
pub(crate) struct Mapping {
    range: Arc<Reserved>,
    memory: cuda::CUmemGenericAllocationHandle,
    mapped: usize,
    /// The requested number of bytes.
    pub(crate) bytes: u64,
}

impl Mapping {
    /// Takes memory and maps it at the beginning of the range.
    ///
    /// # Errors
    ///
    /// When the card has not that much left.
    pub(crate) fn new(range: &Arc<Reserved>, bytes: u64) -> Result<Mapping, ExecError> {
        let context = &range.context;
        context.enter()?;
        let mapped = (bytes.max(1) as usize).next_multiple_of(range.granularity);
        if mapped > range.bytes {
            return Err(refused(bytes, context.card.memory));
        }
        let properties = properties(context);
        let mut memory = 0;
        // SAFETY: the range is reserved and, as the device drops one mapping before it makes the next, unmapped.
        unsafe {
            let created = cuda::cuMemCreate(&raw mut memory, mapped, &raw const properties, 0);
            ok(created, "taking the arena").map_err(|error| match (error, context.free()) {
                (ExecError::Memory(_), Ok(free)) => refused(bytes, free),
                (error, _) => error,
            })?;
            let placed = ok(cuda::cuMemMap(range.base, mapped, 0, memory, 0), "mapping the arena");
            placed.inspect_err(|_| {
                cuda::cuMemRelease(memory);
            })?;
            let mapping = Mapping { range: Arc::clone(range), memory, mapped, bytes };
            range.open(mapped)?;
            Ok(mapping)
        }
    }

    /// The address of a range of the arena.
    ///
    /// # Errors
    ///
    /// When the range lies outside.
    pub(crate) fn address(&self, offset: u64, bytes: u64) -> Result<u64, ExecError> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            let size = self.bytes;
            let why = format!("bytes {offset}+{bytes} lie outside an arena of {size} bytes");
            return Err(ExecError::Mismatch(why));
        }
        Ok(self.range.base + offset)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unmap(&self.range, [(0, self.mapped)], self.memory);
    }
}

/// Bytes of memory that stand for a whole arena.
const FOLD: usize = 64 << 20;

/// A range in which every part maps to the same few bytes: kernels can run on it without the memory of an arena.
#[derive(Debug)]
pub(crate) struct Folded {
    range: Arc<Reserved>,
    memory: cuda::CUmemGenericAllocationHandle,
    /// Bytes of the memory, and bytes of each mapping.
    fold: usize,
    mapped: usize,
    bytes: u64,
}

impl Folded {
    /// Maps `bytes` of addresses onto a small allocation, again and again.
    pub(crate) fn new(range: &Arc<Reserved>, bytes: u64) -> Result<Folded, ExecError> {
        range.context.enter()?;
        let whole = (bytes.max(1) as usize).next_multiple_of(range.granularity);
        // Each mapping covers the whole allocation. If the last one would pass the end of the range, the allocation is made
        // as small as possible.
        let fold = FOLD.next_multiple_of(range.granularity).min(whole);
        let fold = if whole.next_multiple_of(fold) > range.bytes { range.granularity } else { fold };
        let whole = whole.next_multiple_of(fold);
        let properties = properties(&range.context);
        let mut memory = 0;
        // SAFETY: an out-parameter that lives here.
        let created = unsafe { cuda::cuMemCreate(&raw mut memory, fold, &raw const properties, 0) };
        ok(created, "taking memory to warm up on")?;
        let mut folded = Folded { range: Arc::clone(range), memory, fold, mapped: 0, bytes };
        while folded.mapped < whole {
            let at = range.base + folded.mapped as u64;
            // SAFETY: the range is reserved, and nothing is mapped from `at` on.
            unsafe { ok(cuda::cuMemMap(at, fold, 0, memory, 0), "mapping memory to warm up on")? };
            folded.mapped += fold;
        }
        range.open(whole)?;
        Ok(folded)
    }

    /// Bytes of addresses.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Folded {
    fn drop(&mut self) {
        // The driver can remove only one mapping at a time.
        let parts = (0..self.mapped).step_by(self.fold).map(|at| (at, self.fold));
        unmap(&self.range, parts, self.memory);
    }
}

/// Memory beside the arena, freed when this is dropped.
#[derive(Debug)]
pub(crate) struct Borrowed {
    context: Arc<Context>,
    address: u64,
}

impl Borrowed {
    /// Takes `bytes` of memory.
    ///
    /// # Errors
    ///
    /// When the card has not that much left.
    pub(crate) fn new(context: &Arc<Context>, bytes: u64) -> Result<Borrowed, ExecError> {
        context.enter()?;
        let mut address = 0;
        // SAFETY: an out-parameter that lives here.
        let taken = unsafe { cuda::cuMemAlloc_v2(&raw mut address, bytes.max(1) as usize) };
        ok(taken, "taking scratch to warm up with")?;
        Ok(Borrowed { context: Arc::clone(context), address })
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: taken once; the synchronisation lets work end that still uses it.
            unsafe {
                cuda::cuCtxSynchronize();
                cuda::cuMemFree_v2(self.address);
            }
        }
    }
}

/// Ends mappings, each the offset and length of one, and gives the memory behind them back.
fn unmap(
    range: &Reserved,
    mappings: impl IntoIterator<Item = (usize, usize)>,
    memory: cuda::CUmemGenericAllocationHandle,
) {
    if range.context.enter().is_ok() {
        // SAFETY: mapped and created once; the synchronisation lets work end that still reads it.
        unsafe {
            cuda::cuCtxSynchronize();
            for (at, length) in mappings {
                cuda::cuMemUnmap(range.base + at as u64, length);
            }
            cuda::cuMemRelease(memory);
        }
    }
}

fn refused(bytes: u64, free: u64) -> ExecError {
    let mib = |bytes: u64| bytes / (1 << 20);
    ExecError::Memory(format!(
        "cannot take an arena of {} MiB: the GPU has {} MiB free; give a smaller --memory, or end what else uses the GPU \
         (nvidia-smi lists it)",
        mib(bytes),
        mib(free)
    ))
}

fn properties(context: &Context) -> cuda::CUmemAllocationProp {
    // SAFETY: the struct is plain data for which zeros are the documented default.
    let mut properties: cuda::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = cuda::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = cuda::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = context.device();
    properties
}
