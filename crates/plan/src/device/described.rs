//! Devices to plan for without having them: stated figures, and facts modelled from them.
//!
//! Rates are the makers' published peaks ([`DeviceSpec::source`]), scaled by the share that kernels reach, as measured
//! on an H200: `cuBLAS` at 620 to 790 of 989 TFLOP/s in bf16 products of language models, its product with the
//! embedding table at 624 to 702, `cuDNN`'s attention at 336 to 594 forward and 231 to 474 backward, pinned copies at
//! 55 GB/s. Other cards are assumed to reach the same shares. The time of a node is that of its arithmetic or of its
//! memory traffic, whichever is longer, plus a launch. This ranks plans and tells an hour from a week; it is no
//! measurement.
//!
//! Scratch of attention in bf16 is that of `cuDNN`'s graphs, whose size follows from the shapes.
//!
//! Absent: how products slow down when they are small, and overlap of launches with work.

use std::fmt;

use plimsoll_graph::{DType, Graph, Node, Op, Type, work};

use super::facts::{Facts, NodeFacts, Workspace};
use super::link::{Link, Tier};

/// Share of the published peak that large products reach.
const COMPUTE_SHARE: f64 = 0.75;
/// Shares that attention reaches forward and backward, and the product with the table of words.
const ATTENTION_SHARE: f64 = 0.42;
const ATTENTION_GRAD_SHARE: f64 = 0.33;
const HEAD_SHARE: f64 = 0.67;
/// The shares that products of experts and gradients of their weights reach, by our own kernels.
const EXPERTS_SHARE: f64 = 0.27;
const EXPERTS_WEIGHT_SHARE: f64 = 0.17;
/// Chunks of copies that a sort by expert counts apart.
const SORT_CHUNKS: u64 = 256;
/// Scratch of an attention graph of `cuDNN`, beside its tensors.
const ATTENTION_SCRATCH: u64 = 256;
/// Share of the published bandwidth that reads and writes of memory reach.
const BANDWIDTH_SHARE: f64 = 0.85;
/// Offsets of buffers are multiples of this, as memory transactions and libraries require.
const ALIGNMENT: u64 = 256;
/// Scratch a library is given for one product.
const PRODUCT_SCRATCH: u64 = 32 << 20;
/// Rows of logits that a head holds at once.
const HEAD_ROWS: u64 = 1024;

/// The device that is assumed when the user names a kind (`cuda`) and no model.
const ASSUMED: &str = "h100";
/// The beginning of every name.
const FAMILY: &str = "cuda";

/// A device as its data sheet describes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceSpec {
    /// The part of the device's name behind `cuda:`.
    model: &'static str,
    /// Bytes of the device's memory that programs can have.
    pub memory_bytes: u64,
    /// Bytes its driver, the loaded code and the libraries hold outside the arena.
    pub reserve_bytes: u64,
    /// Published peak of fp32 products outside tensor cores, per second.
    pub fp32_flops: f64,
    /// Published dense peak of bf16 products with fp32 sums, per second.
    pub bf16_flops: f64,
    /// Published memory bandwidth in bytes per second.
    pub bandwidth: f64,
    /// Bytes per second of a pinned copy to or from the host, each way.
    pub host_bandwidth: f64,
    /// Where the figures come from.
    pub source: &'static str,
}

/// One line of the table: MiB as the driver reports them, TFLOP/s, GB/s of its memory and of a copy to the host.
const fn spec(
    model: &'static str,
    memory_mib: u64,
    [fp32, bf16]: [f64; 2],
    [gigabytes, host_gigabytes]: [f64; 2],
    source: &'static str,
) -> DeviceSpec {
    DeviceSpec {
        model,
        memory_bytes: memory_mib << 20,
        reserve_bytes: 600 << 20,
        fp32_flops: fp32 * 1e12,
        bf16_flops: bf16 * 1e12,
        bandwidth: gigabytes * 1e9,
        host_bandwidth: host_gigabytes * 1e9,
        source,
    }
}

const DEVICES: [DeviceSpec; 9] = [
    //    model       MiB    fp32   bf16      memory  host
    spec(
        "h200",
        143_771,
        [66.9, 989.4],
        [4800.0, 55.0],
        "NVIDIA's data sheet of the H200 SXM; copies to the host measured",
    ),
    spec(
        "h100",
        81_559,
        [66.9, 989.4],
        [3350.0, 55.0],
        "NVIDIA's data sheet of the H100 SXM; copies as measured on an H200",
    ),
    spec(
        "a100-80",
        81_920,
        [19.5, 312.0],
        [2039.0, 25.0],
        "NVIDIA's data sheet of the A100 80GB SXM; copies by PCIe 4.0",
    ),
    spec(
        "a100-40",
        40_960,
        [19.5, 312.0],
        [1555.0, 25.0],
        "NVIDIA's data sheet of the A100 40GB SXM; copies by PCIe 4.0",
    ),
    spec("l40s", 46_068, [91.6, 362.0], [864.0, 25.0], "NVIDIA's data sheet of the L40S; copies by PCIe 4.0"),
    spec("l4", 23_034, [30.3, 121.0], [300.0, 25.0], "NVIDIA's data sheet of the L4; copies by PCIe 4.0"),
    spec(
        "5090",
        32_607,
        [104.8, 209.5],
        [1792.0, 55.0],
        "NVIDIA's paper on Blackwell for GeForce; copies by PCIe 5.0",
    ),
    spec(
        "4090",
        24_564,
        [82.6, 165.2],
        [1008.0, 25.0],
        "NVIDIA's paper on the Ada architecture; copies by PCIe 4.0",
    ),
    spec(
        "3090",
        24_576,
        [35.6, 71.0],
        [936.0, 25.0],
        "NVIDIA's paper on the GA102 Ampere; copies by PCIe 4.0",
    ),
];

impl DeviceSpec {
    /// Seconds between the starts of two kernels.
    pub const LAUNCH_SECONDS: f64 = 5e-6;

    /// All devices that are described.
    pub fn all() -> &'static [DeviceSpec] {
        &DEVICES
    }

    /// The device of a name such as `cuda:h200`; plain `cuda` is a `cuda:h100`.
    ///
    /// # Errors
    ///
    /// When none has the name; the error lists those there are.
    pub fn from_name(name: &str) -> Result<DeviceSpec, UnknownDevice> {
        let model = match name.split_once(':') {
            None if name == FAMILY => Some(ASSUMED),
            Some((FAMILY, model)) => Some(model),
            _ => None,
        };
        let found = DEVICES.iter().find(|spec| Some(spec.model) == model);
        found.copied().ok_or_else(|| UnknownDevice { name: name.to_owned() })
    }

    /// The name that users type.
    pub fn name(&self) -> String {
        format!("{FAMILY}:{}", self.model)
    }

    /// Modelled time and scratch of every node of `graph`.
    pub fn facts(&self, graph: &Graph) -> Facts {
        Facts {
            alignment: ALIGNMENT,
            nodes: graph.nodes().iter().map(|node| self.node(graph, node)).collect(),
            link: None,
        }
    }

    /// The link to pinned memory of the host, of which `room` bytes may be taken.
    pub fn host_link(&self, room: Option<u64>) -> Link {
        Link {
            tier: Tier::Host,
            room: room.unwrap_or(u64::MAX),
            block: ALIGNMENT,
            out_rate: self.host_bandwidth,
            in_rate: self.host_bandwidth,
            latency: DeviceSpec::LAUNCH_SECONDS,
            // A GPU's copy engines take no time from its kernels.
            toll: 0.0,
        }
    }

    fn node(&self, graph: &Graph, node: &Node) -> NodeFacts {
        if node.op.is_view() {
            return NodeFacts::default();
        }
        let (inputs, outputs) = (graph.input_types(node), graph.output_types(node));
        let work = work(&node.op, &inputs, &outputs);
        let half = inputs.iter().any(|input| input.dtype == DType::Bf16);
        let peak = if half { self.bf16_flops } else { self.fp32_flops };
        let compute = work.matmul_flops / (share(&node.op, half) * peak);
        let traffic = work.bytes / (BANDWIDTH_SHARE * self.bandwidth);
        let seconds = compute.max(traffic) + DeviceSpec::LAUNCH_SECONDS;
        let scratch = match &node.op {
            Op::HeadLoss(_) | Op::HeadLossGrad { .. } => {
                let (rows, words) = (inputs[0].shape.rows() as u64, inputs[1].shape[0] as u64);
                PRODUCT_SCRATCH + 4 * rows.min(HEAD_ROWS) * words
            }
            Op::Mlp(mlp) | Op::MlpGrad { mlp, .. } => {
                // The scratch of the CPU's kernel in the backward pass: results of the products, and rows of `x` and `dy`.
                let first = if matches!(node.op, Op::Mlp(_)) { 1 } else { 2 };
                let (columns, hidden) =
                    (inputs[0].shape.columns() as u64, inputs[first].shape.elements() as u64);
                let floats = mlp.products() as u64 * (hidden / columns.max(1)) + 2 * columns;
                PRODUCT_SCRATCH + 4 * floats * mlp.rows.min(inputs[0].shape.rows()) as u64
            }
            Op::Attention { .. } if half => ATTENTION_SCRATCH,
            Op::AttentionGrad { .. } if half => attention_grad_scratch(&inputs),
            Op::SortByExpert(sorting) => {
                let chunks = SORT_CHUNKS + sorting.sequences(inputs[0].shape) as u64;
                2 * 4 * chunks * sorting.experts as u64
            }
            Op::GroupedLinear | Op::GroupedLinearGradInput | Op::GroupedLinearGradWeight => 0,
            _ if work.matmul_flops > 0.0 => PRODUCT_SCRATCH,
            _ => 0,
        };
        NodeFacts { seconds, lean_seconds: seconds, workspace: Workspace::exactly(scratch) }
    }
}

/// The part of the peak of products that an op reaches. Attention in f32 goes through plain products.
fn share(op: &Op, half: bool) -> f64 {
    match op {
        Op::Attention { .. } if half => ATTENTION_SHARE,
        Op::AttentionGrad { .. } if half => ATTENTION_GRAD_SHARE,
        Op::HeadLoss(_) | Op::HeadLossGrad { .. } if half => HEAD_SHARE,
        Op::GroupedLinear | Op::GroupedLinearGradInput => EXPERTS_SHARE,
        Op::GroupedLinearGradWeight => EXPERTS_WEIGHT_SHARE,
        _ => COMPUTE_SHARE,
    }
}

/// Scratch of `cuDNN`'s backward pass: a number for each row of queries, sums of their gradient in f32, and where query heads
/// share keys the gradients of keys and values for each query head in bf16.
fn attention_grad_scratch(inputs: &[Type]) -> u64 {
    let [queries, keys] = [0, 1].map(|input| inputs.get(input).map_or(0, |ty| ty.shape.elements() as u64)); // (B, T, H, D)
    let width = inputs.first().map_or(1, |ty| ty.shape.columns() as u64).max(1);
    let shared = if keys < queries { 2 * 2 * queries } else { 0 };
    ATTENTION_SCRATCH + 4 * queries / width + 4 * queries + shared
}

/// No device of this name is described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownDevice {
    /// The requested name.
    pub name: String,
}

impl fmt::Display for UnknownDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<String> = DEVICES.iter().map(DeviceSpec::name).collect();
        write!(f, "no device is called `{}`; known are cpu, {FAMILY}, {}", self.name, known.join(", "))
    }
}

impl std::error::Error for UnknownDevice {}

#[cfg(test)]
mod tests {
    use plimsoll_graph::{DType, Init, Visible};

    use super::*;

    #[test]
    fn every_device_is_found_by_its_name_and_has_figures_that_go_together() {
        for spec in DeviceSpec::all() {
            assert_eq!(DeviceSpec::from_name(&spec.name()), Ok(*spec));
            assert!(spec.memory_bytes > 20 << 30 && spec.memory_bytes < 200 << 30, "{spec:?}");
            assert!(spec.reserve_bytes < spec.memory_bytes / 10, "{spec:?}");
            assert!(spec.bf16_flops > 1.5 * spec.fp32_flops && spec.fp32_flops > 1e13, "{spec:?}");
            assert!(spec.bandwidth > 5.0 * spec.host_bandwidth && spec.bandwidth < 1e13, "{spec:?}");
            assert!(spec.source.starts_with("NVIDIA's ") && spec.source.contains("copies"), "{spec:?}");
        }
        let mut names: Vec<String> = DeviceSpec::all().iter().map(DeviceSpec::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), DeviceSpec::all().len());
    }

    #[test]
    fn a_kind_without_a_model_is_an_h100() {
        assert_eq!(DeviceSpec::from_name("cuda").map(|spec| spec.name()), Ok("cuda:h100".into()));
    }

    #[test]
    fn an_unknown_device_is_answered_with_the_known_ones() {
        for name in ["cuda:h300", "h100", "tpu:h100", ""] {
            let error = DeviceSpec::from_name(name).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("no device is called `{name}`; known are cpu, cuda, ")),
                "{error}"
            );
            assert!(DeviceSpec::all().iter().all(|spec| error.contains(&spec.name())), "{error}");
        }
    }

    #[test]
    fn products_and_attention_in_bf16_run_at_their_own_rates_and_attention_has_the_scratch_of_its_graphs() {
        let mut g = Graph::new();
        // B 8, T 2048, 32 query heads that share 8 key heads of width 64: a shape that was measured.
        let q = g.input("q", [8, 2048, 32, 64], DType::Bf16);
        let [k, v] = ["k", "v"].map(|name| g.input(name, [8, 2048, 8, 64], DType::Bf16));
        let out = g.attention(q, k, v, Visible { causal: true, window: None, doc_start: None });
        g.output("out", out);
        let graph = g.finish().unwrap();
        let spec = DeviceSpec::from_name("cuda:h200").unwrap();
        let facts = spec.facts(&graph).nodes[0];
        // 0.346 ms on an H200; large batches of longer rows reach more.
        assert!((0.25e-3..0.45e-3).contains(&facts.seconds), "{facts:?}");
        assert_eq!(facts.workspace, Workspace::exactly(256));
        let types: Vec<Type> = [q, k].map(|value| graph.ty(value)).to_vec();
        assert_eq!(attention_grad_scratch(&types), 134_217_984 + 136_314_880);
        assert_eq!(attention_grad_scratch(&[types[0], types[0]]), 256 + 136_314_880);
    }

    #[test]
    fn large_products_are_bound_by_arithmetic_and_small_passes_by_their_launch() {
        let mut g = Graph::new();
        let x = g.input("x", [4096, 4096], DType::F32);
        let w = g.param("w", [4096, 4096], Init::Normal(0.02));
        let y = g.linear(x, w, None);
        let small = g.input("small", [8], DType::F32);
        let z = g.silu(small);
        let same = g.reshape(z, [2, 4]);
        g.output("y", y);
        g.output("z", same);
        let graph = g.finish().unwrap();
        let spec = DeviceSpec::from_name("cuda:a100-80").unwrap();
        let facts = spec.facts(&graph);
        let product = 2.0 * 4096f64.powi(3) / (0.75 * 19.5e12);
        assert!((facts.nodes[0].seconds / product - 1.0).abs() < 0.01, "{:?}", facts.nodes[0]);
        assert!(
            (facts.nodes[1].seconds / DeviceSpec::LAUNCH_SECONDS - 1.0).abs() < 0.01,
            "{:?}",
            facts.nodes[1]
        );
        assert_eq!(facts.nodes[2], NodeFacts::default(), "a view costs nothing");
        assert_eq!(
            (facts.nodes[0].workspace, facts.nodes[1].workspace.best),
            (Workspace::exactly(32 << 20), 0)
        );
    }
}
