//! Adapted graphs against the adapters that PEFT saves (`reference/lora.py`), and what is asked of them in vain.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use plimsoll_graph::{Graph, Op, Phase, StateKind, differentiate};
use plimsoll_model::lora::{AdapterConfig, Excluded, LayerChoice, Pattern, file_name, parameter_name};
use plimsoll_model::{Architecture, Llama, Lora, Preset, Targets};
use safetensors::SafeTensors;

#[path = "support/families.rs"]
mod models;
use models::{Size, bert, gpt2, llama};

const CASES: [&str; 6] = ["llama", "llama_rslora", "llama_saved", "gpt2", "bert", "qwen2"];

#[test]
fn what_is_trained_has_the_names_and_shapes_of_the_file_that_peft_saves() {
    for case in CASES {
        let lora = config(case).lora;
        let bytes = std::fs::read(folder(case).join("adapter_model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let expected: BTreeMap<String, Vec<usize>> =
            tensors.tensors().into_iter().map(|(name, tensor)| (name, tensor.shape().to_vec())).collect();
        let graph = lora.adapt(&model(case).training(4, 16).unwrap()).unwrap();
        assert_eq!(trained(&graph), expected, "{case}");
        for name in expected.keys() {
            assert_eq!(&file_name(parameter_name(name).unwrap()), name);
        }
        if let Ok(generation) = model(case).generation(16) {
            assert_eq!(trained(&lora.adapt(&generation).unwrap()), expected, "{case} when it generates");
        }
    }
}

#[test]
fn all_linear_means_the_layers_that_peft_lists_for_it() {
    for case in ["llama", "bert", "qwen2"] {
        let forward = model(case).training(4, 16).unwrap();
        let listed = config(case).lora;
        let all = Lora { targets: Targets::AllLinear, ..listed.clone() };
        assert_eq!(all.adapters(&forward).unwrap(), listed.adapters(&forward).unwrap(), "{case}");
    }
}

#[test]
fn a_config_of_peft_is_read_and_written_with_the_same_meaning() {
    for case in CASES {
        let config = config(case);
        assert_eq!(AdapterConfig::from_json(&config.to_json()).unwrap(), config, "{case}");
    }
    let saved = config("llama_saved");
    assert_eq!((saved.lora.rank, saved.lora.alpha.to_bits()), (2, 4f32.to_bits()));
    assert_eq!(saved.lora.modules_to_save, ["lm_head", "norm"]);
    assert!(config("gpt2").fan_in_fan_out && config("llama_rslora").lora.rslora);
}

#[test]
fn nothing_below_the_lowest_adapter_is_differentiated() {
    let targets = Targets::Names(vec!["layers.2.mlp.up_proj".into()]);
    let preset = Preset::from_name("tiny").unwrap();
    let forward = preset.model.training(2, 32).unwrap();
    let graph = Lora { targets, ..Lora::default() }.adapt(&forward).unwrap();
    let training = differentiate(&graph, graph.output_named("loss").unwrap()).unwrap();
    let backward = training.nodes().iter().filter(|node| node.phase == Phase::Backward);
    let blocks: Vec<String> = backward.map(|node| training.block_name(node.block)).collect();
    let count = |layer: usize| blocks.iter().filter(|name| **name == format!("model.layers.{layer}")).count();
    assert_eq!((count(0), count(1)), (0, 0));
    assert!(count(2) > 3 && count(3) > 10);
    // Within its own layer it goes back through `down_proj` and the gate as far as the adapter, not to the norm.
    let own = training.nodes().iter().filter(|node| training.block_name(node.block) == "model.layers.2");
    assert!(own.into_iter().all(|node| !matches!(node.op, Op::RmsNormGradInput | Op::AttentionGrad { .. })));
}

#[test]
fn what_cannot_be_adapted_is_refused_with_its_name() {
    let forward = model("llama").training(4, 16).unwrap();
    let fault = |lora: Lora| lora.adapt(&forward).unwrap_err().to_string();
    let targets = |name: &str| Targets::Names(vec![name.to_owned()]);
    assert_eq!(
        fault(Lora { targets: targets("query"), ..Lora::default() }),
        "lora: no module of the model is a target; it has down_proj, embed_tokens, gate_proj, k_proj, o_proj, \
         q_proj, up_proj, v_proj"
    );
    assert_eq!(
        fault(Lora { targets: Targets::Pattern(Pattern::whole("lm_.*").unwrap()), ..Lora::default() }),
        "lora: `lm_head` is the output head, which has no adapter; name it as a module to save"
    );
    assert_eq!(
        fault(Lora { targets: targets("lm_head"), ..Lora::default() }),
        "lora: `lm_head` is the output head, which has no adapter; name it as a module to save"
    );
    assert_eq!(fault(Lora { rank: 0, ..Lora::default() }), "lora: the rank is 0; it must be at least 1");
    assert_eq!(
        fault(Lora { dropout: 1.0, ..Lora::default() }),
        "lora: the dropout must be at least 0 and less than 1, got 1"
    );
    assert_eq!(
        fault(Lora { modules_to_save: vec!["score".into()], ..Lora::default() }),
        "lora: the model has no module `score` to save"
    );
    let tied = model("qwen2").training(4, 16).unwrap();
    let head = Lora { targets: targets("lm_head"), ..Lora::default() }.adapt(&tied);
    assert_eq!(
        head.unwrap_err().to_string(),
        "lora: `lm_head` is the output head, which is the embedding table here and has no adapter; leave it out"
    );
    let error = Lora { modules_to_save: vec!["embed_tokens".into()], ..Lora::default() }.adapt(&tied);
    assert!(error.unwrap_err().to_string().contains("embedding and output head at once"));
}

#[test]
fn a_name_that_fits_nothing_is_refused_in_a_new_adapter_and_passed_over_in_a_trained_one() {
    let forward = model("llama").training(4, 16).unwrap();
    let names = |names: &[&str]| Targets::Names(names.iter().map(|&name| name.to_owned()).collect());
    let lora = Lora { targets: names(&["q_proj", "query"]), ..Lora::default() };
    let fault = |lora: &Lora| lora.check_names(&forward).unwrap_err().to_string();
    assert_eq!(
        fault(&lora),
        "lora: no layer is called `query`; the model has down_proj, embed_tokens, gate_proj, k_proj, o_proj, q_proj, \
         up_proj, v_proj"
    );
    assert_eq!(lora.adapters(&forward).unwrap().len(), 2);
    assert_eq!(lora.without_absent(&forward).targets, names(&["q_proj"]));

    let rank_pattern = vec![(Pattern::ending("v_proj").unwrap(), 2)];
    let lora = Lora { targets: names(&["q_proj"]), rank_pattern, ..Lora::default() };
    assert_eq!(
        fault(&lora),
        "lora: the rank pattern `v_proj` fits none of the modules that get adapters: q_proj"
    );
    let excluded = Excluded::Names(vec!["layers.2.mlp.up_proj".into()]);
    let said = fault(&Lora { excluded, ..Lora::default() });
    assert!(
        said.starts_with("lora: no layer is excluded by `layers.2.mlp.up_proj`; the model has"),
        "{said}"
    );
    let layers = Some(LayerChoice { numbers: vec![1, 2], patterns: Vec::new() });
    let lora = Lora { targets: names(&["q_proj"]), layers, ..Lora::default() };
    assert_eq!(fault(&lora), "lora: the model has no layer 2; they count from 0");
}

#[test]
fn targets_of_a_new_adapter_are_written_so_that_peft_takes_the_same_modules() {
    let forward = model("llama").training(4, 16).unwrap();
    let modules = |lora: &Lora| -> Vec<String> {
        lora.adapters(&forward).unwrap().into_iter().map(|adapter| adapter.module).collect()
    };
    let pattern = Lora {
        targets: Targets::Pattern(Pattern::whole(r".*\.mlp\..*").unwrap()),
        excluded: Excluded::Names(vec!["gate_proj".into()]),
        ..Lora::default()
    };
    let plain = pattern.clone().with_plain_targets(&forward).unwrap();
    assert!(matches!(&plain.targets, Targets::Names(names) if names.len() == 4));
    assert_eq!(modules(&plain), modules(&pattern));
    let layers = Some(LayerChoice { numbers: vec![1], patterns: Vec::new() });
    let all = Lora { layers, ..Lora::default() }.with_plain_targets(&forward).unwrap();
    assert!(modules(&all).iter().all(|module| module.starts_with("model.layers.1.")));
    assert_eq!(modules(&all).len(), 7);
}

fn folder(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/lora").join(case)
}

fn config(case: &str) -> AdapterConfig {
    let text = std::fs::read_to_string(folder(case).join("adapter_config.json")).unwrap();
    AdapterConfig::from_json(&text).unwrap()
}

/// Trained parameters by their names in an adapter file.
fn trained(graph: &Graph) -> BTreeMap<String, Vec<usize>> {
    let states = graph.states().iter();
    let states = states.filter(|state| state.kind == StateKind::Parameter { trainable: true });
    states.map(|state| (file_name(&state.name), state.ty.shape.to_vec())).collect()
}

/// The models of `reference/lora.py`.
fn model(case: &str) -> Architecture {
    match case {
        "gpt2" => gpt2(Size::GOLDEN).into(),
        "bert" => bert(Size::GOLDEN).into(),
        "qwen2" => Llama { tie_embeddings: true, qkv_bias: true, ..llama(Size::GOLDEN) }.into(),
        _ => llama(Size::GOLDEN).into(),
    }
}
