//! Pinned memory of the host between the caller's and the GPU's.
//!
//! A copy to or from memory that is not pinned makes the host wait for the stream. So writes are staged in two halves,
//! each free again when the stream has passed its event. Numbers that a caller will read later arrive in a row after
//! the halves, and behind them the words that kernels report to: every wait brings these along, so that nobody waits a
//! second time for them.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys as cuda;
use plimsoll_exec::ExecError;

use super::event::Event;
use super::{Context, ok};

/// Bytes of each half.
const HALF: usize = 1 << 20;
/// Numbers that may be on their way.
const OBSERVED: usize = 1 << 10;
/// Words where kernels report bad ids.
pub(super) const WORDS: usize = 256;
/// Where numbers and words lie.
const NUMBERS: usize = 2 * HALF;
const REPORTS: usize = NUMBERS + 4 * OBSERVED;

/// Memory that copies of a stream go through.
#[derive(Debug)]
pub(crate) struct Staging {
    context: Arc<Context>,
    memory: *mut u8,
    /// Address of the words on the GPU.
    words: u64,
    /// The half that is being filled, and how far it is.
    half: usize,
    filled: usize,
    /// One event for each half, which is free when the stream has passed its event.
    free: [Event; 2],
    /// Numbers that were copied since they were last taken.
    observed: usize,
    /// Observed numbers for which no room was left.
    spilled: Vec<f32>,
}

// SAFETY: pinned memory is memory of the process; whoever has the staging has it alone.
unsafe impl Send for Staging {}

impl Staging {
    /// Bytes of the memory.
    pub(super) const PINNED: u64 = (REPORTS + 8 * WORDS) as u64;

    /// Takes the memory; `words` is the address of the words on the GPU.
    pub(crate) fn new(context: &Arc<Context>, words: u64) -> Result<Staging, ExecError> {
        context.enter()?;
        let free = [Event::new()?, Event::new()?];
        let mut memory = std::ptr::null_mut();
        // SAFETY: an out-parameter that lives here.
        let taken = unsafe { cuda::cuMemHostAlloc(&raw mut memory, Self::PINNED as usize, 0) };
        ok(taken, "taking pinned memory of the host")?;
        let memory = memory.cast::<u8>();
        // SAFETY: inside what was taken.
        unsafe { memory.add(REPORTS).write_bytes(0xff, 8 * WORDS) };
        Ok(Staging {
            context: Arc::clone(context),
            memory,
            words,
            half: 0,
            filled: 0,
            free,
            observed: 0,
            spilled: Vec::new(),
        })
    }

    /// Queues a copy to the GPU; the slice is free when this returns.
    pub(crate) fn write(&mut self, to: u64, bytes: &[u8], stream: cuda::CUstream) -> Result<(), ExecError> {
        for (index, piece) in bytes.chunks(HALF).enumerate() {
            if self.filled + piece.len() > HALF {
                self.turn(stream)?;
            }
            // SAFETY: the piece fits behind what the half holds, and the stream no longer reads there; the caller has
            // checked the range on the GPU.
            unsafe {
                let room = self.memory.add(self.half * HALF + self.filled);
                room.copy_from_nonoverlapping(piece.as_ptr(), piece.len());
                let to = to + (index * HALF) as u64;
                let from = room.cast::<c_void>();
                ok(cuda::cuMemcpyHtoDAsync_v2(to, from, piece.len(), stream), "copying to the GPU")?;
            }
            self.filled += piece.len();
        }
        Ok(())
    }

    /// Switches to the other half as soon as the stream has finished with it.
    fn turn(&mut self, stream: cuda::CUstream) -> Result<(), ExecError> {
        self.free[self.half].record(stream)?;
        (self.half, self.filled) = (1 - self.half, 0);
        self.free[self.half].wait()
    }

    /// Queues a copy from the GPU after all other work, and waits until it is done.
    pub(crate) fn read(
        &mut self,
        from: u64,
        bytes: &mut [u8],
        stream: cuda::CUstream,
    ) -> Result<(), ExecError> {
        for (index, piece) in bytes.chunks_mut(HALF).enumerate() {
            // The half may hold writes that are still under way; after this wait it does not.
            self.turn(stream)?;
            // SAFETY: as for `write`; the room is read when the stream has been waited for.
            unsafe {
                let room = self.memory.add(self.half * HALF);
                let from = from + (index * HALF) as u64;
                let copied = cuda::cuMemcpyDtoHAsync_v2(room.cast(), from, piece.len(), stream);
                ok(copied, "copying from the GPU")?;
                self.wait(stream)?;
                piece.as_mut_ptr().copy_from_nonoverlapping(room, piece.len());
            }
        }
        Ok(())
    }

    /// Queues a copy of a float that [`observed`](Self::observed) will hand out.
    pub(crate) fn observe(&mut self, from: u64, stream: cuda::CUstream) -> Result<(), ExecError> {
        if self.observed == OBSERVED {
            let mut spilled = std::mem::take(&mut self.spilled);
            self.observed(&mut spilled, stream)?;
            self.spilled = spilled;
        }
        // SAFETY: room for this number; the caller has checked the range on the GPU.
        unsafe {
            let room = self.memory.add(NUMBERS + 4 * self.observed).cast();
            ok(cuda::cuMemcpyDtoHAsync_v2(room, from, 4, stream), "copying from the GPU")?;
        }
        self.observed += 1;
        Ok(())
    }

    /// Waits for the stream and appends the numbers that were copied since the last call.
    pub(crate) fn observed(
        &mut self,
        floats: &mut Vec<f32>,
        stream: cuda::CUstream,
    ) -> Result<(), ExecError> {
        floats.append(&mut self.spilled);
        let count = std::mem::take(&mut self.observed);
        self.wait(stream)?;
        // SAFETY: the numbers have arrived, and are aligned to more than their size.
        floats
            .extend_from_slice(unsafe { std::slice::from_raw_parts(self.memory.add(NUMBERS).cast(), count) });
        Ok(())
    }

    /// Waits for the stream, and for the words as they are then.
    fn wait(&self, stream: cuda::CUstream) -> Result<(), ExecError> {
        // SAFETY: there are as many words on the GPU, and room for them; the stream lives.
        unsafe {
            let room = self.memory.add(REPORTS).cast();
            ok(cuda::cuMemcpyDtoHAsync_v2(room, self.words, 8 * WORDS, stream), "reading the reports")?;
            ok(cuda::cuStreamSynchronize(stream), "waiting for the GPU")
        }
    }

    /// The words as they were at the end of the last wait.
    pub(crate) fn reports(&self) -> [u64; WORDS] {
        // SAFETY: the words were set when the memory was taken or by a wait.
        unsafe { self.memory.add(REPORTS).cast::<[u64; WORDS]>().read_unaligned() }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made once; its stream is waited for before it goes.
            unsafe { cuda::cuMemFreeHost(self.memory.cast()) };
        }
    }
}
