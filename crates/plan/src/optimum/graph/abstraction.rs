//! A training graph as the abstract planner sees it ([`remat`](crate::remat)), and its schedules as runs of the graph.
//!
//! ```text
//! forward node                     may run again
//! backward node                    runs once, in order; so does a forward node that must not run twice
//! several outputs                  the largest is the node's; each of the others is a node that reads the largest and costs
//!                                  nothing: it may stay longer than the largest, and is recomputed with it
//! state, inputs, views             not there: state has its own place, inputs are always alive, a view is its storage
//! transient gradient               an output of its first writer, which all later writers and readers read
//! output in place of an input      takes nothing while the node runs
//! named output                     read by a last node, if the backward pass builds on it; else counted as always alive
//! gather of a weight               not there: nothing is to be decided; its result is scratch of the nodes that read it
//! ```
//!
//! Only bytes that every real schedule needs are counted: an op that may overwrite an input is assumed to do so,
//! although it can only if no other op reads the input. So a bound for the abstract graph holds for the real graph. The
//! size of a plan is too small by one output at most, for the length of one run: the next run counts both values. The
//! layout then gives the real size.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_graph::{Graph, Node, NodeId, Phase, StateId, StateKind, Value};

use crate::device::{Facts, NodeFacts, aligned};
use crate::recompute::Run;
use crate::remat::{Dag, DagNode, DagStep};

/// The meaning of the nodes of the abstract graph, and the bytes that are not in it.
#[derive(Debug)]
pub(crate) struct Model {
    parts: Vec<Part>,
    /// Bytes of inputs and named outputs that are not in the graph: the most that are alive at one time.
    pub(crate) beside: u64,
    /// Bytes of those that stay resident as long as the backward pass needs forward values.
    pub(crate) surely_beside: u64,
}

/// The meaning of a node of the abstract graph.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// A run, and the value that is its output, unless that is never read.
    Run(NodeId, Option<Value>),
    /// Another output of the run that this node stands for.
    Output(usize, Option<Value>),
    /// The moment at which the caller reads outputs.
    End,
}

/// Bytes of the arena that begin where a node runs.
#[derive(Clone, Copy)]
struct Written {
    bytes: u64,
    /// The value, or none for a transient gradient.
    value: Option<Value>,
    state: Option<StateId>,
}

impl Model {
    /// The abstract graph of one micro-batch of `graph` and its model, with seconds and scratch bytes of each node.
    pub(crate) fn new(graph: &Graph, facts: &Facts, cost: impl Fn(&NodeFacts) -> (f64, u64)) -> (Dag, Model) {
        let mut builder = Builder::new(graph, facts);
        for id in micro_batch_nodes(graph) {
            let (seconds, scratch) = cost(&facts.nodes[id.index()]);
            builder.add(id, seconds, aligned(scratch, facts.alignment));
        }
        builder.finish()
    }

    /// The runs of a schedule.
    pub(crate) fn runs(&self, schedule: &[DagStep]) -> Vec<Run> {
        let mut runs = Vec::new();
        let mut resident = vec![false; self.parts.len()];
        for &step in schedule {
            match step {
                DagStep::Run(index) => {
                    resident[index] = true;
                    if let Part::Run(node, _) = self.parts[index] {
                        runs.push(Run::Node(node));
                    }
                }
                DagStep::Drop(index) => {
                    resident[index] = false;
                    self.forget(index, &resident, &mut runs);
                }
            }
        }
        runs
    }

    /// Forgets a value, and the other outputs of the run that made it unless they are kept for themselves.
    fn forget(&self, index: usize, resident: &[bool], runs: &mut Vec<Run>) {
        match self.parts[index] {
            Part::Output(_, value) => runs.extend(value.map(Run::Forget)),
            Part::Run(_, value) => {
                runs.extend(value.map(Run::Forget));
                let others =
                    self.parts[index + 1..].iter().enumerate().map_while(|(after, part)| match *part {
                        Part::Output(run, value) if run == index => Some((index + 1 + after, value)),
                        _ => None,
                    });
                let gone = others.filter(|(other, _)| !resident[*other]).filter_map(|(_, value)| value);
                runs.extend(gone.map(Run::Forget));
            }
            Part::End => {}
        }
    }
}

/// Nodes that run in a micro-batch, in order.
fn micro_batch_nodes(graph: &Graph) -> impl Iterator<Item = NodeId> + use<'_> {
    let runs = |node: &Node| node.phase != Phase::Update && !node.op.is_view();
    graph.node_ids().filter(move |&id| runs(graph.node(id)) && !graph.gathers(id))
}

struct Builder<'a> {
    graph: &'a Graph,
    alignment: u64,
    /// The last node of a micro-batch that reads each storage.
    last_reader: Vec<Option<NodeId>>,
    nodes: Vec<DagNode>,
    parts: Vec<Part>,
    /// The node whose output each storage is.
    holder: Vec<Option<usize>>,
    transient: BTreeMap<StateId, usize>,
}

impl<'a> Builder<'a> {
    fn new(graph: &'a Graph, facts: &Facts) -> Builder<'a> {
        let mut last_reader = vec![None; graph.value_count()];
        for id in micro_batch_nodes(graph) {
            for &input in &graph.node(id).inputs {
                last_reader[graph.storage(input).index()] = Some(id);
            }
        }
        Builder {
            graph,
            alignment: facts.alignment,
            last_reader,
            nodes: Vec::new(),
            parts: Vec::new(),
            holder: vec![None; graph.value_count()],
            transient: BTreeMap::new(),
        }
    }

    fn add(&mut self, id: NodeId, cost: f64, scratch: u64) {
        let node = self.graph.node(id);
        let writes_state = node.outputs.iter().any(|&value| self.graph.value(value).state.is_some());
        let backward = node.phase == Phase::Backward || node.op.is_once() || writes_state;
        let sources: BTreeSet<usize> =
            node.inputs.iter().chain(&node.outputs).filter_map(|&value| self.source(value)).collect();
        let written: Vec<(usize, Written)> = self.written(node);
        let apart = written.iter().filter(|(output, _)| !self.in_place(id, *output));
        let running = scratch + self.gathered(node) + apart.map(|(_, written)| written.bytes).sum::<u64>();
        let mut held: Vec<Written> = written.into_iter().map(|(_, written)| written).collect();
        held.retain(|written| self.is_read(written));
        // The first of the largest.
        held.sort_by_key(|written| std::cmp::Reverse(written.bytes));
        let mut held = held.into_iter();
        let largest = held.next();
        let index = self.nodes.len();
        let name = format!("{} {}", node.op.name(), id.index());
        let bytes = largest.map_or(0, |largest| largest.bytes);
        let sources = sources.into_iter().collect();
        self.nodes.push(DagNode { name: name.clone(), backward, cost, bytes, running, sources });
        self.parts.push(Part::Run(id, largest.and_then(|largest| largest.value)));
        self.hold(largest, index);
        for other in held {
            let sources = if backward { Vec::new() } else { vec![index] };
            let Written { bytes, value, .. } = other;
            let (cost, running) = (0.0, if backward { 0 } else { bytes });
            self.hold(Some(other), self.nodes.len());
            self.nodes.push(DagNode { name: name.clone(), backward, cost, bytes, running, sources });
            self.parts.push(Part::Output(index, value));
        }
    }

    fn hold(&mut self, written: Option<Written>, index: usize) {
        match written {
            Some(Written { value: Some(value), .. }) => self.holder[value.index()] = Some(index),
            Some(Written { state: Some(state), .. }) => {
                self.transient.insert(state, index);
            }
            _ => {}
        }
    }

    /// The node that outputs a value, if it is already in the abstract graph and the value is no lasting state.
    fn source(&self, value: Value) -> Option<usize> {
        let storage = self.graph.storage(value);
        match self.graph.value(storage).state {
            Some((state, _)) => self.transient.get(&state).copied(),
            None => self.holder[storage.index()],
        }
    }

    /// Bytes of the weights that are gathered for a node.
    fn gathered(&self, node: &Node) -> u64 {
        let read: BTreeSet<Value> = node.inputs.iter().map(|&value| self.graph.storage(value)).collect();
        read.into_iter().filter(|&value| self.graph.is_gathered(value)).map(|value| self.bytes(value)).sum()
    }

    fn bytes(&self, value: Value) -> u64 {
        aligned(self.graph.ty(value).bytes() as u64, self.alignment)
    }

    /// The outputs of a node whose lifetime begins there.
    fn written(&self, node: &Node) -> Vec<(usize, Written)> {
        let begins = |(output, &value): (usize, &Value)| {
            let bytes = self.bytes(value);
            match self.graph.value(value).state {
                None => Some((output, Written { bytes, value: Some(value), state: None })),
                Some((state, 1)) if self.graph.state(state).kind == StateKind::Transient => {
                    Some((output, Written { bytes, value: None, state: Some(state) }))
                }
                Some(_) => None,
            }
        };
        node.outputs.iter().enumerate().filter_map(begins).collect()
    }

    fn is_read(&self, written: &Written) -> bool {
        let named =
            |value: Value| self.graph.outputs().iter().any(|(_, out)| self.graph.storage(*out) == value);
        written.value.is_none_or(|value| self.last_reader[value.index()].is_some() || named(value))
    }

    /// Whether an output may be written over an input that need not exist after the node.
    fn in_place(&self, id: NodeId, output: usize) -> bool {
        let node = self.graph.node(id);
        let size = self.graph.ty(node.outputs[output]).bytes();
        node.op.may_overwrite(output).iter().filter_map(|&input| node.inputs.get(input)).any(|&input| {
            let storage = self.graph.storage(input);
            let state = self.graph.value(storage).state.map(|(state, _)| self.graph.state(state).kind);
            let passes = state.is_none_or(|kind| kind == StateKind::Transient);
            // A gradient that is read again after the node must stay; a forward value can be recomputed.
            let once = self.source(input).is_some_and(|source| self.nodes[source].backward);
            passes
                && self.graph.ty(storage).bytes() == size
                && !(once && self.last_reader[storage.index()] > Some(id))
        })
    }

    fn finish(mut self) -> (Dag, Model) {
        let built_on = self.built_on();
        let (mut read_last, mut beside) = (BTreeSet::new(), 0);
        let outputs: BTreeSet<Value> =
            self.graph.outputs().iter().map(|(_, value)| self.graph.storage(*value)).collect();
        for value in outputs.into_iter().filter(|&value| self.graph.value(value).state.is_none()) {
            match self.holder[value.index()] {
                Some(index) if built_on[index] => {
                    read_last.insert(index);
                }
                Some(_) => beside += self.bytes(value),
                None => {}
            }
        }
        if !read_last.is_empty() {
            let sources = read_last.into_iter().collect();
            self.nodes.push(DagNode {
                name: "outputs".to_owned(),
                backward: true,
                sources,
                ..DagNode::default()
            });
            self.parts.push(Part::End);
        }
        let inputs = || self.graph.inputs().iter().filter(|value| self.last_reader[value.index()].is_some());
        beside += inputs().map(|&value| self.bytes(value)).sum::<u64>();
        let last_need = self.last_need();
        let sure = inputs().filter(|value| self.last_reader[value.index()].map(NodeId::index) >= last_need);
        let surely_beside = sure.map(|&value| self.bytes(value)).sum();
        (Dag { nodes: self.nodes }, Model { parts: self.parts, beside, surely_beside })
    }

    /// Which nodes the backward pass depends on, its own included.
    fn built_on(&self) -> Vec<bool> {
        let mut built_on: Vec<bool> = self.nodes.iter().map(|node| node.backward).collect();
        for index in (0..self.nodes.len()).rev() {
            if built_on[index] {
                self.nodes[index].sources.iter().for_each(|&source| built_on[source] = true);
            }
        }
        built_on
    }

    /// Index of the last node that reads something of the forward pass and runs once.
    fn last_need(&self) -> Option<usize> {
        let forward = |source: &usize| !self.nodes[*source].backward;
        let needs = |node: &DagNode| node.backward && node.sources.iter().any(forward);
        let at = |part: &Part| if let Part::Run(id, _) = part { id.index() } else { usize::MAX };
        self.nodes.iter().zip(&self.parts).filter(|(node, _)| needs(node)).map(|(_, part)| at(part)).max()
    }
}
