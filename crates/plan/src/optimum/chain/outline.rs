//! A chain's outline: a lower bound on the time of its schedules, and whether the chain is long. Both follow from the graph
//! alone.
//!
//! The bound rules out most micro-batches of a search. Only for the others are the sets of values listed that a layer may
//! keep: that takes many times as long, because the peak of each set is computed.

use plimsoll_graph::{Graph, NodeId, Phase};

use super::beside::{last_operands, turn_operands};
use super::bound::{LowerBound, Passes};
use super::find::Chain;
use super::options::frontiers;
use super::passage::passage;
use super::{MOST_RUNS, passages};
use crate::bytes::TransientBytes;
use crate::device::{Facts, Link, Scratch};

/// A chain before the options of its layers are listed.
#[derive(Debug)]
pub(crate) struct Outline {
    /// Bounds for the moment at which all layers wait, and for the moments at which all but the last wait.
    moments: [Moment; 2],
    /// Whether keeping nothing takes too many runs.
    pub(super) long: bool,
    /// Time of everything once.
    pub(super) once_seconds: f64,
    /// Time of all forward nodes, each once.
    pub(super) forward_seconds: f64,
}

/// A moment that occurs in every schedule, while layers wait for their backward pass.
#[derive(Debug)]
struct Moment {
    /// The bound of those layers as a function of their bytes.
    bound: LowerBound,
    /// Bytes beside those that the layers hold.
    beside: u64,
}

impl Outline {
    /// The outline of a chain that was found in `graph`.
    pub(crate) fn new(graph: &Graph, facts: &Facts, scratch: Scratch, chain: &Chain) -> Outline {
        let layers = chain.layers.len();
        // Layers are equal, but the first reads a boundary made outside; one from the middle represents all.
        let layer = &chain.layers[layers / 2];
        let seconds = |id: NodeId| facts.nodes[id.index()].seconds_with(scratch);
        let runs = || graph.node_ids().filter(|&id| !graph.node(id).op.is_view());
        let once: f64 = runs().filter(|&id| graph.node(id).phase != Phase::Update).map(seconds).sum();
        let all: f64 = runs().filter(|&id| graph.node(id).phase == Phase::Forward).map(seconds).sum();
        let one: f64 = layer.forward.iter().map(|&id| seconds(id)).sum();
        let forward = Passes { layers: layers as f64 * one, all };
        let frontiers = frontiers(graph, facts, scratch, layer);
        let moment = |layers: usize, beside: u64| {
            let bound = LowerBound::new(&frontiers, layers, once, forward);
            Moment { bound, beside }
        };
        Outline {
            moments: [
                moment(layers, turn_operands(graph, facts, chain)),
                moment(layers - 1, last_operands(graph, facts, chain)),
            ],
            long: passages(layers).saturating_mul(passage(graph, layer).len()) > MOST_RUNS,
            once_seconds: once,
            forward_seconds: all,
        }
    }

    /// A lower bound on the time of any schedule of a micro-batch in these bytes, with transfers over `link`.
    pub(crate) fn lower_bound(&self, bytes: TransientBytes, link: Option<&Link>) -> f64 {
        let [turn, last] = &self.moments;
        let left = |moment: &Moment| bytes.0.saturating_sub(moment.beside);
        match link {
            Some(link) => turn.bound.seconds_with(left(turn), link),
            None => turn.bound.seconds(left(turn)).max(last.bound.seconds(left(last))),
        }
    }

    /// Whether the chain is so long that the search tries fewer combinations.
    pub(crate) fn is_long(&self) -> bool {
        self.long
    }
}
