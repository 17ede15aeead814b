//! Methods of Python's strings, lists, dictionaries and numbers, except those that mutate.

mod texts;

use super::calls::Given;
use super::fault::{Answer, Fault};
use super::interpreter::Run;
use super::safe;
use super::value::numbers;
use super::value::{Missing, Value, View};

pub(super) use texts::lines;

/// Methods of a dictionary; the last five change it and are refused.
pub(super) const DICT_METHODS: [&str; 10] =
    ["get", "items", "keys", "values", "copy", "pop", "popitem", "update", "setdefault", "clear"];
/// Methods of a list; all but the first three change it and are refused.
const LIST_METHODS: [&str; 11] =
    ["index", "count", "copy", "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"];

pub(super) fn has_method(value: &Value, name: &str) -> bool {
    match value {
        Value::Dict(_) => DICT_METHODS.contains(&name),
        Value::List(_) => LIST_METHODS.contains(&name),
        Value::Tuple(_) | Value::Range(_) => ["index", "count"].contains(&name),
        Value::Int(_) | Value::Bool(_) => name == "bit_length",
        Value::Float(_) => name == "is_integer",
        Value::Cycler(_) => ["next", "reset"].contains(&name),
        Value::Markup(_) if safe::NAMES.contains(&name) => true,
        other => other.as_text().is_some() && texts::NAMES.contains(&name),
    }
}

impl Run<'_> {
    pub(super) fn method(&mut self, receiver: &Value, name: &str, given: Given) -> Answer<Value> {
        match receiver {
            Value::Dict(dict) => match name {
                "get" => {
                    let [key, default] = given.bind(name, ["key", "default"])?;
                    let key = key.ok_or_else(|| Fault::new("`get` needs a key"))?;
                    super::value::dict::check_key(&key)?;
                    Ok(dict.get(&key).cloned().or(default).unwrap_or(Value::None))
                }
                "items" | "keys" | "values" | "copy" => {
                    given.none(name)?;
                    Ok(match name {
                        "items" => Value::View(View::Items, dict.clone()),
                        "keys" => Value::View(View::Keys, dict.clone()),
                        "values" => Value::View(View::Values, dict.clone()),
                        _ => receiver.clone(),
                    })
                }
                _ => Err(unchangeable(receiver, name)),
            },
            Value::List(_) | Value::Tuple(_) | Value::Range(_) => match name {
                "index" | "count" => self.search(receiver, name, given),
                "copy" => Ok(receiver.clone()),
                _ => Err(unchangeable(receiver, name)),
            },
            Value::Cycler(cycler) => {
                given.none(name)?;
                let at = cycler.1.get();
                cycler.1.set(if name == "reset" { 0 } else { (at + 1) % cycler.0.len() });
                Ok(if name == "reset" { Value::None } else { cycler.0[at].clone() })
            }
            Value::Float(number) => Ok(Value::Bool(number.fract() == 0.0)),
            Value::Int(_) | Value::Bool(_) => {
                let number = numbers::whole(receiver).unwrap_or(0).unsigned_abs();
                Ok(Value::Int(i128::from(128 - number.leading_zeros())))
            }
            Value::Markup(text) => self.safe_method(text, name, given),
            other => match other.as_text() {
                Some(text) => self.text_method(text, name, given),
                None => Err(Value::attribute_fault(receiver, name)),
            },
        }
    }

    fn search(&mut self, receiver: &Value, name: &str, given: Given) -> Answer<Value> {
        let [wanted] = given.bind(name, ["value"])?;
        let wanted = wanted.ok_or_else(|| Fault::new(format!("`{name}` needs a value")))?;
        let items = self.items(receiver)?;
        if name == "count" {
            return Ok(Value::Int(items.iter().filter(|item| item.equals(&wanted)).count() as i128));
        }
        let at = items.iter().position(|item| item.equals(&wanted));
        at.map(|at| Value::Int(at as i128)).ok_or_else(|| Fault::new("the list does not hold this value"))
    }
}

impl Value {
    fn attribute_fault(of: &Value, name: &str) -> Fault {
        Missing::Attribute { of: of.kind(), name: name.into() }.fault()
    }
}

fn unchangeable(receiver: &Value, name: &str) -> Fault {
    Fault::new(format!("`{name}` would change a {}, which templates may not do", receiver.kind()))
}
