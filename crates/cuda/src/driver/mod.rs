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
pub(crate) use stream::Stream;
pub(crate) use vendor::Vendor;
pub(crate) use world::World;

use cudarc::driver::sys as cuda;
use plimsoll_exec::ExecError;

/// Turns a result of the driver into an error that names the failed operation.
fn ok(result: cuda::CUresult, doing: &str) -> Result<(), ExecError> {
    match result {
        cuda::CUresult::CUDA_SUCCESS => Ok(()),
        cuda::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            Err(ExecError::Memory(format!("the GPU has no memory left: {doing} failed")))
        }
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
}
