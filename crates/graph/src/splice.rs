//! Inserts nodes into a finished graph: the code shared by all passes that run on graphs with backward nodes.
//!
//! Values keep their ids, and with them their readers. A pass hands the nodes over one by one, each with the nodes to
//! put before and after it. In the end the places of nodes are corrected in values and in derivatives.

use crate::graph::{Graph, Node, NodeId, ValueInfo, ValueSource};
use crate::{DType, GraphError, Op, Type, Value};

/// A graph whose nodes are being listed again.
pub(crate) struct Splice {
    /// The graph, without its nodes.
    pub(crate) graph: Graph,
    nodes: Vec<Node>,
    /// Where each node of the old list stands now.
    places: Vec<usize>,
}

impl Splice {
    /// Takes the nodes out of a graph, and returns them beside the graph without nodes.
    pub(crate) fn of(mut graph: Graph) -> (Splice, Vec<Node>) {
        let nodes = std::mem::take(&mut graph.nodes);
        let places = Vec::with_capacity(nodes.len());
        (Splice { graph, nodes: Vec::new(), places }, nodes)
    }

    /// Appends the next node of the old list.
    pub(crate) fn keep(&mut self, node: Node) {
        self.places.push(self.nodes.len());
        self.nodes.push(node);
    }

    /// A new node with one operand, of the block and phase of `beside`.
    pub(crate) fn insert(&mut self, beside: &Node, op: Op, input: Value, output: Value) {
        self.insert_all(beside, op, vec![input], output);
    }

    /// A new node with any operands, of the block and phase of `beside`.
    pub(crate) fn insert_all(&mut self, beside: &Node, op: Op, inputs: Vec<Value>, output: Value) {
        let Node { block, phase, derivative_of, .. } = *beside;
        self.nodes.push(Node { op, inputs, outputs: vec![output], block, phase, derivative_of });
    }

    /// `value` in another element type, by a cast that stands before `beside`.
    pub(crate) fn cast(&mut self, beside: &Node, value: Value, to: DType) -> Value {
        let cast = self.fresh(value, to);
        self.insert(beside, Op::Cast { to }, value, cast);
        cast
    }

    /// A value of the same shape.
    pub(crate) fn fresh(&mut self, like: Value, dtype: DType) -> Value {
        self.fresh_of(Type { dtype, ..self.graph.ty(like) })
    }

    /// A value of this type.
    pub(crate) fn fresh_of(&mut self, ty: Type) -> Value {
        self.graph.values.push(ValueInfo {
            ty,
            source: ValueSource::Input,
            state: None,
            name: String::new(),
        });
        Value(self.graph.values.len() as u32 - 1)
    }

    /// Tells values and derivatives the new places of nodes.
    pub(crate) fn finish(self) -> Result<Graph, GraphError> {
        let Splice { mut graph, mut nodes, places } = self;
        for (index, node) in nodes.iter_mut().enumerate() {
            node.derivative_of = node.derivative_of.map(|forward| NodeId(places[forward.index()] as u32));
            for (output, &value) in node.outputs.iter().enumerate() {
                graph.values[value.index()].source = ValueSource::Node { node: NodeId(index as u32), output };
            }
        }
        graph.nodes = nodes;
        graph.finish()
    }
}
