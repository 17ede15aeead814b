//! Adapted graphs against the adapters that PEFT saves (`reference/lora.py`), and what is asked of them in vain.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use plimsoll_graph::{Graph, Node, Op, Phase, StateKind, differentiate};
use plimsoll_model::lora::{
    AdapterConfig, AdapterKind, Excluded, FeedForward, LayerChoice, NonLinearity, Pattern, TrainedTokens,
    VirtualTokens, file_name, parameter_name,
};
use plimsoll_model::{Architecture, Llama, Lora, Preset, Targets};
use safetensors::SafeTensors;

#[path = "support/families.rs"]
mod models;
use models::{Size, bert, gpt2, llama};

const CASES: [&str; 18] = [
    "llama",
    "llama_rslora",
    "llama_saved",
    "gpt2",
    "bert",
    "qwen2",
    "llama_dora",
    "qwen2_dora",
    "gpt2_dora",
    "llama_ia3",
    "gpt2_ia3",
    "bert_ia3",
    "llama_bottleneck",
    "gpt2_bottleneck",
    "llama_prompt",
    "gpt2_prompt",
    "llama_prefix",
    "gpt2_prefix",
];

#[test]
fn what_is_trained_has_the_names_and_shapes_of_the_file_that_peft_saves() {
    for case in CASES {
        let lora = config(case).lora;
        let bytes = std::fs::read(folder(case).join("adapter_model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let expected: BTreeMap<String, Vec<usize>> =
            tensors.tensors().into_iter().map(|(name, tensor)| (name, tensor.shape().to_vec())).collect();
        let positions = 16 - lora.virtual_tokens() + lora.added_positions();
        let graph = lora.adapt(&model(case).training(4, positions).unwrap()).unwrap();
        assert_eq!(trained(&graph), expected, "{case}");
        for name in expected.keys() {
            assert_eq!(&file_name(parameter_name(name).unwrap()), name);
        }
        if let Ok(generation) = model(case).generation(positions) {
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
    let scaled = AdapterKind::Ia3(FeedForward::Names(Vec::new()));
    let behind = AdapterKind::Bottleneck(NonLinearity::Tanh);
    for kind in [AdapterKind::LowRank, AdapterKind::Dora, scaled, behind] {
        ends_at_the_adapter(kind);
    }
}

fn ends_at_the_adapter(kind: AdapterKind) {
    let targets = Targets::Names(vec!["layers.2.mlp.up_proj".into()]);
    let preset = Preset::from_name("tiny").unwrap();
    let forward = preset.model.training(2, 32).unwrap();
    let graph = Lora { kind, targets, ..Lora::default() }.adapt(&forward).unwrap();
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
fn vectors_before_the_text_are_all_that_is_trained_and_their_positions_have_no_loss() {
    let vectors = VirtualTokens { count: 5, width: 32, layers: 2, heads: 4 };
    let lora = Lora { kind: AdapterKind::Prompt(vectors), ..Lora::default() };
    let graph = lora.adapt(&model("llama").training(3, 16).unwrap()).unwrap();
    assert_eq!(trained(&graph), BTreeMap::from([("prompt_embeddings".to_owned(), vec![5, 32])]));
    let shape = |name: &str| graph.shape(graph.input_named(name).unwrap()).to_vec();
    assert_eq!((shape("tokens"), shape("targets")), (vec![3, 11], vec![3, 11]));
    let training = differentiate(&graph, graph.output_named("loss").unwrap()).unwrap();
    let head = training.nodes().iter().find(|node| matches!(node.op, Op::HeadLossGrad { .. })).unwrap();
    assert_eq!(training.shape(head.inputs[0])[..], [3 * 11, 32]);
    // The table of words lies beside the vectors and is frozen: it has no gradient, and no weight has.
    let of_weights = |node: &&Node| matches!(node.op, Op::EmbeddingGrad { .. } | Op::LinearGradWeight { .. });
    assert_eq!(training.nodes().iter().filter(of_weights).count(), 0);
    let generation = lora.adapt(&model("gpt2").generation(16).unwrap()).unwrap();
    assert_eq!(generation.shape(generation.input_named("tokens").unwrap())[..], [1, 11]);

    let fault = |architecture: Architecture, seq: usize| {
        lora.adapt(&architecture.training(2, seq).unwrap()).unwrap_err().to_string()
    };
    assert_eq!(fault(model("llama"), 5), "prompt tuning: 5 vectors leave no room for text in 5 positions");
    let packed = "prompt tuning: the vectors belong to every text, and rows of several texts have them once; give --packing \
                  false and texts as .jsonl or .parquet, for a model that writes";
    assert_eq!(fault(model("llama").with_documents(true), 16), packed);
    assert_eq!(fault(model("bert"), 16), packed);
}

#[test]
fn keys_and_values_before_the_text_are_all_that_is_trained_and_layers_stay_alike() {
    let vectors = VirtualTokens { count: 5, width: 16, layers: 2, heads: 2 };
    let lora = Lora { kind: AdapterKind::Prefix(vectors), ..Lora::default() };
    let graph = lora.adapt(&model("llama").training(3, 11).unwrap()).unwrap();
    assert_eq!(trained(&graph), BTreeMap::from([("prompt_embeddings".to_owned(), vec![5, 64])]));
    let training = differentiate(&graph, graph.output_named("loss").unwrap()).unwrap();
    let in_layer = |layer: usize| {
        let nodes = training.nodes().iter().filter(|node| node.phase == Phase::Forward);
        let own = nodes.filter(|node| training.block_name(node.block) == format!("model.layers.{layer}"));
        own.map(|node| node.op.clone()).collect::<Vec<Op>>()
    };
    assert_eq!(in_layer(0), in_layer(1));
    // Queries of the first layer depend on the text alone, and so does everything below its attention.
    let first = training.nodes().iter().filter(|node| training.block_name(node.block) == "model.layers.0");
    let backward = first.filter(|node| node.phase == Phase::Backward);
    let below = |node: &&Node| matches!(node.op, Op::LinearGradWeight { .. } | Op::Rope { .. });
    assert_eq!(backward.filter(below).count(), 0);
    let other = Lora { kind: AdapterKind::Prefix(VirtualTokens { layers: 3, ..vectors }), ..Lora::default() };
    assert_eq!(
        other.adapt(&model("llama").training(3, 11).unwrap()).unwrap_err().to_string(),
        "prefix tuning: the vectors are those of 3 layers, and the model has 2"
    );
}

/// PEFT reads the norm as a constant, so no gradient goes through it: the products that it follows from have none.
#[test]
fn the_norm_of_rows_is_a_constant_for_the_derivative() {
    let forward = model("llama").training(4, 16).unwrap();
    let dora = Lora { kind: AdapterKind::Dora, ..Lora::default() };
    let training = |lora: &Lora| {
        let graph = lora.adapt(&forward).unwrap();
        differentiate(&graph, graph.output_named("loss").unwrap()).unwrap()
    };
    let products = |graph: &Graph| {
        let backward = graph.nodes().iter().filter(|node| node.phase == Phase::Backward);
        backward
            .filter(|node| matches!(node.op, Op::LinearGradWeight { .. } | Op::LinearGradInput { .. }))
            .count()
    };
    let graph = training(&dora);
    assert_eq!(products(&graph), products(&training(&Lora::default())));
    let norms = graph.nodes().iter().filter(|node| matches!(node.op, Op::InverseNorm { .. }));
    assert_eq!(norms.clone().count(), 14, "one for each of seven layers of two blocks");
    assert!(norms.into_iter().all(|node| node.phase == Phase::Forward));
}

#[test]
fn a_table_of_words_has_no_lengths_of_rows() {
    let forward = model("llama").training(4, 16).unwrap();
    let targets = Targets::Names(vec!["embed_tokens".into()]);
    let lora = Lora { kind: AdapterKind::Dora, targets, ..Lora::default() };
    assert_eq!(
        lora.adapt(&forward).unwrap_err().to_string(),
        "lora: `model.embed_tokens` is a table of words, which has no DoRA here; leave it out of the targets"
    );
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
fn a_head_that_is_the_table_may_be_named_before_it() {
    let tied = model("qwen2").training(4, 16).unwrap();
    let adapters = |names: [&str; 2]| {
        let modules = names.map(|name| (name.to_owned(), vec![5, 9]));
        Lora { tokens: TrainedTokens::Modules(modules.into()), ..Lora::default() }
            .token_adapters(&tied)
            .unwrap()
    };
    let behind = adapters(["model.embed_tokens", "lm_head"]);
    assert_eq!(behind.len(), 1, "one table with one parameter");
    assert_eq!(adapters(["lm_head", "model.embed_tokens"]), behind);
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
        _ if case.starts_with("gpt2") => gpt2(Size::GOLDEN).into(),
        _ if case.starts_with("bert") => bert(Size::GOLDEN).into(),
        _ if case.starts_with("qwen2") => {
            Llama { tie_embeddings: true, qkv_bias: true, ..llama(Size::GOLDEN) }.into()
        }
        _ => llama(Size::GOLDEN).into(),
    }
}
