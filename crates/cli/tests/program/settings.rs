//! Settings from flags and files, and what a run writes: every mistake has one clear error.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;

use crate::support;

fn plimsoll(arguments: &str) -> Output {
    let mut output = support::plimsoll(arguments).current_dir(env!("CARGO_TARGET_TMPDIR")).output().unwrap();
    output.stderr = support::texts(&output).1.into_bytes();
    output
}

fn refused(arguments: &str, expected: &str) {
    let output = plimsoll(arguments);
    assert_eq!(String::from_utf8(output.stderr).unwrap().trim_end(), expected, "{arguments}");
    assert_eq!(output.status.code(), Some(2), "{arguments}");
    assert!(output.stdout.is_empty(), "{arguments}");
}

fn printed(arguments: &str) -> String {
    let output = plimsoll(arguments);
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A folder that is not there yet.
fn fresh(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    path
}

#[test]
fn a_file_of_settings_with_a_mistake_is_refused_with_the_line() {
    support::file("typo.toml", "model = \"tiny\"\nlearning_rte = 0.1\n");
    refused(
        "train --settings typo.toml",
        "error: typo.toml, line 2: there is no setting `learning_rte`; did you mean `learning_rate`?",
    );
    support::file("kind.toml", "# steps\nmax_steps = \"ten\"\n");
    refused(
        "plan --settings kind.toml",
        "error: kind.toml, line 2: max_steps must be a whole number that is not negative, got the text \"ten\"",
    );
    support::file("known.toml", "fp16 = true\n");
    refused(
        "train --settings known.toml",
        "error: known.toml, line 1: there is no setting `fp16` here: write bf16: half precision overflows",
    );
    refused(
        "train --settings none.toml",
        "error: cannot read the settings in `none.toml`: No such file or directory (os error 2)",
    );
}

#[test]
fn flags_of_the_wrong_kind_or_range_are_refused() {
    refused(
        "train --max-steps many",
        "error: --max-steps must be a whole number that is not negative, got `many`",
    );
    refused(
        "train --max-steps -2",
        "error: --max-steps must be a whole number that is not negative, got `-2`",
    );
    refused("train --lr 1e-4", "error: there is no flag `--lr` here: write --learning-rate");
    refused(
        "generate --model x --prompt y --max-length 8",
        "error: there is no flag `--max-length` here: write --max-new-tokens",
    );
    refused(
        "train --overwrite_output_dir",
        "error: there is no flag `--overwrite_output_dir` here: name an empty --output-dir",
    );
    refused(
        "train --run-name first",
        "error: there is no flag `--run-name` here: write --output-dir: a run is known by its folder",
    );
    refused(
        "plan --run-name first",
        "error: there is no flag `--run-name`; `plimsoll plan --help` lists them all",
    );
    refused(
        "train --learning-rte 1",
        "error: there is no flag `--learning-rte`; did you mean `--learning-rate`?",
    );
    refused("train --warmup-ratio 1.5", "error: --warmup-ratio must lie in 0..1, got 1.5");
    refused(
        "train --lr_scheduler_type polynomial",
        "error: `polynomial` is no lr_scheduler_type here; known are linear, cosine, constant, constant_with_warmup",
    );
    refused(
        "train --per-device-train-batch-size 4 --gradient_accumulation_steps 2 --global-batch 32",
        "error: --per-device-train-batch-size 4 × --gradient-accumulation-steps 2 × 1 rank is 8, not --global-batch 32; leave one of the three out",
    );
    refused(
        "train --num-train-epochs 2",
        "error: made-up data has no epochs; give --max-steps in place of --num-train-epochs",
    );
    refused(
        "train --early-stopping-patience 2",
        "error: --early-stopping-patience needs --eval-steps, which says how often to evaluate",
    );
    refused("train --adam-beta1 -0.1", "error: --adam-beta1 must be at least 0 and below 1, got -0.1");
    refused(
        "train --report-to wandb",
        "error: `wandb` is nothing to report to; known are tensorboard, html and none",
    );
}

#[test]
fn what_is_printed_as_configuration_prints_the_same_when_it_is_read() {
    let once = printed(
        "train --print-config --learning_rate 3e-4 --per_device_train_batch_size 4 --eval-steps 5 --gradient-checkpointing",
    );
    assert!(once.contains("learning_rate = 0.0003\n") && once.contains("recompute = \"full\"\n"), "{once}");
    support::file("effective.toml", &once);
    assert_eq!(printed("train --settings effective.toml --print-config"), once);
    let other = printed("train --settings effective.toml --print-config --learning-rate 1");
    assert_eq!(other, once.replace("learning_rate = 0.0003", "learning_rate = 1.0"), "a flag counts more");
}

#[test]
fn a_switch_that_is_given_twice_is_no_mistake_and_the_last_counts() {
    let config = printed("train --bf16 --print-config --bf16 --print-config --packing false --packing true");
    assert!(
        config.contains("weights_dtype = \"bf16-master\"") && config.contains("packing = true"),
        "{config}"
    );
    printed("plan --json --memory 64MiB --json");
    let twice = plimsoll("train --max-steps 1 --max-steps 2");
    assert_eq!(twice.status.code(), Some(2), "of values one would be dropped in silence");
}

#[test]
fn without_recompute_a_budget_too_small_is_answered_with_settings_that_work_when_typed() {
    let asked =
        "--memory 48MiB --global-batch 16 --micro-batch 16 --gradient-checkpointing false --max-steps 1";
    let said = String::from_utf8(plimsoll(&format!("train {asked}")).stderr).unwrap();
    let hint = said.lines().find_map(|line| line.strip_prefix("hint: `--micro-batch")?.split('`').next());
    let asked = asked.replace("--micro-batch 16", &format!("--micro-batch{}", hint.unwrap()));
    printed(&format!("train {asked}"));
}

#[test]
fn a_run_evaluates_in_its_budget_and_leaves_metrics_events_and_a_page() {
    let folder = fresh("run");
    let lines = printed(
        "train --json --memory 64MiB --max-steps 5 --eval-steps 2 --logging-steps 2 --max-eval-samples 9 --output-dir run",
    );
    let told: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let shape: Vec<(u64, &str)> = told
        .iter()
        .map(|record| (record["step"].as_u64().unwrap_or(0), record["event"].as_str().unwrap_or("")))
        .collect();
    let evaluation = "evaluation";
    assert_eq!(
        shape,
        [(2, ""), (2, evaluation), (4, ""), (4, evaluation), (5, ""), (5, evaluation), (0, "end")]
    );
    assert_eq!(told[1]["valid_tokens"], 9 * 128);
    let (loss, perplexity) =
        (told[5]["eval_loss"].as_f64().unwrap(), told[5]["eval_perplexity"].as_f64().unwrap());
    assert!((loss.exp() - perplexity).abs() < 1e-9 && loss < told[1]["eval_loss"].as_f64().unwrap());
    assert_eq!(told[6]["best"]["step"], 5);

    let metrics = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let (start, rest) = metrics.split_once('\n').unwrap();
    assert_eq!(rest, lines, "the file tells what standard output told");
    let start: Value = serde_json::from_str(start).unwrap();
    assert_eq!((&start["event"], &start["settings"]["eval_steps"]), (&Value::from("start"), &Value::from(2)));
    let events: Vec<_> = std::fs::read_dir(folder.join("tensorboard")).unwrap().collect();
    assert_eq!(events.len(), 1);
    let page = std::fs::read_to_string(folder.join("report.html")).unwrap();
    assert!(page.trim_end().ends_with("</html>") && page.contains("\"steps\":[[2,"));
    for outside in ["http", "src=", "@import", "url(", "fetch(", "<link"] {
        assert!(!page.contains(outside), "{outside}");
    }
    plimsoll("report run --html again.html");
    let again = std::fs::read_to_string(folder.with_file_name("again.html")).unwrap();
    assert_eq!(again, page, "the page is a function of the metrics");
    refused(
        "train --max-steps 1 --output-dir run",
        "error: --output-dir `run` is not empty; name another folder, or go on with --resume latest",
    );
}

#[test]
fn a_run_that_no_longer_gets_better_is_stopped() {
    let lines = printed(
        "train --json --max-steps 50 --eval-steps 1 --max-eval-samples 8 --learning-rate 0 --early-stopping-patience 2",
    );
    let told: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let end = told.last().unwrap();
    assert_eq!(
        (told.len(), &end["stopped_early"], &end["best"]["step"]),
        (7, &Value::from(true), &Value::from(1))
    );
}

#[test]
fn metrics_that_are_none_are_refused() {
    refused(
        "report no-such-run",
        "error: cannot read the metrics in `no-such-run`: No such file or directory (os error 2)",
    );
    support::file("steps.jsonl", "{\"event\":\"later\"}\n");
    refused(
        "report steps.jsonl",
        "error: `steps.jsonl` has no line with \"event\":\"start\"; it is no file that `plimsoll train --output-dir` wrote",
    );
}

#[test]
fn the_doctor_says_what_there_is() {
    let found: Value = serde_json::from_str(&printed("doctor --json")).unwrap();
    assert!(found["matmul_flops_per_second"].as_f64().unwrap() > 1e8, "{found}");
    assert!(found["memory_free_bytes"].as_u64() <= found["memory_total_bytes"].as_u64(), "{found}");
    assert!(found["disk"]["free_bytes"].as_u64().unwrap() > 0 && found["gpu"]["cards"].is_array(), "{found}");
    assert!(found["cpu"]["threads"].as_u64().unwrap() > 0, "{found}");
    assert_eq!(found["trains_on"][0], "cpu");
}
