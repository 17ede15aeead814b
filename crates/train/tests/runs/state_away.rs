//! Training in less memory than the state alone has: moments, weights and gradient sums live on a disk and come in for
//! their stays. The bits are those of a run without limits, the measured peak is the planned one, and saving, resuming,
//! evaluation and generation are right.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the table is what a reader wants to see")]

use plimsoll_graph::StateKind;
use plimsoll_model::{Lora, Preset};
use plimsoll_plan::{Choice, Draft, Link, Purpose, Role, file, report};
use plimsoll_train::data::{Batches, Order, Source, Text};
use plimsoll_train::files::{ModelFolder, ModelFormat};
use plimsoll_train::trainer::{Decay, Lr};
use plimsoll_train::{LanguageModel, Optimizer, Options, Trainer, Update};
use tempfile::TempDir;

use crate::arena::{DISK, InArena, assert_planned_peak, exactly, start};
use crate::running::{bits, latest, open, save, take, write_text};
use crate::support::{Batch, Size, gpt2};

const ROWS: usize = 4;
const STEPS: usize = 2;
const LR: f32 = 1e-2;

/// A model and how it is trained.
struct Case(InArena<LanguageModel>);

impl Case {
    fn new(options: Options) -> Case {
        let Preset { model, seq, .. } = Preset::from_name("tiny").unwrap();
        let model = LanguageModel { architecture: model, seq_len: seq, generate: false, lora: None };
        let in_backward = options.update != Update::Separate;
        let micro_batch = if in_backward { ROWS } else { ROWS / 2 };
        let options = Options { global_batch: ROWS, threads: 2, ..options };
        Case(InArena { model, options, micro_batch })
    }

    /// Trains by a plan; returns every loss and norm, the results of evaluation and generation, and all lasting state.
    fn train(&self, choice: Choice) -> Vec<u32> {
        let Case(InArena { model, options, .. }) = self;
        let vocab = model.architecture.vocab();
        let mut run = start(2, exactly(choice));
        let mut numbers = Vec::new();
        for step in 0..STEPS {
            let batch = Batch::synthetic(ROWS, model.seq_len, vocab, false, step);
            let (losses, norm) = batch.step(&mut run, LR);
            numbers.extend(losses);
            numbers.push(norm);
            if options.evaluate {
                let rows = run.micro_batch();
                numbers.extend(batch.micro_batches(rows).map(|inputs| run.evaluate(&inputs).unwrap()));
            }
            if model.generate {
                let mut logits = vec![0.0; vocab];
                run.generate(&batch.tokens[..model.seq_len], 5, &mut logits).unwrap();
                numbers.extend(logits);
            }
        }
        assert_planned_peak(&run);
        let lasting = run.states_of(|kind| !matches!(kind, StateKind::Gradient));
        let lasting: Vec<String> = lasting.map(|(name, _)| name.to_owned()).collect();
        numbers.extend(lasting.iter().flat_map(|name| run.state(name).unwrap()));
        numbers.into_iter().map(f32::to_bits).collect()
    }

    /// Trains in budgets below the size of the state, and returns the state that was away in the smallest and in the
    /// largest.
    fn check(&self, name: &str) -> [Vec<(Purpose, u64)>; 2] {
        let unlimited = self.0.plan(None, u64::MAX).unwrap();
        let state: u64 = unlimited.plan.states.iter().map(|range| range.bytes).sum();
        let expected = self.train(unlimited);
        let least = self.0.smallest(Some(DISK));
        assert!(least < state, "{name}: {least} bytes with a disk, {state} of state");
        let away = [least, u64::midpoint(least, state), state].map(|budget| {
            assert!(self.0.plan(None, budget).is_err(), "{name}: {budget} bytes need no disk");
            let choice = self.0.plan(Some(DISK), budget).unwrap();
            let report = report(&choice.program, &choice.plan);
            println!(
                "{name}: budget {budget} of {state}, away {:?}, {} bytes of values sent, {:.4} s a step",
                report.state_bytes_away,
                report.offload_bytes,
                choice.step_seconds()
            );
            assert!(choice.plan.arena_bytes.0 <= budget && !report.state_bytes_away.is_empty());
            assert!(self.train(choice) == expected, "{name}: other bits in {budget} bytes");
            report.state_bytes_away
        });
        let [smallest, _, largest] = away;
        [smallest, largest]
    }
}

fn of(away: &[(Purpose, u64)], purpose: Purpose) -> u64 {
    away.iter().filter(|(known, _)| *known == purpose).map(|(_, bytes)| bytes).sum()
}

#[test]
fn moments_leave_first_then_weights_then_gradients_and_no_bit_changes() {
    let mut case = Case::new(Options { evaluate: true, ..Options::default() });
    case.0.model.generate = true;
    let [smallest, largest] = case.check("separate");
    assert!(of(&largest, Purpose::Optimizer) > 0);
    assert_eq!(of(&largest, Purpose::Gradients), 0);
    for purpose in [Purpose::Optimizer, Purpose::Weights, Purpose::Gradients] {
        assert!(of(&smallest, purpose) > 0, "{}", purpose.name());
    }
}

#[test]
fn updates_inside_the_backward_pass_find_their_state_in_one_pass_and_in_two() {
    let optimizer = Optimizer { max_grad_norm: None, ..Optimizer::default() };
    let one = Options { optimizer, update: Update::InBackward, ..Options::default() };
    let [_, largest] = Case::new(one).check("in the backward pass");
    assert!(of(&largest, Purpose::Optimizer) > 0);
    let two = Options { update: Update::TwoPass, ..Options::default() };
    let [_, largest] = Case::new(two).check("in two passes");
    assert!(of(&largest, Purpose::Optimizer) > 0);
}

#[test]
fn frozen_weights_under_adapters_leave_and_are_never_written() {
    let mut case = Case::new(Options::default());
    case.0.model.lora = Some(Lora { rank: 4, ..Lora::default() });
    let [smallest, largest] = case.check("adapters");
    assert!(of(&largest, Purpose::Weights) > 0);
    let choice = case.0.plan(Some(DISK), case.0.smallest(Some(DISK))).unwrap();
    let update = &choice.plan.schedules[&Role::Update];
    let moved: u64 = update.copies.iter().filter_map(|copy| Some(update.buffer(copy.buffer()?).bytes)).sum();
    assert!(moved < of(&smallest, Purpose::Weights) / 2, "an update moves {moved} bytes");
}

#[test]
fn a_plan_file_says_where_state_lives_and_the_judge_believes_no_draft_that_lies() {
    let case = Case::new(Options::default());
    let choice = case.0.plan(Some(DISK), case.0.smallest(Some(DISK))).unwrap();
    let text = file::write(&choice, choice.plan.arena_bytes.process(0));
    let read = file::Saved::parse(&text).unwrap().for_program(choice.program.clone()).unwrap();
    assert_eq!(read.plan.states, choice.plan.states);
    assert_eq!(read.plan.schedules, choice.plan.schedules);
    // A state that is moved onto its neighbour in the tier, and a state away that a schedule expects in the arena.
    let first = choice.plan.states.iter().position(|range| range.tier.is_some()).unwrap();
    let refused = |draft: Draft| draft.judge(&choice.program).unwrap_err().to_string();
    let mut moved = choice.plan.to_draft();
    moved.states[first].offset += 4096;
    assert!(refused(moved).contains("must be a copy to where no other state is"));
    let mut forgotten = choice.plan.to_draft();
    forgotten.schedules.get_mut(&Role::Update).unwrap().away.pop();
    let expected = "`schedules.update.away` must be the state that `states` has in a tier";
    assert_eq!(refused(forgotten), expected);
    assert_eq!(case.train(read), case.train(choice));
}

/// A trainer on a text, in a plan of `budget` bytes.
fn trainer(link: Option<Link>, budget: u64, text: &std::path::Path) -> Trainer {
    let size = Size { vocab: 259, seq: 16, width: 32, layers: 2, ffn: 64, dropout: 0.1 };
    let mut case = Case::new(Options::default());
    case.0.model.architecture = gpt2(size);
    case.0.model.seq_len = size.seq;
    let budget = if budget == 0 { case.0.smallest(link) } else { budget };
    let run = start(2, exactly(case.0.plan(link, budget).unwrap()));
    let text = Text::open(text, size.seq, size.vocab, Order::Shuffled { seed: 7 }).unwrap();
    let batches = Batches::new(Source::Text(text), ROWS as u64, run.micro_batch());
    Trainer::new(run, batches, Lr { peak: 1e-2, warmup_steps: 2, max_steps: 100, decay: Decay::Cosine })
}

#[test]
fn checkpoints_and_models_are_the_same_wherever_the_state_lives() {
    let folder = TempDir::new().unwrap();
    let text = write_text(folder.path());
    let mut whole = trainer(None, u64::MAX, &text);
    take(&mut whole, 6);
    for (first_link, second_link) in [(Some(DISK), None), (None, Some(DISK)), (Some(DISK), Some(DISK))] {
        let output = folder.path().join(format!("{}-{}", first_link.is_some(), second_link.is_some()));
        let budget = |link: Option<Link>| if link.is_some() { 0 } else { u64::MAX };
        let mut first = trainer(first_link, budget(first_link), &text);
        let away = first.run().plan().states.iter().filter(|range| range.tier.is_some()).count();
        assert_eq!(away > 10, first_link.is_some(), "{away} states are away");
        take(&mut first, 3);
        let checkpoints = open(&output, None).unwrap();
        save(&first, &checkpoints);
        let mut second = trainer(second_link, budget(second_link), &text);
        second.resume(&checkpoints, &latest(&checkpoints).unwrap()).unwrap();
        take(&mut second, 3);
        assert_eq!(bits(&second), bits(&whole));
        // The saved model, read by a run whose weights are elsewhere again.
        let model = output.join("model");
        std::fs::create_dir_all(&model).unwrap();
        second.run().save_weights(&model, &ModelFormat::default()).unwrap();
        let mut reader = trainer(first_link, budget(first_link), &text);
        reader.run_mut().load_weights(&ModelFolder::open(&model).unwrap(), &ModelFormat::default()).unwrap();
        for (name, _) in whole.run().parameters(true) {
            assert_eq!(reader.run().state(name).unwrap(), whole.run().state(name).unwrap(), "{name}");
        }
    }
}
