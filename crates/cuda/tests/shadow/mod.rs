//! A second opinion on lowered schedules: who wrote each byte last, step by step.
//!
//! `replay` proves that buffers are whole when they are read. This walk looks at the steps that the actions became, as a stream runs
//! them, with the access that each kernel's declaration states. A step that reads a byte which another action has written since, or
//! scratch that nobody has written in this action, is a race or a fault of order. Exchanges run on a stream of their own: between
//! the step that begins one and the step that awaits it, no other step may write what it reads or touch what it writes.

use std::collections::BTreeMap;
use std::ops::Range;

use plimsoll_cuda::lower::{ALIGNMENT, Access, Library, LoweredSchedule, Place, StreamStep, Touch, touches};
use plimsoll_graph::{Graph, Node, Op, Value};
use plimsoll_plan::{Action, BufferId, Contents, Schedule};

use super::prototypes::Prototype;

/// How kernels are declared, by name.
pub(crate) type Declared = BTreeMap<String, Prototype>;

/// The steps of each action.
pub(crate) type Steps = Vec<Vec<StreamStep>>;

/// The steps of a lowered schedule by action.
pub(crate) fn by_action(program: &LoweredSchedule) -> Steps {
    (0..program.actions()).map(|action| program.steps[program.range(action)].to_vec()).collect()
}

/// The writer of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    /// Inputs, and state from before the schedule.
    Given,
    /// An action, which wrote into one of its outputs.
    Action(usize),
    /// The present action, which wrote into its scratch.
    Scratch,
}

/// Disjoint ranges of bytes, each with its last writer: first byte to its end and the writer.
#[derive(Default)]
struct Bytes(BTreeMap<u64, (u64, Writer)>);

impl Bytes {
    fn forget(&mut self, range: &Range<u64>) {
        let overlapping: Vec<u64> = self
            .0
            .range(..range.end)
            .rev()
            .take_while(|(_, (end, _))| *end > range.start)
            .map(|(&at, _)| at)
            .collect();
        for at in overlapping {
            let Some((end, writer)) = self.0.remove(&at) else { continue };
            if at < range.start {
                self.0.insert(at, (range.start, writer));
            }
            if end > range.end {
                self.0.insert(range.end, (end, writer));
            }
        }
    }

    fn write(&mut self, range: &Range<u64>, writer: Writer) {
        self.forget(range);
        if !range.is_empty() {
            self.0.insert(range.start, (range.end, writer));
        }
    }

    /// The first byte of a range that `writer` has not written last.
    fn stray(&self, range: &Range<u64>, writer: Writer) -> Option<u64> {
        let mut at = range.start;
        while at < range.end {
            match self.0.range(..=at).next_back() {
                Some((_, &(end, last))) if end > at && last == writer => at = end,
                _ => return Some(at),
            }
        }
        None
    }
}

/// Bytes that an action may use.
struct Region {
    range: Range<u64>,
    buffer: BufferId,
    part: Part,
}

/// Inputs and outputs by their position.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Input(usize),
    Output(usize),
    Scratch,
}

/// One touch with an extent. A kernel's pointer has none: it is taken to write up to the next piece that the action writes, and
/// to read at least a byte.
pub(crate) struct Reach {
    pub(crate) range: Range<u64>,
    pub(crate) access: Access,
    pub(crate) in_scratch: bool,
}

/// Exchanges that have begun and that no step has awaited: the number, what is read and what is written.
#[derive(Default)]
struct ExchangeLane {
    under_way: Vec<(usize, [Range<u64>; 2])>,
    begun: usize,
}

impl ExchangeLane {
    /// Refuses a range that an exchange under way writes, or reads while others write it.
    fn touch(&self, touched: &Range<u64>, writes: bool) -> Result<(), String> {
        let over = |range: &Range<u64>| range.start < touched.end && touched.start < range.end;
        let races = |(_, [read, written]): &&(usize, [Range<u64>; 2])| over(written) || writes && over(read);
        self.under_way.iter().find(races).map_or(Ok(()), |(number, _)| {
            Err(format!("bytes {touched:?} belong to exchange {number}, which is under way"))
        })
    }

    /// Goes past one step, which must not touch the operands of an exchange that runs beside it.
    fn pass(&mut self, step: &StreamStep, library: &dyn Library) -> Result<(), String> {
        if let StreamStep::Await { exchange } = step {
            if *exchange >= self.begun {
                return Err(format!("{step} before it has begun"));
            }
            // Exchanges run one after the other.
            self.under_way.retain(|(number, _)| number > exchange);
            return Ok(());
        }
        for touch in touches(step, library) {
            let range = touch.place.0..touch.place.0 + touch.bytes.unwrap_or(1);
            self.touch(&range, touch.access != Access::Reads).map_err(|why| format!("{step}: {why}"))?;
        }
        if let StreamStep::Exchange(exchange) = step {
            let range = |touch: &Touch| touch.place.0..touch.place.0 + touch.bytes.unwrap();
            let [read, written] = &touches(step, library)[..] else { panic!("two operands") };
            if exchange.number != self.begun {
                return Err(format!("{step} has the number {} of another", exchange.number));
            }
            self.under_way.push((self.begun, [range(read), range(written)]));
            self.begun += 1;
        }
        Ok(())
    }

    fn ended(&self) -> Result<(), String> {
        self.under_way.first().map_or(Ok(()), |(number, _)| Err(format!("nobody awaits exchange {number}")))
    }
}

/// One schedule and its steps.
pub(crate) struct Walk<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) schedule: &'a Schedule,
    pub(crate) library: &'a dyn Library,
    pub(crate) declared: &'a Declared,
}

impl Walk<'_> {
    /// Walks over the steps in the order of a stream.
    ///
    /// # Errors
    ///
    /// Names the first action with a step that touches bytes which are not its own, or reads bytes that do not hold
    /// what it expects.
    pub(crate) fn check(&self, steps: &Steps) -> Result<(), String> {
        let mut bytes = Bytes::default();
        let mut writer_of: BTreeMap<BufferId, Writer> = BTreeMap::new();
        let mut lane = ExchangeLane::default();
        for (index, buffer) in self.schedule.buffers.iter().enumerate() {
            let given = match buffer.contents {
                Contents::State(_) => true,
                Contents::Value(value) => self.graph.inputs().contains(&value),
                Contents::Scratch => false,
            };
            if given {
                bytes.write(&self.range(BufferId(index as u32)), Writer::Given);
                writer_of.insert(BufferId(index as u32), Writer::Given);
            }
        }
        for (index, action) in self.schedule.actions.iter().enumerate() {
            let named = |why| format!("action {index}: {why}");
            for region in self.regions(action).iter().filter(|_| !steps[index].is_empty()) {
                lane.touch(&region.range, !matches!(region.part, Part::Input(_))).map_err(named)?;
            }
            steps[index].iter().try_for_each(|step| lane.pass(step, self.library)).map_err(named)?;
            let Action::Run { node, .. } = action else { continue };
            let name = self.graph.node(*node).op.name();
            self.action(index, action, &steps[index], &mut bytes, &mut writer_of)
                .map_err(|why| format!("action {index}, `{name}`: {why}"))?;
        }
        lane.ended()
    }

    fn action(
        &self,
        index: usize,
        action: &Action,
        steps: &[StreamStep],
        bytes: &mut Bytes,
        writer_of: &mut BTreeMap<BufferId, Writer>,
    ) -> Result<(), String> {
        let regions = self.regions(action);
        let Action::Run { node, accumulate, .. } = action else { return Ok(()) };
        for region in &regions {
            let read = match region.part {
                Part::Input(_) => true,
                Part::Output(slot) => accumulate >> slot & 1 == 1,
                Part::Scratch => false,
            };
            if read {
                let writer = *writer_of.get(&region.buffer).ok_or("an operand that nobody has written")?;
                if let Some(at) = bytes.stray(&region.range, writer) {
                    return Err(format!("byte {at} of an operand is no longer what {writer:?} wrote"));
                }
            }
        }
        apart(&self.graph.node(*node).op, &regions)?;
        let reaches = self.reaches(&regions, steps)?;
        for (step, reaches) in steps.iter().zip(&reaches) {
            for reach in reaches.iter().filter(|reach| reach.in_scratch && reach.access == Access::Reads) {
                if let Some(at) = bytes.stray(&reach.range, Writer::Scratch) {
                    return Err(format!("{step} reads byte {at} of scratch, which no step has written"));
                }
            }
            for reach in reaches.iter().filter(|reach| reach.access != Access::Reads) {
                let writer = if reach.in_scratch { Writer::Scratch } else { Writer::Action(index) };
                bytes.write(&reach.range, writer);
            }
        }
        for region in &regions {
            if region.part == Part::Scratch {
                bytes.forget(&region.range);
            } else if let Part::Output(_) = region.part {
                writer_of.insert(region.buffer, Writer::Action(index));
                if let Some(at) = bytes.stray(&region.range, Writer::Action(index)) {
                    return Err(format!("byte {at} of an output is not written"));
                }
            }
        }
        Ok(())
    }

    /// Extents of all touches of an action's steps.
    ///
    /// # Errors
    ///
    /// When a touch is outside of all regions, or writes where only inputs are.
    pub(crate) fn reaches_of(
        &self,
        action: &Action,
        steps: &[StreamStep],
    ) -> Result<Vec<Vec<Reach>>, String> {
        self.reaches(&self.regions(action), steps)
    }

    fn reaches(&self, regions: &[Region], steps: &[StreamStep]) -> Result<Vec<Vec<Reach>>, String> {
        let touches: Vec<Vec<(Place, Option<u64>, Access)>> =
            steps.iter().map(|step| self.touches(step)).collect();
        // Pieces of scratch begin at multiples of the alignment, where a later step may begin another; a matrix of a batch, which one
        // launch may write as a whole, seldom does. A piece is as long as any step says.
        let mut pieces: BTreeMap<u64, u64> = BTreeMap::new();
        for &(place, bytes, access) in touches.iter().flatten() {
            if place.0.is_multiple_of(ALIGNMENT) && (bytes.is_some() || access != Access::Reads) {
                let end = pieces.entry(place.0).or_default();
                *end = (*end).max(place.0 + bytes.unwrap_or(0));
            }
        }
        let piece_end = |at: u64| {
            let next = pieces.range(at + 1..).next().map_or(u64::MAX, |(&next, _)| next);
            next.max(pieces.get(&at).copied().unwrap_or(0))
        };
        let reach = |&(place, bytes, access): &(Place, Option<u64>, Access)| {
            let at = place.0;
            let holds = |region: &&Region| {
                let range = &region.range;
                let end = at + bytes.unwrap_or(u64::from(!range.is_empty()));
                let may = access == Access::Reads || !matches!(region.part, Part::Input(_));
                may && at >= range.start && end <= range.end
            };
            let region = regions.iter().find(holds).ok_or_else(|| {
                let extent = bytes.map_or_else(|| "a pointer".into(), |bytes| format!("{bytes} bytes"));
                format!("{extent} at {at} for {access:?} is in no operand that allows it")
            })?;
            let end = match (bytes, access) {
                (Some(bytes), _) => at + bytes,
                (None, Access::Reads) => (at + 1).min(region.range.end),
                (None, _) => piece_end(at).min(region.range.end),
            };
            Ok(Reach { range: at..end, access, in_scratch: region.part == Part::Scratch })
        };
        touches.iter().map(|touches| touches.iter().map(reach).collect()).collect()
    }

    /// Touches of a step, each of a kernel's pointers with the access that its declaration states.
    fn touches(&self, step: &StreamStep) -> Vec<(Place, Option<u64>, Access)> {
        let found = touches(step, self.library);
        let accesses: Vec<Access> = match step {
            StreamStep::Launch(launch) => self.declared[&launch.kernel].accesses(launch),
            _ => found.iter().map(|touch| touch.access).collect(),
        };
        assert_eq!(found.len(), accesses.len(), "{step}");
        found.iter().zip(accesses).map(|(touch, access)| (touch.place, touch.bytes, access)).collect()
    }

    fn range(&self, id: BufferId) -> Range<u64> {
        let buffer = self.schedule.buffer(id);
        buffer.offset..buffer.offset + buffer.bytes
    }

    /// Operands and scratch. Outputs come first, so that what is read and written in place counts as one.
    fn regions(&self, action: &Action) -> Vec<Region> {
        let Action::Run { node, inputs, outputs, workspace, .. } = action else { return Vec::new() };
        let node: &Node = self.graph.node(*node);
        let operand = |part, value: Value, buffer: BufferId| {
            let start = self.schedule.buffer(buffer).offset;
            Region { range: start..start + self.graph.ty(value).bytes() as u64, buffer, part }
        };
        let outputs = node.outputs.iter().zip(outputs).enumerate();
        let outputs = outputs.map(|(slot, (&value, &id))| operand(Part::Output(slot), value, id));
        let inputs = node.inputs.iter().zip(inputs).enumerate();
        let inputs = inputs.map(|(slot, (&value, &id))| operand(Part::Input(slot), value, id));
        let scratch =
            workspace.iter().map(|&id| Region { range: self.range(id), buffer: id, part: Part::Scratch });
        outputs.chain(inputs).chain(scratch).collect()
    }
}

/// Refuses outputs and scratch that lie over bytes of another buffer of the same action, unless the op may write there in place.
fn apart(op: &Op, regions: &[Region]) -> Result<(), String> {
    for (at, one) in regions.iter().enumerate() {
        let over = |other: &Region| one.range.start < other.range.end && other.range.start < one.range.end;
        let apart = |other: &Region| match (one.part, other.part) {
            (Part::Input(_), _) => true,
            (Part::Output(slot), Part::Input(input)) => {
                one.range == other.range && op.may_overwrite(slot).contains(&input)
            }
            _ => false,
        };
        let others =
            regions.iter().enumerate().filter(|&(index, other)| index != at && other.buffer != one.buffer);
        if let Some((_, other)) = others.into_iter().find(|(_, other)| over(other) && !apart(other)) {
            return Err(format!("buffers {:?} and {:?} lie over each other", one.buffer, other.buffer));
        }
    }
    Ok(())
}
