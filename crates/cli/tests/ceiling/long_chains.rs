//! Chains of hundreds of layers: the search for a plan stays inside the plan's own budget.

use serde_json::json;

use super::{Ended, Home, run};

/// Writes the configuration of a Llama of tiny layers.
fn with_layers(layers: usize) -> Home {
    let home = Home::with_model();
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 64,
        "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 64,
        "tie_word_embeddings": false, "hidden_act": "silu",
    });
    home.write("long.json", config.to_string());
    home
}

#[test]
fn a_chain_of_300_layers_is_planned_inside_the_budget_it_is_planned_for() {
    let home = with_layers(300);
    let shape = "--config long.json --seq-len 32 --global-batch 4 --threads 2";
    let Ended { code, said, peak, .. } = run(&home, &format!("plan {shape} --memory 310MiB"));
    assert_eq!(code, Some(0), "{said}");
    assert!(peak <= 310 << 20, "planning reached {} MiB of 310", peak >> 20);
}

#[test]
fn a_chain_that_does_not_fit_is_refused_inside_the_budget() {
    let home = with_layers(300);
    let shape = "--config long.json --seq-len 32 --global-batch 4 --threads 2";
    let Ended { code, said, peak, .. } = run(&home, &format!("plan {shape} --memory 68MiB"));
    assert!(code == Some(2) && said.contains("the smallest plan needs"), "{code:?} {said}");
    assert!(peak <= 68 << 20, "the refusal reached {} MiB of 68", peak >> 20);
}

/// Budgets in MiB: one in which a chain of this many layers has a plan, and one in which it has none.
fn budgets(layers: u64) -> [u64; 2] {
    [25 + layers * 95 / 100, 72]
}

/// Plans a chain beside a disk in both budgets.
fn beside_a_disk(layers: usize) {
    let home = with_layers(layers);
    let shape = "--config long.json --seq-len 32 --global-batch 8 --threads 2 --offload disk";
    let codes = [Some(0), Some(2)];
    for (budget, expected) in budgets(layers as u64).into_iter().zip(codes) {
        let Ended { code, said, peak, .. } = run(&home, &format!("plan {shape} --memory {budget}MiB"));
        assert_eq!(code, expected, "{layers} layers in {budget} MiB: {said}");
        assert!(peak <= budget << 20, "{layers} layers reached {} MiB of {budget}: {said}", peak >> 20);
    }
}

#[test]
fn a_chain_of_120_layers_beside_a_disk_is_planned_or_refused_inside_its_budget() {
    beside_a_disk(120);
}

#[test]
fn a_chain_of_300_layers_beside_a_disk_is_planned_or_refused_inside_its_budget() {
    beside_a_disk(300);
}

#[test]
fn a_chain_of_600_layers_beside_a_disk_is_planned_or_refused_inside_its_budget() {
    beside_a_disk(600);
}

#[test]
fn a_chain_of_1000_layers_beside_a_disk_is_planned_or_refused_inside_its_budget() {
    beside_a_disk(1000);
}

/// The plan passes to a process that starts anew, in a file. Planning, writing it and reading it are all inside the budget.
#[test]
fn training_of_a_long_chain_beside_a_disk_begins_and_ends_inside_its_budget() {
    let home = with_layers(120);
    let shape = "--config long.json --seq-len 32 --global-batch 8 --threads 2 --offload disk --memory 139MiB";
    let train = format!("train {shape} --max-steps 1 --synthetic --report-to none --output-dir out");
    let Ended { code, said, peak, .. } = run(&home, &train);
    assert_eq!(code, Some(0), "{said}");
    assert!(peak <= 139 << 20, "training reached {} MiB of 139: {said}", peak >> 20);
}

#[test]
fn a_budget_too_small_to_search_in_is_refused_with_one_in_which_a_search_can_be_made() {
    let home = with_layers(1000);
    for command in ["plan", "train --max-steps 1 --synthetic --report-to none --output-dir out"] {
        let shape = "--config long.json --seq-len 32 --global-batch 8 --threads 2 --memory 68MiB";
        let Ended { code, said, peak, .. } = run(&home, &format!("{command} {shape}"));
        assert!(code == Some(2) && said.contains("state --memory "), "{code:?} {said}");
        assert!(peak <= 68 << 20, "the refusal reached {} MiB of 68", peak >> 20);
    }
}

#[test]
fn a_model_that_does_not_fit_beside_a_disk_is_refused_inside_the_budget() {
    let home = Home::new();
    for budget in [48, 56, 80, 90] {
        let plan = format!("plan --model gpt2 --memory {budget}MiB --offload disk");
        let ended = run(&home, &plan);
        assert!(ended.peak <= budget << 20, "{plan}: {} KiB, {}", ended.peak >> 10, ended.said);
        assert!(ended.said.contains("the smallest plan needs"), "{}", ended.said);
    }
}
