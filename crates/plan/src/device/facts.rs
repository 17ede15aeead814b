//! Facts of a device about a graph, as plain data that the device fills in: alignment, and time and scratch of every
//! node. Facts hold no clock and no device: measuring is the device's business.

use super::link::Link;

/// Scratch memory an action needs. The kernel works with any amount in between and gives the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Workspace {
    /// The least bytes with which the kernel can run.
    pub least: u64,
    /// Bytes beyond which more brings nothing.
    pub best: u64,
}

impl Workspace {
    /// A fixed amount.
    pub fn exactly(bytes: u64) -> Workspace {
        Workspace { least: bytes, best: bytes }
    }
}

/// Rounds up to a multiple of `alignment`.
pub(crate) fn aligned(bytes: u64, alignment: u64) -> u64 {
    bytes.next_multiple_of(alignment)
}

/// Time and scratch of one node.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct NodeFacts {
    /// Time of one execution with the best scratch, in seconds.
    pub seconds: f64,
    /// Time of one execution with the least scratch, in seconds.
    pub lean_seconds: f64,
    /// Scratch memory.
    pub workspace: Workspace,
}

impl NodeFacts {
    /// Time of one execution.
    pub fn seconds_with(&self, scratch: Scratch) -> f64 {
        match scratch {
            Scratch::Best => self.seconds,
            Scratch::Least => self.lean_seconds,
        }
    }
}

/// How much scratch actions get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scratch {
    /// As much scratch as is useful.
    Best,
    /// As little scratch as possible.
    Least,
}

/// Alignment of a device, its times for the nodes of one graph, and its link to another tier.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// Offsets and sizes of buffers are multiples of this.
    pub alignment: u64,
    /// One entry per node.
    pub nodes: Vec<NodeFacts>,
    /// Where values may wait until they are read again, if anywhere.
    pub link: Option<Link>,
}
