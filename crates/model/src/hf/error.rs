//! Why a `config.json` cannot be read, or a model not be written as one.

use std::fmt;

/// The fault, in a sentence that names the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The text is no JSON object.
    NotJson(String),
    /// The class or model type is unknown.
    Unsupported(String),
    /// The key is missing.
    Missing(String),
    /// A key has a value that is not supported.
    Wrong {
        /// The key, dotted where objects nest.
        key: String,
        /// The key's value, as JSON.
        value: String,
        /// Values that are allowed.
        wanted: String,
    },
    /// No class of transformers computes this model.
    Unwritable(String),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::NotJson(why) => write!(f, "config.json cannot be read: {why}"),
            ConfigError::Unsupported(class) => write!(
                f,
                "config.json describes a `{class}`, which cannot be trained here; supported are {}",
                super::supported()
            ),
            ConfigError::Missing(key) => write!(f, "config.json has no `{key}`"),
            ConfigError::Wrong { key, value, wanted } => {
                write!(f, "config.json: `{key}` is {value}, which is not supported; it may be {wanted}")
            }
            ConfigError::Unwritable(why) => write!(f, "no config.json can describe this model: {why}"),
        }
    }
}

impl std::error::Error for ConfigError {}
