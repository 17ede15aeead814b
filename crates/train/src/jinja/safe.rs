//! Texts that are marked as safe, as Python's `markupsafe` has them: what is made of one is safe too, and texts that join
//! it are escaped.
//!
//! Items of such a text and texts joined by `~` or by the filter `join` are plain, since transformers renders without
//! `autoescape`.

use super::calls::Given;
use super::entities::{bare, unescaped};
use super::fault::{Answer, Fault};
use super::interpreter::Run;
use super::show::escaped;
use super::value::{Text, Value};

/// Methods that safe texts have beside those of all texts.
pub(super) const NAMES: [&str; 3] = ["escape", "striptags", "unescape"];

impl Run<'_> {
    /// A text for HTML: escaped, unless it is safe.
    pub(super) fn safe(&self, value: &Value) -> Answer<Text> {
        match value {
            Value::Markup(text) => Ok(text.clone()),
            other => escaped(&self.str(other)?, &self.meter),
        }
    }

    /// The value as a text that keeps its mark.
    pub(super) fn soft(&self, value: Value) -> Answer<Value> {
        Ok(if value.as_text().is_some() { value } else { Value::Text(self.str(&value)?) })
    }

    /// A text, or the texts of a list or tuple, marked as safe; other values as they are.
    pub(super) fn marked(&mut self, value: Value) -> Answer<Value> {
        let all = |items: &[Value]| {
            let mark = |item: &Value| match item {
                Value::Text(text) => Value::Markup(text.clone()),
                other => other.clone(),
            };
            items.iter().map(mark).collect()
        };
        match value {
            Value::Text(text) => Ok(Value::Markup(text)),
            Value::List(items) => self.list(all(&items)),
            Value::Tuple(items) => self.tuple(all(&items)),
            other => Ok(other),
        }
    }

    /// A method of a safe text.
    pub(super) fn safe_method(&mut self, text: &Text, name: &str, mut given: Given) -> Answer<Value> {
        match name {
            "escape" => {
                let [value] = given.bind(name, ["s"])?;
                let value = value.ok_or_else(|| Fault::new("`escape` needs a value"))?;
                return Ok(Value::Markup(self.safe(&value)?));
            }
            "striptags" => {
                given.none(name)?;
                return bare(text, &self.meter);
            }
            "unescape" => {
                given.none(name)?;
                return unescaped(text, &self.meter);
            }
            "format" | "format_map" => return self.formatted(text, true, name, given),
            "join" => {
                let [items] = given.bind(name, ["iterable"])?;
                let items = items.ok_or_else(|| Fault::new("`join` needs items"))?;
                let items = self.items(&items)?;
                let items =
                    items.iter().map(|item| Ok(Value::Text(self.safe(item)?))).collect::<Answer<Vec<_>>>()?;
                given = Given { positional: vec![self.list(items)?], named: Vec::new() };
            }
            // The text that is put in is escaped: the new one, and what a line is filled with.
            "replace" | "center" | "ljust" | "rjust" => {
                let in_place = given.positional.get_mut(1);
                let in_name = given.named.iter_mut().find(|(name, _)| ["new", "fillchar"].contains(&&**name));
                if let Some(put) = in_place.or(in_name.map(|(_, value)| value)) {
                    *put = Value::Text(self.safe(put)?);
                }
            }
            _ => {}
        }
        let made = self.text_method(text, name, given)?;
        self.marked(made)
    }
}
