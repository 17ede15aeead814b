//! Points in a stream: one can wait for the work before a point, and read the time between two.
#![allow(unsafe_code, reason = "calls the driver")]

use cudarc::driver::sys as cuda;
use plimsoll_exec::ExecError;

use super::ok;

/// A point in a stream, destroyed when it is dropped.
#[derive(Debug)]
pub(super) struct Event(cuda::CUevent);

impl Event {
    pub(super) fn new() -> Result<Event, ExecError> {
        let mut event = std::ptr::null_mut();
        // SAFETY: an out-parameter that lives here.
        unsafe { ok(cuda::cuEventCreate(&raw mut event, 0), "making an event")? };
        Ok(Event(event))
    }

    /// A point that only orders the work of two streams, and tells no time.
    pub(super) fn of_order() -> Result<Event, ExecError> {
        let (mut event, flags) = (std::ptr::null_mut(), cuda::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32);
        // SAFETY: an out-parameter that lives here.
        unsafe { ok(cuda::cuEventCreate(&raw mut event, flags), "making an event")? };
        Ok(Event(event))
    }

    /// Holds what is queued on a stream from here on until the point has been passed.
    pub(super) fn holds(&self, stream: cuda::CUstream) -> Result<(), ExecError> {
        // SAFETY: event and stream live.
        unsafe { ok(cuda::cuStreamWaitEvent(stream, self.0, 0), "having a stream wait") }
    }

    /// Puts the point behind all that was queued.
    pub(super) fn record(&self, stream: cuda::CUstream) -> Result<(), ExecError> {
        // SAFETY: event and stream live.
        unsafe { ok(cuda::cuEventRecord(self.0, stream), "recording an event") }
    }

    /// Seconds from this point to a later one. The stream must have passed both.
    pub(super) fn until(&self, end: &Event) -> Result<f64, ExecError> {
        let mut milliseconds = 0.0;
        // SAFETY: both events were recorded and are done.
        let read = unsafe { cuda::cuEventElapsedTime_v2(&raw mut milliseconds, self.0, end.0) };
        ok(read, "reading the GPU's clock")?;
        Ok(f64::from(milliseconds) / 1e3)
    }

    /// Waits until the point has been passed; at once where it was never recorded.
    pub(super) fn wait(&self) -> Result<(), ExecError> {
        // SAFETY: the event lives.
        unsafe { ok(cuda::cuEventSynchronize(self.0), "waiting for the GPU") }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made once and not used again.
        unsafe { cuda::cuEventDestroy_v2(self.0) };
    }
}
