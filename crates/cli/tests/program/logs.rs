//! A run reports the same numbers on the console, in `metrics.jsonl`, on the page and in TensorBoard's files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::{Home, wait_until};

/// Small runs that write everything.
const WATCHED: &str = "--seq-len 16 --global-batch 4 --memory 64MiB --threads 1";

fn train(home: &Home, rest: &str) -> String {
    home.done(&format!("train --data text.txt {WATCHED} {rest}")).1
}

/// A step, the loss it is shown with, and of how many steps that is the mean.
type Shown = (u64, f64, u64);

/// Lines `step     3 of 7  epoch 0.01  loss 5.5123 (mean of 3 steps)  lr …`.
fn on_the_console(said: &str) -> Vec<Shown> {
    let number = |text: &str, before: &str| {
        let rest = text.split_once(before)?.1.trim_start();
        rest.split([' ', ')']).next()?.parse::<f64>().ok()
    };
    let shown = |line: &str| {
        let step = number(line.strip_prefix("step ").map(|_| line)?, "step ")?;
        Some((step as u64, number(line, "  loss ")?, number(line, "mean of ").unwrap_or(1.0) as u64))
    };
    said.lines().filter_map(shown).collect()
}

fn in_the_metrics(home: &Home, run: &str) -> Vec<Shown> {
    let text = String::from_utf8(home.read(&format!("{run}/metrics.jsonl"))).unwrap();
    let records = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let shown = |record: Value| {
        Some((record["step"].as_u64()?, record["loss"].as_f64()?, record["mean_over"].as_u64()?))
    };
    records.filter_map(shown).collect()
}

/// The data of a page.
fn page(home: &Home, run: &str) -> Value {
    let text = String::from_utf8(home.read(&format!("{run}/report.html"))).unwrap();
    let data = text.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    serde_json::from_str(data).unwrap()
}

/// The page of a run as a browser without scripts shows it.
fn without_scripts(home: &Home, run: &str) -> String {
    let page = String::from_utf8(home.read(&format!("{run}/report.html"))).unwrap();
    let parts = page.split("<script").map(|part| part.split_once("</script>").map_or(part, |(_, rest)| rest));
    parts.collect()
}

fn on_the_page(home: &Home, run: &str) -> Vec<Shown> {
    let data = page(home, run);
    let shown = |row: &Value| (row[0].as_u64().unwrap(), row[1].as_f64().unwrap(), row[5].as_u64().unwrap());
    data["steps"].as_array().unwrap().iter().map(shown).collect()
}

/// Steps and values of `train/loss` in the event files: each record is an event with its step, eight bytes of time after
/// its first key, and the value after its tag.
fn in_tensorboard(home: &Home, run: &str) -> Vec<(u64, f32)> {
    let folder = home.path(&format!("{run}/tensorboard"));
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut points = Vec::new();
    for file in files {
        let bytes = fs::read(file).unwrap();
        let mut at = 0;
        while at < bytes.len() {
            let length = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
            let event = &bytes[at + 12..at + 12 + length];
            let tag = b"\x0a\x0atrain/loss\x15";
            if let Some(found) = event.windows(tag.len()).position(|window| window == tag) {
                assert!(event[9] == 0x10 && event[10] < 0x80, "the step is the second field, and small");
                let value = &event[found + tag.len()..][..4];
                points.push((u64::from(event[10]), f32::from_le_bytes(value.try_into().unwrap())));
            }
            at += 16 + length;
        }
    }
    points
}

#[test]
fn console_metrics_page_and_tensorboard_show_the_same_mean_for_the_same_step() {
    let home = Home::new();
    train(&home, "--max-steps 7 --logging-steps 1 --output-dir single");
    let single: Vec<f64> = in_the_metrics(&home, "single").iter().map(|(_, loss, _)| *loss).collect();
    let said = train(&home, "--max-steps 7 --logging-steps 3 --output-dir run");
    let told = in_the_metrics(&home, "run");
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    assert_eq!(told, [(3, mean(&single[..3]), 3), (6, mean(&single[3..6]), 3), (7, single[6], 1)]);
    assert_eq!(on_the_page(&home, "run"), told);
    let rounded: Vec<(u64, f32)> = told.iter().map(|&(step, loss, _)| (step, loss as f32)).collect();
    assert_eq!(in_tensorboard(&home, "run"), rounded);
    let shown = |&(step, loss, over): &Shown| (step, format!("{loss:.4}"), over);
    let console: Vec<_> = on_the_console(&said).iter().map(shown).collect();
    assert_eq!(console, told.iter().map(shown).collect::<Vec<_>>(), "{said}");
}

#[test]
fn the_result_of_an_evaluation_stands_on_one_line_only() {
    let home = Home::new();
    let said = train(
        &home,
        "--eval-data text.txt --eval-steps 2 --max-eval-samples 4 --max-steps 6 --logging-steps 1 --output-dir run",
    );
    let text = String::from_utf8(home.read("run/metrics.jsonl")).unwrap();
    let losses =
        text.lines().filter_map(|line| serde_json::from_str::<Value>(line).unwrap()["eval_loss"].as_f64());
    let losses: Vec<String> = losses.map(|loss| format!("{loss:.4}")).collect();
    assert_eq!(losses.len(), 3, "{text}");
    for loss in losses {
        // The end names the best once more.
        let lines = said.lines().filter(|line| line.starts_with("step ") && line.contains(&loss));
        assert_eq!(lines.count(), 1, "{loss}: {said}");
    }
    assert!(!said.contains("  eval "), "{said}");
}

#[test]
fn without_stated_logging_steps_every_step_is_a_record_and_some_twenty_are_shown() {
    let home = Home::new();
    let said = train(&home, "--max-steps 60 --output-dir run");
    let told = in_the_metrics(&home, "run");
    assert_eq!(told.len(), 60);
    let console = on_the_console(&said);
    assert_eq!(console.iter().map(|(step, ..)| *step).take(3).collect::<Vec<_>>(), [1, 3, 6]);
    assert_eq!((console.len(), console.last().map(|(step, ..)| *step)), (21, Some(60)));
    for (step, loss, _) in console {
        assert!((told[step as usize - 1].1 - loss).abs() < 6e-5, "step {step}");
    }
}

#[test]
fn a_run_that_takes_steps_again_leaves_one_point_for_each_in_tensorboards_files() {
    let home = Home::new();
    let run = "--max-steps 9 --save-steps 5 --output-dir run";
    train(&home, run);
    // As after a kill: steps 6 to 9 are in the records, and the last checkpoint is that of step 5.
    fs::remove_dir_all(home.path("run/checkpoint-9")).unwrap();
    train(&home, &format!("{run} --resume latest"));
    let points = in_tensorboard(&home, "run");
    assert_eq!(points.iter().map(|(step, _)| *step).collect::<Vec<_>>(), (1..=9).collect::<Vec<_>>());
    let told: Vec<(u64, f32)> =
        in_the_metrics(&home, "run").iter().map(|&(step, loss, _)| (step, loss as f32)).collect();
    assert_eq!(points, told);
}

#[test]
fn the_page_of_a_run_is_there_from_its_first_step_and_renews_itself_until_the_run_is_over() {
    let home = Home::new();
    let arguments = format!(
        "train --data text.txt {WATCHED} --json --max-steps 1000000 --save-total-limit 1 --output-dir run"
    );
    let mut child = home.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    let data = page(&home, "run");
    assert_eq!((&data["running"], &data["end"]), (&json!(true), &Value::Null));
    // The page reloads itself, with its script and without one.
    let whole = String::from_utf8(home.read("run/report.html")).unwrap();
    assert!(whole.contains("if (running) setTimeout(() => location.reload(), 15000);"), "{whole}");
    let renewal = "<noscript><meta http-equiv=\"refresh\" content=\"15\"></noscript>";
    assert!(without_scripts(&home, "run").split("</head>").next().unwrap().contains(renewal), "{whole}");
    let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    lines.for_each(drop);
    assert!(child.wait().unwrap().success());
    let data = page(&home, "run");
    assert_eq!((&data["running"], &data["written"]), (&json!(false), &Value::Null));
    assert!(data["end"].is_object());
    assert!(!without_scripts(&home, "run").contains("http-equiv"));
}

#[test]
fn a_run_without_a_terminal_that_has_no_record_to_show_tells_how_far_it_is() {
    let home = Home::new();
    let arguments = format!(
        "train --data text.txt {WATCHED} --max-steps 1000000 --logging-steps 1000000 --report-to none --output-dir run"
    );
    let said = home.path("said.txt");
    let mut command = home.command(&arguments);
    command.env("PLIMSOLL_LONGEST_SILENCE", "1").stdout(Stdio::null()).stderr(File::create(&said).unwrap());
    let mut child = command.spawn().unwrap();
    // How long a silence may last is tested where it is decided, without a clock.
    let told = || -> Vec<u64> {
        let text = fs::read_to_string(&said).unwrap();
        // The last line may be half written.
        let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        let steps = lines.filter_map(|line| {
            let (step, rest) = line.split_once(" of 1000000 steps are done, about ")?;
            assert!(rest.contains(" left, ") && rest.ends_with(" so far"), "{line}");
            Some(step.parse().unwrap())
        });
        steps.collect()
    };
    wait_until("four lines", || told().len() >= 4);
    child.kill().unwrap();
    child.wait().unwrap();
    let told = told();
    assert!(told.is_sorted_by(|before, after| before < after), "{told:?}");
}

#[test]
fn the_report_of_a_classifier_shows_accuracy_and_f1_and_no_perplexity() {
    let home = Home::new();
    home.copy("hf/bert", "model");
    home.copy("tokenizer/bert", "model");
    let texts = ["the ship grows", "load the planner", "spaces and tabs", "tabs by lines"];
    let line = |n: usize| {
        let label = if n % 4 < 2 { "ship" } else { "text" };
        format!("{}\n", json!({ "text": texts[n % 4], "label": label }))
    };
    home.write("labels.jsonl", (0..40).map(line).collect::<String>());
    let (_, said) = home.done(&format!(
        "train --model model --task classify --data labels.jsonl --eval-data labels.jsonl --eval-steps 20 --max-steps 40 \
         --learning-rate 0.003 --output-dir out {WATCHED}"
    ));
    let metrics = String::from_utf8(home.read("out/metrics.jsonl")).unwrap();
    let mut evaluations = metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let last = evaluations.rfind(|record| record["event"] == "evaluation").unwrap();
    assert_eq!((&last["eval_accuracy"], &last["eval_f1"]), (&json!(1.0), &json!(1.0)), "{last}");
    assert_eq!(last.get("eval_perplexity"), None);
    assert!(said.contains(", accuracy 100.0 %, macro F1 1.000"), "{said}");
    let shown = &page(&home, "out")["evaluations"][1];
    let expected =
        json!({ "step": 40, "loss": last["eval_loss"], "perplexity": null, "accuracy": 1.0, "f1": 1.0 });
    assert_eq!(*shown, expected);
    // Without its script the page shows the same numbers.
    let text = without_scripts(&home, "out");
    let table = text.split_once("id=\"evaluations\">").unwrap().1.split_once("</table>").unwrap().0;
    let head = "<tr><th>step</th><th>loss</th><th>accuracy</th><th>macro F1</th></tr>";
    let row = format!(
        "<tr><td>40</td><td>{:.4}</td><td>100.0 %</td><td>1.0000</td></tr>",
        last["eval_loss"].as_f64().unwrap()
    );
    assert!(table.starts_with(head) && table.ends_with(&row), "{table}");
    assert!(
        !text.contains("perplexity") && !text.contains("http-equiv"),
        "a run that is over is not loaded anew"
    );
    let events = fs::read_dir(home.path("out/tensorboard")).unwrap().next().unwrap().unwrap();
    let events = fs::read(events.path()).unwrap();
    let has = |tag: &[u8]| events.windows(tag.len()).any(|window| window == tag);
    assert!(has(b"eval/accuracy") && has(b"eval/f1") && !has(b"eval/perplexity"));
}
