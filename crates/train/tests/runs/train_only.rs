//! Training some of a model's own parameters: the backward pass ends at the lowest of them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_graph::{Phase, StateKind};
use plimsoll_model::Preset;
use plimsoll_plan::Strategy;
use plimsoll_train::{
    Config, LanguageModel, Optimizer, OptimizerKind, Options, RawConfig, TrainOnly, program,
};

use crate::support::{Batch, Size, gpt2, llama, options, start};

const SIZE: Size = Size { vocab: 130, seq: 24, width: 64, layers: 3, ffn: 136, dropout: 0.1 };

fn only(expressions: &[&str]) -> Options {
    let expressions: Vec<String> = expressions.iter().map(|&text| text.to_owned()).collect();
    let train_only = Some(TrainOnly::new(&expressions).unwrap());
    Options { train_only, ..options(4, 2, Strategy::None, 1) }
}

/// Blocks that have backward nodes.
fn backward_blocks(expressions: &[&str]) -> Vec<String> {
    let model = LanguageModel { architecture: llama(SIZE), seq_len: SIZE.seq, generate: false, lora: None };
    let device = plimsoll_devices::cpu(1).unwrap();
    let graph = program(&model, &*device, &only(expressions), 2).unwrap().train.graph;
    let backward = graph.nodes().iter().filter(|node| node.phase == Phase::Backward);
    let mut blocks: Vec<String> = backward.map(|node| graph.block_name(node.block)).collect();
    blocks.dedup();
    blocks
}

#[test]
fn no_node_below_the_lowest_trained_parameter_appears_in_the_backward_pass() {
    let head = backward_blocks(&["lm_head"]);
    assert!(!head.iter().any(|block| block.contains("layers")), "{head:?}");
    let last = backward_blocks(&[r"layers\.2\.mlp"]);
    assert!(last.iter().any(|block| block.contains("layers.2")), "{last:?}");
    assert!(!last.iter().any(|block| block.contains("layers.0") || block.contains("layers.1")), "{last:?}");
    // Norms are everywhere; matrices below them pass gradients on but get none.
    let norms = backward_blocks(&["norm"]);
    assert!(norms.iter().any(|block| block.contains("layers.0")), "{norms:?}");
}

#[test]
fn the_trained_parameters_change_and_the_others_keep_every_bit() {
    for optimizer in [Optimizer::default(), Optimizer::of(OptimizerKind::Mezo)] {
        let options = Options { optimizer, ..only(&["ln_", r"h\.2\..*bias"]) };
        let mut run = start(&gpt2(SIZE), SIZE.seq, &options);
        let bits = |name: &str, run: &plimsoll_train::Run| -> Vec<u32> {
            run.state(name).unwrap().iter().map(|x| x.to_bits()).collect()
        };
        let names: Vec<String> = run.parameters(true).map(|(name, _)| name.to_owned()).collect();
        let before: Vec<Vec<u32>> = names.iter().map(|name| bits(name, &run)).collect();
        Batch::synthetic(4, SIZE.seq, SIZE.vocab, false, 0).step(&mut run, 1e-2);
        for (name, before) in names.iter().zip(before) {
            let meant = name.contains("ln_") || name.contains("h.2.") && name.ends_with("bias");
            assert_eq!(bits(name, &run) != before, meant, "{name}");
        }
        let moments = run.states_of(|kind| kind == StateKind::Moment);
        assert!(moments.into_iter().all(|(name, _)| name.contains("ln_") || name.ends_with("bias")));
        assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes);
    }
}

#[test]
fn expressions_that_fit_nothing_and_adapters_beside_them_are_refused() {
    let model = LanguageModel { architecture: llama(SIZE), seq_len: SIZE.seq, generate: false, lora: None };
    let device = plimsoll_devices::cpu(1).unwrap();
    let why = program(&model, &*device, &only(&["lm_head", "no_such"]), 2).unwrap_err().to_string();
    assert!(why.contains("`no_such` is found in no name of a parameter; names are such as `model."), "{why}");
    let raw = RawConfig {
        train_only: Some(vec!["norm".into()]),
        lora_r: Some(4),
        memory: Some("64MiB".into()),
        ..RawConfig::default()
    };
    let why = Config::check(&raw).unwrap_err().to_string();
    assert!(why.starts_with("train_only chooses among the model's own weights"), "{why}");
    let raw = RawConfig { train_only: Some(vec!["(".into()]), lora_r: None, ..raw };
    let why = Config::check(&raw).unwrap_err().to_string();
    assert!(why.starts_with("train_only: `(` is no regular expression"), "{why}");
    let architecture = Preset::from_name("tiny-moe").unwrap().model;
    let model = LanguageModel { architecture, ..model };
    let why = program(&model, &*device, &only(&[r"experts\.3\.up"]), 2).unwrap_err().to_string();
    let told = "train_only: `experts\\.3\\.up` is found in `model.layers.0.mlp.experts.3.up_proj.weight` alone, a part of \
                `model.layers.0.mlp.experts.up_proj`, which is trained as a whole";
    assert_eq!(why, told);
}
