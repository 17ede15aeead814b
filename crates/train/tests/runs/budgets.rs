//! Training at budgets from the smallest that works to no limit: the bits are the same, and the measured peak
//! is the planned one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the table is what a reader wants to see")]

use std::collections::BTreeSet;

use plimsoll_model::{Architecture, Preset};
use plimsoll_plan::{ArenaBytes, Choice, Request, Role, SearchError, search};
use plimsoll_train::{LanguageModel, Options, program};

use crate::arena::{assert_planned_peak, exactly, start};
use crate::support::{Batch, Size, bert, gpt2, train_to_bits};

const ROWS: usize = 4;
const MICRO_BATCH: usize = 2;
const STEPS: usize = 2;
const BUDGETS: u64 = 8;
const THREADS: usize = 2;

/// A model with the numbers its batches need.
struct Case {
    model: LanguageModel,
    vocab: usize,
}

impl Case {
    fn new(architecture: Architecture, seq_len: usize) -> Case {
        let vocab = architecture.vocab();
        Case { model: LanguageModel { architecture, seq_len, generate: false, lora: None }, vocab }
    }

    /// The plan for an arena of `budget` bytes with the micro-batch pinned.
    fn plan(&self, budget: u64) -> Result<Choice, SearchError> {
        let (device, options) = (plimsoll_devices::cpu(THREADS).unwrap(), Options::default());
        let request = Request {
            global_batch: ROWS,
            micro_batch: Some(MICRO_BATCH),
            strategy: None,
            budget: ArenaBytes(budget),
            slack: 0.0,
        };
        search(request, |rows| program(&self.model, &*device, &options, rows))
    }

    /// Trains by a plan; every loss, every norm and the final weights, as bits.
    fn train(&self, choice: Choice) -> Vec<u32> {
        let mut run = start(THREADS, exactly(choice));
        let (seq, documents) = (self.model.seq_len, self.model.architecture.reads_documents());
        let batches = (0..STEPS).map(|step| Batch::synthetic(ROWS, seq, self.vocab, documents, step));
        let bits = train_to_bits(&mut run, batches, false);
        assert_planned_peak(&run);
        bits
    }
}

fn check(name: &str, case: &Case) {
    let unlimited = case.plan(u64::MAX).unwrap();
    let most = unlimited.plan.arena_bytes.0;
    let SearchError::Budget { smallest, .. } = case.plan(1).unwrap_err() else { panic!("{name} in a byte") };
    let least = smallest.arena_bytes.0;
    let expected = case.train(unlimited);
    let mut lengths = BTreeSet::new();
    for index in 0..BUDGETS {
        let budget = least + (most - least) * index / (BUDGETS - 1);
        let choice = case.plan(budget).unwrap();
        let (arena, runs) = (choice.plan.arena_bytes.0, choice.plan.schedules[&Role::First].actions.len());
        println!("{name}: budget {budget}, arena {arena}, {runs} actions, {}", choice.plan.strategy);
        assert!(arena <= budget, "{name}: {arena} bytes of {budget}");
        lengths.insert(runs);
        assert!(case.train(choice) == expected, "{name}: other bits in {budget} bytes");
    }
    assert!(lengths.len() > 4, "{name}: budgets hardly change the plan: {lengths:?}");
}

#[test]
fn the_preset_tiny_trains_to_the_same_bits_at_every_budget() {
    let Preset { model, seq, .. } = Preset::from_name("tiny").unwrap();
    check("tiny", &Case::new(model, seq));
}

#[test]
fn a_gpt2_and_a_bert_with_dropout_train_to_the_same_bits_at_every_budget() {
    let size = Size { vocab: 300, seq: 48, width: 64, layers: 6, ffn: 128, dropout: 0.1 };
    check("gpt2", &Case::new(gpt2(size), size.seq));
    check("bert", &Case::new(bert(size), size.seq));
}
