//! Tokenising and the budget: its memory stays inside, and memory that it leaves behind changes no plan.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use serde_json::{Value, json};

use crate::support::{Home, SMALL, texts};

#[test]
fn a_run_that_tokenises_ends_in_the_bits_of_one_that_finds_the_tokens() {
    let home = Home::with_model();
    let run = |out: &str| {
        home.done(&format!(
            "train --model model --data text.txt --max-steps 8 --seq-len 32 --global-batch 128 --threads 1 --report-to none \
             --memory 28MiB --output-dir {out}"
        ));
        let state = home.json(&format!("{out}/checkpoint-8/trainer_state.json"));
        (state["plan"]["micro_batch"].clone(), home.read(&format!("{out}/model.safetensors")))
    };
    let (cold, warm) = (run("cold"), run("warm"));
    assert_eq!(cold.0, warm.0);
    assert!(cold.1 == warm.1, "the weights differ");
    // Without re-exec, tokenising a longer text would leave some MiB in the process. Runs differ by up to a page.
    let line = format!("{}\n", json!({ "text": "so many words to tokenise ".repeat(40_000) }));
    home.write("long.jsonl", line.repeat(2));
    let outside = || -> u64 {
        let plan = format!("plan --model model --data long.jsonl {SMALL} --json");
        let plan: Value = serde_json::from_str(&home.done(&plan.replace(" --report-to none", "")).0).unwrap();
        plan["outside_bytes"].as_u64().unwrap()
    };
    let (cold, warm) = (outside(), outside());
    assert!(cold.abs_diff(warm) <= 1 << 20, "{cold} and {warm}");
}

#[test]
fn long_texts_are_tokenised_inside_the_budget_or_refused_before_the_first_step() {
    let home = Home::with_model();
    let text = String::from_utf8(home.read("text.txt")).unwrap().replace('\n', " ");
    let line = |bytes: usize| format!("{}\n", json!({ "text": text.repeat(bytes / text.len()) }));
    home.write("long.jsonl", line(1_000_000).repeat(2));
    home.write("long.txt", text.repeat(4_000_000 / text.len()));
    // A run that crosses its budget, be it while tokenising, fails.
    for data in ["long.jsonl", "long.txt"] {
        home.done(&format!("train --model model --data {data} --max-steps 2 --output-dir of-{data} {SMALL}"));
    }
    home.write("longer.jsonl", line(100) + &line(40_000_000));
    let output = home.command(&format!("train --model model --data longer.jsonl {SMALL}")).output().unwrap();
    let said = texts(&output).1;
    assert!(
        said.starts_with("error: longer.jsonl, line 2: 38.1 MiB of text in one piece; to tokenise it takes a budget of --memory "),
        "{said}"
    );
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_tokenizer_that_does_not_fit_the_budget_is_told_before_anything_is_trained_or_written() {
    let home = Home::with_model();
    let mut tokenizer = home.json("model/tokenizer.json");
    let pattern =
        |n: usize| json!({ "type": "Replace", "pattern": { "Regex": format!("q{n}+z") }, "content": "" });
    let normalizers: Vec<Value> = (0..6000).map(pattern).collect();
    tokenizer["normalizer"] = json!({ "type": "Sequence", "normalizers": normalizers });
    fs::write(home.path("model/tokenizer.json"), tokenizer.to_string()).unwrap();
    for command in [
        "generate --model model --prompt line --max-new-tokens 2 --memory 24MiB",
        "train --model model --data text.txt --max-steps 1 --seq-len 16 --memory 24MiB",
    ] {
        let output = home.command(command).output().unwrap();
        let (out, err) = texts(&output);
        let expected = "error: model/tokenizer.json takes more memory to read than the budget of 24.0 MiB has; \
                        state a larger --memory, or take another file\n";
        assert_eq!(err, expected, "{command}");
        assert_eq!((output.status.code(), out.as_str()), (Some(2), ""), "{command}");
    }
}

#[test]
fn a_label_beyond_the_classes_of_a_model_is_named() {
    let home = Home::new();
    home.copy("hf/bert-labels", "model");
    home.copy("tokenizer/bert", "model");
    home.write("d.jsonl", "{\"text\": \"one\", \"label\": 0}\n{\"text\": \"two\", \"label\": 7}\n");
    home.refused(
        &format!("train --model model --data d.jsonl --max-steps 1 {SMALL}"),
        "d.jsonl, line 2: the label 7 is not allowed: the model's classes are numbered 0 to 2; \
         mend the line, or pass over such lines with --skip-bad-lines",
    );
}

#[test]
fn samples_whose_prompts_fill_whole_rows_are_told_and_no_step_is_empty() {
    let home = Home::with_model();
    let sample = json!({ "prompt": "line counts bytes ".repeat(40), "completion": " line" });
    home.write("d.jsonl", format!("{sample}\n").repeat(6));
    let (_, said) =
        home.done(&format!("train --model model --data d.jsonl --max-steps 4 --output-dir out {SMALL}"));
    assert!(
        said.contains(" parts of samples, of up to 16 tokens each, have nothing to learn and are left out; with a longer --seq-len, "),
        "{said}"
    );
    assert!(home.losses("out").iter().all(|&loss| loss > 0.0), "{:?}", home.losses("out"));
}
