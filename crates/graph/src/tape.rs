//! The tape of a derivative: the graph under construction, and the cotangents gathered so far. Rules of ops write to it.

use crate::graph::{Graph, NodeId, StateId, StateKind};
use crate::{Axes, Op, Shape, Value};

/// A graph whose backward nodes are being added.
pub(crate) struct Tape {
    pub(crate) graph: Graph,
    /// Whether a trainable parameter reaches each value of the forward graph.
    pub(crate) needs: Vec<bool>,
    /// Cotangent of each value of the forward graph, as far as it has been gathered.
    pub(crate) cotangents: Vec<Option<Value>>,
}

impl Tape {
    pub(crate) fn cotangent(&self, value: Value) -> Option<Value> {
        self.cotangents[value.index()]
    }

    pub(crate) fn needs(&self, value: Value) -> bool {
        self.needs[value.index()]
    }

    /// Adds output `output` of the node just made to the cotangent of `to`. The output was made for
    /// this purpose alone, so a weight gradient may be written straight into its sum.
    pub(crate) fn give(&mut self, to: Value, node: NodeId, output: usize) {
        if !self.needs(to) {
            return;
        }
        let contribution = self.graph.node(node).outputs[output];
        match self.gradient_state(to) {
            Some(state) if self.graph.node(node).op.can_accumulate(output) => {
                self.graph.write_state(node, output, state);
            }
            _ => self.share(to, contribution),
        }
    }

    /// Adds a value that others may use as well to the cotangent of `to`.
    pub(crate) fn share(&mut self, to: Value, contribution: Value) {
        if !self.needs(to) {
            return;
        }
        if let Some(state) = self.gradient_state(to) {
            let to = self.graph.ty(contribution).dtype;
            let sum = self.graph.apply_all(Op::Accumulate { to }, &[contribution]);
            self.graph.write_state(sum, 0, state);
            return;
        }
        let sum = match self.cotangents[to.index()] {
            Some(earlier) => self.graph.add(earlier, contribution),
            None => contribution,
        };
        self.cotangents[to.index()] = Some(sum);
    }

    /// The range that sums the gradient of `value`, if it is a parameter.
    fn gradient_state(&mut self, value: Value) -> Option<StateId> {
        let (state, _) = self.graph.value(value).state?;
        let name = gradient_name(&self.graph.state(state).name);
        self.graph.state_range(&name, self.graph.ty(value), StateKind::Gradient);
        self.graph.state_named(&name)
    }

    /// Applies `op` and gives its first output to `to`, unless `to` needs no gradient.
    pub(crate) fn emit(&mut self, to: Value, op: Op, inputs: &[Value]) {
        if self.needs(to) {
            let node = self.graph.apply_all(op, inputs);
            self.give(to, node, 0);
        }
    }

    /// Gives a suffix-broadcast operand its share of `dy`, which has the full shape.
    pub(crate) fn emit_summed(&mut self, to: Value, dy: Value) {
        let axes = broadcast_axes(self.graph.shape(dy), self.graph.shape(to));
        if axes == Axes::default() {
            self.share(to, dy);
        } else {
            self.emit(to, Op::Sum { axes }, &[dy]);
        }
    }
}

/// Name of the state that holds the gradient of the parameter `name`.
pub fn gradient_name(name: &str) -> String {
    format!("grad.{name}")
}

/// The leading axes that suffix-broadcasting adds to `b` to reach `a`.
fn broadcast_axes(a: Shape, b: Shape) -> Axes {
    Axes::of(0..a.len() - b.len())
}
