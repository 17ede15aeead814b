//! The settings of an `adapter_config.json`, each read as its kind. Settings that are not listed here must be absent, null,
//! false or empty.

use plimsoll_graph::GraphError;
use serde_json::{Map, Value};

use super::super::{Excluded, LayerChoice, Pattern, Targets, TrainedTokens, refused};
use super::{AdapterConfigError, BaseClass, LIBRARY, PARAMETERS, TOKENS, wrong};

/// Settings of every kind that are read.
const READ: [&str; 8] = [
    "auto_mapping",
    "peft_type",
    "target_modules",
    "exclude_modules",
    "modules_to_save",
    "fan_in_fan_out",
    "base_model_name_or_path",
    "task_type",
];

/// Settings that do not change the result of an existing adapter.
const WITHOUT_EFFECT: [&str; 10] = [
    "revision",
    "inference_mode",
    "peft_version",
    "runtime_config",
    "megatron_core",
    "qalora_group_size",
    "eva_config",
    "corda_config",
    "lora_ga_config",
    "loftq_config",
];

/// The settings by name; null is as good as absent.
pub(super) struct Fields {
    pub(super) map: Map<String, Value>,
}

impl Fields {
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn must(&self, key: &str, what: &str) -> AdapterConfigError {
        let found = self.map.get(key).unwrap_or(&Value::Null);
        wrong(format!("`{key}` must be {what}, got {found}"))
    }

    /// Refuses settings that change a result and are neither those of every kind nor among `own`; `way` is the way out
    /// for adapters of this kind.
    pub(super) fn refuse_unsupported(&self, own: &[&str], way: &str) -> Result<(), AdapterConfigError> {
        // Which biases are trained decides what the file of weights holds, and many models have none.
        let biases = ["none", "all", "lora_only"];
        if self.get("bias").is_some_and(|which| which.as_str().is_none_or(|which| !biases.contains(&which))) {
            return Err(self.must("bias", "\"none\", \"all\" or \"lora_only\""));
        }
        if let Some(Value::String(begin)) = self.get("init_lora_weights")
            && let Some(why) = refused::beginning(begin)
        {
            return Err(wrong(why));
        }
        let known =
            |key: &String| [&READ, own, &WITHOUT_EFFECT].iter().any(|list| list.contains(&key.as_str()));
        match self.map.iter().find(|(key, value)| !known(key) && !is_empty(value)) {
            Some((key, value)) => Err(wrong(refused::setting(key, value, way))),
            None => Ok(()),
        }
    }

    pub(super) fn count(&self, key: &str, default: usize) -> Result<usize, AdapterConfigError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        whole(value).ok_or_else(|| self.must(key, "a whole number of at least 1"))
    }

    pub(super) fn number(&self, key: &str, default: f32) -> Result<f32, AdapterConfigError> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => float(value).ok_or_else(|| self.must(key, "a number")),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool, AdapterConfigError> {
        match self.get(key) {
            None => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| self.must(key, "true or false")),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<String>, AdapterConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(self.must(key, "a text")),
        }
    }

    pub(super) fn names(&self, key: &str) -> Result<Option<Vec<String>>, AdapterConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let text = |name: &Value| name.as_str().map(str::to_owned);
        let names = value.as_array().and_then(|names| names.iter().map(text).collect());
        names.map(Some).ok_or_else(|| self.must(key, "a list of names"))
    }

    /// Classes of other libraries say nothing here.
    pub(super) fn base_class(&self) -> Option<BaseClass> {
        let mapping = self.get("auto_mapping")?;
        let class = mapping.get("base_model_class")?.as_str()?.to_owned();
        let module = mapping.get("parent_library")?.as_str()?.strip_prefix(LIBRARY)?;
        Some(BaseClass { class, family: module.split('.').next()?.to_owned() })
    }

    pub(super) fn targets(&self) -> Result<Targets, AdapterConfigError> {
        match self.get("target_modules") {
            Some(Value::String(text)) if text.eq_ignore_ascii_case("all-linear") => Ok(Targets::AllLinear),
            Some(Value::String(text)) => Pattern::whole(text).map(Targets::Pattern).map_err(unread),
            _ => match self.names("target_modules")? {
                Some(mut names) => {
                    // PEFT writes a set, in arbitrary order.
                    names.sort();
                    Ok(Targets::Names(names))
                }
                None if !self.target_parameters()?.is_empty() => Ok(Targets::Names(Vec::new())),
                None => Err(self.must("target_modules", "a list of names, a pattern or \"all-linear\"")),
            },
        }
    }

    /// PEFT writes a set, in arbitrary order.
    pub(super) fn target_parameters(&self) -> Result<Vec<String>, AdapterConfigError> {
        let mut names = self.names(PARAMETERS)?.unwrap_or_default();
        names.sort();
        Ok(names)
    }

    pub(super) fn excluded(&self) -> Result<Excluded, AdapterConfigError> {
        match self.get("exclude_modules") {
            Some(Value::String(text)) if text.is_empty() => Ok(Excluded::default()),
            Some(Value::String(text)) => Pattern::whole(text).map(Excluded::Pattern).map_err(unread),
            _ => {
                let mut names = self.names("exclude_modules")?.unwrap_or_default();
                names.sort();
                Ok(Excluded::Names(names))
            }
        }
    }

    /// PEFT refuses a choice of layers together with targets that are not a list, and patterns without a choice.
    pub(super) fn layers(&self) -> Result<Option<LayerChoice>, AdapterConfigError> {
        let number = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
        let numbers: Option<Vec<usize>> = match self.get("layers_to_transform") {
            None => Some(Vec::new()),
            Some(Value::Array(numbers)) => numbers.iter().map(number).collect(),
            Some(one) => number(one).map(|one| vec![one]),
        };
        let numbers = numbers.ok_or_else(|| self.must("layers_to_transform", "numbers of layers"))?;
        let patterns = match self.get("layers_pattern") {
            Some(Value::String(text)) => vec![text.clone()],
            _ => self.names("layers_pattern")?.unwrap_or_default(),
        };
        let patterns: Vec<&String> = patterns.iter().filter(|text| !text.is_empty()).collect();
        if !numbers.is_empty() && self.get("target_modules").is_some_and(Value::is_string) {
            return Err(self.must("target_modules", "a list of names where `layers_to_transform` is given"));
        }
        if numbers.is_empty() && !patterns.is_empty() {
            return Err(self.must("layers_to_transform", "given where `layers_pattern` is"));
        }
        let patterns = patterns.iter().map(|text| Pattern::before_layer(text)).collect::<Result<_, _>>();
        let patterns = patterns.map_err(unread)?;
        Ok((!numbers.is_empty()).then_some(LayerChoice { numbers, patterns }))
    }

    pub(super) fn tokens(&self) -> Result<TrainedTokens, AdapterConfigError> {
        let number = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
        let numbers =
            |value: &Value| -> Option<Vec<usize>> { value.as_array()?.iter().map(number).collect() };
        let tokens = match self.get(TOKENS) {
            None => Some(TrainedTokens::None),
            Some(Value::Object(modules)) => {
                let one = |(name, rows): (&String, &Value)| Some((name.clone(), numbers(rows)?));
                modules.iter().map(one).collect::<Option<Vec<_>>>().map(TrainedTokens::Modules)
            }
            Some(rows) => numbers(rows).map(TrainedTokens::Input),
        };
        tokens.ok_or_else(|| self.must(TOKENS, "numbers of tokens, or such for each module"))
    }

    /// Patterns with a value each, in the order of the file.
    pub(super) fn patterns<T>(
        &self,
        key: &str,
        what: &str,
        read: fn(&Value) -> Option<T>,
    ) -> Result<Vec<(Pattern, T)>, AdapterConfigError> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let values = value.as_object().ok_or_else(|| self.must(key, "patterns with a number each"))?;
        let one = |(text, value): (&String, &Value)| {
            let pattern = Pattern::ending(text).map_err(unread)?;
            let value = read(value)
                .ok_or_else(|| wrong(format!("`{key}` must have {what} for `{text}`, got {value}")))?;
            Ok((pattern, value))
        };
        values.iter().map(one).collect()
    }
}

/// A rank.
pub(super) fn whole(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|rank| usize::try_from(rank).ok()).filter(|&rank| rank > 0)
}

/// An alpha.
pub(super) fn float(value: &Value) -> Option<f32> {
    value.as_f64().map(|number| number as f32).filter(|number| number.is_finite())
}

pub(super) fn unread(error: GraphError) -> AdapterConfigError {
    wrong(error.why)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::String(_) => false,
    }
}
