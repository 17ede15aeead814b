//! Settings from a TOML file and from flags, into one [`RawConfig`].
//!
//! Both become a table of values whose kinds have been checked, so that every error names the place
//! it was made at: a file's line, or the flag.

use std::fs::File;
use std::io;
use std::path::Path;

use toml::de::DeTable;
use toml::{Table, Value};

use super::elsewhere::no_such_setting;
use super::{Kind, RawConfig, Setting};
use crate::error::TrainError;
use crate::files::read_whole;

/// The longest file of settings.
const LONGEST: u64 = 1 << 20;

/// A setting given on the command line, as it was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// The setting's name.
    pub name: &'static str,
    /// The setting's values: one, or as many as a list has.
    pub values: Vec<String>,
}

impl RawConfig {
    /// Reads a file of settings, if there is one, and lays flags over it.
    ///
    /// # Errors
    ///
    /// The first line or flag that is no setting or has the wrong kind of value.
    pub fn gather(file: Option<&Path>, flags: &[Flag]) -> Result<RawConfig, TrainError> {
        let mut table = match file {
            Some(path) => {
                let shown = path.display();
                let text = File::open(path).and_then(|file| read_whole(path, file, LONGEST));
                let text = text.and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
                let text = text.map_err(|error| {
                    TrainError::Config(format!("cannot read the settings in `{shown}`: {error}"))
                })?;
                checked_table(&text).map_err(|(line, why)| {
                    TrainError::Config(match line {
                        Some(line) => format!("{shown}, line {line}: {why}"),
                        None => format!("{shown}: {why}"),
                    })
                })?
            }
            None => Table::new(),
        };
        for flag in flags {
            let value = typed(flag).map_err(TrainError::Config)?;
            table.insert(flag.name.to_owned(), value);
        }
        table.retain(|name, value| !left_open(name, value));
        // Kinds are right, so only numbers too large for their type remain.
        table.try_into().map_err(|error: toml::de::Error| TrainError::Config(error.message().to_owned()))
    }

    /// The settings as a file that [`RawConfig::gather`] reads.
    ///
    /// # Errors
    ///
    /// When a number is larger than TOML can hold.
    pub fn to_toml(&self) -> Result<String, TrainError> {
        toml::to_string(self).map_err(|error| TrainError::Config(error.to_string()))
    }
}

/// The file's values, each of the kind its setting wants; or the line of the first fault, and the fault.
fn checked_table(text: &str) -> Result<Table, (Option<usize>, String)> {
    let line_at = |position: usize| text[..position.min(text.len())].matches('\n').count() + 1;
    let broken = |error: &toml::de::Error| {
        (error.span().map(|span| line_at(span.start)), error.message().replace('\n', "; "))
    };
    let places = DeTable::parse(text).map_err(|error| broken(&error))?;
    let mut table: Table = toml::from_str(text).map_err(|error| broken(&error))?;
    let mut places: Vec<(usize, String)> =
        places.get_ref().iter().map(|(key, _)| (key.span().start, key.get_ref().to_string())).collect();
    places.sort_unstable();
    for (position, name) in places {
        let fault = |why: String| (Some(line_at(position)), why);
        let setting = Setting::named(&name).ok_or_else(|| fault(no_such_setting(&name)))?;
        if let Some(value) = table.remove(&name).filter(|value| !left_open(&name, value)) {
            let found = described(&value);
            let value = of_kind(setting.kind, named_by_number(&name, value))
                .ok_or_else(|| fault(format!("{name} must be {}, got {found}", wanted(setting.kind))))?;
            table.insert(name, value);
        }
    }
    Ok(table)
}

/// Whether a value means "not set": `max_steps = -1`, as in transformers.
fn left_open(name: &str, value: &Value) -> bool {
    name == "max_steps" && *value == Value::Integer(-1)
}

/// The name of a stage that was written as a number, as `DeepSpeed`'s files do: `zero_stage = 1`.
fn named_by_number(name: &str, value: Value) -> Value {
    match value {
        Value::Integer(stage) if name == "zero_stage" => Value::String(stage.to_string()),
        other => other,
    }
}

/// The value if it is of this kind, or can be read as such.
fn of_kind(kind: Kind, value: Value) -> Option<Value> {
    match (kind, value) {
        (Kind::Text, Value::String(text)) => Some(Value::String(text)),
        (Kind::Whole, Value::Integer(number)) if number >= 0 => Some(Value::Integer(number)),
        (Kind::Number, Value::Float(number)) => Some(Value::Float(number)),
        (Kind::Number, Value::Integer(number)) => Some(Value::Float(number as f64)),
        (Kind::Switch, Value::Boolean(yes)) => Some(Value::Boolean(yes)),
        (Kind::List, Value::String(text)) => Some(list([text.as_str()])),
        (Kind::List | Kind::Pairs, Value::Array(items)) => {
            items.iter().all(Value::is_str).then_some(Value::Array(items))
        }
        (Kind::Numbers, Value::Integer(number)) if number >= 0 => {
            Some(Value::Array(vec![Value::Integer(number)]))
        }
        (Kind::Numbers, Value::Array(items)) => {
            let is_whole = |item: &Value| item.as_integer().is_some_and(|number| number >= 0);
            items.iter().all(is_whole).then_some(Value::Array(items))
        }
        (Kind::Pairs, Value::Table(table)) => {
            let pair = |(pattern, value): (&String, &Value)| match value {
                Value::Integer(number) => Some(Value::String(format!("{pattern}={number}"))),
                Value::Float(number) => Some(Value::String(format!("{pattern}={number}"))),
                _ => None,
            };
            table.iter().map(pair).collect::<Option<Vec<Value>>>().map(Value::Array)
        }
        _ => None,
    }
}

/// The value of a flag.
fn typed(flag: &Flag) -> Result<Value, String> {
    let setting = Setting::named(flag.name).ok_or_else(|| no_such_setting(flag.name))?;
    let text = flag.values.last().map_or("", String::as_str);
    let value = match setting.kind {
        Kind::Text => Some(Value::String(text.to_owned())),
        Kind::Whole => {
            let number = text.parse().ok().map(Value::Integer);
            number.filter(|value| value.as_integer() >= Some(0) || left_open(setting.name, value))
        }
        Kind::Number => text.parse().ok().map(Value::Float),
        // Python's `True` and `False` are read too.
        Kind::Switch => text.to_lowercase().parse().ok().map(Value::Boolean),
        Kind::List => Some(list(flag.values.iter().map(String::as_str))),
        Kind::Numbers => numbers(&flag.values),
        Kind::Pairs => Some(pairs(&flag.values)),
    };
    let digits = !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    value.ok_or_else(|| match setting.kind {
        Kind::Whole if digits => format!("{} must be at most {}, got {text}", setting.flag(), i64::MAX),
        kind => format!("{} must be {}, got `{text}`", setting.flag(), wanted(kind)),
    })
}

/// A list of words. A comma separates two words, unless it belongs to the name of an existing file.
fn list<'a>(words: impl IntoIterator<Item = &'a str>) -> Value {
    let words = words
        .into_iter()
        .flat_map(|word| if names_file(word) { vec![word] } else { word.split(',').collect() });
    let words = words.map(str::trim).filter(|word| !word.is_empty());
    Value::Array(words.map(|word| Value::String(word.to_owned())).collect())
}

/// Whole numbers with commas between them.
fn numbers(words: &[String]) -> Option<Value> {
    let words = words.iter().flat_map(|word| word.split(',')).map(str::trim);
    let number = |word: &str| word.parse().ok().filter(|&number: &i64| number >= 0).map(Value::Integer);
    words.map(number).collect::<Option<Vec<Value>>>().map(Value::Array)
}

/// Patterns with a number each and commas between them; a comma before the equals sign belongs to the pattern.
fn pairs(words: &[String]) -> Value {
    let mut pairs: Vec<String> = Vec::new();
    for word in words.iter().flat_map(|word| word.split(',')) {
        match pairs.last_mut().filter(|last| !last.contains('=')) {
            Some(begun) => *begun = format!("{begun},{word}"),
            None => pairs.push(word.trim().to_owned()),
        }
    }
    Value::Array(pairs.into_iter().map(Value::String).collect())
}

/// Whether a word is the name of a file or folder, perhaps with how often it is seen: `PATH@WEIGHT`.
fn names_file(word: &str) -> bool {
    let unweighted = word.rsplit_once('@').map_or(word, |(path, _)| path);
    word.contains(',') && [word, unweighted].iter().any(|path| Path::new(path).exists())
}

fn wanted(kind: Kind) -> &'static str {
    match kind {
        Kind::Text => "text in quotes",
        Kind::Whole => "a whole number that is not negative",
        Kind::Number => "a number",
        Kind::Switch => "true or false",
        Kind::List => "a list of words",
        Kind::Numbers => "a list of whole numbers",
        Kind::Pairs => "a table of patterns with a number each",
    }
}

fn described(value: &Value) -> String {
    match value {
        Value::String(text) => format!("the text \"{text}\""),
        Value::Array(_) => "a list".to_owned(),
        Value::Table(_) => "a table".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use crate::settings::Pairs;

    fn read(text: &str) -> Result<RawConfig, String> {
        let folder = Scratch::new();
        let path = folder.write("run.toml", text);
        RawConfig::gather(Some(&path), &[])
            .map_err(|error| error.to_string().split("run.toml").last().unwrap_or_default().to_owned())
    }

    fn flag(name: &'static str, value: &str) -> Flag {
        Flag { name, values: vec![value.to_owned()] }
    }

    #[test]
    fn a_file_is_read_and_flags_count_more() {
        let folder = Scratch::new();
        let path = folder.write(
            "run.toml",
            "# a run\nmodel = \"s\"\nlearning_rate = 1\nmax_steps = 1_000\ngradient_checkpointing = true\n\
             report_to = [\"html\"]\n",
        );
        let flags = [flag("max_steps", "7"), flag("report_to", "tensorboard, html"), flag("memory", "auto")];
        let expected = RawConfig {
            model: Some("s".into()),
            learning_rate: Some(1.0),
            max_steps: Some(7),
            gradient_checkpointing: Some(true),
            memory: Some("auto".into()),
            report_to: Some(vec!["tensorboard".into(), "html".into()]),
            ..RawConfig::default()
        };
        assert_eq!(RawConfig::gather(Some(&path), &flags).unwrap(), expected);
    }

    #[test]
    fn commas_separate_words_on_flags_and_belong_to_them_in_arrays_and_names_of_files() {
        let folder = Scratch::new();
        let path = folder.write("a,b.txt", "").display().to_string();
        let data = |value: &str| RawConfig::gather(None, &[flag("data", value)]).unwrap().data.unwrap();
        assert_eq!(data("a.txt, b.txt@2"), ["a.txt", "b.txt@2"]);
        assert_eq!(data(&path), [path.as_str()]);
        assert_eq!(data(&format!("{path}@2")), [format!("{path}@2")]);
        let text = "data = [\"a,b.txt\", \"c.txt\"]\nreport_to = \"html,tensorboard\"\n";
        let raw = read(text).unwrap();
        assert_eq!(raw.data.as_deref(), Some(&["a,b.txt".to_owned(), "c.txt".to_owned()][..]));
        assert_eq!(raw.report_to.as_deref().map(<[String]>::len), Some(2));
        assert_eq!(read(&raw.to_toml().unwrap()).unwrap(), raw);
    }

    #[test]
    fn numbers_and_patterns_are_read_from_flags_arrays_and_tables_alike() {
        let expected = RawConfig {
            lora_layers_to_transform: Some(vec![0, 3]),
            lora_rank_pattern: Some(Pairs(vec!["a{1,2}=4".into(), "q_proj=16".into()])),
            lora_alpha_pattern: Some(Pairs(vec!["q_proj=0.5".into()])),
            ..RawConfig::default()
        };
        let flags = [
            flag("lora_layers_to_transform", "0, 3"),
            flag("lora_rank_pattern", "a{1,2}=4,q_proj=16"),
            flag("lora_alpha_pattern", "q_proj=0.5"),
        ];
        assert_eq!(RawConfig::gather(None, &flags).unwrap(), expected);
        let text = "lora_layers_to_transform = [0, 3]\nlora_rank_pattern = [\"a{1,2}=4\", \"q_proj=16\"]\n\
                    [lora_alpha_pattern]\nq_proj = 0.5\n";
        assert_eq!(read(text).unwrap(), expected);
        assert_eq!(read(&expected.to_toml().unwrap()).unwrap(), expected);
        assert_eq!(
            read("lora_layers_to_transform = [\"a\"]").unwrap_err(),
            ", line 1: lora_layers_to_transform must be a list of whole numbers, got a list"
        );
    }

    #[test]
    fn a_wrong_name_is_told_with_its_line_and_the_one_that_was_meant() {
        let fault = |text: &str| read(text).unwrap_err();
        assert_eq!(
            fault("seed = 1\n\nlearning_rat = 0.1\n"),
            ", line 3: there is no setting `learning_rat`; did you mean `learning_rate`?"
        );
        assert_eq!(
            fault("fp16 = true"),
            ", line 1: there is no setting `fp16` here: write bf16: half precision overflows"
        );
        assert_eq!(
            fault("[training]\nseed = 1"),
            ", line 1: there is no setting `training`; `plimsoll train --help` lists them all"
        );
    }

    #[test]
    fn a_wrong_kind_is_told_with_its_line_and_what_was_found() {
        let fault = |text: &str| read(text).unwrap_err();
        assert_eq!(
            fault("seed = 1\nmax_steps = \"many\""),
            ", line 2: max_steps must be a whole number that is not negative, got the text \"many\""
        );
        assert_eq!(
            fault("max_steps = -2"),
            ", line 1: max_steps must be a whole number that is not negative, got -2"
        );
        assert_eq!(fault("memory = 64"), ", line 1: memory must be text in quotes, got 64");
        assert_eq!(fault("synthetic = 1"), ", line 1: synthetic must be true or false, got 1");
        let fault = fault("seed = 1\nmodel = ");
        assert!(fault.starts_with(", line 2: "), "{fault}");
    }

    #[test]
    fn a_flag_of_the_wrong_kind_is_named() {
        let fault = |name, value| RawConfig::gather(None, &[flag(name, value)]).unwrap_err().with_flags();
        assert_eq!(
            fault("max_steps", "2.5"),
            "--max-steps must be a whole number that is not negative, got `2.5`"
        );
        assert_eq!(fault("learning_rate", "fast"), "--learning-rate must be a number, got `fast`");
        assert_eq!(
            fault("seed", "18446744073709551615"),
            "--seed must be at most 9223372036854775807, got 18446744073709551615"
        );
        assert_eq!(fault("bf16", "yes"), "--bf16 must be true or false, got `yes`");
        for (text, expected) in [("True", true), ("true", true), ("False", false)] {
            let raw = RawConfig::gather(None, &[flag("bf16", text)]).unwrap();
            assert_eq!(raw.bf16, Some(expected));
        }
    }

    #[test]
    fn minus_one_step_is_none_stated_in_a_file_and_as_a_flag_over_it() {
        assert_eq!(read("max_steps = -1").unwrap(), RawConfig::default());
        let folder = Scratch::new();
        let path = folder.write("run.toml", "max_steps = 7\n");
        let raw = RawConfig::gather(Some(&path), &[flag("max_steps", "-1")]).unwrap();
        assert_eq!(raw, RawConfig::default());
        let fault = RawConfig::gather(None, &[flag("seed", "-1")]).unwrap_err().with_flags();
        assert_eq!(fault, "--seed must be a whole number that is not negative, got `-1`");
    }

    #[test]
    fn a_name_that_is_known_from_elsewhere_is_answered_with_a_setting() {
        assert_eq!(
            read("max_length = 8").unwrap_err(),
            ", line 1: there is no setting `max_length` here: write seq_len"
        );
        assert_eq!(
            read("max_tokens = 8").unwrap_err(),
            ", line 1: there is no setting `max_tokens`; `plimsoll train --help` lists them all"
        );
    }

    #[test]
    fn settings_that_are_printed_are_read_back_the_same() {
        let raw = RawConfig {
            model: Some("a \"quoted\" name".into()),
            weight_decay: Some(0.1),
            adam_epsilon: Some(1e-8),
            warmup_ratio: Some(1.0),
            report_to: Some(Vec::new()),
            synthetic: Some(false),
            ..RawConfig::default()
        };
        assert_eq!(read(&raw.to_toml().unwrap()).unwrap(), raw);
    }
}
