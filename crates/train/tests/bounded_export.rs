//! Merging an adapter takes a few MiB however large the model is: the weights pass through a block of rows at a time.
//!
//! This file has a process of its own and runs one test, so the peak is that test's. The large model is for the record:
//! `cargo test --release -p plimsoll-train --test bounded_export -- --ignored`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use plimsoll_graph::{Graph, StateKind, Type};
use plimsoll_model::lora::{AdapterConfig, file_name};
use plimsoll_model::{Architecture, Lora};
use plimsoll_train::files::{Dtype, ModelFolder, TensorSpec, TensorWriter};
use plimsoll_train::memory;
use plimsoll_train::pretrained::merge;
use plimsoll_train::pretrained::{AdapterFolder, Pretrained};

const MIB: u64 = 1 << 20;

/// A Llama whose layers have 16 MiB each.
fn config(layers: usize) -> String {
    format!(
        r#"{{"architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 512, "intermediate_size": 2048,
            "num_hidden_layers": {layers}, "num_attention_heads": 8, "num_key_value_heads": 8,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false}}"#
    )
}

/// Writes tensors whose numbers are all `number`, a piece at a time.
fn write(path: &Path, tensors: impl Iterator<Item = (String, Type)>, number: f32) -> u64 {
    let specs = tensors.map(|(name, ty)| TensorSpec { name, dtype: Dtype::F32, shape: ty.shape.to_vec() });
    let mut writer = TensorWriter::create(path, specs.collect()).unwrap();
    let piece = vec![number; 64 << 10];
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

fn parameters(graph: &Graph, trained: bool) -> impl Iterator<Item = (String, Type)> {
    let kind = StateKind::Parameter { trainable: trained };
    graph.states().iter().filter(move |state| state.kind == kind).map(|state| (state.name.clone(), state.ty))
}

fn stays_bounded(layers: usize) {
    let home = tempfile::tempdir().unwrap();
    let (base, adapter, out) =
        (home.path().join("base"), home.path().join("adapter"), home.path().join("out"));
    fs::create_dir_all(&base).unwrap();
    fs::create_dir_all(&adapter).unwrap();
    let graph = Architecture::from_config(&config(layers)).unwrap().architecture.training(1, 1).unwrap();
    fs::write(base.join("config.json"), config(layers)).unwrap();
    let bytes = write(&base.join("model.safetensors"), parameters(&graph, true), 0.5);
    assert!(bytes > 15 * MIB * layers as u64, "{bytes} bytes");
    let lora = Lora { rank: 4, alpha: 8.0, ..Lora::default() };
    let adapted = lora.adapt(&graph).unwrap();
    let names = parameters(&adapted, true).map(|(name, ty)| (file_name(&name), ty));
    write(&adapter.join("adapter_model.safetensors"), names, 0.25);
    let adapter_config = AdapterConfig {
        lora,
        base_model: None,
        task: None,
        fan_in_fan_out: false,
        base_class: None,
        ties: false,
    }
    .to_json();
    fs::write(adapter.join("adapter_config.json"), adapter_config).unwrap();

    let model = Pretrained::open(&base).unwrap();
    merge(&model, &AdapterFolder::open(&adapter, &model.configuration).unwrap(), &out).unwrap();
    let peak = memory::process().unwrap().peak;
    assert!(peak < 64 * MIB, "merging {} MiB reached {} MiB", bytes / MIB, peak / MIB);

    // 0.5 + 8/4 · 4 · 0.25²: exactly the weights with an adapter have changed, each by the adapter's product.
    let merged = ModelFolder::open(&out).unwrap();
    for (name, expected) in [("model.layers.0.mlp.up_proj.weight", 1.0), ("lm_head.weight", 0.5)] {
        let (file, _) = merged.find([name]).unwrap();
        let mut row = [0.0; 512];
        file.read(name, 512 * 100, &mut row).unwrap();
        assert_eq!(row.to_vec(), vec![expected; 512], "{name}");
    }
}

#[test]
fn merging_a_model_of_256_mib_takes_less_than_64() {
    stays_bounded(16);
}

#[test]
#[ignore = "writes 4 GiB to the disk"]
fn merging_a_model_of_2_gib_takes_less_than_64_mib() {
    stays_bounded(128);
}
