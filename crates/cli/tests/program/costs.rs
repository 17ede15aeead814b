//! Measured times of ops: taken at first use, kept per machine, refined by runs, refused on other machines; and resumed
//! runs, whose plans do not change.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::support::{self, Home};
use serde_json::Value;

/// The program with caches of its own and with the times that are measured by default.
fn plimsoll(caches: &Path, arguments: &str) -> Output {
    let mut command = support::plimsoll(arguments);
    command.env("XDG_CACHE_HOME", caches).env_remove("PLIMSOLL_COSTS").output().unwrap()
}

/// Standard output and standard error of a command that must succeed.
fn done(caches: &Path, arguments: &str) -> (String, String) {
    let output = plimsoll(caches, arguments);
    let (out, err) = support::texts(&output);
    assert!(output.status.success(), "{arguments}: {err}");
    (out, err)
}

/// The file of times of one thread.
fn times_file(caches: &Path) -> PathBuf {
    let files = fs::read_dir(caches.join("plimsoll")).unwrap().map(|entry| entry.unwrap().path());
    let mut files = files.filter(|path| path.to_string_lossy().ends_with("-1-threads.json"));
    files.next().unwrap()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

const PLAN: &str = "plan --threads 1 --seq-len 32 --global-batch 2 --memory 96MiB";

#[test]
fn a_machine_is_measured_at_first_use_and_never_again() {
    let caches = tempfile::tempdir().unwrap();
    let first_line = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    let (first, said) = done(caches.path(), PLAN);
    assert!(
        first.starts_with("tiny on cpu, 1 thread, times measured on this machine on 20") && said.is_empty(),
        "{}: {said}",
        first_line(&first)
    );
    let file = times_file(caches.path());
    let kept = fs::read(&file).unwrap();
    assert_eq!(done(caches.path(), PLAN).0, first, "planned with the times that are kept");
    assert_eq!(fs::read(&file).unwrap(), kept);
    let (modelled, _) = done(caches.path(), &format!("{PLAN} --costs modelled"));
    assert_eq!(first_line(&modelled), "tiny on cpu, 1 thread, times modelled");

    // More memory lets larger models be measured, and another precision has times of its own.
    done(caches.path(), &PLAN.replace("96MiB", "2GiB"));
    let larger = json(&file);
    assert!(larger["probed"]["f32"]["sizes"].as_u64() > Some(1), "{}", larger["probed"]);
    done(caches.path(), &format!("{PLAN} --bf16"));
    assert!(json(&file)["probed"]["bf16"]["day"].as_u64().is_some());
    assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "no litter");
}

#[test]
fn a_broken_file_of_times_is_passed_over_with_a_note_and_written_again() {
    let caches = tempfile::tempdir().unwrap();
    done(caches.path(), PLAN);
    let file = times_file(caches.path());
    let whole = fs::read_to_string(&file).unwrap();
    let other = whole.replacen("\"version\":2", "\"version\":1", 1);
    for broken in [&whole[..whole.len() / 2], "", "[]", &other] {
        fs::write(&file, broken).unwrap();
        let (out, said) = done(caches.path(), PLAN);
        assert!(out.contains("times measured on this machine"), "{out}");
        assert!(said.starts_with("note: `") && said.contains("; it is passed over"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_eq!(json(&file)["version"], 2);
    }
    // Impossible times are ignored, and planning goes on without them.
    let mut absurd = json(&file);
    for row in absurd["probes"].as_object_mut().unwrap().values_mut() {
        row[0] = (-1.0).into();
    }
    fs::write(&file, absurd.to_string()).unwrap();
    done(caches.path(), PLAN);
}

#[test]
fn a_cache_that_cannot_be_written_is_no_error() {
    let caches = tempfile::tempdir().unwrap();
    fs::write(caches.path().join("plimsoll"), "a file where a folder should be").unwrap();
    let (out, _) = done(caches.path(), PLAN);
    assert!(out.contains("times measured on this machine"), "{out}");
    let train = PLAN.replace("plan ", "train --synthetic --max-steps 3 ");
    done(caches.path(), &train);
    // Without any folder for caches nothing is measured: no two calls would agree.
    let mut homeless = support::plimsoll(PLAN);
    homeless.env_remove("XDG_CACHE_HOME").env_remove("HOME").env_remove("PLIMSOLL_COSTS");
    let (out, said) = support::texts(&homeless.output().unwrap());
    assert!(out.contains(", times modelled\n"), "{out}{said}");
}

#[test]
fn a_run_adds_its_times_to_those_known_of_the_machine_and_stays_inside_its_budget() {
    let caches = tempfile::tempdir().unwrap();
    let train = |steps: u64| PLAN.replace("plan ", &format!("train --json --synthetic --max-steps {steps} "));
    let (out, _) = done(caches.path(), &train(8));
    let end: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!(end["planned_peak_bytes"], end["measured_peak_bytes"]);
    assert!(end["process_peak_bytes"].as_u64() <= Some(96 << 20), "{end}");
    let file = times_file(caches.path());
    let known = json(&file);
    let ops = known["ops"].as_object().unwrap();
    assert_eq!(known["runs"], 1);
    for kind in ["linear{", "linear_grad_weight{", "attention_grad{", "head_loss_grad{", "adamw("] {
        assert!(ops.keys().any(|signature| signature.starts_with(kind)), "{kind}");
    }
    let (plan, _) = done(caches.path(), PLAN);
    assert!(plan.lines().next().unwrap().ends_with(" and in 1 run"), "{plan}");
    done(caches.path(), &train(8));
    assert_eq!(json(&file)["runs"], 2);

    // A run adds no times if it used other times, took no second step, or has ops that wait for a disk.
    for other in [format!("{} --costs modelled", train(3)), train(1), format!("{} --offload disk", train(3))]
    {
        let kept = fs::read(&file).unwrap();
        done(caches.path(), &other);
        assert_eq!(fs::read(&file).unwrap(), kept, "{other}");
    }
}

#[test]
fn the_first_start_on_a_machine_says_that_it_opens_the_device_while_it_measures_it() {
    for arguments in [PLAN.to_owned(), PLAN.replace("plan ", "train --synthetic --max-steps 1 ")] {
        let caches = tempfile::tempdir().unwrap();
        let mut first = support::plimsoll(&arguments);
        first.env("XDG_CACHE_HOME", caches.path()).env_remove("PLIMSOLL_COSTS");
        // To measure takes tenths of a second at least.
        let output = first.env("PLIMSOLL_LONGEST_SILENCE", "0.03").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.lines().any(|line| line.starts_with("opening the device, ")), "{arguments}: {said}");
    }
}

/// Multiplies the known times of all ops whose operands begin with `rows` rows.
fn slow_down(file: &Path, rows: u64, factor: f64) {
    let mut known = json(file);
    for (signature, row) in known["ops"].as_object_mut().unwrap() {
        for seconds in [0, 1].into_iter().filter(|_| signature.contains(&format!("f32[{rows},"))) {
            row[seconds] = row[seconds].as_f64().map(|seconds| seconds * factor).into();
        }
    }
    fs::write(file, known.to_string()).unwrap();
}

#[test]
fn a_run_that_goes_on_has_the_same_bits_and_the_same_plan_whatever_was_learned_meanwhile() {
    let home = tempfile::tempdir().unwrap();
    let out = |name: &str| home.path().join(name).display().to_string();
    let train = "train --synthetic --seed 5 --threads 1 --seq-len 32 --global-batch 4 --memory 96MiB --max-steps 6 \
                 --save-steps 3 --report-to none";
    let caches = home.path().join("caches");
    done(&caches, &format!("{train} --output-dir {} --stop-after 3", out("parts")));
    let rows = |run: &str| {
        let state = json(&home.path().join(format!("{run}/checkpoint-3/trainer_state.json")));
        state["plan"]["micro_batch"].as_u64().unwrap()
    };
    let before = rows("parts");
    done(&caches, &format!("{train} --micro-batch {before} --costs modelled --output-dir {}", out("whole")));
    // From now on the times of every division of the batch are known, and that of the run so far is slow.
    done(&caches, "bench ops --threads 1 --seq-len 32 --global-batch 4 --memory 96MiB");
    slow_down(&times_file(&caches), before, 50.0);
    done(&caches, &format!("{train} --output-dir {}", out("fresh")));
    assert_ne!(rows("fresh"), before, "the times decide the plan");
    let (_, said) = done(&caches, &format!("{train} --output-dir {} --resume latest", out("parts")));
    assert!(said.contains("going on after step 3") && !said.contains("planned anew"), "{said}");
    let read = |file: &str| fs::read(home.path().join(file)).unwrap();
    assert!(read("parts/checkpoint-3/plan.jsonl") == read("parts/checkpoint-6/plan.jsonl"), "the same plan");
    for file in ["checkpoint-6/optimizer.safetensors", "model.safetensors"] {
        assert!(read(&format!("whole/{file}")) == read(&format!("parts/{file}")), "{file} differs");
    }
}

#[test]
fn a_run_that_goes_on_with_other_settings_is_planned_anew() {
    let home = Home::with_model();
    let train = "train --model model --data text.txt --seq-len 16 --global-batch 4 --threads 1 --report-to none \
                 --max-steps 4 --save-steps 2 --output-dir out";
    home.done(&format!("{train} --memory 64MiB --stop-after 2"));
    let plan =
        |step: u64| String::from_utf8(home.read(&format!("out/checkpoint-{step}/plan.jsonl"))).unwrap();
    assert_eq!(plan(2).lines().count(), 2, "the settings that decided it, and the plan");
    home.done(&format!("{train} --memory 48MiB --resume latest --stop-after 3"));
    assert!(plan(2).contains("67108864B") && plan(3).contains("50331648B"));
    // The settings are the same, but the run evaluates now, which the plan knows nothing of.
    let evaluate = format!("{train} --memory 48MiB --resume latest --eval-data text.txt --eval-steps 2");
    let (_, said) = home.done(&evaluate);
    assert!(
        said.contains("note: the checkpoint's own plan cannot be used, so the run is planned anew: "),
        "{said}"
    );
}

#[test]
fn what_was_measured_is_kept_and_planned_with() {
    let caches = tempfile::tempdir().unwrap();
    let plan = "plan --threads 1 --seq-len 32 --global-batch 2";
    done(caches.path(), "bench ops --threads 1 --seq-len 32 --global-batch 2");
    let file = times_file(caches.path());
    let named = format!("{plan} --costs {}", file.display());
    let (text, _) = done(caches.path(), &named);
    assert_eq!(text.lines().next(), Some("tiny on cpu, 1 thread, times from measured ops"));

    // `bench` must accept settings that training on made-up data refuses (epochs), and updates that use gradients up.
    let settings = caches.path().join("run.toml");
    fs::write(&settings, "num_train_epochs = 2\nmax_grad_norm = 0\n").unwrap();
    let bench =
        format!("bench ops --threads 1 --seq-len 32 --global-batch 2 --settings {}", settings.display());
    let bench = plimsoll(caches.path(), &bench);
    let said = String::from_utf8(bench.stderr).unwrap();
    assert!(bench.status.success() && !said.contains("skipped"), "{said}");

    let text = fs::read_to_string(&file).unwrap();
    let refused = |text: &str| {
        fs::write(&file, text).unwrap();
        let output = plimsoll(caches.path(), &format!("{plan} --costs {}", file.display()));
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let mut elsewhere: Value = serde_json::from_str(&text).unwrap();
    elsewhere["machine"] = "Abacus, 1 thread".into();
    let why = refused(&elsewhere.to_string());
    assert!(why.contains("was measured on Abacus, 1 thread; this is "), "{why}");
    let why = refused(&text[..text.len() / 2]);
    assert!(why.contains("is no file of measured ops"), "{why}");
}

#[test]
fn a_disk_is_tried_once_and_plans_agree_from_then_on() {
    let caches = tempfile::tempdir().unwrap();
    let plan = "plan --threads 1 --seq-len 32 --global-batch 2 --offload disk --json";
    let planned = || {
        let output = plimsoll(caches.path(), plan);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut fields: Value = serde_json::from_slice(&output.stdout).unwrap();
        fields.as_object_mut().unwrap().remove("planning_seconds");
        fields
    };
    let (first, second) = (planned(), planned());
    assert_eq!(first["predicted_step_seconds"], second["predicted_step_seconds"]);
    let file = caches.path().join("plimsoll/disks.json");
    let mut known: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    known["disks"][0]["out_rate"] = 1e6.into();
    fs::write(&file, known.to_string()).unwrap();
    let text = plimsoll(caches.path(), &plan.replace("--json", ""));
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("offload to disk: nothing has to leave, at 1 MB/s out and "), "{text}");

    let bench = plimsoll(caches.path(), "bench ops --threads 1 --seq-len 32 --global-batch 1 --offload disk");
    let said = String::from_utf8(bench.stderr).unwrap();
    assert!(said.contains("the disk, at ") && said.contains(" MB/s in, is kept too"), "{said}");
    let measured: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert!(measured["disks"][0]["out_rate"].as_f64().unwrap() > 1e6 && measured["disks"][1].is_null());
    fs::write(&file, "half a fi").unwrap();
    planned();
}
