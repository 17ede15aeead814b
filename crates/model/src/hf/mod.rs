//! Models as the Hugging Face hub stores them: `config.json` in and out, and the names of stored tensors.
//!
//! ```
//! use plimsoll_model::Architecture;
//!
//! let text = r#"{"architectures": ["GPT2LMHeadModel"], "vocab_size": 50257, "n_positions": 1024,
//!                "n_embd": 768, "n_layer": 12, "n_head": 12, "attn_pdrop": 0.1}"#;
//! let config = Architecture::from_config(text)?;
//! assert_eq!(config.architecture.positions(), Some(1024));
//! assert_eq!(config.architecture.to_config()?["n_embd"], 768);
//! assert_eq!(config.notes.len(), 1); // dropout of attention weights is not applied
//! # Ok::<(), plimsoll_model::hf::ConfigError>(())
//! ```
//!
//! Keys that do not change the computation are ignored. Keys that do change it are either implemented or refused by key
//! and value, so that no model trains as something else than it is. Keys may be those of transformers 5
//! (`rope_parameters`, `dtype`) or of older versions (`rope_theta`, `rope_scaling`, `torch_dtype`). Absent: files
//! themselves; this module sees their text and names.

mod bert;
mod decoder;
mod error;
mod gpt2;
mod keys;
mod llama;
mod mixture;
mod names;
mod quantisation;
mod rope;

use plimsoll_graph::op::Quantised;
use serde_json::Value;

pub use error::ConfigError;
pub use names::StoredName;

use crate::Architecture;
use keys::Keys;

/// The contents of a `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    /// The model.
    pub architecture: Architecture,
    /// Its `model_type`, where a file was read: equal shapes may be of different families.
    pub family: Option<&'static str>,
    /// Stated element type of the stored weights, such as `bfloat16`.
    pub dtype: Option<String>,
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// Tokens that end one; some models have several.
    pub eos: Vec<u32>,
    /// The token that fills up rows.
    pub pad: Option<u32>,
    /// Names of a classifier's labels, by their number.
    pub labels: Vec<String>,
    /// The form of the linear layers' weights, where they are stored in few bits.
    pub quantised: Option<Quantised>,
    /// Requests of the file that training ignores, a sentence each.
    pub notes: Vec<String>,
}

/// Reads the configuration of one class of the library transformers, and adds to the notes what training ignores of
/// it.
type Read = fn(&Keys, &mut Vec<String>) -> Result<Architecture, ConfigError>;

/// The name of a class, its `model_type`, and the function that reads it.
type Class = (&'static str, &'static str, Read);

/// If a file names no class, the first class of its type is meant.
const CLASSES: [Class; 13] = [
    ("LlamaForCausalLM", "llama", llama::llama),
    ("MistralForCausalLM", "mistral", llama::mistral),
    ("Qwen2ForCausalLM", "qwen2", llama::qwen2),
    ("Qwen3ForCausalLM", "qwen3", llama::qwen3),
    ("MixtralForCausalLM", "mixtral", mixture::mixtral),
    ("Qwen2MoeForCausalLM", "qwen2_moe", mixture::qwen2),
    ("Qwen3MoeForCausalLM", "qwen3_moe", mixture::qwen3),
    ("OlmoeForCausalLM", "olmoe", mixture::olmoe),
    ("GPT2LMHeadModel", "gpt2", gpt2::read),
    ("BertForMaskedLM", "bert", bert::masked),
    ("BertForSequenceClassification", "bert", bert::classifier),
    // The published weights of the first BERT: its next-sentence head is ignored.
    ("BertForPreTraining", "bert", bert::masked),
    // Older files of GPT-2.
    ("GPT2Model", "gpt2", gpt2::read),
];

impl Architecture {
    /// Reads a `config.json`.
    ///
    /// # Errors
    ///
    /// When it is no JSON, names a model that is not known (the error lists those that are), lacks a key, or
    /// has a setting that is not supported.
    pub fn from_config(text: &str) -> Result<Configuration, ConfigError> {
        let value = serde_json::from_str(text).map_err(|error| ConfigError::NotJson(error.to_string()))?;
        let Value::Object(object) = value else {
            return Err(ConfigError::NotJson("it holds no object in braces".into()));
        };
        let keys = Keys::new(&object);
        let (_, family, read) = class_of(&keys)?;
        let quantised = quantisation::read(&keys)?;
        let mut notes = Vec::new();
        let architecture = read(&keys, &mut notes)?;
        let dtype = keys.text("dtype")?.or(keys.text("torch_dtype")?);
        Ok(Configuration {
            labels: if architecture.labels().is_some() { bert::label_names(&keys) } else { Vec::new() },
            architecture,
            family: Some(family),
            dtype: dtype.map(str::to_owned),
            bos: keys.token("bos_token_id")?,
            eos: keys.tokens("eos_token_id")?,
            pad: keys.token("pad_token_id")?,
            quantised,
            notes,
        })
    }

    /// The `config.json` of this model if only its shape is known: see [`Configuration::to_config`].
    ///
    /// # Errors
    ///
    /// When no class of transformers computes this model.
    pub fn to_config(&self) -> Result<Value, ConfigError> {
        Configuration::from(self.clone()).to_config()
    }
}

impl Configuration {
    /// The `config.json` as transformers 5 writes it, without the keys that change nothing. A Llama without
    /// stated positions is given 2048.
    ///
    /// # Errors
    ///
    /// When no class of transformers computes this model.
    pub fn to_config(&self) -> Result<Value, ConfigError> {
        let mut config = match &self.architecture {
            Architecture::Llama(model) => llama::write(model)?,
            Architecture::Gpt2(model) => gpt2::write(model),
            Architecture::Bert(model) => bert::write(model, &self.labels),
        };
        let eos = match self.eos[..] {
            [] => Value::Null,
            [only] => only.into(),
            _ => self.eos.clone().into(),
        };
        if let Value::Object(config) = &mut config {
            // Written even where there is none: transformers would assume the ids of the first such model.
            config.insert("bos_token_id".into(), self.bos.into());
            config.insert("eos_token_id".into(), eos);
            config.insert("pad_token_id".into(), self.pad.into());
            if let Some(dtype) = &self.dtype {
                config.insert("dtype".into(), dtype.as_str().into());
            }
            config.sort_keys();
        }
        Ok(config)
    }

    /// The class of transformers that computes this model, where its family is known.
    pub fn class(&self) -> Option<&'static str> {
        let sorts = |class: &str| class.ends_with("ForSequenceClassification");
        let fits = |(class, family, _): &&Class| {
            Some(*family) == self.family && sorts(class) == self.architecture.labels().is_some()
        };
        CLASSES.iter().find(fits).map(|(class, ..)| *class)
    }
}

impl From<Architecture> for Configuration {
    /// A model of which only the shape is known.
    fn from(architecture: Architecture) -> Configuration {
        Configuration {
            architecture,
            family: None,
            dtype: None,
            bos: None,
            eos: Vec::new(),
            pad: None,
            labels: Vec::new(),
            quantised: None,
            notes: Vec::new(),
        }
    }
}

fn class_of(keys: &Keys) -> Result<Class, ConfigError> {
    let classes = keys.texts("architectures")?;
    let named = |name: &str| CLASSES.iter().find(|(class, ..)| *class == name);
    if let Some(class) = classes.iter().find_map(|name| named(name)) {
        return Ok(*class);
    }
    let kind = keys.text("model_type")?;
    let of_kind = || CLASSES.iter().find(|(_, known, _)| Some(*known) == kind);
    match (classes.first(), of_kind()) {
        (None, Some(class)) => Ok(*class),
        (Some(name), _) => Err(ConfigError::Unsupported((*name).to_owned())),
        (None, None) => match kind {
            Some(kind) => Err(ConfigError::Unsupported(kind.to_owned())),
            None => Err(ConfigError::Missing("architectures".into())),
        },
    }
}

/// Names of the classes that can be read.
fn supported() -> String {
    CLASSES.map(|(class, ..)| class).join(", ")
}
