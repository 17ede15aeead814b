//! `value.name` looks for an attribute and then for an item, `value[item]` for an item and then for an attribute.

use std::rc::Rc;
use std::sync::Arc;

use super::fault::Answer;
use super::interpreter::Run;
use super::methods::{DICT_METHODS, has_method};
use super::slices::place;
use super::value::numbers;
use super::value::{Missing, Text, Value};

impl Run<'_> {
    /// `value.name`: an attribute, or else an item.
    pub(super) fn attribute(&mut self, value: &Value, name: &str) -> Answer<Value> {
        if let Value::Undefined(missing) = value {
            return Err(missing.fault());
        }
        if let Some(found) = self.own_attribute(value, name)? {
            return Ok(found);
        }
        let found = match value.inside() {
            Value::Dict(dict) => dict.get_text(name).cloned(),
            _ => None,
        };
        Ok(found.unwrap_or_else(|| Value::attribute_of(value, name)))
    }

    /// `value[item]`: an item, or else an attribute.
    pub(super) fn item(&mut self, value: &Value, item: &Value) -> Answer<Value> {
        if let Value::Undefined(missing) = value {
            return Err(missing.fault());
        }
        if let Some(found) = self.own_item(value, item)? {
            return Ok(found);
        }
        match item.as_text() {
            Some(name) => match self.own_attribute(value, name)? {
                Some(found) => Ok(found),
                None => Ok(Value::attribute_of(value, name)),
            },
            None => Ok(Value::Undefined(Missing::Element { of: value.kind() })),
        }
    }

    fn own_item(&mut self, value: &Value, item: &Value) -> Answer<Option<Value>> {
        // A JSON text answers numeric indices and slices as a text, and names as the value it holds.
        let held = if item.as_text().is_some() { value.inside() } else { value };
        let at = |len: usize| numbers::whole(item).and_then(|number| place(number, len));
        Ok(match held {
            // What cannot be a key is no element either.
            Value::Dict(dict) => dict.get(item).cloned(),
            Value::List(items) | Value::Tuple(items) => at(items.len()).map(|at| items[at].clone()),
            Value::Range(span) => at(span.len).map(|at| Value::Int(span.get(at))),
            other => match other.as_text() {
                Some(text) if numbers::whole(item).is_some() => {
                    self.meter.pass(text.len())?;
                    let found = at(text.chars().count()).and_then(|at| text.chars().nth(at));
                    found.map(|found| other.alike(Text::from(&*found.encode_utf8(&mut [0; 4]))))
                }
                _ => None,
            },
        })
    }

    fn macro_attribute(&mut self, function: usize, name: &str) -> Answer<Option<Value>> {
        let program = self.program;
        let code = &program.functions[function];
        let mut parameters = code.parameters.iter().map(|(name, _)| &program.names[*name as usize]);
        Ok(Some(match name {
            "name" => code.name.as_deref().map_or(Value::None, Value::text),
            "arguments" => {
                let names = parameters.map(|name| Value::Text(Text::Fixed(Arc::clone(name))));
                self.tuple(names.collect())?
            }
            "caller" => Value::Bool(code.uses_caller),
            "catch_kwargs" => Value::Bool(code.uses_kwargs),
            "catch_varargs" => Value::Bool(code.uses_varargs),
            "explicit_caller" => Value::Bool(parameters.any(|name| &**name == "caller")),
            _ => return Ok(None),
        }))
    }

    fn own_attribute(&mut self, value: &Value, name: &str) -> Answer<Option<Value>> {
        if name.starts_with("__") {
            return Ok(None);
        }
        Ok(match value {
            Value::Loop(id) => self.loop_attribute(*id, name)?,
            Value::Namespace(at) => self.namespace(*at).get_text(name).cloned(),
            Value::Macro(made) => self.macro_attribute(made.function, name)?,
            // A group of `groupby` is a tuple with names.
            Value::Tuple(pair) if pair.len() == 2 && ["grouper", "list"].contains(&name) => {
                Some(pair[usize::from(name == "list")].clone())
            }
            Value::Cycler(cycler) if name == "current" => Some(cycler.0[cycler.1.get()].clone()),
            Value::Json(json) if matches!(json.inside, Value::Dict(_)) && DICT_METHODS.contains(&name) => {
                Some(Value::Method(Rc::new((json.inside.clone(), name.into()))))
            }
            _ if has_method(value, name) => Some(Value::Method(Rc::new((value.clone(), name.into())))),
            _ => part_of(value, name),
        })
    }
}

/// The parts of a number that Python gives names: all numbers are complex ones, and whole ones are fractions.
fn part_of(number: &Value, name: &str) -> Option<Value> {
    match (name, numbers::whole(number), number) {
        ("real" | "numerator", Some(whole), _) => Some(Value::Int(whole)),
        ("imag", Some(_), _) => Some(Value::Int(0)),
        ("denominator", Some(_), _) => Some(Value::Int(1)),
        ("real", None, Value::Float(float)) => Some(Value::Float(*float)),
        ("imag", None, Value::Float(_)) => Some(Value::Float(0.0)),
        _ => None,
    }
}
