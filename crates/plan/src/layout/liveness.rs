//! From an order of runs to buffers with lifetimes.
//!
//! ```text
//! action   0    1    2    3    4
//! x        w────r─────────r              written by 0, last read by 3: lives 0..4
//! h             w────r                   lives 1..3
//! y                  w────r              may take over h's bytes at 2, if the op allows: one slot
//! scratch            ═                   lives for one action
//! ```
//!
//! Two buffers share a **slot** when the later one takes over the bytes of the earlier one in the very
//! action that ends it. The layout places slots; everything else sees buffers.

use std::collections::{BTreeSet, VecDeque};

use plimsoll_graph::{Graph, NodeId, Op, StateId, StateKind, Value};

use super::slot::Slot;
use crate::device::{Direction, Facts, Scratch, aligned};
use crate::program::Purpose;
use crate::schedule::sequence::{Execution, Move, Operand, Sequence, Transfer};
use crate::schedule::{Action, Buffer, BufferId, Contents, Copy, Schedule};

/// A schedule whose buffers have lifetimes but no offsets yet.
pub(crate) struct Lifetimes {
    /// The schedule, without a name.
    pub(crate) schedule: Schedule,
    /// Lifetimes that must be placed.
    pub(crate) slots: Vec<Slot>,
    /// Slot of each buffer; none for state that outlives the schedule.
    pub(crate) slot_of: Vec<Option<usize>>,
}

/// Whether the first writer of a gradient in this schedule replaces the old contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gradients {
    /// First micro-batch of a step.
    Replace,
    /// Any further micro-batch.
    Add,
}

impl Lifetimes {
    /// Buffers and lifetimes of `sequence`.
    pub(crate) fn of(
        graph: &Graph,
        facts: &Facts,
        scratch: Scratch,
        sequence: &Sequence,
        gradients: Gradients,
    ) -> Lifetimes {
        let states = (0..graph.states().len() as u32).map(StateId).collect();
        Lifetimes::with_states(graph, facts, scratch, (sequence, states), gradients)
    }

    /// The lifetimes of a part of a graph. Only state that the part uses has a buffer, so examining one layer does not
    /// cost as much as the whole graph.
    pub(crate) fn of_part(graph: &Graph, facts: &Facts, scratch: Scratch, sequence: &Sequence) -> Lifetimes {
        let state = |operand: &Operand| match operand {
            Operand::State(state) => Some(*state),
            Operand::Instance(_) => None,
        };
        let used: BTreeSet<StateId> = sequence.operands.iter().filter_map(state).collect();
        let states = used.into_iter().collect();
        Lifetimes::with_states(graph, facts, scratch, (sequence, states), Gradients::Add)
    }

    fn with_states(
        graph: &Graph,
        facts: &Facts,
        scratch: Scratch,
        (sequence, states): (&Sequence, Vec<StateId>),
        gradients: Gradients,
    ) -> Lifetimes {
        let mut writer = Writer::new(graph, facts, scratch, (sequence, states));
        writer.actions = Some(Vec::with_capacity(writer.last()));
        writer.write_actions(gradients);
        let (slots, slot_of) = writer.slots();
        Lifetimes { schedule: writer.schedule(), slots, slot_of }
    }
}

/// The slots of `sequence`, without its schedule. They do not depend on whether the first writers of gradients add or
/// replace. Actions are only counted, since a search asks for the slots of many sequences.
pub(crate) fn slots_of(graph: &Graph, facts: &Facts, scratch: Scratch, sequence: &Sequence) -> Vec<Slot> {
    Writer::written(graph, facts, scratch, sequence).slots().0
}

/// Whether a node is an exchange between ranks, which is run and then awaited.
pub(super) fn is_exchange(graph: &Graph, node: NodeId) -> bool {
    graph.node(node).op.collective().is_some()
}

/// An exchange between ranks that was begun and not awaited.
pub(super) struct Begun {
    pub(super) node: NodeId,
    /// The index of its run.
    pub(super) run: usize,
    pub(super) operands: Vec<BufferId>,
    /// Whether the bytes that it sends are free once it is awaited.
    pub(super) passing: bool,
}

/// Writes the actions of a sequence and notes which buffers each of them touches.
pub(super) struct Writer<'a> {
    pub(super) graph: &'a Graph,
    pub(super) facts: &'a Facts,
    pub(super) scratch: Scratch,
    pub(super) sequence: &'a Sequence,
    /// State that has a buffer, rising.
    states: Vec<StateId>,
    /// State first, then the instances of the sequence, then scratch.
    pub(super) buffers: Vec<Buffer>,
    /// How many actions there are so far, and these actions where they are wanted.
    pub(super) count: usize,
    actions: Option<Vec<Action>>,
    /// The action of each execution.
    pub(super) positions: Vec<usize>,
    /// Exchanges between ranks that were begun and not awaited, oldest first.
    pub(super) exchanges: VecDeque<Begun>,
    /// Exchanges that were awaited: the run that began each, and the run before which it was awaited.
    pub(super) awaits: Vec<(usize, usize)>,
}

impl<'a> Writer<'a> {
    fn new(
        graph: &'a Graph,
        facts: &'a Facts,
        scratch: Scratch,
        (sequence, states): (&'a Sequence, Vec<StateId>),
    ) -> Writer<'a> {
        let mut writer = Writer {
            graph,
            facts,
            scratch,
            sequence,
            buffers: Vec::with_capacity(states.len() + sequence.instances.len()),
            states,
            count: 0,
            actions: None,
            positions: Vec::with_capacity(sequence.executions.len()),
            exchanges: VecDeque::new(),
            awaits: Vec::new(),
        };
        writer.add_states();
        writer.add_instances();
        writer
    }

    /// The writer of a whole graph once it has counted all actions.
    pub(super) fn written(
        graph: &'a Graph,
        facts: &'a Facts,
        scratch: Scratch,
        sequence: &'a Sequence,
    ) -> Writer<'a> {
        let states = (0..graph.states().len() as u32).map(StateId).collect();
        let mut writer = Writer::new(graph, facts, scratch, (sequence, states));
        writer.write_actions(Gradients::Add);
        writer
    }

    /// The number of actions that the finished schedule has.
    fn last(&self) -> usize {
        let exchanges =
            self.sequence.executions.iter().filter(|run| is_exchange(self.graph, run.node)).count();
        self.sequence.executions.len() + exchanges + self.sequence.transfers.len()
    }

    fn add_states(&mut self) {
        let last = self.last();
        for &id in &self.states {
            let state = self.graph.state(id);
            self.buffers.push(Buffer {
                contents: Contents::State(id),
                purpose: Purpose::of_state(state.kind),
                bytes: aligned(state.ty.bytes() as u64, self.facts.alignment),
                offset: 0,
                start: 0,
                end: if state.kind == StateKind::Transient { 0 } else { last },
            });
        }
        for away in &self.sequence.away {
            let place = self.state_position(away.state);
            let buffer = &mut self.buffers[place];
            (buffer.bytes, buffer.end) = (0, 0);
        }
    }

    fn add_instances(&mut self) {
        for &value in &self.sequence.instances {
            let (contents, purpose) = match self.graph.value(value).state {
                Some((state, _)) => (Contents::State(state), Purpose::of_state(self.graph.state(state).kind)),
                None => (Contents::Value(value), Purpose::of_value(self.graph, value)),
            };
            let bytes = aligned(self.graph.ty(value).bytes() as u64, self.facts.alignment);
            self.buffers.push(Buffer { contents, purpose, bytes, offset: 0, start: 0, end: 0 });
        }
    }

    fn write_actions(&mut self, gradients: Gradients) {
        let sequence = self.sequence;
        let mut transfers = sequence.transfers.iter().peekable();
        for (position, execution) in sequence.executions.iter().enumerate() {
            self.end_exchanges_before(execution);
            while let Some(next) = transfers.next_if(|next| next.before == position) {
                self.transfer(next);
            }
            self.run(execution, gradients);
        }
        // The last waits come behind the last exchanges, because the next schedule may take them over.
        let mut last: Vec<&Transfer> = transfers.collect();
        let waits = last.split_off(last.iter().rposition(|next| next.begins).map_or(0, |begin| begin + 1));
        for next in last {
            self.transfer(next);
        }
        self.await_first(self.exchanges.len());
        for next in waits {
            self.transfer(next);
        }
    }

    /// Counts an action, and lists it where actions are wanted.
    pub(super) fn push(&mut self, action: impl FnOnce() -> Action) {
        self.count += 1;
        if let Some(actions) = &mut self.actions {
            actions.push(action());
        }
    }

    fn transfer(&mut self, &Transfer { of, begins, .. }: &Transfer) {
        let Move { instance, direction, .. } = self.sequence.moves[of];
        let moved = self.states.len() + instance;
        if begins {
            self.await_before(|id| id.index() == moved);
        }
        let index = self.count;
        let buffer = &mut self.buffers[moved];
        if begins && direction == Direction::In {
            (buffer.start, buffer.purpose) = (index, Purpose::Staging);
        }
        buffer.end = buffer.end.max(index + 1);
        self.push(|| if begins { Action::Start { copy: of } } else { Action::Wait { copy: of } });
    }

    fn run(&mut self, execution: &Execution, gradients: Gradients) {
        let (graph, sequence, node) = (self.graph, self.sequence, execution.node);
        let (inputs, outputs) = sequence.operands_of(execution);
        let operands = &sequence.operands[execution.operands()];
        if is_exchange(graph, node) {
            self.begin_exchange(execution);
        }
        let index = self.count;
        for (&place, &value) in outputs.iter().zip(&graph.node(node).outputs) {
            if begins(graph, value) {
                let id = self.buffer_id(place);
                self.buffers[id.index()].start = index;
            }
        }
        for &place in operands {
            let id = self.buffer_id(place);
            if !self.outlives(id) {
                self.buffers[id.index()].end = index + 1;
            }
        }
        self.positions.push(index);
        let workspace = self.workspace(node);
        let [inputs, outputs] = if self.actions.is_some() {
            [self.buffer_ids(inputs), self.buffer_ids(outputs)]
        } else {
            [Vec::new(), Vec::new()]
        };
        self.push(|| {
            let accumulate = accumulate_bits(graph, node, gradients);
            Action::Run { node, inputs, outputs, workspace, accumulate }
        });
    }

    pub(super) fn buffer_ids(&self, operands: &[Operand]) -> Vec<BufferId> {
        operands.iter().map(|&place| self.buffer_id(place)).collect()
    }

    /// A buffer for the scratch of the next action, if `node` needs any.
    fn workspace(&mut self, node: NodeId) -> Option<BufferId> {
        let need = self.facts.nodes[node.index()].workspace;
        let bytes = if self.scratch == Scratch::Best { need.best } else { need.least };
        let (contents, purpose, start) = (Contents::Scratch, Purpose::Workspace, self.count);
        let bytes = aligned(bytes, self.facts.alignment);
        (bytes > 0).then(|| {
            self.buffers.push(Buffer { contents, purpose, bytes, offset: 0, start, end: start + 1 });
            BufferId(self.buffers.len() as u32 - 1)
        })
    }

    fn buffer_id(&self, place: Operand) -> BufferId {
        match place {
            Operand::State(state) => BufferId(self.state_position(state) as u32),
            Operand::Instance(instance) => BufferId(self.states.len() as u32 + instance),
        }
    }

    /// The buffer of a range of state.
    fn state_position(&self, state: StateId) -> usize {
        if self.states.len() == self.graph.states().len() {
            return state.index();
        }
        // Every buffer that is used is listed.
        self.states.binary_search(&state).unwrap_or_default()
    }

    /// Whether a buffer is state that is there before the schedule and after it.
    pub(super) fn outlives(&self, id: BufferId) -> bool {
        let state = self.states.get(id.index());
        state.is_some_and(|&state| self.graph.state(state).kind != StateKind::Transient)
    }

    /// The slots to place: buffers, of which some take over dying inputs.
    pub(super) fn slots(&mut self) -> (Vec<Slot>, Vec<Option<usize>>) {
        let last = self.last();
        keep_outputs(self.graph, &mut self.buffers, last);
        let slot_of = vec![None; self.buffers.len()];
        let mut joiner = Joiner { writer: self, slots: Vec::new(), slot_of };
        let begun = self.begun();
        // A transient gradient that is never written here needs no place either.
        for index in (self.states.len()..self.buffers.len()).filter(|&index| !begun[index]) {
            joiner.open(BufferId(index as u32));
        }
        for (execution, &action) in self.sequence.executions.iter().zip(&self.positions) {
            joiner.join(execution, action);
        }
        (joiner.slots, joiner.slot_of)
    }

    /// Buffers that begin with a run and get their slot there. Inputs and stays of state get theirs elsewhere.
    fn begun(&self) -> Vec<bool> {
        let mut begun = vec![false; self.buffers.len()];
        for execution in &self.sequence.executions {
            let (_, outputs) = self.sequence.operands_of(execution);
            for (&place, &value) in outputs.iter().zip(&self.graph.node(execution.node).outputs) {
                begun[self.buffer_id(place).index()] |= begins(self.graph, value);
            }
        }
        begun
    }

    /// The schedule, once its slots are known.
    fn schedule(self) -> Schedule {
        let states = self.states.len();
        let copy = |&Move { instance, tier, tier_offset, direction }: &Move| {
            Copy::new(BufferId((states + instance) as u32), tier, tier_offset, direction)
        };
        Schedule {
            name: String::new(),
            actions: self.actions.unwrap_or_default(),
            buffers: self.buffers,
            copies: self.sequence.moves.iter().map(copy).collect(),
            away: self.sequence.away.clone(),
        }
    }
}

/// Whether a buffer holds state that other schedules read too, whether it lies in the arena always or for a stay.
fn lasting(graph: &Graph, contents: Contents) -> bool {
    matches!(contents, Contents::State(state) if graph.state(state).kind != StateKind::Transient)
}

/// Whether a lifetime begins where `value` is written. It does for a value that is no state, and at the first writer of a
/// transient gradient.
fn begins(graph: &Graph, value: Value) -> bool {
    graph
        .value(value)
        .state
        .is_none_or(|(state, version)| version == 1 && graph.state(state).kind == StateKind::Transient)
}

/// Which outputs of a node are added to the bytes already there: sums of gradients, except for the first writer of a
/// step.
fn accumulate_bits(graph: &Graph, node: NodeId, gradients: Gradients) -> u32 {
    let node = graph.node(node);
    let adds = |output: usize, value: Value| {
        let first = |version: u32| version == 1 && (gradients == Gradients::Replace || begins(graph, value));
        node.op.can_accumulate(output) && graph.value(value).state.is_some_and(|(_, version)| !first(version))
    };
    let bits = node.outputs.iter().enumerate().filter(|&(output, &value)| adds(output, value));
    bits.fold(0, |bits, (output, _)| bits | 1 << output)
}

/// Named outputs stay until the caller has read them. Buffers of values that nothing reads live for the
/// one action that writes them; unread inputs for the first action.
fn keep_outputs(graph: &Graph, buffers: &mut [Buffer], last: usize) {
    for (_, value) in graph.outputs() {
        let contents = Contents::Value(graph.storage(*value));
        if let Some(buffer) = buffers.iter_mut().rev().find(|buffer| buffer.contents == contents) {
            buffer.end = last;
        }
    }
    for buffer in buffers {
        buffer.end = buffer.end.max(buffer.start + 1);
    }
}

/// Slots of a schedule so far.
struct Joiner<'a> {
    writer: &'a Writer<'a>,
    slots: Vec<Slot>,
    slot_of: Vec<Option<usize>>,
}

impl Joiner<'_> {
    /// Gives a buffer a slot of its own.
    fn open(&mut self, id: BufferId) {
        let Buffer { start, end, bytes, .. } = self.writer.buffers[id.index()];
        self.slots.push(Slot { start, end, bytes });
        self.slot_of[id.index()] = Some(self.slots.len() - 1);
    }

    /// Gives the buffers that a run begins their slots: those of inputs that die there, as far as the op allows.
    fn join(&mut self, execution: &Execution, action: usize) {
        let writer = self.writer;
        let node = writer.graph.node(execution.node);
        let (inputs, outputs) = writer.sequence.operands_of(execution);
        let mut taken: Vec<BufferId> = Vec::new();
        let new =
            outputs.iter().enumerate().filter(|&(output, _)| begins(writer.graph, node.outputs[output]));
        for (output, &place) in new {
            let id = writer.buffer_id(place);
            let dies = |input| self.passes_on(input, id, action) && !taken.contains(&input);
            match dying_input(&node.op, output, inputs, |place| writer.buffer_id(place), dies) {
                Some(input) => {
                    taken.push(input);
                    let slot = self.slot_of[input.index()];
                    self.slot_of[id.index()] = slot;
                    if let Some(slot) = slot {
                        self.slots[slot].end = writer.buffers[id.index()].end;
                    }
                }
                None => self.open(id),
            }
        }
    }

    /// Whether an input dies in this action and has the size of the buffer that is to take its bytes over.
    fn passes_on(&self, input: BufferId, heir: BufferId, action: usize) -> bool {
        let Writer { graph, buffers, .. } = self.writer;
        let (earlier, heir) = (&buffers[input.index()], &buffers[heir.index()]);
        !lasting(graph, earlier.contents)
            && earlier.end == action + 1
            && size(graph, earlier) == size(graph, heir)
    }
}

/// Size before it was rounded up. A row that is broadcast is smaller than the matrix it is added to, though both may
/// round up to the same size.
fn size(graph: &Graph, buffer: &Buffer) -> u64 {
    match buffer.contents {
        Contents::Value(value) => graph.ty(value).bytes() as u64,
        Contents::State(_) | Contents::Scratch => buffer.bytes,
    }
}

/// An input whose bytes output `output` can take over. An input that the action reads twice is left
/// alone: the op promises only that each operand is read before it is overwritten.
fn dying_input(
    op: &Op,
    output: usize,
    inputs: &[Operand],
    buffer: impl Fn(Operand) -> BufferId,
    dies: impl Fn(BufferId) -> bool,
) -> Option<BufferId> {
    let mut candidates = op.may_overwrite(output).iter().filter_map(|&input| inputs.get(input).copied());
    let once = |place: Operand| inputs.iter().filter(|&&other| other == place).count() == 1;
    candidates.find(|&place| dies(buffer(place)) && once(place)).map(buffer)
}
