//! The examples run to their end: those that train assert for themselves that the loss fell and the peak was as
//! planned, and the one that writes down rows leaves the files it names.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// `cargo test` builds examples beside the folder of test binaries.
fn example(name: &str) -> PathBuf {
    let here = std::env::current_exe().unwrap();
    here.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name)
}

/// A folder with a small Llama of `testdata`, and a tokenizer that suits it.
fn model(folder: &Path) -> PathBuf {
    let model = folder.join("model");
    std::fs::create_dir_all(&model).unwrap();
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    for from in ["hf/llama", "tokenizer/bert"] {
        for entry in std::fs::read_dir(testdata.join(from)).unwrap().map(Result::unwrap) {
            if entry.path().is_file() && entry.file_name() != "golden.safetensors" {
                std::fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
            }
        }
    }
    model
}

#[test]
fn every_example_ends_well() {
    let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut names: Vec<String> = std::fs::read_dir(sources)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["fine_tune", "residual_mlp", "rows", "transformer", "unet"]);
    let folder = std::env::temp_dir().join(format!("plimsoll-rows-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let settings = folder.join("settings.toml");
    std::fs::write(&settings, "seq_len = 16\nmax_steps = 2\neval_steps = 1\nmax_eval_samples = 4\n").unwrap();
    let tuned = folder.join("tuned");
    for name in names {
        let mut command = Command::new(example(&name));
        match name.as_str() {
            "rows" => drop(command.args([&settings, &folder])),
            "fine_tune" => {
                let text = folder.join("text.txt");
                std::fs::write(&text, "the mark and no deeper load it\n".repeat(100)).unwrap();
                command.args([&model(&folder), &text, &tuned]);
                // The example has caches of its own, and no hub.
                command.env("XDG_CACHE_HOME", folder.join("cache")).env("HF_HUB_OFFLINE", "1");
                command.env("PLIMSOLL_COSTS", "modelled");
            }
            _ => {}
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
    // Two steps of eight rows: sixteen tokens, targets and document starts each.
    assert_eq!(std::fs::metadata(folder.join("train.i32")).unwrap().len(), 2 * 8 * 3 * 16 * 4);
    assert!(folder.join("initial/model.safetensors").exists());
    for written in ["model.safetensors", "config.json", "tokenizer.json", "metrics.jsonl", "checkpoint-8"] {
        assert!(tuned.join(written).exists(), "{written}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
