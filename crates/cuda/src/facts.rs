//! Facts of a GPU for the planner: scratch as the lowering uses it, and seconds by rates.
//!
//! Rates are those of the card's description, scaled by the share that ops reached on an H200.

use plimsoll_graph::{DType, Graph, Node, Op, work};
use plimsoll_plan::{Facts, NodeFacts, Workspace};

use crate::driver::Card;
use crate::lower::{ALIGNMENT, Library, Limits, Needs, needs};

/// Rates that turn work into seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Floating-point operations per second of products in f32.
    pub flops: f64,
    /// Floating-point operations per second of products in bf16.
    pub half_flops: f64,
    /// Bytes per second of the card's memory.
    pub bytes: f64,
    /// Seconds that one step takes, independent of its size.
    pub launch: f64,
}

impl Rates {
    /// Rates by the card's own figures, at the share of them that products and streams reach.
    pub(crate) fn of(card: &Card) -> Rates {
        let per_processor = match card.capability.0 {
            9 => 4096.0,
            10 => 8192.0,
            8 if card.capability.1 == 0 => 2048.0,
            _ => 512.0,
        };
        let cycles = f64::from(card.processors) * card.clock;
        Rates {
            flops: 0.8 * 256.0 * cycles,
            half_flops: 0.67 * per_processor * cycles,
            bytes: 0.73 * card.bandwidth,
            launch: 3e-6,
        }
    }
}

/// Time and scratch of every node.
pub fn facts(graph: &Graph, rates: Rates, library: &dyn Library, limits: Limits) -> Facts {
    let nodes = graph.nodes().iter().map(|node| node_facts(graph, node, rates, library, limits)).collect();
    Facts { alignment: ALIGNMENT, nodes, link: None }
}

/// The parts of the rates that an op reaches.
struct Share {
    products: f64,
    bytes: f64,
}

impl Share {
    /// As measured on an H200, in steps of a Llama with 1.2 billion parameters in bf16: plain products and plain streams
    /// are the measure.
    fn of(op: &Op) -> Share {
        let (products, bytes) = match op {
            Op::Attention { .. } => (0.45, 1.0),
            Op::AttentionGrad { .. } => (0.36, 1.0),
            Op::HeadLoss(_) | Op::HeadLossGrad { .. } | Op::HeadErrors { .. } => (0.8, 0.8),
            // Of the rate of products by a library, as an H200 ran them (`benchmarks/mixtures_h200_20261116.md`).
            Op::GroupedLinear | Op::GroupedLinearGradInput => (0.4, 1.0),
            Op::GroupedLinearGradWeight => (0.25, 1.0),
            Op::RmsNorm { .. }
            | Op::LayerNorm { .. }
            | Op::RmsNormGradInput
            | Op::LayerNormGradInput
            | Op::Accumulate { .. } => (1.0, 0.37),
            Op::RmsNormGradWeight
            | Op::LayerNormGradWeight
            | Op::Rope { .. }
            | Op::EmbeddingGrad { .. }
            | Op::SumSquares => (1.0, 0.55),
            _ => (1.0, 1.0),
        };
        Share { products, bytes }
    }
}

fn node_facts(graph: &Graph, node: &Node, rates: Rates, library: &dyn Library, limits: Limits) -> NodeFacts {
    if node.op.is_view() {
        return NodeFacts::default();
    }
    let (inputs, outputs) = (graph.input_types(node), graph.output_types(node));
    // An op without a kernel is refused when the schedule is prepared, with the reason.
    let Needs { scratch, steps } =
        needs(&node.op, &inputs, &outputs, library, limits).unwrap_or(Needs { scratch: 0, steps: 1 });
    let work = work(&node.op, &inputs, &outputs);
    let half = inputs.first().is_some_and(|input| input.dtype == DType::Bf16);
    let share = Share::of(&node.op);
    let compute = work.matmul_flops / (share.products * if half { rates.half_flops } else { rates.flops });
    let seconds = compute.max(work.bytes / (share.bytes * rates.bytes)) + rates.launch * steps as f64;
    NodeFacts { seconds, lean_seconds: seconds, workspace: Workspace::exactly(scratch) }
}
