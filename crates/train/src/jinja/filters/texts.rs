//! Filters on texts.

use super::super::calls::Given;
use super::super::characters::is_space;
use super::super::fault::{Answer, Fault};
use super::super::interpreter::Run;
use super::super::meter::Pen;
use super::super::show::escaped;
use super::super::syntax::Operator;
use super::super::value::numbers;
use super::super::value::{Text, Value};

pub(super) const NAMES: &[&str] = &[
    "capitalize",
    "center",
    "e",
    "escape",
    "forceescape",
    "format",
    "indent",
    "lower",
    "replace",
    "safe",
    "string",
    "striptags",
    "title",
    "trim",
    "truncate",
    "upper",
    "urlencode",
    "urlize",
    "wordcount",
    "wordwrap",
    "xmlattr",
];

impl Run<'_> {
    pub(super) fn text_filter(&mut self, name: &str, value: Value, given: Given) -> Answer<Value> {
        match name {
            "string" => {
                given.none(name)?;
                self.soft(value)
            }
            "safe" => {
                given.none(name)?;
                Ok(Value::Markup(self.str(&value)?))
            }
            "e" | "escape" if value.is_safe() => Ok(value),
            "e" | "escape" | "forceescape" => {
                given.none(name)?;
                let text = self.str(&value)?;
                Ok(Value::Markup(escaped(&text, &self.meter)?))
            }
            "upper" | "lower" | "capitalize" => {
                let text = self.soft(value)?;
                self.method(&text, name, given)
            }
            "trim" => {
                let [characters] = given.bind(name, ["chars"])?;
                let text = self.soft(value)?;
                let given = Given { positional: characters.into_iter().collect(), named: Vec::new() };
                self.method(&text, "strip", given)
            }
            "center" => {
                let [width] = given.bind(name, ["width"])?;
                let text = self.soft(value)?;
                let width = width.unwrap_or(Value::Int(80));
                self.method(&text, "center", Given { positional: vec![width], named: Vec::new() })
            }
            "replace" => {
                let [old, new, count] = given.bind(name, ["old", "new", "count"])?;
                let (Some(old), Some(new)) = (old, new) else {
                    return Err(Fault::new("`replace` needs an old and a new text"));
                };
                let text = Value::Text(self.str(&value)?);
                let mut positional = vec![Value::Text(self.str(&old)?), Value::Text(self.str(&new)?)];
                positional.extend(count.filter(|count| !matches!(count, Value::None)));
                self.method(&text, "replace", Given { positional, named: Vec::new() })
            }
            "format" => self.format_filter(&value, given),
            "title" => {
                given.none(name)?;
                let text = self.str(&value)?;
                self.text(titled(&text))
            }
            "wordcount" => {
                given.none(name)?;
                let text = self.str(&value)?;
                self.meter.pass(text.len())?;
                let words = text.split(|c: char| c != '_' && !c.is_alphanumeric());
                Ok(Value::Int(words.filter(|word| !word.is_empty()).count() as i128))
            }
            "indent" => self.indent(&value, given),
            "truncate" => self.truncate(&value, given),
            "urlencode" => {
                given.none(name)?;
                self.url_encode(&value)
            }
            "striptags" => self.striptags(&value, given),
            "urlize" => self.urlize(&value, given),
            "wordwrap" => self.wordwrap(&value, given),
            _ => self.xml_attributes(&value, given),
        }
    }

    fn format_filter(&mut self, value: &Value, given: Given) -> Answer<Value> {
        let (format, safe) = (self.str(value)?, value.is_safe());
        if given.named.is_empty() {
            let values = self.tuple(given.positional)?;
            let Value::Tuple(items) = &values else { return Ok(values) };
            return self.percent(&format, safe, items, &values);
        }
        if !given.positional.is_empty() {
            return Err(Fault::new("`format` takes values by place or by name, not both"));
        }
        let pairs = given.named.into_iter().map(|(name, value)| (Value::Text(Text::Fixed(name)), value));
        let values = self.dict(pairs.collect())?;
        self.percent(&format, safe, std::slice::from_ref(&values), &values)
    }

    /// Joins as Jinja2 does, step by step: which parts are escaped depends on which are safe.
    fn indent(&mut self, value: &Value, given: Given) -> Answer<Value> {
        let [width, first, blank] = given.bind("indent", ["width", "first", "blank"])?;
        let is_set = |value: Option<Value>| value.is_some_and(|value| value.is_true());
        let (first, blank) = (is_set(first), is_set(blank));
        if value.as_text().is_none() {
            return Err(Fault::new(format!("`indent` needs a text, not {}", value.kind())));
        }
        let width = width.unwrap_or(Value::Int(4));
        let mut margin = match numbers::whole(&width) {
            _ if width.as_text().is_some() => width,
            Some(width) => {
                let mut blanks = Pen::new(&self.meter);
                blanks.repeat(" ", usize::try_from(width.max(0)).unwrap_or(usize::MAX))?;
                Value::Text(blanks.into())
            }
            None => return Err(Fault::new("`indent` needs a number or a text")),
        };
        let mut end = Value::text("\n");
        if value.is_safe() {
            (margin, end) = (self.marked(margin)?, self.marked(end)?);
        }
        let whole = self.combine(Operator::Add, value, &end)?;
        let lines = self.method(&whole, "splitlines", Given::default())?;
        let lines = self.items(&lines)?;
        let mut made = if blank {
            let between = self.combine(Operator::Add, &end, &margin)?;
            self.joined(&between, lines)?
        } else {
            let mut lines = lines.into_iter();
            let mut made = lines.next().unwrap_or_else(|| Value::text(""));
            let rest = lines.map(|line| {
                if line.is_true() { self.combine(Operator::Add, &margin, &line) } else { Ok(line) }
            });
            let rest = rest.collect::<Answer<Vec<Value>>>()?;
            if !rest.is_empty() {
                let rest = self.joined(&end, rest)?;
                let rest = self.combine(Operator::Add, &end, &rest)?;
                made = self.combine(Operator::Add, &made, &rest)?;
            }
            made
        };
        if first {
            made = self.combine(Operator::Add, &margin, &made)?;
        }
        Ok(made)
    }

    /// `between.join(parts)`.
    fn joined(&mut self, between: &Value, parts: Vec<Value>) -> Answer<Value> {
        let parts = self.list(parts)?;
        self.method(between, "join", Given { positional: vec![parts], named: Vec::new() })
    }

    fn truncate(&mut self, value: &Value, given: Given) -> Answer<Value> {
        let [length, kill, end, leeway] = given.bind("truncate", ["length", "killwords", "end", "leeway"])?;
        let number = |value: Option<Value>, usual: usize| match value.as_ref().and_then(numbers::whole) {
            Some(number) => usize::try_from(number).unwrap_or(0),
            None => usual,
        };
        let (length, leeway) = (number(length, 255), number(leeway, 5));
        let end = end.unwrap_or_else(|| Value::text("..."));
        let needs_texts =
            || Fault::new(format!("`truncate` needs texts, not {} and {}", value.kind(), end.kind()));
        let ending = end.as_text().ok_or_else(needs_texts)?;
        let Some(kept) = length.checked_sub(ending.chars().count()) else {
            return Err(Fault::new("the length of `truncate` has no room for its end"));
        };
        self.meter.pass(value.as_text().map_or(0, str::len))?;
        let found = match value.as_text() {
            Some(text) => text.chars().count() as i128,
            // Whatever has a length is left alone where it is short enough.
            None => numbers::whole(&self.length_of(value)?).unwrap_or(0),
        };
        if found <= length.saturating_add(leeway) as i128 {
            return Ok(value.clone());
        }
        let text = value.as_text().ok_or_else(needs_texts)?;
        let cut: String = text.chars().take(kept).collect();
        let cut = match cut.rfind(' ') {
            Some(at) if !kill.is_some_and(|kill| kill.is_true()) => &cut[..at],
            _ => &cut,
        };
        let cut = value.alike(Text::made(cut.to_owned(), &self.meter)?);
        self.combine(Operator::Add, &cut, &end)
    }

    fn url_encode(&mut self, value: &Value) -> Answer<Value> {
        let mut pen = Pen::new(&self.meter);
        match value {
            Value::Dict(_) | Value::List(_) | Value::Tuple(_) | Value::View(..) | Value::Range(_) => {
                let pairs = match value {
                    Value::Dict(dict) => self.view(super::super::value::View::Items, dict)?,
                    other => self.items(other)?,
                };
                for (at, pair) in pairs.iter().enumerate() {
                    let pair = self.items(pair)?;
                    let [key, value] = &pair[..] else {
                        return Err(Fault::new("`urlencode` needs pairs"));
                    };
                    pen.push(if at > 0 { "&" } else { "" })?;
                    quote_url(&self.str(key)?, true, &mut pen)?;
                    pen.push("=")?;
                    quote_url(&self.str(value)?, true, &mut pen)?;
                }
            }
            other => quote_url(&self.str(other)?, false, &mut pen)?,
        }
        Ok(Value::Text(pen.into()))
    }

    fn xml_attributes(&mut self, value: &Value, given: Given) -> Answer<Value> {
        let [space] = given.bind("xmlattr", ["autospace"])?;
        let Value::Dict(dict) = value.inside() else {
            return Err(Fault::new("`xmlattr` needs a dictionary"));
        };
        let mut pen = Pen::new(&self.meter);
        let mut separator = if space.is_none_or(|space| space.is_true()) { " " } else { "" };
        for (key, value) in dict.iter() {
            if matches!(value, Value::None | Value::Undefined(_)) {
                continue;
            }
            let Some(name) = key.as_text() else {
                return Err(Fault::new(format!("an attribute has a text as its name, not {}", key.kind())));
            };
            if name.contains(|c: char| is_space(c) || "/>=".contains(c)) {
                return Err(Fault::new(format!("`{name}` cannot be an attribute")));
            }
            let (key, value) = (self.safe(key)?, self.safe(value)?);
            for part in [separator, &*key, "=\"", &*value, "\""] {
                pen.push(part)?;
            }
            separator = " ";
        }
        Ok(Value::Text(pen.into()))
    }
}

/// Every word with its first letter large and the others small; words begin behind blanks, hyphens and brackets.
fn titled(text: &str) -> String {
    let mut begins = true;
    let mut titled = String::with_capacity(text.len());
    for character in text.chars() {
        if is_space(character) || "-({[<".contains(character) {
            begins = true;
            titled.push(character);
        } else if std::mem::take(&mut begins) {
            titled.extend(character.to_uppercase());
        } else {
            titled.extend(character.to_lowercase());
        }
    }
    titled
}

fn quote_url(text: &str, query: bool, pen: &mut Pen) -> Answer<()> {
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                pen.push_char(char::from(byte))?;
            }
            b'/' if !query => pen.push("/")?,
            b' ' if query => pen.push("+")?,
            _ => pen.push(&format!("%{byte:02X}"))?,
        }
    }
    Ok(())
}
