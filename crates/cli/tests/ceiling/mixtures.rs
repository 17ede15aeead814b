//! Mixtures of experts, each expert a tensor with a name of its own: a configuration of half a kilobyte asks for millions.

use serde_json::json;

use super::{BUDGET, CEILING, Ended, Home, SECONDS, run};

/// Writes the configuration of a Mixtral.
fn with_experts(layers: usize, experts: usize) -> Home {
    let home = Home::with_model();
    let config = json!({
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 256, "hidden_size": 64,
        "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 16,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 64, "tie_word_embeddings": false,
        "hidden_act": "silu", "num_local_experts": experts, "num_experts_per_tok": 2,
    });
    home.write("mixture.json", config.to_string());
    home
}

/// Refusals of commands that plan a mixture.
fn refusals(layers: usize, experts: usize, words: &str) {
    let home = with_experts(layers, experts);
    let train = "train --max-steps 1 --synthetic --report-to none --output-dir out";
    for command in ["plan", train] {
        let shape = "--config mixture.json --seq-len 16 --global-batch 4 --threads 2";
        let Ended { code, said, peak, seconds } = run(&home, &format!("{command} {shape} {BUDGET}"));
        let what = format!("{layers} layers of {experts} experts: {command}");
        assert!(code == Some(2) && said.contains(words), "{what}: {code:?} {said:.2000}");
        assert!(peak <= CEILING, "{what}: reached {} KiB: {said:.2000}", peak >> 10);
        assert!(seconds <= SECONDS, "{what}: took {seconds} s: {said:.2000}");
    }
}

#[test]
fn more_experts_than_any_model_has_are_refused_by_their_number() {
    for (layers, experts) in [(200, 100_000), (2, 100_000), (200, 1_000), (4_096, 4_096)] {
        refusals(layers, experts, "num_local_experts");
    }
}

#[test]
fn as_many_experts_as_a_model_may_have_are_refused_before_their_names_are_written() {
    for (layers, experts) in [(128, 1024), (32, 4096), (200, 100)] {
        refusals(layers, experts, "tensors of experts take ");
    }
}

#[test]
fn experts_whose_names_just_fit_are_planned_or_refused_inside_the_budget() {
    for (layers, experts) in [(2, 600), (4, 2_000), (20, 300)] {
        let home = with_experts(layers, experts);
        for memory in [64, 96, 160] {
            let shape = "--config mixture.json --seq-len 16 --global-batch 4 --threads 2";
            let Ended { code, said, peak, .. } = run(&home, &format!("plan {shape} --memory {memory}MiB"));
            let what = format!("{layers} layers of {experts} experts in {memory} MiB");
            assert!(matches!(code, Some(0 | 2)), "{what}: {code:?} {said:.2000}");
            assert!(peak <= memory << 20, "{what}: reached {} KiB: {said:.2000}", peak >> 10);
        }
    }
}
