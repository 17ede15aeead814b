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
    /// Bytes that were asked for.
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
        let access = cuda::CUmemAccessDesc {
            location: properties.location,
            flags: cuda::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
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
            ok(cuda::cuMemSetAccess(range.base, mapped, &raw const access, 1), "opening the arena")?;
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
        if self.range.context.enter().is_ok() {
            // SAFETY: mapped and created once; `synchronize` lets work end that still reads it.
            unsafe {
                cuda::cuCtxSynchronize();
                cuda::cuMemUnmap(self.range.base, self.mapped);
                cuda::cuMemRelease(self.memory);
            }
        }
    }
}

fn refused(bytes: u64, free: u64) -> ExecError {
    ExecError::Memory(format!("cannot take an arena of {bytes} bytes: the GPU has {free} bytes free"))
}

fn properties(context: &Context) -> cuda::CUmemAllocationProp {
    // SAFETY: the struct is plain data for which zeros are the documented default.
    let mut properties: cuda::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = cuda::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = cuda::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = context.device();
    properties
}
