//! Filters: the names after `|`.
//!
//! All of Jinja2's except `random`: a rendering must be the same each time.

mod markup;
mod sequences;
mod texts;
mod wrap;

use super::calls::Given;
use super::fault::{Answer, Fault, filter_fault};
use super::interpreter::Run;
use super::json;
use super::value::numbers;
use super::value::{Text, Value};

const NAMES: &[&str] = &[
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "urlize",
    "wordcount",
    "wordwrap",
    "xmlattr",
];

/// Whether there is a filter of this name.
pub(super) fn is_filter(name: &str) -> bool {
    NAMES.contains(&name)
}

impl Run<'_> {
    /// A value through the filter of this name.
    pub(super) fn filter(&mut self, name: &str, value: Value, given: Given) -> Answer<Value> {
        match name {
            "default" | "d" => {
                let [default, boolean] = given.bind(name, ["default_value", "boolean"])?;
                let lenient = boolean.is_some_and(|boolean| boolean.is_true());
                if value.is_undefined() || lenient && !value.is_true() {
                    return Ok(default.unwrap_or_else(|| Value::text("")));
                }
                Ok(value)
            }
            "tojson" => self.tojson(&value, given),
            "length" | "count" => {
                given.none(name)?;
                self.length_of(&value)
            }
            "attr" => {
                let [attribute] = given.bind(name, ["name"])?;
                match attribute.as_ref().and_then(Value::as_text) {
                    // Keys of a dictionary are no attributes.
                    Some(_) if matches!(value, Value::Dict(_)) => {
                        Ok(Value::Undefined(super::value::Missing::Because("a dictionary has no attributes")))
                    }
                    Some(attribute) => self.attribute(&value, attribute),
                    None => Err(Fault::new("`attr` needs a name")),
                }
            }
            "pprint" => {
                given.none(name)?;
                self.pprint(&value)
            }
            "abs" | "int" | "float" | "round" | "filesizeformat" => self.number_filter(name, &value, given),
            _ if texts::NAMES.contains(&name) => self.text_filter(name, value, given),
            _ if is_filter(name) => self.sequence_filter(name, value, given),
            _ => Err(filter_fault(name)),
        }
    }

    /// Python's `len`.
    fn length_of(&mut self, value: &Value) -> Answer<Value> {
        if let Some(text) = value.as_text() {
            self.meter.pass(text.len())?;
        }
        match value.len() {
            Some(len) => Ok(Value::Int(len as i128)),
            None => match value {
                Value::Loop(id) => Ok(self.loop_attribute(*id, "length")?.unwrap_or(Value::Int(0))),
                _ => Err(Fault::new(format!("{} has no length", value.kind()))),
            },
        }
    }

    fn tojson(&mut self, value: &Value, given: Given) -> Answer<Value> {
        let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
        let [ascii, indent, separators, sorted] = given.bind("tojson", names)?;
        let indent = match indent.unwrap_or(Value::None) {
            Value::None => None,
            Value::Undefined(missing) => return Err(missing.fault()),
            other => Some(match (other.as_text(), numbers::whole(&other)) {
                (Some(text), _) => Text::from(text),
                (_, Some(width)) => {
                    let mut pen = super::meter::Pen::new(&self.meter);
                    pen.repeat(" ", usize::try_from(width.max(0)).unwrap_or(usize::MAX))?;
                    pen.into()
                }
                _ => return Err(Fault::new("`tojson` takes a number or a text as `indent`")),
            }),
        };
        let separators = match separators.unwrap_or(Value::None) {
            Value::None => None,
            other => match &self.items(&other)?[..] {
                [item, key] => Some((self.str(item)?, self.str(key)?)),
                _ => return Err(Fault::new("`tojson` takes two texts as `separators`")),
            },
        };
        let layout = json::Layout {
            ascii: ascii.is_some_and(|ascii| ascii.is_true()),
            sorted: sorted.is_some_and(|sorted| sorted.is_true()),
            item: match (&separators, &indent) {
                (Some((item, _)), _) => item.clone(),
                (None, Some(_)) => Text::from(","),
                (None, None) => Text::from(", "),
            },
            key: separators.map_or_else(|| Text::from(": "), |(_, key)| key),
            indent,
        };
        Ok(Value::Text(json::dump(value, &layout, &self.meter)?))
    }

    fn number_filter(&mut self, name: &str, value: &Value, given: Given) -> Answer<Value> {
        if let Value::Undefined(missing) = value {
            return Err(missing.fault());
        }
        match name {
            "abs" => {
                given.none(name)?;
                match (numbers::whole(value), value) {
                    (Some(number), _) => Ok(Value::Int(number.saturating_abs())),
                    (_, Value::Float(number)) => Ok(Value::Float(number.abs())),
                    _ => Err(Fault::new(format!("`abs` needs a number, not {}", value.kind()))),
                }
            }
            "int" => {
                let [default, base] = given.bind(name, ["default", "base"])?;
                let base = base.as_ref().and_then(numbers::whole).and_then(|base| u32::try_from(base).ok());
                let (number, float) = match (value.as_text(), numbers::whole(value), value) {
                    (Some(text), ..) => {
                        (numbers::parse_whole(text, base.unwrap_or(10)), numbers::parse_float(text))
                    }
                    (.., Value::Float(float)) if float.is_infinite() => {
                        return Err(Fault::new("an infinite number has no whole one"));
                    }
                    (_, number, Value::Float(float)) => (number, Some(*float)),
                    (_, number, _) => (number, None),
                };
                let number = match (number, float.filter(|float| float.is_finite())) {
                    (None, Some(float)) if float.abs() >= 2f64.powi(127) => {
                        return Err(Fault::new("`int` takes no number beyond 128 bits"));
                    }
                    (number, float) => number.or(float.map(|float| float as i128)),
                };
                Ok(number.map(Value::Int).or(default).unwrap_or(Value::Int(0)))
            }
            "float" => {
                let [default] = given.bind(name, ["default"])?;
                let number = match value.as_text() {
                    Some(text) => numbers::parse_float(text),
                    None => numbers::float(value),
                };
                Ok(number.map(Value::Float).or(default).unwrap_or(Value::Float(0.0)))
            }
            "round" => round(value, given),
            _ => self.file_size(value, given),
        }
    }

    fn file_size(&mut self, value: &Value, given: Given) -> Answer<Value> {
        let [binary] = given.bind("filesizeformat", ["binary"])?;
        let binary = binary.is_some_and(|binary| binary.is_true());
        let number = value.as_text().map_or_else(|| numbers::float(value), numbers::parse_float);
        let bytes = number.ok_or_else(|| Fault::new("`filesizeformat` needs a number"))?;
        let (base, mark) = if binary { (1024.0, "iB") } else { (1000.0, "B") };
        #[allow(clippy::float_cmp, reason = "one byte is a whole number")]
        if bytes == 1.0 {
            return Ok(Value::text("1 Byte"));
        }
        if bytes < base {
            return Ok(Value::text(&format!("{} Bytes", bytes.trunc())));
        }
        let letters = if binary {
            ["K", "M", "G", "T", "P", "E", "Z", "Y"]
        } else {
            ["k", "M", "G", "T", "P", "E", "Z", "Y"]
        };
        let mut unit = base;
        for (at, letter) in letters.iter().enumerate() {
            unit *= base;
            if bytes < unit || at == 7 {
                return Ok(Value::text(&format!("{:.1} {letter}{mark}", base * bytes / unit)));
            }
        }
        Ok(Value::text(""))
    }
}

fn round(value: &Value, given: Given) -> Answer<Value> {
    let [precision, method] = given.bind("round", ["precision", "method"])?;
    let digits = precision.as_ref().and_then(numbers::whole).unwrap_or(0);
    let method = method.as_ref().and_then(Value::as_text).unwrap_or("common").to_owned();
    let number = numbers::float(value)
        .ok_or_else(|| Fault::new(format!("`round` needs a number, not {}", value.kind())))?;
    let scale = 10f64.powi(i32::try_from(digits).unwrap_or(i32::MAX));
    match (method.as_str(), numbers::whole(value)) {
        ("common", Some(whole)) if digits >= 0 => Ok(Value::Int(whole)),
        ("common", Some(_)) => Ok(Value::Int(numbers::rounded(number, digits) as i128)),
        ("common", None) => Ok(Value::Float(numbers::rounded(number, digits))),
        ("ceil", _) => Ok(Value::Float((number * scale).ceil() / scale)),
        ("floor", _) => Ok(Value::Float((number * scale).floor() / scale)),
        _ => Err(Fault::new("the method of `round` is common, ceil or floor")),
    }
}
