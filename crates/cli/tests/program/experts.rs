//! The experts of a plan, as the table and the JSON tell them: their bytes, and the parameters that work on a token.
//!
//! Expected numbers are counted here by hand from the shapes of the presets.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};

use crate::support;

fn plimsoll(arguments: &str) -> String {
    let output = support::plimsoll(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The part of a plan about experts, as the table has it and as the JSON has it.
fn told(arguments: &str) -> (Vec<String>, Value) {
    let plan = format!("plan --synthetic --seq-len 16 --global-batch 2 --threads 1 {arguments}");
    let table = plimsoll(&plan);
    let lines = table.lines().skip_while(|line| !line.starts_with("experts: ")).take(2);
    let json: Value = serde_json::from_str(&plimsoll(&format!("{plan} --json"))).unwrap();
    (lines.map(str::to_owned).collect(), json["experts"].clone())
}

/// Parameters of `tiny-moe`: two tables, a final norm, and four layers of attention, norms of heads, a router, eight experts
/// and two norms.
const TINY: u64 = 2 * 65_536 + 128 + 4 * (49_152 + 64 + 1024 + 256) + TINY_EXPERTS;
/// Three matrices of 128 × 172 for each of eight experts in four layers.
const TINY_EXPERTS: u64 = 4 * 8 * 3 * 128 * 172;
/// Adapters of rank 1 for them: gate and up share `A (128)` and have `B (344)`, down has `A (172)` and `B (128)`.
const TINY_ADAPTERS: u64 = 4 * 8 * (128 + 344 + 172 + 128);

/// The JSON of `tiny-moe` whose experts have so many bytes of weights.
fn tiny(bytes: u64) -> Value {
    json!({
        "bytes": { "weights": bytes, "gradients": bytes, "optimizer": 2 * bytes },
        "parameters": TINY,
        "active_parameters": TINY - TINY_EXPERTS / 8 * 6,
    })
}

#[test]
fn two_of_eight_experts_work_on_a_token_and_all_have_bytes() {
    let (table, json) = told("--memory 1GiB --model tiny-moe");
    assert_eq!(
        table,
        [
            "experts: 8.06 MiB of weights, 8.06 MiB of gradients, 16.1 MiB of optimizer",
            "  0.9 of 2.4 million parameters work on a token",
        ]
    );
    assert_eq!(json, tiny(4 * TINY_EXPERTS));
}

#[test]
fn mixtral_has_46_70_billion_parameters_of_which_12_88_work_on_a_token() {
    let (table, json) = told("--memory 400GiB --model mixtral-8x7b --lora-r 4 --lora-target-modules q_proj");
    let adapters = 32 * 2 * 4 * 4096;
    assert_eq!(json["parameters"], 46_702_792_704u64 + adapters);
    assert_eq!(json["active_parameters"], 12_879_925_248u64 + adapters);
    let experts = 32 * 8 * 3 * 4096 * 14_336u64;
    assert_eq!(json["bytes"], json!({ "weights": 4 * experts }), "frozen experts have nothing but weights");
    assert_eq!(table[0], "experts: 168 GiB of weights");
    assert_eq!(table[1], "  12881.0 of 46703.8 million parameters work on a token");
}

#[test]
fn adapters_of_experts_count_with_them_and_those_of_two_experts_work_on_a_token() {
    let experts = "--lora-r 4 --lora-target-parameters experts.gate_up_proj,experts.down_proj";
    let (_, json) = told(&format!("--memory 1GiB --model tiny-moe {experts}"));
    let adapters = 4 * TINY_ADAPTERS;
    let expected = json!({
        "bytes": {
            "weights": 4 * (TINY_EXPERTS + adapters),
            "gradients": 4 * adapters,
            "optimizer": 8 * adapters,
        },
        "parameters": TINY + adapters,
        "active_parameters": TINY + adapters - (TINY_EXPERTS + adapters) / 8 * 6,
    });
    assert_eq!(json, expected);
}

#[test]
fn weights_in_bf16_or_few_bits_are_as_many_parameters() {
    let (_, json) = told("--memory 1GiB --model tiny-moe --weights-dtype bf16-master");
    assert_eq!(json["parameters"], TINY);
    assert_eq!(json["active_parameters"], TINY - TINY_EXPERTS / 8 * 6);
    assert_eq!(json["bytes"]["weights"], 2 * TINY_EXPERTS);
    let four = "--lora-r 4 --lora-target-modules q_proj --load-in-4bit";
    let (_, json) = told(&format!("--memory 1GiB --model tiny-moe {four}"));
    let adapters = 4 * 2 * 4 * 128;
    assert_eq!(json["parameters"], TINY + adapters);
    assert_eq!(json["active_parameters"], TINY + adapters - TINY_EXPERTS / 8 * 6);
}

#[test]
fn experts_stay_as_they_are_under_a_base_in_few_bits_and_have_a_line_of_their_own() {
    let four = "--model tiny-moe --lora-r 4 --lora-target-modules q_proj --load-in-4bit";
    let table =
        plimsoll(&format!("plan --synthetic --seq-len 16 --global-batch 2 --threads 1 --memory 1GiB {four}"));
    let lines: Vec<&str> = table.lines().filter(|line| line.starts_with("    ")).collect();
    let [experts, others] = lines[lines.len() - 2..] else { panic!("{table}") };
    assert_eq!(experts, "    experts           8.06 MiB   not in few bits, with their adapters");
    // Norms and routers of four layers, the last norm, four adapters, and the few bytes by which ranges are aligned.
    let bytes = 4.0 * f64::from(4 * (64 + 1024 + 256) + 128 + 4 * 2 * 4 * 128);
    let told =
        others.strip_prefix("    others").unwrap().strip_suffix(" KiB   norms and other adapters").unwrap();
    let told = 1024.0 * told.trim().parse::<f64>().unwrap();
    assert!((bytes..1.1 * bytes).contains(&told), "{others}, {bytes} by hand");
    let dense = plimsoll(
        "plan --synthetic --seq-len 16 --global-batch 2 --threads 1 --memory 1GiB --model tiny --lora-r 4 --load-in-8bit",
    );
    assert!(dense.contains("norms and adapters") && !dense.contains("experts"), "{dense}");
}

#[test]
fn ranks_that_divide_weights_have_a_part_of_the_bytes_and_all_of_the_parameters() {
    let (_, json) = told("--memory 1GiB --model tiny-moe --ranks 2 --zero-stage 3");
    // Half of every group is a whole number of blocks.
    assert_eq!(json, tiny(2 * TINY_EXPERTS));
}

#[test]
fn a_model_without_experts_has_no_such_line() {
    assert_eq!(told("--memory 1GiB --model tiny"), (Vec::new(), Value::Null));
}
