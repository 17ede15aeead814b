//! Points in a stream: one can wait for the work before a point, and read the time between two.
#![allow(unsafe_code, reason = "calls the driver")]

use std::sync::OnceLock;

use cudarc::driver::sys as cuda;
use plimsoll_exec::ExecError;

use super::ok;

/// The driver's function for the time between two points.
type Elapsed = unsafe extern "C" fn(*mut f32, cuda::CUevent, cuda::CUevent) -> cuda::CUresult;

/// The clock of a driver whose functions `named` looks up. Before CUDA 12.8 a driver has it by its first name alone, and
/// `cudarc`, which knows only the second, would panic.
fn clock(named: impl Fn(&'static str) -> Option<Elapsed>) -> Option<Elapsed> {
    ["cuEventElapsedTime_v2", "cuEventElapsedTime"].into_iter().find_map(named)
}

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
        static CLOCK: OnceLock<Option<Elapsed>> = OnceLock::new();
        // SAFETY: the driver is open and stays so; functions of both names have this type.
        let of_driver =
            |name: &str| unsafe { cuda::culib().get::<Elapsed>(name.as_bytes()) }.ok().map(|found| *found);
        let clock = CLOCK.get_or_init(|| clock(of_driver));
        let read = clock.ok_or_else(|| ExecError::Unsupported("the NVIDIA driver has no clock".into()))?;
        let mut milliseconds = 0.0;
        // SAFETY: both events were recorded and are done.
        let read = unsafe { read(&raw mut milliseconds, self.0, end.0) };
        ok(read, "reading the GPU's clock")?;
        Ok(f64::from(milliseconds) / 1e3)
    }

    /// Whether the stream has passed the point by now.
    pub(super) fn is_passed(&self) -> Result<bool, ExecError> {
        // SAFETY: the event lives.
        match unsafe { cuda::cuEventQuery(self.0) } {
            cuda::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => ok(other, "looking at a point of a stream").map(|()| true),
        }
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

#[cfg(test)]
mod tests {
    use libloading::os::unix::{Library, RTLD_NOW};

    use super::*;
    use crate::driver::symbols::{named, stand_in};

    #[test]
    fn drivers_of_every_version_tell_the_time_by_the_newest_name_that_they_have() {
        let said = |names: &[(&str, usize)]| {
            let folder = tempfile::tempdir().unwrap();
            let source: String =
                names.iter().map(|(name, status)| stand_in::answers(name, *status)).collect();
            let path = stand_in::library(folder.path(), "libcuda.so.97", &source);
            // SAFETY: the functions above, which take anything.
            unsafe {
                let driver = Library::open(Some(&path), RTLD_NOW).unwrap();
                let (mut milliseconds, null) = (0.0, std::ptr::null_mut());
                clock(|name| named(&driver, name).ok())
                    .map(|clock| clock(&raw mut milliseconds, null, null) as u32)
            }
        };
        let [old, new] = [("cuEventElapsedTime", 1), ("cuEventElapsedTime_v2", 2)];
        assert_eq!(said(&[old]), Some(1), "before CUDA 12.8");
        assert_eq!(said(&[old, new]), Some(2));
        assert_eq!(said(&[new]), Some(2));
        assert_eq!(said(&[]), None);
    }
}
