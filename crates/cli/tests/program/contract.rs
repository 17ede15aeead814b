//! The contract with scripts: the JSON of `plan` and `train`, and the budget itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Output;

use serde_json::Value;

use crate::support;

fn plimsoll(arguments: &str) -> Output {
    let output = support::plimsoll(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn lines(arguments: &str) -> Vec<Value> {
    let output = plimsoll(arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("{name} of {value}"))
}

#[test]
fn the_plan_accounts_for_every_byte_of_its_arena() {
    for arguments in
        ["--memory 64MiB", "--memory 40MiB --global-batch 16", "--recompute minimal --micro-batch 2", ""]
    {
        let plan = &lines(&format!("plan --json {arguments}"))[0];
        let arena = number(plan, "arena_bytes");
        assert_eq!(arena, number(plan, "planned_peak_bytes"));
        assert!(arena + number(plan, "outside_bytes") <= number(plan, "budget_bytes"), "{plan}");
        let purposes = plan["by_purpose"].as_object().unwrap();
        let names: Vec<&str> = purposes.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "weights",
                "gradients",
                "optimizer",
                "activations",
                "workspace",
                "staging",
                "perturbed",
                "gathered",
                "free"
            ]
        );
        assert_eq!(purposes.values().map(|bytes| bytes.as_u64().unwrap()).sum::<u64>(), arena);
        assert!(number(plan, "liveness_bound_bytes") <= arena);
        assert!(number(plan, "micro_batch") * number(plan, "accumulation") >= 8);
    }
}

#[test]
fn the_plan_says_what_it_costs_and_how_far_from_the_optimum_it_can_be() {
    for arguments in
        ["--memory 40MiB --global-batch 16", "--memory 64MiB", "--recompute full --micro-batch 2"]
    {
        let plan = &lines(&format!("plan --json {arguments}"))[0];
        let float = |name: &str| plan[name].as_f64().unwrap_or_else(|| panic!("{name} of {plan}"));
        let (predicted, bound) = (float("predicted_step_seconds"), float("lower_bound_step_seconds"));
        assert!(bound > 0.0 && bound <= predicted, "{plan}");
        assert!(float("unbudgeted_step_seconds") <= predicted * (1.0 + 1e-9), "{plan}");
        assert!((float("gap") - (predicted / bound - 1.0)).abs() < 1e-9, "{plan}");
        // Time until the plan was found, and time of the comparisons.
        assert!(float("planning_seconds") > 0.0 && float("comparing_seconds") > 0.0, "{plan}");
        assert_eq!(number(plan, "offload_bytes"), 0);
        let layers = plan["layers"].as_array().unwrap();
        assert_eq!(layers.iter().map(|layer| number(layer, "count")).sum::<u64>(), 4, "{plan}");
        let recomputes = |layer: &Value| !layer["recompute"].as_array().unwrap().is_empty();
        assert_eq!(float("recompute_fraction") > 0.0, layers.iter().any(recomputes), "{plan}");
        for layer in layers {
            assert!(layer["kind"].as_str().unwrap().starts_with("model.layers."), "{layer}");
            assert!(layer["keep"].is_array() && layer["offload"].as_array().unwrap().is_empty(), "{layer}");
        }
    }
}

#[test]
fn a_budget_that_is_offered_as_faster_is_faster_when_it_is_typed() {
    let plan = &lines("plan --json --memory 40MiB --global-batch 16")[0];
    let offered = plan["faster"].as_array().unwrap();
    assert!(!offered.is_empty(), "{plan}");
    for point in offered {
        // A mebibyte more, because what the process takes outside the arena differs between runs.
        let memory = number(point, "memory_bytes") + (1 << 20);
        let larger = &lines(&format!("plan --json --memory {memory}B --global-batch 16"))[0];
        let seconds = |plan: &Value| plan["predicted_step_seconds"].as_f64().unwrap();
        assert!(seconds(larger) <= seconds(point) && seconds(point) < seconds(plan), "{point}");
    }
}

#[test]
fn the_comparison_has_every_classic_strategy_and_auto_is_the_fastest_that_fits() {
    let plan = &lines("plan --json --compare --memory 48MiB --global-batch 16 --recompute full")[0];
    let rows = plan["compare"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["strategy"].as_str().unwrap()).collect();
    assert_eq!(names, ["none", "full", "sqrt", "selective", "minimal", "accumulation", "auto"]);
    let budget = number(plan, "budget_bytes");
    let seconds = |row: &Value| row["predicted_step_seconds"].as_f64().unwrap();
    let auto = &rows[6];
    for row in rows {
        assert_eq!(row["fits"], number(row, "process_bytes") <= budget, "{row}");
        assert_eq!(number(row, "micro_batch") * number(row, "accumulation"), 16);
        let slowdown = seconds(row) / seconds(&rows[0]) - 1.0;
        assert!((row["slowdown"].as_f64().unwrap() - slowdown).abs() < 1e-9, "{row}");
        assert!(row["fits"] == false || seconds(row) >= seconds(auto), "{row}");
    }
    assert_eq!((&auto["fits"], &rows[0]["fits"]), (&Value::Bool(true), &Value::Bool(false)));
    assert!(lines("plan --json --memory 48MiB")[0].get("compare").is_none());
}

#[test]
fn the_most_that_fits_is_a_plan_and_one_more_does_not_fit() {
    for (what, flag, memory) in [
        ("seq-len", "--seq-len", 40),
        ("micro-batch", "--gradient-accumulation-steps 1 --micro-batch", 40),
        ("lora-rank", "--lora-r", 32),
        ("layers", "--layers", 60),
    ] {
        let plan = &lines(&format!("plan --json --memory {memory}MiB --max {what}"))[0];
        let most = &plan["max"];
        assert_eq!(most["what"], what);
        assert_eq!(number(most, "planned_peak_bytes"), number(plan, "arena_bytes"));
        let value = number(most, "value");
        // With a mebibyte to spare on either side: what the process takes outside the arena differs.
        plimsoll(&format!("plan --memory {}MiB {flag} {value}", memory + 1));
        let arguments = format!("plan --memory {}MiB {flag} {}", memory - 1, value + 1);
        let output = support::plimsoll(&arguments).output();
        assert_eq!(output.unwrap().status.code(), Some(2), "{arguments}");
    }
    let (rank, what) =
        (&lines("plan --json --memory 1GiB --max lora-rank")[0]["max"], "a square of the width");
    assert_eq!((number(rank, "value"), number(rank, "most")), (128, 128), "{what} has no higher rank");
    let plan = &lines("plan --json --memory 44MiB --max layers")[0];
    let counted = plan["layers"].as_array().unwrap().iter().map(|layer| number(layer, "count")).sum::<u64>();
    assert_eq!(number(&plan["max"], "value"), counted);
    assert!(counted > 4, "{plan}");
}

#[test]
fn a_training_run_reports_each_step_and_stays_inside_its_budget() {
    for (memory, bytes) in [("64MiB", 64 << 20), ("40MiB", 40 << 20)] {
        let records = lines(&format!("train --json --memory {memory} --global-batch 16 --max-steps 3"));
        let (end, steps) = records.split_last().unwrap();
        assert_eq!(steps.len(), 3);
        for (index, record) in steps.iter().enumerate() {
            assert_eq!(number(record, "step"), index as u64 + 1);
            assert_eq!(number(record, "tokens"), 16 * 128);
            for name in ["loss", "grad_norm", "lr", "tokens_per_second"] {
                assert!(record[name].as_f64().unwrap() > 0.0, "{name} of {record}");
            }
        }
        assert_eq!(end["event"], "end");
        assert_eq!(number(end, "planned_peak_bytes"), number(end, "measured_peak_bytes"));
        assert!(number(end, "process_peak_bytes") <= bytes, "{end}");
    }
}

#[test]
fn the_same_seed_gives_the_same_losses_under_any_budget_and_another_seed_does_not() {
    let losses = |arguments: &str| -> Vec<u64> {
        let records = lines(&format!("train --json --max-steps 3 --micro-batch 4 {arguments}"));
        records.iter().filter_map(|record| Some(record["loss"].as_f64()?.to_bits())).collect()
    };
    let unlimited = losses("");
    assert_eq!(unlimited.len(), 3);
    assert_eq!(losses("--memory 42MiB"), unlimited);
    assert_ne!(losses("--seed 1"), unlimited);
}

#[test]
fn each_stage_can_be_shown() {
    for (stage, expected) in [
        ("graph", "= attention"),
        ("backward", "= attention_grad"),
        ("fused", "= adamw"),
        ("schedule", "schedule update"),
        ("layout", "layout first"),
    ] {
        let text = String::from_utf8(plimsoll(&format!("plan --show {stage}")).stdout).unwrap();
        assert!(text.contains(expected), "{stage}");
    }
}

#[test]
fn check_judges_the_kernels_it_is_asked_for() {
    let text = String::from_utf8(plimsoll("check rms_norm").stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let Some((last, cases)) = lines.split_last() else { panic!("nothing was judged") };
    assert!(cases.len() > 1 && cases.iter().all(|case| case.starts_with("ok ")), "{text}");
    let count = cases.len();
    assert!(last.starts_with(&format!("{count} of {count} cases hold on ")), "{text}");
}

#[test]
fn a_described_device_gives_its_own_memory_and_its_name() {
    let plan = &lines("plan --json --model gpt2 --device cuda:4090 --global-batch 2")[0];
    assert_eq!(plan["device"], "cuda:4090");
    assert_eq!((number(plan, "budget_bytes"), number(plan, "outside_bytes")), (24_564 << 20, 600 << 20));
    let text = String::from_utf8(plimsoll("plan --device cuda --memory 1GiB").stdout).unwrap();
    assert!(
        text.starts_with(
            "tiny on cuda:h100 (`cuda` is taken to be this one; `cuda:0` is a GPU of this machine)"
        ),
        "{text}"
    );
    assert!(text.contains("fp32") && text.contains("budget 1.00 GiB "), "{text}");
    assert_eq!(lines("plan --json")[0]["device"], "cpu");
}

#[test]
fn a_published_model_fits_one_large_card_in_fp32() {
    let plan = &lines(
        "plan --json --model llama-3.2-1b --memory 80GiB --seq-len 4096 --global-batch 32 --device cuda:h200 --bf16 false",
    )[0];
    // Weights, gradients and two moments of four bytes each.
    assert!(number(plan, "arena_bytes") > 16 * 1_235_814_400, "{plan}");
    assert!(number(plan, "arena_bytes") + number(plan, "outside_bytes") <= 80 << 30, "{plan}");
}

#[test]
fn a_described_gpu_is_priced_in_bf16_with_a_budget_for_its_own_memory_and_one_for_the_hosts() {
    let asked = "plan --model llama-3.1-8b --seq-len 512 --global-batch 1 --device cuda:h200 --memory 80GiB";
    let plan = &lines(&format!("{asked} --json --host-memory 200GiB"))[0];
    assert_eq!(plan["precision"], "bf16");
    for (pool, budget) in [("device", 80u64 << 30), ("host", 200 << 30)] {
        assert_eq!(number(&plan["pools"][pool], "budget_bytes"), budget);
        assert!((1..=budget).contains(&number(&plan["pools"][pool], "planned_bytes")), "{pool}: {plan}");
    }
    let text = String::from_utf8(plimsoll(&format!("{asked} --host-memory 200GiB")).stdout).unwrap();
    for line in [
        "figures: NVIDIA's data sheet of the H200 SXM; copies to the host measured",
        "values are stored and multiplied in bf16 (--bf16 false for fp32); times are modelled from those figures",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    assert!(text.contains(" of 200 GiB are taken there\n"), "{text}");
    let seconds = |rest: &str| {
        let alone = "plan --json --model llama-3.2-1b --seq-len 2048 --global-batch 8 --device cuda:h200";
        lines(&format!("{alone} {rest}"))[0]["predicted_step_seconds"].as_f64().unwrap()
    };
    assert!(seconds("--bf16 false") > 3.0 * seconds(""), "{} {}", seconds("--bf16 false"), seconds(""));
    assert_eq!(lines("plan --json")[0]["pools"].as_object().unwrap().len(), 1, "the CPU has one pool");
}

/// The smallest `--memory` that works, in MiB, as the refusal of one that does not names it.
fn smallest_memory(arguments: &str) -> u64 {
    let command = format!("plan --memory 1MiB {arguments}");
    let output = support::plimsoll(&command).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let figure = said.split("`--memory ").nth(1).and_then(|rest| rest.split("MiB`").next());
    figure.and_then(|figure| figure.parse().ok()).unwrap_or_else(|| panic!("{command}: {said}"))
}

#[test]
fn with_a_disk_a_budget_that_is_too_small_without_one_trains_to_the_same_bits() {
    let fixed = "--micro-batch 32 --global-batch 32 --threads 2 --seed 3";
    let disk = format!("{fixed} --offload disk --offload-folder {}", env!("CARGO_TARGET_TMPDIR"));
    let (smallest, without) = (smallest_memory(&disk), smallest_memory(fixed));
    // The process is a MiB larger now and then.
    let with = smallest + 1;
    assert!(with < without, "{with} MiB with a disk, {without} MiB without");
    let plan = &lines(&format!("plan --json --memory {smallest}MiB {disk}"))[0];
    assert!(number(plan, "offload_bytes") > 0, "{plan}");
    assert!(plan["layers"].as_array().unwrap().iter().any(|layer| layer["offload"] != serde_json::json!([])));
    // The budget is so small that state would take nearly all of it if none were on the disk. How much exactly depends on
    // the size of the process.
    let on_disk = plan["offload_state_bytes"].as_object().unwrap();
    let on_disk: u64 = on_disk.values().map(|bytes| bytes.as_u64().unwrap()).sum();
    let state: u64 = ["weights", "gradients", "optimizer"]
        .iter()
        .map(|purpose| number(&plan["by_purpose"], purpose))
        .sum();
    assert!(on_disk > 0 && on_disk + state > number(plan, "arena_bytes") / 10 * 9, "{plan}");
    let train = |arguments: &str| lines(&format!("train --json --synthetic --max-steps 2 {arguments}"));
    let losses = |records: &[Value]| -> Vec<Value> {
        records[..2].iter().map(|record| record["loss"].clone()).collect()
    };
    let records = train(&format!("--memory {with}MiB {disk}"));
    assert_eq!(losses(&records), losses(&train(&format!("--memory 1GiB {fixed}"))));
    let end = records.last().unwrap();
    assert_eq!(number(end, "planned_peak_bytes"), number(end, "measured_peak_bytes"));
    assert!(number(end, "process_peak_bytes") <= with << 20, "{end}");
}

#[test]
fn what_looking_for_a_plan_took_is_not_the_runs() {
    let asked = "--layers 24 --threads 2 --offload disk --offload-folder";
    let asked = format!("{asked} {}", env!("CARGO_TARGET_TMPDIR"));
    let memory = smallest_memory(&asked) + 4;
    let records = lines(&format!("train --json --synthetic --max-steps 1 --memory {memory}MiB {asked}"));
    let end = records.last().unwrap();
    assert_eq!(number(end, "planned_peak_bytes"), number(end, "measured_peak_bytes"));
    assert!(number(end, "process_peak_bytes") <= memory << 20, "{end}");
}

#[test]
fn one_more_than_the_most_does_not_fit_also_where_gradients_come_and_go() {
    let asked = "--model llama-3.2-1b --seq-len 64 --global-batch 8 --device cuda:h200 --memory 14GiB --max-grad-norm 0";
    let answer = &lines(&format!("plan --json --max layers {asked}"))[0]["max"]["value"];
    let most = answer.as_u64().unwrap();
    let fits = |layers: u64| {
        let command = format!("plan {asked} --layers {layers}");
        let output = support::plimsoll(&command).output();
        output.unwrap().status.success()
    };
    assert!(fits(most) && !fits(most + 1) && !fits(most + 2), "{most}");
}
