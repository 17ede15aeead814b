//! Python's `json.dumps`.

use std::cmp::Ordering;
use std::rc::Rc;

use super::fault::{Answer, Fault};
use super::meter::{Meter, Pen};
use super::value::numbers::float_text;
use super::value::{Text, Value};

/// How JSON is laid out.
#[derive(Debug)]
pub(super) struct Layout {
    /// Whether characters outside ASCII are escaped.
    pub(super) ascii: bool,
    /// Whether keys are sorted.
    pub(super) sorted: bool,
    /// The text between items, and behind keys.
    pub(super) item: Text,
    pub(super) key: Text,
    /// The margin of a level, where items have lines of their own.
    pub(super) indent: Option<Text>,
}

/// A value as JSON.
pub(super) fn dump(value: &Value, layout: &Layout, meter: &Rc<Meter>) -> Answer<Text> {
    let mut writer = Writer { layout, meter, pen: Pen::new(meter) };
    writer.value(value, 0)?;
    Ok(writer.pen.into())
}

struct Writer<'a> {
    layout: &'a Layout,
    meter: &'a Rc<Meter>,
    pen: Pen,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Answer<()> {
        self.meter.work(1)?;
        match value.inside() {
            Value::None => self.pen.push("null"),
            Value::Bool(bool) => self.pen.push(if *bool { "true" } else { "false" }),
            Value::Int(number) => self.pen.push(&number.to_string()),
            Value::Float(number) => self.pen.push(&number_text(*number)),
            Value::List(items) | Value::Tuple(items) => {
                self.nested(["[", "]"], items.len(), depth, |writer, at| writer.value(&items[at], depth + 1))
            }
            Value::Dict(dict) => {
                let mut entries: Vec<&(Value, Value)> = dict.iter().collect();
                if self.layout.sorted {
                    sort(&mut entries)?;
                }
                self.nested(["{", "}"], entries.len(), depth, |writer, at| {
                    writer.key(&entries[at].0)?;
                    writer.pen.push(&writer.layout.key)?;
                    writer.value(&entries[at].1, depth + 1)
                })
            }
            other => match other.as_text() {
                Some(text) => self.text(text),
                None => Err(Fault::new(format!("{} cannot be written as JSON", other.kind()))),
            },
        }
    }

    fn nested(
        &mut self,
        brackets: [&str; 2],
        count: usize,
        depth: usize,
        mut item: impl FnMut(&mut Self, usize) -> Answer<()>,
    ) -> Answer<()> {
        self.pen.push(brackets[0])?;
        for at in 0..count {
            if at > 0 {
                self.pen.push(&self.layout.item)?;
            }
            self.line(depth + 1)?;
            item(self, at)?;
        }
        if count > 0 {
            self.line(depth)?;
        }
        self.pen.push(brackets[1])
    }

    fn line(&mut self, depth: usize) -> Answer<()> {
        match &self.layout.indent {
            Some(indent) => {
                self.pen.push("\n")?;
                self.pen.repeat(indent, depth)
            }
            None => Ok(()),
        }
    }

    fn key(&mut self, key: &Value) -> Answer<()> {
        match key {
            Value::None => self.pen.push("\"null\""),
            Value::Bool(bool) => self.pen.push(if *bool { "\"true\"" } else { "\"false\"" }),
            Value::Int(number) => self.pen.push(&format!("\"{number}\"")),
            Value::Float(number) => self.pen.push(&format!("\"{}\"", number_text(*number))),
            other => match other.as_text() {
                Some(text) => self.text(text),
                None => Err(Fault::new(format!("{} cannot be a key of JSON", other.kind()))),
            },
        }
    }

    fn text(&mut self, text: &str) -> Answer<()> {
        self.pen.push("\"")?;
        let mut plain = 0;
        for (at, character) in text.char_indices() {
            let escape = match character {
                '"' => "\\\"".to_owned(),
                '\\' => "\\\\".to_owned(),
                '\n' => "\\n".to_owned(),
                '\r' => "\\r".to_owned(),
                '\t' => "\\t".to_owned(),
                '\u{8}' => "\\b".to_owned(),
                '\u{c}' => "\\f".to_owned(),
                '\0'..='\u{1f}' => format!("\\u{:04x}", character as u32),
                '\u{7f}'.. if self.layout.ascii && character != '\u{7f}' => {
                    let mut halves = [0; 2];
                    let halves = character.encode_utf16(&mut halves);
                    halves.iter().map(|half| format!("\\u{half:04x}")).collect()
                }
                _ => continue,
            };
            self.pen.push(&text[plain..at])?;
            self.pen.push(&escape)?;
            plain = at + character.len_utf8();
        }
        self.pen.push(&text[plain..])?;
        self.pen.push("\"")
    }
}

fn number_text(number: f64) -> String {
    match float_text(number).as_str() {
        "nan" => "NaN".into(),
        "inf" => "Infinity".into(),
        "-inf" => "-Infinity".into(),
        text => text.into(),
    }
}

fn sort(entries: &mut [&(Value, Value)]) -> Answer<()> {
    let mut fault = None;
    entries.sort_by(|(a, _), (b, _)| match a.order(b) {
        Ok(order) => order.unwrap_or(Ordering::Equal),
        Err(unordered) => {
            fault.get_or_insert(unordered);
            Ordering::Equal
        }
    });
    fault.map_or(Ok(()), Err)
}
