//! Runs a whole graph with no plan at all: every node once, in order, every value kept.

use std::collections::BTreeMap;

use plimsoll_graph::{Graph, Node, Phase, StateKind, Value};

use super::{Tensor, eval};
use crate::ExecError;

/// Runs the nodes of all phases up to `through` and returns the named outputs they have written.
///
/// State is read and updated in `states`. In the `first_micro_batch` of a step, the first write to a gradient sum
/// replaces its old contents; all other writes add.
///
/// # Errors
///
/// When an input or a state is missing or of another type than the graph says, or data is bad.
pub fn interpret(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    states: &mut BTreeMap<String, Tensor>,
    through: Phase,
    first_micro_batch: bool,
) -> Result<BTreeMap<String, Tensor>, ExecError> {
    let mut run = Run { graph, states, values: vec![None; graph.value_count()], first_micro_batch };
    for &input in graph.inputs() {
        run.values[input.index()] = inputs.get(&graph.value(input).name).cloned();
    }
    for node in graph.nodes().iter().filter(|node| node.phase <= through) {
        run.node(node)?;
    }
    let outputs = graph.outputs().iter();
    Ok(outputs.filter_map(|(name, value)| Some((name.clone(), run.read(*value).ok()?.clone()))).collect())
}

struct Run<'a> {
    graph: &'a Graph,
    states: &'a mut BTreeMap<String, Tensor>,
    values: Vec<Option<Tensor>>,
    first_micro_batch: bool,
}

impl Run<'_> {
    fn node(&mut self, node: &Node) -> Result<(), ExecError> {
        let inputs = node.inputs.iter().map(|&value| self.read(value)).collect::<Result<Vec<_>, _>>()?;
        let mut outputs =
            node.outputs.iter().map(|&value| self.place(value)).collect::<Result<Vec<_>, _>>()?;
        let accumulate: Vec<bool> =
            node.outputs.iter().enumerate().map(|(output, &value)| self.adds(node, output, value)).collect();
        eval(&node.op, &inputs, &mut outputs, &accumulate)?;
        for (&value, output) in node.outputs.iter().zip(outputs) {
            match self.state_name(value) {
                Some(name) => drop(self.states.insert(name.to_owned(), output)),
                None => self.values[value.index()] = Some(output),
            }
        }
        Ok(())
    }

    /// The present contents of a value.
    fn read(&self, value: Value) -> Result<&Tensor, ExecError> {
        let (tensor, name) = match self.state_name(value) {
            Some(name) => (self.states.get(name), name),
            None => (self.values[value.index()].as_ref(), self.graph.value(value).name.as_str()),
        };
        let tensor =
            tensor.ok_or_else(|| ExecError::Mismatch(format!("nothing is given for `{name}` ({value})")))?;
        let wanted = self.graph.ty(value);
        if tensor.ty != wanted {
            return Err(ExecError::Mismatch(format!("`{name}` is {}, the graph says {wanted}", tensor.ty)));
        }
        Ok(tensor)
    }

    /// The initial contents of a value to be written: zeros, or the contents of its state.
    fn place(&self, value: Value) -> Result<Tensor, ExecError> {
        match self.state_name(value) {
            Some(_) => self.read(value).cloned(),
            None => Ok(Tensor::zeros(self.graph.ty(value))),
        }
    }

    fn adds(&self, node: &Node, output: usize, value: Value) -> bool {
        let Some((state, version)) = self.graph.value(value).state else {
            return false;
        };
        let replaces = match self.graph.state(state).kind {
            StateKind::Gradient | StateKind::Tally => version == 1 && self.first_micro_batch,
            StateKind::Transient => version == 1,
            _ => false,
        };
        node.op.can_accumulate(output) && !replaces
    }

    fn state_name(&self, value: Value) -> Option<&'_ str> {
        self.graph.value(value).state.map(|(state, _)| self.graph.state(state).name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::{DType, Init, differentiate};

    use super::super::init;
    use super::*;

    /// `loss = Σ x·w`, used twice, so that `grad.w = 2x` in two writes.
    fn twice() -> Graph {
        let mut g = Graph::new();
        let x = g.input("x", [3], DType::F32);
        let w = g.param("w", [3], Init::Fill(1.0));
        let (a, b) = (g.mul(x, w), g.mul(x, w));
        let sum = g.add(a, b);
        let loss = g.sum(sum, &[0]);
        g.output("loss", loss);
        differentiate(&g, loss).unwrap()
    }

    #[test]
    fn gradients_begin_anew_with_a_step_and_grow_within_it() {
        let graph = twice();
        let mut states: BTreeMap<String, Tensor> =
            graph.states().iter().map(|state| (state.name.clone(), init(state, 0))).collect();
        let inputs = BTreeMap::from([("x".to_owned(), Tensor::f32([3], vec![1.0, 2.0, 3.0]))]);
        let expected = [[2.0, 4.0, 6.0], [4.0, 8.0, 12.0], [2.0, 4.0, 6.0]];
        for (first, expected) in [true, false, true].into_iter().zip(expected) {
            let outputs = interpret(&graph, &inputs, &mut states, Phase::Backward, first).unwrap();
            assert_eq!(outputs["loss"].numbers(), [12.0]);
            assert_eq!(states["grad.w"].numbers(), expected);
        }
    }

    #[test]
    fn a_missing_input_is_named() {
        let graph = twice();
        let mut states = graph.states().iter().map(|state| (state.name.clone(), init(state, 0))).collect();
        let error = interpret(&graph, &BTreeMap::new(), &mut states, Phase::Forward, true).unwrap_err();
        assert_eq!(error.to_string(), "nothing is given for `x` (%0)");
    }
}
