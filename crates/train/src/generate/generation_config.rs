//! Settings of a model's `generation_config.json` for writing text: where a text ends, and how tokens are drawn.
//!
//! Keys that change nothing here (`use_cache`, `bos_token_id`) are ignored. Missing keys have the defaults of
//! transformers, which takes the likeliest token unless `do_sample` is true. Absent: beams, penalties and banned words.

use std::path::Path;

use serde_json::{Map, Value};

use super::sampling::Sampling;
use crate::files::{FileError, read_text};

/// Name of the file.
const FILE: &str = "generation_config.json";
/// The number of tokens transformers draws from where the file states none.
const USUAL_TOP_K: usize = 50;

/// The part of the file that is heeded.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationConfig {
    /// Tokens that end a text, if it names any.
    pub eos: Vec<u32>,
    /// Whether tokens are drawn at random; otherwise the likeliest is taken.
    pub do_sample: bool,
    /// Above 1 more daring, below 1 less.
    pub temperature: f32,
    /// Tokens are drawn only from this many likeliest ones; from all if absent.
    pub top_k: Option<usize>,
    /// The next token is drawn from the likeliest tokens that together have this probability.
    pub top_p: f32,
    /// Most tokens to write, if stated.
    pub max_new_tokens: Option<usize>,
}

impl GenerationConfig {
    /// Reads the file of a model's folder, if there is one.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or a value makes no sense.
    pub fn read(folder: &Path) -> Result<Option<GenerationConfig>, FileError> {
        let path = folder.join(FILE);
        if !path.exists() {
            return Ok(None);
        }
        let wrong = |why: String| FileError::wrong(&path, format!("{why}; mend the file or remove it"));
        let keys: Map<String, Value> = serde_json::from_str(&read_text(&path)?)
            .map_err(|fault| wrong(format!("is no JSON object ({fault})")))?;
        parse(&keys).map(Some).map_err(wrong)
    }

    /// The sampling of tokens. If the user states any sampling setting (`asked`), tokens are drawn at random.
    pub fn sampling(&self, asked: bool) -> Sampling {
        let GenerationConfig { temperature, top_k, top_p, .. } = *self;
        let temperature = if self.do_sample || asked { temperature } else { 0.0 };
        Sampling { temperature, top_k, top_p, ..Sampling::default() }
    }
}

fn parse(keys: &Map<String, Value>) -> Result<GenerationConfig, String> {
    let get = |key: &str| keys.get(key).filter(|value| !value.is_null());
    let wrong = |key: &str, wanted: &str| {
        let found = get(key).unwrap_or(&Value::Null);
        format!("has `{key}` = {found} where {wanted} is wanted")
    };
    let number = |key: &str, fits: fn(f64) -> bool, wanted: &str| match get(key) {
        None => Ok(1.0),
        Some(value) => {
            value.as_f64().filter(|&x| fits(x)).map(|x| x as f32).ok_or_else(|| wrong(key, wanted))
        }
    };
    let whole = |key: &str| match get(key) {
        None => Ok(None),
        Some(value) => value.as_u64().map(Some).ok_or_else(|| wrong(key, "a whole number")),
    };
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let eos = match get("eos_token_id") {
        None => Some(Vec::new()),
        Some(Value::Array(ids)) => ids.iter().map(id).collect(),
        Some(value) => id(value).map(|id| vec![id]),
    };
    Ok(GenerationConfig {
        eos: eos.ok_or_else(|| wrong("eos_token_id", "the id of a token or a list of them"))?,
        do_sample: match get("do_sample") {
            None => false,
            Some(value) => value.as_bool().ok_or_else(|| wrong("do_sample", "true or false"))?,
        },
        temperature: number("temperature", |x| x >= 0.0, "a number from 0 on")?,
        // 0 keeps all tokens, as in transformers.
        top_k: match whole("top_k")? {
            None => Some(USUAL_TOP_K),
            Some(count) => Some(count as usize).filter(|&count| count > 0),
        },
        top_p: number("top_p", |x| x > 0.0 && x <= 1.0, "a number above 0 and at most 1")?,
        max_new_tokens: whole("max_new_tokens")?.map(|count| count as usize).filter(|&count| count > 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn read(text: &str) -> Result<GenerationConfig, String> {
        let folder = Scratch::new();
        folder.write(FILE, text);
        GenerationConfig::read(folder.path()).map(Option::unwrap).map_err(|error| error.to_string())
    }

    #[test]
    fn what_the_file_says_counts_and_the_rest_is_as_in_transformers() {
        assert_eq!(GenerationConfig::read(Scratch::new().path()), Ok(None));
        let plain = read("{\"eos_token_id\": 7, \"temperature\": 0.6, \"use_cache\": true}").unwrap();
        assert_eq!((&plain.eos[..], plain.max_new_tokens), (&[7][..], None));
        let greedy = Sampling { temperature: 0.0, top_k: Some(50), ..Sampling::default() };
        assert_eq!(plain.sampling(false), greedy);
        assert_eq!(plain.sampling(true), Sampling { temperature: 0.6, ..greedy });
        let text = "{\"do_sample\": true, \"top_k\": 0, \"top_p\": 0.9, \"max_new_tokens\": 5, \"eos_token_id\": [2, 3]}";
        let drawn = read(text).unwrap();
        assert_eq!((&drawn.eos[..], drawn.max_new_tokens), (&[2, 3][..], Some(5)));
        assert_eq!(drawn.sampling(false), Sampling { top_p: 0.9, ..Sampling::default() });
    }

    #[test]
    fn values_that_make_no_sense_are_named() {
        for (text, said) in [
            ("[]", "is no JSON object"),
            ("{\"top_p\": 1.5}", "has `top_p` = 1.5 where a number above 0 and at most 1 is wanted; mend"),
            ("{\"temperature\": -1}", "has `temperature` = -1 where"),
            ("{\"top_k\": \"5\"}", "has `top_k` = \"5\" where a whole number is wanted"),
            ("{\"eos_token_id\": [1, \"a\"]}", "has `eos_token_id` = [1,\"a\"] where"),
            ("{\"do_sample\": 1}", "has `do_sample` = 1 where true or false is wanted"),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(said), "{why}");
        }
    }
}
