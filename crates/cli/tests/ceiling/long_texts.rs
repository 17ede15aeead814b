//! Long texts take the memory they need and no more. If the budget is too small, the one that the error names is enough.

use super::*;

/// A small model of bytes, or of the words of a tokenizer.
const TRAIN: &str =
    "train --model tiny --max-steps 1 --seq-len 64 --global-batch 2 --threads 2 --report-to none --data";

/// Digits that never repeat, so that no word was met before.
fn unbroken(out: &mut impl Write, bytes: usize) {
    let number = |n: u64| format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (0..bytes as u64 / 16).for_each(|n| out.write_all(number(n).as_bytes()).unwrap());
}

fn in_json(home: &Home, name: &str, before: &str, text: &str, bytes: usize, behind: &str) {
    written(&home.path(name), |out| {
        out.write_all(before.as_bytes()).unwrap();
        fill(out, text, bytes);
        writeln!(out, "{behind}").unwrap();
    });
}

/// A run in a small budget is refused and names another, with which it trains and stays inside.
fn named_budget_is_enough(home: &Home, command: &str, file: &str, small: u64, most: u64) {
    let command = format!("{command} {file} --output-dir out-{file}");
    let refused = run(home, &format!("{command} --memory {small}MiB"));
    assert!(refused.code == Some(2) && refused.said.contains(file), "{file}: {}", refused.said);
    assert!(refused.peak <= (small + 1) << 20, "{file}: {} KiB", refused.peak >> 10);
    let least = named(&refused.said);
    assert!((small + 1..=most).contains(&least), "{file}: {}", refused.said);
    let Ended { code, said, peak, .. } = run(home, &format!("{command} --memory {least}MiB"));
    assert!(code == Some(0) && peak <= least << 20, "{file} at {least} MiB: {} KiB {said}", peak >> 10);
}

#[test]
fn a_line_of_21_mib_trains_in_500_mib_and_in_the_least_budget_that_is_named() {
    let home = Home::new();
    let prose = "The harbour lay still, and the boats waited for the evening tide.\\n";
    in_json(&home, "long.jsonl", "{\"text\": \"", prose, 21 << 20, "\"}");
    let Ended { code, said, peak, .. } =
        run(&home, &format!("{TRAIN} long.jsonl --output-dir out --memory 500MiB"));
    assert!(code == Some(0) && peak < 200 << 20, "{} KiB {said}", peak >> 10);
    fs::remove_dir_all(home.path("cache")).unwrap();
    named_budget_is_enough(&home, TRAIN, "long.jsonl", 64, 150);
}

#[test]
fn the_least_budget_that_is_named_for_a_long_text_is_enough() {
    let home = Home::new();
    in_json(&home, "plain.jsonl", "{\"text\": \"", "Boats wait. ", 16 << 20, "\"}");
    in_json(&home, "escaped.jsonl", "{\"text\": \"", "\\u6f22\\u5b57", 12 << 20, "\"}");
    in_json(&home, "numbers.jsonl", "{\"text\": \"a word or two\", \"x\": [0", ",0", 1 << 19, "]}");
    for (file, most) in [("plain.jsonl", 64), ("escaped.jsonl", 76), ("numbers.jsonl", 88)] {
        named_budget_is_enough(&home, TRAIN, file, 32, most);
    }
}

#[test]
fn the_least_budget_that_is_named_for_a_conversation_or_an_endless_word_is_enough() {
    let home = Home::new();
    home.copy("tokenizer/chatml", "chatml");
    home.copy("tokenizer/bert", "bert");
    let talk = "{\"messages\": [{\"role\": \"user\", \"content\": \"Go on.\"}, {\"role\": \"assistant\", \"content\": \"";
    in_json(&home, "talk.jsonl", talk, "Boats wait. \\n", 2 << 20, "\"}]}");
    home.write("word.txt", format!("some words {} and more", "x".repeat(300_000)));
    home.copy("hf/llama", "llama");
    home.set("llama/config.json", "vocab_size", json!(512));
    written(&home.path("one.txt"), |out| unbroken(out, 4 << 20));
    let train = TRAIN.replace("--model tiny", "--config llama/config.json --tokenizer chatml");
    named_budget_is_enough(&home, &train.replace("64", "32"), "one.txt", 22, 36);
    for (file, tokenizer, most) in [("talk.jsonl", "chatml", 48), ("word.txt", "bert", 72)] {
        let train = TRAIN.replace("--data", &format!("--tokenizer {tokenizer} --data"));
        named_budget_is_enough(&home, &train, file, 32, most);
    }
}
