//! Adapters as the library PEFT stores them: `adapter_config.json`, and the names in `adapter_model.safetensors`.
//!
//! A setting that changes the computation of an adapter and is unknown here is refused by name, even one that only
//! later versions have: see `fields.rs`, which reads them one by one.

mod fields;
mod kinds;

use std::fmt;

use serde_json::{Map, Value, json};

use super::layers::peft_name;
use super::{Excluded, LayerChoice, Lora, Pattern, Targets, TrainedTokens, intrinsic, prompt};
use fields::Fields;

/// Prefix of a parameter's name in an adapter file.
const PREFIX: &str = "base_model.model.";

/// Prefix of the family in the name of a class's module.
const LIBRARY: &str = "transformers.models.";

/// The name of a parameter in an adapter file.
pub fn file_name(parameter: &str) -> String {
    if has_own_name(parameter) {
        return parameter.to_owned();
    }
    format!("{PREFIX}{}", peft_name(parameter))
}

/// The parameter that a name in an adapter file means, if it is one.
pub fn parameter_name(file_name: &str) -> Option<&str> {
    if has_own_name(file_name) { Some(file_name) } else { file_name.strip_prefix(PREFIX) }
}

/// Whether a parameter belongs to no module, and has its own name in files.
fn has_own_name(parameter: &str) -> bool {
    parameter == prompt::PARAMETER || intrinsic::is_coordinates(parameter)
}

/// The contents of `adapter_config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterConfig {
    /// The adapters.
    pub lora: Lora,
    /// Name or folder of the model that the adapters belong to.
    pub base_model: Option<String>,
    /// `CAUSAL_LM` and the like.
    pub task: Option<String>,
    /// Whether the model stores its weights `(in, out)`, as GPT-2 does.
    pub fan_in_fan_out: bool,
    /// The class of model that the adapters belong to.
    pub base_class: Option<BaseClass>,
    /// Whether an adapter of a weight that is embedding and output head at once is one adapter of both.
    pub ties: bool,
}

/// A class of transformers; PEFT's `auto_mapping`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseClass {
    /// The name of the model's class, such as `BertForMaskedLM`.
    pub class: String,
    /// The `model_type` of such models, such as `bert`.
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

/// The setting of trained tokens.
const TOKENS: &str = "trainable_token_indices";
/// The setting of adapters that embedding and output head share.
const TIES: &str = "ensure_weight_tying";
/// The setting of target parameters.
const PARAMETERS: &str = "target_parameters";

impl AdapterConfig {
    /// Reads the text of the file.
    ///
    /// # Errors
    ///
    /// When it is no JSON object, is about no `LoRA`, or has a setting that is not supported; the error names it.
    pub fn from_json(text: &str) -> Result<AdapterConfig, AdapterConfigError> {
        let map: Map<String, Value> = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let fields = Fields { map };
        Ok(AdapterConfig {
            lora: kinds::read(&fields)?,
            base_model: fields.text("base_model_name_or_path")?,
            task: fields.text("task_type")?,
            fan_in_fan_out: fields.flag("fan_in_fan_out")?,
            base_class: fields.base_class(),
            ties: fields.flag(TIES)?,
        })
    }

    /// The text of the file.
    pub fn to_json(&self) -> String {
        let lora = &self.lora;
        let targets = match &lora.targets {
            Targets::AllLinear => json!("all-linear"),
            Targets::Names(names) => json!(names),
            Targets::Pattern(pattern) => json!(pattern.text()),
        };
        let saved = if lora.modules_to_save.is_empty() { Value::Null } else { json!(lora.modules_to_save) };
        let base_class = self.base_class.as_ref().map(|BaseClass { class, family }| {
            json!({
                "base_model_class": class,
                "parent_library": format!("{LIBRARY}{family}.modeling_{family}"),
            })
        });
        let mut config = json!({
            "auto_mapping": base_class,
            "base_model_name_or_path": self.base_model,
            "inference_mode": true,
            "peft_type": lora.kind.peft_type(),
            "task_type": self.task,
        });
        if let Value::Object(config) = &mut config {
            config.extend(kinds::settings(lora));
            if lora.kind.has_modules() {
                config.insert("fan_in_fan_out".into(), json!(self.fan_in_fan_out));
                config.insert("modules_to_save".into(), saved);
                config.insert("target_modules".into(), targets);
                config.extend(chosen(lora));
                if self.ties {
                    config.insert(TIES.into(), json!(true));
                }
            } else if !lora.modules_to_save.is_empty() {
                config.insert("modules_to_save".into(), saved);
            }
        }
        format!("{config:#}\n")
    }
}

/// Settings that most adapters have not.
fn chosen(lora: &Lora) -> Map<String, Value> {
    let mut chosen = Map::new();
    if !lora.target_parameters.is_empty() {
        chosen.insert(PARAMETERS.into(), json!(lora.target_parameters));
    }
    match &lora.excluded {
        Excluded::Names(names) if names.is_empty() => {}
        Excluded::Names(names) => drop(chosen.insert("exclude_modules".into(), json!(names))),
        Excluded::Pattern(pattern) => drop(chosen.insert("exclude_modules".into(), json!(pattern.text()))),
    }
    if let Some(LayerChoice { numbers, patterns }) = &lora.layers {
        chosen.insert("layers_to_transform".into(), json!(numbers));
        let patterns: Vec<&str> = patterns.iter().map(Pattern::text).collect();
        if !patterns.is_empty() {
            chosen.insert("layers_pattern".into(), json!(patterns));
        }
    }
    match &lora.tokens {
        TrainedTokens::None => {}
        TrainedTokens::Input(rows) => drop(chosen.insert(TOKENS.into(), json!(rows))),
        TrainedTokens::Modules(modules) => {
            let modules: Map<String, Value> =
                modules.iter().map(|(name, rows)| (name.clone(), json!(rows))).collect();
            chosen.insert(TOKENS.into(), Value::Object(modules));
        }
    }
    let ranks = lora.rank_pattern.iter().map(|(pattern, rank)| (pattern.text().to_owned(), json!(rank)));
    let alphas = lora.alpha_pattern.iter().map(|(pattern, alpha)| (pattern.text().to_owned(), short(*alpha)));
    for (name, values) in
        [("rank_pattern", ranks.collect::<Map<_, _>>()), ("alpha_pattern", alphas.collect())]
    {
        if !values.is_empty() {
            chosen.insert(name.into(), Value::Object(values));
        }
    }
    chosen
}

/// Written as an integer if it is one: PEFT's own files do so, and some readers expect it.
fn short(number: f32) -> Value {
    let whole = number.fract() == 0.0 && number.abs() < 1e9;
    if whole { json!(number as i64) } else { json!(shortest(number)) }
}

/// The double with the fewest digits that is this float: 0.1, not 0.10000000149.
fn shortest(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

fn wrong(why: String) -> AdapterConfigError {
    AdapterConfigError(why)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::super::{AdapterKind, FeedForward, NonLinearity, VirtualTokens};
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let lora = Lora {
            kind: AdapterKind::Dora,
            rank: 4,
            alpha: 12.5,
            dropout: 0.1,
            rslora: true,
            targets: Targets::Names(vec!["k_proj".into(), "q_proj".into()]),
            target_parameters: vec!["experts.down_proj".into()],
            excluded: Excluded::Pattern(Pattern::whole(r".*\.1\..*").unwrap()),
            layers: Some(LayerChoice {
                numbers: vec![3, 0],
                patterns: vec![Pattern::before_layer("layers").unwrap()],
            }),
            // The first pattern that fits counts, so their order has a meaning.
            rank_pattern: vec![
                (Pattern::ending("q_proj").unwrap(), 16),
                (Pattern::ending("a.*").unwrap(), 2),
            ],
            alpha_pattern: vec![(Pattern::ending("k_proj").unwrap(), 0.5)],
            modules_to_save: vec!["lm_head".into()],
            tokens: TrainedTokens::Modules(vec![("embed_tokens".into(), vec![7, 3])]),
        };
        let config = AdapterConfig {
            lora,
            base_model: Some("models/base".into()),
            task: Some("CAUSAL_LM".into()),
            fan_in_fan_out: false,
            base_class: Some(BaseClass { class: "LlamaForCausalLM".into(), family: "llama".into() }),
            ties: true,
        };
        assert_eq!(AdapterConfig::from_json(&config.to_json()).unwrap(), config);
        assert!(config.to_json().contains("\"lora_dropout\": 0.1,"), "{}", config.to_json());
        let plain = AdapterConfig {
            lora: Lora::default(),
            base_model: None,
            task: None,
            base_class: None,
            ties: false,
            ..config
        };
        assert_eq!(AdapterConfig::from_json(&plain.to_json()).unwrap(), plain);
        assert!(plain.to_json().contains("\"lora_alpha\": 8,"));
    }

    #[test]
    fn other_kinds_are_read_as_they_are_written_and_their_strange_settings_are_named() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<String>>();
        let targets = Targets::Names(names(&["down_proj", "k_proj"]));
        let feedforward = [
            FeedForward::Names(names(&["down_proj"])),
            FeedForward::Pattern(Pattern::whole(r".*\.mlp\..*").unwrap()),
        ];
        let ia3 = feedforward.map(AdapterKind::Ia3);
        for kind in ia3.into_iter().chain([AdapterKind::Bottleneck(NonLinearity::Gelu)]) {
            let rank = if matches!(kind, AdapterKind::Bottleneck(_)) { 5 } else { 8 };
            let alpha = if rank == 5 { 0.5 } else { 8.0 };
            let lora = Lora { kind, rank, alpha, targets: targets.clone(), ..Lora::default() };
            let config = AdapterConfig {
                lora,
                base_model: None,
                task: None,
                fan_in_fan_out: true,
                base_class: None,
                ties: false,
            };
            assert_eq!(AdapterConfig::from_json(&config.to_json()).unwrap(), config);
        }
        let vectors = VirtualTokens { count: 4, width: 32, layers: 2, heads: 4 };
        for kind in [AdapterKind::Prompt(vectors), AdapterKind::Prefix(vectors)] {
            let lora = Lora { kind, ..Lora::default() };
            let config = AdapterConfig {
                lora,
                base_model: None,
                task: None,
                fan_in_fan_out: false,
                base_class: None,
                ties: false,
            };
            assert_eq!(AdapterConfig::from_json(&config.to_json()).unwrap(), config);
        }
        let fault = |text: &str| AdapterConfig::from_json(text).unwrap_err().to_string();
        assert_eq!(
            fault(r#"{"peft_type": "PROMPT_TUNING", "token_dim": 32}"#),
            "adapter_config.json: `num_virtual_tokens` must be a whole number of at least 1, got null"
        );
        let missing = r#"{"peft_type": "IA3", "target_modules": ["k_proj"]}"#;
        assert_eq!(
            fault(missing),
            "adapter_config.json: `feedforward_modules` must be a list of names or a pattern, got null"
        );
        let rank = r#"{"peft_type": "IA3", "target_modules": ["k"], "feedforward_modules": [], "r": 4}"#;
        assert!(fault(rank).contains("`r` is set to 4, which is not supported here"));
        let relu = r#"{"peft_type": "BOTTLENECK", "target_modules": ["k"], "non_linearity": "relu"}"#;
        assert!(fault(relu).contains("there is no non-linearity `relu`; known are tanh, gelu and silu"));
    }

    fn fault(settings: &str) -> String {
        let text = format!(r#"{{"peft_type": "LORA", "target_modules": ["q_proj"], {settings}}}"#);
        let error = AdapterConfig::from_json(&text).unwrap_err().to_string();
        error.strip_prefix("adapter_config.json: ").unwrap().to_owned()
    }

    #[test]
    fn a_setting_that_is_not_supported_is_answered_with_what_it_is_and_how_peft_helps() {
        let settings = [
            (r#""lora_bias": true"#, "`lora_bias` is set: this is an adapter with a bias of its own"),
            (
                r#""megatron_config": {"a": 1}"#,
                "`megatron_config` is set: this is an adapter for the parallel",
            ),
            (r#""of_next_year": 3"#, "`of_next_year` is set to 3, which is not supported here"),
            (
                r#""init_lora_weights": "pissa_niter_4""#,
                "`init_lora_weights` is pissa_niter_4, so this adapter",
            ),
        ];
        for (settings, expected) in settings {
            let said = fault(settings);
            assert!(said.starts_with(expected) && said.contains("merge_and_unload()"), "{said}");
            assert!(!said.contains("leave it out"), "{said}");
        }
        for settings in [r#""layer_replication": [[0, 2]]"#, r#""alora_invocation_tokens": [3]"#] {
            let said = fault(settings);
            assert!(said.contains("PEFT cannot merge it either") && !said.contains("leave"), "{said}");
        }
        let error = AdapterConfig::from_json(r#"{"peft_type": "ADALORA"}"#).unwrap_err().to_string();
        let expected = "adapter_config.json: `peft_type` is ADALORA, and LORA, IA3, PROMPT_TUNING, PREFIX_TUNING and BOTTLENECK are supported here";
        assert!(error.starts_with(expected) && error.contains("merge_and_unload()"), "{error}");
        let kinds = [
            (r#""PREFIX_TUNING", "num_virtual_tokens": 2"#, "PEFT cannot merge it either"),
            (r#""BOTTLENECK", "target_modules": ["k"]"#, "use it with the library that trained it"),
        ];
        for (kind, way) in kinds {
            let text = format!(r#"{{"peft_type": {kind}, "of_next_year": 3}}"#);
            let error = AdapterConfig::from_json(&text).unwrap_err().to_string();
            assert!(error.contains("`of_next_year` is set to 3") && error.contains(way), "{error}");
        }
        let error = AdapterConfig::from_json(r#"{"peft_type": "P_TUNING"}"#).unwrap_err().to_string();
        assert!(error.ends_with("; PEFT cannot merge it either, so use it there"), "{error}");
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_named() {
        let cases = [
            (r#""bias": "some""#, "`bias` must be \"none\", \"all\" or \"lora_only\", got \"some\""),
            (r#""lora_dropout": 1"#, "`lora_dropout` must be at least 0 and less than 1, got 1"),
            (r#""lora_alpha": 1e300"#, "`lora_alpha` must be a number, got 1e+300"),
            (r#""r": 0"#, "`r` must be a whole number of at least 1, got 0"),
            (r#""lora_alpha": "much""#, "`lora_alpha` must be a number, got \"much\""),
            (
                r#""rank_pattern": {"q_proj": 0}"#,
                "`rank_pattern` must have a whole number of at least 1 for `q_proj`, got 0",
            ),
            (
                r#""layers_to_transform": ["a"]"#,
                "`layers_to_transform` must be numbers of layers, got [\"a\"]",
            ),
            (
                r#""layers_pattern": "h""#,
                "`layers_to_transform` must be given where `layers_pattern` is, got null",
            ),
            (
                r#""target_modules": ".*", "layers_to_transform": 1"#,
                "`target_modules` must be a list of names where `layers_to_transform` is given, got \".*\"",
            ),
        ];
        for (settings, expected) in cases {
            assert_eq!(fault(settings), expected);
        }
        assert!(fault(r#""target_modules": "(a""#).starts_with("`(a` is no regular expression"));
    }

    #[test]
    fn settings_that_choose_modules_are_read_as_peft_writes_them() {
        let text = r#"{"peft_type": "LORA", "target_modules": ["v_proj", "q_proj"], "exclude_modules": ["b", "a"],
            "layers_to_transform": 2, "layers_pattern": "h", "rank_pattern": {"b": 2, "a": 3}, "alpha_pattern": {"a": 5}}"#;
        let lora = AdapterConfig::from_json(text).unwrap().lora;
        assert_eq!(lora.targets, Targets::Names(vec!["q_proj".into(), "v_proj".into()]));
        assert_eq!(lora.excluded, Excluded::Names(vec!["a".into(), "b".into()]));
        let layers = lora.layers.unwrap();
        assert_eq!((layers.numbers.as_slice(), layers.patterns[0].text()), (&[2][..], "h"));
        let ranks: Vec<(&str, usize)> =
            lora.rank_pattern.iter().map(|(key, rank)| (key.text(), *rank)).collect();
        assert_eq!(ranks, [("b", 2), ("a", 3)]);
        let text = r#"{"peft_type": "LORA", "target_modules": ".*_proj", "layers_to_transform": [], "layers_pattern": ""}"#;
        let lora = AdapterConfig::from_json(text).unwrap().lora;
        assert_eq!(lora.targets, Targets::Pattern(Pattern::whole(".*_proj").unwrap()));
        assert_eq!(lora.layers, None);
    }
}
