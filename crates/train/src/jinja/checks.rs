//! Tests: the names after `is`.

use super::calls::Given;
use super::characters::is_cased;
use super::fault::{Answer, Fault, test_fault};
use super::filters::is_filter;
use super::interpreter::Run;
use super::syntax::Comparison;
use super::value::Value;
use super::value::dict::check_key;
use super::value::numbers;

/// Whether there is a test of this name.
pub(super) fn is_test(name: &str) -> bool {
    NAMES.contains(&name)
}

const NAMES: &[&str] = &[
    "odd",
    "even",
    "divisibleby",
    "defined",
    "undefined",
    "filter",
    "test",
    "none",
    "boolean",
    "false",
    "true",
    "integer",
    "float",
    "lower",
    "upper",
    "string",
    "mapping",
    "number",
    "sequence",
    "iterable",
    "callable",
    "sameas",
    "escaped",
    "in",
    "==",
    "eq",
    "equalto",
    "!=",
    "ne",
    ">",
    "gt",
    "greaterthan",
    "ge",
    ">=",
    "<",
    "lt",
    "lessthan",
    "<=",
    "le",
];

impl Run<'_> {
    /// Whether a value passes the test of this name.
    pub(super) fn check(&mut self, name: &str, value: &Value, given: Given) -> Answer<bool> {
        let comparison = match name {
            "==" | "eq" | "equalto" => Some(Comparison::Equal),
            "!=" | "ne" => Some(Comparison::Unequal),
            ">" | "gt" | "greaterthan" => Some(Comparison::Greater),
            ">=" | "ge" => Some(Comparison::GreaterEqual),
            "<" | "lt" | "lessthan" => Some(Comparison::Less),
            "<=" | "le" => Some(Comparison::LessEqual),
            "in" => Some(Comparison::In),
            _ => None,
        };
        if let Some(comparison) = comparison {
            let other = argument(name, given)?;
            return self.holds(comparison, value, &other);
        }
        match name {
            "sameas" => return Ok(value.is_same(&argument(name, given)?)),
            "divisibleby" => {
                let other = argument(name, given)?;
                return divides(value, &other);
            }
            _ => given.none(name)?,
        }
        match name {
            "odd" => Ok(remainder(value, &Value::Int(2))?.equals(&Value::Int(1))),
            "even" => divides(value, &Value::Int(2)),
            "filter" | "test" => {
                check_key(value)?;
                let exists = if name == "filter" { is_filter } else { is_test };
                Ok(value.as_text().is_some_and(exists))
            }
            "lower" => Ok(is_cased(&self.str(value)?, char::is_lowercase, char::is_uppercase)),
            "upper" => Ok(is_cased(&self.str(value)?, char::is_uppercase, char::is_lowercase)),
            _ => is_of_kind(name, value).ok_or_else(|| test_fault(name)),
        }
    }
}

fn argument(name: &str, given: Given) -> Answer<Value> {
    let [value] = given.bind(name, ["other"])?;
    value.ok_or_else(|| Fault::new(format!("the test `{name}` needs a value to compare with")))
}

fn divides(value: &Value, by: &Value) -> Answer<bool> {
    Ok(!remainder(value, by)?.is_true())
}

fn remainder(value: &Value, by: &Value) -> Answer<Value> {
    if let Value::Undefined(missing) = value {
        return Err(missing.fault());
    }
    match numbers::calculate(super::syntax::Operator::Remainder, value, by) {
        Some(rest) => rest,
        None => Err(Fault::new(format!("{} is no number", value.kind()))),
    }
}

fn is_of_kind(name: &str, value: &Value) -> Option<bool> {
    Some(match name {
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Bool(_) | Value::Int(_) | Value::Float(_)),
        "string" => value.as_text().is_some(),
        "mapping" => matches!(value.inside(), Value::Dict(_)),
        "sequence" => {
            value.as_text().is_some()
                || matches!(
                    value,
                    Value::Undefined(_) | Value::List(_) | Value::Tuple(_) | Value::Dict(_) | Value::Range(_)
                )
        }
        "iterable" => {
            value.as_text().is_some()
                || matches!(
                    value,
                    Value::Undefined(_)
                        | Value::List(_)
                        | Value::Tuple(_)
                        | Value::Dict(_)
                        | Value::View(..)
                        | Value::Range(_)
                        | Value::Stream(_)
                        | Value::Loop(_)
                )
        }
        "callable" => matches!(
            value,
            Value::Undefined(_)
                | Value::Macro(_)
                | Value::Method(_)
                | Value::Function(_)
                | Value::Loop(_)
                | Value::Joiner(_)
        ),
        "escaped" => value.is_safe(),
        _ => return None,
    })
}
