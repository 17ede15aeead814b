//! Training with a disk beside a memory that is too small without one: the bits are those of a run without limits, the
//! measured peak is the planned one, and a disk that fails is an error, not a crash.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the table is what a reader wants to see")]

use plimsoll_model::Preset;
use plimsoll_plan::{Choice, Direction, Role, report};
use plimsoll_train::{LanguageModel, Options};

use crate::arena::{DISK, InArena, assert_planned_peak, exactly, start};
use crate::support::{Batch, train_to_bits};

const ROWS: usize = 4;

/// Micro-batches of two rows.
fn case() -> InArena<LanguageModel> {
    let Preset { model, seq, .. } = Preset::from_name("tiny").unwrap();
    let model = LanguageModel { architecture: model, seq_len: seq, generate: false, lora: None };
    let options = Options { global_batch: ROWS, threads: 2, ..Options::default() };
    InArena { model, options, micro_batch: 2 }
}

/// Trains two steps by a plan; every loss, every norm and the final weights, as bits.
fn train(choice: Choice) -> Vec<u32> {
    let mut run = start(2, exactly(choice));
    let bits = train_to_bits(&mut run, (0..2).map(batch), false);
    assert_planned_peak(&run);
    bits
}

fn batch(step: usize) -> Batch {
    let model = case().model;
    Batch::synthetic(ROWS, model.seq_len, model.architecture.vocab(), false, step)
}

#[test]
fn a_budget_that_recompute_alone_cannot_keep_trains_to_the_same_bits() {
    let case = case();
    let unlimited = case.plan(None, u64::MAX).unwrap();
    let most = unlimited.plan.arena_bytes.0;
    let expected = train(unlimited);
    let (least, without_disk) = (case.smallest(Some(DISK)), case.smallest(None));
    assert!(least < without_disk, "{least} bytes with a disk, {without_disk} without");
    for budget in [least, u64::midpoint(least, without_disk), without_disk, u64::midpoint(without_disk, most)]
    {
        let alone = case.plan(None, budget);
        let choice = case.plan(Some(DISK), budget).unwrap();
        let report = report(&choice.program, &choice.plan);
        let copies = &choice.plan.schedules[&Role::First].copies;
        let ways = |way| copies.iter().filter(|copy| copy.direction() == Some(way)).count();
        println!(
            "budget {budget}: {} bytes offloaded, {} out, {} in, {:.2} % of the forward pass again",
            report.offload_bytes,
            ways(Direction::Out),
            ways(Direction::In),
            100.0 * report.recompute_fraction
        );
        assert_eq!(alone.is_err(), budget < without_disk);
        assert!(ways(Direction::In) >= ways(Direction::Out) && ways(Direction::Out) > 0);
        assert!(report.layers.iter().any(|layer| !layer.offload.is_empty()));
        assert!(choice.plan.arena_bytes.0 <= budget);
        assert!(train(choice) == expected, "other bits in {budget} bytes");
    }
}
