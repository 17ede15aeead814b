//! The examples run to their end: each asserts for itself that its loss fell and its peak was as planned.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::process::Command;

/// `cargo test` builds examples beside the folder of test binaries.
fn example(name: &str) -> PathBuf {
    let here = std::env::current_exe().unwrap();
    here.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name)
}

#[test]
fn every_example_ends_well() {
    let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut names: Vec<String> = std::fs::read_dir(sources)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["residual_mlp", "transformer", "unet"]);
    for name in names {
        let output = Command::new(example(&name)).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
