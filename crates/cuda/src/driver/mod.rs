//! The only place that calls CUDA: libraries found and loaded, a context, streams, memory, modules, products.
//!
//! Thin on purpose: each function is a call or a short fixed order of calls, with its fault in words. The order in
//! which a device is brought up follows from measurements of the card's memory that each step takes:
//!
//! ```text
//! free memory by NVML ─▶ context ─▶ stack limit 0 ─▶ stream ─▶ address range ─▶ modules ─▶ library handle ─▶ arena
//! ```
//!
//! Modules load lazily, whatever the user's environment says: eager loading of the library costs 338 MiB.

mod arena;
mod attention;
mod attention_graph;
mod blas;
mod captured;
mod compiler;
mod context;
mod cublaslt;
mod cudnn;
mod event;
mod graph_builder;
mod libraries;
mod modules;
mod nccl;
mod nvml;
mod nvrtc;
mod points;
mod staging;
mod stream;
mod symbols;
mod vendor;
mod world;

pub(crate) use arena::{Borrowed, Folded, Mapping, Reserved};
pub use attention::AttentionPlan;
pub(crate) use attention::{Attentions, BoundAttention};
pub(crate) use blas::Blas;
pub(crate) use captured::Captured;
pub(crate) use compiler::Compiler;
pub(crate) use context::Context;
pub use context::{Card, CudaTarget};
pub(crate) use cudnn::Cudnn;
pub use libraries::{Libraries, library_folders};
pub(crate) use modules::{Bound, Modules};
pub(crate) use nccl::Nccl;
pub use nvrtc::Compiled;
pub(crate) use nvrtc::Nvrtc;
pub(crate) use points::Points;
pub(crate) use stream::Stream;
pub(crate) use vendor::Vendor;
pub(crate) use world::World;

use cudarc::driver::sys as cuda;
use plimsoll_exec::ExecError;

/// Turns a result of the driver into an error that names the failed operation.
fn ok(result: cuda::CUresult, doing: &str) -> Result<(), ExecError> {
    match result {
        cuda::CUresult::CUDA_SUCCESS => Ok(()),
        cuda::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(ExecError::Memory(format!(
            "the GPU has no memory left: {doing} failed; end what else uses the GPU (nvidia-smi lists it)"
        ))),
        other => Err(ExecError::Device(format!("the GPU failed: {doing}: {}", words(other)))),
    }
}

/// The name of a fault without the prefix that all of them share.
fn words(fault: cuda::CUresult) -> String {
    let name = format!("{fault:?}");
    name.trim_start_matches("CUDA_ERROR_").to_lowercase().replace('_', " ")
}

/// A version that is counted as one number, such as 91900 for 9.19.0.
pub(crate) fn version_text(version: usize, major: usize, minor: usize) -> String {
    let rest = version % major;
    let patch = if minor >= 100 { format!(".{}", rest % minor) } else { String::new() };
    format!("{}.{}{patch}", version / major, rest / minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_as_people_write_them() {
        assert_eq!(version_text(91_900, 10_000, 100), "9.19.0");
        assert_eq!(version_text(130_102, 10_000, 100), "13.1.2");
        assert_eq!(version_text(12_080, 1000, 10), "12.8");
    }

    /// Functions of the driver that are called without a look at its version: drivers of CUDA 12.0 have them.
    const OLD_ENOUGH: &[&str] = &[
        "cuCtxSetCurrent",
        "cuCtxSetLimit",
        "cuCtxSynchronize",
        "cuDeviceGet",
        "cuDeviceGetAttribute",
        "cuDeviceGetCount",
        "cuDeviceGetName",
        "cuDeviceGetUuid_v2",
        "cuDevicePrimaryCtxRelease_v2",
        "cuDevicePrimaryCtxRetain",
        "cuDeviceTotalMem_v2",
        "cuDriverGetVersion",
        "cuEventCreate",
        "cuEventDestroy_v2",
        "cuEventQuery",
        "cuEventRecord",
        "cuEventSynchronize",
        "cuFuncSetAttribute",
        "cuGraphDestroy",
        "cuGraphExecDestroy",
        "cuGraphInstantiateWithFlags",
        "cuGraphLaunch",
        "cuGraphUpload",
        "cuInit",
        "cuLaunchKernel",
        "cuMemAddressFree",
        "cuMemAddressReserve",
        "cuMemAlloc_v2",
        "cuMemCreate",
        "cuMemFreeHost",
        "cuMemFree_v2",
        "cuMemGetAllocationGranularity",
        "cuMemGetInfo_v2",
        "cuMemHostAlloc",
        "cuMemMap",
        "cuMemRelease",
        "cuMemSetAccess",
        "cuMemUnmap",
        "cuMemcpyDtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuMemcpyHtoDAsync_v2",
        "cuMemsetD8Async",
        "cuMemsetD8_v2",
        "cuModuleGetFunction",
        "cuModuleLoadData",
        "cuModuleUnload",
        "cuStreamBeginCapture_v2",
        "cuStreamCreate",
        "cuStreamDestroy_v2",
        "cuStreamEndCapture",
        "cuStreamSynchronize",
        "cuStreamWaitEvent",
    ];

    #[test]
    fn functions_that_the_oldest_driver_lacks_are_called_behind_a_look_at_its_version() {
        // `cudarc` panics where a driver lacks a function.
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/driver");
        let mut called = std::collections::BTreeSet::new();
        for file in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let named = text
                .split("cuda::cu")
                .skip(1)
                .filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next());
            called.extend(
                named.filter(|name| name.starts_with(char::is_uppercase)).map(|name| format!("cu{name}")),
            );
        }
        assert!(called.remove("cuFuncLoad"), "behind `LOADS_FUNCTIONS`");
        assert_eq!(called.iter().map(String::as_str).collect::<Vec<_>>(), OLD_ENOUGH);
    }
}
