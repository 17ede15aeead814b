//! Whole networks of the literature: one made here from its shapes, and the published graphs if their files are
//! present.
//!
//! The graphs that Checkmate published carry measured costs and are no part of this repository. To use them,
//! name their folder in `PLIMSOLL_CHECKMATE` and run `cargo test -p plimsoll-plan --release -- --ignored checkmate`.

use std::path::PathBuf;
use std::time::Instant;

use crate::remat::{Dag, DagEffort, DagNode, DagPlan, Unplannable, parse, plan_dag, simulate};

const GB: f64 = 1e9;

/// VGG16 (Simonyan and Zisserman, 2014) on 256 images, every output in fp32. A convolution's cost is its
/// multiplications in millions an image, anything else takes a tenth of a unit for each million numbers it writes.
fn vgg16() -> Dag {
    const IMAGES: u64 = 256;
    // Channels and side of each output, and how many numbers each of its numbers is a sum of.
    let convolutions = [(64, 224, 2), (128, 112, 2), (256, 56, 3), (512, 28, 3), (512, 14, 3)];
    let mut layers: Vec<(u64, u64)> = Vec::new();
    let mut channels = 3;
    for (width, side, count) in convolutions {
        for _ in 0..count {
            layers.push((width * side * side, 9 * channels));
            channels = width;
        }
        layers.push((width * side * side / 4, 0));
    }
    layers.extend([(25_088, 0), (4096, 25_088), (4096, 4096), (1000, 4096)]);
    let cost = |&(numbers, sum): &(u64, u64)| (numbers * sum.max(100)) as f64 / 1e6;
    let bytes = |&(numbers, _): &(u64, u64)| 4 * IMAGES * numbers;
    let count = layers.len();
    let node = |name: String, backward, cost, bytes, sources| DagNode {
        name,
        backward,
        cost,
        bytes,
        running: bytes,
        sources,
    };
    let mut nodes: Vec<DagNode> = (layers.iter().enumerate())
        .map(|(id, layer)| {
            node(format!("f{id}"), false, cost(layer), bytes(layer), id.checked_sub(1).into_iter().collect())
        })
        .collect();
    nodes.push(node("loss".into(), true, 1.0, 4 * IMAGES, vec![count - 1]));
    for (id, layer) in layers.iter().enumerate().rev() {
        // A gradient reads its layer's output, the next layer's output, and the gradient of that.
        let mut sources = vec![id, nodes.len() - 1];
        sources.extend((id + 1 < count).then_some(id + 1));
        sources.sort_unstable();
        nodes.push(node(format!("b{id}"), true, 2.0 * cost(layer), bytes(layer), sources));
    }
    Dag { nodes }
}

fn peak(dag: &Dag) -> u64 {
    simulate(dag, &dag.keep_all()).unwrap().peak
}

/// Plans over `count` budgets up to keeping everything: none costs more than one in less memory, none exceeds its
/// budget or undercuts its bound.
fn check_grid(name: &str, dag: &Dag, least: u64, count: u64) {
    let (most, mut before) = (peak(dag), f64::INFINITY);
    for index in 0..=count {
        let memory = least + (most - least) * index / count;
        let plan = plan_dag(dag, memory, DagEffort::default()).unwrap();
        assert!(plan.peak_bytes <= memory, "{name}, {memory} bytes: {} used", plan.peak_bytes);
        assert!(plan.lower_bound_cost <= plan.total_cost, "{name}, {memory} bytes");
        assert!(
            plan.total_cost <= before,
            "{name}: {} in {memory} bytes, {before} in fewer",
            plan.total_cost
        );
        before = plan.total_cost;
    }
    assert_eq!(before.to_bits(), dag.base_cost().to_bits(), "{name} with all the memory");
}

/// The smallest budget that a refusal names.
fn smallest(dag: &Dag) -> u64 {
    match plan_dag(dag, 1, DagEffort::default()) {
        Err(Unplannable::TooSmall { smallest } | Unplannable::NotFound { smallest, .. }) => smallest,
        other => panic!("{other:?}"),
    }
}

#[test]
fn vgg16_is_planned_optimally_down_to_what_its_last_gradient_needs() {
    let dag = vgg16();
    // Both are sums of output sizes: at the turn everything, at the end two outputs and two gradients of block 1.
    assert_eq!(peak(&dag), 15_825_108_992);
    let least = 4 * 3_288_334_336;
    assert_eq!(
        plan_dag(&dag, least - 1, DagEffort::default()).unwrap_err(),
        Unplannable::TooSmall { smallest: least }
    );
    for memory in
        [15.8, 15.5, 15.03, 15.0, 14.5, 13.155].map(|budget| (budget * GB) as u64).into_iter().chain([least])
    {
        let plan = plan_dag(&dag, memory, DagEffort::default()).unwrap();
        assert!(plan.peak_bytes <= memory);
        assert_eq!(plan.total_cost.to_bits(), plan.lower_bound_cost.to_bits(), "{memory} bytes");
        assert!(plan.total_cost > dag.base_cost(), "{memory} bytes");
    }
    check_grid("vgg16", &dag, least, 200);
}

/// One of the published graphs.
fn published(name: &str) -> Dag {
    let folder =
        std::env::var_os("PLIMSOLL_CHECKMATE").expect("PLIMSOLL_CHECKMATE names the folder of the graphs");
    let file = PathBuf::from(folder).join(format!("checkmate_{name}.json"));
    parse(&std::fs::read_to_string(file).unwrap()).unwrap()
}

fn planned(dag: &Dag, memory: f64) -> DagPlan {
    plan_dag(dag, memory as u64, DagEffort::default()).unwrap()
}

/// Overhead in per cent at a share of the peak.
fn overhead(dag: &Dag, share: f64) -> f64 {
    let plan = planned(dag, share * peak(dag) as f64);
    100.0 * (plan.total_cost / plan.base_cost - 1.0)
}

#[test]
#[ignore = "reads the graphs that Checkmate published"]
fn checkmate_vgg16_and_vgg19_cost_what_an_exhaustive_search_found() {
    let dag = published("vgg16");
    let known = [
        (15.83, 15500.0),
        (15.8, 15620.0),
        (15.5, 15620.0),
        (15.03, 15620.0),
        (15.0, 15755.0),
        (14.5, 15805.0),
    ];
    for (memory, cost) in known.into_iter().chain([(13.155, 15805.0)]) {
        assert_eq!(
            planned(&dag, memory * GB).total_cost.to_bits(),
            f64::to_bits(cost),
            "VGG16 in {memory} GB"
        );
    }
    assert!(matches!(
        plan_dag(&dag, (13.1 * GB) as u64, DagEffort::default()),
        Err(Unplannable::TooSmall { .. })
    ));
    let dag = published("vgg19");
    for (memory, ratio) in
        [(17.0, 1.0001), (16.0, 1.0006), (15.0, 1.0013), (14.0, 1.0268), (13.5, 1.0277), (13.2, 1.0278)]
    {
        let plan = planned(&dag, memory * GB);
        assert!(
            (plan.total_cost / plan.base_cost - ratio).abs() <= 0.5e-4,
            "VGG19 in {memory} GB: {}",
            plan.total_cost
        );
    }
}

#[test]
#[ignore = "reads the graphs that Checkmate published"]
fn checkmate_networks_are_at_the_published_optima() {
    let resnet = published("resnet50");
    for (share, published) in [(0.9, 0.1), (0.8, 0.3)] {
        assert!((overhead(&resnet, share) - published).abs() <= 0.05, "ResNet50 at {share}");
    }
    let fcn8 = published("fcn8");
    for (share, published) in [(0.9, 0.0), (0.8, 0.1)] {
        assert!((overhead(&fcn8, share) - published).abs() <= 0.05, "FCN8 at {share}");
    }
    let unet = published("unet");
    for (share, limit) in [(0.95, 1.14), (0.9, 1.63), (0.8, 2.63)] {
        assert!(overhead(&unet, share) < limit, "U-Net at {share}");
    }
}

#[test]
#[ignore = "reads the graphs that Checkmate published, and takes minutes"]
fn checkmate_networks_never_cost_more_in_more_memory() {
    for (name, count) in [("vgg16", 100), ("vgg19", 100), ("fcn8", 100), ("unet", 100), ("resnet50", 40)] {
        let dag = published(name);
        let (start, least) = (Instant::now(), smallest(&dag));
        check_grid(name, &dag, least, count);
        println!("{name}: {count} budgets from {least} bytes in {:.1} s", start.elapsed().as_secs_f64());
    }
}

#[test]
#[ignore = "reads the graphs that Checkmate published, and prints a table"]
fn checkmate_table() {
    for name in ["vgg16", "vgg19", "fcn8", "unet", "resnet50"] {
        let dag = published(name);
        let (peak, least) = (peak(&dag), smallest(&dag));
        let shares = (2..20).rev().map(|index| index as f64 / 20.0);
        let budgets = shares.map(|share| (share * peak as f64) as u64).filter(|&memory| memory > least);
        for memory in budgets.chain([least]) {
            let start = Instant::now();
            let plan = plan_dag(&dag, memory, DagEffort::default()).unwrap();
            let (share, seconds) = (memory as f64 / peak as f64, start.elapsed().as_secs_f64());
            let [cost, bound] =
                [plan.total_cost, plan.lower_bound_cost].map(|cost| 100.0 * (cost / plan.base_cost - 1.0));
            println!("{name} {share:.3} ({memory} B): {cost:.3} / {bound:.3} %, {seconds:.3} s");
        }
    }
}
