//! Devices as the planner sees them: figures, never handles.
//!
//! [`facts`] holds the statements of a device about a graph, [`link`] the connection to further memory, [`rank_link`] the
//! connections to other ranks, and [`described`] a list of GPUs that one can plan for without having them. Kernels and
//! clocks are absent: they belong to `exec`.

mod described;
mod facts;
mod link;
mod rank_link;

pub(crate) use facts::aligned;

pub use described::{DeviceSpec, UnknownDevice};
pub use facts::{Facts, NodeFacts, Scratch, Workspace};
pub use link::{Direction, Lane, Link, Tier};
pub use rank_link::{RankLink, RankLinks};
