//! Below micro-batch 1: with feed-forward networks in tiles, a long sequence trains in fewer bytes than under any other
//! plan, to the same bits.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures are what a reader wants to see")]

use plimsoll_graph::{Graph, Op};
use plimsoll_model::{Architecture, Lora, Targets};
use plimsoll_plan::{ArenaBytes, Build, Choice, DeviceSpec, Request, SearchError, Strategy, search};
use plimsoll_train::{LanguageModel, Options, Programs, plan_from_file, program};

use crate::arena::{assert_planned_peak, exactly, start};
use crate::support::{Batch, Size, families, llama, train_to_bits};

/// A sequence that is much longer than the model is wide, and a network that is much wider.
const SIZE: Size = Size { vocab: 96, seq: 512, width: 32, layers: 4, ffn: 256, dropout: 0.1 };
const ROWS: usize = 2;
const THREADS: usize = 2;

struct Case {
    model: LanguageModel,
    options: Options,
}

impl Case {
    fn new(architecture: Architecture) -> Case {
        let model = LanguageModel { architecture, seq_len: SIZE.seq, generate: false, lora: None };
        let options = Options { global_batch: ROWS, evaluate: true, threads: THREADS, ..Options::default() };
        Case { model, options }
    }

    fn request(budget: u64) -> Request {
        Request {
            global_batch: ROWS,
            micro_batch: Some(1),
            strategy: None,
            budget: ArenaBytes(budget),
            slack: 0.0,
        }
    }

    /// The plan for an arena of `budget` bytes at micro-batch 1.
    fn plan(&self, budget: u64) -> Result<Choice, SearchError> {
        let device = plimsoll_devices::cpu(THREADS).unwrap();
        let facts = |graph: &Graph| device.facts(graph);
        search(Case::request(budget), Programs { model: &self.model, facts, options: &self.options })
    }

    /// The same for a planner that knows nothing of tiles.
    fn plan_whole(&self, budget: u64) -> Result<Choice, SearchError> {
        let device = plimsoll_devices::cpu(THREADS).unwrap();
        search(Case::request(budget), |rows| program(&self.model, &*device, &self.options, rows))
    }

    /// Trains and evaluates by a plan; every loss, every norm and the final weights, as bits.
    fn train(&self, choice: Choice) -> Vec<u32> {
        let mut run = start(THREADS, exactly(choice));
        let documents = self.model.architecture.reads_documents();
        let batches = (0..2).map(|step| Batch::synthetic(ROWS, SIZE.seq, SIZE.vocab, documents, step));
        let bits = train_to_bits(&mut run, batches, true);
        assert_planned_peak(&run);
        bits
    }
}

/// The least budget that `plan` can do with, to a kibibyte.
fn least(plan: impl Fn(u64) -> Result<Choice, SearchError>) -> u64 {
    let SearchError::Budget { smallest, .. } = plan(1).unwrap_err() else { panic!("a plan in a byte") };
    // The smallest budget named in the error works; the optimum of a chain may do with less.
    let (mut fails, mut works) = (1, smallest.arena_bytes.0);
    while works - fails > 1024 {
        let between = works.midpoint(fails);
        if plan(between).is_ok() { works = between } else { fails = between }
    }
    works
}

/// The families, and one with adapters on attention, whose feed-forward networks are frozen.
fn cases() -> Vec<(&'static str, Case)> {
    let of_family = |(name, architecture)| (name, Case::new(architecture));
    let mut adapted = Case::new(llama(SIZE));
    let targets = Targets::Names(vec!["q_proj".into(), "v_proj".into()]);
    adapted.model.lora = Some(Lora { targets, ..Lora::default() });
    families(SIZE).into_iter().map(of_family).chain([("adapted", adapted)]).collect()
}

#[test]
fn every_family_trains_to_the_same_bits_in_less_than_the_least_of_whole_networks() {
    for (name, case) in cases() {
        let (tiled, whole) = (least(|budget| case.plan(budget)), least(|budget| case.plan_whole(budget)));
        println!("{name}: {tiled} bytes in tiles, {whole} whole");
        let expected = case.train(case.plan(u64::MAX).unwrap());
        for budget in [tiled, tiled.midpoint(whole - 1024)] {
            assert!(case.plan_whole(budget).is_err(), "{name}: tiles bring nothing");
            let choice = case.plan(budget).unwrap();
            assert_eq!(choice.program.train.graph.tile_rows(), Some(128), "{name} in {budget} bytes");
            assert!(choice.plan.arena_bytes.0 <= budget, "{name}");
            assert!(case.train(choice) == expected, "{name}: other bits in {budget} bytes");
        }
    }
}

#[test]
fn more_memory_is_never_slower_and_tiles_are_given_up_when_they_cost_time() {
    let case = Case::new(llama(SIZE));
    let unlimited = case.plan(u64::MAX).unwrap();
    assert_eq!(unlimited.program.train.graph.tile_rows(), None, "without need nothing is built again");
    let (least, most) = (least(|budget| case.plan(budget)), unlimited.plan.arena_bytes.0);
    let mut slowest = f64::INFINITY;
    let mut with_tiles = 0;
    for index in 0..=24 {
        let budget = least + (most - least) * index / 24;
        let choice = case.plan(budget).unwrap();
        let seconds = choice.step_seconds();
        assert!(choice.plan.arena_bytes.0 <= budget && seconds <= slowest, "{budget} bytes take {seconds} s");
        assert!(choice.lower_bound_seconds.is_none_or(|bound| bound <= seconds), "{budget}");
        if let Ok(whole) = case.plan_whole(budget) {
            assert!(seconds <= whole.step_seconds(), "{budget}: whole is faster");
        }
        with_tiles += usize::from(choice.program.train.graph.tile_rows().is_some());
        slowest = seconds;
    }
    println!("{with_tiles} of 25 budgets are met in tiles");
    assert!((1..25).contains(&with_tiles));
}

#[test]
fn no_pinned_micro_batch_is_faster_than_a_free_one_or_than_its_bound() {
    let case = Case::new(llama(SIZE));
    let spec = DeviceSpec::all().iter().find(|spec| spec.name() == "cuda:4090").unwrap();
    let facts = |graph: &Graph| spec.facts(graph);
    let plan = |budget, micro_batch| {
        let request =
            Request { global_batch: 8, micro_batch, strategy: None, budget: ArenaBytes(budget), slack: 0.0 };
        search(request, Programs { model: &case.model, facts, options: &case.options })
    };
    let smallest = least(|budget| plan(budget, Some(1)));
    let mut large_in_tiles = false;
    for step in 0..24 {
        let budget = smallest + smallest * step / 4;
        let free = plan(budget, None).unwrap();
        for micro_batch in [1, 2, 4, 8] {
            let Ok(pinned) = plan(budget, Some(micro_batch)) else { continue };
            let seconds = pinned.step_seconds() * (1.0 + 1e-9);
            assert!(free.step_seconds() <= seconds, "{micro_batch} rows in {budget} bytes");
            assert!(free.lower_bound_seconds.unwrap() <= seconds, "{micro_batch} rows in {budget} bytes");
        }
        let tiled = free.program.train.graph.nodes().iter().any(|node| matches!(node.op, Op::Mlp { .. }));
        large_in_tiles |= tiled && free.micro_batch > 1;
    }
    assert!(large_in_tiles, "tiles are of use for more than one row, too");
}

#[test]
fn a_fixed_strategy_is_not_tiled_and_the_hint_that_lets_go_of_it_works() {
    let case = Case::new(llama(SIZE));
    let budget = least(|budget| case.plan(budget));
    let device = plimsoll_devices::cpu(THREADS).unwrap();
    let facts = |graph: &Graph| device.facts(graph);
    let programs = || Programs { model: &case.model, facts, options: &case.options };
    let fixed = Request { strategy: Some(Strategy::Full), ..Case::request(budget) };
    let SearchError::Budget { hints, .. } = search(fixed, programs()).unwrap_err() else { panic!() };
    let [hint] = hints[..] else { panic!("{hints:?}") };
    assert_eq!((hint.micro_batch, hint.strategy, hint.tiled), (1, Strategy::Auto, true));
    let typed = Request { strategy: Some(hint.strategy), micro_batch: Some(hint.micro_batch), ..fixed };
    assert!(search(typed, programs()).unwrap().plan.arena_bytes.0 <= budget);
}

#[test]
fn a_plan_in_tiles_is_read_back_from_its_file() {
    let case = Case::new(llama(SIZE));
    let choice = case.plan(least(|budget| case.plan(budget))).unwrap();
    let planned = exactly(choice);
    let device = plimsoll_devices::cpu(THREADS).unwrap();
    let read = plan_from_file(&case.model, &*device, &case.options, &planned.to_file()).unwrap();
    assert_eq!(read.choice.plan.schedules, planned.choice.plan.schedules);
    assert_eq!(read.choice.program.train.graph.tile_rows(), Some(128));
    let facts = |graph: &Graph| device.facts(graph);
    let mut programs = Programs { model: &case.model, facts, options: &case.options };
    let text = |program: plimsoll_plan::Program| program.train.graph.to_string();
    assert_eq!(text(programs.tiled(1).unwrap().unwrap()), text(read.choice.program));
}
