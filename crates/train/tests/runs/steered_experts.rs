//! Balancing by biases that steer the choice of experts: how they move, that nothing but the tokens of a step decides it, and
//! where they are kept.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use plimsoll_graph::{Op, StateKind};
use plimsoll_model::{Architecture, IGNORED, Preset, RouterLosses};
use plimsoll_plan::Strategy;
use plimsoll_train::files::{ModelFolder, ModelFormat, TensorFile};
use plimsoll_train::{LanguageModel, Optimizer, OptimizerKind, Options, Run, Update, program};
use tempfile::TempDir;

use crate::running::{self, bits, latest, open, pinned, save, take, write_text};
use crate::support::{Batch, GOLDEN_SEQ, Golden, STRATEGIES, Size, options};

const RATE: f32 = 0.01;
const BIAS: &str = "e_score_correction_bias";
/// Weights that add up to one, and weights that do not.
const FOLDERS: [&str; 2] = ["mixtral", "olmoe"];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/hf").join(name)
}

fn steered(architecture: Architecture, rate: f32) -> Architecture {
    let Architecture::Llama(mut model) = architecture else { panic!("a mixture is a Llama") };
    let losses = &mut model.mixture.as_mut().unwrap().losses;
    *losses = RouterLosses { steering: rate, ..RouterLosses::balanced(0.0) };
    model.into()
}

fn model(name: &str, rate: f32) -> LanguageModel {
    let text = std::fs::read_to_string(path(name).join("config.json")).unwrap();
    let architecture = steered(Architecture::from_config(&text).unwrap().architecture, rate);
    LanguageModel { architecture, seq_len: GOLDEN_SEQ, generate: false, lora: None }
}

/// A run of a folder with biases that move by `rate`.
fn start(name: &str, rate: f32, options: &Options) -> Run {
    let model = model(name, rate);
    let architecture = model.architecture.clone();
    let mut run = Run::new(model, options).unwrap();
    let stored = std::sync::Arc::new(move |parameter: &str| architecture.stored(parameter));
    let form = ModelFormat { stored, ..ModelFormat::default() };
    let loaded = run.load_weights(&ModelFolder::open(&path(name)).unwrap(), &form).unwrap();
    assert!(loaded.unused.is_empty() && loaded.absent.is_empty(), "{loaded:?}");
    run
}

/// Eight rows.
fn batch(name: &str) -> Batch {
    Golden::read(&format!("hf/{name}/golden")).batch().repeated(2)
}

fn names(run: &Run, kind: StateKind, ends: &str) -> Vec<String> {
    let names = run.states_of(|of| of == kind).map(|(name, _)| name.to_owned());
    names.filter(|name| name.ends_with(ends)).collect()
}

/// The biases of each layer.
fn biases(run: &Run) -> Vec<Vec<f32>> {
    names(run, StateKind::Moment, BIAS).iter().map(|name| run.state(name).unwrap()).collect()
}

fn to_bits(biases: &[Vec<f32>]) -> Vec<u32> {
    biases.iter().flatten().map(|bias| bias.to_bits()).collect()
}

/// Of each layer the copies sent to each expert in the last step, tokens without a loss included.
fn sent(run: &Run) -> Vec<Vec<f32>> {
    let counts = names(run, StateKind::Tally, ".experts").into_iter().map(|name| run.state(&name).unwrap());
    counts.map(|counts| counts[..counts.len() / 2].to_vec()).collect()
}

#[test]
fn a_bias_moves_by_the_sign_of_the_mean_load_less_its_own() {
    for name in FOLDERS {
        let mut batch = batch(name);
        // Every token carries a loss, so the recorded load is the one that moves the biases.
        batch.targets.iter_mut().filter(|target| **target == IGNORED).for_each(|target| *target = 1);
        let mut run = start(name, RATE, &options(8, 2, Strategy::None, 2));
        let mut expected = biases(&run);
        assert_eq!(expected.len(), 2);
        assert!(expected.iter().flatten().all(|bias| bias.to_bits() == 0), "they begin at 0");
        for _ in 0..4 {
            batch.step(&mut run, 1e-3);
            for (biases, sent) in expected.iter_mut().zip(sent(&run)) {
                let total: i64 = sent.iter().map(|&count| count as i64).sum();
                for (bias, &count) in biases.iter_mut().zip(&sent) {
                    let distance = total - count as i64 * sent.len() as i64;
                    *bias += match distance.cmp(&0) {
                        std::cmp::Ordering::Greater => RATE,
                        std::cmp::Ordering::Equal => 0.0,
                        std::cmp::Ordering::Less => -RATE,
                    };
                }
            }
            assert_eq!(to_bits(&biases(&run)), to_bits(&expected), "{name}");
        }
        assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes, "{name}");
    }
}

#[test]
fn tokens_without_a_loss_move_no_bias() {
    let mut run = start("mixtral", RATE, &options(8, 8, Strategy::None, 2));
    let mut batch = batch("mixtral");
    batch.step(&mut run, 0.0);
    let some = biases(&run);
    // Other words at positions without a loss: their experts differ, and the biases do not.
    let mut other = start("mixtral", RATE, &options(8, 8, Strategy::None, 2));
    for row in 0..8 {
        let last = (row + 1) * batch.seq - 1;
        let from = (row * batch.seq..=last).rev().take_while(|&at| batch.targets[at] == IGNORED);
        for at in from.collect::<Vec<_>>() {
            batch.tokens[at] = 5;
        }
    }
    batch.step(&mut other, 0.0);
    assert_eq!(to_bits(&some), to_bits(&biases(&other)));
}

#[test]
fn a_bias_decides_who_is_chosen_and_never_with_what_weight() {
    for name in FOLDERS {
        let (batch, options) = (batch(name), options(8, 8, Strategy::None, 2));
        let mut run = start(name, RATE, &options);
        let (plain, _) = batch.step(&mut run, 0.0);
        let even = sent(&run);
        let layers = names(&run, StateKind::Moment, BIAS);
        let experts = even[0].len();
        for layer in &layers {
            run.set_state(layer, &vec![0.25; experts]).unwrap();
        }
        let (same, _) = batch.step(&mut run, 0.0);
        assert_eq!(same[0].to_bits(), plain[0].to_bits(), "{name}: a bias that all have changes no number");
        let mut two = vec![0.0; experts];
        two[..2].fill(2.0);
        for layer in &layers {
            run.set_state(layer, &two).unwrap();
        }
        let (other, _) = batch.step(&mut run, 0.0);
        assert_ne!(other[0].to_bits(), plain[0].to_bits());
        let tokens = batch.tokens.len() as f32;
        assert!(sent(&run).iter().all(|sent| sent[..2] == [tokens; 2]), "{name}: {:?}", sent(&run));
    }
}

#[test]
fn biases_are_equal_to_the_bit_however_a_step_is_divided_and_recomputed() {
    let batch = batch("mixtral");
    let trained = |rows: usize, strategy: Strategy, threads: usize| {
        let mut run = start("mixtral", RATE, &options(8, rows, strategy, threads));
        for _ in 0..3 {
            batch.step(&mut run, 1e-3);
        }
        assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes, "{rows} {strategy}");
        to_bits(&biases(&run))
    };
    let expected = trained(8, Strategy::None, 2);
    assert!(expected.iter().any(|&bits| bits != 0));
    for rows in [4, 2, 1] {
        assert_eq!(trained(rows, Strategy::None, 2), expected, "micro-batches of {rows}");
    }
    for strategy in STRATEGIES {
        for threads in [1, 3] {
            assert_eq!(trained(2, strategy, threads), expected, "{strategy} {threads}");
        }
    }
}

#[test]
fn updates_inside_the_backward_pass_and_in_two_passes_move_biases_once() {
    let batch = batch("olmoe");
    let trained = |update: Update, max_grad_norm: Option<f32>| {
        let optimizer = Optimizer { max_grad_norm, ..Optimizer::default() };
        let options = Options { update, optimizer, ..options(8, 8, Strategy::None, 2) };
        let mut run = start("olmoe", RATE, &options);
        for _ in 0..3 {
            let inputs: Vec<_> = batch.micro_batches(8).collect();
            run.step(1e-3, &inputs).unwrap();
        }
        to_bits(&biases(&run))
    };
    let expected = trained(Update::Separate, None);
    assert_eq!(trained(Update::InBackward, None), expected);
    assert_eq!(trained(Update::TwoPass, Some(1.0)), trained(Update::Separate, Some(1.0)));
}

#[test]
fn biases_spread_the_tokens_of_a_router_that_prefers_few_experts() {
    let mut batch = batch("mixtral");
    batch.targets.iter_mut().filter(|target| **target == IGNORED).for_each(|target| *target = 1);
    let mut run = start("mixtral", 0.005, &options(8, 8, Strategy::None, 2));
    let mut spreads = Vec::new();
    for _ in 0..300 {
        batch.step(&mut run, 0.0);
        let spread = |sent: Vec<f32>| {
            let most = sent.iter().copied().fold(0.0, f32::max);
            most - sent.iter().copied().fold(f32::INFINITY, f32::min)
        };
        spreads.push(sent(&run).into_iter().map(spread).sum::<f32>());
    }
    // Loads go up and down around the even one. Every row is there twice, so a bias moves tokens in pairs and meets no even
    // load exactly.
    let last = spreads[280..].iter().sum::<f32>() / 20.0;
    assert!(last < 2.0 / 3.0 * spreads[0], "{} and then {last}", spreads[0]);
}

#[test]
fn a_resumed_run_finds_its_biases_again_and_files_of_the_model_have_none() {
    const SIZE: Size = Size { vocab: 259, seq: 16, width: 16, layers: 1, ffn: 32, dropout: 0.0 };
    let folder = TempDir::new().unwrap();
    let data = write_text(folder.path());
    let Architecture::Llama(mut small) = Preset::from_name("tiny-moe").unwrap().model.with_layers(2) else {
        unreachable!("the preset is a Llama")
    };
    small.vocab = SIZE.vocab;
    let architecture = steered(small.into(), RATE);
    let trainer = || running::of(&architecture, SIZE, &data, &pinned());
    let mut whole = trainer();
    take(&mut whole, 8);
    let mut first = trainer();
    take(&mut first, 3);
    let output = folder.path().join("run");
    let saved = save(&first, &open(&output, None).unwrap());
    let kept = TensorFile::open(&saved.join("optimizer.safetensors")).unwrap();
    assert_eq!(kept.tensors().keys().filter(|name| name.ends_with(BIAS)).count(), 2);
    let files = ModelFolder::open(&saved).unwrap();
    assert!(
        files.names().all(|name| !name.ends_with(BIAS)),
        "transformers knows no such tensor of this family"
    );
    let mut second = trainer();
    let checkpoints = open(&output, None).unwrap();
    second.resume(&checkpoints, &latest(&checkpoints).unwrap()).unwrap();
    take(&mut second, 5);
    assert_eq!(bits(&second), bits(&whole));
    assert!(to_bits(&biases(whole.run())).iter().any(|&bits| bits != 0));
}

#[test]
fn several_ranks_move_biases_by_the_sum_of_their_counts() {
    let device = plimsoll_devices::cpu(1).unwrap();
    let options = Options { ranks: 2, ..options(8, 2, Strategy::None, 1) };
    let graph = program(&model("mixtral", RATE), &*device, &options, 2).unwrap().train.graph;
    let moves: Vec<_> = graph.nodes().iter().filter(|node| matches!(node.op, Op::Steer { .. })).collect();
    assert_eq!(moves.len(), 2);
    for node in moves {
        let counted = graph.node(graph.producer(node.inputs[0]).unwrap());
        assert!(matches!(counted.op, Op::Collective(_)), "{}", counted.op.name());
    }
}

#[test]
fn a_step_without_gradients_refuses_biases_by_name() {
    let options =
        Options { optimizer: Optimizer::of(OptimizerKind::Mezo), ..options(8, 8, Strategy::None, 1) };
    let error = Run::new(model("mixtral", RATE), &options).unwrap_err().to_string();
    assert!(error.contains("a step without gradients moves no bias of routers"), "{error}");
}
