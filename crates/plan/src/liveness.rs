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

use plimsoll_graph::{Graph, Op, StateId, StateKind, Value};

use crate::problem::{Facts, Scratch};
use crate::schedule::{Action, Buffer, BufferId, Contents, Copy, Direction, Purpose, Schedule};
use crate::sequence::{Execution, Move, Place, Sequence, Transfer};

/// A lifetime that needs a place in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// First action that touches it.
    pub start: usize,
    /// One past the last action that touches it.
    pub end: usize,
    /// Size, rounded up to the device's alignment.
    pub bytes: u64,
}

/// A schedule whose buffers have lifetimes but no offsets yet.
pub(crate) struct Draft {
    pub(crate) schedule: Schedule,
    /// What must be placed.
    pub(crate) slots: Vec<Slot>,
    /// Slot of each buffer; none for state that outlives the schedule.
    pub(crate) slot_of: Vec<Option<usize>>,
}

/// Whether the first writer of a gradient in this schedule replaces what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gradients {
    /// First micro-batch of a step.
    Replace,
    /// Any other.
    Add,
}

/// Buffers and lifetimes of `sequence`.
pub(crate) fn draft(
    name: &str,
    graph: &Graph,
    sequence: &Sequence,
    facts: &Facts,
    scratch: Scratch,
    gradients: Gradients,
) -> Draft {
    let states = graph.states().len();
    let last = sequence.executions.len() + sequence.transfers.len();
    let mut buffers: Vec<Buffer> = graph
        .states()
        .iter()
        .enumerate()
        .map(|(index, state)| Buffer {
            contents: Contents::State(StateId(index as u32)),
            purpose: state_purpose(state.kind),
            bytes: aligned(state.ty.bytes() as u64, facts.alignment),
            offset: 0,
            start: 0,
            end: if state.kind == StateKind::Transient { 0 } else { last },
        })
        .collect();
    for away in &sequence.away {
        let buffer = &mut buffers[away.state.index()];
        (buffer.bytes, buffer.end) = (0, 0);
    }
    buffers.extend(sequence.instances.iter().map(|&value| {
        let (contents, purpose) = match graph.value(value).state {
            Some((state, _)) => (Contents::State(state), state_purpose(graph.state(state).kind)),
            None => (Contents::Value(value), Purpose::Activations),
        };
        let bytes = aligned(graph.ty(value).bytes() as u64, facts.alignment);
        Buffer { contents, purpose, bytes, offset: 0, start: 0, end: 0 }
    }));
    let buffer_id = |place: &Place| match *place {
        Place::State(state) => BufferId(state.0),
        Place::Instance(instance) => BufferId((states + instance) as u32),
    };
    let mut actions = Vec::with_capacity(last);
    let mut transfers = sequence.transfers.iter().peekable();
    let transfer = |&Transfer { of, begins, .. }: &Transfer, index: usize, buffers: &mut [Buffer]| {
        let Move { instance, direction, .. } = sequence.moves[of];
        let buffer = &mut buffers[states + instance];
        if begins && direction == Direction::In {
            (buffer.start, buffer.purpose) = (index, Purpose::Staging);
        }
        buffer.end = buffer.end.max(index + 1);
        if begins { Action::Start { copy: of } } else { Action::Wait { copy: of } }
    };
    for (position, Execution { node, inputs, outputs }) in sequence.executions.iter().enumerate() {
        while let Some(next) = transfers.next_if(|next| next.before == position) {
            actions.push(transfer(next, actions.len(), &mut buffers));
        }
        let index = actions.len();
        let inputs: Vec<BufferId> = inputs.iter().map(buffer_id).collect();
        let outputs: Vec<BufferId> = outputs.iter().map(buffer_id).collect();
        for (id, &value) in outputs.iter().zip(&graph.node(*node).outputs) {
            if begins(graph, value) {
                buffers[id.index()].start = index;
            }
        }
        for id in inputs.iter().chain(&outputs).filter(|id| !outlives(graph, **id)) {
            buffers[id.index()].end = index + 1;
        }
        let need = facts.nodes[node.index()].workspace;
        let bytes = if scratch == Scratch::Best { need.best } else { need.least };
        let workspace = (bytes > 0).then(|| {
            let (contents, purpose) = (Contents::Scratch, Purpose::Workspace);
            let bytes = aligned(bytes, facts.alignment);
            buffers.push(Buffer { contents, purpose, bytes, offset: 0, start: index, end: index + 1 });
            BufferId(buffers.len() as u32 - 1)
        });
        let accumulate = accumulate_bits(graph, *node, gradients);
        actions.push(Action::Run { node: *node, inputs, outputs, workspace, accumulate });
    }
    for next in transfers {
        actions.push(transfer(next, actions.len(), &mut buffers));
    }
    keep_outputs(graph, &mut buffers, last);
    let copy = |&Move { instance, tier, tier_offset, direction }: &Move| Copy {
        buffer: BufferId((states + instance) as u32),
        tier,
        tier_offset,
        direction,
    };
    let copies = sequence.moves.iter().map(copy).collect();
    let away = sequence.away.clone();
    let schedule = Schedule { name: name.to_owned(), actions, buffers, copies, away };
    let (slots, slot_of) = slots(graph, &schedule);
    Draft { schedule, slots, slot_of }
}

/// Whether a buffer is state that is there before the schedule and after it.
fn outlives(graph: &Graph, id: BufferId) -> bool {
    graph.states().get(id.index()).is_some_and(|state| state.kind != StateKind::Transient)
}

/// Whether it is state that other schedules see too, here for good or for a stay.
fn lasting(graph: &Graph, contents: Contents) -> bool {
    matches!(contents, Contents::State(state) if graph.state(state).kind != StateKind::Transient)
}

/// Whether a lifetime begins where `value` is written: any value's, and that of a transient gradient with its
/// first writer.
fn begins(graph: &Graph, value: Value) -> bool {
    graph
        .value(value)
        .state
        .is_none_or(|(state, version)| version == 1 && graph.state(state).kind == StateKind::Transient)
}

/// Rounds up to a multiple of `alignment`.
pub(crate) fn aligned(bytes: u64, alignment: u64) -> u64 {
    bytes.next_multiple_of(alignment)
}

/// What a range of state is for.
pub(crate) fn state_purpose(kind: StateKind) -> Purpose {
    match kind {
        StateKind::Parameter { .. } | StateKind::Constant => Purpose::Weights,
        StateKind::Gradient | StateKind::Transient => Purpose::Gradients,
        StateKind::Moment => Purpose::Optimizer,
    }
}

/// The largest sum of bytes alive during one action.
pub(crate) fn bound(slots: &[Slot]) -> u64 {
    live_bytes(slots).into_iter().max().unwrap_or(0)
}

/// Bytes alive during each action.
pub(crate) fn live_bytes(slots: &[Slot]) -> Vec<u64> {
    let last = slots.iter().map(|slot| slot.end).max().unwrap_or(0);
    let mut change = vec![0i64; last + 1];
    for slot in slots {
        change[slot.start] += slot.bytes as i64;
        change[slot.end] -= slot.bytes as i64;
    }
    let running = change.iter().scan(0i64, |live, &delta| {
        *live += delta;
        Some(*live as u64)
    });
    running.take(last).collect()
}

/// Which outputs of a node are added to what is there: sums of gradients, but for the first writer of a
/// step.
fn accumulate_bits(graph: &Graph, node: plimsoll_graph::NodeId, gradients: Gradients) -> u32 {
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

/// Joins buffers that take over dying inputs, and lists what is left to place.
fn slots(graph: &Graph, schedule: &Schedule) -> (Vec<Slot>, Vec<Option<usize>>) {
    let mut slots: Vec<Slot> = Vec::new();
    let mut slot_of: Vec<Option<usize>> = vec![None; schedule.buffers.len()];
    let open = |slots: &mut Vec<Slot>, buffer: &Buffer| {
        slots.push(Slot { start: buffer.start, end: buffer.end, bytes: buffer.bytes });
        Some(slots.len() - 1)
    };
    // What a run begins gets its slot there; inputs and stays of state have theirs from elsewhere.
    let mut begun = vec![false; schedule.buffers.len()];
    for action in &schedule.actions {
        let Action::Run { node, outputs, .. } = action else { continue };
        for (id, &value) in outputs.iter().zip(&graph.node(*node).outputs) {
            begun[id.index()] |= begins(graph, value);
        }
    }
    // A transient gradient that nobody writes here needs no place either.
    for (index, buffer) in schedule.buffers.iter().enumerate().skip(graph.states().len()) {
        if !begun[index] {
            slot_of[index] = open(&mut slots, buffer);
        }
    }
    for (index, action) in schedule.actions.iter().enumerate() {
        let Action::Run { node, inputs, outputs, .. } = action else { continue };
        let mut taken: Vec<BufferId> = Vec::new();
        let values = &graph.node(*node).outputs;
        let new = outputs.iter().enumerate().filter(|&(output, _)| begins(graph, values[output]));
        for (output, id) in new {
            let buffer = schedule.buffer(*id);
            let heir = dying_input(&graph.node(*node).op, output, inputs, |input| {
                let earlier = schedule.buffer(input);
                !lasting(graph, earlier.contents)
                    && earlier.end == index + 1
                    && size(graph, earlier) == size(graph, buffer)
                    && !taken.contains(&input)
            });
            slot_of[id.index()] = match heir {
                Some(input) => {
                    taken.push(input);
                    let slot = slot_of[input.index()];
                    if let Some(slot) = slot {
                        slots[slot].end = buffer.end;
                    }
                    slot
                }
                None => open(&mut slots, buffer),
            };
        }
    }
    (slots, slot_of)
}

/// Size before it was rounded up: a row that is repeated is not the matrix it is added to, though both may round
/// to the same.
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
    inputs: &[BufferId],
    dies: impl Fn(BufferId) -> bool,
) -> Option<BufferId> {
    let candidates = op.may_overwrite(output).iter().filter_map(|&input| inputs.get(input).copied());
    candidates.into_iter().find(|&id| dies(id) && inputs.iter().filter(|&&other| other == id).count() == 1)
}
