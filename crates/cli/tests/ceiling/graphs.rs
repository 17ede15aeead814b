//! Graphs for `plan --dag` that no network has: every search has work without end in them.

use serde_json::{Value, json};

use super::{Ended, Home, SECONDS, run};

/// The most that planning such a graph may hold: it has no budget of its own.
const MOST_BYTES: u64 = 1 << 30;

/// Numbers that are the same in every run of the test.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// A graph of as many forward as backward nodes, with this many links of random reach.
fn tangle(nodes: usize, links: usize) -> Value {
    let random = &mut Random(11);
    let node = |id: usize, random: &mut Random| {
        let (cost, bytes) = (1 + random.below(1000), 64 + random.below(4096));
        json!({ "id": id, "name": format!("n{id}"), "backward": id >= nodes / 2, "cost_cpu": cost, "cost_ram": bytes })
    };
    let listed: Vec<Value> = (0..nodes).map(|id| node(id, random)).collect();
    let mut pairs: std::collections::BTreeSet<(usize, usize)> = (1..nodes).map(|id| (id - 1, id)).collect();
    while pairs.len() < links {
        let target = 1 + random.below(nodes - 1);
        pairs.insert((random.below(target), target));
    }
    let links: Vec<Value> =
        pairs.into_iter().map(|(source, target)| json!({ "source": source, "target": target })).collect();
    json!({ "nodes": listed, "links": links })
}

#[test]
fn a_tangle_of_nodes_and_links_ends_in_a_plan_or_a_sentence() {
    let home = Home::new();
    for (nodes, links, budget) in
        [(600, 8_000, "100KiB"), (600, 8_000, "400KiB"), (600, 1_200, "100KiB"), (4_000, 20_000, "2MiB")]
    {
        home.write("g.json", tangle(nodes, links).to_string());
        let plan = format!("plan --dag g.json --memory {budget}");
        let Ended { code, said, peak, seconds } = run(&home, &plan);
        let what = format!("{nodes} nodes, {links} links in {budget}");
        assert!(matches!(code, Some(0 | 2)) && !said.contains("panicked"), "{what}: {code:?} {said:.2000}");
        assert!(peak <= MOST_BYTES, "{what}: reached {} KiB: {said:.2000}", peak >> 10);
        assert!(seconds <= SECONDS, "{what}: took {seconds} s: {said:.2000}");
    }
}
