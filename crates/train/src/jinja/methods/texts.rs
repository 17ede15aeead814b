//! Methods of Python's texts. Places and lengths count characters.

use super::super::calls::Given;
use super::super::characters::{
    decimal, folded, has_case, is_cased, is_digit, is_printable, is_space, titled,
};
use super::super::fault::{Answer, Fault};
use super::super::interpreter::Run;
use super::super::meter::Pen;
use super::super::value::Value;
use super::super::value::numbers;

pub(super) const NAMES: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];

impl Run<'_> {
    pub(in crate::jinja) fn text_method(&mut self, text: &str, name: &str, given: Given) -> Answer<Value> {
        self.meter.pass(text.len())?;
        if let Some(answer) = property(text, name) {
            given.none(name)?;
            return Ok(Value::Bool(answer));
        }
        if let Some(changed) = recased(text, name) {
            given.none(name)?;
            return self.text(changed);
        }
        match name {
            "strip" | "lstrip" | "rstrip" => {
                let [characters] = given.bind(name, ["chars"])?;
                let characters = optional(characters.as_ref(), name)?;
                self.text(stripped(text, name, characters).to_owned())
            }
            "split" | "rsplit" => self.split(text, name, given),
            "splitlines" => {
                let [keep] = given.bind(name, ["keepends"])?;
                let keep = keep.is_some_and(|keep| keep.is_true());
                let parts = lines(text, keep).into_iter().map(|line| self.text(line.to_owned()));
                let parts = parts.collect::<Answer<Vec<Value>>>()?;
                self.list(parts)
            }
            "startswith" | "endswith" => self.affix(text, name, given),
            "find" | "rfind" | "index" | "rindex" | "count" => find(text, name, given),
            "join" => self.join_method(text, given),
            "replace" => self.replace(text, given),
            "removeprefix" | "removesuffix" => {
                let [affix] = given.bind(name, ["affix"])?;
                let affix = needed(affix.as_ref(), name)?;
                let rest =
                    if name == "removeprefix" { text.strip_prefix(affix) } else { text.strip_suffix(affix) };
                self.text(rest.unwrap_or(text).to_owned())
            }
            "partition" | "rpartition" => {
                let [separator] = given.bind(name, ["sep"])?;
                let separator = needed(separator.as_ref(), name)?;
                let at = if name == "partition" { text.find(separator) } else { text.rfind(separator) };
                let parts = match at {
                    Some(at) => [&text[..at], separator, &text[at + separator.len()..]],
                    None if name == "partition" => [text, "", ""],
                    None => ["", "", text],
                };
                let parts = parts.map(|part| self.text(part.to_owned()));
                let parts = parts.into_iter().collect::<Answer<Vec<Value>>>()?;
                self.tuple(parts)
            }
            "center" | "ljust" | "rjust" | "zfill" => self.pad(text, name, given),
            "expandtabs" => self.expand_tabs(text, given),
            _ => self.formatted(text, false, name, given),
        }
    }

    /// `format` and `format_map`, of a text that is safe or not.
    pub(in crate::jinja) fn formatted(
        &mut self,
        text: &str,
        safe: bool,
        name: &str,
        given: Given,
    ) -> Answer<Value> {
        if name == "format" {
            return self.braces(text, safe, given);
        }
        let [mapping] = given.bind(name, ["mapping"])?;
        let Some(Value::Dict(dict)) = mapping else {
            return Err(Fault::new("`format_map` needs a dictionary"));
        };
        let named = dict.iter().filter_map(|(key, value)| Some((key.as_text()?.into(), value.clone())));
        self.braces(text, safe, Given { positional: Vec::new(), named: named.collect() })
    }

    fn split(&mut self, text: &str, name: &str, given: Given) -> Answer<Value> {
        let [separator, most] = given.bind(name, ["sep", "maxsplit"])?;
        let most = most.as_ref().and_then(numbers::whole).and_then(|most| usize::try_from(most).ok());
        let most = most.unwrap_or(usize::MAX);
        let from_left = name == "split";
        let parts: Vec<&str> = match optional(separator.as_ref(), name)? {
            Some("") => return Err(Fault::new(format!("`{name}` needs a separator that is not empty"))),
            Some(separator) if from_left => text.splitn(most.saturating_add(1), separator).collect(),
            Some(separator) => {
                let mut parts: Vec<&str> = text.rsplitn(most.saturating_add(1), separator).collect();
                parts.reverse();
                parts
            }
            None => words(text, most, from_left),
        };
        let parts = parts.into_iter().map(|part| self.text(part.to_owned()));
        let parts = parts.collect::<Answer<Vec<Value>>>()?;
        self.list(parts)
    }

    fn affix(&mut self, text: &str, name: &str, given: Given) -> Answer<Value> {
        let [affixes, start, end] = given.bind(name, ["prefix", "start", "end"])?;
        let part = between(text, start.as_ref(), end.as_ref())?.map(|(_, part)| part);
        let matches = |affix: &Value| match affix.as_text() {
            Some(affix) if name == "startswith" => Ok(part.is_some_and(|part| part.starts_with(affix))),
            Some(affix) => Ok(part.is_some_and(|part| part.ends_with(affix))),
            None => Err(Fault::new(format!("`{name}` needs a text, not {}", affix.kind()))),
        };
        match affixes {
            Some(Value::Tuple(affixes)) => {
                for affix in affixes.iter() {
                    if matches(affix)? {
                        return Ok(Value::Bool(true));
                    }
                }
                Ok(Value::Bool(false))
            }
            Some(affix) => Ok(Value::Bool(matches(&affix)?)),
            None => Err(Fault::new(format!("`{name}` needs a text"))),
        }
    }

    fn join_method(&mut self, text: &str, given: Given) -> Answer<Value> {
        let [items] = given.bind("join", ["iterable"])?;
        let items = items.ok_or_else(|| Fault::new("`join` needs items"))?;
        let mut pen = Pen::new(&self.meter);
        for (at, item) in self.items(&items)?.iter().enumerate() {
            if at > 0 {
                pen.push(text)?;
            }
            let part = item.as_text();
            pen.push(part.ok_or_else(|| Fault::new(format!("`join` needs texts, not {}", item.kind())))?)?;
        }
        Ok(Value::Text(pen.into()))
    }

    fn replace(&mut self, text: &str, given: Given) -> Answer<Value> {
        let [old, new, count] = given.bind("replace", ["old", "new", "count"])?;
        let (old, new) = (needed(old.as_ref(), "replace")?, needed(new.as_ref(), "replace")?);
        let count = count.as_ref().and_then(numbers::whole).and_then(|count| usize::try_from(count).ok());
        let mut pen = Pen::new(&self.meter);
        let mut from = 0;
        for (at, found) in text.match_indices(old).take(count.unwrap_or(usize::MAX)) {
            pen.push(&text[from..at])?;
            pen.push(new)?;
            from = at + found.len();
        }
        pen.push(&text[from..])?;
        Ok(Value::Text(pen.into()))
    }

    fn pad(&mut self, text: &str, name: &str, given: Given) -> Answer<Value> {
        let [width, fill] = given.bind(name, ["width", "fillchar"])?;
        let width = width.as_ref().and_then(numbers::whole);
        let width = width.ok_or_else(|| Fault::new(format!("`{name}` needs a width")))?;
        let fill = optional(fill.as_ref(), name)?.unwrap_or(if name == "zfill" { "0" } else { " " });
        if fill.chars().count() != 1 {
            return Err(Fault::new(format!(
                "`{name}` fills with one character, not with {}",
                fill.escape_debug()
            )));
        }
        let len = text.chars().count();
        let missing = usize::try_from(width).unwrap_or(0).saturating_sub(len);
        let left = match name {
            "ljust" => 0,
            "center" => missing / 2 + (missing & usize::try_from(width).unwrap_or(0) & 1),
            _ => missing,
        };
        let mut pen = Pen::new(&self.meter);
        let sign = usize::from(name == "zfill" && text.starts_with(['-', '+']));
        pen.push(&text[..sign])?;
        pen.repeat(fill, left)?;
        pen.push(&text[sign..])?;
        pen.repeat(fill, missing - left)?;
        Ok(Value::Text(pen.into()))
    }

    fn expand_tabs(&mut self, text: &str, given: Given) -> Answer<Value> {
        let [size] = given.bind("expandtabs", ["tabsize"])?;
        let size =
            size.as_ref().and_then(numbers::whole).map_or(8, |size| usize::try_from(size).unwrap_or(0));
        let mut pen = Pen::new(&self.meter);
        let mut column = 0;
        for character in text.chars() {
            match character {
                '\t' => {
                    let blanks = if size == 0 { 0 } else { size - column % size };
                    pen.repeat(" ", blanks)?;
                    column += blanks;
                }
                _ => {
                    pen.push_char(character)?;
                    column = if matches!(character, '\n' | '\r') { 0 } else { column + 1 };
                }
            }
        }
        Ok(Value::Text(pen.into()))
    }
}

fn needed<'v>(value: Option<&'v Value>, name: &str) -> Answer<&'v str> {
    optional(value, name)?.ok_or_else(|| Fault::new(format!("`{name}` needs a text")))
}

fn optional<'v>(value: Option<&'v Value>, name: &str) -> Answer<Option<&'v str>> {
    match value {
        None | Some(Value::None) => Ok(None),
        Some(Value::Undefined(missing)) => Err(missing.fault()),
        Some(value) => match value.as_text() {
            Some(text) => Ok(Some(text)),
            None => Err(Fault::new(format!("`{name}` needs a text, not {}", value.kind()))),
        },
    }
}

/// The place where a part of a text begins, and the part; nothing where it would begin behind its end.
fn between<'t>(text: &'t str, start: Option<&Value>, end: Option<&Value>) -> Answer<Option<(i128, &'t str)>> {
    let len = text.chars().count() as i128;
    let place = |value: Option<&Value>, usual: i128| match value {
        None | Some(Value::None) => Ok(usual),
        Some(value) => match numbers::whole(value) {
            Some(number) => Ok(if number < 0 { number.saturating_add(len).max(0) } else { number }),
            None => Err(Fault::new(format!("a place in a text is a whole number, not {}", value.kind()))),
        },
    };
    let (start, end) = (place(start, 0)?, place(end, len)?.min(len));
    let byte = |at: i128| text.char_indices().nth(at as usize).map_or(text.len(), |(byte, _)| byte);
    Ok((start <= end).then(|| (start, &text[byte(start)..byte(end)])))
}

fn find(text: &str, name: &str, given: Given) -> Answer<Value> {
    let [part, start, end] = given.bind(name, ["sub", "start", "end"])?;
    let part = needed(part.as_ref(), name)?;
    let inside = between(text, start.as_ref(), end.as_ref())?;
    if name == "count" {
        return Ok(Value::Int(inside.map_or(0, |(_, inside)| inside.matches(part).count() as i128)));
    }
    let found = inside.and_then(|(from, inside)| {
        let at = if name.starts_with('r') { inside.rfind(part) } else { inside.find(part) };
        at.map(|at| from + inside[..at].chars().count() as i128)
    });
    match found {
        Some(at) => Ok(Value::Int(at)),
        None if name.ends_with("index") => Err(Fault::new("the text does not hold this part")),
        None => Ok(Value::Int(-1)),
    }
}

fn stripped<'t>(text: &'t str, name: &str, characters: Option<&str>) -> &'t str {
    let strips = |character: char| match characters {
        Some(characters) => characters.contains(character),
        None => is_space(character),
    };
    let text = if name == "rstrip" { text } else { text.trim_start_matches(strips) };
    if name == "lstrip" { text } else { text.trim_end_matches(strips) }
}

/// Words between white space, with at most this many splits.
fn words(text: &str, most: usize, from_left: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_matches(is_space);
    if from_left {
        rest = text.trim_start_matches(is_space);
    } else {
        rest = if most == usize::MAX { rest } else { text.trim_end_matches(is_space) };
    }
    while !rest.is_empty() && parts.len() < most {
        let cut = if from_left { rest.find(is_space) } else { rest.rfind(is_space) };
        let Some(at) = cut else { break };
        if from_left {
            parts.push(&rest[..at]);
            rest = rest[at..].trim_start_matches(is_space);
        } else {
            let width = rest[at..].chars().next().map_or(1, char::len_utf8);
            parts.push(&rest[at + width..]);
            rest = rest[..at].trim_end_matches(is_space);
        }
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    if !from_left {
        parts.reverse();
    }
    parts
}

/// Lines as Python divides them, with their ends or without.
pub(crate) fn lines(text: &str, keep: bool) -> Vec<&str> {
    let (mut lines, mut begin) = (Vec::new(), 0);
    let mut characters = text.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        let ends = matches!(
            character,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        );
        if !ends {
            continue;
        }
        let mut behind = at + character.len_utf8();
        if character == '\r' && characters.next_if(|(_, next)| *next == '\n').is_some() {
            behind += 1;
        }
        lines.push(&text[begin..if keep { behind } else { at }]);
        begin = behind;
    }
    if begin < text.len() {
        lines.push(&text[begin..]);
    }
    lines
}

/// `isalpha` and its kin.
fn property(text: &str, name: &str) -> Option<bool> {
    let all = |holds: fn(char) -> bool| !text.is_empty() && text.chars().all(holds);
    Some(match name {
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => text.is_ascii(),
        "isdecimal" => all(|c| decimal(c).is_some()),
        "isdigit" => all(is_digit),
        "isnumeric" => all(char::is_numeric),
        "isspace" => all(is_space),
        "isprintable" => text.chars().all(is_printable),
        "islower" => is_cased(text, char::is_lowercase, char::is_uppercase),
        "isupper" => is_cased(text, char::is_uppercase, char::is_lowercase),
        "istitle" => text.chars().any(char::is_alphabetic) && recased(text, "title").as_deref() == Some(text),
        "isidentifier" => {
            let inner = |c: char| c == '_' || c.is_alphanumeric();
            text.chars().all(inner) && text.chars().next().is_some_and(|c| c == '_' || c.is_alphabetic())
        }
        _ => return None,
    })
}

/// The result of a method that changes upper and lower case; none for a method of another name.
fn recased(text: &str, name: &str) -> Option<String> {
    Some(match name {
        "upper" => text.to_uppercase(),
        "lower" => text.to_lowercase(),
        "casefold" => text.chars().map(folded).collect(),
        "swapcase" => {
            let swap = |c: char| -> String {
                match (c.is_uppercase(), c.is_lowercase()) {
                    (true, _) => c.to_lowercase().collect(),
                    (_, true) => c.to_uppercase().collect(),
                    _ => c.into(),
                }
            };
            text.chars().map(swap).collect()
        }
        "capitalize" => {
            let mut rest = text.chars();
            let first = rest.next().map(titled).unwrap_or_default();
            first + &rest.as_str().to_lowercase()
        }
        "title" => {
            let mut inside = false;
            let mut made = String::with_capacity(text.len());
            let mut rest = text.chars();
            while let Some(character) = rest.next() {
                let cased = has_case(character);
                match (cased, inside) {
                    (true, false) => made.push_str(&titled(character)),
                    (true, true) if character == 'Σ' && !rest.clone().next().is_some_and(has_case) => {
                        made.push('ς');
                    }
                    (true, true) => made.extend(character.to_lowercase()),
                    (false, _) => made.push(character),
                }
                inside = cased;
            }
            made
        }
        _ => return None,
    })
}
