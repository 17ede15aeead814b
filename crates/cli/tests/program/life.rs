//! The life of a model through the program: from a configuration to a merged adapter, and runs that are stopped,
//! terminated and killed on the way but end in the very bits of a run that nobody disturbed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::json;

use crate::support::{Home, SMALL, names, texts, wait_until};

/// A small model for each stage: pre-trained from its configuration alone.
fn pretrained() -> Home {
    let home = Home::new();
    home.copy("hf/llama", "shape");
    home.copy("tokenizer/chatml", "words");
    home.set("shape/config.json", "vocab_size", json!(323));
    home.set("shape/config.json", "eos_token_id", json!(2));
    home.done(&format!(
        "train --config shape/config.json --tokenizer words --data text.txt --max-steps 40 --learning-rate 0.01 --output-dir base {SMALL}"
    ));
    home
}

fn mean(losses: &[f64]) -> f64 {
    losses.iter().sum::<f64>() / losses.len() as f64
}

/// Whether the last steps of a run had a smaller loss than the first.
fn learned(home: &Home, run: &str) {
    let losses = home.losses(run);
    let part = losses.len() / 4;
    let (first, last) = (mean(&losses[..part]), mean(&losses[losses.len() - part..]));
    assert!(last < 0.9 * first, "{run} went from {first} to {last}");
}

#[test]
fn a_model_is_pretrained_tuned_adapted_and_merged() {
    let home = pretrained();
    learned(&home, "base");
    let chat = (0..30).map(|n| {
        let says = |role: &str, content: String| json!({ "role": role, "content": content });
        let messages = [says("user", format!("what is {n}?")), says("assistant", format!("{n} is a number"))];
        format!("{}\n", json!({ "messages": messages }))
    });
    home.write("chat.jsonl", chat.collect::<String>());
    home.done(&format!(
        "train --model base --data chat.jsonl --max-steps 40 --learning-rate 0.01 --output-dir tuned {SMALL}"
    ));
    learned(&home, "tuned");
    let before = home.read("tuned/model.safetensors");
    home.done(&format!(
        "train --model tuned --data text.txt --lora-r 4 --max-steps 40 --learning-rate 0.02 --output-dir adapter {SMALL}"
    ));
    learned(&home, "adapter");
    assert!(!home.path("adapter/model.safetensors").exists());
    assert_eq!(home.json("adapter/adapter_config.json")["base_model_name_or_path"], "tuned");

    let write = |of: &str| {
        let (text, _) = home
            .done(&format!("generate {of} --prompt line --temperature 0 --max-new-tokens 12 --threads 1"));
        assert!(text.starts_with("line"), "{text}");
        text
    };
    let (plain, adapted) = (write("--model tuned"), write("--model tuned --adapter adapter"));
    assert_ne!(plain, adapted, "the adapter was trained, so the text is another");
    home.done("export --merge --model tuned --adapter adapter --out merged");
    assert_eq!(write("--model merged"), adapted);
    assert_eq!(home.read("tuned/model.safetensors"), before);
    assert_ne!(home.read("merged/model.safetensors"), before);
    for beside in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        assert_eq!(home.read(&format!("merged/{beside}")), home.read(&format!("tuned/{beside}")));
    }
}

#[test]
fn a_classifier_learns_and_keeps_the_names_of_its_classes() {
    let home = Home::new();
    home.copy("hf/bert", "model");
    home.copy("tokenizer/bert", "model");
    let samples = ["the ship grows", "load the planner", "spaces and tabs", "tabs by lines"];
    let lines = (0..40).map(|n| {
        let label = if n % 4 < 2 { "ship" } else { "text" };
        format!("{}\n", json!({ "text": samples[n % 4], "label": label }))
    });
    home.write("labels.jsonl", lines.collect::<String>());
    home.done(&format!(
        "train --model model --task classify --data labels.jsonl --max-steps 40 --learning-rate 0.003 --output-dir out {SMALL}"
    ));
    learned(&home, "out");
    let config = home.json("out/config.json");
    assert_eq!(config["architectures"], json!(["BertForSequenceClassification"]));
    assert_eq!(config["id2label"], json!({ "0": "ship", "1": "text" }));
    // The result is a classifier, and says so itself.
    home.done(&format!("train --model out --data labels.jsonl --max-steps 8 --output-dir again {SMALL}"));
    assert!(mean(&home.losses("again")) < home.losses("out")[0] / 2.0, "{:?}", home.losses("again"));
}

/// A run of `steps` steps of the model in `model`.
fn training(steps: u64, rest: &str) -> String {
    format!("train --model model --data text.txt --max-steps {steps} --micro-batch 2 {SMALL} {rest}")
}

fn weights(home: &Home, run: &str) -> Vec<u8> {
    home.read(&format!("{run}/model.safetensors"))
}

#[test]
fn an_interrupted_run_ends_in_the_bits_of_a_whole_one_also_in_another_budget() {
    let home = Home::with_model();
    home.done(&training(12, "--output-dir whole"));
    home.done(&training(12, "--output-dir parts --stop-after 5"));
    assert_ne!(weights(&home, "parts"), weights(&home, "whole"));
    home.done(&training(12, "--output-dir parts --resume latest --stop-after 9"));
    let less = training(12, "--output-dir parts --resume latest --recompute full").replace("64MiB", "28MiB");
    let (_, said) = home.done(&less);
    assert!(said.contains("going on after step 9 of parts/checkpoint-9\n"), "{said}");
    assert_eq!(weights(&home, "parts"), weights(&home, "whole"));
    // Killed after its last checkpoint, a run has only its weights left to write.
    fs::remove_file(home.path("parts/model.safetensors")).unwrap();
    home.done(&training(12, "--output-dir parts --resume latest"));
    assert_eq!(weights(&home, "parts"), weights(&home, "whole"));
}

#[test]
fn a_pause_adds_no_evaluation_to_those_of_a_whole_run() {
    let home = Home::with_model();
    let train = |rest: &str| home.done(&training(8, &format!("--eval-data text.txt --eval-steps 4 {rest}")));
    let evaluations = |run: &str| -> Vec<(u64, f64)> {
        let metrics = String::from_utf8(home.read(&format!("{run}/metrics.jsonl"))).unwrap();
        let records = metrics.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let told =
            |record: serde_json::Value| Some((record["step"].as_u64()?, record["eval_loss"].as_f64()?));
        records.filter_map(told).collect()
    };
    train("--output-dir whole");
    train("--output-dir parts --stop-after 6");
    assert_eq!(evaluations("parts"), evaluations("whole")[..1]);
    train("--output-dir parts --resume latest");
    assert_eq!(evaluations("parts"), evaluations("whole"));
    assert_eq!(evaluations("whole").iter().map(|(step, _)| *step).collect::<Vec<_>>(), [4, 8]);
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

fn spawned(home: &Home, arguments: &str) -> Child {
    home.command(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for a run to have taken some steps.
fn wait_for_steps(home: &Home, child: &mut Child, run: &str, steps: usize) {
    let metrics = home.path(&format!("{run}/metrics.jsonl"));
    let lines = || fs::read_to_string(&metrics).map_or(0, |text| text.lines().count());
    wait_until(&format!("step {steps}"), || {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before step {steps}");
        lines() > steps
    });
}

#[test]
fn a_terminated_run_ends_its_step_saves_and_goes_on_later() {
    let home = Home::with_model();
    let steps = 3000;
    home.done(&training(steps, "--output-dir whole --logging-steps 1000"));
    for (name, resume) in [("TERM", ""), ("INT", "--resume latest")] {
        let mut child = spawned(&home, &training(steps, &format!("--output-dir parts {resume}")));
        let before =
            fs::read_to_string(home.path("parts/metrics.jsonl")).map_or(0, |text| text.lines().count());
        wait_for_steps(&home, &mut child, "parts", before + 20);
        signal(&child, name);
        let output = child.wait_with_output().unwrap();
        let (_, said) = texts(&output);
        assert!(output.status.success(), "{said}");
        assert!(said.ends_with("stopped; go on with --resume latest --output-dir parts\n"), "{said}");
        assert!(!home.path("parts/model.safetensors").exists());
    }
    home.done(&training(steps, "--output-dir parts --resume latest --logging-steps 1000"));
    assert_eq!(weights(&home, "parts"), weights(&home, "whole"));
}

#[test]
fn a_run_that_is_terminated_in_a_long_evaluation_saves_at_once() {
    let home = Home::new();
    // Validation after the second step takes minutes. A run that waited for its end would have none left to do.
    let mut child = spawned(
        &home,
        "train --memory 64MiB --max-steps 4 --eval-steps 2 --max-eval-samples 200000 --output-dir out",
    );
    wait_for_steps(&home, &mut child, "out", 2);
    signal(&child, "TERM");
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", texts(&output).1);
    let state = home.json("out/checkpoint-2/trainer_state.json");
    assert_eq!(state["progress"]["owes_evaluation"], true);
}

#[test]
fn a_run_that_nobody_listens_to_goes_on_where_it_keeps_its_result() {
    let home = Home::with_model();
    let deaf = |arguments: &str| {
        let mut child =
            home.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop((child.stdout.take(), child.stderr.take()));
        child.wait().unwrap()
    };
    for (out, json) in [("a", ""), ("b", "--json")] {
        assert!(deaf(&training(6, &format!("--output-dir {out} {json}"))).success());
        assert_eq!(home.losses(out).len(), 6);
        assert!(home.path(&format!("{out}/checkpoint-6")).exists());
    }
    assert_eq!(weights(&home, "a"), weights(&home, "b"));
    // With nothing to keep, a run whose output nobody reads has no reason to go on for hours.
    assert!(deaf("train --max-steps 10000000 --json").success());
}

#[test]
fn a_run_goes_on_with_the_micro_batches_it_had_where_they_fit() {
    let home = Home::with_model();
    let train = |memory: &str, rest: &str| {
        home.done(&format!(
            "train --model model --data text.txt --max-steps 8 --seq-len 32 --global-batch 128 --recompute none --threads 1 --report-to none \
             --memory {memory} {rest}"
        ))
        .1
    };
    let micro_batch = |checkpoint: &str| {
        home.json(&format!("{checkpoint}/trainer_state.json"))["plan"]["micro_batch"].as_u64().unwrap()
    };
    // A micro-batch of all 128 sequences takes at least 38 MiB, and one of a single sequence at most 32 MiB. The exact
    // figures vary from build to build and from process to process.
    let (less, more) = ("35MiB", "64MiB");
    train(less, "--output-dir parts --stop-after 4");
    let had = micro_batch("parts/checkpoint-4");
    train(more, "--output-dir parts --resume latest");
    assert_eq!(micro_batch("parts/checkpoint-8"), had);
    train(more, &format!("--output-dir whole --micro-batch {had}"));
    assert_eq!(weights(&home, "parts"), weights(&home, "whole"));
    // In the opposite order of the budgets, the earlier micro-batches do not fit.
    train(more, "--output-dir back --stop-after 4");
    let larger = micro_batch("back/checkpoint-4");
    assert_ne!(larger, had, "the budgets are too much alike for this test");
    let said = train(less, "--output-dir back --resume latest");
    assert!(
        said.contains("as they were, do not fit; with others the run goes on within rounding\n"),
        "{said}"
    );
    assert!(micro_batch("back/checkpoint-8") < larger);
}

#[test]
fn the_best_model_is_kept_and_written_at_the_end_on_request() {
    let home = Home::with_model();
    let lines = (0..40).map(|n| format!("{}\n", json!({ "text": format!("sample {n} of many") })));
    home.write("samples.jsonl", lines.collect::<String>());
    // The learning rate is so large that the loss soon gets worse.
    let train = |rest: &str| {
        home.done(&format!(
            "train --model model --data samples.jsonl --eval-split 0.2 --eval-steps 2 --early-stopping-patience 3 \
             --max-steps 200 --learning-rate 0.02 --lr-scheduler-type constant {SMALL} {rest}"
        ))
        .1
    };
    let said = train("--output-dir last");
    let metrics = String::from_utf8(home.read("last/metrics.jsonl")).unwrap();
    let end: serde_json::Value = serde_json::from_str(metrics.lines().last().unwrap()).unwrap();
    let best = end["best"]["step"].as_u64().unwrap();
    assert_eq!(end["stopped_early"], true);
    let last = best + 6;
    let expected = format!(
        "what was trained is in last, as it was after step {last}; the best is in last/checkpoint-{best}\n"
    );
    assert!(said.ends_with(&expected), "{said}");
    let checkpoint = |run: &str, step: u64| home.read(&format!("{run}/checkpoint-{step}/model.safetensors"));
    let mut kept = names(&home.path("last"));
    kept.retain(|name| name.starts_with("checkpoint-"));
    let mut expected = [format!("checkpoint-{best}"), format!("checkpoint-{last}")];
    expected.sort();
    assert_eq!(kept, expected, "nothing but the best and the last");
    assert_eq!(weights(&home, "last"), checkpoint("last", last));

    train("--output-dir best --load-best-model-at-end");
    assert_eq!(weights(&home, "best"), checkpoint("best", best));
    assert_eq!(weights(&home, "best"), checkpoint("last", best));
    // The best checkpoint is copied into a new output folder. If it was deleted, the run still keeps the last weights.
    let resume = |to: &str| {
        train(&format!("--resume last/checkpoint-{last} --output-dir {to} --load-best-model-at-end"))
    };
    let said = resume("along");
    assert!(
        said.ends_with(&format!("what was trained is in along, as it was after step {best}\n")),
        "{said}"
    );
    assert_eq!(weights(&home, "along"), checkpoint("last", best));
    fs::rename(home.path(&format!("last/checkpoint-{best}")), home.path("gone")).unwrap();
    let said = resume("without");
    let note = format!(" after step {best}, has no checkpoint any more; it is looked for anew\n");
    assert!(said.contains(&note) && said.ends_with("what was trained is in without\n"), "{said}");
    assert_eq!(weights(&home, "without"), checkpoint("last", last));
    home.refused(
        "train --load-best-model-at-end --output-dir out",
        "--load-best-model-at-end needs --eval-steps, which says how often to evaluate, and --output-dir",
    );
}

#[test]
fn a_long_run_goes_on_inside_its_budget() {
    let home = Home::new();
    let train = "train --max-steps 4 --memory 64MiB --threads 1 --output-dir out";
    home.done(&format!("{train} --stop-after 2"));
    // As many records as a run of days leaves behind.
    let metrics = String::from_utf8(home.read("out/metrics.jsonl")).unwrap();
    let (start, steps) = metrics.split_once('\n').unwrap();
    let first = format!("{}\n", steps.lines().next().unwrap());
    home.write("out/metrics.jsonl", format!("{start}\n{}", first.repeat(300_000)));
    home.done(&format!("{train} --resume latest"));
    assert!(home.path("out/model.safetensors").exists());
    let page = String::from_utf8(home.read("out/report.html")).unwrap();
    assert!(page.contains("\"steps\":[[1,"), "the page is of the whole run");
}

#[test]
fn kills_at_random_instants_of_training_and_saving_change_no_bit() {
    const KILLS: u64 = 12;
    let home = Home::with_model();
    // All runs have the same length, since the length decides the learning rate. The step to stop at is chosen later.
    let train = |rest: &str| training(100_000, &format!("--warmup-steps 10 --learning-rate 0.003 {rest}"));
    let killed = train("--output-dir killed --save-steps 1 --save-total-limit 2");
    let newest = || {
        let steps = names(&home.path("killed"))
            .into_iter()
            .filter_map(|name| name.strip_prefix("checkpoint-")?.parse().ok());
        steps.max().unwrap_or(0_u64)
    };
    let (mut random, mut in_saves, mut furthest) = (7_u64, 0, 0);
    for kill in 0..KILLS {
        let resume = if kill == 0 { "" } else { "--resume latest" };
        let mut child = spawned(&home, &format!("{killed} {resume}"));
        // The first goes on until there is something to go on from; later ones die wherever they are.
        wait_until("the first checkpoint", || {
            assert!(kill > 0 || child.try_wait().unwrap().is_none(), "the first run ended");
            kill > 0 || newest() > 0
        });
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        sleep(Duration::from_micros((random >> 33) % 800_000));
        let ended = child.try_wait().unwrap();
        child.kill().unwrap();
        let (_, said) = texts(&child.wait_with_output().unwrap());
        assert!(ended.is_none(), "the run before kill {kill} failed to go on: {said}");
        in_saves += usize::from(names(&home.path("killed")).iter().any(|name| name.starts_with(".tmp-")));
        assert!(newest() >= furthest, "kill {kill} took the run from step {furthest} back to {}", newest());
        furthest = newest();
    }
    assert!(in_saves > 0 && furthest > 3, "{in_saves} kills fell into a save, {furthest} steps were saved");
    let last = furthest + 3;
    home.done(&format!("{killed} --resume latest --stop-after {last}"));
    home.done(&train(&format!("--output-dir whole --stop-after {last}")));
    assert_eq!(weights(&home, "killed"), weights(&home, "whole"), "after {last} steps");
    assert_eq!(newest(), last);
}

#[test]
fn the_printed_configuration_of_an_adapted_run_is_a_file_that_prints_the_same() {
    let home = Home::with_model();
    let settings = "--lora-r 3 --lora-alpha 5 --lora-dropout 0.1 --use-rslora --lora-target-modules q_proj,v_proj \
                    --modules-to-save norm --weights-dtype bf16-master --gradients-dtype bf16 --optim adamw_8bit \
                    --save-steps 7 --save-total-limit 2 --output-dir out --resume latest --packing false --skip-bad-lines";
    let (printed, _) = home.done(&format!(
        "train --model model --data text.txt --eval-split 0.1 --eval-steps 5 --print-config {SMALL} {settings}"
    ));
    for line in [
        "model = \"model\"",
        "lora_r = 3",
        "lora_alpha = 5.0",
        "lora_dropout = 0.1",
        "use_rslora = true",
        "lora_target_modules = [\"q_proj\", \"v_proj\"]",
        "modules_to_save = [\"norm\"]",
        "weights_dtype = \"bf16-master\"",
        "gradients_dtype = \"bf16\"",
        "optim = \"adamw_8bit\"",
        "save_steps = 7",
        "save_total_limit = 2",
        "output_dir = \"out\"",
        "resume = \"latest\"",
        "packing = false",
        "skip_bad_lines = true",
        "eval_split = 0.1",
    ] {
        assert!(printed.lines().any(|known| known == line), "{line} is not in\n{printed}");
    }
    home.write("run.toml", &printed);
    assert_eq!(home.done("train --settings run.toml --print-config").0, printed);
    assert!(!home.path("out").exists(), "to print is not to run");
}
