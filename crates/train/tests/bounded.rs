//! Loading, saving, checkpointing and resuming need no second copy of the weights: the process stays within 64 MiB
//! above its arena, which holds little but weights here.
//!
//! This file has a process of its own and runs one test, so the peak is that test's. The large model is for the record:
//! `cargo test --release -p plimsoll-train --test bounded -- --ignored`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use plimsoll_graph::{DType, Graph, GraphError, Init};
use plimsoll_train::checkpoint::{Checkpoints, EvaluationState};
use plimsoll_train::files::{Dtype, ModelFolder, ModelFormat};
use plimsoll_train::{Options, Run, memory};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const WIDE: usize = 4096;
const NARROW: usize = 1024;

/// A chain of frozen matrices of 16 MiB, wide and narrow in turn; only its small head is trained, so
/// there are next to no gradients and moments.
fn chain(matrices: usize) -> impl Fn(usize) -> Result<Graph, GraphError> {
    move |rows| {
        let mut g = Graph::new();
        let mut x = g.input("x", [rows, NARROW], DType::F32);
        for which in 0..matrices {
            let shape = if which % 2 == 0 { [WIDE, NARROW] } else { [NARROW, WIDE] };
            let w = g.frozen(&format!("w{which}"), shape, Init::Fill(which as f32 + 0.25));
            x = g.linear(x, w, None);
        }
        let targets = g.input("targets", [rows], DType::I32);
        let scale = g.loss_scale();
        let head = g.param("head", [8, NARROW], Init::Fill(0.5));
        let loss = g.head_loss(x, head, None, targets, scale, -100);
        g.output("loss", loss);
        g.finish()
    }
}

fn stays_bounded(matrices: usize) {
    let folder = TempDir::new().unwrap();
    let weights = 16 * MIB * matrices as u64;
    let options =
        Options { memory: Some(2 * weights + 512 * MIB), micro_batch: Some(1), ..Options::default() };
    let mut run = Run::new(chain(matrices), &options).unwrap();
    assert!(run.plan().arena_bytes.0 < weights + 32 * MIB, "the arena is more than weights");

    let halves = ModelFormat { dtype: Some(Dtype::BF16), ..ModelFormat::default() };
    run.save_weights(&folder.path().join("model"), &halves).unwrap();
    let spoil = vec![9.0; NARROW];
    for (name, expected) in [("w0", 0.25), ("w3", 3.25)] {
        run.engine_mut().write_state(name, 5 * NARROW, &spoil).unwrap();
        run.load_weights(&ModelFolder::open(&folder.path().join("model")).unwrap(), &halves).unwrap();
        let mut row = vec![0.0; NARROW];
        run.engine().read_state(name, 5 * NARROW, &mut row).unwrap();
        assert_eq!(row, vec![expected; NARROW]);
    }

    let checkpoints = Checkpoints::open(&folder.path().join("out"), ModelFormat::default(), None).unwrap();
    checkpoints.save(&run, 0, &BTreeMap::new(), &EvaluationState::default()).unwrap();
    let checkpoint = checkpoints.latest().unwrap().checkpoint.unwrap();
    checkpoints.restore(&mut run, &checkpoint, &BTreeMap::new()).unwrap();

    let peak = memory::process().unwrap().peak;
    assert!(peak > weights, "the peak was not measured: {peak}");
    assert!(peak < weights + 64 * MIB, "{} MiB above the weights", (peak - weights) / MIB);
}

#[test]
fn files_of_256_mib_pass_through_64() {
    stays_bounded(16);
}

#[test]
#[ignore = "writes 3 GiB and takes as much memory; for the record"]
fn files_of_2_gib_pass_through_64() {
    stays_bounded(128);
}
