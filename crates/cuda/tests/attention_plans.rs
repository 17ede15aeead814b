//! cuDNN's plans for attention, made without a GPU, ask for the scratch that the committed table says; and memory plans for a
//! GPU that is only described count the same scratch. Runs where cuDNN is fetched by `scripts/attention_plans.sh`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fetched;

use std::path::Path;
use std::process::Command;

use fetched::{cached, not_run};
use plimsoll_cuda::lower::{AttentionShape, Library, Limits, Signature, needs};
use plimsoll_cuda::{AttentionTable, Libraries, half_cases};
use plimsoll_graph::op::Mask;
use plimsoll_graph::{DType, Graph, Op};
use plimsoll_plan::DeviceSpec;
use tempfile::TempDir;

const TABLE: &str = include_str!("../kernels/attention_plans.txt");
const H200: &str = include_str!("../described/h200.json");

/// Stand-ins for driver and compiler, built from our sources; `None`, with a printed note, where there is no C compiler.
fn stand_ins() -> Option<TempDir> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("described");
    let folder = tempfile::tempdir().unwrap();
    for (source, library) in [("driver.c", "libcuda.so.1"), ("compiler.c", "libnvrtc.so.13")] {
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1"]).arg(format!("-Wl,-soname,{library}"));
        match compiler.arg("-o").arg(folder.path().join(library)).arg(sources.join(source)).output() {
            Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => {
                not_run("plans of cuDNN", &format!("there is no C compiler `cc` ({error})"));
                return None;
            }
        }
    }
    Some(folder)
}

#[test]
fn plans_made_without_a_gpu_ask_for_the_scratch_that_the_table_says() {
    let Some(library) = cached("cudnn-9.19.0.56").filter(|folder| folder.join("libcudnn.so.9").exists())
    else {
        not_run(
            "plans of cuDNN",
            "the library is not there; scripts/attention_plans.sh --fetch-only fetches it",
        );
        return;
    };
    let Some(stand_ins) = stand_ins() else { return };
    let libraries = Libraries { folders: vec![stand_ins.path().to_owned(), library] };
    let found = AttentionTable::described(&libraries, H200).unwrap();
    assert!(found.rows.len() > 100, "{} plans", found.rows.len());
    let text = found.to_string();
    let [fresh, gone] = [(text.as_str(), TABLE), (TABLE, &text)].map(|(these, those)| {
        these.lines().filter(|line| !those.lines().any(|other| other == *line)).collect::<Vec<_>>()
    });
    assert!(
        text == TABLE,
        "write the table again with scripts/attention_plans.sh\nnow {fresh:#?}\nbefore {gone:#?}"
    );
}

/// The committed table as a library: scratch by shape. A shape that it lacks is a failure.
#[derive(Debug)]
struct Committed;

impl Library for Committed {
    fn workspace(&self, _: &Signature) -> Option<u64> {
        None
    }

    fn attention(&self, shape: &AttentionShape) -> Option<u64> {
        let name = AttentionTable::row_name(shape);
        let row = TABLE.lines().find_map(|line| line.strip_prefix(&name));
        let row = row.unwrap_or_else(|| panic!("the table has no `{name}`"));
        if row.contains("refused") {
            None
        } else {
            Some(row.split_whitespace().nth(1).unwrap().parse().unwrap())
        }
    }
}

#[test]
fn attention_of_every_conformance_case_has_a_row_in_the_table_for_fast_and_deterministic_runs() {
    let mut asked = 0;
    for case in half_cases() {
        if !matches!(case.op, Op::Attention { .. } | Op::AttentionGrad { .. }) {
            continue;
        }
        let inputs: Vec<_> = case.inputs.iter().map(|input| input.ty).collect();
        for deterministic in [false, true] {
            let limits = Limits { deterministic, ..Limits::default() };
            needs(&case.op, &inputs, &case.output_types(), &Committed, limits).unwrap();
            asked += 1;
        }
    }
    assert!(asked > 30, "{asked} requests");
}

/// Attention and its derivative as a graph of two nodes.
fn attention([batch, length, heads, key_heads, width]: [usize; 5], causal: bool) -> Graph {
    let (mask, scale) = (Mask { causal, window: None, documents: false }, 1.0 / (width as f32).sqrt());
    let mut g = Graph::new();
    let [q, d_o] = ["q", "do"].map(|name| g.input(name, [batch, length, heads, width], DType::Bf16)); // (B, T, H, D)
    let [k, v] = ["k", "v"].map(|name| g.input(name, [batch, length, key_heads, width], DType::Bf16)); // (B, T, K, D)
    let forward = g.apply_all(Op::Attention { mask, scale }, &[q, k, v]);
    let [o, lse] = [0, 1].map(|output| g.node(forward).outputs[output]);
    let backward = g.apply_all(Op::AttentionGrad { mask, scale }, &[q, k, v, o, lse, d_o]);
    let dq = g.node(backward).outputs[0];
    g.output("dq", dq);
    g.finish().unwrap()
}

#[test]
fn a_memory_plan_for_a_described_h200_counts_the_scratch_that_cudnn_asks_for() {
    let spec = DeviceSpec::from_name("cuda:h200").unwrap();
    let shapes = [
        ([8, 2048, 32, 8, 64], true),
        ([2, 4096, 32, 8, 128], true),
        ([32, 1024, 14, 2, 64], true),
        ([16, 1024, 12, 12, 64], true),
        ([16, 512, 12, 12, 64], false),
    ];
    for (extents, causal) in shapes {
        let graph = attention(extents, causal);
        let facts = spec.facts(&graph);
        for (node, stated) in graph.nodes().iter().zip(&facts.nodes) {
            let (inputs, outputs) = (graph.input_types(node), graph.output_types(node));
            let needs = needs(&node.op, &inputs, &outputs, &Committed, Limits::default()).unwrap();
            assert_eq!(stated.workspace.best, needs.scratch, "{} {extents:?}", node.op.name());
        }
    }
}
