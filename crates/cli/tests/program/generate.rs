//! `generate`: the model's own settings, the flags, and the requests that are refused.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};

use crate::support::{self, Home};

const GENERATE: &str = "generate --model model --prompt ship --memory 64MiB --threads 1";
const SETTINGS: &str = "model/generation_config.json";

fn text(home: &Home, rest: &str) -> String {
    home.done(&format!("{GENERATE} {rest}")).0
}

#[test]
fn settings_of_the_model_count_where_flags_say_nothing() {
    let home = Home::with_model();
    let set = |settings: Value| home.write(SETTINGS, settings.to_string());
    let greedy = text(&home, "--temperature 0 --max-new-tokens 8");
    let drawn = text(&home, "--temperature 1.5 --top-k 40 --top-p 0.9 --max-new-tokens 8");
    assert_ne!(greedy, drawn);
    set(json!({"max_new_tokens": 8, "temperature": 1.5}));
    assert_eq!(text(&home, ""), greedy, "nothing is drawn without do_sample");
    set(json!({"do_sample": true, "temperature": 1.5, "top_k": 40, "top_p": 0.9, "max_new_tokens": 8}));
    assert_eq!(text(&home, ""), drawn);
    assert_eq!(text(&home, "--temperature 0"), greedy);
    set(json!({"top_p": 2}));
    home.refused(
        GENERATE,
        "model/generation_config.json has `top_p` = 2 where a number above 0 and at most 1 is wanted; mend the file or remove it",
    );
}

#[test]
fn more_than_can_be_counted_is_refused_with_what_can_be_written() {
    let home = Home::with_model();
    home.refused(
        &format!("{GENERATE} --max-new-tokens 18446744073709551615"),
        "--max-new-tokens must be at most 30 after a prompt of 2 tokens, got 18446744073709551615",
    );
}

#[test]
fn the_least_budget_that_is_named_is_the_same_again_within_a_step_of_the_reserve_and_is_enough() {
    let home = Home::with_model();
    let asked = |memory: &str| {
        let arguments =
            format!("generate --model model --prompt ship --threads 1 --max-new-tokens 8 --memory {memory}");
        let output = home.command(&arguments).output().unwrap();
        (output.status.success(), support::texts(&output).1)
    };
    let named = |memory: &str| {
        let (done, said) = asked(memory);
        assert!(!done, "{memory} is enough");
        assert!(said.contains("MiB, which is surely enough (some MiB less may do)"), "{said}");
        let least = said.split_once("state --memory ").unwrap_or_else(|| panic!("{said}")).1;
        least.split("MiB").next().unwrap().parse::<u64>().unwrap()
    };
    // Less than the tokenizer takes, less than the process takes, and less than the model takes. The reserve of the process
    // counts in steps of 4 MiB, and a process at the edge of one may fall on either side.
    let all = ["1MiB", "6MiB", "9MiB", "1MiB"].map(named);
    let (fewest, most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
    assert!(most - fewest <= 4, "{all:?}");
    let least = format!("{most}MiB");
    for _ in 0..3 {
        let (done, said) = asked(&least);
        assert!(done, "{least}: {said}");
    }
}
