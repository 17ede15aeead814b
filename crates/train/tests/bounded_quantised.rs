//! Loading a base in few bits holds its codes, some rows and the scales of one weight, never the weights as floats, and reports
//! its progress.
//!
//! This file has a process of its own and runs one test, so the peak and the reports are that test's.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use plimsoll_graph::{StateKind, Type};
use plimsoll_model::Architecture;
use plimsoll_train::files::{Dtype, TensorSpec, TensorWriter};
use plimsoll_train::{Config, RawConfig, Run, memory, plan_for, reading};

const MIB: u64 = 1 << 20;
/// Bytes of the largest weight as f32.
const ONE_TENSOR: u64 = 4 * 512 * 2048;
/// The process without an arena: code, threads, what planning leaves with the allocator.
const PROCESS: u64 = 24 * MIB;

/// A Llama whose layers have 16 MiB each.
const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 512,
    "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false}"#;

/// Writes tensors of numbers that differ, a piece at a time.
fn write(path: &Path, tensors: impl Iterator<Item = (String, Type)>) -> u64 {
    let specs = tensors.map(|(name, ty)| TensorSpec { name, dtype: Dtype::F32, shape: ty.shape.to_vec() });
    let mut writer = TensorWriter::create(path, specs.collect()).unwrap();
    let piece: Vec<f32> = (0..64 << 10).map(|index| 0.02 * (index as f32 * 0.7).sin()).collect();
    for spec in writer.tensors().to_vec() {
        let mut left = spec.bytes() as usize / 4;
        while left > 0 {
            let count = left.min(piece.len());
            writer.write(&piece[..count]).unwrap();
            left -= count;
        }
    }
    writer.finish().unwrap().bytes
}

#[test]
fn loading_peaks_at_the_quantised_size_one_tensor_and_the_process() {
    let home = tempfile::tempdir().unwrap();
    let graph = Architecture::from_config(CONFIG).unwrap().architecture.training(1, 1).unwrap();
    let parameters = graph.states().iter().filter(|state| matches!(state.kind, StateKind::Parameter { .. }));
    let parameters = parameters.map(|state| (state.name.clone(), state.ty));
    fs::write(home.path().join("config.json"), CONFIG).unwrap();
    let bytes = write(&home.path().join("model.safetensors"), parameters);
    assert!(bytes > 128 * MIB, "{bytes} bytes");
    let raw = RawConfig {
        model: Some(home.path().display().to_string()),
        lora_r: Some(2),
        load_in_4bit: Some(true),
        seq_len: Some(8),
        global_batch: Some(1),
        memory: Some("100MiB".into()),
        threads: Some(1),
        costs: Some("modelled".into()),
        synthetic: Some(true),
        recompute: Some("full".into()),
        ..RawConfig::default()
    };
    let config = Config::check(&raw).unwrap();
    let device = config.options.plain_device().unwrap();
    let planned = plan_for(&config.model, &*device, &config.options).unwrap();
    let quantised = planned.choice.program.train.graph.quantised_bytes().unwrap();
    assert!(quantised.bytes as f64 <= 0.130 * quantised.whole_bytes as f64, "{quantised:?}");
    let arena = planned.choice.plan.arena_bytes.0;
    let mut run = Run::start(device, planned, 0).unwrap();
    let before = reading::steps();
    config.load(&mut run).unwrap();
    // A watch over files would end the reading of a large base that reports no progress.
    assert!(reading::steps() - before >= config.options.quantised.as_ref().unwrap().layers.len() as u64);
    let peak = memory::process().unwrap().peak;
    let most = arena + ONE_TENSOR + PROCESS;
    assert!(peak <= most, "peak {} MiB, arena {} MiB", peak / MIB, arena / MIB);
    assert!(most < bytes / 2, "the floats would not fit: {} MiB", most / MIB);
}
