//! Measured times of ops on one machine, and estimates for other ops from them.
//!
//! An op is identified by its [signature](Graph::signature): its computation and the types of its operands. An op that
//! was not measured is charged at the pace of measured ops of its kind. Those that resemble it in size and in
//! operations per byte count most: small products run slower than large ones, and thin ones slower than square ones. A
//! kind of op that was never measured is charged at the pace of all ops together.

use std::collections::BTreeMap;

use plimsoll_graph::{Graph, Node, Work, work};
use plimsoll_plan::{Facts, Scratch};

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
    kinds: BTreeMap<OpClass<'a>, Vec<MeasuredOp>>,
    products: Pace,
    others: Pace,
}

/// Ops that do the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OpClass<'a> {
    /// Name of the op without its attributes and types.
    name: &'a str,
    /// Whether the op computes products.
    products: bool,
}

impl OpClass<'_> {
    fn of(signature: &str, products: bool) -> OpClass<'_> {
        let name = signature.split(['{', '(']).next().unwrap_or(signature);
        OpClass { name, products }
    }
}

/// Position of an op among others of its kind: logarithms of its units of work and of its operations per byte, and the
/// types of its operands.
#[derive(Clone, Copy, Debug, PartialEq)]
struct WorkPoint {
    size: f64,
    intensity: f64,
    /// Ops on elements of other types are so far away that they count only if there are none of the same types.
    types: f64,
}

/// Distance between ops on bf16 or on codes of eight bits and ops on f32: more than any two sizes are apart.
const OTHER_TYPES: f64 = 50.0;

impl WorkPoint {
    fn of(signature: &str, matmul_flops: f64, bytes: f64) -> WorkPoint {
        let (half, codes) = (signature.contains("bf16["), signature.contains("u8["));
        let types = OTHER_TYPES * (f64::from(u8::from(half)) + 2.0 * f64::from(u8::from(codes)));
        let intensity = if matmul_flops > 0.0 { matmul_flops / bytes.max(1.0) } else { 1.0 };
        WorkPoint { size: units(matmul_flops, bytes).max(1.0).log2(), intensity: intensity.log2(), types }
    }

    /// The weight of another sample here. A sample of the same size outweighs one at twice the size by four hundred to
    /// one, and one at twice the size outweighs one at sixteen times the size by two hundred to one.
    fn weight(self, other: WorkPoint) -> f64 {
        let (size, intensity) = (self.size - other.size, self.intensity - other.intensity);
        let types = self.types - other.types;
        (size * size + intensity * intensity + types * types + 0.05).powi(-2)
    }
}

/// An op that was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
struct MeasuredOp {
    point: WorkPoint,
    pace: Pace,
}

impl Paces<'_> {
    /// The pace of an op, and the units of work it has.
    pub fn of(&self, signature: &str, work: &Work) -> (Pace, f64) {
        let products = work.matmul_flops > 0.0;
        let samples = self.kinds.get(&OpClass::of(signature, products));
        let all = if products { self.products } else { self.others };
        let point = WorkPoint::of(signature, work.matmul_flops, work.bytes);
        let pace = samples.map_or(all, |samples| blended(samples, point));
        (pace, units(work.matmul_flops, work.bytes))
    }
}

impl Paces<'_> {
    /// The pace of an op by measured ops of its kind on elements of its types, and the units of work it has.
    fn of_same_types(&self, signature: &str, work: &Work) -> Option<(Pace, f64)> {
        let samples = self.kinds.get(&OpClass::of(signature, work.matmul_flops > 0.0))?;
        let point = WorkPoint::of(signature, work.matmul_flops, work.bytes);
        let same = |sample: &&MeasuredOp| (sample.point.types - point.types).abs() < OTHER_TYPES / 2.0;
        let same: Vec<MeasuredOp> = samples.iter().filter(same).copied().collect();
        (!same.is_empty()).then(|| (blended(&same, point), units(work.matmul_flops, work.bytes)))
    }
}

/// The pace at a point: the mean of the samples, each counted by how near it is.
fn blended(samples: &[MeasuredOp], point: WorkPoint) -> Pace {
    let mean = |pace: &dyn Fn(&MeasuredOp) -> Option<f64>| {
        let (mut sum, mut weights) = (0.0, 0.0);
        for sample in samples {
            if let Some(seconds) = pace(sample) {
                let weight = point.weight(sample.point);
                (sum, weights) = (sum + weight * seconds, weights + weight);
            }
        }
        (weights > 0.0).then(|| sum / weights)
    };
    let seconds = mean(&|sample| Some(sample.pace.seconds)).unwrap_or(0.0);
    Pace { seconds, lean_seconds: mean(&|sample| sample.pace.lean_seconds) }
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

    /// Adds the known times of an op.
    pub fn insert(&mut self, signature: String, timing: Timing) {
        self.ops.insert(signature, timing);
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// All ops, by signature.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Timing)> {
        self.ops.iter().map(|(signature, timing)| (signature.as_str(), timing))
    }

    /// The paces of the measured ops; absent where no op with products was measured, or no op without.
    pub fn paces(&self) -> Option<Paces<'_>> {
        let of_all = |products: bool| {
            let wanted = self.ops.values().filter(|timing| (timing.matmul_flops > 0.0) == products);
            pace(&wanted.collect::<Vec<_>>())
        };
        let (products, others) = (of_all(true)?, of_all(false)?);
        let mut kinds: BTreeMap<OpClass, Vec<MeasuredOp>> = BTreeMap::new();
        for (signature, timing) in &self.ops {
            if let Some(pace) = pace(&[timing]) {
                let point = WorkPoint::of(signature, timing.matmul_flops, timing.bytes);
                let kind = OpClass::of(signature, timing.matmul_flops > 0.0);
                kinds.entry(kind).or_default().push(MeasuredOp { point, pace });
            }
        }
        Some(Paces { kinds, products, others })
    }

    /// Puts measured times into modelled facts: those of the op itself, or the pace of its kind on elements of the same
    /// types, but never less than `least`. If no such op was measured, the model's time stays.
    pub fn refine(&self, graph: &Graph, facts: &mut Facts, least: f64) {
        let Some(paces) = self.paces() else { return };
        for (node, facts) in graph.nodes().iter().zip(&mut facts.nodes) {
            if node.op.is_view() {
                continue;
            }
            let signature = graph.signature(node);
            let work = work(&node.op, &graph.input_types(node), &graph.output_types(node));
            let paced = || {
                let (pace, units) = paces.of_same_types(&signature, &work)?;
                Some((units * pace.seconds).max(least))
            };
            if let Some(seconds) = self.get(&signature).and_then(|known| known.seconds).or_else(paced) {
                (facts.seconds, facts.lean_seconds) = (seconds, seconds);
            }
        }
    }

    /// Adds the times of `newer`, which win if both know an op.
    pub fn update(&mut self, newer: Timings) {
        for (signature, new) in newer.ops {
            let known = self.ops.entry(signature).or_default();
            let seconds = new.seconds.or(known.seconds);
            *known = Timing { seconds, lean_seconds: new.lean_seconds.or(known.lean_seconds), ..new };
        }
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
    use plimsoll_plan::NodeFacts;

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
        let mut device = CpuDevice::new(1).unwrap();
        device.use_timings(timings.clone());
        let nanoseconds = |graph: &Graph| -> Vec<(f64, f64)> {
            let rounded = |seconds: f64| (seconds * 1e9).round();
            let facts = device.facts(graph).nodes;
            facts.iter().map(|facts| (rounded(facts.seconds), rounded(facts.lean_seconds))).collect()
        };
        assert_eq!(nanoseconds(&known), [(1000.0, 3000.0), (2000.0, 2000.0)]);
        assert_eq!(nanoseconds(&graph(32)), [(2000.0, 6000.0), (4000.0, 4000.0)]);
        let mut both = timings.clone();
        let mut newer = Timings::default();
        newer.record(&known, &known.nodes()[0], Scratch::Best, 4e-6);
        both.update(newer);
        let kept = both.get(&known.signature(&known.nodes()[0])).unwrap();
        assert_eq!((kept.seconds, kept.lean_seconds), (Some(4e-6), Some(3e-6)), "each part is kept");
        let (pace, units) =
            timings.paces().unwrap().of("never_seen(f32[2])", &Work { matmul_flops: 0.0, bytes: 8.0 });
        assert_eq!((pace, units), (Pace { seconds: (1.0 + 2e-6) / 513.0, lean_seconds: None }, 8.0));
    }

    #[test]
    fn a_model_is_refined_where_the_same_op_or_one_of_its_kind_and_types_was_measured() {
        let known = graph(16);
        let mut timings = Timings::default();
        for (node, seconds) in known.nodes().iter().zip([1e-6, 2e-6]) {
            timings.record(&known, node, Scratch::Best, seconds);
        }
        let seconds = |graph: &Graph, least: f64| -> Vec<f64> {
            let modelled = NodeFacts { seconds: 9.0, lean_seconds: 9.0, ..NodeFacts::default() };
            let nodes = vec![modelled; graph.nodes().len()];
            let mut facts = Facts { alignment: 64, nodes, link: None };
            timings.refine(graph, &mut facts, least);
            facts.nodes.iter().map(|facts| facts.seconds).collect()
        };
        assert_eq!(seconds(&known, 1.0), [1e-6, 2e-6], "measured times stay as they are");
        let near = |found: &[f64], expected: [f64; 2]| {
            assert!(found.iter().zip(expected).all(|(found, wanted)| (found / wanted - 1.0).abs() < 1e-9));
        };
        near(&seconds(&graph(32), 0.0), [2e-6, 4e-6]);
        near(&seconds(&graph(32), 3e-6), [3e-6, 4e-6]);
        let mut other = Graph::new();
        let x = other.input("x", [16, 8], DType::Bf16);
        let y = other.silu(x);
        let y = other.tanh(y);
        other.output("y", y);
        assert_eq!(
            seconds(&other.finish().unwrap(), 0.0),
            [9.0, 9.0],
            "other types and other ops are modelled"
        );
    }

    #[test]
    fn an_op_that_was_not_measured_is_charged_like_the_measured_ops_nearest_in_size_shape_and_width() {
        let mut timings = Timings::default();
        let mut know = |signature: &str, seconds: f64, matmul_flops: f64, bytes: f64| {
            let timing = Timing { seconds: Some(seconds), lean_seconds: None, matmul_flops, bytes };
            timings.insert(signature.into(), timing);
        };
        know("add(f32[1])", 1.0, 0.0, 1e6);
        // Paces of 2 for small products, 1 for large ones, 8 for thin ones and a half for those in bf16.
        know("linear{ a }(f32[1])", 2e6, 1e6, 1e4);
        know("linear{ b }(f32[1])", 1e9, 1e9, 1e7);
        know("linear{ c }(f32[1])", 8e9, 1e9, 1e9);
        know("linear{ d }(bf16[1])", 5e8, 1e9, 1e7);
        let paces = timings.paces().unwrap();
        let pace = |signature: &str, matmul_flops: f64, bytes: f64| {
            paces.of(signature, &Work { matmul_flops, bytes }).0.seconds
        };
        for (signature, flops, bytes, expected) in [
            ("linear{ x }(f32[2])", 1.2e6, 1.2e4, 2.0),
            ("linear{ x }(f32[2])", 2e9, 2e7, 1.0),
            ("linear{ x }(f32[2])", 6e8, 7e8, 8.0),
            ("linear{ x }(bf16[2])", 1e6, 1e4, 0.5),
            ("add(bf16[2])", 0.0, 1e3, 1e-6),
        ] {
            let found = pace(signature, flops, bytes);
            assert!((found / expected - 1.0).abs() < 0.1, "{signature} {flops} {bytes}: {found}");
        }
        let between = pace("linear{ x }(f32[2])", 3e7, 3e5);
        assert!(between > 1.0 && between < 2.5, "{between}");
    }
}
