//! Measured times of ops: taken once, kept per machine, used by later plans, refused on other machines.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::path::Path;
use std::process::Output;

fn plimsoll(caches: &Path, arguments: &str) -> Output {
    support::plimsoll(arguments).env("XDG_CACHE_HOME", caches).output().unwrap()
}

#[test]
fn what_was_measured_is_kept_and_planned_with() {
    let caches = tempfile::tempdir().unwrap();
    let plan = "plan --threads 1 --seq-len 32 --global-batch 2";
    let first_line = |arguments: &str| {
        let text = String::from_utf8(plimsoll(caches.path(), arguments).stdout).unwrap();
        text.lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(first_line(plan), "tiny on cpu, 1 thread, times modelled");
    let bench = plimsoll(caches.path(), "bench ops --threads 1 --seq-len 32 --global-batch 2");
    assert!(bench.status.success(), "{}", String::from_utf8_lossy(&bench.stderr));
    assert_eq!(first_line(plan), "tiny on cpu, 1 thread, times from measured ops");
    assert_eq!(first_line(&format!("{plan} --costs modelled")), "tiny on cpu, 1 thread, times modelled");

    // Epochs are not for made-up data, and where gradients are used up no second micro-batch adds to them.
    let settings = caches.path().join("run.toml");
    fs::write(&settings, "num_train_epochs = 2\nmax_grad_norm = 0\n").unwrap();
    let bench =
        format!("bench ops --threads 1 --seq-len 32 --global-batch 2 --settings {}", settings.display());
    let bench = plimsoll(caches.path(), &bench);
    let said = String::from_utf8(bench.stderr).unwrap();
    assert!(bench.status.success() && !said.contains("skipped"), "{said}");

    let file = caches.path().join("plimsoll/ops-1-threads.json");
    let text = fs::read_to_string(&file).unwrap();
    let refused = |text: &str| {
        fs::write(&file, text).unwrap();
        let output = plimsoll(caches.path(), &format!("{plan} --costs {}", file.display()));
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let mut elsewhere: serde_json::Value = serde_json::from_str(&text).unwrap();
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
        let mut fields: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        fields.as_object_mut().unwrap().remove("planning_seconds");
        fields
    };
    let (first, second) = (planned(), planned());
    assert_eq!(first["predicted_step_seconds"], second["predicted_step_seconds"]);
    let file = caches.path().join("plimsoll/disks.json");
    let mut known: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    known["disks"][0]["out_rate"] = 1e6.into();
    fs::write(&file, known.to_string()).unwrap();
    let text = plimsoll(caches.path(), &plan.replace("--json", ""));
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("offload to disk: nothing has to leave, at 1 MB/s out and "), "{text}");

    let bench = plimsoll(caches.path(), "bench ops --threads 1 --seq-len 32 --global-batch 1 --offload disk");
    let said = String::from_utf8(bench.stderr).unwrap();
    assert!(said.contains("the disk, at ") && said.contains(" MB/s in, is kept too"), "{said}");
    let measured: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert!(measured["disks"][0]["out_rate"].as_f64().unwrap() > 1e6 && measured["disks"][1].is_null());
    fs::write(&file, "half a fi").unwrap();
    planned();
}
