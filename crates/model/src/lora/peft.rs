//! Adapters as the library PEFT writes them down: `adapter_config.json`, and the names in
//! `adapter_model.safetensors`.
//!
//! A setting that changes what an adapter computes and that is not known here is refused by name, also one that
//! only later versions have: whatever is not listed below must be absent, null, false or empty.

use std::fmt;

use serde_json::{Map, Value, json};

use super::{Lora, Targets};

/// What stands before the name of a parameter in an adapter file.
const PREFIX: &str = "base_model.model.";

/// What stands before the family in the name of the module that a class is from.
const LIBRARY: &str = "transformers.models.";

/// The name of a parameter in an adapter file.
pub fn file_name(parameter: &str) -> String {
    format!("{PREFIX}{parameter}")
}

/// The parameter that a name in an adapter file means, if it is one.
pub fn parameter_name(file_name: &str) -> Option<&str> {
    file_name.strip_prefix(PREFIX)
}

/// What `adapter_config.json` says.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterConfig {
    /// The adapters.
    pub lora: Lora,
    /// Name or folder of the model they belong to.
    pub base_model: Option<String>,
    /// `CAUSAL_LM` and the like.
    pub task: Option<String>,
    /// Whether the model stores its weights `(in, out)`, as GPT-2 does.
    pub fan_in_fan_out: bool,
    /// Which kind of model they belong to.
    pub base_class: Option<BaseClass>,
}

/// A class of transformers; PEFT's `auto_mapping`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseClass {
    /// Its name, such as `BertForMaskedLM`.
    pub class: String,
    /// The `model_type` of its models, such as `bert`.
    pub family: String,
}

/// Why an `adapter_config.json` cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterConfigError(String);

impl fmt::Display for AdapterConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "adapter_config.json: {}", self.0)
    }
}

impl std::error::Error for AdapterConfigError {}

/// Settings that are read below.
const READ: [&str; 13] = [
    "auto_mapping",
    "peft_type",
    "r",
    "lora_alpha",
    "lora_dropout",
    "use_rslora",
    "target_modules",
    "modules_to_save",
    "bias",
    "fan_in_fan_out",
    "base_model_name_or_path",
    "task_type",
    "init_lora_weights",
];

/// Settings that say nothing about what an adapter that is there computes.
const WITHOUT_EFFECT: [&str; 11] = [
    "revision",
    "inference_mode",
    "peft_version",
    "runtime_config",
    "megatron_core",
    "megatron_config",
    "qalora_group_size",
    "eva_config",
    "corda_config",
    "lora_ga_config",
    "loftq_config",
];

/// Ways to begin that leave the model's own weights as they are; others move a part of them into the adapter.
const BEGINNINGS: [&str; 3] = ["gaussian", "orthogonal", "eva"];

impl AdapterConfig {
    /// Reads the text of the file.
    ///
    /// # Errors
    ///
    /// When it is no JSON object, is about no `LoRA`, or has a setting that is not supported; the error names it.
    pub fn from_json(text: &str) -> Result<AdapterConfig, AdapterConfigError> {
        let map: Map<String, Value> = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let fields = Fields { map };
        match fields.text("peft_type")?.as_deref() {
            Some("LORA") => {}
            other => {
                let other = other.unwrap_or("missing");
                return Err(wrong(format!("`peft_type` is {other}; only LORA is supported")));
            }
        }
        fields.refuse_unsupported()?;
        let lora = Lora {
            rank: fields.rank()?,
            alpha: fields.number("lora_alpha", 8.0)?,
            dropout: fields.number("lora_dropout", 0.0)?,
            rslora: fields.flag("use_rslora")?,
            targets: fields.targets()?,
            modules_to_save: fields.names("modules_to_save")?.unwrap_or_default(),
        };
        Ok(AdapterConfig {
            lora,
            base_model: fields.text("base_model_name_or_path")?,
            task: fields.text("task_type")?,
            fan_in_fan_out: fields.flag("fan_in_fan_out")?,
            base_class: fields.base_class(),
        })
    }

    /// The text of the file.
    pub fn to_json(&self) -> String {
        let lora = &self.lora;
        let targets = match &lora.targets {
            Targets::AllLinear => json!("all-linear"),
            Targets::Names(names) => json!(names),
        };
        let saved = if lora.modules_to_save.is_empty() { Value::Null } else { json!(lora.modules_to_save) };
        // PEFT's own files have whole numbers here, and some readers expect them.
        let whole = lora.alpha.fract() == 0.0 && lora.alpha.abs() < 1e9;
        let alpha = if whole { json!(lora.alpha as i64) } else { json!(shortest(lora.alpha)) };
        let base_class = self.base_class.as_ref().map(|BaseClass { class, family }| {
            json!({
                "base_model_class": class,
                "parent_library": format!("{LIBRARY}{family}.modeling_{family}"),
            })
        });
        let config = json!({
            "auto_mapping": base_class,
            "base_model_name_or_path": self.base_model,
            "bias": "none",
            "fan_in_fan_out": self.fan_in_fan_out,
            "inference_mode": true,
            "init_lora_weights": true,
            "lora_alpha": alpha,
            "lora_dropout": shortest(lora.dropout),
            "modules_to_save": saved,
            "peft_type": "LORA",
            "r": lora.rank,
            "target_modules": targets,
            "task_type": self.task,
            "use_dora": false,
            "use_rslora": lora.rslora,
        });
        format!("{config:#}\n")
    }
}

/// The double with the fewest digits that is this float: 0.1, not 0.10000000149.
fn shortest(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

fn wrong(why: String) -> AdapterConfigError {
    AdapterConfigError(why)
}

/// The settings by name; null is as good as absent.
struct Fields {
    map: Map<String, Value>,
}

impl Fields {
    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn must(&self, key: &str, what: &str) -> AdapterConfigError {
        let found = self.map.get(key).unwrap_or(&Value::Null);
        wrong(format!("`{key}` must be {what}, got {found}"))
    }

    fn refuse_unsupported(&self) -> Result<(), AdapterConfigError> {
        if self.get("bias").is_some_and(|bias| bias != "none") {
            return Err(self.must("bias", "\"none\"; trained biases are not supported"));
        }
        if let Some(Value::String(begin)) = self.get("init_lora_weights")
            && !BEGINNINGS.contains(&begin.as_str())
        {
            return Err(wrong(format!(
                "`init_lora_weights` is {begin}, which changes the model's own weights; convert the adapter to a \
                 plain one with PEFT first"
            )));
        }
        let known = |key: &String| READ.contains(&key.as_str()) || WITHOUT_EFFECT.contains(&key.as_str());
        match self.map.iter().find(|(key, value)| !known(key) && !is_empty(value)) {
            Some((key, value)) => {
                Err(wrong(format!("`{key}` is set to {value}, which is not supported; leave it out")))
            }
            None => Ok(()),
        }
    }

    fn rank(&self) -> Result<usize, AdapterConfigError> {
        let Some(value) = self.get("r") else { return Ok(8) };
        let rank = value.as_u64().and_then(|rank| usize::try_from(rank).ok()).filter(|&rank| rank > 0);
        rank.ok_or_else(|| self.must("r", "a whole number of at least 1"))
    }

    fn number(&self, key: &str, default: f32) -> Result<f32, AdapterConfigError> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.as_f64().map(|x| x as f32).ok_or_else(|| self.must(key, "a number")),
        }
    }

    fn flag(&self, key: &str) -> Result<bool, AdapterConfigError> {
        match self.get(key) {
            None => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| self.must(key, "true or false")),
        }
    }

    fn text(&self, key: &str) -> Result<Option<String>, AdapterConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(self.must(key, "a text")),
        }
    }

    fn names(&self, key: &str) -> Result<Option<Vec<String>>, AdapterConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let text = |name: &Value| name.as_str().map(str::to_owned);
        let names = value.as_array().and_then(|names| names.iter().map(text).collect());
        names.map(Some).ok_or_else(|| self.must(key, "a list of names"))
    }

    /// Classes of other libraries say nothing here.
    fn base_class(&self) -> Option<BaseClass> {
        let mapping = self.get("auto_mapping")?;
        let class = mapping.get("base_model_class")?.as_str()?.to_owned();
        let module = mapping.get("parent_library")?.as_str()?.strip_prefix(LIBRARY)?;
        Some(BaseClass { class, family: module.split('.').next()?.to_owned() })
    }

    fn targets(&self) -> Result<Targets, AdapterConfigError> {
        match self.get("target_modules") {
            Some(Value::String(text)) if text.eq_ignore_ascii_case("all-linear") => Ok(Targets::AllLinear),
            Some(Value::String(pattern)) => Err(wrong(format!(
                "`target_modules` is the pattern \"{pattern}\"; write a list of names or \"all-linear\""
            ))),
            _ => match self.names("target_modules")? {
                Some(mut names) => {
                    // PEFT writes a set, in whatever order.
                    names.sort();
                    Ok(Targets::Names(names))
                }
                None => Err(self.must("target_modules", "a list of names or \"all-linear\"")),
            },
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let lora = Lora {
            rank: 4,
            alpha: 12.5,
            dropout: 0.1,
            rslora: true,
            targets: Targets::Names(vec!["k_proj".into(), "q_proj".into()]),
            modules_to_save: vec!["lm_head".into()],
        };
        let config = AdapterConfig {
            lora,
            base_model: Some("models/base".into()),
            task: Some("CAUSAL_LM".into()),
            fan_in_fan_out: false,
            base_class: Some(BaseClass { class: "LlamaForCausalLM".into(), family: "llama".into() }),
        };
        assert_eq!(AdapterConfig::from_json(&config.to_json()).unwrap(), config);
        assert!(config.to_json().contains("\"lora_dropout\": 0.1,"), "{}", config.to_json());
        let plain =
            AdapterConfig { lora: Lora::default(), base_model: None, task: None, base_class: None, ..config };
        assert_eq!(AdapterConfig::from_json(&plain.to_json()).unwrap(), plain);
        assert!(plain.to_json().contains("\"lora_alpha\": 8,"));
    }

    fn fault(settings: &str) -> String {
        let text = format!(r#"{{"peft_type": "LORA", "target_modules": ["q_proj"], {settings}}}"#);
        AdapterConfig::from_json(&text).unwrap_err().to_string()
    }

    #[test]
    fn settings_that_are_not_supported_are_named() {
        let cases = [
            (r#""use_dora": true"#, "`use_dora` is set to true, which is not supported; leave it out"),
            (
                r#""layers_to_transform": [1]"#,
                "`layers_to_transform` is set to [1], which is not supported; leave it out",
            ),
            (
                r#""rank_pattern": {"q_proj": 2}"#,
                "`rank_pattern` is set to {\"q_proj\":2}, which is not supported; leave it out",
            ),
            (r#""of_next_year": 3"#, "`of_next_year` is set to 3, which is not supported; leave it out"),
            (r#""bias": "all""#, "`bias` must be \"none\"; trained biases are not supported, got \"all\""),
            (r#""r": 0"#, "`r` must be a whole number of at least 1, got 0"),
            (r#""lora_alpha": "much""#, "`lora_alpha` must be a number, got \"much\""),
            (
                r#""target_modules": ".*_proj""#,
                "`target_modules` is the pattern \".*_proj\"; write a list of names or \"all-linear\"",
            ),
        ];
        for (settings, expected) in cases {
            assert_eq!(fault(settings), format!("adapter_config.json: {expected}"));
        }
        let error = AdapterConfig::from_json(r#"{"peft_type": "IA3"}"#).unwrap_err().to_string();
        assert_eq!(error, "adapter_config.json: `peft_type` is IA3; only LORA is supported");
        assert!(fault(r#""init_lora_weights": "pissa""#).contains("changes the model's own weights"));
    }
}
