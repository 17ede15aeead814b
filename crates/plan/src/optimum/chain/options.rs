//! Options of one layer: sets of kept values with their exact bytes, peaks and times.
//!
//! The labels give every set of kept values that no other set beats (on bytes and on time to recompute). Each set is
//! then run through the same order and liveness as a real schedule, for one layer alone, which gives its peaks:
//!
//! ```text
//! live bytes   forward: ╱╲╱▔╲▁ kept + y        backward: d ╱▔╲▁╱▔▔╲▁ d'
//!                       └ forward peak                    └ backward peak
//! ```
//!
//! The layer's input is not counted (it belongs to the layer that keeps it), nor are state and graph inputs. A gradient
//! that the layer both makes and uses up is counted like any value.
//!
//! Results of nodes that never run twice are pinned ([`Pinned`]): every option keeps them and is charged for them. Weights that
//! ranks gather are the opposite: no option keeps them, and those that the backward pass reads are gathered again.

use std::collections::BTreeSet;

use plimsoll_graph::{Graph, NodeId, StateId, Value, ValueSource};

use super::find::Layer;
use super::passage::{Pinned, passage};
use crate::device::{Facts, Scratch, aligned};
use crate::layout::{Lifetimes, Slot, live_bytes};
use crate::recompute;
use crate::remat::{Label, LabelLimits, LabelOp, frontier};
use crate::schedule::Contents;

/// One way of treating a layer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LayerOption {
    /// The kept values, as positions in the list that [`kept_values`] reads.
    pub(crate) keep: Vec<usize>,
    /// Bytes kept from the forward pass to the backward pass, the output included.
    pub(crate) kept_bytes: u64,
    /// Most bytes alive during the layer's forward pass.
    pub(crate) forward_peak: u64,
    /// Most bytes alive when its forward pass runs again inside a dropped segment. Pinned values are not counted, since
    /// they already exist.
    pub(crate) again_peak: u64,
    /// Most bytes alive during the layer's backward pass.
    pub(crate) backward_peak: u64,
    /// Time of the layer's backward pass, recomputing included.
    pub(crate) backward_seconds: f64,
    /// Whether all its kept values are made on the way to the layer's output, so that they exist once a dropped segment
    /// has run again.
    pub(crate) on_passage: bool,
}

impl LayerOption {
    /// Whether this option is at least as good as `other` on all counts.
    pub(crate) fn beats(&self, other: &LayerOption) -> bool {
        self.kept_bytes <= other.kept_bytes
            && self.backward_seconds <= other.backward_seconds
            && self.forward_peak <= other.forward_peak
            && self.again_peak <= other.again_peak
            && self.backward_peak <= other.backward_peak
            && self.on_passage >= other.on_passage
    }
}

/// A layer with all its options.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// By rising kept bytes, among equals the faster first; the first option keeps only the output.
    pub(crate) list: Vec<LayerOption>,
    /// Time of the layer's forward pass.
    pub(crate) forward_seconds: f64,
    /// Time of the layer's nodes that run again when it is dropped together with the next layer.
    pub(crate) passage_seconds: f64,
    /// Bytes of values that never run twice: every option keeps them, and they exist even when the layer is dropped.
    pub(crate) pinned_bytes: u64,
    /// Bytes of the layer's output, and so of the gradient of that output.
    pub(crate) boundary_bytes: u64,
    /// The frontiers at the turn.
    pub(crate) frontiers: Frontiers,
}

/// Bytes and times of one layer at the turn, `(bytes, seconds)`: when its output is kept, and when it must be recomputed too.
pub(crate) type Frontiers = [Vec<(u64, f64)>; 2];

impl Options {
    /// Bytes in which `layers` layers and a turn of `turn_peak` bytes run without recomputing anything.
    pub(crate) fn keep_all_bytes(&self, layers: usize, turn_peak: u64) -> u64 {
        let fastest = self.list.iter().min_by(|a, b| a.backward_seconds.total_cmp(&b.backward_seconds));
        fastest.map_or(turn_peak, |option| {
            // The peaks of the last layer include the values it keeps.
            let last = (option.kept_bytes + turn_peak).max(option.backward_peak).max(option.forward_peak);
            (layers as u64 - 1) * option.kept_bytes + last
        })
    }
}

/// All options of a layer of `graph`.
pub(crate) fn options(graph: &Graph, facts: &Facts, scratch: Scratch, layer: &Layer) -> Options {
    let sets = Sets::new(graph, facts, scratch, layer);
    let labels = sets.labels();
    let list = around_frontier(&sets.kept_on_passage(spread(&labels)), |keep| sets.option(keep));
    Options {
        list,
        forward_seconds: sets.seconds(&layer.forward),
        passage_seconds: sets.seconds(&sets.passage),
        pinned_bytes: sets.pinned_bytes,
        boundary_bytes: sets.boundary_bytes,
        frontiers: sets.frontiers(&labels),
    }
}

/// The frontiers of a layer, without its options. Finding them takes a fraction of the time that the options take, because
/// no peak is computed.
pub(crate) fn frontiers(graph: &Graph, facts: &Facts, scratch: Scratch, layer: &Layer) -> Frontiers {
    let sets = Sets::new(graph, facts, scratch, layer);
    sets.frontiers(&sets.labels())
}

/// A layer in parts, and the account of each set of them that may be kept.
struct Sets<'a> {
    graph: &'a Graph,
    facts: &'a Facts,
    scratch: Scratch,
    layer: &'a Layer,
    pinned: Pinned,
    pinned_bytes: u64,
    boundary_bytes: u64,
    passage: Vec<NodeId>,
    parts: Vec<Part>,
    /// The parts as the labels see them.
    ops: Vec<LabelOp>,
    /// Parts that the backward pass needs.
    demanded: Vec<usize>,
    /// Whether each is made on the way to the layer's output.
    on_passage: Vec<bool>,
    backward_seconds: f64,
}

impl<'a> Sets<'a> {
    fn new(graph: &'a Graph, facts: &'a Facts, scratch: Scratch, layer: &'a Layer) -> Sets<'a> {
        let pinned = Pinned::of(graph, layer);
        let parts = parts(graph, layer, &pinned);
        let passage = passage(graph, layer);
        let again: BTreeSet<NodeId> = passage.iter().copied().collect();
        Sets {
            pinned_bytes: pinned.bytes(graph, facts, layer, &[&layer.forward[..], &layer.backward]),
            boundary_bytes: aligned(graph.ty(layer.output).bytes() as u64, facts.alignment),
            ops: label_ops(graph, facts, scratch, layer, &parts),
            demanded: demanded(graph, layer, &parts, false),
            on_passage: parts.iter().map(|part| again.contains(&layer.forward[part.node])).collect(),
            backward_seconds: seconds(facts, scratch, &layer.backward),
            graph,
            facts,
            scratch,
            layer,
            pinned,
            passage,
            parts,
        }
    }

    /// Every set of kept parts that no other beats on bytes and time.
    fn labels(&self) -> Vec<Label> {
        frontier(&self.ops, &self.demanded, &LabelLimits::NONE)
    }

    /// Bytes and times of the labels, and of the labels for a layer whose output is recomputed too.
    fn frontiers(&self, labels: &[Label]) -> Frontiers {
        let Sets { graph, facts, layer, parts, .. } = self;
        let mut recomputed_ops = self.ops.clone();
        if let Some(output) = parts.iter().position(|part| part.values.contains(&layer.output)) {
            recomputed_ops[output].keepable = false;
        }
        let with_output = frontier(&recomputed_ops, &demanded(graph, layer, parts, true), &LabelLimits::NONE);
        // A value that only forward nodes read may be gone when the first gradient is made, so it is not counted.
        let surely = self.pinned.bytes(graph, facts, layer, &[&layer.backward]);
        let kept = surely + self.boundary_bytes;
        [
            labels.iter().map(|label| (label.bytes + kept, label.time)).collect(),
            with_output.iter().map(|label| (label.bytes + surely, label.time)).collect(),
        ]
    }

    /// The option that keeps these parts.
    fn option(&self, keep: &[usize]) -> LayerOption {
        let (forward_peak, again_peak, backward_peak) = self.peaks(values_of(&self.parts, keep));
        let own: u64 = keep.iter().map(|&position| self.ops[position].bytes).sum();
        LayerOption {
            keep: keep.to_vec(),
            kept_bytes: own + self.boundary_bytes + self.pinned_bytes,
            forward_peak,
            again_peak,
            backward_peak,
            backward_seconds: self.backward_seconds + closure_cost(&self.ops, &self.demanded, keep),
            on_passage: keep.iter().all(|&position| self.on_passage[position]),
        }
    }

    /// Most bytes alive in the forward pass, in a repeated forward pass and in the backward pass, when `kept` and the
    /// pinned values are held.
    fn peaks(&self, mut kept: Vec<Value>) -> (u64, u64, u64) {
        let Sets { graph, facts, scratch, layer, pinned, .. } = self;
        kept.extend(pinned.values());
        let of = |beside: &[Value]| peaks(graph, facts, *scratch, layer, &kept, beside);
        let (forward, backward) = of(&pinned.named);
        let again = if pinned.is_empty() { forward } else { of(&pinned.values().collect::<Vec<_>>()).0 };
        (forward, again, backward)
    }

    /// The labels; and for each label that keeps something off the way to the layer's output, a copy that does not keep
    /// it.
    fn kept_on_passage(&self, labels: Vec<Label>) -> Vec<Label> {
        let made = |position: &usize| self.on_passage[*position];
        let others = labels.iter().filter(|label| !label.keep.iter().all(made));
        let narrowed: Vec<Label> = others
            .map(|label| Label { keep: label.keep.iter().copied().filter(made).collect(), ..label.clone() })
            .collect();
        [labels, narrowed].concat()
    }

    fn seconds(&self, nodes: &[NodeId]) -> f64 {
        seconds(self.facts, self.scratch, nodes)
    }
}

/// Time of these nodes, each once.
fn seconds(facts: &Facts, scratch: Scratch, nodes: &[NodeId]) -> f64 {
    nodes.iter().map(|id| facts.nodes[id.index()].seconds_with(scratch)).sum()
}

/// Labels that become options: several layers taken together have far more than the table has use for.
const MOST_LABELS: usize = 100;

/// The labels, or a selection of them that always includes the first and the last.
fn spread(labels: &[Label]) -> Vec<Label> {
    let (count, most) = (labels.len(), labels.len().min(MOST_LABELS));
    (0..most).map(|index| labels[index * (count - 1) / (most - 1).max(1)].clone()).collect()
}

/// Options for every label and for sets that differ from a label in one kept node, without those that another beats on
/// all counts. Labels do not know peaks. Where a peak decides, a set that is beaten on bytes and time may be the only
/// one that fits; such sets lie next to the frontier.
pub(crate) fn around_frontier(
    labels: &[Label],
    option: impl Fn(&[usize]) -> LayerOption,
) -> Vec<LayerOption> {
    let keepable: BTreeSet<usize> = labels.iter().flat_map(|label| &label.keep).copied().collect();
    let mut sets: BTreeSet<Vec<usize>> = BTreeSet::new();
    for label in labels {
        sets.insert(label.keep.clone());
        for node in &keepable {
            let mut keep = label.keep.clone();
            match keep.binary_search(node) {
                Ok(at) => drop(keep.remove(at)),
                Err(at) => keep.insert(at, *node),
            }
            sets.insert(keep);
        }
    }
    let mut all: Vec<LayerOption> = sets.iter().map(|keep| option(keep)).collect();
    all.sort_by(|a, b| {
        let seconds = a.backward_seconds.total_cmp(&b.backward_seconds);
        let peaks = (a.backward_peak, a.forward_peak).cmp(&(b.backward_peak, b.forward_peak));
        a.kept_bytes.cmp(&b.kept_bytes).then(seconds).then(peaks)
    });
    let mut list: Vec<LayerOption> = Vec::new();
    for option in all {
        if !list.iter().any(|other| other.beats(&option)) {
            list.push(option);
        }
    }
    list
}

/// Time to recompute the demanded nodes that are not kept, with everything they need.
fn closure_cost(ops: &[LabelOp], demanded: &[usize], keep: &[usize]) -> f64 {
    let mut runs = vec![false; ops.len()];
    let mut wanted = demanded.to_vec();
    while let Some(op) = wanted.pop() {
        if !runs[op] && keep.binary_search(&op).is_err() {
            runs[op] = true;
            wanted.extend(&ops[op].deps);
        }
    }
    ops.iter().zip(runs).filter(|(_, runs)| *runs).map(|(op, _)| op.cost).sum()
}

/// A unit of decision for the labels: to keep some outputs of a forward node, or to run it again.
struct Part {
    /// The node's position in the layer.
    node: usize,
    /// The outputs of the node that are kept together or not at all.
    values: Vec<Value>,
    /// For a part of further outputs of a node: the index of the node's first part, which stands for its run.
    of_run: Option<usize>,
    keepable: bool,
    /// Whether it is pinned: it always exists, and there is nothing to decide.
    given: bool,
}

/// The parts of a layer. Outputs that the backward pass reads form one part: if one is missing, the node runs and makes
/// them all. Other outputs are needed only to recompute values made from them, and may be dropped alone. An example is
/// a norm whose result only the next op reads: the norm keeps its statistics.
fn parts(graph: &Graph, layer: &Layer, pinned: &Pinned) -> Vec<Part> {
    let (forward, backward) = (read_by(graph, layer, &layer.forward), read_by(graph, layer, &layer.backward));
    let mut parts: Vec<Part> = Vec::new();
    for (node, &id) in layer.forward.iter().enumerate() {
        let outputs = &graph.node(id).outputs;
        let together: Vec<Value> = outputs.iter().copied().filter(|value| backward.contains(value)).collect();
        let used = |value: &Value| forward.contains(value) || *value == layer.output;
        let alone = outputs.iter().copied().filter(|value| !together.contains(value) && used(value));
        let groups: Vec<Vec<Value>> = Some(together.clone())
            .filter(|group| !group.is_empty())
            .into_iter()
            .chain(alone.map(|value| vec![value]))
            .collect();
        let run = parts.len();
        let part = |values: Vec<Value>, of_run, keepable| {
            let given = !values.is_empty() && values.iter().all(|value| pinned.contains(*value));
            Part { node, values, of_run, keepable: keepable && !given && !graph.gathers(id), given }
        };
        if groups.len() < 2 || graph.node(id).op.is_once() {
            parts.push(part(outputs.clone(), None, true));
        } else {
            parts.push(part(Vec::new(), None, false));
            parts.extend(groups.into_iter().map(|values| part(values, Some(run), true)));
        }
    }
    parts
}

/// The parts as the labels see them. A kept part takes the bytes of its outputs, except outputs that the layer does not
/// read.
fn label_ops(graph: &Graph, facts: &Facts, scratch: Scratch, layer: &Layer, parts: &[Part]) -> Vec<LabelOp> {
    let (forward, backward) = (read_by(graph, layer, &layer.forward), read_by(graph, layer, &layer.backward));
    let bytes = |value: &Value| aligned(graph.ty(*value).bytes() as u64, facts.alignment);
    let op = |part: &Part| {
        if part.given {
            return LabelOp { deps: Vec::new(), bytes: 0, cost: 0.0, keepable: false };
        }
        let id = layer.forward[part.node];
        let read = part.values.iter().filter(|value| forward.contains(value) || backward.contains(value));
        let holder =
            |&value: &Value| parts.iter().position(|part| part.values.contains(&graph.storage(value)));
        let mut deps: Vec<usize> = match part.of_run {
            Some(run) => vec![run],
            None => graph.node(id).inputs.iter().filter_map(holder).collect(),
        };
        deps.sort_unstable();
        deps.dedup();
        let cost = if part.of_run.is_some() { 0.0 } else { facts.nodes[id.index()].seconds_with(scratch) };
        LabelOp { deps, bytes: read.map(bytes).sum(), cost, keepable: part.keepable }
    };
    parts.iter().map(op).collect()
}

/// Storage values of the layer's forward pass that `readers` read.
fn read_by(graph: &Graph, layer: &Layer, readers: &[NodeId]) -> BTreeSet<Value> {
    let inputs = readers.iter().flat_map(|&id| &graph.node(id).inputs);
    inputs
        .map(|&value| graph.storage(value))
        .filter(|&value| graph.producer(value).is_some_and(|producer| layer.forward.contains(&producer)))
        .collect()
}

/// Positions of the parts that the backward pass needs, and of the output's if it must be recomputed.
fn demanded(graph: &Graph, layer: &Layer, parts: &[Part], output_too: bool) -> Vec<usize> {
    let read = read_by(graph, layer, &layer.backward);
    let wanted = |value: &Value| read.contains(value) || (output_too && *value == layer.output);
    (0..parts.len()).filter(|&part| parts[part].values.iter().any(wanted)).collect()
}

/// The values an option keeps, by storage.
pub(crate) fn kept_values(graph: &Graph, layer: &Layer, keep: &[usize]) -> Vec<Value> {
    values_of(&parts(graph, layer, &Pinned::of(graph, layer)), keep)
}

fn values_of(parts: &[Part], keep: &[usize]) -> Vec<Value> {
    keep.iter().flat_map(|&part| parts[part].values.iter().copied()).collect()
}

/// All results of a layer's forward pass that may be kept.
pub(crate) fn all_values(graph: &Graph, layer: &Layer) -> Vec<Value> {
    let kept = layer.forward.iter().filter(|&&id| !graph.gathers(id));
    kept.flat_map(|&id| graph.node(id).outputs.iter().copied()).collect()
}

/// Whether all contributions to a transient gradient, and so its whole life, belong to `layer`.
pub(crate) fn made_within(graph: &Graph, state: StateId, layer: &Layer) -> bool {
    let mut writers = graph.state(state).versions.iter().filter_map(|&version| graph.producer(version));
    writers.all(|writer| layer.backward.contains(&writer))
}

/// Most bytes alive in the forward and in the backward pass of a layer that keeps `kept`, not counting those of
/// `beside`.
pub(crate) fn peaks(
    graph: &Graph,
    facts: &Facts,
    scratch: Scratch,
    layer: &Layer,
    kept: &[Value],
    beside: &[Value],
) -> (u64, u64) {
    let sequence = recompute::part(graph, &layer.forward, &layer.backward, kept);
    let lifetimes = Lifetimes::of_part(graph, facts, scratch, &sequence);
    let among = recompute::members(graph, layer.forward.iter().chain(&layer.backward));
    // A gather is two actions: it begins and is awaited.
    let gathers = layer.forward.iter().filter(|&&id| graph.gathers(id)).count();
    let turn = layer.forward.len() + gathers;
    // One entry per slot: the time its counted buffers span.
    let mut spans: Vec<Option<Slot>> = vec![None; lifetimes.slots.len()];
    for (buffer, slot) in lifetimes.schedule.buffers.iter().zip(&lifetimes.slot_of) {
        let Some(slot) = *slot else { continue };
        let (mut start, mut end) = (buffer.start, buffer.end);
        if matches!(buffer.contents, Contents::State(state) if !made_within(graph, state, layer)) {
            continue;
        }
        if let Contents::Value(value) = buffer.contents {
            let own = graph.producer(value).is_some_and(|node| among[node.index()]);
            match graph.value(value).source {
                ValueSource::Input | ValueSource::State => continue,
                ValueSource::Node { .. } if value == layer.input || beside.contains(&value) => continue,
                // A value from outside that is not the input is the gradient that arrives at the turn.
                ValueSource::Node { .. } if !own => start = start.max(turn),
                ValueSource::Node { .. } if value == layer.output && start < turn => end = end.max(turn),
                ValueSource::Node { .. } => {}
            }
        }
        let span = spans[slot].get_or_insert(Slot { start, end, bytes: buffer.bytes });
        (span.start, span.end) = (span.start.min(start), span.end.max(end));
    }
    let spans: Vec<Slot> = spans.into_iter().flatten().filter(|slot| slot.start < slot.end).collect();
    let live = live_bytes(&spans);
    let most = |range: &[u64]| range.iter().copied().max().unwrap_or(0);
    let turn = turn.min(live.len());
    (most(&live[..turn]), most(&live[turn..]))
}
