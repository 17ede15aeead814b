//! Measured times of ops: taken once, kept per machine, used by later plans, refused on other machines.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn plimsoll(caches: &Path, arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(arguments.split_whitespace())
        .env("XDG_CACHE_HOME", caches)
        .output()
        .unwrap()
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
