//! The judge: walks a schedule byte range by byte range and refuses what a device must not run.
//!
//! It trusts nothing the planner wrote down about lifetimes. It keeps one fact, which buffer was last
//! written to which bytes, and from it decides whether each read finds what it needs:
//!
//! * an input must be intact: written (or supplied by the caller) and not written over since;
//! * an output may cover an input of the same action only where the op says so, and then exactly;
//! * an operand is the value that the graph names, and state is read in the version that the graph names;
//! * forward nodes run at least once, backward and update nodes exactly once;
//! * gradients are summed: the first writers all replace or all add, later ones add;
//! * a transient gradient does not exist before its first writer, which replaces, and need not exist after the last
//!   reader;
//! * a copy leads from its source to its destination in a fitting lane. Its bytes are busy from start to wait: nothing
//!   writes them, and on the way in nothing reads them. Copies of one lane are waited for in the order they were
//!   started. A value that comes back must have gone out before, whole, and must not have been overwritten in the tier
//!   since;
//! * a copy that is open when a schedule ends is busy in every schedule that may follow, until that one has waited for it;
//! * state that is away is held by its tier at first, comes in before it is used, and in the end the tier holds the
//!   newest bits: a value that was written and dropped without being sent out is lost;
//! * bytes of an exchange between ranks are busy from its run to its await: nothing reads or writes them. Exchanges are awaited
//!   in the order they began, and none is open when the schedule ends;
//! * named outputs are intact at the end, and no byte lies beyond the arena.
//!
//! This module shares no code with the planners: it imports the schedule and the graph only. The rules for copies inside one
//! schedule are in `copies`, for copies that cross into the next schedule in `open`, and for exchanges between ranks in
//! `exchange` and `ranks`.

mod copies;
mod exchange;
mod open;
mod open_transfer;
mod ranks;
mod runnable;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use plimsoll_graph::{Graph, NodeId, Phase, StateId, StateKind, Value};

use crate::program::Role;
use crate::schedule::{Action, Buffer, BufferId, Contents, Schedule};
use copies::Copies;
use open::{Around, Walked};

use exchange::Exchanges;
pub use exchange::{Exchange, exchanges};
pub use open::{Judged, replay_all};
pub use ranks::{RanksDiffer, replay_ranks};
pub use runnable::{Runnable, runnable};

/// Why a schedule must not run. `action` is an index into the schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayError {
    /// The action at fault; none when the fault shows at the end.
    pub action: Option<usize>,
    /// The schedule before, if the fault shows only after it.
    pub after: Option<Role>,
    /// The fault.
    pub fault: Fault,
}

/// The faults of schedules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A buffer reaches beyond the arena.
    BeyondArena {
        /// Its end.
        end: u64,
        /// The arena's size.
        arena: u64,
    },
    /// An operand is not the one the graph asks for, or is too small for it.
    WrongOperand(String),
    /// A buffer is read that was never written, or was written over.
    NotIntact(String),
    /// An output covers an operand of the same action that it must leave alone.
    Overlap(String),
    /// The version of state that is read is no longer, or not yet, in its place.
    WrongVersion(String),
    /// A node runs too often, too rarely or in the wrong schedule.
    Executions(String),
    /// Bytes of an unfinished copy are touched, or copies are waited for out of order.
    Copy(String),
    /// An exchange between ranks is awaited out of order, or never.
    Exchange(String),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(action) = self.action {
            write!(f, "action {action}: ")?;
        }
        if let Some(after) = self.after {
            write!(f, "after `{}`: ", after.name())?;
        }
        match &self.fault {
            Fault::BeyondArena { end, arena } => {
                write!(f, "a buffer ends at byte {end} of an arena of {arena}")
            }
            Fault::WrongOperand(why)
            | Fault::NotIntact(why)
            | Fault::Overlap(why)
            | Fault::WrongVersion(why)
            | Fault::Executions(why)
            | Fault::Exchange(why)
            | Fault::Copy(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for ReplayError {}

/// Checks that `schedule` computes the phases `phases` of `graph` inside `arena` bytes, if no transfer is open when it
/// begins. State may still be on its way to a tier when it ends: [`replay_all`] judges the schedules that follow.
///
/// # Errors
///
/// The first fault found.
pub fn replay(graph: &Graph, schedule: &Schedule, phases: &[Phase], arena: u64) -> Result<(), ReplayError> {
    walk(graph, schedule, phases, arena, Around::default()).map(|_| ())
}

/// Walks over a schedule between its neighbours.
fn walk(
    graph: &Graph,
    schedule: &Schedule,
    phases: &[Phase],
    arena: u64,
    around: Around,
) -> Result<Walked, ReplayError> {
    let at_border = |fault| ReplayError { action: None, after: None, fault };
    let ends = schedule.buffers.iter().map(|buffer| buffer.offset.saturating_add(buffer.bytes));
    if let Some(end) = ends.filter(|&end| end > arena).max() {
        return Err(at_border(Fault::BeyondArena { end, arena }));
    }
    let mut machine = Machine::new(graph, schedule);
    machine.begin(around).map_err(at_border)?;
    for (index, action) in schedule.actions.iter().enumerate() {
        let fault = |fault| ReplayError { action: Some(index), after: None, fault };
        machine.step(index, action, around.next).map_err(fault)?;
    }
    machine.finish(phases).map_err(at_border)
}

struct Machine<'a> {
    graph: &'a Graph,
    schedule: &'a Schedule,
    /// Owners of bytes: start of a range to its end and the buffer last written there.
    memory: BTreeMap<u64, (u64, BufferId)>,
    /// Bytes of each buffer that are still its own.
    intact: Vec<u64>,
    /// Version of each state written last in this schedule, if any was.
    version: Vec<Option<u32>>,
    /// Version that each buffer of state holds: of several stays, one can be out of date.
    held: Vec<Option<u32>>,
    /// State that has no bytes of its own in the arena.
    away: BTreeSet<StateId>,
    executions: Vec<u32>,
    /// Whether first writers of gradients add to the bytes already there; known once one of them has run.
    adds: Option<bool>,
    copies: Copies,
    exchanges: Exchanges,
}

impl<'a> Machine<'a> {
    fn new(graph: &'a Graph, schedule: &'a Schedule) -> Machine<'a> {
        let mut machine = Machine {
            graph,
            schedule,
            memory: BTreeMap::new(),
            intact: vec![0; schedule.buffers.len()],
            version: vec![None; graph.states().len()],
            held: vec![None; schedule.buffers.len()],
            away: schedule.away.iter().map(|away| away.state).collect(),
            executions: vec![0; graph.nodes().len()],
            adds: None,
            copies: Copies::default(),
            exchanges: Exchanges::default(),
        };
        // The caller writes inputs, and resident state exists from earlier. Anything else must be computed or fetched.
        for (index, buffer) in schedule.buffers.iter().enumerate() {
            let given = matches!(buffer.contents, Contents::Value(value) if graph.inputs().contains(&value));
            if given || machine.resident(buffer.contents) {
                machine.claim(BufferId(index as u32));
            }
        }
        machine
    }

    /// The caller writes inputs while transfers of the schedule before are open, so these are elsewhere.
    fn begin(&mut self, around: Around) -> Result<(), Fault> {
        self.states_lie_apart()?;
        self.begin_away()?;
        self.begin_open(around.earlier)?;
        for (index, buffer) in self.schedule.buffers.iter().enumerate() {
            if matches!(buffer.contents, Contents::Value(value) if self.graph.inputs().contains(&value)) {
                self.writable(BufferId(index as u32))?;
            }
        }
        Ok(())
    }

    fn step(&mut self, index: usize, action: &Action, next: Option<Judged>) -> Result<(), Fault> {
        match action {
            Action::Run { node, inputs, outputs, workspace, accumulate } => {
                self.run(*node, inputs, outputs, *workspace)?;
                self.sums(*node, *accumulate)?;
                self.begin_exchange(*node, inputs, outputs);
                Ok(())
            }
            Action::Await { node } => self.await_exchange(*node),
            Action::Start { copy } => self.start(*copy),
            Action::Wait { copy } => self.wait(*copy),
            Action::Settle { lane, left } => {
                self.settle(index, *lane, *left);
                Ok(())
            }
            Action::StartNext { role, copy } => self.start_next(*role, *copy, next),
        }
    }

    fn run(
        &mut self,
        node: NodeId,
        inputs: &[BufferId],
        outputs: &[BufferId],
        workspace: Option<BufferId>,
    ) -> Result<(), Fault> {
        let graph = self.graph;
        let Some(op) = graph.nodes().get(node.index()) else {
            return Err(Fault::Executions(format!("there is no node {}", node.0)));
        };
        self.executions[node.index()] += 1;
        self.operands_match(&op.inputs, inputs)?;
        self.operands_match(&op.outputs, outputs)?;
        for (&value, &id) in op.inputs.iter().zip(inputs) {
            self.readable(value, id)?;
        }
        if let Some(id) = workspace.filter(|id| id.index() >= self.schedule.buffers.len()) {
            return Err(Fault::WrongOperand(format!("there is no buffer {}", id.0)));
        }
        let written: Vec<BufferId> = outputs.iter().copied().chain(workspace).collect();
        for (slot, &id) in written.iter().enumerate() {
            self.writable(id)?;
            let allowed = op.op.may_overwrite(slot);
            let in_place = |input: usize| slot < outputs.len() && allowed.contains(&input);
            for (input, &other) in inputs.iter().enumerate() {
                self.apart(id, other, in_place(input))?;
            }
            for &other in &written[..slot] {
                self.apart(id, other, false)?;
            }
        }
        for (slot, &id) in written.iter().enumerate() {
            if let Some(&value) = op.outputs.get(slot) {
                self.new_version(value, id)?;
            }
            self.claim(id);
        }
        Ok(())
    }

    /// All sums of gradients begin in the same way and never lose an addend; nothing else is added to.
    fn sums(&mut self, node: NodeId, accumulate: u32) -> Result<(), Fault> {
        let node = self.graph.node(node);
        for output in 0..u32::BITS as usize {
            let bit = accumulate >> output & 1 == 1;
            let state = node.outputs.get(output).and_then(|&value| self.graph.value(value).state);
            let fits = match state {
                Some((state, version)) if node.op.can_accumulate(output) => {
                    if version > 1 {
                        bit
                    } else if self.graph.state(state).kind == StateKind::Transient {
                        !bit
                    } else {
                        *self.adds.get_or_insert(bit) == bit
                    }
                }
                _ => !bit,
            };
            if !fits {
                let (op, does) = (node.op.name(), if bit { "adds to" } else { "replaces" });
                return Err(Fault::WrongOperand(format!("{op} {does} what output {output} holds")));
            }
        }
        Ok(())
    }

    /// Each operand holds the value the node names, in enough bytes.
    fn operands_match(&self, values: &[Value], ids: &[BufferId]) -> Result<(), Fault> {
        if values.len() != ids.len() {
            return Err(Fault::WrongOperand(format!("{} operands for {} values", ids.len(), values.len())));
        }
        for (&value, &id) in values.iter().zip(ids) {
            let storage = self.graph.storage(value);
            let wanted = match self.graph.value(storage).state {
                Some((state, _)) => Contents::State(state),
                None => Contents::Value(storage),
            };
            let Some(buffer) = self.schedule.buffers.get(id.index()) else {
                return Err(Fault::WrongOperand(format!("there is no buffer {}", id.0)));
            };
            if buffer.contents != wanted || buffer.bytes < self.graph.ty(value).bytes() as u64 {
                let name = self.graph.value_name(value);
                return Err(Fault::WrongOperand(format!("buffer {} is not a place for {name}", id.0)));
            }
        }
        Ok(())
    }

    fn readable(&self, value: Value, id: BufferId) -> Result<(), Fault> {
        // A name is made where there is a fault alone, because every operand of every run comes here.
        let name = || self.graph.value_name(value);
        if self.intact[id.index()] != self.schedule.buffer(id).bytes {
            let name = name();
            return Err(Fault::NotIntact(format!(
                "{name} is read but its bytes are not, or no longer, there"
            )));
        }
        if let Some((state, wanted)) = self.graph.value(self.graph.storage(value)).state
            && let Some(there) = self.version[state.index()]
        {
            if there != wanted {
                let name = name();
                return Err(Fault::WrongVersion(format!(
                    "{name} is read but version {there} is in its place"
                )));
            }
            self.up_to_date(id)?;
        }
        match self.busy(self.bytes_of(id), true) {
            Some(copy) => {
                let (name, copy) = (name(), self.copy_name(copy));
                Err(Fault::Copy(format!("{name} is read before {copy} has brought it")))
            }
            None => Ok(()),
        }
    }

    fn writable(&self, id: BufferId) -> Result<(), Fault> {
        match self.busy(self.bytes_of(id), false) {
            Some(copy) => {
                let copy = self.copy_name(copy);
                Err(Fault::Copy(format!("buffer {} is written while {copy} is under way", id.0)))
            }
            None => Ok(()),
        }
    }

    fn share_bytes(&self, a: BufferId, b: BufferId) -> bool {
        let (a, b) = (self.schedule.buffer(a), self.schedule.buffer(b));
        a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes
    }

    fn apart(&self, output: BufferId, other: BufferId, in_place: bool) -> Result<(), Fault> {
        if !self.share_bytes(output, other) {
            return Ok(());
        }
        let (a, b) = (self.schedule.buffer(output), self.schedule.buffer(other));
        let same_size = match (a.contents, b.contents) {
            (Contents::Value(a), Contents::Value(b)) => self.graph.ty(a).bytes() == self.graph.ty(b).bytes(),
            _ => a.bytes == b.bytes,
        };
        if in_place && a.offset == b.offset && same_size {
            return Ok(());
        }
        Err(Fault::Overlap(format!("output buffer {} lies over operand buffer {}", output.0, other.0)))
    }

    fn new_version(&mut self, value: Value, id: BufferId) -> Result<(), Fault> {
        let Some((state, next)) = self.graph.value(value).state else {
            return Ok(());
        };
        let begins = self.graph.state(state).kind == StateKind::Transient && next == 1;
        if self.version[state.index()].is_some_and(|there| there + 1 != next) {
            let name = self.graph.value_name(value);
            return Err(Fault::WrongVersion(format!("{name} is written out of turn")));
        }
        if !begins && self.intact[id.index()] != self.schedule.buffer(id).bytes {
            let name = &self.graph.state(state).name;
            return Err(Fault::NotIntact(format!("`{name}` is updated but is not, or no longer, there")));
        }
        self.up_to_date(id)?;
        (self.version[state.index()], self.held[id.index()]) = (Some(next), Some(next));
        Ok(())
    }

    /// Refuses a stay of state that another stay has made out of date.
    fn up_to_date(&self, id: BufferId) -> Result<(), Fault> {
        if let Contents::State(state) = self.schedule.buffer(id).contents
            && self.held[id.index()] != self.version[state.index()]
        {
            let name = &self.graph.state(state).name;
            return Err(Fault::WrongVersion(format!("buffer {} holds an old version of `{name}`", id.0)));
        }
        Ok(())
    }

    /// Notes that a buffer is written. From here on it holds all of its bytes, and no other buffer holds any of them.
    fn claim(&mut self, id: BufferId) {
        let &Buffer { offset, bytes, .. } = self.schedule.buffer(id);
        self.lose((offset, offset + bytes));
        if bytes > 0 {
            self.memory.insert(offset, (offset + bytes, id));
        }
        self.intact[id.index()] = bytes;
    }

    /// Takes overwritten bytes from the buffers that held them.
    fn lose(&mut self, (offset, end): (u64, u64)) {
        let first = self.memory.range(..offset).next_back().map_or(offset, |(&start, _)| start);
        let touched: Vec<(u64, u64, BufferId)> = self
            .memory
            .range(first..end)
            .map(|(&start, &(stop, owner))| (start, stop, owner))
            .filter(|&(_, stop, _)| stop > offset)
            .collect();
        for (start, stop, owner) in touched {
            self.memory.remove(&start);
            self.intact[owner.index()] -= stop.min(end) - start.max(offset);
            if start < offset {
                self.memory.insert(start, (offset, owner));
            }
            if stop > end {
                self.memory.insert(end, (stop, owner));
            }
        }
    }

    fn states_lie_apart(&self) -> Result<(), Fault> {
        let mut ranges: Vec<(u64, u64, u32)> = (self.schedule.buffers.iter().enumerate())
            .filter(|(_, buffer)| self.resident(buffer.contents))
            .map(|(index, buffer)| (buffer.offset, buffer.offset + buffer.bytes, index as u32))
            .collect();
        ranges.sort_unstable();
        match ranges.windows(2).find(|pair| pair[0].1 > pair[1].0) {
            Some(pair) => {
                Err(Fault::Overlap(format!("state buffers {} and {} overlap", pair[0].2, pair[1].2)))
            }
            None => Ok(()),
        }
    }

    fn finish(self, phases: &[Phase]) -> Result<Walked, Fault> {
        for (node, &count) in self.graph.nodes().iter().zip(&self.executions) {
            let wanted = phases.contains(&node.phase) && !node.op.is_view();
            let fits = match (wanted, node.phase) {
                (false, _) => count == 0,
                (true, Phase::Forward) => count == 1 || (count > 1 && !node.op.is_once()),
                (true, Phase::Backward | Phase::Update) => count == 1,
            };
            if !fits {
                let (op, phase) = (node.op.name(), node.phase);
                return Err(Fault::Executions(format!("{op} of phase {phase:?} runs {count} times")));
            }
        }
        self.finish_exchanges()?;
        let open = self.finish_open()?;
        for (name, value) in self.graph.outputs() {
            let producer = self.graph.producer(*value).map(|id| self.graph.node(id).phase);
            if producer.is_some_and(|phase| phases.contains(&phase)) && !self.output_intact(*value) {
                return Err(Fault::NotIntact(format!("output `{name}` is written over before the end")));
            }
        }
        // The next schedule reads the state, so nothing may have been written over it.
        for (index, buffer) in self.schedule.buffers.iter().enumerate() {
            if self.resident(buffer.contents) && self.intact[index] != buffer.bytes {
                return Err(Fault::NotIntact(format!("state buffer {index} is written over")));
            }
        }
        self.finish_away()?;
        Ok(Walked { open, settled: self.copies.settled })
    }

    /// Whether `contents` are state that stays in the arena and that other schedules see.
    fn resident(&self, contents: Contents) -> bool {
        let Contents::State(state) = contents else { return false };
        let transient = self.graph.state(state).kind == StateKind::Transient;
        !transient && !self.away.contains(&state)
    }

    fn output_intact(&self, value: Value) -> bool {
        let contents = match self.graph.value(self.graph.storage(value)).state {
            Some((state, _)) => Contents::State(state),
            None => Contents::Value(self.graph.storage(value)),
        };
        // The caller looks for an output in the arena, so it cannot be state that is away.
        if matches!(contents, Contents::State(_)) && !self.resident(contents) {
            return false;
        }
        let last = self.schedule.buffers.iter().rposition(|buffer| buffer.contents == contents);
        last.is_some_and(|index| self.intact[index] == self.schedule.buffers[index].bytes)
    }
}
