//! The files beside a `tokenizer.json`: special tokens and chat templates.
//!
//! `tokenizer_config.json` states both; `special_tokens_map.json` and `chat_template.jinja` hold them in other versions of
//! transformers. Of several chat templates one may be for conversations with tools.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::Value as Json;

use super::super::DataError;
use super::super::template::ChatTemplate;
use crate::files::{MORE_TEMPLATES, read_bytes};

/// `tokenizer_config.json` and, behind it, `special_tokens_map.json`.
pub(super) struct Settings(Vec<Json>);

impl Settings {
    pub(super) fn read(folder: &Path) -> Result<Settings, DataError> {
        let mut found = Vec::new();
        for name in ["tokenizer_config.json", "special_tokens_map.json"] {
            let path = folder.join(name);
            if let Some(bytes) = read(&path)? {
                let wrong = |fault: serde_json::Error| DataError::Tokenizer { path, why: fault.to_string() };
                found.push(serde_json::from_slice(&bytes).map_err(wrong)?);
            }
        }
        Ok(Settings(found))
    }

    /// The token of that name, which is a text or an object with one.
    fn token(&self, name: &str) -> Option<&str> {
        let value = self.0.iter().map(|file| &file[name]).find(|value| !value.is_null())?;
        value.as_str().or_else(|| value["content"].as_str())
    }

    pub(super) fn id(&self, inner: &tokenizers::Tokenizer, name: &str) -> Result<Option<i32>, DataError> {
        let Some(token) = self.token(name) else { return Ok(usual(inner, name)) };
        match inner.token_to_id(token) {
            Some(id) => Ok(Some(id as i32)),
            None => Err(DataError::Tokenizer {
                path: "tokenizer_config.json".into(),
                why: format!("its {name} `{token}` is not in tokenizer.json"),
            }),
        }
    }

    pub(super) fn template(&self, folder: &Path) -> Result<Option<ChatTemplate>, DataError> {
        if let Some(template) = self.of_file(&folder.join("chat_template.jinja"))? {
            return Ok(Some(template));
        }
        let inside = self.0.iter().map(|file| &file["chat_template"]).find(|value| !value.is_null());
        let Some(source) = inside.and_then(default_template) else { return Ok(None) };
        let path = folder.join("tokenizer_config.json");
        ChatTemplate::of_file(&source, self.special_tokens(), &path).map(Some)
    }

    /// The template in a file of its own, if there is such a file.
    fn of_file(&self, path: &Path) -> Result<Option<ChatTemplate>, DataError> {
        if let Ok(found) = fs::metadata(path) {
            ChatTemplate::check_size(found.len())
                .map_err(|why| DataError::Template { path: Some(path.to_owned()), why })?;
        }
        let Some(bytes) = read(path)? else { return Ok(None) };
        let source = String::from_utf8_lossy(&bytes);
        ChatTemplate::of_file(&source, self.special_tokens(), path).map(Some)
    }

    /// The template called `tool_use` among several, in a file of its own or in a list. A fault of it is told once a
    /// conversation needs it.
    pub(super) fn tool_template(&self, folder: &Path) -> Option<Result<ChatTemplate, DataError>> {
        let file = folder.join(MORE_TEMPLATES).join("tool_use.jinja");
        if let Some(found) = self.of_file(&file).transpose() {
            return Some(found);
        }
        if folder.join("chat_template.jinja").is_file() {
            return None;
        }
        let templates = self.0.iter().find_map(|file| file["chat_template"].as_array())?;
        let source = templates.iter().find(|entry| entry["name"] == "tool_use")?["template"].as_str()?;
        let path = folder.join("tokenizer_config.json");
        Some(ChatTemplate::of_file(source, self.special_tokens(), &path))
    }

    /// Special tokens under the names that templates know them by.
    fn special_tokens(&self) -> Vec<(String, String)> {
        let names =
            ["bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token", "mask_token"];
        names.into_iter().filter_map(|name| Some((name.into(), self.token(name)?.into()))).collect()
    }
}

/// The id of a special token that no file names, found by its usual spelling in the vocabulary. transformers knows that
/// spelling from the tokenizer's class.
fn usual(inner: &tokenizers::Tokenizer, name: &str) -> Option<i32> {
    let names: &[&str] = match name {
        "bos_token" => &["<s>", "<|begin_of_text|>"],
        "eos_token" => &["</s>", "<|end_of_text|>", "<|endoftext|>"],
        "pad_token" => &["[PAD]", "<pad>"],
        "mask_token" => &["[MASK]", "<mask>"],
        _ => &[],
    };
    names.iter().find_map(|name| inner.token_to_id(name)).map(|id| id as i32)
}

/// The template itself, or the one called `default` of several.
fn default_template(value: &Json) -> Option<String> {
    let listed = |value: &Json| {
        let templates = value.as_array()?;
        let named = templates.iter().find(|entry| entry["name"] == "default");
        named.or(templates.first())?["template"].as_str().map(str::to_owned)
    };
    value.as_str().map(str::to_owned).or_else(|| listed(value))
}

/// A file's bytes, or `None` when there is no such file.
fn read(path: &Path) -> Result<Option<Vec<u8>>, DataError> {
    found(path, read_bytes(path))
}

/// The content of a file, or `None` when there is no such file.
pub(super) fn found<T>(path: &Path, read: io::Result<T>) -> Result<Option<T>, DataError> {
    match read {
        Ok(content) => Ok(Some(content)),
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(fault) => Err(DataError::reading(path, &fault)),
    }
}
