//! `plan --methods`, and every method that it says fits, run at a small size; checkpoints of runs without gradients.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll::training::job::METHODS;
use serde_json::Value;

use crate::support;

fn output(arguments: &str) -> String {
    let output = support::plimsoll(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn methods(arguments: &str) -> Vec<Value> {
    let plan: Value = serde_json::from_str(&output(&format!("plan --methods --json {arguments}"))).unwrap();
    plan["methods"].as_array().unwrap().clone()
}

/// The methods are the table's own, so a new one is planned and trained here as soon as the table names it. In bf16 the table
/// adds the type of whole weights to its flags.
#[test]
fn every_method_that_fits_has_the_plan_of_its_row_and_trains_in_the_memory_of_its_plan() {
    // The rows of `down_proj` have 344 columns, which is no whole number of blocks of 4-bit codes.
    let whole = "--llm-int8-skip-modules down_proj";
    for precision in ["", "--bf16"] {
        let small =
            format!("--model tiny --seq-len 16 --global-batch 4 --memory 64MiB --threads 1 {precision}");
        let rows = methods(&format!("{small} --lora-r 16 --load-in-4bit {whole}"));
        assert_eq!(rows.len(), METHODS.len());
        for (row, method) in rows.iter().zip(&METHODS) {
            assert_eq!((&row["method"], &row["fits"]), (&method.name.into(), &true.into()), "{row}");
            trains_as_planned(row, &small, whole);
        }
    }
}

/// Plans a method of the table alone, and trains three steps of it.
fn trains_as_planned(row: &Value, small: &str, whole: &str) {
    let (name, flags) = (row["method"].as_str().unwrap(), row["flags"].as_str().unwrap());
    assert!(row["least_bytes"].as_u64().unwrap() <= row["process_bytes"].as_u64().unwrap(), "{row}");
    let flags = if flags.contains("4bit") { format!("{flags} {whole}") } else { flags.to_owned() };
    let plan: Value = serde_json::from_str(&output(&format!("plan --json {small} {flags}"))).unwrap();
    let planned = plan["arena_bytes"].as_u64().unwrap() + plan["outside_bytes"].as_u64().unwrap();
    // The bytes outside the arena differ between a process that plans one method and one that plans many: by 4 MiB at most.
    let apart = planned.abs_diff(row["process_bytes"].as_u64().unwrap());
    assert!(apart <= 4 << 20, "{name}: {planned} is not {row}");
    let train =
        format!("train --json {small} {flags} --max-steps 3 --logging-steps 1 --report-to none --synthetic");
    let lines = output(&train);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let losses: Vec<f64> = lines.iter().filter_map(|line| line["loss"].as_f64()).collect();
    assert!(losses.len() == 3 && losses.iter().all(|loss| loss.is_finite()), "{name}: {lines:?}");
    let end = lines.iter().find(|line| line["event"] == "end").unwrap();
    assert_eq!(end["measured_peak_bytes"], end["planned_peak_bytes"], "{name}");
    assert!(end["process_peak_bytes"].as_u64().unwrap() <= 64 << 20, "{name}: {end}");
}

#[test]
fn an_8b_model_on_a_card_of_24_gib_is_told_what_fits() {
    let rows = methods("--model llama-3.1-8b --device cuda:4090 --seq-len 1024 --global-batch 8");
    let row = |name: &str| rows.iter().find(|row| row["method"] == name).unwrap();
    let least = |name: &str| row(name)["least_bytes"].as_u64().unwrap() >> 30;
    assert_eq!(row("full")["fits"], false);
    assert_eq!(row("QLoRA")["fits"], true);
    // Whole weights that no gradient updates need no master copy: they fit as they are read.
    for (name, flags) in [
        ("zeroth order", "--optim mezo --weights-dtype bf16"),
        ("evolution", "--optim es --weights-dtype bf16"),
    ] {
        assert_eq!((&row(name)["fits"], &row(name)["flags"]), (&true.into(), &flags.into()));
        assert!((15..18).contains(&least(name)), "{}", least(name));
    }
    // The lengths of rows are a number for each output; their norms need no copy of a weight.
    assert!(least("DoRA") <= least("LoRA") + 1, "{} {}", least("DoRA"), least("LoRA"));
    assert_eq!(row("zeroth order, QLoRA")["fits"], true);
    assert!(least("full") > 60 && least("LoRA") < least("full") / 2 && least("QLoRA") < least("LoRA") / 2);
    assert!(least("zeroth order, QLoRA") <= least("QLoRA") && least("zeroth order") < least("full") / 2);
    assert_eq!(row("full")["trained_parameters"], 8_030_261_248_u64);
    let table =
        output("plan --methods --model llama-3.1-8b --device cuda:4090 --seq-len 1024 --global-batch 8");
    for words in ["least", "does not fit", "8.0B", "(Dettmers et al., 2023)", "--load-in-4bit"] {
        assert!(table.contains(words), "{words}: {table}");
    }
}

#[test]
fn a_budget_too_small_for_full_training_names_the_methods_that_fit_it() {
    let asked = "plan --model llama-3.1-8b --device cuda:4090 --seq-len 1024 --global-batch 8";
    let refused = support::plimsoll(asked).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{said}");
    let ways = said.lines().filter_map(|line| line.strip_prefix("hint: `")?.split_once("` fits: "));
    let ways: Vec<(&str, &str)> = ways.filter(|(_, why)| why.contains("which trains")).collect();
    for flags in ["--lora-r 16 --load-in-4bit", "--optim mezo --weights-dtype bf16"] {
        assert!(ways.iter().any(|(way, _)| *way == flags), "{flags}: {said}");
    }
    for (flags, _) in ways {
        output(&format!("{asked} {flags}"));
    }
    // Adapters are a method already.
    let adapters =
        support::plimsoll("plan --model tiny --lora-r 4 --memory 12MiB --threads 1").output().unwrap();
    assert!(!String::from_utf8_lossy(&adapters.stderr).contains("which trains"));
}

#[test]
fn a_run_without_gradients_resumes_to_the_bit() {
    let home = support::Home::new();
    for (name, method) in [
        ("mezo", "--optim mezo --zo-directions 2 --learning-rate 1e-3"),
        ("es", "--optim es --population 4"),
        ("falling", "--optim es --population 4 --zo-eps-scheduler-type linear"),
        ("accurate", "--optim es --population 4 --es-fitness accuracy"),
    ] {
        let settings = format!("{} --data text.txt --seed 5 {method}", support::SMALL);
        let train = |rest: &str| home.done(&format!("train {settings} {rest}"));
        train(&format!("--max-steps 6 --output-dir {name}-whole"));
        train(&format!("--max-steps 6 --save-steps 3 --stop-after 3 --output-dir {name}-half"));
        train(&format!("--max-steps 6 --save-steps 3 --output-dir {name}-half --resume latest"));
        let weights = |folder: &str| home.read(&format!("{folder}/model.safetensors"));
        assert!(weights(&format!("{name}-whole")) == weights(&format!("{name}-half")), "{method}");
    }
    // Probes at another distance have other losses, though their ranking may be the same.
    for other in ["falling", "accurate"] {
        assert_ne!(home.losses("es-whole"), home.losses(&format!("{other}-whole")), "{other}");
    }
}

#[test]
fn a_fitness_without_a_gradient_is_a_share_of_errors_and_needs_data_that_shows_it() {
    let home = support::Home::new();
    let row = |n: usize| format!("{{\"prompt\": \"{n} and \", \"completion\": \"{}\"}}\n", n + 1);
    home.write("chat.jsonl", (0..40).map(row).collect::<String>());
    let settings =
        format!("train {} --model tiny --optim es --max-steps 2 --json --es-fitness", support::SMALL);
    for fitness in ["accuracy", "exact_match"] {
        let lines = home.done(&format!("{settings} {fitness} --data chat.jsonl")).0;
        let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
        // A model that was never trained gets nearly everything wrong, and no whole answer right.
        let least = if fitness == "accuracy" { 0.8 } else { 1.0 };
        let errors = first["loss"].as_f64().unwrap();
        assert!((least..=1.0).contains(&errors), "{fitness}: {lines}");
    }
    // With a tokenizer texts are samples like others.
    home.write("texts.jsonl", "{\"text\": \"All of this is learned.\"}\n".repeat(8));
    for text in ["text.txt", "texts.jsonl"] {
        let refused = home.command(&format!("{settings} exact-match --data {text}")).output().unwrap();
        let why = "--es-fitness exact-match compares answers, and a text has none; give --data with prompts";
        assert!(support::texts(&refused).1.contains(why), "{text}: {}", support::texts(&refused).1);
    }
}

#[test]
fn settings_of_methods_without_gradients_are_refused_where_they_mean_nothing() {
    for (arguments, why) in [
        ("--optim es --population 1", "--population must be an even number of at least 2, got 1"),
        ("--optim es --population 7", "--population must be an even number of at least 2, got 7"),
        ("--optim mezo --population 8", "--population is for --optim es; leave it out"),
        ("--zo-eps 0.01", "--zo-eps is for --optim mezo and es; leave it out"),
        ("--optim mezo --zo-eps 0", "--zo-eps must be a number above 0, got 0"),
        (
            "--optim mezo --zo-eps-scheduler-type linear",
            "--zo-eps-scheduler-type is for --optim es; leave it out",
        ),
        (
            "--optim es --zo-eps-scheduler-type polynomial",
            "`polynomial` is no zo_eps_scheduler_type; known are constant, linear and cosine",
        ),
        (
            "--optim mezo --es-fitness accuracy",
            "--es-fitness is for --optim es: slopes are those of a loss; leave it out",
        ),
        ("--optim es --es-fitness bleu", "there is no fitness `bleu`; known are loss, accuracy, exact-match"),
        ("--optim mezo --zo-directions 0", "--zo-directions must be 1 to 4096, got 0"),
        ("--optim mezo --update in-backward", "`--optim mezo` has no backward pass; leave out `--update`"),
    ] {
        let output = support::plimsoll(&format!("plan {arguments}")).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(why), "{arguments}: {error}");
    }
}
