//! The links between ranks, and the time of an exchange over them.
//!
//! ```text
//! node 0: rank 0 ── rank 1 ── … ── rank 7        within: the link inside a node
//!            │                        │
//! node 1: rank 8 ── rank 9 ── … ── rank 15       between: the link from node to node
//! ```
//!
//! Every rank sends (N−1)/N of the bytes of a reduce-scatter or an all-gather, whatever the algorithm; the slowest link that
//! is passed decides the rate. The latency is paid once for every doubling of ranks. Congestion and topology are not modelled,
//! so the stated rate must be the one that a rank gets while all ranks send.

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
    /// Between nodes, and the ranks of one node.
    pub between: Option<(RankLink, usize)>,
}

impl RankLinks {
    /// The link that holds up an exchange of `ranks` ranks.
    pub fn slowest(&self, ranks: usize) -> RankLink {
        match self.between {
            Some((between, per_node)) if ranks > per_node => RankLink {
                rate: between.rate.min(self.within.rate),
                latency: between.latency.max(self.within.latency),
            },
            _ => self.within,
        }
    }

    /// Time of an exchange in which every rank sends `bytes` bytes.
    pub fn seconds(&self, collective: Collective, bytes: u64) -> f64 {
        let link = self.slowest(collective.ranks());
        let turns = if matches!(collective, Collective::AllReduce { .. }) { 2.0 } else { 1.0 };
        let doublings = f64::from(collective.ranks().max(1).next_power_of_two().trailing_zeros());
        turns * doublings * link.latency + bytes as f64 / link.rate
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

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: RankLink = RankLink { rate: 400e9, latency: 2e-6 };
    const BETWEEN: RankLink = RankLink { rate: 50e9, latency: 10e-6 };

    #[test]
    fn the_link_between_nodes_counts_once_ranks_do_not_fit_into_one() {
        let links = RankLinks { within: WITHIN, between: Some((BETWEEN, 8)) };
        assert_eq!(links.slowest(8), WITHIN);
        assert_eq!(links.slowest(9), BETWEEN);
        assert_eq!(RankLinks { within: WITHIN, between: None }.slowest(1024), WITHIN);
    }

    #[test]
    fn an_exchange_takes_the_time_of_its_bytes_and_a_latency_for_each_doubling() {
        let links = RankLinks { within: WITHIN, between: Some((BETWEEN, 8)) };
        let gather = Collective::ReduceScatter { ranks: 16 };
        assert!((links.seconds(gather, 100_000_000_000) - (2.0 + 4.0 * 10e-6)).abs() < 1e-9);
        let sum = Collective::AllReduce { ranks: 4 };
        assert!((links.seconds(sum, 400_000) - (1e-6 + 2.0 * 2.0 * 2e-6)).abs() < 1e-12);
    }
}
