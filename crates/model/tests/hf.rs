//! Folders that transformers wrote (`reference/hf_models.py`), and files of published models, as text.
//!
//! Numbers are compared where there is a device to compute them, in `train`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use plimsoll_graph::StateKind;
use plimsoll_model::hf::Configuration;
use plimsoll_model::{Architecture, Bert, Labels, Llama, Preset, Rope, Stretch};
use serde_json::{Value, json};

#[path = "support/folders.rs"]
mod folders;
use folders::{changed, read, tensors, text};

const FOLDERS: [&str; 8] = ["llama", "llama2", "mistral", "qwen2", "qwen3", "gpt2", "bert", "bert-labels"];

fn refusal(name: &str, key: &str, value: Value) -> String {
    changed(name, key, value).unwrap_err().to_string()
}

#[test]
fn a_folder_holds_the_parameters_of_the_model_its_config_describes() {
    for name in FOLDERS {
        let model = read(name).architecture;
        let graph = model.training(2, 16).unwrap();
        let parameters =
            graph.states().iter().filter(|state| matches!(state.kind, StateKind::Parameter { .. }));
        let expected: BTreeMap<String, Vec<usize>> =
            parameters.map(|state| (model.stored(&state.name).name, state.ty.shape.to_vec())).collect();
        let mut found = tensors(name);
        found.retain(|stored, _| !model.ignores(stored));
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn a_model_is_written_in_the_words_transformers_wrote_it_in() {
    for name in FOLDERS {
        let written = read(name).to_config().unwrap();
        assert_eq!(Architecture::from_config(&written.to_string()).unwrap(), read(name), "{name}");
        if name == "llama2" {
            continue; // an older file, with other keys
        }
        let original: Value = serde_json::from_str(&text(name)).unwrap();
        for (key, value) in written.as_object().unwrap() {
            assert_eq!(Some(value), original.get(key), "{name}: {key}");
        }
    }
}

#[test]
fn every_preset_is_the_same_after_it_was_written_and_read() {
    for Preset { name, model, .. } in Preset::all() {
        let config = model.to_config().unwrap();
        let read = Architecture::from_config(&config.to_string()).unwrap().architecture;
        // A model without a stated length is given one.
        let expected = match model {
            Architecture::Llama(model) => Architecture::Llama(Llama { positions: Some(2048), ..model }),
            other => other,
        };
        assert_eq!(read, expected, "{name}");
    }
}

#[test]
fn what_a_file_says_beside_the_shape_is_reported() {
    let llama = read("llama");
    assert_eq!((llama.bos, llama.eos, llama.pad), (Some(1), vec![2, 3], Some(0)));
    assert_eq!(llama.dtype.as_deref(), Some("float32"));
    assert_eq!(read("qwen2").dtype.as_deref(), Some("bfloat16"));
    assert_eq!(read("llama2").dtype.as_deref(), Some("float32"));
    assert_eq!(read("bert-labels").labels, ["LABEL_0", "LABEL_1", "LABEL_2"]);
    assert_eq!(llama.notes, [""; 0]);
    let gpt2 = changed("gpt2", "attn_pdrop", json!(0.1)).unwrap();
    assert_eq!(gpt2.notes, ["`attn_pdrop` is not applied: attention weights never exist as a matrix"]);
}

#[test]
fn each_family_has_what_makes_it_one() {
    let llama = |name| match read(name).architecture {
        Architecture::Llama(model) => model,
        other => panic!("{other:?}"),
    };
    assert_eq!(llama("mistral").window, Some(5));
    assert!(llama("qwen2").qkv_bias && llama("qwen2").tie_embeddings && llama("qwen2").window.is_none());
    assert!(llama("qwen3").qk_norm && !llama("qwen3").tie_embeddings);
    assert_eq!(llama("qwen3").head_width, Some(12));
    let rope = llama("llama").rope;
    let stretch = Stretch::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 16.0 };
    assert_eq!(rope, Rope { base: 500_000.0, stretch: Some(stretch) });
    let rope = llama("llama2").rope;
    assert_eq!(rope, Rope { base: 10_000.0, stretch: Some(Stretch::Linear { factor: 2.0 }) });
    assert_eq!(read("bert-labels").architecture.labels(), Some(3));
}

#[test]
fn published_files_give_the_published_shapes() {
    let of_preset = |name| Preset::from_name(name).unwrap().model;
    let with_positions = |model, positions| match model {
        Architecture::Llama(model) => Architecture::Llama(Llama { positions: Some(positions), ..model }),
        other => other,
    };
    let llama_3_2 = json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 128_000, "eos_token_id": 128_001, "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131_072, "mlp_bias": false,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
        "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500_000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 128_256,
    });
    let qwen2_5 = json!({
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "eos_token_id": 151_643,
        "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
        "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2",
        "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0, "sliding_window": 32768, "tie_word_embeddings": true,
        "use_mrope": false, "use_sliding_window": false, "vocab_size": 151_936,
    });
    let qwen3 = json!({
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960,
        "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_scaling": null, "rope_theta": 1_000_000,
        "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151_936,
    });
    // The files of GPT-2 and BERT are from 2019 and have few keys.
    let gpt2 = json!({
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "embd_pdrop": 0.1, "layer_norm_epsilon": 1e-5, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768,
        "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "vocab_size": 50257,
    });
    let bert = json!({
        "architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "hidden_size": 768, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 12,
        "num_hidden_layers": 12, "pad_token_id": 0, "type_vocab_size": 2, "vocab_size": 30522,
    });
    for (text, expected) in [
        (llama_3_2, with_positions(of_preset("llama-3.2-1b"), 131_072)),
        (qwen2_5, with_positions(of_preset("qwen2.5-0.5b"), 32768)),
        (qwen3, with_positions(of_preset("qwen3-0.6b"), 40960)),
        (gpt2, of_preset("gpt2")),
        (bert, of_preset("bert-base")),
    ] {
        assert_eq!(Architecture::from_config(&text.to_string()).unwrap().architecture, expected);
    }
}

#[test]
fn a_file_without_a_class_is_read_by_its_type_and_an_old_one_without_key_heads_has_one_per_head() {
    let old = json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
        "num_hidden_layers": 1, "vocab_size": 100,
    });
    match Architecture::from_config(&old.to_string()).unwrap().architecture {
        Architecture::Llama(model) => assert_eq!((model.key_heads, model.positions), (4, None)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn windows_of_all_layers_are_built_and_windows_of_some_refused() {
    let qwen = |kinds: [&str; 2]| {
        let mut config: Value = serde_json::from_str(&text("qwen3")).unwrap();
        config["use_sliding_window"] = true.into();
        config["sliding_window"] = 7.into();
        config["layer_types"] = json!(kinds);
        Architecture::from_config(&config.to_string())
    };
    let (full, sliding) = ("full_attention", "sliding_attention");
    let window = |config: Configuration| match config.architecture {
        Architecture::Llama(model) => model.window,
        other => panic!("{other:?}"),
    };
    assert_eq!(window(qwen([sliding, sliding]).unwrap()), Some(7));
    assert_eq!(window(qwen([full, full]).unwrap()), None);
    let error = qwen([full, sliding]).unwrap_err().to_string();
    assert_eq!(
        error,
        "config.json: `use_sliding_window` is true, which is not supported; it may be true with a window in all layers, or false"
    );
    let all = qwen([sliding, sliding]).unwrap().architecture;
    assert_eq!(Architecture::from_config(&all.to_config().unwrap().to_string()).unwrap().architecture, all);
}

#[test]
fn what_cannot_be_trained_is_refused_by_key_and_value() {
    for (name, key, value, why) in [
        (
            "llama",
            "hidden_act",
            json!("relu"),
            "`hidden_act` is \"relu\", which is not supported; it may be silu",
        ),
        (
            "llama",
            "attention_bias",
            json!(true),
            "`attention_bias` is true, which is not supported; it may be false",
        ),
        ("llama", "mlp_bias", json!(true), "`mlp_bias` is true, which is not supported; it may be false"),
        (
            "llama",
            "rope_parameters",
            json!({"rope_type": "yarn", "factor": 4.0}),
            "`rope_parameters.rope_type` is \"yarn\", which is not supported; it may be default, linear or llama3",
        ),
        (
            "qwen3",
            "quantization_config",
            json!({"bits": 4}),
            "`quantization_config.quant_method` is absent, which is not supported; it may be bitsandbytes",
        ),
        (
            "gpt2",
            "n_inner",
            json!(100),
            "`n_inner` is 100, which is not supported; it may be null or 128, four times `n_embd`",
        ),
        (
            "gpt2",
            "embd_pdrop",
            json!(0.5),
            "`embd_pdrop` is 0.5, which is not supported; it may be 0, the same as `resid_pdrop`",
        ),
        (
            "bert-labels",
            "problem_type",
            json!("regression"),
            "`problem_type` is \"regression\", which is not supported; it may be single_label_classification",
        ),
        (
            "bert",
            "vocab_size",
            json!(-3),
            "`vocab_size` is -3, which is not supported; it may be a whole number from 1 to 16777216",
        ),
        (
            "bert",
            "position_embedding_type",
            json!("relative_key"),
            "`position_embedding_type` is \"relative_key\", which is not supported; it may be absolute",
        ),
    ] {
        assert_eq!(refusal(name, key, value), format!("config.json: {why}"));
    }
    assert_eq!(refusal("gpt2", "n_layer", Value::Null), "config.json has no `n_layer`");
    assert_eq!(
        refusal("llama", "architectures", json!(["GemmaForCausalLM"])),
        "config.json describes a `GemmaForCausalLM`, which cannot be trained here; supported are \
         LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, MixtralForCausalLM, \
         Qwen2MoeForCausalLM, Qwen3MoeForCausalLM, OlmoeForCausalLM, GPT2LMHeadModel, BertForMaskedLM, \
         BertForSequenceClassification, BertForPreTraining, GPT2Model"
    );
    for broken in ["", "[1, 2]", "{\"architectures\": "] {
        let error = Architecture::from_config(broken).unwrap_err().to_string();
        assert!(error.starts_with("config.json cannot be read: "), "{error}");
    }
    assert_eq!(
        Architecture::from_config("{}").unwrap_err().to_string(),
        "config.json has no `architectures`"
    );
}

#[test]
fn a_sequence_longer_than_the_positions_of_a_file_is_refused() {
    for (name, why) in [
        ("llama", "llama: sequences of 33 tokens, but the model is meant for 32 at most"),
        ("gpt2", "gpt2: sequences of 33 tokens, but positions are learned for 32 only"),
        ("bert", "bert: sequences of 33 tokens, but positions are learned for 32 only"),
    ] {
        let model = read(name).architecture;
        assert_eq!(model.positions(), Some(32));
        assert!(model.training(1, 32).is_ok());
        assert_eq!(model.training(1, 33).unwrap_err().to_string(), why);
    }
}

#[test]
fn a_model_that_no_class_computes_is_not_written_as_another() {
    let Architecture::Llama(model) = read("qwen2").architecture else { panic!("qwen2 is a llama") };
    let error = Architecture::Llama(Llama { qk_norm: true, ..model }).to_config().unwrap_err().to_string();
    assert!(error.starts_with("no config.json can describe this model: "), "{error}");
}

#[test]
fn a_classifier_keeps_the_dropout_of_its_own() {
    let config = changed("bert-labels", "classifier_dropout", json!(0.25)).unwrap();
    let Architecture::Bert(Bert { labels, .. }) = &config.architecture else { panic!("bert is a bert") };
    assert_eq!(*labels, Some(Labels { count: 3, dropout: 0.25 }));
    assert_eq!(config.architecture.to_config().unwrap()["classifier_dropout"], json!(0.25));
}

#[test]
fn where_old_and_new_keys_of_rotary_positions_stand_together_the_old_ones_count_as_in_transformers() {
    let rope = |scaling: Value, theta: Option<f64>| {
        let mut config: Value = serde_json::from_str(&text("qwen3")).unwrap();
        config["rope_parameters"] = json!({"rope_theta": 500_000.0, "rope_type": "default"});
        config["rope_scaling"] = scaling;
        if let Some(theta) = theta {
            config["rope_theta"] = theta.into();
        }
        let read = Architecture::from_config(&config.to_string()).unwrap();
        let Architecture::Llama(model) = read.architecture else { panic!("a Qwen3") };
        (model.rope, read.notes.len())
    };
    // Printed by transformers 5.22 for the same files.
    let linear = json!({"type": "linear", "factor": 4.0});
    let stretch = Some(Stretch::Linear { factor: 4.0 });
    assert_eq!(rope(linear.clone(), None), (Rope { base: 10_000.0, stretch }, 1));
    assert_eq!(rope(linear, Some(7.0)), (Rope { base: 7.0, stretch }, 1));
    assert_eq!(rope(json!({"rope_theta": 3.0}), None), (Rope::plain(3.0), 1));
    assert_eq!(rope(json!({"rope_theta": 500_000.0}), None), (Rope::plain(500_000.0), 0));
    for nothing in [json!({}), json!(null)] {
        assert_eq!(rope(nothing, None), (Rope::plain(500_000.0), 0));
    }
}
