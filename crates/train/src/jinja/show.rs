//! Python's `str` and `repr`.

use std::fmt::Write as _;
use std::rc::Rc;

use super::characters::is_printable;
use super::fault::{Answer, Fault};
use super::interpreter::Run;
use super::meter::{Meter, Pen};
use super::value::numbers::float_text;
use super::value::{Function, MOST_DEPTH, Text, Value, View};

impl Run<'_> {
    /// Python's `str` of a value.
    pub(super) fn str(&self, value: &Value) -> Answer<Text> {
        match value {
            Value::Text(text) | Value::Markup(text) => Ok(text.clone()),
            Value::Json(json) => Ok(json.text.clone()),
            other => {
                let mut pen = Pen::new(&self.meter);
                self.write(other, &mut pen)?;
                Ok(pen.into())
            }
        }
    }

    /// Writes Python's `str` of a value.
    pub(super) fn write(&self, value: &Value, pen: &mut Pen) -> Answer<()> {
        match value {
            Value::Undefined(_) => Ok(()),
            other => match other.as_text() {
                Some(text) => pen.push(text),
                None => self.write_repr(other, pen, 0),
            },
        }
    }

    /// Python's `repr` of a value.
    pub(super) fn repr(&self, value: &Value) -> Answer<Text> {
        let mut pen = Pen::new(&self.meter);
        self.write_repr(value, &mut pen, 0)?;
        Ok(pen.into())
    }

    fn write_repr(&self, value: &Value, pen: &mut Pen, depth: usize) -> Answer<()> {
        if depth > MOST_DEPTH {
            return Err(Fault::new("a value that holds itself cannot be printed"));
        }
        self.meter.work(1)?;
        let depth = depth + 1;
        match value {
            Value::Undefined(_) => pen.push("Undefined"),
            Value::None => pen.push("None"),
            Value::Bool(bool) => pen.push(if *bool { "True" } else { "False" }),
            Value::Int(number) => pen.push(&number.to_string()),
            Value::Float(number) => pen.push(&float_text(*number)),
            Value::Text(text) => quote(text, pen),
            Value::Json(json) => quote(&json.text, pen),
            Value::Markup(text) => {
                pen.push("Markup(")?;
                quote(text, pen)?;
                pen.push(")")
            }
            Value::List(items) => self.write_items(["[", "]"], items, pen, depth),
            Value::Tuple(items) => {
                let close = if items.len() == 1 { ",)" } else { ")" };
                self.write_items(["(", close], items, pen, depth)
            }
            Value::Dict(dict) => self.write_pairs(["{", "}"], &mut dict.iter(), pen, depth),
            Value::View(view, dict) => {
                pen.push(value.kind())?;
                let items: Vec<Value> = self.view(*view, dict)?;
                self.write_items(["([", "])"], &items, pen, depth)
            }
            Value::Range(span) => {
                let step = if span.step == 1 { String::new() } else { format!(", {}", span.step) };
                pen.push(&format!("range({}, {}{step})", span.start, span.stop))
            }
            Value::Stream(stream) => pen.push(&format!("<generator object {}>", stream.name)),
            Value::Namespace(at) => {
                pen.push("<Namespace ")?;
                self.write_pairs(["{", "}"], &mut self.namespace(*at).iter(), pen, depth)?;
                pen.push(">")
            }
            Value::Loop(id) => match self.active(*id) {
                Some(active) => {
                    let (index, len) = (active.index + 1, active.index + 1 + active.left());
                    pen.push(&format!("<LoopContext {index}/{len}>"))
                }
                None => pen.push("<LoopContext>"),
            },
            Value::Macro(made) => {
                pen.push("<Macro ")?;
                match &self.program.functions[made.function].name {
                    Some(name) => quote(name, pen)?,
                    None => pen.push("anonymous")?,
                }
                pen.push(">")
            }
            Value::Method(method) => pen.push(&format!("<built-in method {}>", method.1)),
            Value::Function(function) => pen.push(&format!("<function {}>", function_name(*function))),
            Value::Cycler(_) => pen.push("<Cycler>"),
            Value::Joiner(_) => pen.push("<Joiner>"),
        }
    }

    fn write_items(&self, around: [&str; 2], items: &[Value], pen: &mut Pen, depth: usize) -> Answer<()> {
        pen.push(around[0])?;
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                pen.push(", ")?;
            }
            self.write_repr(item, pen, depth)?;
        }
        pen.push(around[1])
    }

    fn write_pairs(
        &self,
        around: [&str; 2],
        pairs: &mut dyn Iterator<Item = &(Value, Value)>,
        pen: &mut Pen,
        depth: usize,
    ) -> Answer<()> {
        pen.push(around[0])?;
        for (at, (key, value)) in pairs.enumerate() {
            if at > 0 {
                pen.push(", ")?;
            }
            self.write_repr(key, pen, depth)?;
            pen.push(": ")?;
            self.write_repr(value, pen, depth)?;
        }
        pen.push(around[1])
    }

    /// The items of a view of a dictionary.
    pub(super) fn view(&self, view: View, dict: &super::value::dict::Dict) -> Answer<Vec<Value>> {
        self.meter.work(dict.len() as u64)?;
        dict.iter()
            .map(|(key, value)| match view {
                View::Keys => Ok(key.clone()),
                View::Values => Ok(value.clone()),
                View::Items => self.tuple(vec![key.clone(), value.clone()]),
            })
            .collect()
    }
}

pub(super) fn function_name(function: Function) -> &'static str {
    match function {
        Function::Range => "range",
        Function::Dict => "dict",
        Function::Namespace => "namespace",
        Function::Cycler => "cycler",
        Function::Joiner => "joiner",
        Function::Lipsum => "generate_lorem_ipsum",
        Function::RaiseException => "raise_exception",
        Function::StrftimeNow => "strftime_now",
    }
}

/// Writes a text as Python's `repr` quotes it.
fn quote(text: &str, pen: &mut Pen) -> Answer<()> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    pen.push_char(quote)?;
    for character in text.chars() {
        match character {
            '\\' => pen.push("\\\\")?,
            '\n' => pen.push("\\n")?,
            '\r' => pen.push("\\r")?,
            '\t' => pen.push("\\t")?,
            _ if character == quote => {
                pen.push("\\")?;
                pen.push_char(quote)?;
            }
            _ if is_printable(character) => pen.push_char(character)?,
            _ => pen.push(&code(character as u32))?,
        }
    }
    pen.push_char(quote)
}

/// A text as Python's `repr` quotes it.
pub(super) fn quoted(text: &str, meter: &Rc<Meter>) -> Answer<Text> {
    let mut pen = Pen::new(meter);
    quote(text, &mut pen)?;
    Ok(pen.into())
}

fn code(number: u32) -> String {
    let mut text = String::new();
    let _ = match number {
        0..=0xff => write!(text, "\\x{number:02x}"),
        0x100..=0xffff => write!(text, "\\u{number:04x}"),
        _ => write!(text, "\\U{number:08x}"),
    };
    text
}

/// A text with `&`, `<`, `>` and quotes as HTML writes them.
pub(super) fn escaped(text: &str, meter: &Rc<Meter>) -> Answer<Text> {
    let mut pen = Pen::new(meter);
    for character in text.chars() {
        match character {
            '&' => pen.push("&amp;")?,
            '<' => pen.push("&lt;")?,
            '>' => pen.push("&gt;")?,
            '\'' => pen.push("&#39;")?,
            '"' => pen.push("&#34;")?,
            _ => pen.push_char(character)?,
        }
    }
    Ok(pen.into())
}
