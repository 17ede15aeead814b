//! A device that works late, with copies to a disk that end late too, trains with the bits of the CPU: steps alone, and
//! steps with evaluations, saves and a resumed run between them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use plimsoll_exec::Device;
use plimsoll_graph::StateKind;
use plimsoll_model::Preset;
use plimsoll_plan::{Action, Choice, Plan};
use plimsoll_train::data::{Batches, Order, Source, Text};
use plimsoll_train::trainer::{Decay, Event, Listener, Lr, TrainLoop, ValidationSet};
use plimsoll_train::{LanguageModel, Options, Run, TrainError, Trainer};
use tempfile::TempDir;

use crate::arena::{DISK, InArena, assert_planned_peak, device, exactly};
use crate::late::Late;
use crate::running::{bits, latest, open, write_text};
use crate::support::{Batch, Size, gpt2};

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
fn crossing(plan: &Plan) -> usize {
    let actions = plan.schedules.values().flat_map(|schedule| &schedule.actions);
    actions.filter(|action| matches!(action, Action::StartNext { .. })).count()
}

/// The processor with a disk, which works late or does not.
fn beside_a_disk(late: bool) -> Box<dyn Device> {
    let cpu = device(2, Some(DISK));
    if late { Box::new(Late::new(cpu)) } else { cpu }
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
        crossed += crossing(&choice.plan);
        let run =
            |late: bool| trained(Run::start(beside_a_disk(late), exactly(plan()), 7).unwrap(), &case.model);
        assert_eq!(run(true), run(false), "{budget} bytes");
    }
    assert!(crossed > 0, "no transfer crosses from one schedule into the next");
}

/// With dropout, which training has and evaluation has not.
const SIZE: Size = Size { vocab: 259, seq: 16, width: 32, layers: 2, ffn: 64, dropout: 0.1 };
/// Steps in all, and those before the run pauses.
const STEPS: u64 = 6;
const PAUSE: u64 = 3;

/// Where a part of a run trains.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// On the processor in all the memory it wants.
    Roomy,
    /// On the processor in the smallest arena beside a disk.
    Disk,
    /// The same on the device that works late.
    LateDisk,
}

/// A trainer on a text, with a set to evaluate on.
fn trainer(place: Place, text: &Path) -> (Trainer, ValidationSet) {
    let model = LanguageModel { architecture: gpt2(SIZE), seq_len: SIZE.seq, generate: false, lora: None };
    let options = Options { global_batch: ROWS, threads: 2, evaluate: true, ..Options::default() };
    let case = InArena { model, options, micro_batch: ROWS / 2 };
    let run = if let Place::Roomy = place {
        let choice: Choice = case.plan(None, u64::MAX).unwrap();
        Run::start(device(2, None), exactly(choice), 7).unwrap()
    } else {
        let choice = case.plan(Some(DISK), case.smallest(Some(DISK))).unwrap();
        assert!(crossing(&choice.plan) > 0, "no transfer crosses from one schedule into the next");
        assert!(choice.plan.states.iter().any(|range| range.tier.is_some()), "no state is away");
        Run::start(beside_a_disk(matches!(place, Place::LateDisk)), exactly(choice), 7).unwrap()
    };
    let source =
        |seed| Source::Text(Text::open(text, SIZE.seq, SIZE.vocab, Order::Shuffled { seed }).unwrap());
    let validation = ValidationSet::new(source(8), run.micro_batch(), Some(5));
    let batches = Batches::new(source(7), ROWS as u64, run.micro_batch());
    let lr = Lr { peak: 1e-2, warmup_steps: 2, max_steps: 100, decay: Decay::Cosine };
    (Trainer::new(run, batches, lr), validation)
}

/// Trains from the latest checkpoint of `out`, if there is one, to a pause or the end, evaluating and saving after every
/// step. Adds the bits of every loss to `losses` and returns those of the state.
fn part(
    place: Place,
    (text, out): (&Path, &Path),
    pause: Option<u64>,
    losses: &mut Vec<(&'static str, u64)>,
) -> Vec<(String, Vec<u32>)> {
    let (mut trainer, mut validation) = trainer(place, text);
    let checkpoints = open(out, Some(1)).unwrap();
    if let Some(from) = latest(&checkpoints) {
        trainer.resume(&checkpoints, &from).unwrap();
    }
    let (eval_steps, save_steps) = (Some(1), Some(1));
    let course = TrainLoop { steps: STEPS, pause, logging_steps: 1, eval_steps, stopping: None, save_steps };
    let mut listener = |event: &Event<'_>| -> Result<(), TrainError> {
        match event {
            Event::Step(record) => losses.push(("trained", record.loss.to_bits())),
            Event::Evaluation(record) => losses.push(("evaluated", record.eval_loss.to_bits())),
            _ => {}
        }
        Ok(())
    };
    let listeners: &mut [&mut dyn Listener<TrainError>] = &mut [&mut listener];
    trainer.train(&course, Some(&mut validation), Some(&checkpoints), listeners).unwrap();
    assert_planned_peak(trainer.run());
    bits(&trainer)
}

#[test]
fn evaluations_saves_and_resumed_runs_between_late_copies_change_no_bit() {
    let home = TempDir::new().unwrap();
    let text = write_text(home.path());
    let trained = |first: Place, second: Place| {
        let (out, mut losses) = (home.path().join(format!("{first:?}-{second:?}")), Vec::new());
        let [_, state] = [(first, Some(PAUSE)), (second, None)]
            .map(|(place, pause)| part(place, (&text, &out), pause, &mut losses));
        (losses, state)
    };
    let expected = trained(Place::Roomy, Place::Roomy);
    let evaluations = expected.0.iter().filter(|(what, _)| *what == "evaluated").count();
    assert_eq!((expected.0.len(), evaluations), (2 * STEPS as usize, STEPS as usize));
    for (first, second) in
        [(Place::LateDisk, Place::LateDisk), (Place::LateDisk, Place::Disk), (Place::Disk, Place::LateDisk)]
    {
        assert!(trained(first, second) == expected, "{first:?}, then {second:?}");
    }
}
