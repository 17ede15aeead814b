//! A linear layer of the graph that a pass builds, before its adapter decides how its product is used.

use plimsoll_graph::{Graph, Node, Op, Value};

/// A linear layer: its operands in the new graph.
pub(super) struct Module {
    /// The module's input, `(…, in)`.
    pub(super) x: Value,
    weight: Value,
    /// The module's own bias, `(out)`.
    pub(super) bias: Option<Value>,
    transposed: bool,
}

impl Module {
    /// The layer that a node of the old graph is, on the new values of its inputs; none if it is no linear layer.
    pub(super) fn of(node: &Node, moved: &[Value]) -> Option<Module> {
        let Op::Linear { transposed, .. } = node.op else { return None };
        let input = |at: usize| node.inputs.get(at).map(|input| moved[input.index()]);
        Some(Module { x: input(0)?, weight: input(1)?, bias: input(2), transposed })
    }

    /// `x·Wᵀ`, plus the layer's bias.
    pub(super) fn result(&self, g: &mut Graph, x: Value) -> Value {
        self.with(g, x, self.bias)
    }

    /// `x·Wᵀ` alone.
    pub(super) fn product(&self, g: &mut Graph, x: Value) -> Value {
        self.with(g, x, None)
    }

    fn with(&self, g: &mut Graph, x: Value, bias: Option<Value>) -> Value {
        if self.transposed {
            g.linear_transposed(x, self.weight, bias)
        } else {
            g.linear(x, self.weight, bias)
        }
    }
}
