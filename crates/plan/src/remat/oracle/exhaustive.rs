//! The slow, obvious twin, for tests: the cheapest schedule of a small graph by Dijkstra's algorithm over (nodes that
//! have run, nodes that are resident), one run or drop at a time, straight from the rules.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::remat::{Dag, DagNode};

/// Numbers that look random and are the same on every machine (`SplitMix64`).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % limit as u64) as usize
    }
}

/// A small training graph with integer costs: forward nodes, then backward nodes that read both kinds. Some graphs have
/// nodes that are never read, and some a forward node after a backward one.
pub(crate) fn random_dag(seed: u64) -> Dag {
    let dice = &mut Dice(seed);
    let (forward, backward) = (1 + dice.below(5), 1 + dice.below(4));
    let chain = dice.below(2) == 0;
    let odd = dice.below(8) == 0;
    let mut nodes: Vec<DagNode> = Vec::new();
    for id in 0..forward + backward {
        let late = odd && id + 1 == forward + backward && id > forward;
        let mut sources: Vec<usize> =
            (0..id).filter(|&source| chain && source + 1 == id || dice.below(3) == 0).collect();
        if id >= forward {
            let mirror = (forward + backward - 1 - id).min(forward - 1);
            sources.push(mirror);
        }
        sources.sort_unstable();
        sources.dedup();
        let (cost, bytes) = ((1 + dice.below(6)) as f64, (1 + dice.below(5)) as u64);
        let (name, backward) = (format!("n{id}"), id >= forward && !late);
        nodes.push(DagNode { name, backward, cost, bytes, running: bytes, sources });
    }
    Dag { nodes }
}

/// The same graph with kernels that need scratch or write in place.
pub(crate) fn random_kernels(seed: u64) -> Dag {
    let (mut dag, dice) = (random_dag(seed), &mut Dice(!seed));
    for node in &mut dag.nodes {
        node.running = dice.below(node.bytes as usize + 3) as u64;
    }
    dag
}

/// Cost of the cheapest schedule whose peak is at most `memory`; `None` if there is none.
pub(crate) fn optimum(dag: &Dag, memory: u64) -> Option<f64> {
    let count = dag.nodes.len();
    let all = (1u32 << count) - 1;
    let sources: Vec<u32> =
        dag.nodes.iter().map(|node| node.sources.iter().fold(0, |m, &s| m | 1 << s)).collect();
    let bytes =
        |set: u32| (0..count).filter(|&id| set >> id & 1 == 1).map(|id| dag.nodes[id].bytes).sum::<u64>();
    let mut best: BTreeMap<(u32, u32), u64> = BTreeMap::from([((0, 0), 0)]);
    let mut open = BinaryHeap::from([Reverse((0u64, 0u32, 0u32))]);
    while let Some(Reverse((cost, ran, resident))) = open.pop() {
        if ran == all {
            return Some(cost as f64);
        }
        if best[&(ran, resident)] < cost {
            continue;
        }
        let mut reach = |cost: u64, ran: u32, resident: u32| {
            let known = best.entry((ran, resident)).or_insert(u64::MAX);
            if cost < *known {
                *known = cost;
                open.push(Reverse((cost, ran, resident)));
            }
        };
        for (id, node) in dag.nodes.iter().enumerate() {
            let bit = 1u32 << id;
            if resident & bit != 0 {
                reach(cost, ran, resident & !bit);
                continue;
            }
            let in_order = !node.backward
                || (0..=id)
                    .all(|other| !dag.nodes[other].backward || (ran >> other & 1 == 1) == (other < id));
            let fits = bytes(resident) + node.running <= memory;
            if in_order && fits && sources[id] & !resident == 0 {
                reach(cost + node.cost as u64, ran | bit, resident | bit);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_chains_cost_what_the_rules_say() {
        // With three slots nothing but the running pair fits: f0 f1 loss, f0 again for b0 costs one more.
        assert_eq!(optimum(&Dag::unit_chain(2), 4), Some(5.0));
        assert_eq!(optimum(&Dag::unit_chain(2), 3), Some(6.0));
        assert_eq!(optimum(&Dag::unit_chain(2), 2), None);
    }
}
