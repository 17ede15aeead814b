//! Devices, and the run loop that executes a plan.
//!
//! In order of use: a [`Device`] tells the planner its facts, the [`Engine`] takes the arena and walks the
//! schedules. [`reference`](mod@reference) holds the readable kernels that define every op and run whole graphs with no
//! plan at all; [`cases`] holds the inputs on which every device is judged against them.
//!
//! Nothing here decides anything, and nothing allocates after the start.

mod arena;
mod box_muller;
pub mod cases;
pub mod codes;
pub mod conformance;
pub mod cpu;
mod device;
mod elements;
mod engine;
mod error;
pub mod init;
mod instructions;
mod own_range;
pub mod quantised;
pub mod random;
mod ranks;
pub mod reference;
pub mod rounding;
mod state;
mod subspace;
mod timings;

pub use arena::Arena;
pub use cpu::{CpuDevice, DiskSpeed, measure_disk};
pub use device::{Device, Draw, MemoryPool, ProbeSize, Probing, ScheduleId, no_schedule, unsuitable};
pub use elements::{Data, decode_numbers};
pub use engine::Engine;
pub use error::ExecError;
pub use instructions::Instructions;
pub use ranks::{
    Communicator, ExchangeKind, ExchangeOperands, LIMIT, Meeting, Wire, message_bytes, message_rank,
    tcp_rank, thread_ranks,
};
pub use subspace::Projection;
pub use timings::{Pace, Paces, Timing, Timings};
