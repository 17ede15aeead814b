//! The examples run to their end: those that train assert for themselves that the loss fell and the peak was as
//! planned, and the one that writes down rows leaves the files it names.
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
    assert_eq!(names, ["residual_mlp", "rows", "transformer", "unet"]);
    let folder = std::env::temp_dir().join(format!("plimsoll-rows-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let settings = folder.join("settings.toml");
    std::fs::write(&settings, "seq_len = 16\nmax_steps = 2\neval_steps = 1\nmax_eval_samples = 4\n").unwrap();
    for name in names {
        let mut command = Command::new(example(&name));
        if name == "rows" {
            command.args([&settings, &folder]);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
    // Two steps of eight rows: sixteen tokens, targets and document starts each.
    assert_eq!(std::fs::metadata(folder.join("train.i32")).unwrap().len(), 2 * 8 * 3 * 16 * 4);
    assert!(folder.join("initial/model.safetensors").exists());
    std::fs::remove_dir_all(&folder).unwrap();
}
