//! `--ranks` on the command line: one folder and one set of records, with the losses of one rank.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
use support::Home;

const RUN: &str = "train --model model --data text.txt --seq-len 16 --global-batch 4 --micro-batch 1 --memory 128MiB \
                   --max-steps 4 --eval-steps 2 --eval-split 0.1 --save-steps 2 --threads 2 --report-to none";

/// Losses of the steps in a run's metrics.
fn losses(home: &Home, folder: &str) -> Vec<f64> {
    let metrics = String::from_utf8(home.read(&format!("{folder}/metrics.jsonl"))).unwrap();
    let lines = metrics.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.filter(|line| line.get("lr").is_some()).map(|line| line["loss"].as_f64().unwrap()).collect()
}

#[test]
fn several_ranks_write_what_one_rank_writes_up_to_the_order_of_sums() {
    let home = Home::with_model();
    home.done(&format!("{RUN} --output-dir one"));
    let (_, told) = home.done(&format!("{RUN} --ranks 2 --output-dir two"));
    assert!(told.contains("effective batch 4 = 1 × 2 × 2 ranks"), "{told}");
    let (one, two) = (losses(&home, "one"), losses(&home, "two"));
    assert_eq!((one.len(), two.len()), (4, 4));
    for (one, two) in one.iter().zip(&two) {
        assert!((one - two).abs() <= 1e-5 * one, "{one} {two}");
    }
    for file in ["model.safetensors", "checkpoint-2/trainer_state.json", "checkpoint-4/optimizer.safetensors"]
    {
        assert_eq!(
            home.read(&format!("one/{file}")).is_empty(),
            home.read(&format!("two/{file}")).is_empty()
        );
    }
    let (_, told) = home.done(&format!("{RUN} --output-dir two --resume latest"));
    assert!(!told.contains("rank 1"), "{told}");
}

#[test]
fn a_plan_shows_the_part_of_one_rank_and_its_exchanges() {
    let home = Home::with_model();
    let fit = "--model model --seq-len 16 --global-batch 4 --micro-batch 1 --memory 128MiB";
    let (out, _) = home.done(&format!("plan {fit} --ranks 2"));
    assert!(out.contains("effective batch 4 = 1 × 2 × 2 ranks"), "{out}");
    let (out, _) = home.done(&format!("plan {fit} --ranks 2 --show schedule"));
    assert!(out.contains("await all_reduce grad."), "{out}");
    let refused = home.command(&format!("plan {fit} --ranks 3")).output().unwrap();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(told.contains("--micro-batch 1 × 3 ranks does not divide --global-batch 4"), "{told}");
}
