//! A plan on disk, and the way out of a budget that gradients overfill.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Output;

use crate::support;

fn plimsoll(arguments: &str) -> Output {
    support::plimsoll(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Losses of a run, as printed.
fn losses(arguments: &str) -> Vec<String> {
    let output = plimsoll(&format!("train --json --max-steps 2 --memory 64MiB {arguments}"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    let lines = stdout.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.filter_map(|line| Some(line.get("loss")?.to_string())).collect()
}

#[test]
fn a_plan_that_was_written_is_run_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let name = file.to_str().unwrap();
    let planned = plimsoll(&format!("plan --memory 64MiB --out {name}"));
    assert!(planned.status.success(), "{}", text(&planned.stderr));
    assert_eq!(losses(&format!("--plan {name}")), losses(""));
    let other = plimsoll(&format!("train --plan {name} --seq-len 64 --memory 64MiB"));
    assert_eq!(other.status.code(), Some(2));
    let error = text(&other.stderr);
    let expected = "plan.json: the plan was made for another training graph: its inputs: tokens i32";
    assert!(error.contains(expected) && error.contains(",128]") && error.contains(",64]"), "{error}");
    std::fs::write(&file, &std::fs::read(&file).unwrap()[..1000]).unwrap();
    let cut = plimsoll(&format!("train --plan {name}"));
    assert_eq!(cut.status.code(), Some(2));
    assert!(text(&cut.stderr).contains("plan.json: not a plan file"), "{}", text(&cut.stderr));
}

#[test]
fn a_budget_that_gradients_overfill_is_told_what_no_limit_would_save_and_that_works() {
    let asked = "plan --model s --seq-len 128 --global-batch 1";
    let smallest = text(&plimsoll(&format!("{asked} --update separate --memory 1MiB")).stderr);
    let smallest = smallest.split("`--memory ").nth(1).and_then(|rest| rest.split("MiB").next());
    // Far more than the variation of the process's own memory, and far less than the gradients.
    let memory = smallest.unwrap().parse::<u64>().unwrap() - 8;
    let refused = plimsoll(&format!("{asked} --update separate --memory {memory}MiB"));
    assert_eq!(refused.status.code(), Some(2));
    let error = text(&refused.stderr);
    assert!(error.contains("hint: `--update auto --max-grad-norm 0 --micro-batch 1` fits: "), "{error}");
    let fits = plimsoll(&format!("{asked} --memory {memory}MiB --max-grad-norm 0 --micro-batch 1"));
    assert!(fits.status.success(), "{}", text(&fits.stderr));
    assert!(text(&fits.stdout).contains("gradients come and go: each is applied inside the backward pass"));
    let twice = plimsoll(&format!("{asked} --memory {memory}MiB"));
    assert!(twice.status.success(), "{}", text(&twice.stderr));
    assert!(text(&twice.stdout).contains("gradients come and go in two passes"), "{}", text(&twice.stdout));
    let shown = plimsoll(&format!("{asked} --memory {memory}MiB --show fused"));
    assert!(text(&shown.stdout).contains("clip_scale"), "two passes are shown too: {}", text(&shown.stderr));
    two_passes_go_through_a_file(&format!("{asked} --memory {memory}MiB"));
    let summed = text(&plimsoll("plan --memory 64MiB --global-batch 4 --micro-batch 1").stdout);
    assert!(summed.contains("gradients persist: 4 micro-batches are summed"), "{summed}");
}

/// A plan in two passes runs from its file, although no setting asks for two passes there.
fn two_passes_go_through_a_file(plan: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let name = file.to_str().unwrap();
    let planned = plimsoll(&format!("{plan} --out {name}"));
    assert!(planned.status.success(), "{}", text(&planned.stderr));
    let train = "train --model s --seq-len 128 --global-batch 1 --max-steps 1";
    let run = plimsoll(&format!("{train} --plan {name}"));
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert!(text(&run.stderr).contains("gradients come and go in two passes"), "{}", text(&run.stderr));
    let separate = plimsoll(&format!("{train} --plan {name} --update separate"));
    assert_eq!(separate.status.code(), Some(2), "what is stated holds");
}

#[test]
fn a_plan_is_for_a_run_that_evaluates_or_for_one_that_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().join("plan.json").to_str().unwrap().to_owned();
    let planned = plimsoll(&format!("plan --memory 64MiB --eval-steps 1 --out {name}"));
    assert!(planned.status.success(), "{}", text(&planned.stderr));
    assert_eq!(losses(&format!("--plan {name} --eval-steps 1")), losses(""));
    let without = plimsoll(&format!("train --plan {name} --max-steps 1 --memory 64MiB"));
    assert_eq!(without.status.code(), Some(2));
    let error = text(&without.stderr);
    assert!(error.contains("so --eval-steps goes to `plan` and `train` or to neither"), "{error}");
}
