//! The run loop: a plan on a device.
//!
//! [`Engine::prepare`] makes every schedule ready, [`Engine::start`] takes the arena and fills in the initial state. From
//! then on [`Engine::run`] has the device run a schedule as a whole: it allocates nothing and chooses nothing. It keeps the
//! highest byte that any operand reached; after all schedules have run, that is the planned peak, to the byte.

use std::collections::BTreeMap;

use plimsoll_graph::{DType, Graph, Shape, State, Type, Value};
use plimsoll_plan::{Action, ArenaBytes, Judged, Plan, Program, Role, Schedule, Space, runnable};

use crate::device::{Device, MemoryPool, ScheduleId};
use crate::elements::{Data, Place, read_output, write_input};
use crate::error::ExecError;
use crate::own_range::Share;

/// A plan on a device, ready to run.
#[derive(Debug)]
pub struct Engine {
    pub(crate) device: Box<dyn Device>,
    schedules: BTreeMap<Role, Ready>,
    pub(crate) states: BTreeMap<String, Place>,
    /// This rank's range of each state that ranks divide.
    pub(crate) shares: BTreeMap<String, Share>,
    /// The pieces of each group of state: first element, name and shape.
    pub(crate) parts: BTreeMap<String, Vec<(usize, String, Shape)>>,
    arena_bytes: ArenaBytes,
    measured_peak: ArenaBytes,
    /// Observed scalars, as far as the device has delivered them.
    observed: Vec<f32>,
    /// How many scalars were observed, and how many of those are no longer wanted.
    asked: usize,
    forgotten: usize,
    /// The schedule that ran last, if transfers of it may be open, and the schedule announced as the next.
    last: Option<(Role, Option<Role>)>,
}

/// A schedule made ready.
#[derive(Debug)]
struct Ready {
    id: ScheduleId,
    /// The highest byte end among the operands of all actions.
    reach: u64,
    /// Seconds of each action in each timed run.
    seconds: Vec<Vec<f64>>,
    /// Runs before the timed ones, timed runs still to come, and timed runs so far.
    untimed: usize,
    timed: usize,
    taken: usize,
    inputs: Vec<(String, Place, u64)>,
    outputs: Vec<(String, Place)>,
}

impl Engine {
    /// Takes the arena and fills in the initial state, drawn from `seed`.
    ///
    /// # Errors
    ///
    /// When the memory cannot be had or the device lacks a kernel.
    pub fn new(
        device: Box<dyn Device>,
        program: &Program,
        plan: &Plan,
        seed: u64,
    ) -> Result<Engine, ExecError> {
        let mut engine = Engine::prepare(device, program, plan)?;
        engine.start(program, seed)?;
        Ok(engine)
    }

    /// Prepares a device to run a plan; the memory of the arena is not taken yet.
    ///
    /// # Errors
    ///
    /// When the device lacks a kernel, or something beside the arena cannot be had.
    pub fn prepare(mut device: Box<dyn Device>, program: &Program, plan: &Plan) -> Result<Engine, ExecError> {
        device.reserve(Space::of(plan.arena_bytes.0, plan.schedules.values()))?;
        let judged = judged(program, plan)?;
        let judged = runnable(&judged, plan.arena_bytes.0).map_err(|(role, error)| {
            ExecError::Mismatch(format!("schedule `{}` must not run: {error}", role.name()))
        })?;
        let mut schedules = BTreeMap::new();
        for schedule in judged {
            let id = device.prepare(&schedule)?;
            schedules.insert(schedule.role(), Ready::new(schedule.graph(), schedule.schedule(), id));
        }
        device.warm_up()?;
        let states: BTreeMap<String, Place> = (plan.states.iter())
            .map(|range| (range.name.clone(), Place { ty: range.ty, tier: range.tier, offset: range.offset }))
            .collect();
        // State is in place from the start and stays; its end counts as reached.
        let resident = plan.states.iter().filter(|range| range.tier.is_none());
        let measured_peak = ArenaBytes(resident.map(|range| range.offset + range.bytes).max().unwrap_or(0));
        let arena_bytes = plan.arena_bytes;
        let (shares, parts) = (shares(program, device.rank()), groups(program));
        let (observed, asked, forgotten) = (Vec::new(), 0, 0);
        Ok(Engine {
            device,
            schedules,
            states,
            shares,
            parts,
            arena_bytes,
            measured_peak,
            observed,
            asked,
            forgotten,
            last: None,
        })
    }

    /// Bytes that the device holds beside the arena once it is ready, where its memory is its own.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn outside(&self) -> Result<Option<u64>, ExecError> {
        Ok(match self.device.pool()? {
            MemoryPool::Process => None,
            MemoryPool::Own { taken, .. } => Some(taken),
        })
    }

    /// The device of an engine that is not to run.
    pub fn into_device(self) -> Box<dyn Device> {
        self.device
    }

    /// Takes the arena and fills in the initial state, drawn from `seed`.
    ///
    /// # Errors
    ///
    /// When the memory cannot be had.
    pub fn start(&mut self, program: &Program, seed: u64) -> Result<(), ExecError> {
        self.device.map()?;
        // The other schedules of training have the graph of the first.
        for role in [Role::First, Role::Evaluate, Role::Generate] {
            if let Some(part) = program.part(role).filter(|_| self.schedules.contains_key(&role)) {
                self.initialise(&part.graph, seed)?;
            }
        }
        Ok(())
    }

    /// The type of a schedule's input, if it has one of that name.
    pub fn input(&self, role: Role, name: &str) -> Option<Type> {
        let inputs = &self.schedules.get(&role)?.inputs;
        inputs.iter().find(|(known, ..)| known == name).map(|(_, place, _)| place.ty)
    }

    /// Names and types of a schedule's inputs.
    ///
    /// # Errors
    ///
    /// When the plan has no such schedule.
    pub fn inputs(&self, role: Role) -> Result<impl Iterator<Item = (&str, Type)>, ExecError> {
        let ready = self.schedules.get(&role).ok_or_else(|| no_schedule(role))?;
        Ok(ready.inputs.iter().map(|(name, place, _)| (name.as_str(), place.ty)))
    }

    /// The type of a schedule's output, if it has one of that name.
    pub fn output_type(&self, role: Role, name: &str) -> Option<Type> {
        let outputs = &self.schedules.get(&role)?.outputs;
        outputs.iter().find(|(known, _)| known == name).map(|(_, place)| place.ty)
    }

    /// Names of the outputs of a schedule.
    ///
    /// # Errors
    ///
    /// When the plan has no such schedule.
    pub fn outputs(&self, role: Role) -> Result<impl Iterator<Item = &str>, ExecError> {
        let ready = self.schedules.get(&role).ok_or_else(|| no_schedule(role))?;
        Ok(ready.outputs.iter().map(|(name, _)| name.as_str()))
    }

    /// The device.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// The device, for tests that disturb it.
    pub fn device_mut(&mut self) -> &mut dyn Device {
        &mut *self.device
    }

    /// Size of the arena, which is the planned peak.
    pub fn arena_bytes(&self) -> ArenaBytes {
        self.arena_bytes
    }

    /// The highest byte end among the operands of all actions that ran.
    pub fn measured_peak(&self) -> ArenaBytes {
        self.measured_peak
    }

    /// Writes the inputs of a schedule and runs it. Transfers that the last schedule left open continue meanwhile if
    /// the judge has checked this pair; before any other schedule they are waited for.
    ///
    /// # Errors
    ///
    /// When an input is missing, unknown or of the wrong size, a kernel meets bad data, or an open transfer failed.
    pub fn run(&mut self, role: Role, inputs: &[(&str, Data)]) -> Result<(), ExecError> {
        self.run_before(role, inputs, None)
    }

    /// The same, if the next schedule is probably known: some of its transfers may then begin early. Any other may run
    /// instead; it waits for them.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_before(
        &mut self,
        role: Role,
        inputs: &[(&str, Data)],
        next: Option<Role>,
    ) -> Result<(), ExecError> {
        // If anything fails from here on, nothing follows before open transfers are done.
        let follows = |(last, promised): (Role, Option<Role>)| {
            last.overlaps().contains(&role) && promised.is_none_or(|promised| promised == role)
        };
        if !self.last.take().is_some_and(follows) {
            self.device.settle()?;
        }
        let next = next.filter(|next| role.overlaps().contains(next));
        let expected = next.and_then(|next| self.schedules.get(&next)).map(|next| next.id);
        self.device.expect(expected);
        let ready = self.schedules.get_mut(&role).ok_or_else(|| no_schedule(role))?;
        if let Some((name, _)) = inputs.iter().find(|(name, _)| !ready.inputs.iter().any(|i| i.0 == *name)) {
            return Err(ExecError::Mismatch(format!("schedule `{}` has no input `{name}`", role.name())));
        }
        for (name, place, end) in &ready.inputs {
            let Some((_, data)) = inputs.iter().find(|(given, _)| given == name) else {
                return Err(ExecError::Mismatch(format!(
                    "schedule `{}` lacks its input `{name}`",
                    role.name()
                )));
            };
            if data.ty() != (place.ty.dtype, place.ty.shape.elements()) {
                let (dtype, count) = data.ty();
                return Err(ExecError::Mismatch(format!(
                    "input `{name}` is {}, got {count} of {dtype}",
                    place.ty
                )));
            }
            write_input(&mut *self.device, *place, *data)?;
            self.measured_peak = self.measured_peak.max(ArenaBytes(*end));
        }
        if ready.is_timed() {
            self.device.run_timed(ready.id, &mut ready.seconds)?;
        } else {
            self.device.run(ready.id)?;
        }
        self.measured_peak = self.measured_peak.max(ArenaBytes(ready.reach));
        self.last = Some((role, next));
        Ok(())
    }

    /// Waits for all transfers that schedules left open; see [`Device::settle`].
    ///
    /// # Errors
    ///
    /// When one of them failed.
    pub fn settle(&mut self) -> Result<(), ExecError> {
        self.last = None;
        self.device.settle()
    }

    /// From now on notes the time of every action, which allocates.
    pub fn time_actions(&mut self) {
        for ready in self.schedules.values_mut() {
            (ready.untimed, ready.timed) = (0, usize::MAX);
        }
    }

    /// Notes the time of every action in `runs` runs of each schedule, after the next `untimed` runs of it. Room for the
    /// times is taken now, so that no run allocates.
    pub fn time_some_runs(&mut self, untimed: usize, runs: usize) {
        for ready in self.schedules.values_mut() {
            (ready.untimed, ready.timed) = (untimed, runs);
            ready.seconds.iter_mut().for_each(|seconds| seconds.reserve_exact(runs));
        }
    }

    /// How many runs of a schedule were timed so far.
    ///
    /// # Errors
    ///
    /// When the plan has no such schedule.
    pub fn timed_runs(&self, role: Role) -> Result<usize, ExecError> {
        Ok(self.schedules.get(&role).ok_or_else(|| no_schedule(role))?.taken)
    }

    /// Seconds of each action of a schedule in each run that was timed, as far as they are the device's own: see
    /// [`Device::run_timed`].
    ///
    /// # Errors
    ///
    /// When the plan has no such schedule.
    pub fn action_seconds(&self, role: Role) -> Result<&[Vec<f64>], ExecError> {
        Ok(&self.schedules.get(&role).ok_or_else(|| no_schedule(role))?.seconds)
    }

    /// Whether a schedule reads an input of that name.
    pub fn reads(&self, role: Role, input: &str) -> bool {
        self.schedules.get(&role).is_some_and(|ready| ready.inputs.iter().any(|(name, ..)| name == input))
    }

    /// Reads a named output of the schedule that ran last.
    ///
    /// # Errors
    ///
    /// When there is no such output, or it is not as long as `values`.
    pub fn output(&self, role: Role, name: &str, values: &mut [f32]) -> Result<(), ExecError> {
        read_output(&*self.device, name, self.output_place(role, name)?, values)
    }

    fn output_place(&self, role: Role, name: &str) -> Result<Place, ExecError> {
        let ready = self.schedules.get(&role).ok_or_else(|| no_schedule(role))?;
        let place = ready.outputs.iter().find(|(output, _)| output == name).map(|(_, place)| *place);
        place.ok_or_else(|| ExecError::Mismatch(format!("schedule `{}` has no output `{name}`", role.name())))
    }

    /// Notes a named scalar of the schedule that ran last for [`observed`](Self::observed), without waiting for it.
    ///
    /// # Errors
    ///
    /// When there is no such output, or it is no f32 alone.
    pub fn observe(&mut self, role: Role, name: &str) -> Result<(), ExecError> {
        let place = self.output_place(role, name)?;
        if (place.ty.dtype, place.ty.shape.elements()) != (DType::F32, 1) {
            return Err(ExecError::Mismatch(format!("output `{name}` is {}, not one f32", place.ty)));
        }
        self.observed.extend(self.device.observe(place.offset)?);
        self.asked += 1;
        Ok(())
    }

    /// Forgets the scalars that were noted and not taken.
    pub fn forget_observed(&mut self) {
        self.forgotten = self.asked;
    }

    /// Takes the scalars that were noted since the last call, in their order, after everything that was started.
    ///
    /// # Errors
    ///
    /// When something that was started has failed.
    pub fn observed(&mut self) -> Result<std::vec::Drain<'_, f32>, ExecError> {
        let result = self.device.observed(&mut self.observed);
        let forgotten = if result.is_ok() { self.forgotten } else { self.observed.len() };
        (self.asked, self.forgotten) = (0, 0);
        self.observed.drain(..forgotten.min(self.observed.len()));
        result.map(|()| self.observed.drain(..))
    }

    /// A named output that is a scalar.
    ///
    /// # Errors
    ///
    /// As [`output`](Self::output).
    pub fn scalar(&self, role: Role, name: &str) -> Result<f32, ExecError> {
        let mut value = [0.0];
        self.output(role, name, &mut value)?;
        Ok(value[0])
    }
}

/// The schedules of a plan with the graphs that they run.
fn judged<'a>(program: &'a Program, plan: &'a Plan) -> Result<Vec<Judged<'a>>, ExecError> {
    let with_graph = |(&role, schedule): (&Role, &'a Schedule)| {
        let part = program.part(role).ok_or_else(|| {
            ExecError::Mismatch(format!(
                "the plan has a schedule `{}` and the program no graph for it",
                role.name()
            ))
        })?;
        Ok(Judged { role, graph: &part.graph, schedule })
    };
    plan.schedules.iter().map(with_graph).collect()
}

/// All state of a program's graphs; shared state comes several times.
fn states(program: &Program) -> impl Iterator<Item = &State> {
    let graphs = [Some(&program.train), program.evaluate.as_ref(), program.generate.as_ref()];
    graphs.into_iter().flatten().flat_map(|part| part.graph.states())
}

/// The shares of a rank in the state of a program.
fn shares(program: &Program, rank: usize) -> BTreeMap<String, Share> {
    states(program).filter_map(|state| Some((state.name.clone(), Share::of(state, rank)?))).collect()
}

/// The groups of state of a program's graphs.
fn groups(program: &Program) -> BTreeMap<String, Vec<(usize, String, Shape)>> {
    let grouped = states(program).filter(|state| !state.parts.is_empty());
    let pieces = grouped.map(|state| {
        let pieces = state.pieces().map(|(first, name, shape)| (first, name.to_owned(), shape));
        (state.name.clone(), pieces.collect())
    });
    pieces.collect()
}

impl Ready {
    fn new(graph: &Graph, schedule: &Schedule, id: ScheduleId) -> Ready {
        let place = |value: Value| {
            let buffer = schedule.buffer_of(graph, value)?;
            let place = Place { ty: graph.ty(value), tier: None, offset: buffer.offset };
            Some((place, buffer.offset + buffer.bytes))
        };
        let inputs = graph.inputs().iter().filter_map(|&value| {
            let (place, end) = place(value)?;
            Some((graph.value(value).name.clone(), place, end))
        });
        let outputs =
            graph.outputs().iter().filter_map(|(name, value)| Some((name.clone(), place(*value)?.0)));
        Ready {
            id,
            reach: schedule.actions.iter().map(|action| reach(schedule, action)).max().unwrap_or(0),
            seconds: vec![Vec::new(); schedule.actions.len()],
            untimed: 0,
            timed: 0,
            taken: 0,
            inputs: inputs.collect(),
            outputs: outputs.collect(),
        }
    }

    /// Whether the run that begins now is timed.
    fn is_timed(&mut self) -> bool {
        if self.untimed > 0 {
            self.untimed -= 1;
            return false;
        }
        let timed = self.timed > 0;
        self.timed = self.timed.saturating_sub(1);
        self.taken += usize::from(timed);
        timed
    }
}

/// The highest byte end among the operands of an action.
fn reach(schedule: &Schedule, action: &Action) -> u64 {
    let end = |id: &plimsoll_plan::BufferId| {
        let buffer = schedule.buffer(*id);
        buffer.offset + buffer.bytes
    };
    match action {
        Action::Run { inputs, outputs, workspace, .. } => {
            inputs.iter().chain(outputs).chain(workspace).map(end).max().unwrap_or(0)
        }
        Action::Start { copy } | Action::Wait { copy } => {
            schedule.copies[*copy].buffer().as_ref().map_or(0, end)
        }
        // The bytes of these transfers and exchanges are counted in the schedule and at the node to which they
        // belong.
        Action::Await { .. } | Action::Settle { .. } | Action::StartNext { .. } => 0,
    }
}

fn no_schedule(role: Role) -> ExecError {
    ExecError::Mismatch(format!("the plan has no schedule `{}`", role.name()))
}
