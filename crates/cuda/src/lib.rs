//! NVIDIA GPUs as a device: the same graph, the same plan, other kernels.
//!
//! Three layers, each testable without the one above it:
//!
//! ```text
//! lower     schedule → launches, products, copies     plain data, no GPU needed
//! driver    the only place that calls CUDA            loads libraries when asked, never at start
//! kernels   *.cu, one readable file per family        compiled by NVRTC on first use, cached on disk
//! ```
//!
//! Nothing here decides anything about memory: operands and scratch are the plan's.

mod attention_table;
mod bound_schedule;
mod counting;
mod device;
mod documents;
mod driver;
mod facts;
mod inspection;
pub mod kernels;
pub mod lower;
mod options;
mod resources;
mod trials;

pub use attention_table::{AttentionTable, PlannedAttention};
pub use device::CudaDevice;
pub use driver::{AttentionPlan, Card, Compiled, CudaTarget, Libraries, library_folders};
pub use facts::{Rates, facts};
pub use inspection::{FoundLibrary, Inspection, MeasuredRates, inspect};
pub use options::{CudaOptions, Products};
pub use resources::{Resources, resources};
pub use trials::{faulty_cases, half_cases};
