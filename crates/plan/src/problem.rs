//! What the planner must know of a device, as plain data that the device fills in.

use crate::schedule::{Direction, Tier};

/// Scratch memory an action needs. The kernel works with any amount in between and gives the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Workspace {
    /// Bytes without which it cannot run.
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

/// What a device says about one node.
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
    /// As much as is useful.
    Best,
    /// As little as possible.
    Least,
}

/// What a device says about itself and a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// Offsets and sizes of buffers are multiples of this.
    pub alignment: u64,
    /// One entry per node.
    pub nodes: Vec<NodeFacts>,
    /// Where values may wait until they are read again, if anywhere.
    pub link: Option<Link>,
}

/// A way to another tier and back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// The other end.
    pub tier: Tier,
    /// Bytes that may lie there.
    pub room: u64,
    /// Places in the tier are multiples of this, and what is smaller is not worth sending.
    pub block: u64,
    /// Rate on the way out, in bytes per second.
    pub out_rate: f64,
    /// Rate on the way in.
    pub in_rate: f64,
    /// Time of a transfer beside that of its bytes, in seconds.
    pub latency: f64,
    /// Time that runs lose for every byte that moves beside them, in seconds: where those who compute also move it.
    pub toll: f64,
}

impl Link {
    /// Time of a transfer of `bytes` bytes.
    pub fn seconds(&self, direction: Direction, bytes: u64) -> f64 {
        let rate = match direction {
            Direction::Out => self.out_rate,
            Direction::In => self.in_rate,
        };
        self.latency + bytes as f64 / rate
    }

    /// Time that runs lose while so many bytes move.
    pub fn lost_seconds(&self, bytes: u64) -> f64 {
        self.toll * bytes as f64
    }
}
