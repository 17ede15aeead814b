//! Work that was recorded once and is queued again with one call: a graph of the driver.
#![allow(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;

use cudarc::driver::sys as cuda;
use plimsoll_exec::ExecError;

use super::{Context, ok};

/// A recorded sequence of launches and copies, uploaded to the GPU.
#[derive(Debug)]
pub(crate) struct Captured {
    context: Arc<Context>,
    graph: cuda::CUgraphExec,
}

// SAFETY: a graph may be launched from any thread in whose context it is; every use enters the context first.
unsafe impl Send for Captured {}
// SAFETY: as above; launches are ordered by the stream that takes them.
unsafe impl Sync for Captured {}

impl Captured {
    /// Records the work that `body` queues on the stream, without running it now.
    ///
    /// # Errors
    ///
    /// When something that `body` calls cannot be recorded, or the driver has no room for it.
    pub(crate) fn new(
        context: &Arc<Context>,
        stream: cuda::CUstream,
        body: impl FnOnce() -> Result<(), ExecError>,
    ) -> Result<Captured, ExecError> {
        context.enter()?;
        // Other threads of the process may call the driver meanwhile.
        let mode = cuda::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let (mut recorded, mut graph) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: out-parameters that live here; the recording ends on every way out.
        unsafe {
            ok(cuda::cuStreamBeginCapture_v2(stream, mode), "recording a schedule")?;
            let queued = body();
            let ended = ok(cuda::cuStreamEndCapture(stream, &raw mut recorded), "recording a schedule");
            let made = queued.and(ended).and_then(|()| {
                let made = cuda::cuGraphInstantiateWithFlags(&raw mut graph, recorded, 0);
                ok(made, "making a graph of a schedule")
            });
            if !recorded.is_null() {
                cuda::cuGraphDestroy(recorded);
            }
            made?;
            let captured = Captured { context: Arc::clone(context), graph };
            ok(cuda::cuGraphUpload(graph, stream), "uploading a graph")?;
            Ok(captured)
        }
    }

    /// Queues all of it.
    ///
    /// # Safety
    ///
    /// The addresses that were recorded hold the operands, and nothing else uses them.
    pub(crate) unsafe fn launch(&self, stream: cuda::CUstream) -> Result<(), ExecError> {
        // SAFETY: the graph lives as long as `self`; the rest is the caller's promise.
        unsafe { ok(cuda::cuGraphLaunch(self.graph, stream), "launching a schedule") }
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made once; the driver keeps what is under way until it is done.
            unsafe { cuda::cuGraphExecDestroy(self.graph) };
        }
    }
}
