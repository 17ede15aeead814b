//! bf16 between nodes: as close to PyTorch's bf16 as that is to f32, half the bytes of activations, and no bit that a plan
//! decides.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the distances are what a reader wants to see")]

use plimsoll_exec::{Device, Instructions, rounding};
use plimsoll_graph::{Graph, Precision};
use plimsoll_model::{Architecture, Preset};
use plimsoll_plan::{ArenaBytes, Choice, Link, Purpose, Request, Scratch, Searcher, Strategy, plan, search};
use plimsoll_train::{
    FloatStorage, LanguageModel, Options, Programs, Run, StateStorage, WeightStorage, program,
};

use crate::arena::{DISK, assert_planned_peak, device, device_with, exactly};
use crate::support::{
    Batch, Golden, Size, absolute_distance, families, options, parameters, start, train_to_bits,
};

const LR: f32 = 1e-3;
const STEPS: usize = 10;
/// Storage of `--bf16`; the other case leaves weights in f32.
const MASTER: StateStorage = StateStorage {
    weights: WeightStorage::Bf16Master,
    gradients: FloatStorage::F32,
    moments: FloatStorage::F32,
};

fn in_bf16(options: Options, storage: StateStorage) -> Options {
    Options { precision: Precision::Bf16, storage, ..options }
}

#[test]
fn ten_steps_lie_within_twice_what_separates_bf16_from_f32_in_pytorch() {
    let golden_bf16 = Golden::read("bf16");
    for (name, model) in families(Size::GOLDEN) {
        let golden = Golden::read(name);
        let (batch, rows) = (golden.batch(), golden.batch().rows());
        let [f32, autocast] = ["f32", "autocast"].map(|kind| golden_bf16.floats(&format!("{name}.{kind}")));
        assert!(absolute_distance(&f32, &golden.floats("losses")) < 1e-5, "{name}: the same run");
        let yardstick = absolute_distance(&autocast, &f32);
        let kept = [("f32", StateStorage::default()), ("bf16-master", MASTER)];
        let paths = Instructions::available();
        for ((kept, storage), path) in kept.iter().flat_map(|kept| paths.iter().map(move |path| (kept, path)))
        {
            let options = in_bf16(options(rows, rows, Strategy::None, 2), *storage);
            let options = Options { instructions: Some(*path), ..options };
            let mut run = start(&model, Size::GOLDEN.seq, &options);
            load_weights(&golden, &mut run);
            let losses: Vec<f32> = (0..STEPS).flat_map(|_| batch.step(&mut run, LR).0).collect();
            let apart = absolute_distance(&losses, &autocast);
            println!(
                "{name}, weights {kept}, {path}: {apart:.5} from autocast, which is {yardstick:.5} from f32"
            );
            assert!(apart <= 2.0 * yardstick, "{name}, weights {kept}, {path}: {apart} from autocast");
            assert!(absolute_distance(&losses, &f32) > 1e-6, "{name}: nothing was rounded");
            assert!(losses[STEPS - 1] < losses[0], "{name} learns");
            assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes, "{name}");
        }
    }
}

/// Gives a run the weights from before the first step. Where weights have a master copy, both of its halves are set.
fn load_weights(golden: &Golden, run: &mut Run) {
    golden.load_weights(run);
    for name in parameters(run) {
        let lower = format!("low.{name}");
        if run.states().any(|(state, _)| state == lower) {
            let halves: Vec<_> = golden.floats(&name).into_iter().map(rounding::split).collect();
            run.set_state(&name, &halves.iter().map(|half| half.0.to_f32()).collect::<Vec<_>>()).unwrap();
            run.set_state(&lower, &halves.iter().map(|half| f32::from(half.1)).collect::<Vec<_>>()).unwrap();
        }
    }
}

#[test]
fn activations_take_at_most_fifty_two_hundredths_of_their_bytes_in_f32_under_the_same_plan() {
    let device = device(2, None);
    for (name, rows) in [("tiny", 4), ("s", 2)] {
        let Preset { model, seq, .. } = Preset::from_name(name).unwrap();
        let model = LanguageModel { architecture: model, seq_len: seq, generate: false, lora: None };
        for strategy in [Strategy::None, Strategy::Selective] {
            let bytes = [Precision::F32, Precision::Bf16].map(|precision| {
                let options = Options { global_batch: rows, precision, ..Options::default() };
                let program = program(&model, &*device, &options, rows).unwrap();
                let made = plan(&program, strategy, Scratch::Least).unwrap();
                made.by_purpose.of(Purpose::Activations) as f64
            });
            let share = bytes[1] / bytes[0];
            println!("{name} {strategy}: {share:.3} of {} bytes", bytes[0]);
            assert!(share <= 0.52, "{name} {strategy}: {share}");
        }
    }
}

/// A model whose plans are compared.
struct Case {
    model: LanguageModel,
    options: Options,
}

const SIZE: Size = Size { vocab: 96, seq: 512, width: 32, layers: 3, ffn: 256, dropout: 0.1 };
const ROWS: usize = 2;

impl Case {
    fn new(architecture: Architecture, path: Instructions) -> Case {
        let model = LanguageModel { architecture, seq_len: SIZE.seq, generate: false, lora: None };
        let options =
            Options { global_batch: ROWS, evaluate: true, instructions: Some(path), ..Options::default() };
        Case { model, options: in_bf16(options, MASTER) }
    }

    fn device(&self, threads: usize, link: Option<Link>) -> Box<dyn Device> {
        device_with(self.options.instructions, threads, link)
    }

    fn request(budget: u64, strategy: Option<Strategy>) -> Request {
        Request { global_batch: ROWS, micro_batch: Some(1), strategy, budget: ArenaBytes(budget), slack: 0.0 }
    }

    fn plan(&self, budget: u64, strategy: Option<Strategy>, link: Option<Link>) -> Choice {
        let device = self.device(2, link);
        let facts = |graph: &Graph| device.facts(graph);
        let programs = Programs { model: &self.model, facts, options: &self.options };
        search(Case::request(budget, strategy), programs).unwrap()
    }

    fn smallest(&self, link: Option<Link>) -> u64 {
        let device = self.device(2, link);
        let facts = |graph: &Graph| device.facts(graph);
        let programs = Programs { model: &self.model, facts, options: &self.options };
        Searcher::once(programs).smallest(Case::request(0, None)).unwrap().arena_bytes.0
    }

    /// Trains and evaluates by a plan; every loss, every norm and the final weights, as bits.
    fn train(&self, choice: Choice, threads: usize, link: Option<Link>) -> Vec<u32> {
        let mut run = Run::start(self.device(threads, link), exactly(choice), 7).unwrap();
        let documents = self.model.architecture.reads_documents();
        let batches = (0..2).map(|step| Batch::synthetic(ROWS, SIZE.seq, SIZE.vocab, documents, step));
        let bits = train_to_bits(&mut run, batches, true);
        assert_planned_peak(&run);
        bits
    }
}

#[test]
fn recompute_tiles_offload_and_threads_change_no_bit_on_any_instruction_path() {
    for (family, architecture) in families(SIZE) {
        let mut wide = None;
        // One family on every instruction path, the others on the fastest path.
        let paths = if family == "llama" { Instructions::available() } else { vec![Instructions::fastest()] };
        for path in paths {
            let bits = same_bits_whatever_the_plan(&format!("{family}, {path}"), architecture.clone(), path);
            if path >= Instructions::Avx512 {
                let first = wide.get_or_insert_with(|| bits.clone());
                assert!(*first == bits, "{family}: products of pairs have other bits than widened ones");
            }
        }
    }
}

/// Trains by plans of several kinds, which must all end in the same bits. Returns the bits.
fn same_bits_whatever_the_plan(name: &str, architecture: Architecture, path: Instructions) -> Vec<u32> {
    let case = Case::new(architecture, path);
    let unlimited = case.plan(u64::MAX, None, None);
    assert_eq!(unlimited.program.train.graph.precision(), Precision::Bf16);
    let most = unlimited.plan.arena_bytes.0;
    let expected = case.train(unlimited, 2, None);
    assert!(expected.iter().all(|&bits| f32::from_bits(bits).is_finite()), "{name}");
    for strategy in [Strategy::None, Strategy::Full, Strategy::Minimal] {
        let choice = case.plan(u64::MAX, Some(strategy), None);
        assert!(case.train(choice, 2, None) == expected, "{name}: other bits with {strategy}");
    }
    let (least, on_disk) = (case.smallest(None), case.smallest(Some(DISK)));
    assert!(on_disk < least && least < most, "{name}: {on_disk} {least} {most}");
    let tiled = case.plan(least, None, None);
    assert!(tiled.program.train.graph.tile_rows().is_some(), "{name}: no tiles in {least} bytes");
    // Plans are made for two threads' scratch; fewer run in it as well.
    assert!(case.train(tiled.clone(), 1, None) == expected, "{name}: other bits on one thread");
    assert!(case.train(tiled, 2, None) == expected, "{name}: other bits in {least} bytes");
    let away = case.plan(on_disk, None, Some(DISK));
    assert!(case.train(away, 2, Some(DISK)) == expected, "{name}: other bits with a disk");
    expected
}
