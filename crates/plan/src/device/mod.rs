//! Devices as the planner sees them: figures, never handles.
//!
//! [`facts`] is what any device states about a graph, [`link`] the way to memory beside its own, and [`described`] a list
//! of GPUs that one can plan for without having them. Kernels and clocks are absent: they are the business of `exec`.

mod described;
mod facts;
mod link;

pub(crate) use facts::aligned;

pub use described::{DeviceSpec, UnknownDevice};
pub use facts::{Facts, NodeFacts, Scratch, Workspace};
pub use link::{Direction, Lane, Link, Tier};
