//! The judge: replays an explicit schedule under the rules of the graph and returns its cost.
//!
//! It knows nothing of how schedules are found and shares no code with the search. Every plan passes
//! through here before it leaves the planner.

use super::Dag;

/// One action of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DagStep {
    /// Run a node; its output is resident afterwards.
    Run(usize),
    /// Give up a resident output.
    Drop(usize),
}

/// Cost and peak of a legal schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Sum of the costs of all runs.
    pub cost: f64,
    /// Most bytes in use while a node ran: the resident outputs, and the node's own bytes.
    pub peak: u64,
}

/// How a schedule breaks the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A step names a node that does not exist.
    UnknownNode(usize),
    /// A node ran without one of the outputs it reads.
    Missing {
        /// The node that ran.
        node: usize,
        /// The node whose output was missing.
        source: usize,
    },
    /// A backward node ran a second time, or out of order.
    BackwardOrder(usize),
    /// A node ran although its output was still there.
    StillResident(usize),
    /// An output was dropped that was not there.
    NotResident(usize),
    /// A node never ran.
    NeverRan(usize),
}

/// Replays `schedule` on `dag`.
pub fn simulate(dag: &Dag, schedule: &[DagStep]) -> Result<Outcome, Violation> {
    let count = dag.nodes.len();
    let mut resident = vec![false; count];
    let mut ran = vec![false; count];
    let mut last_backward = None;
    let mut outcome = Outcome { cost: 0.0, peak: 0 };
    let mut live: u64 = 0;
    for &step in schedule {
        match step {
            DagStep::Run(id) | DagStep::Drop(id) if id >= count => return Err(Violation::UnknownNode(id)),
            DagStep::Run(id) => {
                let node = &dag.nodes[id];
                if let Some(&source) = node.sources.iter().find(|&&source| !resident[source]) {
                    return Err(Violation::Missing { node: id, source });
                }
                if resident[id] {
                    return Err(Violation::StillResident(id));
                }
                if node.backward {
                    if last_backward.is_some_and(|last| last >= id) {
                        return Err(Violation::BackwardOrder(id));
                    }
                    last_backward = Some(id);
                }
                resident[id] = true;
                ran[id] = true;
                outcome.cost += node.cost;
                outcome.peak = outcome.peak.max(live + node.running);
                live += node.bytes;
            }
            DagStep::Drop(id) => {
                if !resident[id] {
                    return Err(Violation::NotResident(id));
                }
                resident[id] = false;
                live -= dag.nodes[id].bytes;
            }
        }
    }
    match ran.iter().position(|&ran| !ran) {
        Some(id) => Err(Violation::NeverRan(id)),
        None => Ok(outcome),
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "costs here are whole numbers")]
mod tests {
    use super::*;
    use DagStep::{Drop, Run};

    #[test]
    fn keeping_everything_costs_the_base_and_peaks_at_the_turn() {
        let dag = Dag::unit_chain(4);
        let outcome = simulate(&dag, &dag.keep_all()).unwrap();
        assert_eq!(outcome.cost, dag.base_cost());
        // Four outputs and the loss while the last gradient is made: b3 reads f3 and the loss.
        assert_eq!(outcome.peak, 6);
    }

    #[test]
    fn each_rule_has_its_violation() {
        let dag = Dag::unit_chain(1); // f0, loss, b0
        assert_eq!(simulate(&dag, &[Run(1)]), Err(Violation::Missing { node: 1, source: 0 }));
        assert_eq!(simulate(&dag, &[Run(0), Run(0)]), Err(Violation::StillResident(0)));
        assert_eq!(simulate(&dag, &[Drop(0)]), Err(Violation::NotResident(0)));
        assert_eq!(simulate(&dag, &[Run(0), Run(1)]), Err(Violation::NeverRan(2)));
        assert_eq!(simulate(&dag, &[Run(3)]), Err(Violation::UnknownNode(3)));
        let twice = [Run(0), Run(1), Drop(1), Run(1)];
        assert_eq!(simulate(&dag, &twice), Err(Violation::BackwardOrder(1)));
        let again = [Run(0), Run(1), Drop(0), Run(0), Run(2)];
        assert_eq!(simulate(&dag, &again), Ok(Outcome { cost: 4.0, peak: 3 }));
    }
}
