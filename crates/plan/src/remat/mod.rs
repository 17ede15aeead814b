//! The planner on an abstract training graph: the cheapest schedule that stays inside a byte budget, and
//! a proof of how far from optimal it can be.
//!
//! The graph is that of Checkmate (Jain et al., 2020): nodes with a cost and an output in bytes, edges
//! that say which node reads which. The rules:
//!
//! - ids are a topological order;
//! - a forward node (`backward: false`) runs at least once and may run again;
//! - a backward node runs exactly once, and backward nodes run in the order of their ids;
//! - a node runs when the outputs it reads are resident; while it runs, everything resident and its own output count,
//!   and the sum never exceeds the budget. Graphs of real kernels state for each node the bytes it takes while it runs:
//!   scratch makes them more than the output, writing in place makes them less;
//! - an output may be dropped at any time; parameters are not counted.
//!
//! The method, in processing order:
//!
//! ```text
//! parse          node-link JSON                      -> Dag
//! search_graph   rerunnable nodes against once-nodes -> bit sets
//! labels         exact frontier of kept bytes against recompute time at one instant
//! bound          labels at every instant that must come, chained: no schedule is cheaper
//! lazy           a kept set -> a schedule, by lazy recomputation
//! search         best-first over (position, resident set): better schedules, and where it ends a proof
//! simulate       the judge: cost, peak and legality of any schedule, sharing no code with the rest
//! solver         all of these at one budget
//! ladder         without a proof, the cheapest over fixed budgets: more memory never costs more
//! plan_dag       one budget, with an error that names the smallest that works
//! pool, budgeted many budgets of one graph, for the search over plans of real graphs
//! work           the work of a whole plan, counted
//! ```
//!
//! Checkmate solves a mixed-integer program over stages, Moccasin (Bartan et al., 2023) a constraint program over
//! retention intervals; both take minutes on graphs of some hundred nodes. Here the labels give a near-optimal kept set
//! in milliseconds, since the cheap things to recompute are few, and the search repairs what a single instant cannot
//! see (peaks late in the backward pass).
//!
//! Nothing here knows a tensor, a device or a schedule of this crate's other folders: the folder imports none of them and
//! could be a crate.
//!
//! Deliberately absent: offload, operator variants, sharing of buffers between outputs, and clocks. The
//! search stops after a number of steps, so the same graph and budget always give the same plan.

mod bound;
mod budgeted;
mod labels;
mod ladder;
mod lazy;
#[cfg(test)]
pub(crate) mod oracle;
mod parse;
mod plan_dag;
mod pool;
mod search;
mod search_graph;
mod set;
mod simulate;
mod solver;
mod work;

pub(crate) use budgeted::{Budgeted, Care};
pub use labels::{Label, LabelLimits, LabelOp, Thinning, frontier};
pub use parse::{ParseError, parse};
pub use plan_dag::{Unplannable, plan_dag};
pub use simulate::{DagStep, Outcome, Violation, simulate};
pub use solver::{DagEffort, DagPlan};

/// A training graph: nodes in topological order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dag {
    /// The nodes; an index into this list is a node's identity.
    pub nodes: Vec<DagNode>,
}

/// One operation and its output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DagNode {
    /// The operation's name.
    pub name: String,
    /// Whether it belongs to the backward pass and so runs exactly once, in order.
    pub backward: bool,
    /// Time of one run, in any unit; finite and not negative.
    pub cost: f64,
    /// Size of the output.
    pub bytes: u64,
    /// Bytes it takes while it runs, beside the resident ones: its output, plus scratch, less the inputs whose bytes
    /// the output can take over.
    pub running: u64,
    /// The nodes whose outputs this one reads: earlier in the list, each once.
    pub sources: Vec<usize>,
}

impl Dag {
    /// How many nodes may run again.
    pub fn forward_nodes(&self) -> usize {
        self.nodes.iter().filter(|node| !node.backward).count()
    }

    /// Cost of running every node once.
    pub fn base_cost(&self) -> f64 {
        self.nodes.iter().map(|node| node.cost).sum()
    }

    /// The schedule that runs every node once in order and drops each output after its last reader.
    pub fn keep_all(&self) -> Vec<DagStep> {
        let mut last = (0..self.nodes.len()).collect::<Vec<_>>();
        for (id, node) in self.nodes.iter().enumerate() {
            for &source in &node.sources {
                last[source] = id;
            }
        }
        let mut steps = Vec::with_capacity(2 * self.nodes.len());
        for (id, node) in self.nodes.iter().enumerate() {
            steps.push(DagStep::Run(id));
            steps.extend(
                node.sources.iter().chain([&id]).filter(|&&v| last[v] == id).map(|&v| DagStep::Drop(v)),
            );
        }
        steps
    }

    /// A chain of `length` unit nodes, a loss and `length` unit gradients: the example on which exact
    /// planners are compared. The gradient of node `i` reads its output and the gradient before it.
    pub fn unit_chain(length: usize) -> Dag {
        let node = |name: String, backward: bool, sources: Vec<usize>| DagNode {
            name,
            backward,
            cost: 1.0,
            bytes: 1,
            running: 1,
            sources,
        };
        let mut nodes: Vec<DagNode> = (0..length)
            .map(|id| node(format!("f{id}"), false, id.checked_sub(1).into_iter().collect()))
            .collect();
        nodes.push(node("loss".to_owned(), true, length.checked_sub(1).into_iter().collect()));
        for (id, of) in (0..length).rev().enumerate().map(|(index, of)| (length + 1 + index, of)) {
            nodes.push(node(format!("b{of}"), true, vec![of, id - 1]));
        }
        Dag { nodes }
    }
}
