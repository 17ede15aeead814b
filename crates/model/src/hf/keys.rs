//! Typed reading of a JSON object: every refusal names the key, its value and the allowed values.
//!
//! A key that is `null` counts as absent, as it does in transformers.

use serde_json::{Map, Value};

use super::ConfigError;

/// More than any published extent; products of two stay far from the end of 64 bits.
const MOST: u64 = 1 << 24;

/// More than any published depth.
const MOST_LAYERS: usize = 4096;

/// The keys of one object.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    object: &'a Map<String, Value>,
    /// Prefix of a key in messages.
    prefix: &'a str,
}

impl<'a> Keys<'a> {
    pub(super) fn new(object: &'a Map<String, Value>) -> Keys<'a> {
        Keys { object, prefix: "" }
    }

    /// The value of a key, unless it is absent.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// Whether the key is there at all, `null` included.
    pub(super) fn mentions(&self, key: &str) -> bool {
        self.object.contains_key(key)
    }

    /// Whether there is no key at all.
    pub(super) fn is_empty(&self) -> bool {
        self.object.is_empty()
    }

    /// The object under a key.
    pub(super) fn object(&self, key: &'a str) -> Result<Option<Keys<'a>>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(Keys { object, prefix: key })),
            Some(_) => Err(self.wrong(key, "an object")),
        }
    }

    /// A whole number from 1 on.
    pub(super) fn optional_count(&self, key: &str) -> Result<Option<usize>, ConfigError> {
        let count = |value: &Value| match value.as_u64() {
            Some(count @ 1..=MOST) => Ok(count as usize),
            _ => Err(self.wrong(key, &format!("a whole number from 1 to {MOST}"))),
        };
        self.get(key).map(count).transpose()
    }

    /// Layers, each of which becomes part of the graph.
    pub(super) fn layers(&self, key: &str) -> Result<usize, ConfigError> {
        let layers = self.count(key)?;
        if layers <= MOST_LAYERS {
            return Ok(layers);
        }
        Err(self.wrong(key, &format!("a whole number from 1 to {MOST_LAYERS}")))
    }

    pub(super) fn count(&self, key: &str) -> Result<usize, ConfigError> {
        self.optional_count(key)?.ok_or_else(|| self.missing(key))
    }

    /// A count that divides `whole`, the value of the key `of`.
    pub(super) fn divisor(&self, key: &str, of: &str, whole: usize) -> Result<usize, ConfigError> {
        let count = self.count(key)?;
        if whole.is_multiple_of(count) {
            return Ok(count);
        }
        Err(self.wrong(key, &format!("a divisor of `{of}`, which is {whole}")))
    }

    pub(super) fn number(&self, key: &str) -> Result<f64, ConfigError> {
        self.optional_number(key)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn optional_number(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        let number = |value: &Value| value.as_f64().ok_or_else(|| self.wrong(key, "a number"));
        self.get(key).map(number).transpose()
    }

    /// A number above 0.
    pub(super) fn positive(&self, key: &str, default: f64) -> Result<f64, ConfigError> {
        match self.optional_number(key)? {
            None => Ok(default),
            Some(number) if number > 0.0 => Ok(number),
            Some(_) => Err(self.wrong(key, "a number above 0")),
        }
    }

    /// A probability of dropout.
    pub(super) fn probability(&self, key: &str, default: f32) -> Result<f32, ConfigError> {
        match self.optional_number(key)? {
            None => Ok(default),
            Some(p) if (0.0..1.0).contains(&p) => Ok(p as f32),
            Some(_) => Err(self.wrong(key, "a number from 0 up to 1")),
        }
    }

    pub(super) fn flag(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.wrong(key, "true or false")),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, ConfigError> {
        self.get(key).map(|value| value.as_str().ok_or_else(|| self.wrong(key, "a text"))).transpose()
    }

    /// A list of texts, empty when absent.
    pub(super) fn texts(&self, key: &str) -> Result<Vec<&'a str>, ConfigError> {
        let wrong = || self.wrong(key, "a list of texts");
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let list = value.as_array().ok_or_else(wrong)?;
        list.iter().map(|text| text.as_str().ok_or_else(wrong)).collect()
    }

    /// A list of whole numbers, empty when absent.
    pub(super) fn numbers(&self, key: &str) -> Result<Vec<usize>, ConfigError> {
        let wrong = || self.wrong(key, "a list of whole numbers");
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let list = value.as_array().ok_or_else(wrong)?;
        list.iter().map(|number| number.as_u64().map(|number| number as usize).ok_or_else(wrong)).collect()
    }

    pub(super) fn token(&self, key: &str) -> Result<Option<u32>, ConfigError> {
        Ok(self.tokens(key)?.first().copied())
    }

    /// A token or a list of them. Some old files write −1 for none.
    pub(super) fn tokens(&self, key: &str) -> Result<Vec<u32>, ConfigError> {
        let wrong = || self.wrong(key, "the id of a token or a list of them");
        let id = |value: &Value| match value.as_i64() {
            Some(-1) => Ok(None),
            Some(id) => u32::try_from(id).map(Some).map_err(|_| wrong()),
            None => Err(wrong()),
        };
        let ids: Result<Vec<Option<u32>>, ConfigError> = match self.get(key) {
            None => return Ok(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(id).collect(),
            Some(value) => id(value).map(|id| vec![id]),
        };
        Ok(ids?.into_iter().flatten().collect())
    }

    /// Refuses any text except those in `allowed`; an absent key means `default`.
    pub(super) fn one_of(&self, key: &str, default: &str, allowed: &[&str]) -> Result<(), ConfigError> {
        if allowed.contains(&self.text(key)?.unwrap_or(default)) {
            return Ok(());
        }
        Err(self.wrong(key, &allowed.join(" or ")))
    }

    /// Refuses any flag except `wanted`; an absent key means `wanted`.
    pub(super) fn must_be(&self, key: &str, wanted: bool) -> Result<(), ConfigError> {
        if self.flag(key, wanted)? == wanted {
            return Ok(());
        }
        Err(self.wrong(key, if wanted { "true" } else { "false" }))
    }

    /// Refuses a key that changes what is computed, whatever its value.
    pub(super) fn must_be_absent(&self, key: &str, wanted: &str) -> Result<(), ConfigError> {
        if self.get(key).is_none() { Ok(()) } else { Err(self.wrong(key, wanted)) }
    }

    /// A refusal of the key's value.
    pub(super) fn wrong(&self, key: &str, wanted: &str) -> ConfigError {
        let value = self.object.get(key).map_or_else(|| "absent".to_owned(), ToString::to_string);
        ConfigError::Wrong { key: self.path(key), value, wanted: wanted.to_owned() }
    }

    fn missing(&self, key: &str) -> ConfigError {
        ConfigError::Missing(self.path(key))
    }

    fn path(&self, key: &str) -> String {
        if self.prefix.is_empty() { key.to_owned() } else { format!("{}.{key}", self.prefix) }
    }
}

/// A number as people write it: 1e-6 and not the nearest f32 in all its digits.
pub(super) fn decimal(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}
