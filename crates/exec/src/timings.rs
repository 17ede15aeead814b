//! Measured times of ops on one machine, and estimates for ops like them.
//!
//! An op is known by its [signature](Graph::signature): what it computes and the types of its operands. Where
//! an op was not measured, its work is done at the pace of measured ones of its kind, or else of all.

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

/// Seconds that a unit of work takes: an operation of a product, or a byte where there is none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// With the best scratch.
    pub seconds: f64,
    /// With the least scratch, if that was measured.
    pub lean_seconds: Option<f64>,
}

/// The paces of all that was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Paces<'a> {
    /// By kind of op, and whether it has products.
    kinds: BTreeMap<(&'a str, bool), Pace>,
    products: Pace,
    others: Pace,
}

impl Paces<'_> {
    /// The pace of an op, and the units of work it has.
    pub fn of(&self, signature: &str, work: &Work) -> (Pace, f64) {
        let products = work.matmul_flops > 0.0;
        let all = if products { self.products } else { self.others };
        let pace = self.kinds.get(&(kind(signature), products)).copied().unwrap_or(all);
        (pace, units(work.matmul_flops, work.bytes))
    }
}

/// Name of an op without its attributes and types.
fn kind(signature: &str) -> &str {
    signature.split(['{', '(']).next().unwrap_or(signature)
}

/// Products are measured with all they read and write, so their pace includes the traffic.
fn units(matmul_flops: f64, bytes: f64) -> f64 {
    if matmul_flops > 0.0 { matmul_flops } else { bytes }
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

    /// The times known of an op.
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

    /// The paces of the measured ops; absent where no op with products was measured, or no op without.
    pub fn paces(&self) -> Option<Paces<'_>> {
        let mut kinds: BTreeMap<(&str, bool), Vec<&Timing>> = BTreeMap::new();
        for (signature, timing) in &self.ops {
            kinds.entry((kind(signature), timing.matmul_flops > 0.0)).or_default().push(timing);
        }
        let all = |wanted: bool| {
            let of_all = kinds.iter().filter(|((_, products), _)| *products == wanted);
            pace(&of_all.flat_map(|(_, timings)| timings.iter().copied()).collect::<Vec<_>>())
        };
        let (products, others) = (all(true)?, all(false)?);
        let kinds = kinds.iter().filter_map(|(kind, timings)| Some((*kind, pace(timings)?))).collect();
        Some(Paces { kinds, products, others })
    }
}

/// The pace of several ops together.
fn pace(timings: &[&Timing]) -> Option<Pace> {
    let of = |scratch: Scratch| {
        let measured =
            timings.iter().filter_map(|t| Some((t.with(scratch)?, units(t.matmul_flops, t.bytes))));
        let (took, done) = measured.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        (done > 0.0 && took > 0.0).then_some(took / done)
    };
    Some(Pace { seconds: of(Scratch::Best)?, lean_seconds: of(Scratch::Least) })
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
    fn measured_ops_cost_what_was_measured_and_others_at_the_pace_of_their_kind() {
        let known = graph(16);
        let mut timings = Timings::default();
        // 1,024 operations in 1 µs and with less scratch in 3 µs, 512 bytes in 2 µs.
        for (node, seconds) in known.nodes().iter().zip([1e-6, 2e-6]) {
            timings.record(&known, node, Scratch::Best, seconds);
        }
        timings.record(&known, &known.nodes()[0], Scratch::Least, 3e-6);
        let other = Timing { seconds: Some(1.0), lean_seconds: None, matmul_flops: 0.0, bytes: 1.0 };
        timings.insert("another(f32[1]) -> f32[1]".into(), other);
        let device = CpuDevice::new(1).unwrap().with_timings(timings.clone());
        let nanoseconds = |graph: &Graph| -> Vec<(f64, f64)> {
            let rounded = |seconds: f64| (seconds * 1e9).round();
            let facts = device.facts(graph).nodes;
            facts.iter().map(|facts| (rounded(facts.seconds), rounded(facts.lean_seconds))).collect()
        };
        assert_eq!(nanoseconds(&known), [(1000.0, 3000.0), (2000.0, 2000.0)]);
        assert_eq!(nanoseconds(&graph(32)), [(2000.0, 6000.0), (4000.0, 4000.0)]);
        let (pace, units) =
            timings.paces().unwrap().of("never_seen(f32[2])", &Work { matmul_flops: 0.0, bytes: 8.0 });
        assert_eq!((pace, units), (Pace { seconds: (1.0 + 2e-6) / 513.0, lean_seconds: None }, 8.0));
    }
}
