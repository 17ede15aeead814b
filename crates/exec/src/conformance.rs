//! Judging a device: every case is planned, run on the device's own arena and compared with the
//! reference kernel.
//!
//! A case takes the same path as a training step (graph, plan, replay, prepare, warm up, run), so the judged code is
//! the code that trains.

use std::cell::OnceCell;

use plimsoll_graph::{Graph, StateKind, Value};
use plimsoll_plan::{Costed, Judged, Program, Role, Schedule, Scratch, Space, Strategy, plan, runnable};

use crate::cases::Case;
use crate::device::{Device, ScheduleId};
use crate::error::ExecError;
use crate::reference::Tensor;

/// Runs `case` on `device` with the given amount of scratch and returns the largest relative difference.
///
/// # Errors
///
/// A sentence that names the case and the fault of the device's answer.
pub fn judge(device: &mut dyn Device, case: &Case, scratch: Scratch) -> Result<f64, String> {
    DrawnCase::new(case)?.judge(device, scratch)
}

/// A case with its operands drawn, for any number of runs.
///
/// Operands take longer to draw than most kernels run, because some are results of the reference kernels. So they are drawn
/// once, and the expected result is computed once, for all devices and all amounts of scratch.
#[derive(Debug)]
pub struct DrawnCase<'a> {
    case: &'a Case,
    graph: Graph,
    inputs: Vec<Tensor>,
    /// Contents of the outputs before the op runs.
    before: Vec<Tensor>,
    /// The values that are written before a run, with their bytes.
    given: Vec<(Value, Vec<u8>)>,
    outputs: Vec<Value>,
    expected: OnceCell<Result<Vec<Tensor>, String>>,
}

impl<'a> DrawnCase<'a> {
    /// Draws the operands of a case.
    ///
    /// # Errors
    ///
    /// None for the cases of [`all`](crate::cases::all); a case of one's own may not fit its op.
    pub fn new(case: &'a Case) -> Result<DrawnCase<'a>, String> {
        let (graph, values, outputs) = graph_of(case).map_err(|error| format!("{}: {error}", case.name))?;
        let (inputs, before) = (case.tensors(), case.outputs());
        // Outputs that are not state have no bytes before the op runs.
        let kept = outputs.iter().zip(&before).filter(|(value, _)| graph.value(**value).state.is_some());
        let given = values.iter().zip(&inputs).chain(kept);
        let given = given.map(|(&value, tensor)| (value, tensor.to_bytes())).collect();
        Ok(DrawnCase { case, graph, inputs, before, given, outputs, expected: OnceCell::new() })
    }

    /// Runs the case and returns the largest relative difference from the reference.
    ///
    /// # Errors
    ///
    /// A sentence that names the case and the fault of the device's answer.
    pub fn judge(&self, device: &mut dyn Device, scratch: Scratch) -> Result<f64, String> {
        let outputs = self.run(device, scratch)?;
        let expected = self.expected.get_or_init(|| {
            let result = self.case.result(&self.inputs, self.before.clone());
            result.map_err(|error| format!("{}: {error}", self.case.name))
        });
        self.case.compare(expected.as_deref().map_err(String::clone)?, &outputs)
    }

    /// Runs the case and returns its outputs.
    ///
    /// # Errors
    ///
    /// A sentence that names the case and what the device refused or failed at.
    pub fn run(&self, device: &mut dyn Device, scratch: Scratch) -> Result<Vec<Tensor>, String> {
        self.outputs_on(device, scratch).map_err(|why| format!("{}: {why}", self.case.name))
    }

    fn outputs_on(&self, device: &mut dyn Device, scratch: Scratch) -> Result<Vec<Tensor>, String> {
        let graph = self.graph.clone();
        let facts = device.facts(&graph);
        let program = Program { train: Costed { graph, facts }, evaluate: None, generate: None };
        let plan = plan(&program, Strategy::None, scratch).map_err(|error| error.to_string())?;
        let (graph, schedule) = (&program.train.graph, &plan.schedules[&Role::Further]);
        let judged = Judged { role: Role::Further, graph, schedule };
        let id = ready(device, judged, plan.arena_bytes.0).map_err(|error| error.to_string())?;
        for (value, bytes) in &self.given {
            device.write(offset(graph, schedule, *value)?, bytes).map_err(|error| error.to_string())?;
        }
        device.run(id).map_err(|error| error.to_string())?;
        let read = |&value: &Value| {
            let ty = graph.ty(value);
            let mut bytes = vec![0; ty.bytes()];
            device.read(offset(graph, schedule, value)?, &mut bytes).map_err(|error| error.to_string())?;
            Ok(Tensor::from_bytes(ty, &bytes))
        };
        self.outputs.iter().map(read).collect()
    }
}

/// The device with an arena and one schedule.
fn ready(device: &mut dyn Device, judged: Judged, arena: u64) -> Result<ScheduleId, ExecError> {
    device.reserve(Space { arena, ..Space::default() })?;
    let judged = runnable(&[judged], arena).map_err(|(_, error)| ExecError::Mismatch(error.to_string()))?;
    let id = device.prepare(&judged[0])?;
    device.warm_up()?;
    device.map()?;
    Ok(id)
}

/// A graph of the one op: results that are added to, or updated in place, are state.
fn graph_of(case: &Case) -> Result<(Graph, Vec<Value>, Vec<Value>), plimsoll_graph::GraphError> {
    let mut g = Graph::new();
    let inputs: Vec<Value> = (case.inputs.iter().enumerate())
        .map(|(index, input)| g.input(&format!("input {index}"), input.ty.shape, input.ty.dtype))
        .collect();
    let node = g.apply_all(case.op.clone(), &inputs);
    let outputs = g.node(node).outputs.clone();
    for (&output, ty) in outputs.iter().zip(case.output_types()) {
        g.store_as(output, ty.dtype);
    }
    let in_place = case.op.updates();
    for (output, (&value, adds)) in outputs.iter().zip(case.accumulates()).enumerate() {
        let name = format!("output {output}");
        if adds || in_place {
            g.state_range(&name, g.ty(value), StateKind::Moment);
            if let Some(state) = g.state_named(&name) {
                g.write_state(node, output, state);
            }
        } else {
            g.output(&name, value);
        }
    }
    Ok((g.finish()?, inputs, outputs))
}

fn offset(graph: &Graph, schedule: &Schedule, value: Value) -> Result<u64, String> {
    let buffer = schedule.buffer_of(graph, value);
    buffer.map(|buffer| buffer.offset).ok_or_else(|| format!("{value} has no buffer"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Instructions;
    use crate::{CpuDevice, cases};

    #[test]
    fn threads_and_scratch_change_no_bit_between_bf16_values_on_any_instruction_path() {
        let is_twin = |case: &Case| case.name.ends_with("in bf16") || case.name.ends_with("bf16 sum");
        let paths = Instructions::available().into_iter();
        let mut devices: Vec<_> =
            paths.map(|path| (path, [1, 2].map(|threads| CpuDevice::of(threads, path).unwrap()))).collect();
        for case in cases::all().iter().filter(|case| is_twin(case)) {
            let drawn = DrawnCase::new(case).unwrap();
            for (path, devices) in &mut devices {
                let first = drawn.run(&mut devices[0], Scratch::Best).unwrap();
                for device in devices {
                    for scratch in [Scratch::Least, Scratch::Best] {
                        let same = drawn.run(device, scratch).unwrap() == first;
                        assert!(same, "{path}: {}", case.name);
                    }
                }
            }
        }
    }

    #[test]
    fn every_case_passes_on_every_instruction_path_with_the_least_and_the_best_scratch() {
        let paths = Instructions::available();
        let mut devices: Vec<_> = paths.iter().map(|&path| CpuDevice::of(2, path).unwrap()).collect();
        let mut faults = Vec::new();
        for case in &cases::all() {
            let drawn = DrawnCase::new(case).unwrap();
            for (device, path) in devices.iter_mut().zip(&paths) {
                for scratch in [Scratch::Least, Scratch::Best] {
                    faults.extend(drawn.judge(device, scratch).err().map(|why| format!("{path}: {why}")));
                }
            }
        }
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    #[test]
    fn products_of_pairs_of_bf16_change_no_bit_of_any_case() {
        let wide = Instructions::available().into_iter().filter(|path| *path >= Instructions::Avx512);
        let mut devices: Vec<CpuDevice> = wide.map(|path| CpuDevice::of(2, path).unwrap()).collect();
        for case in &cases::all() {
            let drawn = DrawnCase::new(case).unwrap();
            let mut results = devices.iter_mut().map(|device| {
                let outputs = drawn.run(device, Scratch::Best).unwrap();
                outputs.iter().map(Tensor::to_bytes).collect::<Vec<_>>()
            });
            let Some(first) = results.next() else { return };
            assert!(results.all(|result| result == first), "{}", case.name);
        }
    }
}
