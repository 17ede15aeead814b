//! Plans one program for any transient budget: by table for chains, by graph search otherwise.

mod chain;
mod graph;

use plimsoll_graph::Graph;

use crate::device::{Link, Scratch};
use crate::program::Costed;
use crate::recompute::{Order, Strategy};

pub(crate) use chain::{ChainPlanner, is_chain};
pub(crate) use graph::GraphPlanner;

/// Ratios of neighbouring budgets where what does not fit waits on a tier. Each of a graph is a search of its own.
const CHAIN_RUNG: f64 = 1.1;
const GRAPH_RUNG: f64 = 1.25;

/// A planner for transient budgets.
#[derive(Debug)]
pub(crate) enum Planner {
    /// Equal layers, one behind the other.
    Chain(Box<ChainPlanner>),
    /// Anything else.
    Graph(Box<GraphPlanner>),
}

impl Planner {
    /// The planner of a program for budgets up to `cap`; none when it is no chain and too large to be anything else.
    pub(crate) fn new(part: &Costed, scratch: Scratch, cap: u64) -> Option<Planner> {
        let graph = || GraphPlanner::new(part, scratch).map(|planner| Planner::Graph(Box::new(planner)));
        let chain = || {
            let planner = ChainPlanner::new(&part.graph, &part.facts, scratch, cap)?;
            Some(Planner::Chain(Box::new(planner)))
        };
        // Of a graph that is too large, equal layers are at least a part.
        if is_chain(&part.graph) { chain() } else { graph().or_else(chain) }
    }

    /// Predicted time of a micro-batch in `bytes` of transient memory; infinite when it does not fit.
    pub(crate) fn seconds(&self, bytes: u64) -> f64 {
        match self {
            Planner::Chain(chain) => chain.seconds(bytes),
            Planner::Graph(graph) => graph.seconds(bytes),
        }
    }

    /// The order of the plan in `bytes` of transient memory.
    pub(crate) fn order(&self, graph: &Graph, bytes: u64) -> Option<Order> {
        match self {
            Planner::Chain(chain) => chain.regions(graph, bytes).map(Order::Regions),
            Planner::Graph(graph) => graph.order(bytes),
        }
    }

    /// No schedule of a micro-batch is faster in `bytes` of transient memory and what `link` carries.
    pub(crate) fn lower_bound(&self, bytes: u64, link: Option<&Link>) -> f64 {
        match self {
            Planner::Chain(chain) => chain.lower_bound(bytes, link),
            Planner::Graph(graph) => graph.lower_bound(bytes, link),
        }
    }

    /// Budgets to ask for where what does not fit waits on a tier, falling, each slower than the one before.
    pub(crate) fn virtual_rungs(&self) -> Vec<u64> {
        let (most, ratio, least) = match self {
            Planner::Chain(chain) => (chain.most_bytes().unwrap_or(u64::MAX), CHAIN_RUNG, 1),
            Planner::Graph(graph) => (graph.most_bytes(), GRAPH_RUNG, graph.enough_bytes()),
        };
        let top = ((most as f64).ln() / ratio.ln()).floor() as i32;
        let mut rungs: Vec<u64> = (0..=top).rev().map(|rung| ratio.powi(rung) as u64).collect();
        rungs.retain(|&rung| rung >= least && self.seconds(rung).is_finite());
        rungs.dedup_by_key(|&mut rung| self.seconds(rung).to_bits());
        rungs
    }

    /// Transient bytes in which nothing is rebuilt.
    pub(crate) fn keep_all_bytes(&self) -> u64 {
        match self {
            Planner::Chain(chain) => chain.keep_all_bytes(),
            Planner::Graph(graph) => graph.most_bytes(),
        }
    }

    /// A micro-batch under a strategy with a fixed rule takes no less.
    pub(crate) fn least_seconds(&self, strategy: Strategy) -> f64 {
        match self {
            Planner::Chain(chain) if strategy == Strategy::Minimal => chain.minimal_seconds(),
            _ => 0.0,
        }
    }
}
