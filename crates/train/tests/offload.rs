//! Training with a disk beside a memory that is too small without one: the bits are those of a run without limits,
//! the measured peak is the planned one, and a disk that fails is an error and not the end of everything.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the table is what a reader wants to see")]

use plimsoll_exec::Device;
use plimsoll_model::Preset;
use plimsoll_plan::{Choice, Direction, Link, Request, Role, SearchError, Searcher, report, search};
use plimsoll_train::budget::{Budget, Origin};
use plimsoll_train::{LanguageModel, Options, Planned, Run, program};

#[path = "support/disk.rs"]
mod disk;
mod support;
use disk::DISK;
use support::{Batch, parameters};

const ROWS: usize = 4;
const THREADS: usize = 2;

fn device(link: Option<Link>) -> Box<dyn Device> {
    disk::device(THREADS, link)
}

fn model() -> LanguageModel {
    let Preset { model, seq, .. } = Preset::from_name("tiny").unwrap();
    LanguageModel { architecture: model, seq_len: seq, generate: false, lora: None }
}

/// The plan for an arena of `budget` bytes with the micro-batch pinned.
fn plan(link: Option<Link>, budget: u64) -> Result<Choice, SearchError> {
    let (device, options, model) = (device(link), Options::default(), model());
    search(request(budget), |rows| program(&model, &*device, &options, rows))
}

fn request(budget: u64) -> Request {
    Request { global_batch: ROWS, micro_batch: Some(2), strategy: None, budget, slack: 0.0 }
}

fn smallest(link: Option<Link>) -> u64 {
    let (device, options, model) = (device(link), Options::default(), model());
    let mut searcher = Searcher::once(|rows: usize| program(&model, &*device, &options, rows));
    searcher.smallest(request(0)).unwrap().arena_bytes
}

fn start(link: Option<Link>, choice: Choice) -> Run {
    let total = choice.plan.arena_bytes;
    let budget = Budget { total, outside: 0, origin: Origin::Stated, ceiling: None };
    Run::start(device(link), Planned { choice, budget }, 7).unwrap()
}

/// Trains two steps by a plan; every loss, every norm and the final weights, as bits.
fn train(link: Option<Link>, choice: Choice) -> Vec<u32> {
    let arena = choice.plan.arena_bytes;
    let mut run = start(link, choice);
    let mut numbers = Vec::new();
    for step in 0..2 {
        let (losses, norm) = batch(step).step(&mut run, 1e-2);
        numbers.extend(losses);
        numbers.push(norm);
    }
    for name in parameters(&run) {
        numbers.extend(run.state(&name).unwrap());
    }
    assert_eq!(run.engine().measured_peak(), arena, "measured and planned peak");
    assert!(run.engine().device().guard_is_intact(), "bytes behind the arena");
    numbers.into_iter().map(f32::to_bits).collect()
}

fn batch(step: usize) -> Batch {
    let model = model();
    Batch::synthetic(ROWS, model.seq_len, model.architecture.vocab(), false, step)
}

#[test]
fn a_budget_that_recompute_alone_cannot_keep_trains_to_the_same_bits() {
    let unlimited = plan(None, u64::MAX).unwrap();
    let most = unlimited.plan.arena_bytes;
    let expected = train(None, unlimited);
    let (least, without_disk) = (smallest(Some(DISK)), smallest(None));
    assert!(least < without_disk, "{least} bytes with a disk, {without_disk} without");
    for budget in [least, u64::midpoint(least, without_disk), without_disk, u64::midpoint(without_disk, most)]
    {
        let alone = plan(None, budget);
        let choice = plan(Some(DISK), budget).unwrap();
        let report = report(&choice.program, &choice.plan);
        let copies = &choice.plan.schedules[&Role::First].copies;
        let ways = |way| copies.iter().filter(|copy| copy.direction == way).count();
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
        assert!(choice.plan.arena_bytes <= budget);
        assert!(train(Some(DISK), choice) == expected, "other bits in {budget} bytes");
    }
}
