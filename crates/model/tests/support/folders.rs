//! Folders that transformers wrote, as text: their configurations, and the tensors of their files.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use plimsoll_model::Architecture;
use plimsoll_model::hf::{ConfigError, Configuration};
use safetensors::SafeTensors;
use serde_json::Value;

pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/hf").join(name)
}

pub(crate) fn text(name: &str) -> String {
    std::fs::read_to_string(folder(name).join("config.json")).unwrap()
}

pub(crate) fn read(name: &str) -> Configuration {
    Architecture::from_config(&text(name)).unwrap()
}

/// Names and shapes of all tensors of a folder, in however many files.
pub(crate) fn tensors(name: &str) -> BTreeMap<String, Vec<usize>> {
    let files = std::fs::read_dir(folder(name)).unwrap().map(|entry| entry.unwrap().path());
    let weights = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("model");
    let shapes =
        files.filter(weights).filter(|path| path.extension().unwrap() == "safetensors").map(|path| {
            let bytes = std::fs::read(path).unwrap();
            let tensors = SafeTensors::deserialize(&bytes).unwrap();
            tensors
                .tensors()
                .into_iter()
                .map(|(name, view)| (name, view.shape().to_vec()))
                .collect::<Vec<_>>()
        });
    shapes.flatten().collect()
}

pub(crate) fn changed(name: &str, key: &str, value: Value) -> Result<Configuration, ConfigError> {
    let mut config: Value = serde_json::from_str(&text(name)).unwrap();
    config[key] = value;
    Architecture::from_config(&config.to_string())
}
