//! A disk that fails in the middle of a step: every call returns the error at once, and no thread hangs. The limit on file
//! sizes is the failure, and it holds for the process, so this test has a file of its own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_exec::{Data, Device, Engine};
use plimsoll_graph::{DType, Graph, Init, differentiate};
use plimsoll_plan::{ArenaBytes, Choice, Costed, Program, Request, Role, Searcher, search};

#[path = "support/disk.rs"]
mod disk;
use disk::{device, limit_files};

const ROWS: usize = 64;
const WIDTH: usize = 96;

fn program() -> Program {
    let mut g = Graph::new();
    let mut x = g.input("x", [ROWS, WIDTH], DType::F32); // (N, C)
    for layer in 0..6 {
        x = g.block(&format!("layer.{layer}"), |g| {
            let w = g.param("w", [WIDTH, WIDTH], Init::Normal(0.1)); // (C, C)
            let h = g.linear(x, w, None); // (N, C)
            g.silu(h)
        });
    }
    let loss = g.sum(x, &[0, 1]); // ()
    g.output("loss", loss);
    let graph = differentiate(&g.finish().unwrap(), loss).unwrap();
    Program { train: Costed { facts: device().facts(&graph), graph }, evaluate: None, generate: None }
}

/// The smallest plan, which sends everything away that can be sent.
fn smallest() -> Choice {
    let request = |budget| Request { global_batch: 1, micro_batch: None, strategy: None, budget, slack: 0.0 };
    let smallest = Searcher::once(|_: usize| Ok(program())).smallest(request(ArenaBytes(0))).unwrap();
    search(request(smallest.arena_bytes), |_| Ok(program())).unwrap()
}

#[test]
fn a_disk_that_fails_half_way_is_an_error_that_says_so() {
    let choice = smallest();
    assert!(!choice.plan.schedules[&Role::First].copies.is_empty());
    let mut engine = Engine::new(Box::new(device()), &choice.program, &choice.plan, 1).unwrap();
    let x: Vec<f32> = (0..ROWS * WIDTH).map(|i| (i as f32 * 0.37).sin()).collect();
    let run = |engine: &mut Engine| engine.run(Role::First, &[("x", Data::F32(&x))]);
    run(&mut engine).unwrap();
    assert!(choice.plan.state("layer.0.w").unwrap().tier.is_some(), "weights are away, too");
    let weights = |engine: &Engine| {
        let mut weights = vec![0.0; WIDTH * WIDTH];
        engine.read_state("layer.0.w", 0, &mut weights).unwrap();
        weights
    };
    let before = weights(&engine);
    limit_files(4096);
    let error = run(&mut engine).unwrap_err().to_string();
    limit_files(libc::RLIM_INFINITY);
    assert!(error.starts_with("cannot write to the offload file: "), "{error}");
    assert_eq!(run(&mut engine).unwrap_err().to_string(), error, "it stays what it is");
    assert_eq!(engine.write_state("layer.0.w", 0, &before).unwrap_err().to_string(), error);
    assert_eq!(weights(&engine), before, "what was not being written is there");
}
