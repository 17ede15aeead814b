//! Answers to wrong configurations, and the effects of optional parts.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_graph::{Graph, Init, Op};
use plimsoll_model::{Architecture, Bert, Gpt2, Llama, Preset};

#[path = "support/families.rs"]
mod models;
use models::Size;

fn tiny() -> Llama {
    match Preset::from_name("tiny").unwrap().model {
        Architecture::Llama(model) => model,
        other => panic!("{other:?}"),
    }
}

fn gpt2() -> Gpt2 {
    models::gpt2(Size { layers: 3, ..Size::GOLDEN })
}

fn count(graph: &Graph, wanted: impl Fn(&Op) -> bool) -> usize {
    graph.nodes().iter().filter(|node| wanted(&node.op)).count()
}

#[test]
fn a_width_that_heads_do_not_divide_is_refused() {
    let error = Llama { width: 130, ..tiny() }.training(1, 8).unwrap_err();
    assert_eq!(error.to_string(), "llama: width 130 cannot be divided among 4 heads");
    let error = Llama { heads: 0, ..tiny() }.training(1, 8).unwrap_err();
    assert_eq!(error.to_string(), "llama: width 128 cannot be divided among 0 heads");
}

#[test]
fn key_heads_that_do_not_divide_the_heads_are_refused_in_the_first_layer() {
    let error = Llama { key_heads: 3, ..tiny() }.training(1, 8).unwrap_err();
    assert_eq!(error.block, "model.layers.0");
    assert_eq!(error.why, "4 query heads cannot share 3 key heads evenly");
}

#[test]
fn a_sequence_longer_than_the_learned_positions_is_refused() {
    let error = gpt2().training(1, 17).unwrap_err();
    assert_eq!(error.to_string(), "gpt2: sequences of 17 tokens, but positions are learned for 16 only");
}

#[test]
fn a_tied_head_is_the_embedding_table() {
    let tied = Llama { tie_embeddings: true, ..tiny() }.training(1, 8).unwrap();
    let untied = tiny().training(1, 8).unwrap();
    assert!(tied.state_named("lm_head.weight").is_none());
    assert_eq!(untied.trainable_elements() - tied.trainable_elements(), 512 * 128);
}

#[test]
fn query_key_and_value_weights_are_adjacent_even_with_biases() {
    let graph = Llama { qkv_bias: true, ..tiny() }.training(1, 8).unwrap();
    let names: Vec<&str> = graph.states().iter().map(|state| state.name.as_str()).collect();
    let first = names.iter().position(|name| *name == "model.layers.0.self_attn.q_proj.weight").unwrap();
    let suffixes =
        names[first..first + 6].iter().map(|name| name.trim_start_matches("model.layers.0.self_attn."));
    let expected =
        ["q_proj.weight", "k_proj.weight", "v_proj.weight", "q_proj.bias", "k_proj.bias", "v_proj.bias"];
    assert!(suffixes.eq(expected), "{names:?}");
}

#[test]
fn documents_reach_the_attention_of_every_layer() {
    let graph = Llama { documents: true, ..tiny() }.training(2, 8).unwrap();
    let starts = graph.input_named("doc_start").unwrap();
    let readers = graph.nodes().iter().filter(|node| node.inputs.contains(&starts)).count();
    assert_eq!(readers, 4);
    assert!(tiny().training(2, 8).unwrap().input_named("doc_start").is_none());
}

#[test]
fn dropout_is_in_training_and_never_in_generation() {
    let gpt2 = Gpt2 { dropout: 0.1, ..gpt2() };
    let dropouts = |graph: &Graph| count(graph, |op| matches!(op, Op::Dropout { .. }));
    assert_eq!(dropouts(&gpt2.training(2, 8).unwrap()), 1 + 2 * 3);
    assert_eq!(dropouts(&gpt2.generation(8).unwrap()), 0);
    let bert = Bert {
        vocab: 64,
        positions: 16,
        token_types: 2,
        width: 32,
        layers: 3,
        heads: 4,
        ffn: 64,
        norm_epsilon: 1e-12,
        dropout: 0.1,
        labels: None,
    };
    assert_eq!(dropouts(&bert.training(2, 8).unwrap()), 1 + 2 * 3);
}

#[test]
fn a_stated_head_width_and_norms_of_heads_shape_the_parameters() {
    let graph = Llama { head_width: Some(48), qk_norm: true, ..tiny() }.training(1, 8).unwrap();
    let shape = |name: &str| {
        let state = graph.state_named(&format!("model.layers.3.self_attn.{name}.weight")).unwrap();
        graph.state(state).ty.shape.to_vec()
    };
    assert_eq!(shape("q_proj"), [4 * 48, 128]);
    assert_eq!(shape("k_proj"), [2 * 48, 128]);
    assert_eq!(shape("o_proj"), [128, 4 * 48]);
    assert_eq!((shape("q_norm"), shape("k_norm")), (vec![48], vec![48]));
}

#[test]
fn rotary_frequencies_fall_from_one_by_equal_ratios() {
    let graph = tiny().training(1, 8).unwrap();
    let state = graph.state(graph.state_named("rope.frequencies").unwrap());
    let Init::Table(table) = &state.init else { panic!("frequencies are a table") };
    assert_eq!(table.len(), 16);
    assert!((table[0] - 1.0).abs() < 1e-7);
    assert!((table[8] - 0.01).abs() < 1e-8, "half way through a head of 32 lies 10000^(-1/2)");
}

#[test]
fn a_senseless_shape_is_an_error_and_never_a_panic() {
    let wrong = [
        Llama { width: 12, ..tiny() },
        Llama { width: 0, ..tiny() },
        Llama { vocab: 0, ..tiny() },
        Llama { ffn: 0, ..tiny() },
        Llama { key_heads: 0, ..tiny() },
        Llama { key_heads: 8, ..tiny() },
        Llama { head_width: Some(0), ..tiny() },
        Llama { head_width: Some(7), ..tiny() },
        Llama { head_width: Some(16), heads: 0, ..tiny() },
        Llama { key_heads: 3, documents: true, qkv_bias: true, ..tiny() },
    ];
    for model in wrong {
        assert!(model.training(2, 8).is_err(), "{model:?}");
        assert!(model.generation(8).is_err(), "{model:?}");
    }
    let error = tiny().training(0, 8).unwrap_err();
    assert_eq!(error.to_string(), "llama: the batch is 0");
}
