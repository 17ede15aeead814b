//! The planner's product: a flat list of actions, in which every operand is a buffer with an offset.
//!
//! A **buffer** is one lifetime of one value, in bytes. A value that is dropped and recomputed has several;
//! a view has none of its own; state has one that lasts for the whole schedule and lies at the same
//! offset in every schedule of a plan, unless it is [`Away`]: then each of its stays is a buffer.
//!
//! Copies between the device and another tier are two actions, so that they can overlap with compute:
//!
//! ```text
//! run a · start out(a) · run b · run c · wait out(a) · …        a's bytes are busy from start to wait
//!                                  └ may read a, may not write over it
//! ```
//!
//! `start` comes after every compute action before it and `wait` before every compute action after it;
//! copies of one lane keep their order.
//!
//! An exchange between ranks is a node of the graph, and a pair of actions as well. Its run begins it, and compute goes on
//! until the exchange is awaited:
//!
//! ```text
//! run all_reduce(a) · run all_reduce(b) · await a · run sum_squares(a) · await b · …
//!                                          └ nothing touches a's bytes from its run to its await
//! ```
//!
//! Every rank runs the same schedule, so exchanges begin in the same order everywhere; [`replay_ranks`] judges that.
//!
//! A transfer may end in the schedule that follows. State on its way back to a tier is left open, and the next schedule
//! settles it before it touches the bytes. A schedule may also start a transfer of the next one, which then finds it
//! under way:
//!
//! ```text
//! update  … run · start out(m)                          first  run · settle · run · …
//! first   … run · start next(v) · run                   update start(v), which is under way · run · wait(v) · …
//! ```
//!
//! No transfer stays open for longer than one schedule. [`Role::overlaps`] lists the schedules that may begin while transfers
//! of a given schedule are open.
//!
//! Beside the form itself: [`copy`] is a transfer with its two ends, [`sequence`] is a schedule before it has buffers,
//! [`time`] predicts how long a schedule takes, [`replay`](mod@replay) judges it with the help of [`ranges`], and [`text`]
//! prints it.

mod copy;
pub(crate) mod ranges;
mod replay;
pub(crate) mod sequence;
mod text;
mod time;

use std::fmt;

use plimsoll_graph::{Graph, NodeId, StateId, Value};

use crate::device::{Lane, Tier};
use crate::program::{Purpose, Role};

pub(crate) use time::{Backlog, seconds_after};

pub(crate) use copy::Ends;
pub use copy::{Copy, End};
pub use replay::{
    Exchange, Fault, Judged, RanksDiffer, ReplayError, Runnable, exchanges, replay, replay_all, replay_ranks,
    runnable,
};

/// Index of a buffer in its schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

impl BufferId {
    /// Position in the table of buffers.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The contents of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contents {
    /// A value that is not state; never a view.
    Value(Value),
    /// A range of state, whatever its version.
    State(StateId),
    /// Scratch.
    Scratch,
}

/// Bytes with a lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The buffer's contents.
    pub contents: Contents,
    /// The buffer's purpose.
    pub purpose: Purpose,
    /// Size, rounded up to the device's alignment.
    pub bytes: u64,
    /// First byte in the arena.
    pub offset: u64,
    /// First action that touches it; inputs and state are there from the beginning.
    pub start: usize,
    /// One past the last action that touches the buffer.
    pub end: usize,
}

/// State that has no bytes of its own in the arena. A tier holds it before and after the schedule; where it is used, it
/// is fetched for a stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Away {
    /// The state.
    pub state: StateId,
    /// The tier on which the state lies.
    pub tier: Tier,
    /// First byte in the tier.
    pub tier_offset: u64,
    /// Size, rounded up to the device's alignment.
    pub bytes: u64,
}

/// One entry of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Executes a node; begins it, where it is an exchange between ranks.
    Run {
        /// The node that runs.
        node: NodeId,
        /// Buffers of the node's inputs.
        inputs: Vec<BufferId>,
        /// Buffers of the node's outputs.
        outputs: Vec<BufferId>,
        /// The node's scratch, if it needs any.
        workspace: Option<BufferId>,
        /// A set of bits, one per output: whether the output is added to what its buffer holds.
        accumulate: u32,
    },
    /// Waits until an exchange between ranks has ended.
    Await {
        /// The exchange's node.
        node: NodeId,
    },
    /// Begins the transfer `copy`, an index into the schedule's copies.
    Start {
        /// Index of the copy.
        copy: usize,
    },
    /// Waits until the transfer `copy` is done.
    Wait {
        /// Index of the copy.
        copy: usize,
    },
    /// Waits until at most `left` of the transfers that the schedule before has left open in `lane` are under way.
    Settle {
        /// The lane.
        lane: Lane,
        /// How many transfers of the lane may stay under way.
        left: usize,
    },
    /// Begins the transfer `copy` of the schedule of `role`, if that one runs next. Else it does nothing, and that schedule
    /// begins the transfer itself.
    StartNext {
        /// Role of the schedule that the transfer belongs to.
        role: Role,
        /// Index of the copy in that schedule.
        copy: usize,
    },
}

/// Memory that a run takes from the machine before its first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Space {
    /// Bytes of the arena.
    pub arena: u64,
    /// Bytes in the tier [`Tier::Host`].
    pub host: u64,
    /// Bytes in the tier [`Tier::Disk`].
    pub disk: u64,
    /// The most transfers that one schedule starts or finds under way.
    pub transfers: usize,
}

impl Space {
    /// The space that `schedules` need together.
    pub fn of<'a>(arena: u64, schedules: impl IntoIterator<Item = &'a Schedule>) -> Space {
        let mut space = Space { arena, ..Space::default() };
        for schedule in schedules {
            // The schedule before may have left as many transfers open.
            space.transfers = space.transfers.max(2 * schedule.copies.len());
            let copied = schedule.copies.iter().filter_map(|copy| {
                let bytes = schedule.buffer(copy.buffer()?).bytes;
                copy.tier().map(|(tier, offset)| (tier, offset + bytes))
            });
            let waiting = schedule.away.iter().map(|away| (away.tier, away.tier_offset + away.bytes));
            for (tier, end) in copied.chain(waiting) {
                let bytes = match tier {
                    Tier::Host => &mut space.host,
                    Tier::Disk => &mut space.disk,
                };
                *bytes = (*bytes).max(end);
            }
        }
        space
    }
}

/// A list of actions with the buffers they work on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The name of the schedule's role, such as `first` or `update`.
    pub name: String,
    /// The actions, in the order in which they run.
    pub actions: Vec<Action>,
    /// All buffers. The first ones are state; a buffer of state that is away has no bytes.
    pub buffers: Vec<Buffer>,
    /// All transfers.
    pub copies: Vec<Copy>,
    /// State that lies on a tier before the schedule and after it.
    pub away: Vec<Away>,
}

impl Schedule {
    /// One buffer.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.index()]
    }

    /// The highest byte end of any buffer.
    pub fn peak(&self) -> u64 {
        self.buffers.iter().map(|buffer| buffer.offset + buffer.bytes).max().unwrap_or(0)
    }

    /// The buffer the caller writes or reads for `value`: the first lifetime of an input, the last of an
    /// output.
    pub fn buffer_of(&self, graph: &Graph, value: Value) -> Option<&Buffer> {
        let contents = match graph.value(graph.storage(value)).state {
            Some((state, _)) => Contents::State(state),
            None => Contents::Value(graph.storage(value)),
        };
        self.buffers.iter().rev().find(|buffer| buffer.contents == contents)
    }

    /// Executions of each node.
    pub fn executions(&self, graph: &Graph) -> Vec<u32> {
        let mut count = vec![0; graph.nodes().len()];
        for action in &self.actions {
            if let Action::Run { node, .. } = action {
                count[node.index()] += 1;
            }
        }
        count
    }

    /// The text form: one line per action, each operand with its byte range.
    pub fn display<'a>(&'a self, graph: &'a Graph) -> impl fmt::Display + 'a {
        text::ScheduleText { schedule: self, graph }
    }
}
