//! What ops were measured to take on one machine, and how long others like them will take.
//!
//! An op is known by its [signature](Graph::signature): what it computes and the types of its operands. Where
//! an op was not measured, its work is divided by the rates at which the measured ones did theirs.

use std::collections::BTreeMap;

use plimsoll_graph::{Graph, Node, Work, work};
use plimsoll_plan::Scratch;

/// Seconds of one op, as far as they are known.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Timing {
    /// With the best scratch.
    pub seconds: Option<f64>,
    /// With the least scratch.
    pub lean_seconds: Option<f64>,
    /// Multiplications and additions inside matrix products.
    pub matmul_flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
}

impl Timing {
    /// Seconds with an amount of scratch, if they were measured.
    pub fn with(&self, scratch: Scratch) -> Option<f64> {
        match scratch {
            Scratch::Best => self.seconds,
            Scratch::Least => self.lean_seconds,
        }
    }
}

/// What a machine does in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Multiplications and additions of matrix products.
    pub matmul_flops: f64,
    /// Bytes read and written by everything else.
    pub bytes: f64,
}

/// Measured seconds by signature.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Timings {
    ops: BTreeMap<String, Timing>,
}

impl Timings {
    /// Notes how long `node` took.
    pub fn record(&mut self, graph: &Graph, node: &Node, scratch: Scratch, seconds: f64) {
        let Work { matmul_flops, bytes } =
            work(&node.op, &graph.input_types(node), &graph.output_types(node));
        let timing = self.ops.entry(graph.signature(node)).or_default();
        (timing.matmul_flops, timing.bytes) = (matmul_flops, bytes);
        match scratch {
            Scratch::Best => timing.seconds = Some(seconds),
            Scratch::Least => timing.lean_seconds = Some(seconds),
        }
    }

    /// What is known of an op.
    pub fn get(&self, signature: &str) -> Option<&Timing> {
        self.ops.get(signature)
    }

    /// Adds what is known of an op.
    pub fn insert(&mut self, signature: String, timing: Timing) {
        self.ops.insert(signature, timing);
    }

    /// All ops, by signature.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Timing)> {
        self.ops.iter().map(|(signature, timing)| (signature.as_str(), timing))
    }

    /// The rates of the measured ops together; none where nothing of a kind was measured.
    pub fn rates(&self) -> Option<Rates> {
        let rate = |products: bool, work: fn(&Timing) -> f64| {
            let measured = self.ops.values().filter(|t| (t.matmul_flops > 0.0) == products && t.bytes > 0.0);
            let (mut done, mut took) = (0.0, 0.0);
            for timing in measured {
                if let Some(seconds) = timing.seconds {
                    done += work(timing);
                    took += seconds;
                }
            }
            (took > 0.0).then_some(done / took)
        };
        Some(Rates { matmul_flops: rate(true, |t| t.matmul_flops)?, bytes: rate(false, |t| t.bytes)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CpuDevice, Device};
    use plimsoll_graph::{DType, Init};

    fn graph(rows: usize) -> Graph {
        let mut g = Graph::new();
        let x = g.input("x", [rows, 8], DType::F32);
        let w = g.param("w", [4, 8], Init::Normal(0.02));
        let y = g.linear(x, w, None);
        let y = g.silu(y);
        g.output("y", y);
        g.finish().unwrap()
    }

    #[test]
    fn measured_ops_cost_what_was_measured_and_others_by_the_same_rates() {
        let known = graph(16);
        let mut timings = Timings::default();
        // 1,024 flops in 1 µs, 512 bytes in 2 µs.
        for (node, seconds) in known.nodes().iter().zip([1e-6, 2e-6]) {
            timings.record(&known, node, Scratch::Best, seconds);
        }
        assert_eq!(timings.rates(), Some(Rates { matmul_flops: 1024.0 / 1e-6, bytes: 512.0 / 2e-6 }));
        let device = CpuDevice::new(1).unwrap().with_timings(timings);
        let seconds = |graph: &Graph| -> Vec<f64> {
            device.facts(graph).nodes.iter().map(|facts| (facts.seconds * 1e9).round()).collect()
        };
        assert_eq!(seconds(&known), [1000.0, 2000.0]);
        assert_eq!(seconds(&graph(32)), [2000.0, 4000.0]);
    }
}
