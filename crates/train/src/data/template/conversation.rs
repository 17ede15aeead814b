//! A conversation of a data set as templates see it.
//!
//! Tables hold one type per column, so data that differs from row to row is stored as JSON text. `messages`, `tools`,
//! each tool and its `parameters`, `tool_calls`, each call, `function_call` and the `function` of a tool or call are of no
//! use to a template as text, so they are parsed; TRL does so for `tools`. Such a text that is no JSON is refused: a
//! template would read it letter by letter. The `arguments` of a call are printed unchanged by some templates and
//! inspected by others: they stay a text that also behaves as the value it holds. `content` is never changed.
//!
//! As in transformers, a message's reasoning is found under all of the names that templates know for it.

use std::borrow::Cow;

use serde_json::{Map, Value as Json};

use super::super::exact_json::{self, kind};
use crate::jinja::{Value, dictionary};

/// How deep lists and objects of data may lie inside each other.
const MOST_DEPTH: usize = 100;
/// Bytes that count for a value besides its text.
const PER_VALUE: usize = 64;
/// Names a message's reasoning is given under, the usual one first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

#[derive(Debug)]
pub(in super::super) struct Conversation {
    messages: Vec<Value>,
    roles: Vec<Role>,
    tools: Value,
    more: Vec<(String, Value)>,
    bytes: usize,
}

/// The speaker, as far as that matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    System,
    User,
    Assistant,
    Other,
}

impl Conversation {
    /// A conversation; `more` are further variables of its template.
    pub(in super::super) fn new(
        messages: &[Json],
        tools: Option<&Json>,
        more: Option<&Json>,
    ) -> Result<Conversation, String> {
        let mut bytes = 0;
        let role = |message: &Json| match message["role"].as_str() {
            Some("system" | "developer") => Role::System,
            Some("user") => Role::User,
            Some("assistant") => Role::Assistant,
            _ => Role::Other,
        };
        let mut reader = Reader { bytes: &mut bytes };
        Ok(Conversation {
            roles: messages.iter().map(role).collect(),
            messages: messages.iter().map(|message| reader.message(message)).collect::<Result<_, _>>()?,
            tools: reader.tools(tools)?,
            more: reader.variables(more)?,
            bytes,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn role(&self, at: usize) -> Role {
        self.roles[at]
    }

    /// Whether a message from `from` on is the assistant's.
    pub(in super::super) fn has_answer(&self, from: usize) -> bool {
        self.roles[from..].contains(&Role::Assistant)
    }

    pub(super) fn tools(&self) -> Value {
        self.tools.clone()
    }

    pub(super) fn more(&self) -> impl Iterator<Item = (&str, Value)> {
        self.more.iter().map(|(name, value)| (name.as_str(), value.clone()))
    }

    /// About how many bytes the conversation takes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// All messages.
    pub(super) fn all(&self) -> Value {
        Value::list(self.messages.clone())
    }

    /// The messages with these numbers, followed by empty turns of the user.
    pub(super) fn picked(&self, numbers: &[usize], turns: usize) -> Value {
        let picked = numbers.iter().map(|&at| self.messages[at].clone());
        Value::list(picked.chain((0..turns).map(|_| empty_turn())).collect())
    }

    /// The same, with every content replaced by a text that is made of the content and its place among the picked
    /// messages.
    pub(super) fn picked_with(
        &self,
        numbers: &[usize],
        turns: usize,
        change: impl Fn(&Content<'_>, usize) -> String,
    ) -> Value {
        let changed =
            |(place, &at): (usize, &usize)| with_content(&self.messages[at], |part| change(part, place));
        let picked = numbers.iter().enumerate().map(changed);
        Value::list(picked.chain((0..turns).map(|_| empty_turn())).collect())
    }

    /// Whether a message has words that are not in its `content` as a text or as parts with text.
    pub(super) fn is_opaque(&self, at: usize) -> bool {
        match self.messages[at].field("content") {
            Some(content) => content.as_text().is_none() && content.items().is_none() && content.is_true(),
            None => false,
        }
    }
}

/// A text of a message's content.
pub(super) struct Content<'a> {
    pub(super) text: &'a str,
    /// Whether no other text of the content stands before it.
    pub(super) first: bool,
    /// Whether no other text of the content comes after it.
    pub(super) last: bool,
}

fn empty_turn() -> Value {
    dictionary(vec![("role", Value::text("user")), ("content", Value::text(""))])
}

/// A message whose content, a text or parts with a text each, is changed.
fn with_content(message: &Value, change: impl Fn(&Content<'_>) -> String) -> Value {
    let Some(content) = message.field("content") else { return message.clone() };
    let changed = |text: &str, first, last| Value::text(&change(&Content { text, first, last }));
    if let Some(text) = content.as_text() {
        return message.with_field("content", changed(text, true, true));
    }
    let Some(parts) = content.items() else { return message.clone() };
    let worded = |part: &Value| part.field_text("text").is_some_and(|text| !text.trim().is_empty());
    let (first, last) = (parts.iter().position(worded), parts.iter().rposition(worded));
    let part = |(at, part): (usize, &Value)| match part.field_text("text") {
        Some(text) => part.with_field("text", changed(text, first == Some(at), last == Some(at))),
        None => part.clone(),
    };
    message.with_field("content", Value::list(parts.iter().enumerate().map(part).collect()))
}

/// A list, or the text of one in JSON.
pub(in super::super) fn parsed_list<'a>(value: &'a Json, name: &str) -> Result<Cow<'a, [Json]>, String> {
    match value {
        Json::Array(items) => Ok(Cow::Borrowed(items)),
        Json::String(text) => match parsed(text, name)? {
            Json::Array(items) => Ok(Cow::Owned(items)),
            other => Err(of_kind(name, value, &other, "a list")),
        },
        other => Err(of_kind(name, value, other, "a list")),
    }
}

/// A list of messages, or the JSON text of one; `None` if the value is anything else, such as plain text.
pub(in super::super) fn message_list(value: &Json) -> Option<Cow<'_, [Json]>> {
    match value {
        Json::Array(items) => Some(Cow::Borrowed(items)),
        Json::String(text) => match held(text)? {
            Json::Array(items) => {
                let messages = !items.is_empty() && items.iter().all(|item| item.get("role").is_some());
                messages.then_some(Cow::Owned(items))
            }
            _ => None,
        },
        _ => None,
    }
}

fn parsed(text: &str, name: &str) -> Result<Json, String> {
    exact_json::parse(text).map_err(|fault| {
        let words = fault.to_string();
        let words = words.split(" at line ").next().unwrap_or_default();
        format!("`{name}` is a text that is not JSON ({words}, at column {})", fault.column())
    })
}

/// A value, or the one that its text holds as JSON; an empty text holds nothing.
fn unpacked<'a>(value: &'a Json, name: &str) -> Result<Cow<'a, Json>, String> {
    match value {
        Json::String(text) if text.trim().is_empty() => Ok(Cow::Owned(Json::Null)),
        Json::String(text) => parsed(text, name).map(Cow::Owned),
        value => Ok(Cow::Borrowed(value)),
    }
}

/// The same for a value that may also be a plain word, such as a name.
fn unpacked_or_word<'a>(value: &'a Json, name: &str) -> Result<Cow<'a, Json>, String> {
    let is_word = |text: &str| !matches!(text, "" | "null") && !text.starts_with(['{', '[']);
    match value.as_str() {
        Some(text) if is_word(text.trim()) => Ok(Cow::Borrowed(value)),
        _ => unpacked(value, name),
    }
}

/// The refusal of a value that is of another kind than `wanted`, once it is parsed.
fn of_kind(name: &str, given: &Json, read: &Json, wanted: &str) -> String {
    let (before, behind) = if given.is_string() { ("a text with ", " in JSON") } else { ("", "") };
    format!("`{name}` is {before}{}{behind}, not {wanted}", kind(read))
}

/// The object or list that a text holds as JSON.
fn held(text: &str) -> Option<Json> {
    let begins = text.trim_start().starts_with(['{', '[']);
    exact_json::parse(text).ok().filter(|value: &Json| begins && (value.is_object() || value.is_array()))
}

/// A whole number of more than 64 bits. As a float it would be rendered with other characters than in Python.
fn long_whole(digits: &str) -> Result<Value, String> {
    let count = digits.trim_start_matches('-').len();
    digits.parse().map(Value::Int).map_err(|_| {
        format!(
            "a whole number of {count} digits is longer than the 128 bits that chat templates take here; store it as a \
             text"
        )
    })
}

/// Turns JSON into values and counts their bytes.
struct Reader<'a> {
    bytes: &'a mut usize,
}

impl Reader<'_> {
    fn value(&mut self, json: &Json, depth: usize) -> Result<Value, String> {
        if depth > MOST_DEPTH {
            return Err(format!("lists and objects lie more than {MOST_DEPTH} deep inside each other"));
        }
        *self.bytes += PER_VALUE;
        Ok(match json {
            Json::Null => Value::None,
            Json::Bool(bool) => Value::Bool(*bool),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => Value::Int(number.into()),
                (_, Some(number)) => Value::Int(number.into()),
                _ => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => {
                *self.bytes += text.len();
                match (exact_json::digits(text), exact_json::marked_float(text)) {
                    (Some(digits), _) => long_whole(digits)?,
                    (_, Some(float)) => Value::Float(float),
                    _ => Value::text(text),
                }
            }
            Json::Array(items) => {
                let items = items.iter().map(|item| self.value(item, depth + 1));
                Value::list(items.collect::<Result<_, _>>()?)
            }
            Json::Object(fields) => self.object(fields, |reader, _, value| reader.value(value, depth + 1))?,
        })
    }

    /// An object whose fields are read by name.
    fn object(
        &mut self,
        fields: &Map<String, Json>,
        mut read: impl FnMut(&mut Self, &str, &Json) -> Result<Value, String>,
    ) -> Result<Value, String> {
        let mut made = Vec::with_capacity(fields.len());
        for (name, value) in fields {
            *self.bytes += name.len();
            made.push((name.as_str(), read(self, name, value)?));
        }
        Ok(dictionary(made))
    }

    fn message(&mut self, message: &Json) -> Result<Value, String> {
        let Json::Object(fields) = message else { return self.value(message, 0) };
        let reasoned = with_reasoning(fields);
        self.object(reasoned.as_ref().unwrap_or(fields), |reader, name, value| match name {
            "tool_calls" => reader.calls(value),
            "function_call" => reader.function_call(value),
            _ => reader.value(value, 1),
        })
    }

    /// The calls of a message; one that stands alone is a list of one.
    fn calls(&mut self, calls: &Json) -> Result<Value, String> {
        let read = unpacked(calls, "tool_calls")?;
        let calls = match &*read {
            Json::Array(calls) => calls.as_slice(),
            Json::Object(_) => std::slice::from_ref(&*read),
            Json::Null => return Ok(Value::None),
            other => return Err(of_kind("tool_calls", calls, other, "a list")),
        };
        *self.bytes += PER_VALUE;
        let calls = calls.iter().enumerate().map(|(at, call)| match &*unpacked(call, "tool_calls")? {
            Json::Object(fields) => self.call(fields),
            other => Err(format!("call {} of `tool_calls` is {}, not an object", at + 1, kind(other))),
        });
        Ok(Value::list(calls.collect::<Result<_, _>>()?))
    }

    /// The call of a message in the form that came before `tool_calls`.
    fn function_call(&mut self, call: &Json) -> Result<Value, String> {
        match &*unpacked(call, "function_call")? {
            Json::Object(fields) => self.call(fields),
            Json::Null => Ok(Value::None),
            other => Err(of_kind("function_call", call, other, "an object")),
        }
    }

    /// A call of a tool, or the `function` inside it.
    fn call(&mut self, fields: &Map<String, Json>) -> Result<Value, String> {
        self.object(fields, |reader, name, value| match (name, value) {
            ("function", function) => reader.function(function, Reader::call),
            ("arguments", Json::String(text)) => reader.arguments(text),
            _ => reader.value(value, 3),
        })
    }

    /// The `function` of a call or of a tool, read by `read`. It may also be no more than a name.
    fn function(
        &mut self,
        function: &Json,
        read: fn(&mut Self, &Map<String, Json>) -> Result<Value, String>,
    ) -> Result<Value, String> {
        match &*unpacked_or_word(function, "function")? {
            Json::Object(fields) => read(self, fields),
            list @ Json::Array(_) => Err(of_kind("function", function, list, "an object")),
            other => self.value(other, 3),
        }
    }

    fn arguments(&mut self, text: &str) -> Result<Value, String> {
        let Some(inside) = held(text) else { return self.value(&Json::from(text), 3) };
        *self.bytes += text.len();
        Ok(Value::json(text, self.value(&inside, 3)?))
    }

    fn tools(&mut self, tools: Option<&Json>) -> Result<Value, String> {
        let tools = match tools {
            Some(tools) if !unpacked(tools, "tools")?.is_null() => parsed_list(tools, "tools")?,
            _ => return Ok(Value::None),
        };
        *self.bytes += PER_VALUE;
        let tools = tools.iter().enumerate().map(|(at, tool)| match &*unpacked(tool, "tools")? {
            Json::Object(fields) => self.tool(fields),
            other => Err(format!("tool {} of `tools` is {}, not an object", at + 1, kind(other))),
        });
        Ok(Value::list(tools.collect::<Result<_, _>>()?))
    }

    /// A tool, or the `function` inside it.
    fn tool(&mut self, fields: &Map<String, Json>) -> Result<Value, String> {
        self.object(fields, |reader, name, value| match name {
            "function" => reader.function(value, Reader::tool),
            "parameters" => reader.value(unpacked_or_word(value, "parameters")?.as_ref(), 3),
            _ => reader.value(value, 3),
        })
    }

    /// Variables of the template that come with the sample, as an object or its JSON text.
    fn variables(&mut self, more: Option<&Json>) -> Result<Vec<(String, Value)>, String> {
        let name = "chat_template_kwargs";
        let Some(more) = more else { return Ok(Vec::new()) };
        match &*unpacked(more, name)? {
            Json::Object(fields) => {
                fields.iter().map(|(name, value)| Ok((name.clone(), self.value(value, 1)?))).collect()
            }
            Json::Null => Ok(Vec::new()),
            other => Err(format!("`{name}` is {}, not an object", kind(other))),
        }
    }
}

/// A message with its reasoning under all usual names, if it has any.
fn with_reasoning(message: &Map<String, Json>) -> Option<Map<String, Json>> {
    let mut given = REASONING.iter().filter_map(|name| message.get(*name));
    let reasoning = given.find(|value| !value.is_null())?.clone();
    let mut fields = Map::new();
    fields.insert("thinking".into(), reasoning.clone());
    fields.extend(message.iter().map(|(name, value)| (name.clone(), value.clone())));
    fields.insert("reasoning_content".into(), reasoning);
    Some(fields)
}
