//! A whole schedule as one flat list of steps, each action a range of it.

use std::collections::BTreeMap;
use std::ops::Range;

use plimsoll_exec::ExecError;
use plimsoll_graph::{Graph, NodeId, Type};
use plimsoll_plan::{Action, BufferId, Schedule};

use super::{Arg, Check, Library, Limits, Operand, Place, PlacedOp, StreamStep, check, lower};

/// The steps of a schedule in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoweredSchedule {
    /// All steps.
    pub steps: Vec<StreamStep>,
    /// Where each action ends in the list.
    ends: Vec<usize>,
}

impl LoweredSchedule {
    /// Lowers every action of `schedule`.
    ///
    /// # Errors
    ///
    /// When a node has no kernel, or the schedule copies to another tier.
    pub fn of(
        graph: &Graph,
        schedule: &Schedule,
        library: &dyn Library,
        limits: Limits,
    ) -> Result<LoweredSchedule, ExecError> {
        let (mut program, mut numbers) = (LoweredSchedule::default(), Numbers::default());
        for action in &schedule.actions {
            let mut steps = match action {
                Action::Await { node } => vec![StreamStep::Await { exchange: numbers.of(*node)? }],
                _ => steps_of(graph, schedule, action, library, limits)?,
            };
            if let Action::Run { node, .. } = action {
                numbers.give(*node, &mut steps);
            }
            program.steps.append(&mut steps);
            program.ends.push(program.steps.len());
        }
        Ok(program)
    }

    /// How many exchanges begin.
    pub fn exchanges(&self) -> usize {
        self.steps.iter().filter(|step| matches!(step, StreamStep::Exchange(_))).count()
    }

    /// Which steps belong to action `action`.
    pub fn range(&self, action: usize) -> Range<usize> {
        let start = action.checked_sub(1).map_or(0, |before| self.ends[before]);
        start..self.ends[action]
    }

    /// Number of actions.
    pub fn actions(&self) -> usize {
        self.ends.len()
    }
}

/// Numbers of the exchanges of a schedule, and the last that each node began.
#[derive(Default)]
struct Numbers {
    begun: usize,
    of_nodes: BTreeMap<NodeId, usize>,
}

impl Numbers {
    fn give(&mut self, node: NodeId, steps: &mut [StreamStep]) {
        for step in steps {
            if let StreamStep::Exchange(exchange) = step {
                exchange.number = self.begun;
                self.of_nodes.insert(node, self.begun);
                self.begun += 1;
            }
        }
    }

    fn of(&self, node: NodeId) -> Result<usize, ExecError> {
        let number = self.of_nodes.get(&node).copied();
        number.ok_or_else(|| ExecError::Mismatch(format!("node {} is awaited and has not begun", node.0)))
    }
}

fn steps_of(
    graph: &Graph,
    schedule: &Schedule,
    action: &Action,
    library: &dyn Library,
    limits: Limits,
) -> Result<Vec<StreamStep>, ExecError> {
    let Action::Run { node, inputs, outputs, workspace, accumulate } = action else {
        let why = "the CUDA device does not offload yet; leave out --offload";
        return Err(ExecError::Unsupported(why.into()));
    };
    let place = |id: BufferId| Place(schedule.buffer(id).offset);
    let operand = |id: BufferId, ty: Type, accumulate: bool| {
        let bytes = schedule.buffer(id).bytes;
        if ty.bytes() as u64 > bytes {
            return Err(ExecError::Mismatch(format!("a buffer of {bytes} bytes cannot hold {ty}")));
        }
        Ok(Operand { place: place(id), ty, accumulate })
    };
    let node = graph.node(*node);
    let inputs = node.inputs.iter().zip(inputs).map(|(&value, &id)| operand(id, graph.ty(value), false));
    let outputs = (node.outputs.iter().zip(outputs).enumerate())
        .map(|(output, (&value, &id))| operand(id, graph.ty(value), accumulate >> output & 1 == 1));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let outputs = outputs.collect::<Result<Vec<_>, _>>()?;
    let work = PlacedOp {
        op: &node.op,
        inputs: &inputs,
        outputs: &outputs,
        scratch: workspace.map_or(Place(0), place),
    };
    let mut steps = lower(&work, library, limits)?;
    name_routers(&mut steps, &graph.block_name(node.block));
    let room = workspace.map_or(0, |id| schedule.buffer(id).bytes);
    match check(&work, room, &steps, library) {
        Ok(()) => Ok(steps),
        Err(why) => Err(ExecError::Mismatch(format!("`{}` was lowered wrongly: {why}", node.op.name()))),
    }
}

/// Lets checks of scores report to a word of the block that their router lies in.
fn name_routers(steps: &mut [StreamStep], of: &str) {
    for step in steps {
        let StreamStep::Launch(launch) = step else { continue };
        for arg in &mut launch.args {
            if let Arg::Check(Check::Score { block }) = arg {
                of.clone_into(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::Launch;

    #[test]
    fn a_router_reports_to_a_word_of_its_block() {
        let checks = [Check::Score { block: String::new() }, Check::Expert { experts: 2 }];
        let args = checks.iter().cloned().map(Arg::Check).collect();
        let launch = Launch { kernel: "top_k".into(), grid: [1; 3], block: [32, 1], shared: 0, args };
        let mut steps = [StreamStep::Launch(launch)];
        name_routers(&mut steps, "model.layers.4");
        let StreamStep::Launch(Launch { args, .. }) = &steps[0] else { unreachable!("a launch stays one") };
        let named = Check::Score { block: "model.layers.4".into() };
        assert_eq!(args, &[Arg::Check(named.clone()), Arg::Check(checks[1].clone())]);
        let told = "the router's score of expert 3 is not a number";
        assert_eq!(named.fault(3), ExecError::NotFinite(format!("{told}, in `model.layers.4`")));
        assert_eq!(named.nameless().fault(3), ExecError::NotFinite(told.into()));
    }
}
