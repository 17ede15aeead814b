//! Models that read bytes and so have no `tokenizer.json`.

use std::path::Path;

use serde_json::Value;

use super::read_text;

/// The mark in the `config.json` of a model that reads bytes. Only plimsoll writes it: any other model without a
/// `tokenizer.json` has lost it, and bytes would be noise to that model.
pub(crate) const TOKENS: (&str, &str) = ("plimsoll_tokenizer", "bytes");

/// Whether a folder is of a model that reads bytes. Faults of its files are reported elsewhere.
pub(crate) fn reads_bytes(folder: &Path) -> bool {
    let config = || serde_json::from_str::<Value>(&read_text(&folder.join("config.json")).ok()?).ok();
    !folder.join("tokenizer.json").exists() && config().is_some_and(|config| config[TOKENS.0] == TOKENS.1)
}
