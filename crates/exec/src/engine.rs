//! The run loop: a plan on a device.
//!
//! [`Engine::new`] takes the arena, makes every schedule ready and fills in the initial state. From then
//! on [`Engine::run`] walks a list: it allocates nothing and chooses nothing. While it walks, it keeps the
//! highest byte that any operand reached; after all schedules have run, that is the planned peak, to the
//! byte.

use std::collections::BTreeMap;

use plimsoll_graph::{DType, Graph, StateKind, Type, Value};
use plimsoll_plan::{Action, Plan, Program, Role, Schedule, Space, replay};

use crate::device::Device;
use crate::error::ExecError;
use crate::init;

/// Elements initialised or copied at a time: bounded, because the bytes are outside the arena.
const PIECE: usize = 16 << 10;

/// Values for a graph input.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Floats.
    F32(&'a [f32]),
    /// Integers.
    I32(&'a [i32]),
}

impl Data<'_> {
    fn ty(&self) -> (DType, usize) {
        match self {
            Data::F32(values) => (DType::F32, values.len()),
            Data::I32(values) => (DType::I32, values.len()),
        }
    }
}

/// A plan on a device, ready to run.
#[derive(Debug)]
pub struct Engine<D: Device> {
    device: D,
    schedules: BTreeMap<Role, Ready<D::Prepared>>,
    states: BTreeMap<String, Place>,
    arena_bytes: u64,
    measured_peak: u64,
}

/// A range of the arena that the caller writes or reads.
#[derive(Clone, Copy, Debug)]
struct Place {
    ty: Type,
    offset: u64,
}

/// A schedule made ready.
#[derive(Debug)]
struct Ready<P> {
    prepared: P,
    /// The highest byte end among the operands of each action.
    reach: Vec<u64>,
    inputs: Vec<(String, Place, u64)>,
    outputs: Vec<(String, Place)>,
}

impl<D: Device> Engine<D> {
    /// Takes the arena and fills in the initial state, drawn from `seed`.
    ///
    /// # Errors
    ///
    /// When the memory cannot be had or the device lacks a kernel.
    pub fn new(mut device: D, program: &Program, plan: &Plan, seed: u64) -> Result<Engine<D>, ExecError> {
        device.allocate(Space::of(plan.arena_bytes, plan.schedules.values()))?;
        let mut schedules = BTreeMap::new();
        for (&role, schedule) in &plan.schedules {
            let part = program.part(role).ok_or_else(|| {
                ExecError::Mismatch(format!(
                    "the plan has a schedule `{}` and the program no graph for it",
                    role.name()
                ))
            })?;
            replay(&part.graph, schedule, role.phases(), plan.arena_bytes).map_err(|error| {
                ExecError::Mismatch(format!("schedule `{}` must not run: {error}", role.name()))
            })?;
            let prepared = device.prepare(&part.graph, schedule)?;
            schedules.insert(role, Ready::new(&part.graph, schedule, prepared));
        }
        let states: BTreeMap<String, Place> = (plan.states.iter())
            .map(|range| (range.name.clone(), Place { ty: range.ty, offset: range.offset }))
            .collect();
        // State is in place from the start and stays; its end counts as reached.
        let measured_peak = plan.states.iter().map(|range| range.offset + range.bytes).max().unwrap_or(0);
        let mut engine = Engine { device, schedules, states, arena_bytes: plan.arena_bytes, measured_peak };
        for &role in plan.schedules.keys() {
            if let Some(part) = program.part(role) {
                engine.initialise(&part.graph, seed)?;
            }
        }
        Ok(engine)
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device, for tests that disturb it.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Size of the arena, which is the planned peak.
    pub fn arena_bytes(&self) -> u64 {
        self.arena_bytes
    }

    /// The highest byte end among the operands of all actions that ran.
    pub fn measured_peak(&self) -> u64 {
        self.measured_peak
    }

    /// Writes the inputs of a schedule and runs it.
    ///
    /// # Errors
    ///
    /// When an input is missing, unknown or of the wrong size, or a kernel meets bad data.
    pub fn run(&mut self, role: Role, inputs: &[(&str, Data)]) -> Result<(), ExecError> {
        let ready = self.schedules.get(&role).ok_or_else(|| no_schedule(role))?;
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
            write(&mut self.device, place.offset, *data)?;
            self.measured_peak = self.measured_peak.max(*end);
        }
        let (prepared, reach) = (&ready.prepared, &ready.reach);
        let reached = self.device.enter(|device| {
            let mut reached = 0;
            for (action, &end) in reach.iter().enumerate() {
                device.run(prepared, action)?;
                reached = reached.max(end);
            }
            Ok(reached)
        })?;
        self.measured_peak = self.measured_peak.max(reached);
        Ok(())
    }

    /// Reads a named output of the schedule that ran last.
    ///
    /// # Errors
    ///
    /// When there is no such output, or it is not as long as `values`.
    pub fn output(&self, role: Role, name: &str, values: &mut [f32]) -> Result<(), ExecError> {
        let ready = self.schedules.get(&role).ok_or_else(|| no_schedule(role))?;
        let place = ready.outputs.iter().find(|(output, _)| output == name);
        let Some((_, place)) = place else {
            return Err(ExecError::Mismatch(format!("schedule `{}` has no output `{name}`", role.name())));
        };
        self.read(name, *place, 0, values)
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

    /// Names and types of all state.
    pub fn states(&self) -> impl Iterator<Item = (&str, Type)> {
        self.states.iter().map(|(name, place)| (name.as_str(), place.ty))
    }

    /// Reads state from element `first` on.
    ///
    /// # Errors
    ///
    /// When there is no such state or it is shorter.
    pub fn read_state(&self, name: &str, first: usize, values: &mut [f32]) -> Result<(), ExecError> {
        self.read(name, self.state(name)?, first, values)
    }

    /// Writes state from element `first` on.
    ///
    /// # Errors
    ///
    /// When there is no such state or it is shorter.
    pub fn write_state(&mut self, name: &str, first: usize, values: &[f32]) -> Result<(), ExecError> {
        let place = self.state(name)?;
        fits(name, place, first, values.len())?;
        write(&mut self.device, place.offset + 4 * first as u64, Data::F32(values))
    }

    fn state(&self, name: &str) -> Result<Place, ExecError> {
        let place = self.states.get(name).copied();
        place.ok_or_else(|| ExecError::Mismatch(format!("there is no state `{name}`")))
    }

    fn read(&self, name: &str, place: Place, first: usize, values: &mut [f32]) -> Result<(), ExecError> {
        fits(name, place, first, values.len())?;
        let mut bytes = [0; 4 * 256];
        for (piece, values) in values.chunks_mut(256).enumerate() {
            let bytes = &mut bytes[..4 * values.len()];
            self.device.read(place.offset + 4 * (first + 256 * piece) as u64, bytes)?;
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_ne_bytes(*bytes);
            }
        }
        Ok(())
    }

    fn initialise(&mut self, graph: &Graph, seed: u64) -> Result<(), ExecError> {
        let mut piece = vec![0.0; PIECE];
        // A transient gradient is there only while a schedule runs.
        for state in graph.states().iter().filter(|state| state.kind != StateKind::Transient) {
            let place = self.state(&state.name)?;
            let elements = state.ty.shape.elements();
            for first in (0..elements).step_by(PIECE) {
                let values = &mut piece[..PIECE.min(elements - first)];
                init::fill(&state.init, &state.name, seed, first, values);
                write(&mut self.device, place.offset + 4 * first as u64, Data::F32(values))?;
            }
        }
        Ok(())
    }
}

impl<P> Ready<P> {
    fn new(graph: &Graph, schedule: &Schedule, prepared: P) -> Ready<P> {
        let place = |value: Value| {
            let buffer = schedule.buffer_of(graph, value)?;
            Some((Place { ty: graph.ty(value), offset: buffer.offset }, buffer.offset + buffer.bytes))
        };
        let inputs = graph.inputs().iter().filter_map(|&value| {
            let (place, end) = place(value)?;
            Some((graph.value(value).name.clone(), place, end))
        });
        let outputs =
            graph.outputs().iter().filter_map(|(name, value)| Some((name.clone(), place(*value)?.0)));
        Ready {
            prepared,
            reach: schedule.actions.iter().map(|action| reach(schedule, action)).collect(),
            inputs: inputs.collect(),
            outputs: outputs.collect(),
        }
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
        Action::Start { copy } | Action::Wait { copy } => end(&schedule.copies[*copy].buffer),
    }
}

fn no_schedule(role: Role) -> ExecError {
    ExecError::Mismatch(format!("the plan has no schedule `{}`", role.name()))
}

fn fits(name: &str, place: Place, first: usize, count: usize) -> Result<(), ExecError> {
    if place.ty.dtype != DType::F32 || first + count > place.ty.shape.elements() {
        return Err(ExecError::Mismatch(format!(
            "`{name}` is {}, asked for {count} floats from {first}",
            place.ty
        )));
    }
    Ok(())
}

/// Writes numbers into the arena in pieces, without a copy of the whole.
fn write<D: Device>(device: &mut D, offset: u64, data: Data) -> Result<(), ExecError> {
    fn pieces<T: Copy, D: Device>(
        device: &mut D,
        offset: u64,
        values: &[T],
        bytes_of: impl Fn(T) -> [u8; 4],
    ) -> Result<(), ExecError> {
        let mut bytes = [0; 4 * 256];
        for (piece, values) in values.chunks(256).enumerate() {
            for (bytes, &value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                *bytes = bytes_of(value);
            }
            device.write(offset + 4 * 256 * piece as u64, &bytes[..4 * values.len()])?;
        }
        Ok(())
    }
    match data {
        Data::F32(values) => pieces(device, offset, values, f32::to_ne_bytes),
        Data::I32(values) => pieces(device, offset, values, i32::to_ne_bytes),
    }
}
