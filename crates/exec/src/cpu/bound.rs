//! Schedules of the CPU: every action with its operands bound to addresses, and the disk's lanes while one runs.
//!
//! Transfers have numbers in their lane, which the disk tier assigns. A transfer of the schedule before is identified
//! by its distance from the last one started before this schedule, and a transfer started ahead by a list.
#![allow(unsafe_code, reason = "it hands ranges of the arena to kernels and to the disk tier")]

use plimsoll_graph::op::Collective;
use plimsoll_graph::{Graph, NodeId, Op, Type};
use plimsoll_plan::{Action, BufferId, Copy, Direction, Lane, Role, Runnable, Schedule, Tier};

use crate::arena::Arena;
use crate::cpu::own_shard::own_shard;
use crate::cpu::{Call, CpuOperand, DiskTier, ScratchMemory, run};
use crate::error::ExecError;
use crate::ranks::{Communicator, ExchangeKind, ExchangeOperands};

/// An action with its operands bound to addresses.
#[derive(Debug)]
pub(super) enum Bound {
    /// A kernel call, and the block that its node lies in.
    Call {
        op: Op,
        inputs: Vec<CpuOperand>,
        outputs: Vec<CpuOperand>,
        workspace: ScratchMemory,
        block: String,
    },
    /// The copy of this rank's shard of the first operand to the second.
    OwnShard { whole: CpuOperand, shard: CpuOperand },
    /// The beginning of an exchange between ranks.
    Exchange { node: NodeId, operands: ExchangeOperands },
    /// The end of an exchange.
    Await { node: NodeId },
    /// The beginning of a transfer.
    Start { copy: usize, direction: Direction, buffer: ScratchMemory, offset: u64 },
    /// The end of a transfer.
    Wait { copy: usize, direction: Direction },
    /// Waits until at most `left` transfers of the previous schedule are still under way.
    Settle { direction: Direction, left: u64 },
    /// The beginning of a transfer of the next schedule, if the next schedule has this role.
    StartNext { role: Role, copy: usize },
}

/// A schedule with its operands bound to addresses.
#[derive(Debug)]
pub(super) struct BoundSchedule {
    pub(super) role: Role,
    /// The number of the schedules that it was judged with.
    pub(super) set: u64,
    pub(super) actions: Vec<Bound>,
    /// The action that starts each copy.
    pub(super) starts: Vec<Option<usize>>,
}

impl BoundSchedule {
    /// Binds a schedule that suits the device to the addresses of its arena.
    pub(super) fn of(arena: &Arena, judged: &Runnable) -> Result<BoundSchedule, ExecError> {
        let (graph, schedule) = (judged.graph(), judged.schedule());
        let actions = schedule.actions.iter().map(|action| bind(arena, graph, schedule, action));
        let actions: Vec<Bound> = actions.collect::<Result<_, _>>()?;
        let mut starts = vec![None; schedule.copies.len()];
        for (index, action) in actions.iter().enumerate() {
            if let Bound::Start { copy, .. } = action {
                starts[*copy] = Some(index);
            }
        }
        Ok(BoundSchedule { role: judged.role(), set: judged.set(), actions, starts })
    }

    /// Whether the judge saw this schedule begin while transfers of `before` were open.
    pub(super) fn may_follow(&self, before: &BoundSchedule) -> bool {
        self.set == before.set && before.role.overlaps().contains(&self.role)
    }
}

/// The lanes to the disk and to other ranks while a schedule runs.
pub(super) struct Lanes<'a> {
    pub(super) ranks: Option<&'a dyn Communicator>,
    /// The number of each node's exchange.
    pub(super) exchanges: &'a mut [u64],
    pub(super) disk: Option<&'a DiskTier>,
    pub(super) tickets: &'a mut [u64],
    /// Transfers of each lane that were started before the schedule.
    pub(super) before: [u64; 2],
    /// The schedule that runs next, if known.
    pub(super) next: Option<&'a BoundSchedule>,
    /// Transfers that were started ahead: first `found` for this schedule, then those for the next.
    pub(super) ahead: &'a mut Vec<(usize, u64)>,
    pub(super) found: usize,
}

impl Lanes<'_> {
    fn disk(&self) -> Result<&DiskTier, ExecError> {
        let no_disk =
            || ExecError::Unsupported("the schedule offloads, but no room on a disk was taken".into());
        self.disk.ok_or_else(no_disk)
    }

    fn ranks(&self) -> Result<&dyn Communicator, ExecError> {
        self.ranks.ok_or_else(|| ExecError::Unsupported("the device has joined no other ranks".into()))
    }

    /// Puts the transfer that an action starts into its lane; `None` if the action starts none.
    fn start(&self, action: &Bound) -> Result<Option<u64>, ExecError> {
        let Bound::Start { direction, buffer, offset, .. } = action else { return Ok(None) };
        // SAFETY: the bytes lie in the arena, which outlives the tier's threads; `replay` proved that
        // nobody touches them against the rules before a schedule waits for the copy, this one or the next.
        unsafe { self.disk()?.start(*direction, buffer.pointer, buffer.bytes as u64, *offset) }.map(Some)
    }

    /// Starts a copy of the next schedule, if that one is of this role.
    fn start_next(&mut self, role: Role, copy: usize) -> Result<(), ExecError> {
        let Some(next) = self.next.filter(|next| next.role == role) else { return Ok(()) };
        let start = next.starts.get(copy).copied().flatten().map(|at| &next.actions[at]);
        if let Some(ticket) = start.map_or(Ok(None), |action| self.start(action))? {
            self.ahead.push((copy, ticket));
        }
        Ok(())
    }
}

/// Runs one action.
pub(super) fn act(action: &Bound, lanes: &mut Lanes) -> Result<(), ExecError> {
    match action {
        Bound::Call { op, inputs, outputs, workspace, block } => {
            // SAFETY: the operands lie in the arena of the device that runs the schedule; the engine runs only
            // schedules that `replay` has passed, which proves the rest of the contract.
            let ran = unsafe { run(&Call { op, inputs, outputs, workspace: *workspace }) };
            ran.map_err(|error| error.within(block))
        }
        Bound::OwnShard { whole, shard } => {
            let rank = lanes.ranks()?.rank();
            // SAFETY: as for a kernel.
            unsafe { own_shard(*whole, *shard, rank) };
            Ok(())
        }
        Bound::Exchange { node, operands } => {
            // SAFETY: the operands lie in the arena, and `replay` proved that nobody touches them before the await. A
            // device whose schedule fails, or that is dropped, leaves the world before it touches or frees them.
            lanes.exchanges[node.index()] = unsafe { lanes.ranks()?.start(*operands) }?;
            Ok(())
        }
        Bound::Await { node } => lanes.ranks()?.wait(lanes.exchanges[node.index()]),
        Bound::Start { copy, .. } => {
            let under_way = lanes.ahead[..lanes.found].iter().any(|(known, _)| known == copy);
            if !under_way && let Some(ticket) = lanes.start(action)? {
                lanes.tickets[*copy] = ticket;
            }
            Ok(())
        }
        Bound::Wait { copy, direction } => lanes.disk()?.wait(*direction, lanes.tickets[*copy]),
        Bound::Settle { direction, left } => {
            let last = lanes.before[*direction as usize].checked_sub(left + 1);
            last.map_or(Ok(()), |last| lanes.disk()?.wait(*direction, last))
        }
        Bound::StartNext { role, copy } => lanes.start_next(*role, *copy),
    }
}

/// Binds the operands of an action to addresses.
fn bind(arena: &Arena, graph: &Graph, schedule: &Schedule, action: &Action) -> Result<Bound, ExecError> {
    let place = |id: BufferId| {
        let buffer = schedule.buffer(id);
        Ok(ScratchMemory {
            pointer: arena.address(buffer.offset, buffer.bytes)?,
            bytes: buffer.bytes as usize,
        })
    };
    let operand = |id: BufferId, ty: Type, accumulate: bool| {
        let ScratchMemory { pointer, bytes } = place(id)?;
        if ty.bytes() > bytes {
            return Err(ExecError::Mismatch(format!("a buffer of {bytes} bytes cannot hold {ty}")));
        }
        Ok(CpuOperand { pointer, ty, accumulate })
    };
    match action {
        Action::Run { node: id, inputs, outputs, workspace, accumulate } => {
            let node = graph.node(*id);
            let inputs =
                node.inputs.iter().zip(inputs).map(|(&value, &id)| operand(id, graph.ty(value), false));
            let outputs = (node.outputs.iter().zip(outputs).enumerate())
                .map(|(output, (&value, &id))| operand(id, graph.ty(value), accumulate >> output & 1 == 1));
            let inputs = inputs.collect::<Result<Vec<CpuOperand>, _>>()?;
            let outputs = outputs.collect::<Result<Vec<CpuOperand>, _>>()?;
            if let Op::Collective(Collective::OwnShard { .. }) = node.op {
                return Ok(Bound::OwnShard { whole: inputs[0], shard: outputs[0] });
            }
            if let Some(collective) = node.op.collective() {
                return Ok(Bound::Exchange {
                    node: *id,
                    operands: operands(collective, inputs[0], outputs[0]),
                });
            }
            Ok(Bound::Call {
                op: node.op.clone(),
                inputs,
                outputs,
                workspace: workspace.map_or(Ok(ScratchMemory::NONE), place)?,
                block: graph.block_name(node.block),
            })
        }
        Action::Await { node } => Ok(Bound::Await { node: *node }),
        Action::Start { copy } => {
            let (buffer, offset, direction) = disk_ends(schedule.copies[*copy])?;
            Ok(Bound::Start { copy: *copy, direction, buffer: place(buffer)?, offset })
        }
        Action::Wait { copy } => {
            let (_, _, direction) = disk_ends(schedule.copies[*copy])?;
            Ok(Bound::Wait { copy: *copy, direction })
        }
        Action::StartNext { role, copy } => Ok(Bound::StartNext { role: *role, copy: *copy }),
        Action::Settle { lane, left } => {
            Ok(Bound::Settle { direction: disk_lane(*lane)?, left: *left as u64 })
        }
    }
}

/// The operands of an exchange.
fn operands(collective: Collective, input: CpuOperand, output: CpuOperand) -> ExchangeOperands {
    let (given, got) = (input.ty.shape.elements(), output.ty.shape.elements());
    let (kind, whole, share) = match collective {
        Collective::AllReduce { ranks } => (ExchangeKind::AllReduce, given, given.div_ceil(ranks)),
        Collective::ReduceScatter { .. } | Collective::OwnShard { .. } => {
            (ExchangeKind::ReduceScatter, given, got)
        }
        Collective::AllGather { .. } => (ExchangeKind::AllGather, got, given),
    };
    let (source, destination) = (input.pointer.cast_const(), output.pointer);
    ExchangeOperands { kind, dtype: input.ty.dtype, source, destination, whole, share, word: false }
}

/// The buffer, the place in the file and the way of a copy between the arena and the disk.
fn disk_ends(copy: Copy) -> Result<(BufferId, u64, Direction), ExecError> {
    let direction = disk_lane(copy.lane)?;
    match (copy.buffer(), copy.tier()) {
        (Some(buffer), Some((Tier::Disk, offset))) => Ok((buffer, offset, direction)),
        _ => Err(ExecError::Unsupported("on the CPU a copy leads from the arena to the disk or back".into())),
    }
}

/// The way of a lane to or from the disk.
fn disk_lane(lane: Lane) -> Result<Direction, ExecError> {
    match lane {
        Lane::DiskWrite => Ok(Direction::Out),
        Lane::DiskRead => Ok(Direction::In),
        Lane::ToHost | Lane::FromHost => {
            Err(ExecError::Unsupported(format!("the CPU has no lane `{}`", lane.name())))
        }
    }
}
