//! Mixtures of experts as text: folders that transformers wrote (`reference/mixtures.py`), and configurations that cannot be.
//!
//! Numbers are compared where there is a device to compute them, in `train`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use plimsoll_graph::{Node, State, StateKind};
use plimsoll_model::{Architecture, ExpertNames, Llama, Mixture, Preset};
use serde_json::{Value, json};

#[path = "support/folders.rs"]
mod folders;
use folders::{changed, read, tensors, text};

const FOLDERS: [&str; 4] = ["mixtral", "qwen2-moe", "qwen3-moe", "olmoe"];

fn llama(name: &str) -> Llama {
    match read(name).architecture {
        Architecture::Llama(model) => model,
        other => panic!("{other:?}"),
    }
}

fn mixture(name: &str) -> Mixture {
    llama(name).mixture.unwrap()
}

#[test]
fn a_folder_holds_a_tensor_for_each_expert_of_the_model_its_config_describes() {
    for name in FOLDERS {
        let model = read(name).architecture;
        let graph = model.training(2, 16).unwrap();
        let parameters =
            graph.states().iter().filter(|state| matches!(state.kind, StateKind::Parameter { .. }));
        let pieces = parameters.flat_map(State::pieces);
        let expected: BTreeMap<String, Vec<usize>> =
            pieces.map(|(_, piece, shape)| (model.stored(piece).name, shape.to_vec())).collect();
        let found = tensors(name);
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn a_mixture_is_written_in_the_words_transformers_wrote_it_in() {
    for name in FOLDERS {
        let written = read(name).to_config().unwrap();
        assert_eq!(Architecture::from_config(&written.to_string()).unwrap(), read(name), "{name}");
        let original: Value = serde_json::from_str(&text(name)).unwrap();
        for (key, value) in written.as_object().unwrap() {
            // Older versions count the experts of Qwen3-MoE under this name.
            if (name, key.as_str()) != ("qwen3-moe", "num_experts") {
                assert_eq!(Some(value), original.get(key), "{name}: {key}");
            }
        }
    }
}

#[test]
fn each_family_has_the_experts_that_make_it_one() {
    assert_eq!(mixture("mixtral").names, ExpertNames::Mixtral);
    assert!(mixture("mixtral").normalised && mixture("qwen3-moe").normalised);
    assert!(!mixture("qwen2-moe").normalised && !mixture("olmoe").normalised);
    assert_eq!((mixture("qwen2-moe").shared, mixture("qwen3-moe").shared), (Some(28), None));
    assert!(llama("olmoe").whole_qk_norm && llama("qwen3-moe").qk_norm && llama("qwen2-moe").qkv_bias);
    let sparse =
        |name| (0..llama(name).layers).map(|layer| mixture(name).is_sparse(layer)).collect::<Vec<_>>();
    assert_eq!(sparse("qwen2-moe"), [true, false, true], "mlp_only_layers");
    assert_eq!(sparse("qwen3-moe"), [false, true, false, true], "decoder_sparse_step");
    for name in FOLDERS {
        assert!(read(name).class().is_some(), "{name}");
        assert_eq!(mixture(name).losses.balance.to_bits(), 0.02f32.to_bits(), "{name}");
    }
}

#[test]
fn settings_that_no_mixture_can_have_are_refused_by_key_with_a_way_out() {
    let refusal = |name, key, value| changed(name, key, value).unwrap_err().to_string();
    for (name, key, value, told) in [
        ("mixtral", "num_experts_per_tok", json!(5), "at most `num_local_experts`, which is 4"),
        ("mixtral", "num_experts_per_tok", json!(0), "a whole number from 1"),
        ("mixtral", "num_local_experts", json!(null), "num_local_experts"),
        ("mixtral", "router_jitter_noise", json!(1.0), "a number from 0 to below 1"),
        ("mixtral", "scoring_func", json!("sigmoid"), "softmax"),
        ("qwen3-moe", "topk_method", json!("noaux_tc"), "greedy"),
        ("olmoe", "clip_qkv", json!(8.0), "clipped queries, keys and values are not supported"),
        ("olmoe", "router_aux_loss_coef", json!(-1.0), "a number from 0 on"),
        ("qwen2-moe", "mlp_only_layers", json!([0, 1, 2]), "a list that leaves a layer with experts"),
        ("qwen2-moe", "mlp_only_layers", json!(["a"]), "a list of whole numbers"),
        ("qwen2-moe", "qkv_bias", json!(false), "true"),
        ("qwen3-moe", "decoder_sparse_step", json!(0), "a whole number from 1"),
    ] {
        let error = refusal(name, key, value.clone());
        assert!(error.contains(told), "{name}: {key} = {value}: {error}");
    }
    let Architecture::Llama(mut model) = Preset::from_name("tiny-moe").unwrap().model else { unreachable!() };
    model.mixture.as_mut().unwrap().chosen = 9;
    let error = model.training(1, 8).unwrap_err().to_string();
    assert_eq!(error, "mixture: 9 of 8 experts cannot be chosen; choose 1 to 8");
    model.mixture.as_mut().unwrap().chosen = 2;
    model.qkv_bias = true;
    assert!(Architecture::from(model).to_config().unwrap_err().to_string().contains("Mixtral"));
}

#[test]
fn noise_on_the_input_of_experts_is_read_and_written_and_is_in_training_graphs_alone() {
    use plimsoll_graph::{Graph, Op};
    let Architecture::Llama(model) =
        changed("mixtral", "router_jitter_noise", json!(0.1)).unwrap().architecture
    else {
        unreachable!()
    };
    assert_eq!(model.mixture.as_ref().unwrap().noise.to_bits(), 0.1f32.to_bits());
    assert_eq!(Architecture::from(model.clone()).to_config().unwrap()["router_jitter_noise"], json!(0.1));
    let drawn =
        |graph: Graph| graph.nodes().iter().filter(|node| matches!(node.op, Op::Jitter { .. })).count();
    assert_eq!(drawn(model.training(2, 8).unwrap()), model.layers);
    assert_eq!(drawn(Architecture::from(model.clone()).evaluation(2, 8).unwrap()), 0);
    assert_eq!(drawn(model.generation(8).unwrap()), 0);
}

#[test]
fn vectors_before_a_text_are_no_tokens_of_experts() {
    use plimsoll_model::lora::{AdapterKind, VirtualTokens};
    use plimsoll_model::{BalanceGroup, Lora, RouterLosses};
    let (count, text) = (4, 12);
    let by_sequence = RouterLosses { z: 0.01, ..RouterLosses::balanced(0.01) };
    for losses in [
        by_sequence,
        RouterLosses { group: BalanceGroup::MicroBatch, ..by_sequence },
        RouterLosses { balance: 0.0, steering: 0.001, ..by_sequence },
    ] {
        let mut model = llama("mixtral");
        model.mixture.as_mut().unwrap().losses = losses;
        let experts = model.mixture.as_ref().unwrap().experts;
        let forward = model.training(2, count + text).unwrap();
        let vectors = VirtualTokens { count, width: 32, layers: model.layers, heads: model.heads };
        let adapted = Lora { kind: AdapterKind::Prompt(vectors), ..Lora::default() }.adapt(&forward).unwrap();
        let shapes = |of: &str| -> Vec<Vec<Vec<usize>>> {
            let nodes = adapted.nodes().iter().filter(|node| node.op.name() == of);
            let inputs =
                |node: &Node| node.inputs.iter().map(|&input| adapted.shape(input).to_vec()).collect();
            nodes.map(inputs).collect()
        };
        let (chosen, tokens) = (vec![2, text, 2], vec![2, text]);
        let counted = vec![vec![chosen.clone(), chosen.clone(), tokens.clone()]; model.layers];
        assert_eq!(shapes("count_copies"), counted, "{losses:?}");
        let loads = vec![vec![vec![2, text, experts], chosen, tokens.clone()]; model.layers];
        assert_eq!(shapes("expert_load"), loads, "{losses:?}");
        let of_scores = vec![vec![vec![], tokens, vec![2 * text]]; model.layers];
        assert_eq!(shapes("router_z_loss"), of_scores, "{losses:?}");
    }
}

#[test]
fn adapters_of_all_layers_leave_routers_and_experts_as_they_are() {
    use plimsoll_model::Lora;
    let forward = read("qwen2-moe").architecture.training(2, 16).unwrap();
    let lora = Lora::default();
    let adapters = lora.adapters(&forward).unwrap();
    let modules: Vec<&str> =
        adapters.iter().filter_map(|adapter| adapter.module.strip_prefix("model.layers.0.")).collect();
    let expected = [
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "mlp.shared_expert.gate_proj",
        "mlp.shared_expert.up_proj",
        "mlp.shared_expert.down_proj",
        "mlp.shared_expert_gate",
    ];
    assert_eq!(modules, expected);
    let adapted = lora.adapt(&forward).unwrap();
    let experts = adapted.state(adapted.state_named("model.layers.0.mlp.experts.up_proj").unwrap());
    assert_eq!((experts.kind, experts.parts.len()), (StateKind::Parameter { trainable: false }, 6));
}

#[test]
fn vectors_before_a_text_belong_to_no_expert() {
    use plimsoll_model::Lora;
    use plimsoll_model::lora::{AdapterKind, VirtualTokens};
    for name in FOLDERS {
        let model = llama(name);
        let forward = model.training(2, 16).unwrap();
        let heads = model.key_heads;
        let vectors = VirtualTokens { count: 4, width: 32, layers: model.layers, heads };
        let prefix = Lora { kind: AdapterKind::Prefix(vectors), ..Lora::default() };
        let adapted = prefix.clone().with_stacked_targets(&forward).unwrap();
        assert_eq!(adapted, prefix, "{name}");
        adapted.expert_adapters(&forward).unwrap();
    }
}
