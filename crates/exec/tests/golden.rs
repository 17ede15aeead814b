//! The reference kernels against `PyTorch`.
//!
//! `reference/ops.py` writes the cases; `cases::golden` gives the parameters of each. Results there are
//! computed in f64 and rounded to f32, as they are here, so the two may differ by the rounding of stored
//! statistics and little else.
#![allow(clippy::unwrap_used, reason = "a test may end where it finds a fault")]

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_exec::cases::{compare, golden as golden_ops};
use plimsoll_exec::reference::{Tensor, apply, eval};
use plimsoll_graph::{Op, Shape, Type, infer};

#[path = "../../graph/tests/support/op_names.rs"]
mod op_names;
#[path = "support/golden.rs"]
mod tensors;
use op_names::op_names;

/// Both sides work in f64 and round once. Gradients also read statistics (mean, rstd, log-sum-exp) that were rounded
/// to f32. Each rounding moves a result by about 2⁻²⁴ of its size, and some results read several statistics.
const TOLERANCE: f64 = 1e-6;

/// Ops that only move or round numbers: nothing may differ.
const EXACT: [&str; 10] = [
    "reshape",
    "transpose",
    "slice",
    "pad",
    "concat",
    "cast",
    "broadcast",
    "embedding",
    "top_k",
    "top_k_grad",
];

/// Ops that `PyTorch` cannot judge.
const EXCEPTIONS: [(&str, &str); 3] = [
    ("dropout", "the mask is a function of our own; the tests below look at its statistics and its bits"),
    (
        "jitter",
        "the factors are a function of our own; the tests below look at their statistics and their bits",
    ),
    ("dequantise", "bitsandbytes defines it; `quantised.rs` compares with its numbers"),
];

#[test]
fn every_golden_case_is_reproduced() {
    let golden = read();
    let ops = golden_ops();
    let listed: BTreeSet<&str> = ops.iter().map(|(name, _)| *name).collect();
    let stored: BTreeSet<&str> = golden.keys().map(String::as_str).collect();
    assert_eq!(listed, stored, "cases::golden and reference/ops.py differ");
    for (name, op) in &ops {
        let case = &golden[*name];
        let tolerance = if EXACT.contains(&op.name()) { 0.0 } else { TOLERANCE };
        let outputs = run(name, op, case);
        for (index, (expected, actual)) in case.outputs.iter().zip(&outputs).enumerate() {
            compare(expected, actual, tolerance, 0.0)
                .unwrap_or_else(|why| panic!("{name}: output {index} {why}"));
        }
    }
}

#[test]
fn every_op_has_a_golden_case_or_a_reason_why_not() {
    let covered: BTreeSet<&str> = golden_ops().iter().map(|(_, op)| op.name()).collect();
    let excepted: BTreeSet<&str> = EXCEPTIONS.iter().map(|(name, _)| *name).collect();
    for name in op_names() {
        assert!(covered.contains(name) != excepted.contains(name), "{name}");
    }
}

#[test]
fn dropout_drops_as_often_as_asked_and_keeps_the_mean() {
    for p in [0.1f32, 0.5, 0.9] {
        let results = dropout(p, 77, [200, 100].into(), [1, 2, 3, 0]);
        let share = results.iter().filter(|&&x| x <= 0.0).count() as f64 / results.len() as f64;
        // 20 000 draws: the share has a standard deviation of at most 0.0036.
        assert!((share - f64::from(p)).abs() < 0.015, "{share} dropped for {p}");
        let mean = results.iter().sum::<f64>() / results.len() as f64;
        assert!((mean - 1.0).abs() < 0.1, "mean {mean} for {p}");
    }
}

#[test]
fn dropout_masks_of_other_streams_steps_and_seeds_have_nothing_in_common() {
    let mask = |stream, rng| dropout(0.5, stream, [64, 64].into(), rng);
    let first = mask(1, [1, 0, 0, 0]);
    for other in [mask(2, [1, 0, 0, 0]), mask(1, [2, 0, 0, 0]), mask(1, [1, 1, 0, 0]), mask(1, [1, 0, 1, 0])]
    {
        let agree = first.iter().zip(&other).filter(|(a, b)| a.total_cmp(b).is_eq()).count();
        // 4096 coin flips: standard deviation 32.
        assert!(agree.abs_diff(2048) < 160, "{agree} of 4096 agree");
    }
}

/// A run must be repeatable with later versions, so the mask is pinned.
#[test]
fn the_dropout_mask_stays_what_it_is() {
    let results = dropout(0.5, 0x0123_4567_89ab_cdef, [4, 8].into(), [12345, -7, 3, 40]);
    let picture = |row: &[f64]| row.iter().map(|&x| if x > 0.0 { '#' } else { '.' }).collect::<String>();
    assert_eq!(
        results.chunks(8).map(picture).collect::<Vec<_>>(),
        ["##.##...", "##..#.#.", "#.###.#.", ".#.#.#.#"]
    );
}

#[test]
fn factors_of_a_jitter_fill_the_interval_evenly_and_keep_the_mean() {
    for noise in [0.01f32, 0.1, 0.9] {
        let factors = of_ones(&Op::Jitter { noise, stream: 77 }, [200, 100].into(), [1, 2, 3, 0]);
        let reach = f64::from(noise);
        let mean = factors.iter().sum::<f64>() / factors.len() as f64;
        let square = factors.iter().map(|x| (x - 1.0).powi(2)).sum::<f64>() / factors.len() as f64;
        // 20 000 draws: the mean has a standard deviation of 0.0041 of the noise, the mean square one of 0.0021 of its square.
        assert!((mean - 1.0).abs() < 0.017 * reach, "mean {mean} for {noise}");
        assert!((square / reach.powi(2) - 1.0 / 3.0).abs() < 0.01, "mean square {square} for {noise}");
        assert!(factors.iter().all(|x| (x - 1.0).abs() <= reach + 1e-6), "{noise}");
    }
}

/// A run must be repeatable with later versions, so the factors are pinned: they are above 1 where the bits of dropout's
/// mask keep an element at `p` = 0.5.
#[test]
fn the_factors_of_a_jitter_stay_what_they_are() {
    let op = Op::Jitter { noise: 0.1, stream: 0x0123_4567_89ab_cdef };
    let factors = of_ones(&op, [4, 8].into(), [12345, -7, 3, 40]);
    let picture = |row: &[f64]| row.iter().map(|&x| if x >= 1.0 { '#' } else { '.' }).collect::<String>();
    assert_eq!(
        factors.chunks(8).map(picture).collect::<Vec<_>>(),
        ["##.##...", "##..#.#.", "#.###.#.", ".#.#.#.#"]
    );
}

fn dropout(p: f32, stream: u64, shape: Shape, rng: [i32; 4]) -> Vec<f64> {
    of_ones(&Op::Dropout { p, stream }, shape, rng)
}

fn of_ones(op: &Op, shape: Shape, rng: [i32; 4]) -> Vec<f64> {
    let ones = Tensor::f32(shape, vec![1.0; shape.elements()]);
    let rng = Tensor::i32([4], rng.to_vec());
    apply(op, &[&ones, &rng]).unwrap()[0].numbers()
}

/// One case of the file, each list in the order of `op.rs`.
#[derive(Default)]
struct Golden {
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    state: Vec<Tensor>,
}

fn run(name: &str, op: &Op, case: &Golden) -> Vec<Tensor> {
    let inputs: Vec<&Tensor> = case.inputs.iter().collect();
    let types: Vec<Type> = inputs.iter().map(|input| input.ty).collect();
    let types = infer(op, &types).unwrap_or_else(|why| panic!("{name}: {why}"));
    assert_eq!(types.len(), case.outputs.len(), "outputs of {name}");
    let adding = !case.state.is_empty();
    let accumulate: Vec<bool> = (0..types.len()).map(|output| adding && op.can_accumulate(output)).collect();
    let mut outputs: Vec<Tensor> =
        if adding { case.state.clone() } else { types.into_iter().map(Tensor::zeros).collect() };
    eval(op, &inputs, &mut outputs, &accumulate).unwrap_or_else(|error| panic!("{name}: {error}"));
    outputs
}

fn read() -> BTreeMap<String, Golden> {
    let mut golden: BTreeMap<String, Golden> = BTreeMap::new();
    // Names sort by role and index, since an index has one digit.
    for (name, tensor) in tensors::tensors("ops") {
        let (case, role) = name.split_once('/').unwrap();
        let entry = golden.entry(case.to_owned()).or_default();
        match role.split_once('.').unwrap().0 {
            "in" => entry.inputs.push(tensor),
            "out" => entry.outputs.push(tensor),
            "state" => entry.state.push(tensor),
            other => panic!("{name} has the role {other}"),
        }
    }
    golden
}
