//! The bytes in use over the actions of a schedule, as pictures and people need them.
//!
//! ```text
//! action    0   1   2   3
//! h         ████████
//! y                 ████████     y takes over h's bytes in action 2: from there on they are y's
//! ```
//!
//! Buffers that share their bytes in one action are counted once, so the highest moment of a timeline is
//! the liveness bound and never above the arena.

use std::collections::BTreeSet;

use plimsoll_graph::Graph;

use super::names::value_name;
use crate::program::Purpose;
use crate::schedule::{Buffer, Contents, Schedule};

/// A buffer as a rectangle: bytes over actions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The buffer's contents in words.
    pub contents: String,
    /// The buffer's purpose.
    pub purpose: Purpose,
    /// First byte in the arena.
    pub offset: u64,
    /// Size.
    pub bytes: u64,
    /// First action.
    pub start: usize,
    /// One past the last action; one less if another buffer takes over the bytes in that action.
    pub end: usize,
}

/// All buffers of a schedule, in its order.
pub fn spans(graph: &Graph, schedule: &Schedule) -> Vec<Span> {
    let starts: BTreeSet<(u64, u64, usize)> =
        schedule.buffers.iter().map(|buffer| (buffer.offset, buffer.bytes, buffer.start)).collect();
    let span = |buffer: &Buffer| {
        let last = buffer.end.saturating_sub(1);
        let taken = last > buffer.start && starts.contains(&(buffer.offset, buffer.bytes, last));
        Span {
            contents: match buffer.contents {
                Contents::Value(value) => value_name(graph, value),
                Contents::State(state) => graph.state(state).name.clone(),
                Contents::Scratch => "scratch".to_owned(),
            },
            purpose: buffer.purpose,
            offset: buffer.offset,
            bytes: buffer.bytes,
            start: buffer.start,
            end: if taken { last } else { buffer.end },
        }
    };
    schedule.buffers.iter().map(span).collect()
}

/// Bytes in use during each of `actions` actions, by purpose in the order of [`Purpose::ALL`].
pub fn timeline(spans: &[Span], actions: usize) -> Vec<[u64; Purpose::ALL.len()]> {
    let mut moments = vec![[0; Purpose::ALL.len()]; actions];
    for span in spans {
        for moment in &mut moments[span.start.min(actions)..span.end.min(actions)] {
            moment[span.purpose as usize] += span.bytes;
        }
    }
    moments
}
