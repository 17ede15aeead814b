//! One queue of work: copies, fills, waiting, and the time between two points.
#![allow(unsafe_code, reason = "calls the driver")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys as cuda;
use plimsoll_exec::ExecError;

use super::event::Event;
use super::staging::{Staging, WORDS};
use super::{Context, ok};

/// A stream and the words that its kernels report to.
#[derive(Debug)]
#[allow(clippy::struct_field_names, reason = "the driver's own words")]
pub(crate) struct Stream {
    context: Arc<Context>,
    stream: cuda::CUstream,
    words: u64,
    staging: Mutex<Staging>,
}

// SAFETY: a stream may be used from any thread in whose context it is; every use enters the context first.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver locks its queues.
unsafe impl Sync for Stream {}

impl Stream {
    /// Bytes of pinned memory of the host that a stream takes.
    pub(crate) const PINNED: u64 = Staging::PINNED;

    pub(crate) fn new(context: &Arc<Context>) -> Result<Stream, ExecError> {
        context.enter()?;
        let (mut stream, mut words) = (std::ptr::null_mut(), 0);
        let flags = cuda::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: out-parameters that live here; the words are set before anybody reads them.
        unsafe {
            ok(cuda::cuStreamCreate(&raw mut stream, flags), "making a stream")?;
            ok(cuda::cuMemAlloc_v2(&raw mut words, 8 * WORDS), "taking words for reports")?;
            ok(cuda::cuMemsetD8_v2(words, 0xff, 8 * WORDS), "clearing the reports")?;
        }
        let staging = Mutex::new(Staging::new(context, words)?);
        Ok(Stream { context: Arc::clone(context), stream, words, staging })
    }

    pub(crate) fn raw(&self) -> cuda::CUstream {
        self.stream
    }

    /// Address of the word number `index`.
    ///
    /// # Errors
    ///
    /// When there are fewer words.
    pub(crate) fn word(&self, index: usize) -> Result<u64, ExecError> {
        if index >= WORDS {
            return Err(ExecError::Unsupported(format!("more than {WORDS} tables of different sizes")));
        }
        Ok(self.words + 8 * index as u64)
    }

    /// Copies bytes to the GPU; the slice is free when this returns.
    pub(crate) fn write(&self, to: u64, bytes: &[u8]) -> Result<(), ExecError> {
        self.context.enter()?;
        self.staging().write(to, bytes, self.stream)
    }

    fn staging(&self) -> MutexGuard<'_, Staging> {
        self.staging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads bytes after all that was queued.
    pub(crate) fn read(&self, from: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        self.context.enter()?;
        self.staging().read(from, bytes, self.stream)
    }

    /// Has the float at an address handed out by [`observed`](Self::observed), without waiting for it.
    pub(crate) fn observe(&self, from: u64) -> Result<(), ExecError> {
        self.context.enter()?;
        self.staging().observe(from, self.stream)
    }

    /// Waits for all that was queued and appends the floats that were observed.
    pub(crate) fn observed(&self, floats: &mut Vec<f32>) -> Result<(), ExecError> {
        self.context.enter()?;
        self.staging().observed(floats, self.stream)
    }

    /// The words that kernels have reported to, as of the last [`read`](Self::read) or [`observed`](Self::observed).
    pub(crate) fn reports(&self) -> [u64; WORDS] {
        self.staging().reports()
    }

    /// Forgets all reports.
    pub(crate) fn clear_words(&self) -> Result<(), ExecError> {
        self.fill(self.words, 8 * WORDS as u64, 0xff)
    }

    /// Sets bytes.
    pub(crate) fn fill(&self, to: u64, bytes: u64, byte: u8) -> Result<(), ExecError> {
        self.context.enter()?;
        // SAFETY: the caller has checked the range.
        unsafe { ok(cuda::cuMemsetD8Async(to, byte, bytes as usize, self.stream), "setting bytes") }
    }

    /// Copies bytes within the GPU.
    pub(crate) fn copy(&self, from: u64, to: u64, bytes: u64) -> Result<(), ExecError> {
        // SAFETY: the caller has checked the ranges.
        unsafe { ok(cuda::cuMemcpyDtoDAsync_v2(to, from, bytes as usize, self.stream), "copying in the GPU") }
    }

    /// Waits for all that was queued.
    pub(crate) fn wait(&self) -> Result<(), ExecError> {
        self.context.enter()?;
        // SAFETY: the stream lives as long as `self`.
        unsafe { ok(cuda::cuStreamSynchronize(self.stream), "waiting for the GPU") }
    }

    /// Seconds that the GPU takes for the work that `body` queues.
    pub(crate) fn time(&self, body: impl FnOnce() -> Result<(), ExecError>) -> Result<f64, ExecError> {
        self.context.enter()?;
        let [start, end] = [Event::new()?, Event::new()?];
        start.record(self.stream)?;
        body()?;
        end.record(self.stream)?;
        self.wait()?;
        start.until(&end)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made once; nothing is queued behind the destruction.
            unsafe {
                cuda::cuStreamSynchronize(self.stream);
                cuda::cuStreamDestroy_v2(self.stream);
                cuda::cuMemFree_v2(self.words);
            }
        }
    }
}
