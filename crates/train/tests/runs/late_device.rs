//! A device that works late, with copies to a disk that end late too, trains with the bits of the CPU.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_graph::StateKind;
use plimsoll_model::Preset;
use plimsoll_plan::{Action, Choice};
use plimsoll_train::{LanguageModel, Options, Run};

use crate::arena::{DISK, InArena, device, exactly};
use crate::late::Late;
use crate::support::Batch;

const ROWS: usize = 4;

/// Losses, norms and lasting state of three steps, as bits.
fn trained(mut run: Run, model: &LanguageModel) -> Vec<u32> {
    let mut numbers = Vec::new();
    for step in 0..3 {
        let batch = Batch::synthetic(ROWS, model.seq_len, model.architecture.vocab(), false, step);
        let (losses, norm) = batch.step(&mut run, 1e-2);
        numbers.extend(losses);
        numbers.push(norm);
    }
    let lasting = run.states_of(|kind| !matches!(kind, StateKind::Gradient));
    let lasting: Vec<String> = lasting.map(|(name, _)| name.to_owned()).collect();
    numbers.extend(lasting.iter().flat_map(|name| run.state(name).unwrap()));
    numbers.into_iter().map(f32::to_bits).collect()
}

/// Transfers that begin in one schedule and end in the next.
fn crossing(choice: &Choice) -> usize {
    let actions = choice.plan.schedules.values().flat_map(|schedule| &schedule.actions);
    actions.filter(|action| matches!(action, Action::StartNext { .. })).count()
}

#[test]
fn copies_that_end_late_change_no_bit() {
    let Preset { model, seq, .. } = Preset::from_name("tiny").unwrap();
    let model = LanguageModel { architecture: model, seq_len: seq, generate: false, lora: None };
    let options = Options { global_batch: ROWS, threads: 2, ..Options::default() };
    let case = InArena { model, options, micro_batch: ROWS / 2 };
    let least = case.smallest(Some(DISK));
    let mut crossed = 0;
    for budget in [least, least * 3 / 2] {
        let plan = || case.plan(Some(DISK), budget).unwrap();
        let choice = plan();
        assert!(case.plan(None, budget).is_err(), "{budget} bytes need no disk");
        crossed += crossing(&choice);
        let run = |late: bool| {
            let cpu = device(2, Some(DISK));
            let device = if late { Box::new(Late::new(cpu)) } else { cpu };
            trained(Run::start(device, exactly(plan()), 7).unwrap(), &case.model)
        };
        assert_eq!(run(true), run(false), "{budget} bytes");
    }
    assert!(crossed > 0, "no transfer crosses from one schedule into the next");
}
