//! The error for a folder that is no checkpoint of plimsoll: the kind of folder it is, and the flag to type.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use super::names::{PREFIX, STATE};
use crate::files::{FileError, read_text, reads_bytes};

/// Describes a folder that was given as a checkpoint and is none.
pub(super) fn other_folder(folder: &Path) -> FileError {
    FileError::wrong(folder, why(folder))
}

fn why(folder: &Path) -> String {
    let (shown, has) = (folder.display(), |name: &str| folder.join(name).is_file());
    if !folder.is_dir() {
        let what = if folder.exists() { "is not a folder" } else { "does not exist" };
        return format!("{what}; give the folder checkpoint-N of a run");
    }
    let adapter = has("adapter_config.json");
    let trained_further = if adapter {
        format!("--model BASE --adapter {shown}")
    } else if has("tokenizer.json") || reads_bytes(folder) {
        format!("--model {shown}")
    } else {
        format!("--model {shown} --tokenizer FOLDER_OF_ITS_TOKENIZER")
    };
    let instead = format!("train it further with `{trained_further}` and a new --output-dir");
    let what = if adapter { "an adapter" } else { "a model" };
    if let Some(step) = trainer_step(folder) {
        return format!(
            "is a checkpoint of Hugging Face's Trainer after step {step}, whose optimizer state is not read here; it \
             holds {what}: {instead}"
        );
    }
    if let Some(newest) = newest_checkpoint(folder) {
        let checkpoint = folder.join(format!("{PREFIX}{newest}"));
        if trainer_step(&checkpoint).is_some() {
            return format!(
                "is the folder of a run of Hugging Face's Trainer; {} {}",
                checkpoint.display(),
                why(&checkpoint)
            );
        }
        return format!(
            "is the folder of a run, not a checkpoint; go on with `--resume latest --output-dir {shown}`, or give one of its \
             checkpoints, such as {PREFIX}{newest}"
        );
    }
    let weights = ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"];
    if adapter || has("config.json") && weights.iter().any(|name| has(name)) {
        return format!("is {what}, not a checkpoint: it has no {STATE}; {instead}");
    }
    format!("is no checkpoint: it has no {STATE} of plimsoll; give the folder checkpoint-N of a run")
}

/// The step that Hugging Face's Trainer has noted in a file of the same name.
fn trainer_step(folder: &Path) -> Option<u64> {
    #[derive(Deserialize)]
    struct Trainer {
        global_step: u64,
    }
    let text = read_text(&folder.join(STATE)).ok()?;
    serde_json::from_str(&text).ok().map(|Trainer { global_step }| global_step)
}

fn newest_checkpoint(folder: &Path) -> Option<u64> {
    let entries = fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.strip_prefix(PREFIX)?.parse().ok()).max()
}
