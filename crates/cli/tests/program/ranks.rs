//! `--ranks` on the command line: one folder and one set of records, with the losses of one rank.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::support::Home;

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
    assert!(told.contains("\n2 ranks: arena ") && told.contains(" each   process "), "{told}");
    let metrics = String::from_utf8(home.read("two/metrics.jsonl")).unwrap();
    let end: serde_json::Value = serde_json::from_str(metrics.lines().last().unwrap()).unwrap();
    assert_eq!(end["ranks"][1]["peak_bytes"], end["planned_peak_bytes"]);
    assert!(
        end["slowest_rank"].as_u64().unwrap() < 2 && end["ranks"][0]["busy_seconds"].as_f64().unwrap() > 0.0
    );
    home.done("report two --html two.html");
    let page = String::from_utf8(home.read("two.html")).unwrap();
    assert!(
        page.contains("<table id=\"ranks-table\">") && page.contains("\"slowest_rank\":"),
        "the page has them"
    );
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

#[test]
fn a_plan_for_ranks_that_are_not_here_has_a_table_from_1_to_1024_of_them() {
    let home = Home::with_model();
    let fit =
        "plan --model model --seq-len 16 --micro-batch 1 --gradient-accumulation-steps 2 --memory 128MiB";
    let links = "--rank-link 400MB/s,2us --node-link 50MB/s,10us --ranks-per-node 8";
    let (out, _) = home.done(&format!("{fit} --ranks 24 {links} --zero-stage 2"));
    assert!(out.contains("effective batch 48 = 1 × 2 × 24 ranks"), "{out}");
    let rows: Vec<&str> = out.lines().skip_while(|line| !line.starts_with("ranks ")).skip(1).collect();
    let counts: Vec<&str> = rows
        .iter()
        .filter(|row| row.contains(" %"))
        .filter_map(|row| row.split_whitespace().next())
        .collect();
    assert_eq!(counts, ["1", "2", "4", "8", "16", "24", "32", "64", "128", "256", "512", "1024"]);
    let (out, _) = home.done(&format!("{fit} --ranks 24 {links} --zero-stage 2 --json"));
    let told: serde_json::Value = serde_json::from_str(&out).unwrap();
    let rows = told["scaling"].as_array().unwrap();
    let number = |row: &serde_json::Value, name: &str| row[name].as_f64().unwrap();
    // Shards of this small model have padding, and more of it if the number of ranks does not divide the sizes.
    let even: Vec<_> = rows.iter().filter(|row| row["ranks"] != 24).collect();
    for pair in even.windows(2) {
        assert!(number(pair[1], "efficiency") <= number(pair[0], "efficiency") * 1.01, "{pair:?}");
    }
    for pair in rows[1..].windows(2) {
        assert!(number(&pair[1], "least_memory_bytes") <= number(&pair[0], "least_memory_bytes"), "{pair:?}");
    }
    let own = rows.iter().find(|row| row["ranks"] == 24).unwrap();
    assert_eq!(own["wire_bytes_per_step"], told["ranks"]["wire_bytes_per_step"]);
    let refused =
        home.command(&format!("train --model model --data text.txt --seq-len 16 --ranks 2 {links}"));
    let told = String::from_utf8_lossy(&{ refused }.output().unwrap().stderr).into_owned();
    assert!(told.contains("describes ranks that are not here"), "{told}");
}
