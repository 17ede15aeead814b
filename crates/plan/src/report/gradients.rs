//! Where the gradients of a plan are: in ranges that persist, and why, or in transient bytes.

use std::fmt;

use plimsoll_graph::{Op, StateKind};

use crate::program::{Purpose, Role};
use crate::schedule::Contents;
use crate::search::Choice;

/// Why gradients outlive the backward pass that makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persist {
    /// Gradients are summed over this many micro-batches.
    Summed(usize),
    /// Clipping needs the norm of all gradients before any of them is applied.
    Clipped,
    /// Separate updates after the backward pass were requested, or the program has no others.
    Separate,
}

/// Where the gradients of a plan are, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GradientReport {
    /// Bytes of all of them if they persist; otherwise the most that are alive at one time.
    pub bytes: u64,
    /// Why gradients persist; `None` if each is used up inside the backward pass.
    pub persist: Option<Persist>,
    /// How often the backward pass makes each gradient.
    pub passes: usize,
    /// Forward passes over each micro-batch whose losses stand in for gradients; then there are none.
    pub probes: usize,
}

impl fmt::Display for GradientReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.probes > 0 {
            return write!(f, "no gradients: {} forward passes over each micro-batch", self.probes);
        }
        match self.persist {
            Some(Persist::Summed(micro_batches)) => {
                write!(f, "gradients persist: {micro_batches} micro-batches are summed")
            }
            Some(Persist::Clipped) => f.write_str("gradients persist: the norm of all of them is limited"),
            Some(Persist::Separate) => f.write_str("gradients persist: the update follows the backward pass"),
            None if self.passes > 1 => f.write_str(
                "gradients come and go in two passes, because the norm of all of them is limited; \
                 `--max-grad-norm 0` takes one",
            ),
            None => f.write_str("gradients come and go: each is applied inside the backward pass"),
        }
    }
}

/// Reads the treatment of gradients from a plan.
pub fn gradients(choice: &Choice) -> GradientReport {
    let (graph, probes) = (&choice.program.train.graph, choice.program.probes());
    if probes > 0 {
        return GradientReport { bytes: 0, persist: None, passes: 0, probes };
    }
    if choice.program.updates_in_backward() {
        let passes = choice.program.passes();
        return GradientReport { bytes: most_transient(choice), persist: None, passes, probes };
    }
    let states = choice.plan.states.iter().filter(|range| range.purpose == Purpose::Gradients);
    let clips = |op: &Op| matches!(op, Op::ClipScale { max_norm: Some(_) });
    let persist = match choice.accumulation {
        1 if graph.nodes().iter().any(|node| clips(&node.op)) => Persist::Clipped,
        1 => Persist::Separate,
        micro_batches => Persist::Summed(micro_batches),
    };
    GradientReport { bytes: states.map(|range| range.bytes).sum(), persist: Some(persist), passes: 1, probes }
}

/// The most bytes of transient gradients alive at one time.
fn most_transient(choice: &Choice) -> u64 {
    let graph = &choice.program.train.graph;
    let Some(schedule) = choice.plan.schedules.get(&Role::First) else { return 0 };
    let transient = schedule.buffers.iter().filter(|buffer| {
        matches!(buffer.contents, Contents::State(state) if graph.state(state).kind == StateKind::Transient)
    });
    let mut change = vec![0i64; schedule.actions.len() + 1];
    for buffer in transient {
        change[buffer.start] += buffer.bytes as i64;
        change[buffer.end] -= buffer.bytes as i64;
    }
    let alive = change.iter().scan(0, |alive, delta| {
        *alive += delta;
        Some(*alive)
    });
    alive.max().unwrap_or(0) as u64
}
