//! The graph as the search sees it: forward nodes that may run again, and once-nodes in a fixed order.
//!
//! Once-nodes are the backward nodes and two oddities the format allows. The first are forward nodes that read a
//! backward output: running them again would need that output kept, which no planner here considers. The second are
//! forward nodes that no backward node depends on: they must run, and a second run gains nothing. Running an oddity
//! once, in the place its id gives it, is legal but not always best. For the lower bound they are therefore taken out
//! ([`Oddities::Removed`]): any schedule of the whole graph contains one of the graph without them, whose cost is
//! smaller by at least one run of each.
//!
//! ```text
//! position      0        1        2            once-nodes in order
//! forward    a b c …
//! held[p]                g0       g0 g1        outputs of earlier once-nodes still read from p on
//! useful[p]  a b c      a b c    a b           forward nodes that p or a later once-node builds on
//! ```

use super::Dag;
use super::set::Set;

/// The treatment of forward nodes that are not simply rerunnable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Oddities {
    /// Oddities run once, in the order of their ids.
    Once,
    /// Oddities are left out; their cost is counted.
    Removed,
}

/// A compiled graph. Forward nodes are numbered from 0 in topological order, once-nodes likewise.
pub(crate) struct SearchGraph<const W: usize> {
    /// Graph id of each forward node.
    pub(crate) forward_ids: Vec<usize>,
    /// Graph id of each once-node.
    pub(crate) once_ids: Vec<usize>,
    /// Cost of each forward node.
    pub(crate) cost: Vec<f64>,
    /// Output size of each forward node.
    pub(crate) bytes: Vec<u64>,
    /// Bytes each forward node takes while it runs.
    pub(crate) running: Vec<u64>,
    /// The forward nodes that each forward node reads.
    pub(crate) sources: Vec<Set<W>>,
    /// Forward outputs that each once-node reads.
    pub(crate) needs: Vec<Set<W>>,
    /// For each position, the forward outputs that once-nodes from there on read; one entry more than positions.
    pub(crate) later: Vec<Set<W>>,
    /// Bytes each once-node takes while it runs.
    pub(crate) once_running: Vec<u64>,
    /// Bytes of earlier once-outputs that are still read at or after each position.
    pub(crate) held: Vec<u64>,
    /// Earlier once-outputs that are still read at or after each position.
    pub(crate) held_ids: Vec<Vec<usize>>,
    /// Forward nodes that a once-node at or after each position depends on; one entry more than positions.
    pub(crate) useful: Vec<Set<W>>,
    /// Cost of everything that runs exactly once, removed nodes included.
    pub(crate) fixed_cost: f64,
    /// Whether the graph had any oddity.
    pub(crate) odd: bool,
}

impl<const W: usize> SearchGraph<W> {
    pub(crate) fn new(dag: &Dag, oddities: Oddities) -> SearchGraph<W> {
        let kinds = classify(dag, oddities);
        let of_kind =
            |kind: Kind| -> Vec<usize> { (0..dag.nodes.len()).filter(|&id| kinds[id] == kind).collect() };
        let (forward_ids, once_ids) = (of_kind(Kind::Forward), of_kind(Kind::Once));
        let number = numbers(&forward_ids, dag.nodes.len());
        let forward_sources = |&id: &usize| -> Set<W> {
            dag.nodes[id].sources.iter().filter_map(|&source| number[source]).collect()
        };
        let sources: Vec<Set<W>> = forward_ids.iter().map(forward_sources).collect();
        let needs: Vec<Set<W>> = once_ids.iter().map(forward_sources).collect();
        let mut useful = vec![Set::EMPTY; once_ids.len() + 1];
        let mut later = useful.clone();
        for position in (0..once_ids.len()).rev() {
            later[position] = later[position + 1].union(&needs[position]);
            let mut built_on = useful[position + 1].union(&needs[position]);
            for node in (0..forward_ids.len()).rev() {
                if built_on.contains(node) {
                    built_on = built_on.union(&sources[node]);
                }
            }
            useful[position] = built_on;
        }
        let held_ids = held(dag, &once_ids);
        let removed = of_kind(Kind::Removed).iter().map(|&id| dag.nodes[id].cost).sum::<f64>();
        SearchGraph {
            cost: forward_ids.iter().map(|&id| dag.nodes[id].cost).collect(),
            bytes: forward_ids.iter().map(|&id| dag.nodes[id].bytes).collect(),
            running: forward_ids.iter().map(|&id| dag.nodes[id].running).collect(),
            once_running: once_ids.iter().map(|&id| dag.nodes[id].running).collect(),
            held: held_ids.iter().map(|ids| ids.iter().map(|&id| dag.nodes[id].bytes).sum()).collect(),
            fixed_cost: removed + once_ids.iter().map(|&id| dag.nodes[id].cost).sum::<f64>(),
            odd: (0..dag.nodes.len()).any(|id| !dag.nodes[id].backward && kinds[id] != Kind::Forward),
            sources,
            needs,
            later,
            held_ids,
            useful,
            forward_ids,
            once_ids,
        }
    }

    /// Bytes of a set of forward outputs.
    pub(crate) fn size(&self, set: &Set<W>) -> u64 {
        set.iter().map(|node| self.bytes[node]).sum()
    }

    /// The forward nodes that must run, given the resident outputs, before all of `wanted` is resident.
    pub(crate) fn missing(&self, wanted: &Set<W>, resident: &Set<W>) -> Set<W> {
        let mut missing = Set::EMPTY;
        let mut open = wanted.minus(resident);
        while let Some(node) = open.first() {
            missing.insert(node);
            open = open.union(&self.sources[node]).minus(resident).minus(&missing);
        }
        missing
    }

    /// A lower bound on the memory of every schedule: the most bytes that a single node needs to run.
    pub(crate) fn least_memory(&self) -> u64 {
        let forward =
            (0..self.forward_ids.len()).map(|node| self.running[node] + self.size(&self.sources[node]));
        let once = (0..self.once_ids.len()).map(|position| {
            self.once_running[position] + self.held[position] + self.size(&self.needs[position])
        });
        forward.chain(once).max().unwrap_or(0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Forward,
    Once,
    Removed,
}

fn classify(dag: &Dag, oddities: Oddities) -> Vec<Kind> {
    let count = dag.nodes.len();
    let mut late = vec![false; count];
    for (id, node) in dag.nodes.iter().enumerate() {
        late[id] = node.backward || node.sources.iter().any(|&source| late[source]);
    }
    // A forward node is worth running again if a once-node that is not left out depends on it.
    let once = |id: usize| dag.nodes[id].backward || (late[id] && oddities == Oddities::Once);
    let mut alive = vec![false; count];
    for id in (0..count).rev() {
        if once(id) || (alive[id] && !late[id]) {
            dag.nodes[id].sources.iter().for_each(|&source| alive[source] = true);
        }
    }
    let odd = if oddities == Oddities::Once { Kind::Once } else { Kind::Removed };
    let kind = |id: usize| match (&dag.nodes[id], late[id], alive[id]) {
        (node, _, _) if node.backward => Kind::Once,
        (_, false, true) => Kind::Forward,
        _ => odd,
    };
    (0..count).map(kind).collect()
}

fn numbers(ids: &[usize], count: usize) -> Vec<Option<usize>> {
    let mut number = vec![None; count];
    for (index, &id) in ids.iter().enumerate() {
        number[id] = Some(index);
    }
    number
}

/// For each position among the nodes that run once, the earlier ones whose outputs are read at this position or later.
fn held(dag: &Dag, once_ids: &[usize]) -> Vec<Vec<usize>> {
    let position = numbers(once_ids, dag.nodes.len());
    let mut held = vec![Vec::new(); once_ids.len()];
    let mut last = vec![0; once_ids.len()];
    for (reader, &id) in once_ids.iter().enumerate() {
        for source in dag.nodes[id].sources.iter().filter_map(|&source| position[source]) {
            last[source] = reader;
        }
    }
    for (from, &until) in last.iter().enumerate() {
        for at in held.iter_mut().take(until + 1).skip(from + 1) {
            at.push(once_ids[from]);
        }
    }
    held
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "costs here are whole numbers")]
mod tests {
    use super::*;
    use crate::remat::DagNode;

    fn node(backward: bool, sources: &[usize]) -> DagNode {
        DagNode { name: String::new(), backward, cost: 1.0, bytes: 1, running: 1, sources: sources.to_vec() }
    }

    #[test]
    fn oddities_run_once_or_are_counted_and_left_out() {
        // Node 1 is never read, 4 reads a backward node, and 3 is read by 4 alone.
        let nodes = vec![
            node(false, &[]),
            node(false, &[0]),
            node(true, &[0]),
            node(false, &[0]),
            node(false, &[2, 3]),
        ];
        let dag = Dag { nodes };
        let once: SearchGraph<1> = SearchGraph::new(&dag, Oddities::Once);
        assert_eq!((once.forward_ids, once.once_ids), (vec![0, 3], vec![1, 2, 4]));
        let removed: SearchGraph<1> = SearchGraph::new(&dag, Oddities::Removed);
        assert_eq!((removed.forward_ids, removed.once_ids), (vec![0], vec![2]));
        assert_eq!(removed.fixed_cost, 4.0);
        assert!(removed.odd);
    }

    #[test]
    fn a_chain_holds_one_gradient_at_a_time() {
        let graph: SearchGraph<1> = SearchGraph::new(&Dag::unit_chain(3), Oddities::Once);
        assert_eq!(graph.held, [0, 1, 1, 1]);
        assert_eq!(graph.useful[3].iter().collect::<Vec<_>>(), [0]);
        assert_eq!(graph.least_memory(), 3);
        let missing = graph.missing(&Set::EMPTY.with(2), &Set::EMPTY.with(0));
        assert_eq!(missing.iter().collect::<Vec<_>>(), [1, 2]);
    }
}
