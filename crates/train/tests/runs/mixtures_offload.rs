//! Mixtures of experts in a memory that is too small without a disk, dropless and with a capacity, in f32 and with values in
//! bf16: the bits are those of a run without limits, and the measured peak is the planned one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_graph::Precision;
use plimsoll_model::{Architecture, Preset, RouterLosses};
use plimsoll_plan::{Choice, Purpose, experts, report};
use plimsoll_train::{LanguageModel, Options};

use crate::arena::{DISK, InArena, assert_planned_peak, exactly, start};
use crate::support::{Batch, parameters, train_to_bits};

const ROWS: usize = 4;
const SEQ: usize = 32;

/// Micro-batches of two rows, dropless with two experts for each token or with one and a capacity.
fn case(capacity: Option<f32>, precision: Precision) -> InArena<LanguageModel> {
    let Architecture::Llama(mut model) = Preset::from_name("tiny-moe").unwrap().model.with_layers(3) else {
        unreachable!("the preset is a Llama")
    };
    let mixture = model.mixture.as_mut().unwrap();
    mixture.capacity = capacity;
    mixture.losses = RouterLosses { z: 0.01, ..mixture.losses };
    if capacity.is_some() {
        (mixture.chosen, mixture.normalised) = (1, false);
    }
    let model = LanguageModel { architecture: model.into(), seq_len: SEQ, generate: false, lora: None };
    let options = Options { global_batch: ROWS, threads: 2, precision, ..Options::default() };
    InArena { model, options, micro_batch: 2 }
}

/// Trains two steps by a plan; every loss, every norm and the final weights, as bits.
fn train(choice: Choice, vocab: usize) -> Vec<u32> {
    let mut run = start(2, exactly(choice));
    let bits =
        train_to_bits(&mut run, (0..2).map(|step| Batch::synthetic(ROWS, SEQ, vocab, false, step)), false);
    assert_planned_peak(&run);
    bits
}

/// The same for a router whose scores are all ties before each step.
fn train_tied(choice: Choice, vocab: usize, threads: usize) -> Vec<u32> {
    let mut run = start(threads, exactly(choice));
    let routers: Vec<String> =
        parameters(&run).into_iter().filter(|name| name.ends_with(".gate.weight")).collect();
    let mut bits = Vec::new();
    for step in 0..2 {
        for router in &routers {
            let zeros = vec![0.0; run.state(router).unwrap().len()];
            run.set_state(router, &zeros).unwrap();
        }
        bits.extend(train_to_bits(&mut run, [Batch::synthetic(ROWS, SEQ, vocab, false, step)], false));
    }
    assert_planned_peak(&run);
    bits
}

#[test]
fn a_tied_router_trains_to_the_same_bits_beside_a_disk_on_any_number_of_threads() {
    for capacity in [None, Some(1.0)] {
        let mut case = case(capacity, Precision::F32);
        let vocab = case.model.architecture.vocab();
        let expected = train_tied(case.plan(None, u64::MAX).unwrap(), vocab, 2);
        for threads in [1, 3] {
            case.options.threads = threads;
            let choice = case.plan(Some(DISK), case.smallest(Some(DISK))).unwrap();
            assert!(train_tied(choice, vocab, threads) == expected, "{threads} threads, {capacity:?}");
        }
    }
}

#[test]
fn experts_that_wait_on_a_disk_train_to_the_same_bits() {
    for (capacity, precision) in [
        (None, Precision::F32),
        (Some(1.0), Precision::F32),
        (None, Precision::Bf16),
        (Some(1.25), Precision::Bf16),
    ] {
        let case = case(capacity, precision);
        let vocab = case.model.architecture.vocab();
        let unlimited = case.plan(None, u64::MAX).unwrap();
        let most = unlimited.plan.arena_bytes.0;
        let expected = train(unlimited, vocab);
        let (least, alone) = (case.smallest(Some(DISK)), case.smallest(None));
        assert!(least < alone, "{least} bytes with a disk, {alone} without");
        for budget in [least, u64::midpoint(least, alone), alone, u64::midpoint(alone, most)] {
            let choice = case.plan(Some(DISK), budget).unwrap();
            assert!(choice.plan.arena_bytes.0 <= budget);
            if budget == least {
                let away = report(&choice.program, &choice.plan).state_bytes_away;
                let weights = away.iter().find(|(purpose, _)| *purpose == Purpose::Weights);
                let of_experts = experts(&choice.program, &choice.plan).unwrap().bytes[0].1;
                assert!(weights.is_some_and(|(_, bytes)| *bytes >= of_experts), "experts wait too: {away:?}");
            }
            assert!(
                train(choice, vocab) == expected,
                "other bits in {budget} bytes, {capacity:?} {precision}"
            );
        }
    }
}
