//! The links between ranks, and the time of an exchange over them.
//!
//! ```text
//! node 0: rank 0 ── rank 1 ── … ── rank 7        within: the link inside a node
//!          card      card           card
//!            │         │              │
//! node 1: rank 8 ── rank 9 ── … ── rank 15       between: the network card of each rank
//! ```
//!
//! Every rank sends B = (N−1)/N of the bytes of a reduce-scatter or an all-gather, whatever the algorithm. A node receives
//! them once for all its ranks: rings, one for each card, enter and leave a node by one card each, and a ring carries
//! B over the number of cards. Inside the node every rank passes on all of B. So B bytes take B over the link's rate, or B over
//! the rate of all cards of a node together, whichever is longer. Ranks are spread evenly over as few nodes as hold them, and
//! the node with the fewest cards decides.
//!
//! The latency of a link is paid once for every doubling that it takes: within for the ranks of a node, between for the nodes.
//! Congestion, topology and links that are shared with other traffic are absent, so a rate is one that a rank gets while
//! all ranks send.

use plimsoll_graph::Graph;
use plimsoll_graph::op::Collective;

use super::facts::Facts;

/// One link, as a rank sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankLink {
    /// Bytes a second that a rank sends while it receives as many.
    pub rate: f64,
    /// Seconds that a message takes in addition to the time of its bytes.
    pub latency: f64,
}

/// The links between the ranks of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankLinks {
    /// Inside a node, or between any two ranks where nodes are not told apart.
    pub within: RankLink,
    /// The network card that each rank has for itself, and the ranks of one node.
    pub between: Option<(RankLink, usize)>,
}

impl RankLinks {
    /// Nodes that `ranks` ranks need.
    fn nodes(&self, ranks: usize) -> usize {
        self.between.map_or(1, |(_, per_node)| ranks.div_ceil(per_node.max(1)).max(1))
    }

    /// Bytes a second that every rank of `ranks` sends while all send.
    pub fn rate(&self, ranks: usize) -> f64 {
        match (self.between, self.nodes(ranks)) {
            (Some((card, _)), nodes @ 2..) => {
                let cards = ranks / nodes;
                self.within.rate.min(card.rate * cards as f64)
            }
            _ => self.within.rate,
        }
    }

    /// Seconds of one turn of an exchange of `ranks` ranks beside those of its bytes.
    fn latency(&self, ranks: usize) -> f64 {
        let nodes = self.nodes(ranks);
        let inside = doublings(ranks.div_ceil(nodes)) * self.within.latency;
        inside + self.between.map_or(0.0, |(card, _)| doublings(nodes) * card.latency)
    }

    /// Time of an exchange in which every rank sends `bytes` bytes.
    pub fn seconds(&self, collective: Collective, bytes: u64) -> f64 {
        let ranks = collective.ranks();
        let turns = if matches!(collective, Collective::AllReduce { .. }) { 2.0 } else { 1.0 };
        turns * self.latency(ranks) + bytes as f64 / self.rate(ranks)
    }

    /// The facts of a device about a graph, with the times of exchanges over these links.
    #[must_use]
    pub fn applied(&self, graph: &Graph, mut facts: Facts) -> Facts {
        for (node, facts) in graph.nodes().iter().zip(&mut facts.nodes) {
            let Some((collective, &input)) = node.op.collective().zip(node.inputs.first()) else { continue };
            let seconds = self.seconds(collective, collective.wire_bytes(graph.ty(input)));
            (facts.seconds, facts.lean_seconds) = (seconds, seconds);
        }
        facts
    }
}

/// How often one must double to come to `count`.
fn doublings(count: usize) -> f64 {
    f64::from(count.max(1).next_power_of_two().trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: RankLink = RankLink { rate: 450e9, latency: 2e-6 };
    /// A card of 400 Gb/s for each rank.
    const CARD: RankLink = RankLink { rate: 50e9, latency: 10e-6 };
    const LINKS: RankLinks = RankLinks { within: WITHIN, between: Some((CARD, 8)) };

    fn rate(ranks: usize) -> u64 {
        LINKS.rate(ranks) as u64
    }

    #[test]
    fn all_cards_of_a_node_carry_what_leaves_it_and_the_link_inside_carries_it_too() {
        assert_eq!(rate(8), 450_000_000_000, "one node has no use for its cards");
        assert_eq!([16, 64, 1024].map(rate), [400_000_000_000; 3], "eight cards");
        let fast = RankLink { rate: 100e9, ..CARD };
        let fast = RankLinks { between: Some((fast, 8)), ..LINKS };
        assert_eq!(fast.rate(16) as u64, 450_000_000_000, "the link inside a node is the slower one");
        assert_eq!(RankLinks { within: WITHIN, between: None }.rate(1024) as u64, 450_000_000_000);
    }

    #[test]
    fn the_node_with_the_fewest_cards_decides() {
        assert_eq!(rate(9), 200_000_000_000, "five ranks and four");
        assert_eq!(rate(12), 300_000_000_000, "six and six");
        let single = RankLinks { between: Some((CARD, 1)), ..LINKS };
        assert_eq!(single.rate(4) as u64, 50_000_000_000, "each rank is a node");
    }

    #[test]
    fn an_exchange_takes_the_time_of_its_bytes_and_a_latency_for_each_doubling() {
        let gather = Collective::ReduceScatter { ranks: 16 };
        let latency = 3.0 * 2e-6 + 10e-6;
        assert!((LINKS.seconds(gather, 800_000_000_000) - (2.0 + latency)).abs() < 1e-9);
        let sum = Collective::AllReduce { ranks: 4 };
        assert!((LINKS.seconds(sum, 450_000) - (1e-6 + 2.0 * 2.0 * 2e-6)).abs() < 1e-12);
    }

    /// Bytes that a ring's hops carry, counted hop by hop: the judge of the rate.
    #[test]
    fn rings_counted_hop_by_hop_take_as_long() {
        for (nodes, per_node) in [(2, 4), (4, 8), (16, 8)] {
            let ranks = nodes * per_node;
            // An all-gather of one unit for each rank. A ring carries a part of each unit, and leaves each node by a card of
            // its own: ring `r` visits the ranks of a node in turn, from rank `r` backwards, and ends at `r`.
            let (mut cards, mut inside) = (vec![0.0; ranks], vec![0.0; ranks]);
            for ring in 0..per_node {
                for hop in 0..ranks {
                    let (node, place) = (hop / per_node, hop % per_node);
                    let sender = node * per_node + (ring + 1 + place) % per_node;
                    let carried = (ranks - 1) as f64 / per_node as f64;
                    if place + 1 == per_node {
                        cards[sender] += carried;
                    } else {
                        inside[sender] += carried;
                    }
                }
            }
            let bytes = (ranks - 1) as f64;
            let busiest = |bytes: &[f64]| bytes.iter().copied().fold(0.0, f64::max);
            let by_card = busiest(&cards) / CARD.rate;
            let by_link = busiest(&inside) / WITHIN.rate;
            let links = RankLinks { within: WITHIN, between: Some((CARD, per_node)) };
            let planned = bytes / links.rate(ranks);
            assert!((busiest(&cards) - bytes / per_node as f64).abs() < 1e-9, "a card's part");
            // All of a rank's bytes are counted for the link inside, also those that leave by its card.
            assert!(planned >= by_card.max(by_link) * (1.0 - 1e-12), "{nodes} nodes");
            assert!(planned <= by_card.max(by_link) * 4.0 / 3.0 + 1e-12, "{nodes} nodes");
        }
    }
}
